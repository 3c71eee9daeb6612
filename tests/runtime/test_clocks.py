"""Clocks that are set and machines that sleep: nobody is buried for it, and nobody waits for a clock to catch up."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.core import retry
from holdfast.core.model import State
from holdfast.core.outcome import Deferred
from holdfast.core.retry import Rule
from holdfast.runtime.acts import Actor
from holdfast.runtime.engine.dispatch import StageBreaker
from holdfast.runtime.operate import audit
from holdfast.runtime.operate.operations import redrive
from holdfast.runtime.report import status, why
from holdfast.runtime.report.orphans import Activity
from holdfast.stores.base import Idle, Store
from holdfast.testing.rows import Rows
from tests.core.made import item
from tests.operations.world import POLICY, Clock, World, deferred, done, failed, make_store
from tests.runtime.support import run

HOUR = 3600.0
ITEM = item(1)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite", "bucket"])
def world(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[World]:
    store = make_store(request.param, tmp_path, clock)
    yield World(store, clock, stages=("read",))
    store.close()


def fail_all(world: World) -> None:
    claim = world.claim()
    outcomes = [failed(item) for item in world.items(claim)]
    assert world.commit(claim, outcomes, due=world.clock() + 2.0).landed


@pytest.mark.promise("E7")
def test_a_clock_that_jumps_an_hour_between_two_attempts_buries_nobody(world: World) -> None:
    world.add(*range(20))
    fail_all(world)
    world.clock.advance(HOUR)
    fail_all(world)
    places = [item.place for item in world.store.items(world.id)]
    assert {(place.state, place.attempt) for place in places} == {(State.PENDING, 2)}
    assert {place.used for place in places} == {1.5 + 2.0 + 1.5 + 2.0}
    world.clock.advance(HOUR)
    world.finish()
    assert {item.place.state for item in world.store.items(world.id)} == {State.DONE}
    assert audit.verify(world.store, world.batch, full=True).holds


@pytest.mark.promise("E7")
def test_a_budget_that_was_really_used_still_buries(world: World) -> None:
    world.add("slow")
    world.work(lambda item: failed(item, seconds=500.0))
    world.clock.advance(10.0)
    world.work(lambda item: failed(item, seconds=500.0))
    place = world.store.items(world.id)[0].place
    assert (place.state, "after the 900 s" in place.reason) == (State.DEAD, True)


@pytest.mark.promise("E7")
@pytest.mark.parametrize("back", [5.0, HOUR])
def test_a_clock_that_is_set_back_makes_no_wait_longer_than_twice(world: World, back: float) -> None:
    world.add("page")
    fail_all(world)
    world.clock.advance(-back)
    claim = world.claim()
    (item,) = world.items(claim)
    assert world.commit(claim, [done(item)]).landed
    assert world.store.items(world.id)[0].place.state is State.DONE


def test_a_clock_that_is_set_back_a_little_ends_no_wait_early(world: World) -> None:
    world.add("page")
    claim = world.claim()
    outcomes = [deferred(item, 60.0) for item in world.items(claim)]
    assert world.commit(claim, outcomes, due=world.clock() + 60.0).landed
    world.clock.advance(-30.0)
    with pytest.raises(AssertionError, match="nothing to claim"):
        world.claim()


@pytest.mark.promise("E7")
def test_a_run_whose_clock_is_set_back_under_it_does_not_wait_for_the_clock(tmp_path: Path) -> None:
    """The clock stands still but for one step back, so that only the rule ends the wait."""
    clock, tried = Clock(), list[int]()
    store: Store = make_store("memory", tmp_path, clock)
    book = hf.Pipeline("book", store=store)

    @book.stage(retry=hf.Retry(attempts=3, wait=("2s", "2s")))
    def read(n: int) -> int:
        tried.append(n)
        if len(tried) == 1:
            raise ConnectionError("away")
        return n

    def look(figures: object) -> None:
        if len(tried) == 1 and store.items(store.batches()[0].id)[0].place.due:
            clock.now -= HOUR

    report = run(book, [1], progress=look, deadline="60s")
    assert (report.counts.done, tried) == (1, [1, 1])


@pytest.mark.promise("E7")
@pytest.mark.parametrize(("back", "is_over"), [(0.0, False), (1.0, False), (HOUR, True)])
def test_what_is_told_of_a_wait_is_what_a_claim_would_do(world: World, back: float, is_over: bool) -> None:
    world.add("page")
    fail_all(world)
    world.clock.advance(-back)
    counts = status.snapshot(world.store, world.batch).counts
    assert (counts.waiting, counts.ready) == ((0, 1) if is_over else (1, 0))
    (item,), (chunk,) = world.store.items(world.id), world.store.chunks(world.id)
    told = why.look_ahead(world.store, world.batch, item, chunk).now
    assert told.startswith("ready at" if is_over else "waits at")
    assert retry.deadline(item.place, POLICY, world.clock()) - world.clock() == pytest.approx(
        POLICY.within - item.place.used + (0.0 if is_over else 2.0 + back)
    )
    activity = Activity.of(world.store, world.batch, [chunk], now=world.clock())
    assert (activity.facts(chunk, item.place).due > world.clock()) is not is_over


@pytest.mark.promise("E7")
def test_an_item_in_hand_whose_wait_the_clock_ended_is_not_told_as_waiting(world: World) -> None:
    world.add("page")
    claim = world.claim(seconds=3 * HOUR)
    assert world.commit(claim, [failed(item) for item in world.items(claim)], release=False).landed
    (item,), (chunk,) = world.store.items(world.id), world.store.chunks(world.id)
    assert "its next attempt is due" in why.look_ahead(world.store, world.batch, item, chunk).now
    world.clock.advance(-HOUR)
    told = why.look_ahead(world.store, world.batch, item, chunk).now
    assert "held by" in told
    assert "its next attempt is due" not in told


@pytest.mark.promise("E7")
@pytest.mark.parametrize(("back", "is_over"), [(0.0, False), (HOUR, True)])
def test_a_redriven_row_does_not_wait_for_a_clock_that_was_set_back(tmp_path: Path, back: float, is_over: bool) -> None:
    clock, rows = Clock(), [1, "poison", 3]
    store = make_store("memory", tmp_path, clock)
    scan = hf.Follow("orders", Rows(rows), store=store, isolate=True, every=1,
                   retry=hf.Retry(attempts=5, wait=("60s", "60s")))  # fmt: skip

    @scan.handler
    def keep(some: list[object], acc: int) -> int:
        if "poison" in some:
            raise hf.Permanent("poison")
        if "away" in some:
            raise hf.Transient("the other side is away")
        return acc + len(some)

    assert scan.tick().dead == 1
    rows[1] = "away"
    assert redrive(store, store.batches()[0], Actor(name="ann", reason="corrected"))
    assert scan.tick().waiting == 1
    rows[1] = "here"
    clock.advance(-back)
    told = scan.tick()
    assert (told.redriven, told.waiting) == ((1, 0) if is_over else (0, 1))


@pytest.mark.promise("E7")
@pytest.mark.parametrize("told", [False, True], ids=["breaker", "retry after"])
def test_a_pause_is_over_when_the_clock_is_set_back_behind_it(told: bool) -> None:
    clock = Clock()
    stage = StageBreaker("fetch", Rule(failures=1, pause=30.0))
    outcome = Deferred(ITEM, 30.0, "wait", 0.0, 0.0, told=True) if told else failed(ITEM)
    stage.judge([outcome], clock())
    for back in (0.0, 29.0):
        assert stage.blocks(clock() - back, 0)
        assert stage.ends(clock() - back) == clock() + 30.0
    assert not stage.blocks(clock() - HOUR, 0)
    assert stage.ends(clock() - HOUR) == 0.0
    stage.judge([failed(ITEM)], clock() - HOUR)
    assert stage.blocks(clock() - HOUR + 29.0, 0) is True
    assert not stage.blocks(clock() - HOUR + 61.0, 0)


def test_idle_is_still_told_while_a_wait_is_not_over(world: World) -> None:
    world.add("page")
    fail_all(world)
    from holdfast.core.model import ClaimRequest

    answer = world.store.claim(ClaimRequest(batch=world.id, owner="ann", limit=1, seconds=30.0))
    assert isinstance(answer, Idle)
    assert answer.next_due == world.clock() + 2.0
