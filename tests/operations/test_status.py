"""The status of a batch: every item counted once, orphans exactly, forecasts from what is known."""

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core import canonical
from holdfast.core.counts import StateCounts, count
from holdfast.core.journal import Spend
from holdfast.core.model import Batch, BatchId, Chunk, ChunkId, ItemNo
from holdfast.core.model import Counts as ChunkCounts
from holdfast.runtime.report import status
from holdfast.runtime.report.orphans import Activity
from tests.operations.world import World, deferred, done, failed, skipped

NOW = 1_700_000_000.0
GRACE = 7200.0


def chunk(**facts: object) -> Chunk:
    plain = {"id": ChunkId(1), "batch": BatchId(1), "lo": ItemNo(0), "hi": ItemNo(10), "touched_at": NOW}
    return Chunk(**{**plain, **facts})


def nobody_dead(owner: str) -> bool:
    return False


def words(*given_chunks: Chunk, is_dead: status.IsDead = nobody_dead) -> dict[str, int]:
    activity = Activity(given_chunks, now=NOW, is_dead=is_dead)
    counts = count(given_chunks, lambda each: status.doing(each, activity)).as_dict()
    return {name: counts[name] for name in ("ready", "running", "waiting", "orphaned") if counts[name]}


def test_a_free_chunk_is_ready() -> None:
    assert words(chunk()) == {"ready": 10}


def test_a_chunk_under_a_live_lease_is_running() -> None:
    assert words(chunk(owner="a", expires=NOW)) == {"running": 10}


def test_an_expired_lease_is_not_running() -> None:
    assert words(chunk(owner="a", expires=NOW - 0.001)) == {"ready": 10}


def test_a_lease_of_a_dead_process_is_not_running() -> None:
    assert words(chunk(owner="a", expires=NOW + 30), is_dead=lambda owner: owner == "a") == {"ready": 10}


def test_a_chunk_that_is_not_due_is_waiting() -> None:
    assert words(chunk(due=NOW + 1, touched_at=NOW - 2 * GRACE)) == {"waiting": 10}


@pytest.mark.promise("A9")
def test_an_orphan_made_no_progress_for_longer_than_the_grace_period_and_not_exactly_as_long() -> None:
    assert words(chunk(touched_at=NOW - GRACE)) == {"ready": 10}
    assert words(chunk(touched_at=NOW - GRACE - 0.001)) == {"orphaned": 10}


@pytest.mark.promise("A9")
def test_what_was_claimed_and_dropped_is_an_orphan_and_what_is_in_hand_is_not_while_its_batch_lives() -> None:
    lively = chunk(id=ChunkId(2), lo=ItemNo(10), hi=ItemNo(11), touched_at=NOW)
    held = {"touched_at": NOW - 2 * GRACE, "owner": "a", "seq": 1, "progressed": False}
    assert words(chunk(**held, expires=NOW + 1), lively) == {"running": 10, "ready": 1}
    assert words(chunk(**held, expires=NOW - 1), lively) == {"orphaned": 10, "ready": 1}
    assert words(chunk(touched_at=NOW - 2 * GRACE, fence=3), lively) == {"ready": 11}


@pytest.mark.promise("A9")
def test_settled_items_are_never_orphans() -> None:
    settled = ChunkCounts(done=4, dead=3, skipped=2, cancelled=1)
    assert words(chunk(touched_at=0.0, counts=settled)) == {}


chunks = st.lists(
    st.builds(
        chunk,
        hi=st.integers(100, 200).map(ItemNo),
        owner=st.sampled_from([None, "alive", "dead"]),
        expires=st.sampled_from([0.0, NOW - 1, NOW + 1]),
        due=st.sampled_from([0.0, NOW - 1, NOW + 1]),
        touched_at=st.floats(NOW - 3 * GRACE, NOW),
        counts=st.builds(ChunkCounts, done=st.integers(0, 20), skipped=st.integers(0, 20), dead=st.integers(0, 20)),
    ),
    max_size=8,
)


@pytest.mark.promise("A14")
@given(chunks)
@settings(max_examples=200, deadline=None)
def test_the_counts_always_add_up(given_chunks: list[Chunk]) -> None:
    activity = Activity(given_chunks, now=NOW, is_dead=lambda owner: owner == "dead")
    counts = count(given_chunks, lambda each: status.doing(each, activity))
    assert counts.expected == counts.done + counts.skipped + counts.dead + counts.cancelled + counts.pending
    assert counts.pending == counts.ready + counts.running + counts.waiting + counts.orphaned
    assert counts.expected == sum(each.size for each in given_chunks)


