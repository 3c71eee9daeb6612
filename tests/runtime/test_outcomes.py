"""What a handler can say about an item, and what follows."""

import errno
import socket
import ssl
from typing import Any

import pytest

import holdfast as hf
from holdfast.core import sections
from holdfast.stores.base import find_batch
from tests.runtime.support import ONCE, SOON, Calls, codes, outputs, run


def raising(book: hf.Pipeline, error: Any, retry: hf.Retry = SOON) -> tuple[hf.Report, int]:
    """The report of an item whose handler raises this, and how often it was tried."""
    calls = Calls()

    @book.stage(retry=retry)
    def fail(number: int) -> int:
        calls(number)
        raise error() if isinstance(error, type) else error

    return run(book, [1]), len(calls)


def test_a_skipped_item_is_neither_done_nor_dead(book: hf.Pipeline) -> None:
    @book.stage
    def read(number: int) -> int:
        if number % 2:
            raise hf.Skip("blank page")
        return number

    report = run(book, range(10))
    assert (report.counts.done, report.counts.skipped) == (5, 5)
    assert report.is_complete
    record = book.store.items(find_batch(book.store, "book").id, lo=1, hi=2)[0]
    assert record.place.reason == "blank page"


def test_a_skipped_item_does_not_come_to_the_next_stage_nor_come_back(book: hf.Pipeline) -> None:
    calls = Calls()

    @book.stage
    def read(number: int) -> int:
        calls(number)
        raise hf.Skip("not for us")

    @book.stage
    def never(number: int) -> int:
        raise AssertionError

    run(book, [1, 2])
    assert run(book, [1, 2]).counts.skipped == 2
    assert len(calls) == 2


def test_deferring_costs_no_attempt(book: hf.Pipeline) -> None:
    seen = []

    @book.stage(retry=ONCE)
    def throttled(number: int, ctx: hf.Context) -> int:
        seen.append(ctx.attempt)
        if len(seen) < 8:
            raise hf.Defer(0.001, "the other side is busy")
        return number

    assert run(book, [1]).counts.done == 1
    assert seen == [1] * 8


def test_deferring_does_not_use_up_the_time_of_the_item(book: hf.Pipeline) -> None:
    calls = Calls()

    @book.stage(retry=hf.Retry(attempts=2, within="50ms", wait=("1ms", "1ms")))
    def throttled(number: int) -> int:
        if calls(number) < 4:
            raise hf.Defer(0.05)
        return number

    assert run(book, [1]).counts.done == 1


@pytest.mark.promise("E3", "E7")
def test_a_transient_failure_is_tried_again_until_its_attempts_are_used(book: hf.Pipeline) -> None:
    report, tries = raising(book, hf.Transient("overloaded", code="busy"))
    assert tries == 3
    (letter,) = report.dead
    assert (letter.code, letter.attempts) == ("busy", 3)
    assert "3 of 3 attempts used" in letter.reason


@pytest.mark.promise("E2")
def test_a_permanent_failure_is_never_tried_again(book: hf.Pipeline) -> None:
    report, tries = raising(book, hf.Permanent("no_such_page", "page 1 does not exist"))
    assert tries == 1
    (letter,) = report.dead
    assert (letter.key, letter.stage, letter.code, letter.reason, letter.attempts) == (
        1,
        "fail",
        "no_such_page",
        "page 1 does not exist",
        1,
    )


class StatusError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status_code = status


class ResponseError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__("see the response")
        self.response = type("Response", (), {"status_code": status, "headers": {}})()


class RateLimitError(Exception):
    __module__ = "openai"


def caused(by: Exception) -> Exception:
    error = RuntimeError("the call failed")
    error.__cause__ = by
    return error


