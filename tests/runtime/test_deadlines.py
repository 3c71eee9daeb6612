"""A deadline ends a run in time, and an interrupt at the next checkpoint; either way the next run goes on."""

import asyncio
import datetime as dt
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal

import pytest

import holdfast as hf
from holdfast.runtime.define.stage import WorkFacts
from holdfast.runtime.engine.control import Control
from holdfast.runtime.engine.exchange import NEVER, Deadline
from holdfast.runtime.report import why
from tests.runtime.rehearsal import done, item, queue_of
from tests.runtime.support import Calls, run, wait_for


@pytest.mark.promise("A7")
def test_a_run_ends_before_its_deadline_and_the_next_goes_on(restart: Callable[..., hf.Pipeline]) -> None:
    calls = Calls()

    def define(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int) -> int:
            calls(number)
            time.sleep(0.02)
            return number

    began = time.monotonic()
    report = run(restart(define), range(200), workers=2, deadline="500ms")
    assert time.monotonic() - began < 1.5
    assert (report.state, report.exit_code) == ("interrupted", 75)
    assert "run again" in report.why
    assert 0 < report.counts.done < 200
    assert run(restart(define), range(200), workers=16).is_complete
    assert sorted(calls.seen) == list(range(200)), "what was in flight was finished, so nothing was done twice"


@pytest.mark.parametrize("kind", ["thread", "loop", "committing thread"])
def test_a_handler_that_hangs_does_not_keep_a_run_past_its_deadline(book: hf.Pipeline, kind: str) -> None:
    ends = threading.Event()

    if kind == "loop":

        @book.stage(name="read")
        async def wait(number: int) -> int:
            await asyncio.sleep(1000)
            return number

    else:

        @book.stage
        def read(number: int) -> int:
            if number >= (0 if kind == "thread" else 500):
                ends.wait(60)
            return number

    began = time.monotonic()
    report = run(book, range(1000), deadline=1)
    ends.set()
    assert report.state == "interrupted"
    assert time.monotonic() - began < 8


@pytest.mark.slow
@pytest.mark.promise("A15")
@pytest.mark.parametrize("kind", ["threads", "loop"])
def test_nothing_is_begun_that_cannot_end_before_the_deadline(book: hf.Pipeline, kind: str) -> None:
    calls = Calls()

    if kind == "threads":

        @book.stage(name="ask")
        def ask(number: int) -> int:
            calls(number)
            time.sleep(1.2)
            return number
    else:

        @book.stage(name="ask")
        async def ask_async(number: int) -> int:
            calls(number)
            await asyncio.sleep(1.2)
            return number

    run(book, range(24), workers=8, deadline=2)
    assert len(calls) == 8, "of 1.2 s each that were begun after 1.2 s, none could end"


@pytest.mark.parametrize(
    "deadline",
    [dt.timedelta(milliseconds=200), "200ms", 0.2, 0],
    ids=["timedelta", "text", "seconds", "at once"],
)
def test_a_deadline_may_be_written_in_several_ways(book: hf.Pipeline, deadline: object) -> None:
    @book.stage
    def read(number: int) -> int:
        raise hf.Defer(0.01)

    assert run(book, [1], deadline=deadline).state == "interrupted"


def test_a_deadline_may_be_a_moment(book: hf.Pipeline) -> None:
    @book.stage
    def read(number: int) -> int:
        raise hf.Defer(0.01)

    assert run(book, [1], deadline=dt.datetime.now(dt.UTC) + dt.timedelta(seconds=0.2)).state == "interrupted"
    assert run(book, [1], deadline=dt.datetime(2020, 1, 1, tzinfo=dt.UTC)).state == "interrupted"


def test_a_deadline_breaks_in_on_a_source_that_blocks(book: hf.Pipeline) -> None:
    @book.stage
    def read(number: int) -> int:
        return number

    def blocks() -> Iterator[int]:
        yield 1
        time.sleep(60)
        yield 2

    began = time.monotonic()
    report = run(book, blocks(), deadline=1)
    assert time.monotonic() - began < 10
    assert report.state == "interrupted"
    assert report.counts.done == 1
    assert "source was not read to its end" in report.why


