"""Retries are durable: count, schedule and deadline survive the process."""

from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.core import sections
from holdfast.core.model import State
from holdfast.stores.base import find_batch
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.clock import ManualClock
from tests.runtime.support import Calls, FasterClock, codes, run, run_until_all_wait


def open_book(folder: Path, clock: Callable[[], float], define: Callable[[hf.Pipeline], None]) -> hf.Pipeline:
    book = hf.Pipeline("book", store=SqliteStore(folder / "state.db", clock=clock))
    define(book)
    return book


def place(book: hf.Pipeline, n: int = 0):
    return book.store.items(find_batch(book.store, "book").id, lo=n, hi=n + 1)[0].place


@pytest.mark.promise("E6", "A7")
def test_the_count_of_attempts_survives_restarts(folder: Path) -> None:
    clock, attempts = ManualClock(), []

    def define(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int, ctx: hf.Context) -> int:
            attempts.append(ctx.attempt)
            raise hf.Transient("overloaded")

    for expected in (1, 2, 3):
        book = open_book(folder, clock, define)
        run_until_all_wait(book, [1])
        assert attempts == list(range(1, expected + 1))
        clock.advance(31)
    assert codes(book.report()) == {1: "transient"}
    assert place(book).state is State.DEAD


@pytest.mark.promise("E7")
def test_the_schedule_survives_restarts(folder: Path) -> None:
    clock, calls = ManualClock(), Calls()

    def define(book: hf.Pipeline) -> None:
        @book.stage(retry=hf.Retry(attempts=3, wait=("10s", "20s")))
        def read(number: int) -> int:
            if calls(number) == 1:
                raise hf.Transient("overloaded")
            return number

    book = open_book(folder, clock, define)
    run_until_all_wait(book, [1])
    due = place(book).due
    assert 10 <= due - clock() <= 20
    clock.advance(due - clock() - 0.5)
    report = run(open_book(folder, clock, define), deadline=0.2)
    assert (len(calls), report.counts.waiting) == (1, 1)
    clock.advance(3)  # what waits is given back on a grid, so that items due at about the same time come together
    assert run(open_book(folder, clock, define), deadline=5).counts.done == 1


@pytest.mark.promise("E7")
def test_the_time_an_item_has_survives_restarts(folder: Path) -> None:
    clock, calls = ManualClock(), Calls()

    def define(book: hf.Pipeline) -> None:
        @book.stage(retry=hf.Retry(attempts=100, within="60s", wait=("25s", "25s")))
        def read(number: int) -> int:
            calls(number)
            raise hf.Transient("overloaded")

    for _ in range(4):
        book = open_book(folder, clock, define)
        run_until_all_wait(book, [1])
        clock.advance(30)
    assert len(calls) == 3
    assert "60 s" in book.report().dead[0].reason


@pytest.mark.promise("E7")
def test_by_default_an_item_has_three_attempts_between_two_and_thirty_seconds_apart(folder: Path) -> None:
    clock, times = FasterClock(100), []

    def define(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int) -> int:
            times.append(clock())
            raise hf.Transient("overloaded")

    run(open_book(folder, clock, define), [1], lease="1h")
    assert len(times) == 3
    assert 2 <= times[1] - times[0] <= 34
    assert 2 <= times[2] - times[1] <= 34


@pytest.mark.promise("E7")
def test_waits_differ_from_item_to_item(folder: Path) -> None:
    clock = ManualClock()

    def define(book: hf.Pipeline) -> None:
        @book.stage(retry=hf.Retry(attempts=3, wait=("2s", "30s")), breaker=False)
        def read(number: int) -> int:
            raise hf.Transient("overloaded")

    book = open_book(folder, clock, define)
    run_until_all_wait(book, range(50))
    waits = {place(book, n).due - clock() for n in range(50)}
    assert len(waits) > 40
    assert all(2 <= wait <= 4 for wait in waits), "after the first attempt the cap is twice the shortest wait"


