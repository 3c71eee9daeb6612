"""A batch comes to an end: at its time, or because a person calls it off; what is in flight reaches its checkpoint."""

import datetime as dt
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core import journal
from holdfast.core.model import BatchMode, State
from holdfast.runtime.acts import Actor
from holdfast.runtime.define.options import Until
from holdfast.runtime.operate import audit, steer
from holdfast.runtime.operate.operations import redrive, reset
from holdfast.runtime.operate.repair import repair
from holdfast.stores.base import Store, each_item, find_batch
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.clock import ManualClock
from tests.operations.world import Clock, World
from tests.runtime.support import App, Calls, run, run_until_all_wait, wait_for

KNOWN = range(10)
Restart = Callable[..., hf.Pipeline]
BY = Actor(name="ada", reason="for the test")


def states(book: hf.Pipeline, batch: str = "book") -> dict[str, list[int]]:
    """State, and of cancelled items the code -> keys."""
    found: dict[str, list[int]] = {}
    for item in each_item(book.store, find_batch(book.store, batch).id):
        place = item.place
        found.setdefault(place.code if place.state is State.CANCELLED else place.state, []).append(item.key)
    return found


def verified(book: hf.Pipeline) -> bool:
    return audit.verify(book.store, find_batch(book.store, "book")).holds


def define(calls: Calls, at_5: Callable[[], object] = lambda: None) -> Callable[[hf.Pipeline], None]:
    """Two stages; `at_5` is called in the first when it meets item 5."""

    def both(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int) -> int:
            calls(("read", number))
            if number == 5:
                at_5()
            return number

        @book.stage
        def write(number: int) -> int:
            calls(("write", number))
            return number

    return both


# -- the end of a batch -----------------------------------------------------------------------------------------------


@pytest.mark.promise("A15")
def test_at_its_end_what_is_in_flight_is_finished_and_the_rest_is_cancelled(folder: Path) -> None:
    clock, calls = ManualClock(), Calls()
    book = hf.Pipeline("book", store=SqliteStore(folder / "state.db", clock=clock))
    define(calls, lambda: clock.advance(3601))(book)
    report = run(book, range(1000), workers=1, until="1h")
    assert (report.state, report.reason, report.exit_code, report.run_again) == ("stopped", "until", 1, False)
    assert report.counts.pending == 0
    assert report.counts.cancelled == 1000 - report.counts.done
    assert ("read", 5) in calls.seen
    assert ("read", 999) not in calls.seen
    assert len(states(book)["ended"]) == report.counts.cancelled > 900
    assert verified(book)
    calls.clear()
    again = run(book, range(1000))
    assert (again.state, again.counts) == ("stopped", report.counts)
    assert "a later end" in again.why
    assert not calls.seen
    with pytest.raises(hf.Incomplete):
        again.raise_unless_complete()


@pytest.mark.promise("A15")
def test_the_end_is_remembered_and_the_same_words_mean_the_same_end(folder: Path) -> None:
    clock = ManualClock()
    book = hf.Pipeline("book", store=SqliteStore(folder / "state.db", clock=clock))

    @book.stage
    def read(number: int) -> int:
        raise hf.Defer(100)

    def ends_at(**options: object) -> float | None:
        run_until_all_wait(book, [1], **options)
        return find_batch(book.store, "book").ends_at

    def steered() -> int:
        return sum(journal.decode_header(entry.head).kind == "steered" for entry in book.store.entries(-1))

    first = ends_at(until="2h")
    assert first == clock() + 7200
    assert steered() == 1
    clock.advance(60)
    assert ends_at() == first
    assert ends_at(until=dt.timedelta(minutes=120)) == first, "a script that is started again means the same end"
    assert steered() == 1
    assert ends_at(until="3h") == clock() + 3 * 3600
    assert steered() == 2, "another end is journalled"
    moment = dt.datetime.fromtimestamp(clock() + 100, dt.UTC)
    assert ends_at(until=moment) == clock() + 100


