"""Stores that an earlier version wrote, as they were: they open, audit clean, and go on."""

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.model import ItemState, State
from holdfast.runtime.operate import audit
from holdfast.runtime.report import why
from holdfast.stores.base import Store
from holdfast.stores.bucket import BucketStore
from holdfast.stores.buckets.local import LocalBucket
from holdfast.stores.sqlite import SqliteStore
from tests.operations.world import Clock, World, done, failed

GOLDEN = Path(__file__).parent / "golden" / "format_3.tar.gz"
"""Made by the code before time budgets were counted in what is used: its places say since when, by the clock."""


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "bucket"])
def golden(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Store]:
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(tmp_path, filter="data")
    if request.param == "sqlite":
        store: Store = SqliteStore(tmp_path / "state.db", clock=clock)
    else:
        store = BucketStore(LocalBucket(tmp_path / "bucket"), clock=clock, monotonic=clock)
    yield store
    store.close()


def places(store: Store) -> dict[str, ItemState]:
    return {str(item.key): item.place for item in store.items(store.batches()[0].id)}


@pytest.mark.promise("E6", "E7", "E10")
def test_a_store_of_the_format_before_opens_audits_and_goes_on(golden: Store, clock: Clock) -> None:
    batch = golden.batches()[0]
    found = places(golden)
    assert {key: place.state for key, place in found.items()} == {
        "done": State.DONE, "again": State.PENDING, "later": State.PENDING, "dead": State.DEAD, "left": State.PENDING,
    }  # fmt: skip
    assert (found["again"].attempt, found["again"].due, found["again"].used) == (1, 1_700_000_002.0, 0.0)
    assert audit.verify(golden, batch, full=True).holds
    assert "attempt 1 at 'read' failed" in str(why.tell(golden, batch, "again"))
    clock.advance(86_400.0)  # the machine was off for a day
    world = World(golden, clock, stages=("read",), batch="book")
    world.work(lambda item: failed(item) if item.key == "again" else done(item))
    after = places(golden)["again"]
    assert (after.state, after.attempt, after.used) == (State.PENDING, 2, 1.5 + 2.0)
    clock.advance(60.0)
    world.finish()
    assert {place.state for key, place in places(golden).items() if key != "dead"} == {State.DONE}
    assert audit.verify(golden, golden.batches()[0], full=True).holds