def test_counts_that_do_not_add_up_cannot_be_made() -> None:
    with pytest.raises(AssertionError):
        StateCounts(
            expected=3, done=1, skipped=0, dead=0, cancelled=0, pending=1, ready=1, running=0, waiting=0, orphaned=0
        )


@pytest.mark.promise("P1", "A14")
def test_a_snapshot_tells_where_everything_is(world: World) -> None:
    world.add("done", "skipped", "dead", "later", "again")
    turns = {
        "skipped": skipped,
        "dead": lambda item: failed(item, transient=False, code="no_such_page"),
        "later": deferred,
    }
    world.work(lambda item: turns.get(item.key, done)(item))
    claim = world.claim()
    world.commit(claim, [done(item) for item in world.items(claim) if item.key == "done"], release=False)
    seen = status.snapshot(world.store, world.batch, is_dead=nobody_dead)
    assert (seen.counts.done, seen.counts.skipped, seen.counts.dead, seen.counts.pending) == (1, 1, 1, 2)
    assert seen.counts.running == 2
    assert dict(seen.dead_codes) == {"no_such_page": 1}
    assert seen.stages == ("ocr", "correct")
    (lease,) = seen.leases
    assert (lease.owner, lease.fence, lease.pending, lease.is_live) == ("host-a pid 4711", claim.lease.fence, 2, True)
    assert not seen.is_complete


def test_to_give_items_back_is_not_progress(world: World) -> None:
    world.add("first", "second")
    world.work(lambda item: done(item) if item.key == "first" else None)
    moved = world.clock()
    for _ in range(3):
        world.clock.advance(60)
        world.work(lambda _: None)
    assert status.snapshot(world.store, world.batch, is_dead=nobody_dead).progressed_at == moved
    world.clock.advance(60)
    world.work(lambda item: failed(item) if item.key == "second" else None)
    assert status.snapshot(world.store, world.batch, is_dead=nobody_dead).progressed_at == world.clock()


def test_the_forecast_is_the_mean_of_what_is_settled_times_what_is_left(world: World) -> None:
    world.add(*range(10))
    price = Spend(0, usd=canonical.to_units("0.03"))
    for _ in range(2):
        claim = world.claim(4)
        world.commit(claim, [done(item, spend=price, seconds=1.0) for item in world.items(claim)])
        world.clock.advance(2.0)
        claim = world.claim(4)
        world.commit(claim, [done(item, seconds=1.0) for item in world.items(claim)])
        world.clock.advance(2.0)
    seen = status.snapshot(world.store, world.batch)
    assert seen.counts.done == 8
    assert seen.forecast.usd == Decimal("0.06")
    assert seen.forecast.work_seconds == pytest.approx(4.0)
    assert seen.forecast.rate == pytest.approx(8 / 6)
    assert seen.forecast.seconds is None, "nobody works on it: no time can be told"


def test_time_in_which_nobody_worked_is_not_in_the_rate(world: World) -> None:
    world.add(*range(40))
    for turn, owner in enumerate(["host/evening", "host/morning"]):
        world.clock.advance(12 * 3600.0 * turn)
        for _ in range(4):
            claim = world.claim(4, owner=owner)
            world.clock.advance(2.0)
            world.commit(claim, [done(item, queued=0.5, seconds=1.5) for item in world.items(claim)])
            claim = world.claim(4, owner=owner)
            world.commit(claim, [done(item, queued=0.0, seconds=0.0) for item in world.items(claim)])
    assert status.snapshot(world.store, world.batch).forecast.rate == pytest.approx(32 / 14)


def test_a_run_that_waits_is_at_work_and_one_whose_machine_slept_is_not(world: World) -> None:
    world.add(*range(40))
    for pause in (0.0, 60.0, 12 * 3600.0):
        world.clock.advance(pause)
        claim = world.claim(10)
        world.clock.advance(4.0)
        world.commit(claim, [skipped(item) for item in world.items(claim)])
    assert status.snapshot(world.store, world.batch).forecast.rate == pytest.approx(20 / 64.25)


@pytest.mark.promise("P9")
def test_a_status_cannot_be_changed_and_says_the_same_afterwards(world: World) -> None:
    world.add("a", "b")
    seen = status.snapshot(world.store, world.batch)
    before = seen.as_dict()
    world.finish()
    before["counts"]["done"] = 99
    assert seen.as_dict()["counts"]["done"] == 0
    with pytest.raises(TypeError):
        seen.dead_codes["x"] = 1  # type: ignore[index]
    assert status.snapshot(world.store, world.batch).is_complete


def test_a_batch_without_items_is_not_complete_until_its_source_ended(world: World) -> None:
    assert not status.snapshot(world.store, world.batch).is_complete
    world.add()
    batch: Batch = world.batch
    assert status.snapshot(world.store, batch).is_complete
