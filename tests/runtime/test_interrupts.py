"""Ctrl-C and SIGTERM: what fails after them is nobody's fault, and the script that called `run()` hears of Ctrl-C."""

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.model import Item, ItemState
from holdfast.runtime.acts import Actor
from holdfast.runtime.define.context import Context
from holdfast.runtime.engine import control
from holdfast.runtime.engine.assignment import Assignment
from holdfast.runtime.engine.exchange import Answer
from holdfast.runtime.engine.stages import StageDriver
from holdfast.runtime.operate.operations import redrive
from holdfast.runtime.scan.tick import Ended
from holdfast.testing.rows import Rows
from tests.runtime.support import ONCE, App, Calls, run, wait_for, walk_of

BOTH = [signal.SIGINT, signal.SIGTERM]


def killed(number: int) -> subprocess.CalledProcessError:
    """What `subprocess.run(…, check=True)` raises when the terminal's signal reached its program, too."""
    return subprocess.CalledProcessError(-number, ["tesseract"])


def signal_and_wait(number: int, ctx: hf.Context) -> None:
    os.kill(os.getpid(), number)
    wait_for(lambda: ctx.stopping)


def interrupting(calls: Calls, number: int, *, fails: bool = True) -> Callable[[hf.Pipeline], None]:
    """Item 2 of the first run sends the signal, and what it runs dies of it."""

    def define(book: hf.Pipeline) -> None:
        @book.stage(retry=ONCE)
        def read(item: int, ctx: hf.Context) -> int:
            calls(item)
            if item == 2 and calls.seen.count(2) == 1:
                ctx.spend(usd="0.50")
                signal_and_wait(number, ctx)
                if fails:
                    raise killed(number)
            return item

    return define


def interrupting_async(calls: Calls, number: int) -> Callable[[hf.Pipeline], None]:
    def define(book: hf.Pipeline) -> None:
        @book.stage(name="read", retry=ONCE)
        async def read(item: int, ctx: hf.Context) -> int:
            calls(item)
            if item == 2 and calls.seen.count(2) == 1:
                ctx.spend(usd="0.50")
                os.kill(os.getpid(), number)
                while not ctx.stopping:  # noqa: ASYNC110 - a flag that another thread sets
                    await asyncio.sleep(0.001)
                raise killed(number)
            return item

    return define


@pytest.mark.promise("A7", "E2")
@pytest.mark.parametrize("number", BOTH, ids=str)
@pytest.mark.parametrize("kind", ["threads", "loop", "a pool of the user's"])
def test_what_fails_after_the_signal_is_interrupted_and_not_buried(
    restart: Callable[..., hf.Pipeline], kind: str, number: int
) -> None:
    calls = Calls()
    define = interrupting_async(calls, number) if kind == "loop" else interrupting(calls, number)
    with ThreadPoolExecutor(2) as pool:
        options: dict[str, Any] = {"executor": pool} if kind.startswith("a pool") else {}
        report = run(restart(define), range(6), workers=1, **options)
        assert (report.state, report.counts.dead, report.exit_code) == ("interrupted", 0, 75)
        assert str(report.totals.usd) == "0.50", "what it had paid is kept"
        (item,) = (each for each in restart(define).store.items(1) if each.key == 2)
        assert (item.place.attempt, item.place.deferred) == (0, 0.0)
        assert "interrupted: CalledProcessError" in item.place.reason
        assert run(restart(define), range(6), workers=1, **options).is_complete
    assert sorted(calls.seen) == [0, 1, 2, 2, 3, 4, 5]


@pytest.mark.promise("A7")
def test_a_success_after_the_signal_counts(restart: Callable[..., hf.Pipeline]) -> None:
    calls = Calls()
    define = interrupting(calls, signal.SIGINT, fails=False)
    report = run(restart(define), range(6), workers=1)
    assert (report.state, report.counts.done) == ("interrupted", 3)
    assert run(restart(define), range(6)).is_complete
    assert sorted(calls.seen) == list(range(6))


@pytest.mark.promise("A15", "E2")
def test_what_fails_after_another_reason_to_stop_counts(book: hf.Pipeline) -> None:
    @book.stage(retry=ONCE)
    def read(item: int, ctx: hf.Context) -> int:
        ctx.spend(usd="0.02")
        if item == 1:
            wait_for(lambda: ctx.stopping)
            raise ValueError(item)
        return item

    report = run(book, range(9), workers=2, budget=hf.Budget(usd="0.02", item="0.01"))
    assert report.state == "stopped" or report.exit_code == 75
    assert [letter.code for letter in report.dead] == ["ValueError"]