@pytest.mark.parametrize("until", [dt.datetime(2020, 1, 1, tzinfo=dt.UTC), 0, dt.datetime(2999, 1, 1), "soon"])  # noqa: DTZ001
def test_an_end_that_has_passed_or_cannot_be_read_is_refused(book: hf.Pipeline, until: object) -> None:
    @book.stage
    def read(number: int) -> int:
        return number

    with pytest.raises(hf.UsageError, match="until="):
        run(book, [1], until=until)
    assert run(book, [1]).is_complete


@pytest.mark.promise("A15")
def test_a_run_after_the_end_says_that_it_did_not_read_its_source(folder: Path) -> None:
    clock = ManualClock()
    book = hf.Pipeline("book", store=SqliteStore(folder / "state.db", clock=clock))
    define(Calls())(book)
    ended: list[str] = []
    book.after(lambda report: ended.append(report.state))
    assert run(book, range(10), until="1h").state == "complete"
    clock.advance(4000)
    again = run(book, range(11), seal=True)
    assert (again.state, again.reason, again.exit_code, again.run_again) == ("stopped", "until", 1, False)
    assert again.counts.expected == 10
    assert "before its source was read to the end" in again.why
    moment = dt.datetime.fromtimestamp(clock() - 400, dt.UTC).isoformat(timespec="minutes")[:16]
    assert any(f"came at {moment}" in note for note in again.warnings)
    assert "another batch" in again.why
    assert any(note.startswith("not sealed: ") for note in again.warnings)
    assert find_batch(book.store, "book").sealed_at is None
    assert ended == ["complete"]
    assert len([event for event in book.store.events() if event.kind == "batch.finished"]) == 1
    later = run(book, range(11), until="2h")
    assert (later.state, later.counts.done) == ("complete", 11)


def test_a_batch_that_is_complete_stays_complete_after_its_end(folder: Path) -> None:
    clock = ManualClock()
    book = hf.Pipeline("book", store=SqliteStore(folder / "state.db", clock=clock))
    define(Calls())(book)
    assert run(book, range(10), until="1h").state == "complete"
    clock.advance(4000)
    again = run(book, None)
    assert (again.state, again.exit_code) == ("complete", 0), "there was no source to read"
    assert book.report().state == "complete"
    run(book, range(10))
    assert book.report().state == "complete", "of the batch nothing is left; it was the run that did not read"


def test_a_batch_whose_end_comes_before_its_source_is_read_is_stopped(folder: Path) -> None:
    clock = ManualClock()
    book = hf.Pipeline("book", store=SqliteStore(folder / "state.db", clock=clock))
    define(Calls())(book)

    def endless() -> Iterator[int]:
        number = 0
        while True:
            yield number
            number += 1
            if number == 300:
                clock.advance(61)

    report = run(book, endless(), until="1m")
    assert (report.state, report.counts.pending) == ("stopped", 0)
    assert "before all of its items were read" in report.why


@pytest.mark.promise("A15")
def test_what_was_ended_can_be_begun_again_with_a_later_end(folder: Path) -> None:
    clock, calls = ManualClock(), Calls()
    book = hf.Pipeline("book", store=SqliteStore(folder / "state.db", clock=clock))
    define(calls, lambda: clock.advance(61) if calls.seen.count(("read", 5)) == 1 else None)(book)
    assert run(book, range(100), workers=1, until="1m").state == "stopped"
    later = run(book, range(100), until="1h")
    assert (later.state, later.exit_code) == ("stopped", 1), "a later end alone makes nothing of what was cancelled"
    assert "unless you reset them" in later.why
    assert book.reconcile().end == "stopped"
    reset(book.store, find_batch(book.store, "book"), Actor(name="ada", reason="we have more time"))
    report = run(book, range(100), until="2h")
    assert (report.state, report.counts.done) == ("complete", 100)


