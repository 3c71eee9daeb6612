"""A bucket that does not answer for a while is waited for; one that refuses is not; one that stays away is told."""

import itertools
import threading
from contextlib import ExitStack
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.errors import StoreUnavailable
from holdfast.stores.bucket import BucketStore, cas
from holdfast.stores.buckets.base import Away
from holdfast.stores.buckets.memory import MemoryBucket
from holdfast.stores.buckets.obstore import ObstoreBucket
from tests.buckets import proxy, servers

READS = ("get", "part", "list")
GONE = 8.0
"""Longer than a write is tried by itself."""


class Leaving:
    """A bucket whose reads fail from some request on, for so many requests."""

    def __init__(self, first: int, count: int, error: type[StoreUnavailable] = Away) -> None:
        self._bucket, self._error = MemoryBucket(), error
        self.first, self.count, self.seen = first, count, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._bucket, name)
        if name not in READS:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self.seen += 1
            if self.first <= self.seen < self.first + self.count:
                raise self._error("nobody is there")
            return found(*args, **kwargs)

        return call


def life(bucket: Any, pauses: dict[str, list[float]]) -> hf.Report:
    """Twenty items, in one process whose threads sleep by their lists."""

    def pause(seconds: float) -> None:
        pauses.setdefault(threading.current_thread().name, []).append(seconds)

    store = BucketStore(bucket, at_once=1, pause=pause)
    lines = hf.Pipeline("lines", store=store)

    @lines.stage
    def length(line: str) -> int:
        return len(line)

    return lines.run([f"line {n}" for n in range(20)], progress=False, lease=600)


def grow(pauses: list[float]) -> bool:
    """Whether each is the next longer one, or the first of another verb."""
    steps = [cas.VERB_PAUSES.index(each) for each in pauses]
    return all(step in (0, before + 1) for before, step in itertools.pairwise([-1, *steps]))


def test_a_run_gets_over_a_bucket_that_is_away_at_any_moment() -> None:
    plain = Leaving(0, 0)
    assert life(plain, {}).counts.done == 20
    for first in itertools.count(3, 3):
        pauses: dict[str, list[float]] = {}
        leaving = Leaving(first, 4)
        assert life(leaving, pauses).counts.done == 20, first
        if leaving.seen < first:  # it was over before: how often a worker looks for more is not the same each time
            break
        assert sum(len(each) for each in pauses.values()) == 4
        assert all(grow(each) for each in pauses.values()), (first, pauses)
    assert first > plain.seen / 2


def test_a_bucket_that_stays_away_is_told_after_half_a_minute() -> None:
    pauses: dict[str, list[float]] = {}
    with pytest.raises(StoreUnavailable, match=r"no answer for 30\.5 s and 7 tries"):
        life(Leaving(9, 10_000), pauses)
    assert list(cas.VERB_PAUSES) in [each[:6] for each in pauses.values()]


def test_a_bucket_that_refuses_is_not_asked_again() -> None:
    pauses: dict[str, list[float]] = {}
    with pytest.raises(StoreUnavailable, match="nobody is there"):
        life(Leaving(9, 10_000, StoreUnavailable), pauses)
    assert not pauses


@pytest.mark.slow
def test_a_server_that_is_gone_for_a_while_in_mid_run_is_waited_for(azurite: str) -> None:
    """Connections are cut, then refused, then served again: a server that is restarted, for less."""
    with ExitStack() as last, ExitStack() as first:
        servers.make_container(azurite, "restarted")
        _, address = first.enter_context(proxy.before(azurite))
        store = BucketStore(ObstoreBucket("az://restarted/state", **servers.azure_options(address)))
        lines = hf.Pipeline("lines", store=store)

        @lines.stage
        def length(line: str) -> int:
            if line == "line 0":
                first.close()
                back = threading.Timer(GONE, lambda: last.enter_context(proxy.before(azurite, address)))
                back.start()
            return len(line)

        assert lines.run([f"line {n}" for n in range(20)], progress=False).counts.done == 20