# -- a failure that is here before its signal --------------------------------------------------------------------------


@pytest.mark.promise("A7")
@pytest.mark.parametrize("error", [killed(2), killed(15), subprocess.CalledProcessError(130, ["sh"])], ids=str)
def test_a_program_that_a_signal_ended_is_judged_once_ours_is_here(error: Exception) -> None:
    looks = iter([False, False, True])
    control.await_stop(error, lambda: next(looks))
    assert next(looks, None) is None, "it waited until the run was told to stop"
    looks = iter([False, False, True])
    asyncio.run(control.await_stop_async(RuntimeError("wrapped", error), lambda: next(looks)))
    assert next(looks, None) is None


@pytest.mark.parametrize("error", [subprocess.CalledProcessError(1, ["sh"]), killed(9), ValueError()], ids=str)
def test_nothing_else_waits(error: Exception) -> None:
    def never() -> bool:
        raise AssertionError("it was looked whether the run stops")

    control.await_stop(error, never)
    asyncio.run(control.await_stop_async(error, never))


# -- who called run() ------------------------------------------------------------------------------------------------


@pytest.mark.promise("A7", "P10")
def test_ctrl_c_is_raised_after_the_drain_with_the_report(restart: Callable[..., hf.Pipeline]) -> None:
    before = signal.getsignal(signal.SIGINT)
    book = restart(interrupting(Calls(), signal.SIGINT))
    with pytest.raises(hf.Interrupted, match="'book' was interrupted") as caught:
        book.run(range(6), workers=1, progress=False)
    assert isinstance(caught.value, KeyboardInterrupt)
    assert (caught.value.report.state, caught.value.report.counts.done) == ("interrupted", 2)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.promise("A7", "P10")
def test_sigterm_returns_the_report_and_so_does_ctrl_c_where_that_is_asked_for(
    restart: Callable[..., hf.Pipeline],
) -> None:
    report = restart(interrupting(Calls(), signal.SIGTERM)).run(range(6), workers=1, progress=False)
    assert (report.state, report.exit_code) == ("interrupted", 75)
    asked = interrupting(Calls(), signal.SIGINT)
    report = restart(asked).run(range(6), "b", workers=1, progress=False, signals="report")
    assert (report.state, report.exit_code) == ("interrupted", 75)


@pytest.mark.promise("A7")
@pytest.mark.parametrize("number", BOTH)
def test_nothing_is_begun_behind_the_signal_where_quick_items_share_the_committing_thread(
    book: hf.Pipeline, number: int
) -> None:
    began: list[int] = []

    @book.stage
    def read(item: int, ctx: hf.Context) -> int:
        began.append(item)
        if item == 1000:
            signal_and_wait(number, ctx)
        return item

    report = book.run(range(2000), workers=1, progress=False, signals="report")
    assert (report.state, began[-1]) == ("interrupted", 1000)
    assert (report.counts.done, report.counts.pending) == (len(began), 2000 - len(began))


def test_what_a_slice_has_cost_is_never_told_of_the_item_behind_it() -> None:
    """While an item sets out, the context of the one before it still stands in the assignment."""
    paid, behind = (Item(n, n, b"", ItemState(), True) for n in (1, 2))
    work = Assignment(0, [paid, behind], 1, 0.0, None)
    work.ctx = Context(item=paid, batch="b", pipeline="p", stage="s", fence=1, timeout=None, stopping=lambda: False,
                       metrics=None)  # fmt: skip
    work.ctx.spend(usd=1)
    assert work.context_of(paid) is work.ctx
    assert work.context_of(behind) is None


def test_a_cost_is_told_by_the_entry_of_an_item_that_is_given_up_or_by_its_file_never_by_both() -> None:
    first, second = (Item(n, n, b"", ItemState(), True) for n in (1, 2))
    work = Assignment(0, [first, second], 1, 0.0, None)
    for item in (first, second):
        work.contexts[item.n] = Context(item=item, batch="b", pipeline="p", stage="s", fence=1, timeout=None,
                                        stopping=lambda: False, metrics=None)  # fmt: skip
    assert work.may_stage(first)
    assert work.context_of(first) is None
    assert work.context_of(second) is work.contexts[second.n]
    assert not work.may_stage(second)


