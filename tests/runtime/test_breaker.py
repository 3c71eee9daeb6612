"""A storm of transient failures makes a stage pause; it burns no attempts, and other stages go on."""

import json
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast.core import course
from holdfast.core.canonical import decode
from holdfast.core.model import BatchId, ChunkId, Claim, Item, ItemNo, Lease, State
from holdfast.core.outcome import Deferred, Failed
from holdfast.core.retry import Policy, Rule
from holdfast.runtime.engine.dispatch import PoolKind, PoolLoad, Slots, StageBreaker, StageFacts, StageQueue
from holdfast.runtime.engine.exchange import Portion
from holdfast.runtime.engine.hold import Hold
from holdfast.stores.base import each_item
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.clock import ManualClock
from tests.core.made import NOW, done, failed, item
from tests.runtime.rehearsal import held, queue_of
from tests.runtime.support import Calls, FasterClock, run

LEASE = "3h"
"""On a clock that runs fast, leases have to be long."""


class Service:
    """Fails until it was called so often."""

    def __init__(self, fails: int) -> None:
        self.calls, self.fails = Calls(), fails

    def __call__(self, number: int) -> int:
        self.calls(number)
        if len(self.calls) <= self.fails:
            raise hf.Transient("down", code="http_503")
        return number


def open_book(folder: Path, clock: FasterClock, service: Callable[[int], int], **options: Any) -> hf.Pipeline:
    book = hf.Pipeline("book", store=SqliteStore(folder / "state.db", clock=clock))

    @book.stage(**options)
    def fetch(number: int) -> int:
        return service(number)

    return book


@pytest.mark.promise("A15")
def test_a_storm_makes_the_stage_pause_and_nobody_is_buried(folder: Path) -> None:
    clock, service = FasterClock(300), Service(fails=34)
    book = open_book(folder, clock, service)
    report = run(book, range(200), workers=32, lease=LEASE)
    assert report.state == "complete", report
    assert report.counts.done == 200
    assert any("pauses for 30.0 s" in warning for warning in report.warnings)
    assert any("http_503" in warning for warning in report.warnings)
    assert warnings(book)[0]["code"] == "breaker_open"
    assert report.totals.attempts == 200 + 34, "every call is an attempt in the journal"
    entries = [entry for chunk in book.store.chunks(1) for entry in book.store.entries(chunk.id)]
    words = [text.frame or b"" for entry in entries for text in entry.texts]
    assert any(b"the breaker of stage 'fetch' is open" in each for each in words)


def test_while_it_pauses_nothing_is_started(folder: Path) -> None:
    """The storm comes when the worker holds thousands of items that are ready."""
    calls = Calls()
    book = hf.Pipeline("book", store=SqliteStore(folder / "state.db", clock=ManualClock()))

    @book.stage(breaker=hf.Breaker(failures=5))
    def fetch(number: int) -> int:
        time.sleep(0.001)
        if number >= 400:
            calls(number)
            raise hf.Transient("down")
        return number

    report = run(book, range(4000), workers=4, deadline=3)
    assert (report.counts.done, report.counts.pending) == (400, 3600)
    handed_over = 2 * 4 * 10
    assert 5 <= len(calls) <= 5 + handed_over + 10


def test_without_a_breaker_the_same_storm_buries_items(folder: Path) -> None:
    service = Service(fails=200)
    book = open_book(folder, FasterClock(300), service, breaker=False)
    report = run(book, range(50), lease=LEASE)
    assert report.counts.dead == 50


def test_few_failures_or_those_between_successes_are_no_storm(folder: Path) -> None:
    calls = Calls()

    def every_third(number: int) -> int:
        if calls(number) == 1 and number % 3:
            raise hf.Transient("busy")
        return number

    report = run(open_book(folder, FasterClock(300), every_third), range(300), lease=LEASE)
    assert report.state == "complete"
    assert not report.warnings


