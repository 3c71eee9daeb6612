"""A range that fails goes on at its last checkpoint, also within the run that wrote it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import holdfast as hf
from holdfast.runtime.scan.scan import Scan
from holdfast.testing.rows import Rows


@pytest.mark.promise("B1", "B7", "B10")
def test_a_retry_begins_at_the_last_checkpoint_and_not_where_the_range_was_claimed() -> None:
    scan = Scan("totals", Rows(range(1000)), every=200, store="memory:", retry=hf.Retry(wait=("10ms", "20ms")))
    given: list[int] = []

    @scan.handler
    def add(rows: list[int], acc: int) -> int:
        given.append(rows[0])
        if given.count(600) == 1 and rows[0] == 600:
            raise hf.Transient("no answer")
        return acc + sum(rows)

    assert scan.run(progress=False).result == sum(range(1000))
    assert given == [0, 200, 400, 600, 600, 800]


def _limited(calls: list[int]) -> None:
    """Count a call; a range that is called for ever shall not hang the test."""
    calls.append(1)
    if len(calls) > 20:
        raise hf.Permanent("it was called for ever")


async def _cancelled() -> None:
    inner = asyncio.ensure_future(asyncio.sleep(3600))
    inner.cancel()
    await inner


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.promise("B7")
def test_a_cancellation_that_a_coroutine_lets_out_is_its_failure(isolate: bool) -> None:
    scan = Scan("totals", Rows(range(2)), every=200, store="memory:", isolate=isolate)
    calls: list[int] = []

    @scan.handler
    async def add(rows: list[int]) -> None:
        _limited(calls)
        await _cancelled()

    report = scan.run(progress=False)
    assert {each.code for each in report.dead} == {"CancelledError"}
    assert len(calls) == (3 if isolate else 1)


def test_a_cancellation_that_an_async_generator_lets_out_is_its_failure() -> None:
    scan = Scan("totals", Rows(range(2)), every=200, store="memory:")
    calls: list[int] = []

    @scan.handler
    async def add(part: Any) -> AsyncIterator[int]:
        _limited(calls)
        async for row in part:
            yield row
        await _cancelled()

    report = scan.run(progress=False)
    assert [each.code for each in report.dead] == ["CancelledError"]
    assert len(calls) == 1


def test_a_lost_lease_that_is_not_that_of_the_range_is_its_failure() -> None:
    """A handler that works with another batch may let out what it met there."""
    scan = Scan("totals", Rows(range(2)), every=200, store="memory:")
    calls: list[int] = []

    @scan.handler
    def add(rows: list[int]) -> None:
        _limited(calls)
        raise hf.LeaseLost("the chunk of another batch")

    report = scan.run(progress=False)
    assert [each.code for each in report.dead] == ["LeaseLost"]
    assert len(calls) == 1