def test_a_deadline_ends_the_run_and_leaves_the_batch(restart: Restart) -> None:
    def slow(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int) -> int:
            time.sleep(0.01)
            return number

    report = run(restart(slow), range(1000), workers=1, deadline=0.3)
    assert (report.state, report.reason, report.exit_code, report.run_again) == ("interrupted", "deadline", 75, True)
    assert report.counts.cancelled == 0
    assert report.as_dict()["run_again"] is True


# -- pause ------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("A7", "A15")
def test_a_worker_at_work_notices_a_pause_and_goes_on_when_it_is_lifted(restart: Restart) -> None:
    calls, went_on = Calls(), []

    def slow(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int, ctx: hf.Context) -> int:
            calls(number)
            if number == 5 and not went_on:
                restart(slow).pause("book", reason="the provider asked us to", actor="ada")
            while number >= 5 and not ctx.stopping and not went_on:
                time.sleep(0.001)
            return number

    book = restart(slow)
    report = run(book, range(500), workers=2)
    assert (report.state, report.reason, report.exit_code) == ("paused", "paused", 75)
    assert "holdfast unpause" in report.why
    assert report.counts.done == len(calls), "what had begun was finished"
    assert report.counts.pending > 0
    assert not any(chunk.owner for chunk in book.store.chunks(1)), "everything was released"
    assert run(restart(slow), range(500)).state == "paused", "nothing continues before it is lifted"
    went_on.append(True)
    restart(slow).unpause("book", reason="they are done")
    assert run(restart(slow), range(500)).is_complete
    assert sorted(calls.seen) == list(range(500))


def test_a_pause_keeps_the_end_of_the_batch(book: hf.Pipeline) -> None:
    define(Calls())(book)
    run(book, range(3), until="1h")
    end = find_batch(book.store, "book").ends_at
    book.pause(reason="lunch")
    assert (find_batch(book.store, "book").course, find_batch(book.store, "book").ends_at) == (BatchMode.PAUSED, end)
    book.unpause(reason="back")
    assert (find_batch(book.store, "book").course, find_batch(book.store, "book").ends_at) == (BatchMode.OPEN, end)


# -- cancel -----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("A7", "A15")
def test_a_cancelled_batch_finishes_what_is_in_flight_and_cancels_the_rest(restart: Restart) -> None:
    calls, went_on = Calls(), []

    def slow(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int, ctx: hf.Context) -> int:
            calls(number)
            if number == 5 and not went_on:
                restart(slow).cancel("book", reason="wrong book")
            while number >= 5 and not ctx.stopping and not went_on:
                time.sleep(0.001)
            return number

    book = restart(slow)
    report = run(book, range(500), workers=2)
    assert (report.state, report.reason, report.exit_code) == ("cancelled", "cancelled", 1)
    found = states(book)
    assert sorted(found["done"]) == sorted(calls.seen), "what had begun was finished"
    assert len(found["cancelled"]) == 500 - len(calls)
    assert verified(book)
    before = [chunk.seq for chunk in book.store.chunks(1)]
    again = run(restart(slow), range(500))
    assert (again.state, again.exit_code, again.counts) == ("cancelled", 1, report.counts)
    assert "choose another batch name" in again.why
    assert restart(slow).cancel("book", reason="still wrong").changed == 0
    assert [chunk.seq for chunk in book.store.chunks(1)] == before, "doing it again changes nothing"


def test_a_batch_cancelled_while_its_source_is_read_ends_without_an_error(restart: Restart) -> None:
    def source() -> Iterator[int]:
        yield from range(300)
        restart(define(Calls())).cancel("book", reason="wrong source")
        yield from range(300, 100_000)

    report = run(restart(define(Calls())), source())
    assert (report.state, report.counts.pending) == ("cancelled", 0)