@pytest.mark.promise("A7", "A15")
def test_a_service_that_stays_away_ends_the_run_after_a_stated_time_and_costs_no_item(folder: Path) -> None:
    clock, service = FasterClock(20_000), Service(fails=10**9)
    patient = hf.Retry(attempts=500, within="90d")
    book = open_book(folder, clock, service, breaker=hf.Breaker(failures=5, pause="5m"), retry=patient)
    report = run(book, range(100), workers=8, lease="23h")
    assert (report.state, report.reason, report.exit_code) == ("paused", "breaker", 75)
    assert report.run_again
    assert (report.counts.pending, report.counts.dead) == (100, 0)
    burned = sum(item.place.attempt for item in each_item(book.store, 1))
    assert 5 <= burned < 100, "those that opened it"
    assert any(item.place.code == "deferred" for item in each_item(book.store, 1)), "and those that came later did not"
    service.fails = 0
    clock.advance(86_400)
    assert run(book, range(100), lease="23h").state == "complete"


def test_a_refusal_is_an_answer_and_not_part_of_a_storm(folder: Path) -> None:
    def refuses(number: int) -> int:
        if number % 10 == 9:
            raise hf.Permanent("http_404")
        raise hf.Transient("busy")

    book = open_book(folder, FasterClock(300), refuses, retry=hf.Retry(attempts=1))
    report = run(book, range(100), workers=1, lease=LEASE)
    assert report.counts.dead == 100
    assert not report.warnings


def test_other_stages_go_on_while_one_pauses(folder: Path) -> None:
    """The first stage finishes all items while the second is away; only then does the second come back."""
    clock, first, back = ManualClock(), Calls(), threading.Event()
    book = hf.Pipeline("book", store=SqliteStore(folder / "state.db", clock=clock))

    @book.stage
    def read(number: int) -> int:
        if first(number) and len(first) == 1000:
            back.set()
            clock.advance(3700)
        return number

    @book.stage(breaker=hf.Breaker(failures=3, pause="1h"), retry=hf.Retry(attempts=3, within="10h"))
    def send(number: int) -> int:
        if not back.is_set():
            raise hf.Transient("away")
        return number

    report = run(book, range(1000), workers=4, lease="30m")
    assert back.is_set()
    assert report.state == "complete", report


@pytest.mark.parametrize("workers", [1, 12])
def test_a_try_that_fails_doubles_the_pause_and_one_that_succeeds_lets_all_go_on(folder: Path, workers: int) -> None:
    def until_it_paused_twice(number: int) -> int:
        if len(warnings(book)) < 2:
            raise hf.Transient("down")
        return number

    patient = hf.Retry(attempts=500, within="10h")
    breaker = hf.Breaker(failures=10, pause="10s")
    book = open_book(folder, FasterClock(300), until_it_paused_twice, breaker=breaker, retry=patient)
    report = run(book, range(60), workers=workers, lease=LEASE)
    assert report.state == "complete"
    assert ["pauses for 10.0 s" in report.warnings[0], "pauses for 20.0 s" in report.warnings[1]] == [True, True]
    assert "failed again" in report.warnings[1]


def warnings(book: hf.Pipeline) -> list[dict[str, Any]]:
    return [decode(event.body) for event in book.store.events() if event.kind == course.WARNING]


def test_after_the_pause_one_item_is_tried_while_the_others_wait() -> None:
    breaker = StageBreaker("fetch", Rule(failures=2, pause=30.0))
    breaker.judge([failed(item(1)), failed(item(2))], NOW)
    assert breaker.blocks(NOW + 29, 0)
    assert not breaker.blocks(NOW + 30, 0), "nothing is in flight: one may be tried"
    assert breaker.blocks(NOW + 30, 1), "one is"
    breaker.judge([done(item(3))], NOW + 31)
    assert not breaker.blocks(NOW + 31, 5)


def test_after_the_pause_one_item_is_tried_of_a_stage_with_quick_handlers_too() -> None:
    slots = Slots(4)
    queue = StageQueue(0, StageFacts(name="fetch", policy=Policy()), PoolLoad(PoolKind.THREADS), slots,
                       StageBreaker("fetch", Rule(failures=2, pause=30.0)))  # fmt: skip
    hold = hold_of([item(n) for n in range(5)])
    queue.learn([done(item(n), seconds=1e-5) for n in range(10)])
    assert queue.inline(hold)
    queue.breaker.judge([failed(item(1)), failed(item(2))], NOW)
    assert queue.can_start(hold, NOW + 30, math.inf)
    assert not queue.inline(hold), "on the committing thread it would hold no slot"
    queue.begin(Portion(0, [item(0)], 1, NOW, hold))
    assert not queue.can_start(hold, NOW + 30, math.inf), "one is tried"