@pytest.mark.promise("A7")
def test_a_second_ctrl_c_ends_it_at_once_and_is_raised(book: hf.Pipeline) -> None:
    ends = threading.Event()

    @book.stage
    def read(number: int, ctx: hf.Context) -> int:
        signal_and_wait(signal.SIGINT, ctx)
        os.kill(os.getpid(), signal.SIGINT)
        ends.wait(60)
        return number

    with pytest.raises(hf.Interrupted) as caught:
        book.run([1], progress=False)
    ends.set()
    assert caught.value.report.counts.pending == 1


@pytest.mark.promise("P10")
def test_what_ends_in_the_moment_in_which_it_is_given_up_is_kept_with_its_cost(
    book: hf.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer is on its way to a worker that receives nothing any more."""
    ends, cut_off = threading.Event(), StageDriver.cut_off

    @book.stage
    def pay(number: int, ctx: hf.Context) -> int:
        ctx.spend(usd="0.01")
        signal_and_wait(signal.SIGTERM, ctx)
        os.kill(os.getpid(), signal.SIGTERM)
        assert ends.wait(60)
        return number

    def ends_first(stage: StageDriver) -> Iterator[Answer]:
        (work,) = stage.active.values()
        ends.set()
        wait_for(lambda: work.is_answered)
        yield from cut_off(stage)

    monkeypatch.setattr(StageDriver, "cut_off", ends_first)
    report = book.run([1], progress=False)
    assert (report.counts.done, report.totals.attempts, report.totals.usd) == (1, 1, Decimal("0.01"))


def test_signals_are_left_alone_where_that_is_asked_for(book: hf.Pipeline) -> None:
    before = {number: signal.getsignal(number) for number in BOTH}
    seen = []

    @book.stage
    def read(number: int) -> int:
        seen.append({each: signal.getsignal(each) for each in BOTH})
        return number

    book.run([1], progress=False, signals="ignore")
    scan = hf.Follow("rows", Rows([1]), store="memory:")
    scan.handler(lambda rows: seen.append({each: signal.getsignal(each) for each in BOTH}))
    scan.tick(signals="ignore")
    assert seen == [before, before]


def test_another_way_than_the_three_is_refused_before_anything_happens(book: hf.Pipeline) -> None:
    @book.stage
    def read(number: int) -> int:
        return number

    scan = hf.Follow("rows", Rows([1]), store="memory:")
    scan.handler(lambda rows: None)
    for call in (lambda: book.run([1], signals="quiet"), lambda: scan.tick(signals="quiet"),
                 lambda: scan.run(poll="1s", signals=True)):  # fmt: skip
        with pytest.raises(hf.UsageError, match=r"signals=.*'raise'.*'report'.*'ignore'"):
            call()


@pytest.mark.promise("A7")
def test_a_run_that_breaks_off_its_source_itself_was_not_interrupted(book: hf.Pipeline) -> None:
    never = threading.Event()

    @book.stage
    def read(number: int) -> int:
        return number

    def blocks() -> Iterator[int]:
        yield 1
        never.wait(60)

    report = book.run(blocks(), progress=False, deadline=0.5)
    assert (report.state, report.counts.done) == ("interrupted", 1)
    assert "time was up" in report.why


def test_it_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(hf.Interrupted("batch 'b' was interrupted", {"state": "interrupted"})))
    assert (str(error), error.report) == ("batch 'b' was interrupted", {"state": "interrupted"})


def test_an_uncaught_one_ends_the_program_with_130_and_others_end_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: shown.append(error))
    error = control.interrupted("stop", None)
    control.interrupted("again", None)
    with pytest.raises(SystemExit) as ended:
        sys.excepthook(type(error), error, None)
    assert ended.value.code == 130
    other = ValueError()
    sys.excepthook(ValueError, other, None)
    assert shown == [error, other]


TWO = """
import os, signal
import holdfast as hf

a, b = hf.Pipeline("a"), hf.Pipeline("b")

@a.stage
def first(n: int, ctx: hf.Context) -> int:
    if n == 3:
        os.kill(os.getpid(), signal.SIGINT)
        while not ctx.stopping:
            pass
    return n

@b.stage
def second(n: int) -> int:
    return n

print(a.run(range(100), workers=1, progress=False))
print("publishing the results of a")
print(b.run(range(10), progress=False))
"""


@pytest.mark.slow
@pytest.mark.promise("A7", "P10")
def test_a_script_does_not_continue_behind_a_run_that_ctrl_c_ended(folder: Path) -> None:
    ended = App(folder, TWO).run()
    assert ended.returncode == 130, ended.stderr
    assert ended.stdout == ""
    assert "Interrupted: batch 'a' was interrupted" in ended.stderr


# -- scans -----------------------------------------------------------------------------------------------------------


def scan_that_is_hit(number: int, store: Any = "memory:", **options: Any) -> hf.Scan:
    """Row 6 sends the signal the first time, and its group dies of it."""
    scan = walk_of("rows", Rows(range(12), page=4), store=store, **{"every": 2, "retry": ONCE, **options})
    hit: list[int] = []

    @scan.handler
    def handle(rows: list[int], acc: int, ctx: hf.Context) -> int:
        if 6 in rows and not hit:
            hit.append(6)
            signal_and_wait(number, ctx)
            raise killed(number)
        return acc + len(rows)

    return scan


@pytest.mark.promise("A7", "B7")
@pytest.mark.parametrize("number", BOTH, ids=str)
@pytest.mark.parametrize("isolate", [False, True])
def test_a_range_whose_handler_fails_after_the_signal_is_not_buried(number: int, isolate: bool) -> None:
    scan = scan_that_is_hit(number, isolate=isolate)
    report = scan.run(progress=False, signals="report")
    assert (report.exit_code, report.counts.dead, report.rows) == (75, 0, 6)
    again = scan.run(progress=False)
    assert (again.exit_code, again.result) == (0, 12)


@pytest.mark.promise("A7", "B7")
@pytest.mark.parametrize("number", BOTH, ids=str)
@pytest.mark.parametrize("isolate", [False, True])
def test_a_tick_whose_handler_fails_after_the_signal_is_not_buried(number: int, isolate: bool) -> None:
    scan = scan_that_is_hit(number, follow=True, isolate=isolate)
    told = scan.tick(signals="report")
    assert (told.ended, told.exit_code, told.rows) == (Ended.STOPPED, 75, 6)
    assert (scan.tick().ended, scan.report().rows) == (Ended.CAUGHT_UP, 12)


@pytest.mark.promise("A7")
def test_ctrl_c_is_raised_by_scans_ticks_and_those_that_stay() -> None:
    bounded = scan_that_is_hit(signal.SIGINT)
    with pytest.raises(hf.Interrupted) as caught:
        bounded.run(progress=False)
    assert isinstance(caught.value.report, hf.ScanReport)
    assert caught.value.report.rows == 6
    with pytest.raises(hf.Interrupted) as caught:
        scan_that_is_hit(signal.SIGINT, follow=True).tick()
    assert (caught.value.report.ended, caught.value.report.rows) == (Ended.STOPPED, 6)
    with pytest.raises(hf.Interrupted) as caught:
        scan_that_is_hit(signal.SIGINT, follow=True).run(poll="1h")
    assert (caught.value.report.ended, caught.value.report.rows) == (Ended.STOPPED, 6)
    assert scan_that_is_hit(signal.SIGTERM, follow=True).run(poll="1h").exit_code == 75


def test_after_the_first_signal_a_tick_leaves_both_to_whoever_had_them() -> None:
    seen: list[Any] = []
    before = [signal.getsignal(number) for number in BOTH]
    scan = hf.Follow("rows", Rows([1]), store="memory:")

    @scan.handler
    def handle(rows: list[int], ctx: hf.Context) -> None:
        signal_and_wait(signal.SIGTERM, ctx)
        wait_for(lambda: [signal.getsignal(number) for number in BOTH] == before)
        seen.append(rows)

    assert scan.tick().ended is Ended.CAUGHT_UP
    assert seen == [[1]]


@pytest.mark.promise("A7")
def test_a_redriven_row_that_fails_after_the_signal_is_not_buried_again(folder: Path) -> None:
    scan = hf.Follow("rows", Rows(range(4)), store=folder / "state.db", isolate=True, retry=ONCE)
    state = ["broken"]

    @scan.handler
    def handle(rows: list[int], ctx: hf.Context) -> None:
        if 2 in rows and state != ["fine"]:
            if state == ["redriven"]:
                signal_and_wait(signal.SIGTERM, ctx)
            raise killed(9)

    assert scan.tick().dead == 1
    store = scan.pipeline.store
    redrive(store, store.batches()[0], Actor(name="ann", reason="fixed"))
    state[:] = ["redriven"]
    told = scan.tick()
    assert (told.dead, told.exit_code, scan.report().counts.dead) == (0, 75, 0)
    state[:] = ["fine"]
    assert (scan.tick().redriven, scan.report().counts.dead) == (1, 0)
