"""A scan that follows with its state in a bucket: whatever becomes of a write, no row is lost and none counts twice."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core import journal
from holdfast.runtime.scan.tick import Ended
from holdfast.stores.base import Store, each_entry
from holdfast.stores.bucket import cas
from holdfast.stores.buckets.memory import Fate, MemoryBucket
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.clock import ManualClock
from holdfast.testing.rows import Rows
from tests.buckets.test_replies import Once
from tests.buckets.worker import store_on
from tests.runtime.support import SOON

ROWS = list(range(8))
LEASE = 60.0
GIVEN_UP = cas.TRIES * (len(cas.VERB_PAUSES) + 1)
"""Writes in a row after which a verb is not asked again."""


def follow(store: Store) -> tuple[hf.Scan, list[int]]:
    scan = hf.Follow("orders", Rows(ROWS, page=4), store=store, every=3, retry=SOON)
    given: list[int] = []

    @scan.handler
    def keep(rows: list[int], acc: dict[str, int]) -> dict[str, int]:
        given.extend(rows)
        for row in rows:
            acc[str(row)] = acc.get(str(row), 0) + 1
        return acc

    return scan, given


def live(fate: Once) -> tuple[hf.Scan, list[int], int]:
    """Tick until all is handled; how often a tick failed with an error that says so. Whoever meets trouble while the
    store is made opens it again: that is left out."""
    bucket = MemoryBucket()
    clock, failed = ManualClock(), 0
    scan, given = follow(store_on(bucket, clock))
    bucket.fate = fate
    while True:
        try:
            ended = scan.tick().ended
        except (hf.StoreUnavailable, hf.CommitUnknown):
            failed, ended = failed + 1, Ended.FAILED
        bucket.deliver()
        if ended in (Ended.CAUGHT_UP, Ended.NOTHING_NEW):
            return scan, given, failed
        assert failed <= GIVEN_UP
        clock.advance(LEASE)  # the lease of a tick that could not give it back runs out


def writes_of_a_life() -> int:
    counted = Once(0, 0, Fate.PLAIN)
    live(counted)
    return counted.seen


@pytest.mark.promise("C9", "C11", "C12", "B4", "B7", "B10")
@pytest.mark.parametrize("count", [1, GIVEN_UP])
@pytest.mark.parametrize("fate", [Fate.LOST_REQUEST, Fate.LOST_REPLY, Fate.LATE, Fate.TWICE, Fate.REFUSED])
def test_whatever_becomes_of_a_write_of_a_tick_no_row_is_lost_and_none_counts_twice(fate: Fate, count: int) -> None:
    repeated = 0
    for first in range(1, writes_of_a_life() + 1):
        scan, given, _ = live(Once(first, count, fate))
        assert scan.report().result == {str(row): 1 for row in ROWS}, first
        assert set(given) == set(ROWS)
        repeated += len(given) > len(ROWS)
    if count > 1 and fate is Fate.LOST_REQUEST:
        assert repeated, "what did not land is handled again: this is the window that the documentation names"


@pytest.mark.promise("C2", "C1")
@pytest.mark.parametrize("kind", ["bucket", "file"])
def test_of_pollers_that_start_at_once_on_nothing_one_makes_the_state_and_its_first_fence_is_1(
    kind: str, tmp_path: Path
) -> None:
    bucket, clock = MemoryBucket(), ManualClock()
    new: Callable[[], Any] = {
        "bucket": lambda: store_on(bucket, clock),
        "file": lambda: SqliteStore(tmp_path / "s.db"),
    }[kind]
    scans = [follow(new()) for _ in range(4)]
    together, told = threading.Barrier(4), []

    def tick(scan: hf.Scan) -> None:
        together.wait(20)
        told.append(scan.tick().ended)

    threads = [threading.Thread(target=tick, args=(scan,)) for scan, _ in scans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert Ended.CAUGHT_UP in told
    assert set(told) <= {Ended.CAUGHT_UP, Ended.NOTHING_NEW, Ended.HELD}
    assert sorted(row for _, given in scans for row in given) == ROWS
    store = new()
    (batch,) = store.batches()
    assert batch.admitted == 1
    (chunk,) = store.chunks(batch.id)
    headers = [journal.decode_header(entry.head) for entry in each_entry(store, chunk.id)]
    fences = [each.fence for each in headers if each.kind == "claimed"]
    assert fences == sorted(set(fences))
    assert fences[0] == 1