def hold_of(items: list[Item]) -> Hold:
    lease = Lease(chunk=ChunkId(1), fence=1, owner="ann", expires=NOW + 60)
    claim = Claim(lease=lease, batch=BatchId(1), lo=ItemNo(0), hi=ItemNo(len(items)), version=0, blame=0,
                  pending=len(items), uid=bytes(16), number=1, end=1)  # fmt: skip
    hold = Hold(claim, 1, 30.0, moment=0.0)
    hold.take_in(items, NOW, 0.0, from_store=False)
    return hold


def test_what_fails_while_it_is_open_is_deferred_until_it_may_close() -> None:
    breaker = StageBreaker("fetch", Rule(failures=2, pause=30.0))
    spent = failed(item(3), usd=5)
    first, second, third = breaker.judge([failed(item(1)), failed(item(2)), spent], NOW)
    assert [type(each) for each in (first, second, third)] == [Failed, Failed, Deferred]
    assert (third.wait, third.spend) == (30.0, spent.spend)
    (longer,) = breaker.judge([failed(item(4), after=300.0)], NOW + 10)
    assert longer.wait == 300.0
    permanent = failed(item(5), transient=False)
    assert breaker.judge([permanent], NOW + 10) == [permanent]


@pytest.mark.parametrize("wrong", [{"failures": 0}, {"failures": True}, {"pause": 0}, {"pause": "2h"}, {"pause": "x"}])
def test_a_breaker_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(hf.UsageError, match=r"Breaker\("):
        hf.Breaker(**wrong)


def test_a_stage_takes_a_breaker_or_none(book: hf.Pipeline) -> None:
    with pytest.raises(hf.UsageError, match="breaker="):
        book.stage(name="read", breaker=5)(lambda number: number)


def test_an_item_that_is_deferred_for_too_long_is_buried(folder: Path) -> None:
    clock = FasterClock(1000)

    def closed(number: int) -> int:
        raise hf.Defer(60, "closed")

    book = open_book(folder, clock, closed, retry=hf.Retry(defer_within="5m"))
    report = run(book, [1], lease=LEASE)
    (found,) = each_item(book.store, 1)
    assert (found.place.state, found.place.code) == (State.DEAD, "deferred_too_long")
    assert "closed" in found.place.reason
    assert report.totals.attempts == 6


@pytest.mark.promise("A15")
def test_nobody_is_buried_because_a_stage_pauses_for_longer_than_an_item_may_be_deferred(folder: Path) -> None:
    service, together = Service(fails=8), threading.Barrier(8)

    def down(number: int) -> int:
        if len(service.calls) < 8:
            try:
                return service(number)
            finally:
                together.wait(20)
        return service(number)

    retry = hf.Retry(wait=("1ms", "2ms"), defer_within="1s")
    book = open_book(folder, FasterClock(300), down, retry=retry, breaker=hf.Breaker(failures=4))
    report = run(book, range(20), workers=8, lease=LEASE)
    assert (report.state, report.counts.done) == ("complete", 20), report


def test_a_breaker_without_a_rule_changes_nothing() -> None:
    assert StageBreaker("fetch", None).judge([], 0.0) == []
    assert json.dumps(StageBreaker("fetch", None).until) == "0.0"


@pytest.mark.promise("A15", "A5")
def test_items_that_go_back_do_not_wait_for_a_first_stage_that_pauses(restart: Callable[..., hf.Pipeline]) -> None:
    """All that is left at the first stage is buried while its breaker opens: nothing is there to be tried, and what the
    gate withholds until everything was asked must not be withheld for ever."""
    made: set[int] = set()

    def define(*, down: bool) -> Callable[[hf.Pipeline], None]:
        def stages(book: hf.Pipeline) -> None:
            @book.stage(retry=hf.Retry(attempts=1), breaker=hf.Breaker(failures=3, pause="10ms"))
            def scan(number: int) -> int:
                if number >= 3:
                    raise hf.Transient("down") if down else hf.Defer(0.01)
                made.add(number)
                return number

            @scan.verify
            def is_there(number: int) -> bool:
                return number in made

            @book.stage
            def read(number: int) -> int:
                if not down:
                    raise hf.Defer(0.01)
                return number

        return stages

    run(restart(define(down=False)), range(6), workers=3, deadline="500ms")
    made.discard(0)
    report = run(restart(define(down=True)), range(6), workers=3, deadline="20s")
    assert (report.state, report.counts.done, report.counts.dead) == ("complete with dead letters", 3, 3), report