def test_an_interrupt_drains_to_the_next_checkpoint(restart: Callable[..., hf.Pipeline]) -> None:
    calls = Calls()

    def define(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int, ctx: hf.Context) -> int:
            if calls(number) and len(calls) == 5:
                os.kill(os.getpid(), signal.SIGINT)
                while not ctx.stopping:
                    time.sleep(0.001)
            time.sleep(0.01)
            return number

    before = signal.getsignal(signal.SIGINT)
    report = run(restart(define), range(100), workers=2)
    assert signal.getsignal(signal.SIGINT) is before
    assert report.state == "interrupted"
    assert report.counts.done == len(calls), "what had begun was finished"
    assert run(restart(define), range(100)).is_complete
    assert sorted(calls.seen) == list(range(100))


def test_who_interrupts_is_told_what_is_waited_for_and_how_to_end_it(restart: Callable[..., hf.Pipeline]) -> None:
    told = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "a second Ctrl-C" in record.getMessage():
                told.set()

    def define(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int) -> bool:
            os.kill(os.getpid(), signal.SIGINT)
            return told.wait(60)

    log, listener = logging.getLogger("holdfast.run"), Listener()
    log.addHandler(listener)
    try:
        report = run(restart(define), [1])
    finally:
        log.removeHandler(listener)
    assert [result.output for result in report.results()] == [True]


def test_an_interrupt_breaks_in_on_a_source_that_blocks(book: hf.Pipeline) -> None:
    closed = threading.Event()

    @book.stage
    def read(number: int) -> int:
        return number

    def blocks() -> Iterator[int]:
        try:
            yield from range(300)
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            time.sleep(60)
        finally:
            closed.set()

    began = time.monotonic()
    report = run(book, blocks())
    assert time.monotonic() - began < 20
    assert report.state == "interrupted"
    assert closed.is_set(), "the source was closed"


def test_a_second_interrupt_does_not_wait_for_a_handler(book: hf.Pipeline) -> None:
    ends = threading.Event()

    @book.stage
    def read(number: int, ctx: hf.Context) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        while not ctx.stopping:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGTERM)
        ends.wait(60)
        return number

    began = time.monotonic()
    report = run(book, [1])
    ends.set()
    assert time.monotonic() - began < 20
    assert report.state == "interrupted"
    assert report.counts.pending == 1


def test_a_run_on_another_thread_leaves_the_signals_alone(book: hf.Pipeline) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    seen = []

    @book.stage
    def read(number: int) -> int:
        seen.append({number: signal.getsignal(number) for number in before})
        return number

    thread = threading.Thread(target=run, args=(book, [1]))
    thread.start()
    thread.join(30)
    assert seen == [before]


@pytest.mark.promise("A14")
def test_a_complete_batch_whose_source_has_grown_is_not_called_complete_when_it_is_interrupted(
    restart: Callable[..., hf.Pipeline],
) -> None:
    def define(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int) -> int:
            return number

    assert run(restart(define), range(10)).is_complete

    def grown() -> Iterator[int]:
        yield from range(15)
        time.sleep(60)
        yield from range(15, 1000)

    report = run(restart(define), grown(), deadline=1)
    assert report.counts.pending == 0
    assert (report.state, report.exit_code) == ("interrupted", 75)
    assert "source was not read to its end" in report.why
    with pytest.raises(hf.Incomplete):
        report.raise_unless_complete()


def test_an_interrupt_breaks_off_the_verification(restart: Callable[..., hf.Pipeline]) -> None:
    looked = Calls()
    looking = False

    def define(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int) -> int:
            return number

        @read.verify
        def look(out: int) -> bool:
            if looking and looked(out) and len(looked) == 3:
                os.kill(os.getpid(), signal.SIGINT)
            return True

    run(restart(define), range(500))
    looking = True
    report = run(restart(define), range(500), verify="full")
    assert report.state == "interrupted"
    assert len(looked) < 500