@pytest.mark.promise("E6")
def test_an_attempt_is_in_the_journal_before_it_is_made(folder: Path) -> None:
    from holdfast.core import journal
    from holdfast.stores.base import each_entry

    clock, seen = ManualClock(), []

    def define(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int, ctx: hf.Context) -> int:
            store = SqliteStore(folder / "state.db", clock=clock)
            chunk = store.chunks(find_batch(store, "book").id)[0]
            bodies = [sections.decode(entry) for entry in each_entry(store, chunk.id)]
            store.close()
            claims = [body for body in bodies if isinstance(body, journal.Claimed)]
            seen.append((ctx.attempt, [(s.n, s.attempt, s.code) for s in claims[-1].snapshots]))
            raise hf.Transient("overloaded", code="busy")

    for _ in range(2):
        run_until_all_wait(open_book(folder, clock, define), [1])
        clock.advance(31)
    assert seen == [(1, []), (2, [(0, 1, "busy")])]


def test_an_attempt_starts_afresh_at_every_stage(folder: Path) -> None:
    clock, attempts = FasterClock(1000), []

    def define(book: hf.Pipeline) -> None:
        @book.stage
        def first(number: int, ctx: hf.Context) -> int:
            attempts.append(("first", ctx.attempt))
            if ctx.attempt < 3:
                raise hf.Transient("overloaded")
            return number

        @book.stage
        def second(number: int, ctx: hf.Context) -> int:
            attempts.append(("second", ctx.attempt))
            if ctx.attempt < 3:
                raise hf.Transient("overloaded")
            return number

    assert run(open_book(folder, clock, define), [1], lease="1d").is_complete
    assert attempts == [(stage, attempt) for stage in ("first", "second") for attempt in (1, 2, 3)]


@pytest.mark.promise("E8")
def test_a_budget_of_money_ends_the_attempts_of_an_item(folder: Path) -> None:
    calls = Calls()

    def define(book: hf.Pipeline) -> None:
        @book.stage(retry=hf.Retry(attempts=100, wait=("1ms", "1ms"), usd="0.50"))
        def read(number: int, ctx: hf.Context) -> int:
            calls(number)
            ctx.spend(usd="0.20")
            raise hf.Transient("overloaded")

    report = run(open_book(folder, FasterClock(1), define), [1, 2])
    assert calls.seen.count(1) == calls.seen.count(2) == 3
    assert str(report.totals.usd) == "1.20"
    assert "money budget" in report.dead[0].reason


def test_items_that_wait_for_long_are_left_to_whoever_comes_when_they_are_due(folder: Path) -> None:
    clock = ManualClock()
    ready = False

    def define(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int) -> int:
            if not ready:
                raise hf.Defer(3600)
            return number

    book = open_book(folder, clock, define)
    report = run_until_all_wait(book, range(10))
    assert report.counts.waiting == 10
    chunks = book.store.chunks(find_batch(book.store, "book").id)
    assert all(chunk.owner is None and chunk.due > clock() for chunk in chunks)
    ready = True
    clock.advance(3600 * 1.2)
    assert run(open_book(folder, clock, define)).counts.done == 10


@pytest.mark.promise("A1", "B7")
def test_an_item_that_waits_at_its_second_stage_does_not_go_back_to_the_first(folder: Path) -> None:
    clock, calls = ManualClock(), Calls()

    def define(book: hf.Pipeline) -> None:
        @book.stage
        def first(number: int) -> int:
            calls(("first", number))
            return number

        @book.stage
        def second(number: int) -> int:
            if calls(("second", number)) == 1:
                raise hf.Transient("overloaded")
            return number

    run_until_all_wait(open_book(folder, clock, define), range(5))
    clock.advance(31)
    assert run(open_book(folder, clock, define)).counts.done == 5
    assert [calls.seen.count(("first", n)) for n in range(5)] == [1] * 5
    assert [calls.seen.count(("second", n)) for n in range(5)] == [2] * 5