# -- verifiers and adopters ------------------------------------------------------------------------------------------


def coded(n: int, code: str, *, transient: bool = True) -> Failed:
    return msgspec.structs.replace(failed(item(n), transient=transient), code=code)


@pytest.mark.promise("A15")
def test_outputs_that_a_verifier_refuses_are_no_storm(folder: Path) -> None:
    """Both sides answered. Else a batch with some bad items would pause for them at its end, and never be finished."""
    book = open_book(folder, FasterClock(300), lambda number: number, retry=hf.Retry(attempts=3))
    book.stages[0].verify(lambda out: out < 10)
    report = run(book, range(40), lease=LEASE)
    assert (report.state, report.counts.done, report.counts.dead) == ("complete with dead letters", 10, 30), report
    assert not report.warnings
    assert {letter.code for letter in report.dead} == {"unverified"}


@pytest.mark.promise("A15")
def test_a_storm_of_verifiers_without_an_answer_makes_the_stage_pause_and_buries_nobody(folder: Path) -> None:
    asked = Calls()

    def is_there(out: int) -> bool:
        asked(out)
        if len(asked) <= 34:
            raise ConnectionError("the database is down")
        return True

    book = open_book(folder, FasterClock(300), lambda number: number)
    book.stages[0].verify(is_there)
    report = run(book, range(60), workers=32, lease=LEASE)
    assert (report.state, report.counts.done) == ("complete", 60), report
    assert any("verifier_failed" in warning for warning in report.warnings)


@pytest.mark.parametrize("code", ["verifier_failed", "adopter_failed"])
def test_a_check_that_gives_no_answer_counts_where_it_may_pass_and_is_no_answer_where_not(code: str) -> None:
    breaker = StageBreaker("fetch", Rule(failures=2, pause=30.0))
    breaker.judge([coded(1, code), coded(2, code, transient=False), coded(3, code)], NOW)
    assert breaker.until == NOW + 30.0
    breaker.judge([coded(4, code, transient=False)], NOW + 31)
    assert breaker.until, "a check that is broken does not say that the service is back"
    breaker.judge([coded(5, "unverified")], NOW + 32)
    assert not breaker.until, "a verifier that refuses an output has seen one"


@pytest.mark.promise("A15")
def test_an_output_that_was_found_does_not_say_that_the_service_is_back() -> None:
    breaker = StageBreaker("fetch", Rule(failures=2, pause=30.0))
    breaker.judge([failed(item(1)), failed(item(2))], NOW)
    breaker.judge([done(item(3), adopted=True)], NOW + 31)
    assert breaker.until, "it was looked up elsewhere"
    breaker.judge([done(item(4))], NOW + 32)
    assert not breaker.until


def test_worker_processes_that_die_are_no_storm() -> None:
    breaker = StageBreaker("fetch", Rule(failures=2, pause=30.0))
    breaker.judge([coded(n, "process_died") for n in range(5)], NOW)
    assert breaker.is_calm


def test_after_a_storm_items_travel_one_by_one_until_something_is_answered() -> None:
    queue = queue_of(Slots(2), breaker=StageBreaker("fetch", Rule(failures=2, pause=30.0)))
    queue.pace.count, queue.pace.mean = 100, 0.001
    hold = held(40)
    hold.take_in([item(n) for n in range(40)], NOW, 0.0, from_store=True)
    assert queue.how_many(hold, inline=False) == 10
    queue.breaker.judge([failed(item(1)), failed(item(2))], NOW)
    assert queue.how_many(hold, inline=False) == 1
    queue.breaker.judge([done(item(3))], NOW + 31)
    assert queue.how_many(hold, inline=False) == 10
