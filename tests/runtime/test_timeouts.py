"""Handlers that do not answer in time."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from tests.runtime.support import ONCE, SOON, App, Calls, codes, outputs, run


@pytest.mark.promise("A7")
def test_a_thread_that_hangs_is_given_up_and_the_others_go_on(book: hf.Pipeline) -> None:
    ends = threading.Event()

    @book.stage(timeout="100ms", retry=ONCE)
    def read(number: int) -> int:
        if number == 3:
            ends.wait(60)
        return number

    report = run(book, range(20), workers=2)
    ends.set()
    assert codes(report) == {3: "timeout"}
    assert report.counts.done == 19
    assert "stage 'read' did not answer within 0.1 s" in report.dead[0].reason


def test_all_threads_may_hang_and_the_rest_is_still_done(book: hf.Pipeline) -> None:
    ends = threading.Event()

    @book.stage(timeout="100ms", retry=ONCE)
    def read(number: int) -> int:
        if number < 6:
            ends.wait(60)
        return number

    report = run(book, range(20), workers=2)
    ends.set()
    assert (report.counts.dead, report.counts.done) == (6, 14)


def test_what_a_hanging_handler_answers_later_is_not_taken(book: hf.Pipeline) -> None:
    late, calls = threading.Event(), Calls()

    @book.stage(timeout="100ms", retry=hf.Retry(attempts=2, wait=("1ms", "2ms")))
    def read(number: int) -> str:
        if calls(number) == 1:
            late.wait(60)
            return "late"
        late.set()
        time.sleep(0.02)
        return "in time"

    report = run(book, [1])
    assert report.counts.done == 1
    assert outputs(book) == {1: "in time"}


def test_a_timeout_is_tried_again(book: hf.Pipeline) -> None:
    calls = Calls()

    @book.stage(timeout="50ms", retry=hf.Retry(attempts=3, wait=("1ms", "2ms")))
    async def read(number: int) -> int:
        if calls(number) < 3:
            await asyncio.sleep(60)
        return number

    assert run(book, [1]).is_complete
    assert len(calls) == 3


def test_a_coroutine_that_hangs_is_cancelled_and_can_clean_up(book: hf.Pipeline) -> None:
    cleaned = []

    @book.stage(timeout="50ms", retry=ONCE)
    async def read(number: int) -> int:
        try:
            if number == 3:
                await asyncio.Event().wait()
        finally:
            cleaned.append(number)
        return number

    report = run(book, range(20))
    assert codes(report) == {3: "timeout"}
    assert sorted(cleaned) == list(range(20))


def test_a_timeout_of_the_handlers_own_is_not_taken_for_ours(book: hf.Pipeline) -> None:
    @book.stage(timeout="10s", retry=ONCE)
    async def read(number: int) -> int:
        raise TimeoutError("the database was slow")

    (letter,) = run(book, [1]).dead
    assert letter.reason.startswith("the database was slow")


@pytest.mark.promise("E8")
def test_what_a_hanging_attempt_has_spent_is_counted(book: hf.Pipeline) -> None:
    ends = threading.Event()

    @book.stage(timeout="100ms", retry=ONCE)
    def read(number: int, ctx: hf.Context) -> int:
        ctx.spend(usd="0.25", tokens=10)
        ends.wait(60)
        return number

    report = run(book, [1, 2])
    ends.set()
    assert (str(report.totals.usd), report.totals.tokens) == ("0.50", 20)


def test_a_timeout_counts_for_each_item_not_for_a_group(book: hf.Pipeline) -> None:
    @book.stage(timeout="300ms", retry=ONCE)
    def read(number: int) -> int:
        time.sleep(0.004)
        return number

    report = run(book, range(300), workers=2)
    assert report.counts.done == 300


def test_the_deadline_of_a_context_is_when_it_is_given_up(book: hf.Pipeline) -> None:
    left = []

    @book.stage(timeout="5s")
    def read(number: int, ctx: hf.Context) -> int:
        left.append(ctx.deadline - time.time())
        return number

    run(book, [1])
    assert 4 < left[0] <= 5


PROCESSES = """
import os, sys, time
import holdfast as hf

book = hf.Pipeline("book")

@book.stage(executor="processes", timeout="500ms", retry=hf.Retry(attempts=1))
def read(number: int, ctx: hf.Context) -> int:
    ctx.spend(usd="0.01")
    if number == 3:
        {hang}
    return number

if __name__ == "__main__":
    report = book.run(range(8), workers=2, progress=False)
    print(report)
    print([letter.code for letter in report.dead], [letter.key for letter in report.dead], report.totals.usd)
    sys.exit(report.exit_code)
"""


def test_a_process_that_hangs_loses_one_item_and_not_its_neighbours(folder: Path) -> None:
    ended = App(folder, PROCESSES.format(hang="time.sleep(1000)")).run()
    assert ended.returncode == 1, ended.stderr
    assert "['timeout'] [3] 0.08" in ended.stdout


@pytest.mark.slow
def test_a_process_that_hangs_and_hears_no_signal_is_ended(folder: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGALRM, signal.SIG_IGN); time.sleep(1000)"
    ended = App(folder, PROCESSES.format(hang=deaf)).run()
    assert ended.returncode == 1, ended.stderr
    assert "['timeout'] [3]" in ended.stdout


def test_a_coroutine_that_blocks_the_loop_ends_the_run_with_its_name(book: hf.Pipeline) -> None:
    ends = threading.Event()

    @book.stage(timeout="100ms", retry=ONCE)
    async def read(number: int) -> int:
        if number == 3 and not ends.is_set():
            ends.wait(60)
        return number

    with pytest.raises(hf.UsageError, match=r"handler of item 3 blocks the event loop.*await what takes long"):
        run(book, range(10), workers=2)
    ends.set()
    assert run(book, range(10)).counts.done == 10


def test_a_coroutine_that_is_slow_but_lets_the_loop_turn_is_not_taken_for_a_block(book: hf.Pipeline) -> None:
    @book.stage(timeout="10s")
    async def read(number: int) -> int:
        for _ in range(20):
            time.sleep(0.002)  # noqa: ASYNC251 - it is slow, and that is what this is about
            await asyncio.sleep(0)
        return number

    assert run(book, range(10)).is_complete


@pytest.mark.promise("P11")
def test_a_slow_disk_is_not_taken_for_a_handler_that_hangs(book: hf.Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what it made would be paid for with the failed attempt, and once more when its output is adopted."""
    calls, whole = Calls(), hf.Files.stage

    def slow(sink: hf.Files, *args: Any) -> Any:
        time.sleep(0.6)
        return whole(sink, *args)

    monkeypatch.setattr(hf.Files, "stage", slow)

    @book.stage(sink=hf.Files("out/{key}.json"), timeout="200ms", retry=SOON)
    def pay(number: int, ctx: hf.Context) -> int:
        calls(number)
        ctx.spend(usd=1)
        return number

    report = run(book, [1])
    assert (report.counts.done, len(calls), report.totals.attempts, report.totals.usd) == (1, 1, 1, 1)
