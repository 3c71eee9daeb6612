"""`hf.lambda_handler`: messages of a queue and timer events, made by hand, as a cloud function gets them."""

import json
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.errors import StoreUnavailable
from holdfast.testing.rows import Rows
from tests.runtime.support import Calls


class Context:
    """What a cloud function knows about its time."""

    def __init__(self, *millis: int) -> None:
        self.millis = list(millis)

    def get_remaining_time_in_millis(self) -> int:
        return self.millis.pop(0) if len(self.millis) > 1 else self.millis[0]


def event(*bodies: Any, group: str | None = None) -> dict[str, Any]:
    attributes = {"MessageGroupId": group} if group else {}
    texts = [body if isinstance(body, str) else json.dumps(body) for body in bodies]
    return {"Records": [{"messageId": f"m{n}", "body": text, "attributes": attributes} for n, text in enumerate(texts)]}


def failures(answer: dict[str, Any]) -> list[str]:
    return [each["itemIdentifier"] for each in answer["batchItemFailures"]]


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def pages(book: hf.Pipeline, calls: Calls) -> hf.Pipeline:
    @book.stage(retry=hf.Retry(attempts=2, wait=("1h", "1h"), within="5h"))
    def only(row: dict) -> str:  # type: ignore[type-arg]
        calls(row["id"])
        if row["word"] == "later":
            raise hf.Transient("not now")
        if row["word"] == "never":
            raise hf.Permanent("never")
        return str(row["word"])

    return book


def row(n: int, word: str = "a") -> dict[str, Any]:
    return {"id": n, "word": word}


def test_only_what_is_not_finished_is_delivered_again(pages: hf.Pipeline, calls: Calls) -> None:
    handle = hf.lambda_handler(pages, key="id")
    sent = event(row(1), row(2, "later"), row(3, "never"), "{not json", row(4))
    assert failures(handle(sent, Context(60_000))) == ["m1"]
    assert pages.report().counts.done == 2
    assert {letter.code for letter in pages.report().dead} == {"never", "invalid"}
    calls.clear()
    assert failures(handle(sent, Context(60_000))) == ["m1"]
    assert not calls.seen, "nothing is run twice"


def test_dead_letters_may_be_given_back_to_the_queue(pages: hf.Pipeline) -> None:
    handle = hf.lambda_handler(pages, key="id", fail_dead=True)
    assert failures(handle(event(row(1), row(3, "never"), "not json"), Context(60_000))) == ["m1", "m2"]


def test_the_same_malformed_body_is_one_dead_letter(pages: hf.Pipeline) -> None:
    handle = hf.lambda_handler(pages, key="id")
    assert failures(handle(event("{", "{", "[1"), None)) == []
    assert pages.report().counts.dead == 2


def test_when_the_time_is_up_the_rest_is_delivered_again(pages: hf.Pipeline, calls: Calls) -> None:
    handle = hf.lambda_handler(pages, key="id", margin="2s")
    assert failures(handle(event(row(1), row(2)), Context(1_500))) == ["m0", "m1"]
    assert pages.store_if_there() is None, "nothing was even opened"
    assert not calls.seen


def test_trouble_with_one_message_is_no_trouble_for_the_others(
    pages: hf.Pipeline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handle = hf.lambda_handler(pages, key="id")
    handle(event(row(2, "secret")), None)
    real = type(pages.store).claim
    asked = 0

    def claim(self: Any, want: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise StoreUnavailable("the disk is busy")
        return real(self, want)

    monkeypatch.setattr(type(pages.store), "claim", claim)
    answer = handle(event(row(1), row(2, "other"), row(3)), None)
    assert failures(answer) == ["m0", "m1"], "one could not be claimed, one came with another payload"
    assert "secret" not in caplog.text
    assert failures(handle(event(row(1)), None)) == []


def test_a_store_that_is_not_there_gives_all_messages_back(pages: hf.Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise StoreUnavailable("the disk is busy")

    monkeypatch.setattr(type(pages.store), "batches", broken)
    assert failures(hf.lambda_handler(pages, key="id")(event(row(1), row(2)), None)) == ["m0", "m1"]


def test_in_a_queue_with_an_order_nothing_overtakes(pages: hf.Pipeline, calls: Calls) -> None:
    handle = hf.lambda_handler(pages, key="id")
    assert failures(handle(event(row(1), row(2, "later"), row(3), group="g"), None)) == ["m1", "m2"]
    assert calls.seen == [1, 2]


def test_other_events_are_refused_with_what_is_expected(pages: hf.Pipeline) -> None:
    with pytest.raises(hf.UsageError, match="not SQS messages"):
        hf.lambda_handler(pages)({"Records": [{"Sns": {}}]}, None)


def test_a_timer_runs_what_is_left_and_says_whether_to_come_again(book: hf.Pipeline) -> None:
    calls = Calls()

    @book.stage(retry=hf.Retry(attempts=5, wait=("1h", "1h"), within="9h"))
    def only(n: int) -> int:
        calls(n)
        if n == 2:
            raise hf.Transient("not now")
        return n

    book.source(lambda: range(4))
    handle = hf.lambda_handler(book, margin="1s")
    answer = handle({"source": "aws.events"}, Context(3_000))
    assert (answer["again"], answer["counts"]["done"], answer["counts"]["waiting"]) == (True, 3, 1)
    assert handle({}, Context(900)) == {"again": True, "state": "interrupted", "counts": {}}


def test_a_timer_without_anything_to_do(pages: hf.Pipeline) -> None:
    handle = hf.lambda_handler(pages, key="id")
    assert handle({}, Context(60_000)) == {"again": False, "state": "open", "counts": {}}
    handle(event(row(1), row(2)), None)
    answer = handle({}, Context(60_000))
    assert (answer["again"], answer["counts"]["done"]) == (False, 2)


def test_a_timer_that_is_done(book: hf.Pipeline) -> None:
    @book.stage
    def only(n: int) -> int:
        return n

    book.source(lambda: range(3))
    answer = hf.lambda_handler(book)({}, Context(60_000))
    assert (answer["again"], answer["state"], answer["counts"]["done"]) == (False, "complete", 3)
    assert book.report().run_again is False


def test_a_scan_is_refused_at_once() -> None:
    scan = hf.Scan("orders", Rows(range(3)), store="memory:")
    with pytest.raises(hf.UsageError, match=r"lambda_handler\(Scan\): messages are items of an hf.Pipeline"):
        hf.lambda_handler(scan)  # type: ignore[arg-type]