TRANSIENT: dict[str, tuple[BaseException, str]] = {
    "429": (StatusError(429), "http_429"),
    "502": (StatusError(502), "http_502"),
    "503": (ResponseError(503), "http_503"),
    "timeout": (TimeoutError("late"), "timeout"),
    "connection": (ConnectionResetError(errno.ECONNRESET, "reset"), "connection"),
    "dns": (socket.gaierror(socket.EAI_AGAIN, "try again"), "dns"),
    "tls": (ssl.SSLError("handshake"), "tls"),
    "unreachable": (OSError(errno.EHOSTUNREACH, "no route"), "ehostunreach"),
    "by name": (RateLimitError("slow down"), "RateLimitError"),
    "by its cause": (caused(StatusError(503)), "http_503"),
}

PERMANENT: dict[str, tuple[BaseException, str]] = {
    "400": (StatusError(400), "http_400"),
    "401": (StatusError(401), "http_401"),
    "403": (StatusError(403), "http_403"),
    "404": (ResponseError(404), "http_404"),
    "certificate": (ssl.SSLCertVerificationError("self-signed"), "tls_certificate"),
    "missing file": (FileNotFoundError(errno.ENOENT, "no such file"), "FileNotFoundError"),
    "bug": (KeyError("1429"), "KeyError"),
    "words": (ValueError("503 timeout"), "ValueError"),
    "assertion": (AssertionError(), "AssertionError"),
    "exit": (SystemExit(3), "SystemExit"),
    "interrupt": (KeyboardInterrupt(), "KeyboardInterrupt"),
    "generator": (GeneratorExit(), "GeneratorExit"),
    "recursion": (RecursionError("too deep"), "RecursionError"),
    "stop": (StopIteration(4), "StopIteration"),
    "group": (ExceptionGroup("several", [ValueError(1)]), "ExceptionGroup"),
}


@pytest.mark.promise("E3")
@pytest.mark.parametrize(("error", "code"), TRANSIENT.values(), ids=TRANSIENT)
def test_what_may_pass_is_tried_again(book: hf.Pipeline, error: BaseException, code: str) -> None:
    report, tries = raising(book, error)
    assert (tries, codes(report)) == (3, {1: code})


@pytest.mark.promise("E2", "E3")
@pytest.mark.parametrize(("error", "code"), PERMANENT.values(), ids=PERMANENT)
def test_what_will_not_pass_is_buried_at_once(book: hf.Pipeline, error: BaseException, code: str) -> None:
    report, tries = raising(book, error)
    assert (tries, codes(report)) == (1, {1: code})


@pytest.mark.promise("E2", "E3")
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_async_handler_may_raise_anything_too(book: hf.Pipeline, kind: type[BaseException]) -> None:
    @book.stage
    async def fail(number: int) -> int:
        if number == 3:
            raise kind
        return number

    report = run(book, range(20))
    assert codes(report) == {3: kind.__name__}
    assert report.counts.done == 19


def test_the_trace_of_a_failure_names_the_place_and_not_the_values(book: hf.Pipeline) -> None:
    from holdfast.core import journal
    from holdfast.stores.base import each_entry

    @book.stage
    def look_up(number: int) -> int:
        secret = {"password": "hunter2"}
        return int(secret[str(number)])

    run(book, [5])
    store, attempts = book.store, []
    for chunk in store.chunks(find_batch(store, "book").id):
        for entry in each_entry(store, chunk.id):
            body = sections.decode(entry)
            attempts += body.attempts if isinstance(body, journal.Checkpointed) else []
    (attempt,) = attempts
    assert "test_outcomes.py" in attempt.trace
    assert "in look_up" in attempt.trace
    assert "hunter2" not in attempt.trace


@pytest.mark.parametrize("after", [0.0, 0.05])
def test_the_wait_that_the_other_side_asks_for_is_respected(book: hf.Pipeline, after: float) -> None:
    import time

    times = []

    @book.stage(retry=SOON)
    def busy(number: int) -> int:
        times.append(time.monotonic())
        if len(times) == 1:
            raise hf.Transient("busy", after=after)
        return number

    assert run(book, [1]).is_complete
    assert times[1] - times[0] >= after


