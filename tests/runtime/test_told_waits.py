"""A service that says how long to wait is left alone for so long, by the whole stage, and it costs no attempt."""

from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import httpx
import pytest

import holdfast as hf
from holdfast.core.outcome import Deferred, Failed
from holdfast.runtime.engine.dispatch import StageBreaker
from holdfast.runtime.engine.failures import explain
from holdfast.stores.base import each_item
from holdfast.stores.sqlite import SqliteStore
from tests.core.made import NOW, done, item
from tests.runtime.support import Calls, FasterClock, run

REQUEST = httpx.Request("GET", "http://service.test/")


def refusal(status: int, **headers: str) -> httpx.HTTPStatusError:
    reply = httpx.Response(status, headers={name.replace("_", "-"): text for name, text in headers.items()})
    return httpx.HTTPStatusError("refused", request=REQUEST, response=reply)


def explained(error: BaseException) -> Any:
    return explain(item(), error, queued=0.0, seconds=0.1, draw=0.5, spend=None)


@pytest.mark.promise("E3")
@pytest.mark.parametrize("status", [429, 503, 500])
def test_seconds_and_dates_are_a_deferral(status: int) -> None:
    assert explained(refusal(status, retry_after="20")).wait == 20
    date = {"date": formatdate(NOW, usegmt=True), "retry_after": formatdate(NOW + 6, usegmt=True)}
    told = explained(refusal(status, **date))
    assert (type(told), told.wait, told.told) == (Deferred, 6, True)
    assert f"http_{status}" in told.why
    assert explained(refusal(status, retry_after="0")).wait == 1, "nobody is asked again at once, for ever"


def test_without_it_and_with_a_wait_of_ones_own_it_is_an_attempt() -> None:
    plain = explained(refusal(429))
    assert (type(plain), plain.transient, plain.after) == (Failed, True, None)
    own = explained(hf.Transient("busy", after=12))
    assert (type(own), own.after) == (Failed, 12)
    assert type(explained(refusal(403, retry_after="20"))) is Failed, "a refusal that will not pass"


def asked(wait: float, n: int = 0) -> Deferred:
    return Deferred(item(n), wait, "told", 0.0, 0.0, told=True)


def test_the_longest_wait_that_was_told_holds_for_the_stage() -> None:
    for rule in (None, hf.Breaker().rule()):
        stage = StageBreaker("call", rule, longest=100.0)
        stage.judge([asked(20, 1), asked(60, 2), asked(5, 3)], NOW)
        assert stage.until == NOW + 60
        stage.judge([asked(30, 4), done(item(5))], NOW + 1)
        assert stage.until == NOW + 60
        assert stage.blocks(NOW + 59.9, 0)
        assert not stage.blocks(NOW + 60, 7), "all may start again, not one alone"
        stage.judge([done(item(6))], NOW + 61)
        assert stage.is_calm
        stage.judge([asked(5000, 7)], NOW + 61)
        assert stage.until == NOW + 161, "no longer than an item may be deferred"
        assert stage.asked == "stage 'call' waits for 1 min 00 s: the service asked for it (Retry-After)"


@pytest.mark.promise("A15", "E3")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_quota_that_is_used_up_is_waited_for_and_nobody_hammers(folder: Path, asynchronous: bool) -> None:
    """The whole of 300 items, with 8 workers: only who was in flight is told."""
    clock, calls, opens = FasterClock(600), Calls(), list[float]()

    def call(number: int) -> int:
        calls(number)
        if not opens:  # counted from the first call, however long the machine took to come to it
            opens.append(clock() + 300)
        if (left := opens[0] - clock()) > 0:
            raise refusal(429, retry_after=str(int(left) + 1))
        return number

    report = run(quota(folder, clock, call, asynchronous), range(300), workers=8, lease="3h")
    assert (report.counts.done, report.counts.dead) == (300, 0)
    assert len(calls) <= 300 + 16
    assert any("waits for" in warning for warning in report.warnings)


def quota(folder: Path, clock: FasterClock, call: Callable[[int], int], asynchronous: bool) -> hf.Pipeline:
    book = hf.Pipeline("book", store=SqliteStore(folder / "state.db", clock=clock))
    if asynchronous:

        @book.stage(retry=hf.Retry(attempts=1))
        async def later(number: int) -> int:
            return call(number)
    else:

        @book.stage(retry=hf.Retry(attempts=1))
        def now(number: int) -> int:
            return call(number)

    return book


def test_beyond_what_an_item_may_be_deferred_it_is_buried_with_that_reason(folder: Path) -> None:
    book = hf.Pipeline("book", store=folder / "state.db")

    @book.stage(retry=hf.Retry(defer_within="1h"))
    def call(number: int) -> int:
        raise refusal(429, retry_after="7200")

    report = run(book, [1])
    (letter,) = report.dead
    assert letter.code == "deferred_too_long"
    assert "asked for a wait of 7,200 s" in letter.reason
    assert "the limit is 3,600 s" in letter.reason


def test_a_deferral_that_was_told_costs_no_attempt(folder: Path) -> None:
    book = hf.Pipeline("book", store=folder / "state.db")

    @book.stage
    def call(number: int) -> int:
        raise refusal(503, retry_after="3600")

    report = run(book, range(5), deadline="300ms")
    assert (report.exit_code, report.counts.dead) == (75, 0)
    places = [each.place for each in each_item(book.store, book.store.batches()[0].id)]
    assert {place.attempt for place in places} == {0}
    assert any(place.due for place in places)