def test_an_item_in_flight_stops_at_its_next_checkpoint(restart: Restart) -> None:
    calls = Calls()

    def two(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int, ctx: hf.Context) -> int:
            restart(two).cancel("book", reason="enough")
            while not ctx.stopping:
                time.sleep(0.001)
            return number

        @book.stage
        def write(number: int) -> int:
            calls(number)
            return number

    book = restart(two)
    report = run(book, [5])
    assert not calls.seen, "the second stage was not begun"
    assert len(book.store.outputs(1)) == 1, "the first came to its checkpoint"
    assert (report.state, report.counts.cancelled) == ("cancelled", 1)


@pytest.mark.promise("A7", "A15")
def test_what_a_dead_owner_held_is_cancelled_by_whoever_comes_next(folder: Path) -> None:
    clock = Clock()
    world = World(SqliteStore(folder / "state.db", clock=clock), clock)
    world.add(*range(10))
    claim = world.claim(4, owner="elsewhere")
    by = Actor(name="ada", reason="wrong book")
    first = steer.cancel(world.store, world.batch, by)
    assert (first.changed, dict(first.left_alone)) == (6, {steer.IN_FLIGHT: 4})
    clock.advance(31)
    again = steer.cancel(world.store, world.batch, by)
    assert (again.changed, again.left_alone) == (4, ())
    assert world.store.renew([claim.lease], 30) == [], "the owner is fenced off, should it come back"
    assert audit.verify(world.store, world.batch).holds


def test_cancelling_at_once_does_not_wait_for_owners(folder: Path, restart: Restart) -> None:
    begun, ends = threading.Event(), threading.Event()

    def hang(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int) -> int:
            begun.set()
            ends.wait(60)
            return number

    book, reports = restart(hang), []
    thread = threading.Thread(target=lambda: reports.append(run(book, range(10), workers=1)))
    thread.start()
    assert begun.wait(30)
    other = restart(hang)
    assert other.cancel(reason="now").left_alone[0][1] > 0, "a live owner is left alone"
    assert other.cancel(reason="at once", at_once=True).changed > 0
    ends.set()
    thread.join(30)
    assert states(other) == {"cancelled": list(range(10))}
    assert reports[0].state == "cancelled"
    assert verified(other)


def test_a_finished_batch_cannot_be_cancelled(book: hf.Pipeline) -> None:
    define(Calls())(book)
    run(book, range(3))
    assert book.cancel(reason="too late").changed == 0
    assert find_batch(book.store, "book").course is BatchMode.OPEN
    assert run(book, range(3)).is_complete


@pytest.mark.parametrize("how", ["pause", "unpause", "cancel"])
def test_steering_needs_a_batch_and_a_reason(book: hf.Pipeline, how: str) -> None:
    define(Calls())(book)
    with pytest.raises(hf.UsageError, match="no batch"):
        getattr(book, how)("nobody", reason="x")
    run(book, [1])
    with pytest.raises(hf.UsageError, match='pass reason="…"'):
        getattr(book, how)(reason=" ")


def test_hooks_for_complete_stages_are_not_called_for_a_batch_that_was_called_off(restart: Restart) -> None:
    told = Calls()

    def hooked(book: hf.Pipeline) -> None:
        define(Calls(), lambda: restart(define(Calls())).cancel("book", reason="enough"))(book)
        book.stages[0].after(told)
        book.after(told)

    assert run(restart(hooked), range(6)).state == "cancelled"
    assert not told.seen


# -- killed half-way --------------------------------------------------------------------------------------------------

KILLED = """
    import sys, time
    import holdfast as hf

    book = hf.Pipeline("book")

    @book.stage
    def read(number: int) -> int:
        time.sleep(0.05)
        return number

    if __name__ == "__main__":
        if sys.argv[1] == "cancel":
            print(book.cancel(reason="wrong book").changed)
        else:
            until = {"until": sys.argv[2]} if len(sys.argv) > 2 else {}
            report = book.run(range(600), workers=1, progress=False, **until)
            print(report.state, report.counts.pending, report.counts.cancelled + report.counts.done)
"""