@pytest.mark.promise("P13")
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_what_a_handler_cost_that_is_cut_off_is_recorded(book: hf.Pipeline, kind: str) -> None:
    """As at a deadline: a second Ctrl-C waits for nobody."""
    never = threading.Event()

    def end_at_once(ctx: hf.Context) -> None:
        wait_for(lambda: book.report().counts.done == 5)
        os.kill(os.getpid(), signal.SIGINT)
        wait_for(lambda: ctx.stopping)
        os.kill(os.getpid(), signal.SIGINT)

    def wait(number: int, ctx: hf.Context) -> int:
        ctx.spend(usd="0.10")
        if number == 3:
            end_at_once(ctx)
            never.wait(60)
        return number

    async def sleep(number: int, ctx: hf.Context) -> int:
        ctx.spend(usd="0.10")
        if number == 3:
            await asyncio.to_thread(end_at_once, ctx)
            await asyncio.sleep(60)
        return number

    book.stage(name="read")(wait if kind == "plain" else sleep)
    for times in (1, 2):
        report = run(book, range(6), signals="report")
        assert (report.counts.done, report.counts.pending, report.exit_code) == (5, 1, 75)
        assert report.totals.usd == Decimal("0.10") * (5 + times)
    never.set()
    (batch,) = book.store.batches("book")
    told = [str(event) for event in why.tell(book.store, batch, "3").events]
    assert sum("cut off" in event for event in told) == 2, told
    assert book.store.items(batch.id, lo=3, hi=4)[0].place.attempt == 0


@pytest.mark.promise("P13")
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_message_that_the_deadline_cuts_off_has_cost_what_it_cost(book: hf.Pipeline, kind: str) -> None:
    never = threading.Event()

    def wait(number: int, ctx: hf.Context) -> int:
        ctx.spend(usd="0.05")
        never.wait(60)
        return number

    async def sleep(number: int, ctx: hf.Context) -> int:
        ctx.spend(usd="0.05")
        await asyncio.sleep(60)
        return number

    book.stage(name="read")(wait if kind == "plain" else sleep)
    for times in (1, 2):
        assert book.process(1, deadline=1.0).run_again
        assert book.report().totals.usd == Decimal("0.05") * times
    never.set()


@pytest.mark.parametrize(
    ("slowest", "near_from"),
    [(None, 190.0), (0.0, 199.95), (2.0, 196.95), (1_000.0, 175.0)],
    ids=["nobody knows", "quick", "slow", "slower than all the time there is"],
)
def test_a_deadline_is_near_early_enough_for_what_is_in_flight(slowest: float | None, near_from: float) -> None:
    deadline = Deadline.of(200.0, 100.0)
    assert not deadline.is_near(near_from - 0.01, slowest)
    assert deadline.is_near(near_from + 0.001, slowest)
    assert not deadline.is_over(199.999)
    assert deadline.is_over(200.0)
    assert (deadline.has_time(197.0, 2.9), deadline.has_time(197.0, 3.0)) == (True, False)
    assert not NEVER.is_near(1e12, slowest)
    assert NEVER.has_time(1e12, 1e12)


def test_whoever_waits_is_woken_by_a_stop_and_does_not_wait_beyond_the_deadline() -> None:
    assert not Control(1, time.monotonic() + 5.0).wait(10.0)
    control = Control(1)
    assert control.wait(0.001)
    threading.Thread(target=control.stop, args=("interrupted",)).start()
    assert not control.wait(60.0)
    assert not control.wait(0.0)


def test_before_the_pace_is_known_the_last_attempt_says_whether_there_is_time_for_one_more() -> None:
    queue = queue_of()
    assert not queue.is_too_late(0.001), "nobody knows"
    queue.learn([done(item(0), seconds=2.0)])
    assert queue.is_too_late(1.9), "it would be cut off, and paid for nothing"
    assert not queue.is_too_late(2.1)
    walk = queue_of(work=WorkFacts(has_checkpoints=True))
    walk.learn([done(item(0), seconds=2.0)])
    assert not walk.is_too_late(1.9), "it comes to a checkpoint before"
