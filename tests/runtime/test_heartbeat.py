"""The heartbeat by itself: when it gives up, and what makes it start counting again."""

import time
from collections.abc import Sequence

import pytest

from holdfast.core.errors import StoreUnavailable
from holdfast.core.model import ChunkId, Lease
from holdfast.runtime.engine import leases as heartbeat_module
from holdfast.runtime.engine.leases import FAILURES, Heartbeat
from holdfast.stores.memory import MemoryStore


class Shaky(MemoryStore):
    """Renews what it is told to, or fails."""

    def __init__(self) -> None:
        super().__init__()
        self.failing = True
        self.lost: set[int] = set()

    def renew(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        if self.failing:
            raise StoreUnavailable("the disk is away")
        return [lease for lease in leases if lease.chunk not in self.lost]


def lease_of(chunk: int) -> Lease:
    return Lease(chunk=ChunkId(chunk), fence=1, owner="ann", expires=0.0)


@pytest.fixture
def troubles() -> list[str]:
    return []


@pytest.fixture
def store() -> Shaky:
    return Shaky()


@pytest.fixture
def heartbeat(store: Shaky, troubles: list[str]) -> Heartbeat:
    made = Heartbeat(store, 30.0, grace=7200.0, on_trouble=troubles.append)
    made.add(lease_of(1))
    return made


@pytest.mark.promise("C6")
def test_the_run_is_halted_by_the_third_failure_in_a_row_and_not_before(
    heartbeat: Heartbeat, troubles: list[str]
) -> None:
    for _ in range(FAILURES - 1):
        heartbeat.beat()
    assert troubles == []
    heartbeat.beat()
    assert troubles == ["3 heartbeats in a row failed: the disk is away"]


@pytest.mark.promise("C6")
def test_one_success_starts_the_count_anew(heartbeat: Heartbeat, store: Shaky, troubles: list[str]) -> None:
    for failing in [True, True, False, True, True, False]:
        store.failing = failing
        heartbeat.beat()
    assert troubles == []


def test_the_trouble_is_told_once_though_whoever_hears_of_it_looks_again_at_once(
    heartbeat: Heartbeat, store: Shaky, troubles: list[str]
) -> None:
    """A worker that is woken by it renews what ran out: told each time, it would go round for ever without a pause."""
    for _ in range(10):
        heartbeat.beat()
    assert len(troubles) == 1
    store.failing = False
    heartbeat.beat()
    store.failing = True
    for _ in range(10):
        heartbeat.beat()
    assert len(troubles) == 2


@pytest.mark.promise("C7")
def test_only_the_lease_that_is_gone_is_lost(heartbeat: Heartbeat, store: Shaky, troubles: list[str]) -> None:
    kept, gone = heartbeat.add(lease_of(2)), heartbeat.add(lease_of(3))
    store.failing, store.lost = False, {3}
    heartbeat.beat()
    assert (kept.lost, gone.lost, troubles) == (False, True, [])
    news = heartbeat.news()
    assert news is not None
    assert ([lease.chunk for lease in news.kept], [lease.chunk for lease in news.lost]) == ([1, 2], [3])
    assert heartbeat.news() is None, "what was told is not told again"
    kept.lost = True
    heartbeat.beat()
    assert kept.lost, "what was given up stays lost, whatever a renewal says"


@pytest.mark.promise("A15")
def test_a_chunk_without_progress_for_the_grace_period_is_renewed_no_more(
    heartbeat: Heartbeat, store: Shaky, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that hangs for ever does not hold it for ever; one that committed something since may go on."""
    store.failing = False
    _, works = heartbeat.add(lease_of(2)), heartbeat.add(lease_of(3))
    later = time.monotonic() + 7200.0 + 1.0
    works.progressed_at = later
    monkeypatch.setattr(heartbeat_module.time, "monotonic", lambda: later)
    asked: list[int] = []
    monkeypatch.setattr(store, "renew", lambda leases, _: asked.extend(lease.chunk for lease in leases) or leases)
    heartbeat.beat()
    assert asked == [3]


@pytest.mark.promise("C7")
def test_letting_go_of_an_old_grant_keeps_the_new_one_of_the_same_chunk(heartbeat: Heartbeat, store: Shaky) -> None:
    store.failing = False
    old, new = heartbeat.add(lease_of(2)), heartbeat.add(lease_of(2))
    heartbeat.remove(old)
    store.lost = {2}
    heartbeat.beat()
    assert (new.lost, old.lost) == (True, False)