MOMENTS = [
    ("until", "steer.after:1"),
    ("until", "act.written:2"),
    ("cancel", "steer.after:1"),
    ("cancel", "act.after:2"),
]


@pytest.mark.promise("A7", "A15")
@pytest.mark.parametrize(("how", "moment"), MOMENTS)
def test_a_process_killed_while_it_cancels_loses_nothing_and_the_next_one_finishes_it(
    folder: Path, how: str, moment: str, tally: Callable[..., None]
) -> None:
    app = App(folder, KILLED)
    if how == "cancel":
        _admit(app)
    first = ("run", "1s") if how == "until" else ("cancel",)
    killed = app.start(*first, HOLDFAST_FAULT=f"{moment}:kill")
    killed.communicate(timeout=60)
    assert killed.returncode == -9
    if how == "cancel":
        app.run("cancel")
    state, pending, settled = app.run("run", *first[1:]).stdout.split()
    assert (state, pending) == ("stopped" if how == "until" else "cancelled", "0")
    book = hf.Pipeline("book", store=app.store)
    assert int(settled) == find_batch(book.store, "book").admitted
    assert int(settled) == 600 or moment == "steer.after:1", "killed so early that nothing was admitted"
    assert verified(book)
    tally(kills=1)


def _admit(app: App) -> None:
    """All items, and next to nothing done."""
    process = app.start("run")
    store = None

    def ingested() -> bool:
        nonlocal store
        store = store if store is not None else (SqliteStore(app.store) if app.store.exists() else None)
        batch = find_batch(store, "book") if store is not None else None
        return batch is not None and batch.ingested_at is not None

    wait_for(ingested)
    process.kill()
    process.communicate()
    store.close()


def twice(book: hf.Pipeline) -> None:
    @book.stage
    def read(number: int) -> int:
        return number * 2


def thrice(book: hf.Pipeline) -> None:
    @book.stage
    def read(number: int) -> int:
        return number * 3


@pytest.mark.parametrize("how", ["until", "cancel"])
def test_changed_code_sends_nothing_back_in_a_batch_that_is_over(folder: Path, how: str) -> None:
    """It would be cancelled instead of run again: what is done would be lost."""
    clock = ManualClock()

    def again(define: Callable[[hf.Pipeline], None]) -> hf.Pipeline:
        book = hf.Pipeline("book", store=SqliteStore(folder / "state.db", clock=clock))
        define(book)
        return book

    book = again(twice)
    assert run(book, range(5), until="1m").state == "complete"
    if how == "until":
        clock.advance(61)
    else:
        reset(book.store, find_batch(book.store, "book"), BY, "4")
        book.cancel(reason="enough")
    before = book.report().counts
    assert run(again(thrice), range(5), on_code_change="rerun").counts == before
    assert before.done >= 4
    if how == "until":
        assert [r.output for r in run(again(thrice), range(5), on_code_change="rerun", until="2m").results()] == [
            0,
            3,
            6,
            9,
            12,
        ]


@pytest.mark.parametrize(
    "act",
    [
        lambda store, batch: redrive(store, batch, BY),
        lambda store, batch: reset(store, batch, BY),
        lambda store, batch: reset(store, batch, BY, "0"),
        lambda store, batch: repair(store, batch, lambda: iter(()), BY),
    ],
)
def test_nothing_is_sent_back_in_a_cancelled_batch(restart: Restart, act: Callable[[Store, Any], Any]) -> None:
    """No run would take it up: the next one would cancel what is done."""
    book = restart(define(Calls()))
    assert run(book, range(5), deadline=0).exit_code == 75
    book.cancel(reason="enough")
    with pytest.raises(hf.Refused, match="choose another batch name"):
        act(book.store, find_batch(book.store, "book"))