@pytest.mark.parametrize(
    "after",
    ["5", float("nan"), float("inf"), -3, object(), 1e12],
    ids=["text", "nan", "inf", "negative", "object", "long"],
)
def test_a_wait_that_is_no_time_is_not_believed(book: hf.Pipeline, after: Any) -> None:
    report, tries = raising(book, hf.Transient("busy", after=after))
    assert (tries, codes(report)) == (3, {1: "transient"})


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 1e12])
def test_deferring_for_a_time_that_is_none_says_so(seconds: float) -> None:
    with pytest.raises(hf.UsageError, match="pass the seconds to wait"):
        hf.Defer(seconds)


@pytest.mark.parametrize(
    "code", [404, None, ("a", 1), "x" * 10_000, "\udcff", ""], ids=["number", "none", "pair", "long", "half", "empty"]
)
def test_a_code_may_be_anything(book: hf.Pipeline, code: Any) -> None:
    report, tries = raising(book, hf.Permanent(code, "for some reason"))
    assert (tries, report.counts.dead) == (1, 1)
    assert len(report.dead[0].code) <= 200
    assert book.report().metrics.stages[0].runs == 1


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Treacherous(Exception):
    @property
    def status_code(self) -> int:
        raise RuntimeError("no status either")


class Grudging(Exception):
    def __getattr__(self, name: str) -> Any:
        raise ValueError(name)


class Shy(Exception):
    def __str__(self) -> str:
        return ""


ODD: dict[str, BaseException] = {
    "without words": Unspeakable(),
    "without a status": Treacherous(),
    "without anything": Grudging(),
    "empty": Shy(),
    "huge": ValueError("x" * 5_000_000),
    "half a surrogate pair": ValueError("a file called \udcff"),
    "control characters": ValueError("a\x00b\x1b[31m"),
    "whales": ValueError("🐋" * 5000),
    "not text": ValueError(b"\xff", object()),
}


@pytest.mark.parametrize("error", ODD.values(), ids=ODD)
def test_an_error_is_told_whatever_its_text_is(book: hf.Pipeline, error: BaseException) -> None:
    report, tries = raising(book, error)
    assert tries == 1
    (letter,) = report.dead
    assert letter.code == type(error).__name__
    assert 0 < len(letter.reason) <= 2000
    assert str(report)


@pytest.mark.parametrize("error", ODD.values(), ids=ODD)
def test_an_error_of_an_async_handler_is_told_too(book: hf.Pipeline, error: BaseException) -> None:
    @book.stage
    async def fail(number: int) -> int:
        raise error

    assert codes(run(book, [1])) == {1: type(error).__name__}


@pytest.mark.parametrize("why", [None, 5, "\udcff", "x" * 100_000], ids=["none", "a number", "surrogate", "long"])
def test_a_reason_to_skip_may_be_anything(book: hf.Pipeline, why: Any) -> None:
    @book.stage
    def skip(number: int) -> int:
        raise hf.Skip(why)

    assert run(book, [1]).counts.skipped == 1


def test_a_failing_item_holds_up_nobody(book: hf.Pipeline) -> None:
    @book.stage(retry=hf.Retry(attempts=3, wait=("30s", "60s")))
    def read(number: int) -> int:
        if number == 0:
            raise hf.Transient("later")
        return number

    report = run(book, range(200), workers=1, deadline=2)
    assert report.counts.done == 199
    assert report.counts.pending == report.counts.waiting == 1


def test_items_that_wait_leave_their_place_to_others_with_one_worker(book: hf.Pipeline) -> None:
    order = []
    calls = Calls()

    @book.stage(retry=hf.Retry(attempts=3, wait=("100ms", "100ms")))
    def read(number: int) -> int:
        if number == 0 and calls(number) == 1:
            raise hf.Transient("later")
        order.append(number)
        return number

    run(book, range(30), workers=1)
    assert order[0] != 0
    assert outputs(book).keys() == set(range(30))
