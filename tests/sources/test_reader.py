"""A source of your own: a function that yields pairs, or a class with read and split."""

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

import holdfast as hf
from holdfast.core import cursor as cursors_
from holdfast.core.cursor import Cursor
from tests.sources.reference import cursors, told

START = datetime(2026, 1, 1, tzinfo=UTC)


def events(after: Any) -> Iterator[tuple[Any, Any]]:
    for n in range(25):
        at = (START + timedelta(hours=n // 3), n)
        if after is None or at > after:
            yield at, {"n": n}


@pytest.mark.promise("B7")
@pytest.mark.parametrize("page", [1, 4, 100])
def test_pairs_become_pages_and_any_resume_gives_the_rest(page: int) -> None:
    source = hf.Reader(events, page=page)
    whole = [{"n": n} for n in range(25)]
    assert list(source) == told(source) == whole
    for passed, at in enumerate(cursors(source)):
        assert told(source, at) == whole[passed:]
        assert told(source, None, at) == whole[: passed if at is not None else None]
    assert source.describe() == {"kind": "own", "name": "events"}
    assert source.natural_key({"n": 1}) is None


def test_it_stands_above_a_function_and_says_what_it_is() -> None:
    @hf.Reader(name="orders", table="orders", since=2026)
    def read(after: Any) -> Iterator[tuple[int, str]]:
        yield 1, "a"

    assert read.describe() == {"kind": "own", "name": "orders", "table": "orders", "since": 2026}
    assert repr(read) == "Reader('orders')"


def test_asking_for_more_than_one_range_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert len(hf.Reader(events).split(3)) == 1
    assert "as one partition, not 3" in caplog.text


@pytest.mark.parametrize(
    ("pairs", "error", "says"),
    [
        ([(1, "a"), (1, "b")], hf.Permanent, "make it unique"),
        ([("a",)], hf.UsageError, "one pair for each row"),
        (["row"], hf.UsageError, "one pair for each row"),
        ([(object(), "a")], hf.UsageError, "cursor"),
    ],
)
def test_what_cannot_be_resumed_is_told_while_it_is_read(pairs: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        list(hf.Reader(lambda after: pairs, name="x"))


def test_a_function_that_begins_with_the_cursor_itself_is_told() -> None:
    with pytest.raises(hf.Permanent, match="begin after the cursor"):
        told(hf.Reader(lambda after: [(5, "a"), (6, "b")], name="x"), Cursor("own", 5))


@pytest.mark.parametrize("wrong", [lambda: hf.Reader(3), lambda: hf.Reader(page=0), lambda: list(hf.Reader(name="x"))])
def test_a_reader_that_cannot_work_is_refused(wrong: Any) -> None:
    with pytest.raises(hf.UsageError, match="Reader"):
        wrong()
    with pytest.raises(hf.UsageError, match="another source"):
        told(hf.Reader(events), Cursor("row", 5))


@pytest.mark.promise("B10")
def test_a_scan_and_a_pipeline_read_it_alike() -> None:
    scan = hf.Scan("events", hf.Reader(events), every=4, store="memory:")

    @scan.handler
    def count(rows: list[dict[str, int]], acc: int) -> int:
        return acc + sum(row["n"] for row in rows)

    assert scan.run(progress=False).result == sum(range(25))
    double = hf.Pipeline("double", store="memory:")

    @double.stage
    def twice(item: dict[str, int]) -> int:
        return item["n"] * 2

    assert double.run(hf.Reader(events), key="n", progress=False).counts.done == 25


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda after: None, "a NoneType: write a plain generator"),
        (lambda after: iter([(None, "a")]), "the cursor None"),
        (lambda after: iter([(1, "a"), (float("nan"), "b")]), "the cursor nan"),
    ],
)
def test_what_could_not_be_gone_on_from_is_refused(function: Any, said: str) -> None:
    with pytest.raises((hf.UsageError, hf.Permanent), match=said):
        list(hf.Reader(function, name="own"))


def test_an_async_generator_is_told_from_a_plain_one() -> None:
    @hf.Reader
    async def own(after: Any) -> Any:
        yield 1, 1

    with pytest.raises(hf.UsageError, match="an async generator: write a plain generator"):
        list(own)


def test_an_endless_source_is_left_at_a_checkpoint_when_the_time_is_up_and_gone_on_with() -> None:
    def numbers(after: Any) -> Any:
        yield from ((n, n) for n in count(0 if after is None else after + 1))

    scan = hf.Scan("numbers", hf.Reader(numbers), every=10, store="memory:")
    scan.handler(lambda rows, acc=0: acc + len(rows))
    first = scan.run(progress=False, deadline="200ms")
    second = scan.run(progress=False, deadline="200ms")
    assert first.exit_code == second.exit_code == 75
    assert 0 < first.rows < second.rows
    (at,) = scan.pipeline.store.checkpoints(1)
    assert cursors_.decode(at.cursor).value == second.rows - 1