def test_a_batch_that_was_stopped_is_not_sealed_by_its_run(folder: Path) -> None:
    """Its report says how to go on with it; whoever wants it sealed as it is says so."""
    clock, calls = ManualClock(), Calls()
    book = hf.Pipeline("book", store=SqliteStore(folder / "state.db", clock=clock))
    define(calls, lambda: clock.advance(61))(book)
    report = run(book, range(100), workers=1, until="1m", seal=True)
    assert (report.state, find_batch(book.store, "book").sealed_at) == ("stopped", None)
    assert "holdfast reconcile book --seal" in report.warnings[-1]


@pytest.mark.promise("A14")
def test_a_run_that_did_not_come_to_the_end_of_its_source_publishes_no_end(restart: Restart) -> None:
    """All that is stored is done, and was read to its end once; but this run may have been on its way to more."""
    book = restart(define(Calls()))
    assert run(book, KNOWN).is_complete
    ends = [event.id for event in book.store.events() if event.kind == "batch.finished"]

    taken = Calls()

    def grown() -> Iterator[int]:
        yield from KNOWN
        os.kill(os.getpid(), signal.SIGTERM)
        for number in range(10, 10_000):
            taken(number)
            yield number

    report = run(book, grown())
    assert (report.state, report.reason, report.counts.pending) == ("interrupted", "interrupted", 0)
    assert (report.counts.expected, len(taken) < 100) == (10, True), "nothing is admitted after the signal"
    assert report.reconciliation is None
    assert [event.id for event in book.store.events() if event.kind == "batch.finished"] == ends


# -- as it is stored --------------------------------------------------------------------------------------------------


@pytest.fixture
def world() -> World:
    clock = Clock()
    return World(MemoryStore(clock=clock), clock)


@pytest.mark.promise("A15")
def test_a_pause_does_not_give_a_batch_its_whole_time_again(world: World) -> None:
    first = steer.set_end(world.store, world.batch, Until.of("2h"), actor="ada")
    world.clock.advance(60)
    steer.unpause(world.store, steer.pause(world.store, first, BY), BY)
    assert steer.set_end(world.store, world.batch, Until.of("2h"), actor="ada").ends_at == first.ends_at


def test_a_preview_of_a_cancel_tells_what_is_held_from_what_is_free(world: World) -> None:
    for keys in ("abc", "de"):
        world.add(*keys)
    world.claim(3)
    seen = steer.preview_cancel(world.store, world.batch)
    assert (seen.items, seen.in_flight, seen.counts["free"]) == (5, 3, 2)


@pytest.mark.promise("A14")
def test_a_batch_that_a_person_closes_without_items_has_come_to_its_end(world: World) -> None:
    _, found = steer.close(world.store, world.batch, actor="ada")
    assert found is not None
    assert (found.is_explained, found.is_told) == (True, True), found


@pytest.mark.promise("A15")
def test_the_reason_of_a_pause_is_never_taken_for_the_words_of_an_end(world: World) -> None:
    first = steer.set_end(world.store, world.batch, Until.of("2h"), actor="ada")
    world.clock.advance(60)
    steer.pause(world.store, world.batch, Actor(name="ada", reason="run until the disk is full, then stop"))
    steer.unpause(world.store, world.batch, BY)
    assert steer.set_end(world.store, world.batch, Until.of("2h"), actor="ada").ends_at == first.ends_at


@pytest.mark.promise("A15", "C1")
@pytest.mark.parametrize("act", [steer.pause, steer.cancel])
def test_an_operator_who_has_not_heard_of_the_end_does_not_take_it_away(act: Callable[..., Any], world: World) -> None:
    before = world.batch
    end = steer.set_end(world.store, before, Until.of("2h"), actor="ada").ends_at
    act(world.store, before, BY)
    assert world.batch.ends_at == end


@pytest.mark.promise("A15", "C1")
def test_a_run_that_has_not_heard_of_a_pause_does_not_lift_it_with_its_end(world: World) -> None:
    before = world.batch
    steer.pause(world.store, before, BY)
    given = steer.set_end(world.store, before, Until.of("2h"), actor="ada")
    assert (given.course, given.ends_at) == (BatchMode.PAUSED, world.clock() + 7200)
