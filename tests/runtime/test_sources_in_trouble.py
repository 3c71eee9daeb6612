"""Sources that raise, stop, block, repeat themselves, or give what is no item."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import holdfast as hf
from holdfast.runtime.define.definition import DEFAULT, describe
from holdfast.runtime.engine.control import Control
from holdfast.runtime.engine.ingester import Ingester
from holdfast.runtime.engine.ledger import Ledger
from holdfast.stores.base import find_batch
from tests.runtime.support import Calls, run


def define(book: hf.Pipeline) -> None:
    @book.stage
    def read(number: int) -> int:
        return number


@pytest.mark.promise("A7", "P3")
@pytest.mark.parametrize("after", [0, 1, 5, 300, 1500])
def test_a_source_that_raises_keeps_what_it_gave_and_says_how_far_it_came(
    restart: Callable[..., hf.Pipeline], after: int
) -> None:
    def breaks() -> Iterator[int]:
        yield from range(after)
        raise ValueError("line 7 is broken")

    with pytest.raises(ValueError, match="line 7 is broken") as caught:
        run(restart(define), breaks())
    (note,) = caught.value.__notes__
    assert f"after {after:,} items" in note
    assert "'book'" in note
    assert restart(define).report().counts.expected == after
    assert run(restart(define), range(2000)).counts.done == 2000


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, StopIteration])
def test_whatever_a_source_raises_reaches_the_caller(book: hf.Pipeline, error: type[BaseException]) -> None:
    define(book)

    class Source:
        def __iter__(self) -> "Source":
            return self

        def __next__(self) -> int:
            raise error

    if error is StopIteration:
        assert run(book, Source(), allow_empty=True).is_complete
        return
    with pytest.raises(error):
        run(book, Source())


def test_a_source_that_cannot_be_started_raises_before_anything_is_done(book: hf.Pipeline) -> None:
    define(book)

    class Source:
        def __iter__(self) -> Iterator[int]:
            raise FileNotFoundError("no such list")

    with pytest.raises(FileNotFoundError):
        run(book, Source())
    assert book.report().counts.expected == 0


@pytest.mark.parametrize(
    "items", ["text", b"bytes", {"a": 1}, 5, 3.5, object(), True], ids=lambda value: type(value).__name__
)
def test_what_is_no_list_of_items_is_refused(book: hf.Pipeline, items: Any) -> None:
    define(book)
    with pytest.raises(hf.UsageError, match="pass a list, a generator or a source"):
        run(book, items)


def test_an_async_source_is_refused_with_a_reason(book: hf.Pipeline) -> None:
    define(book)

    async def later() -> AsyncIterator[int]:
        yield 1
        await asyncio.sleep(0)

    with pytest.raises(hf.UsageError, match="is async"):
        run(book, later())
    with pytest.raises(hf.UsageError, match="is async"):
        run(book, later)


def test_a_slow_source_is_handled_item_by_item(book: hf.Pipeline) -> None:
    seen = Calls()

    @book.stage
    def read(number: int) -> int:
        seen(number)
        return number

    def slow() -> Iterator[int]:
        for number in range(6):
            time.sleep(0.3)
            yield number
            if number > 1:
                assert number - 1 in seen.seen or number - 2 in seen.seen, "items pile up behind a slow source"

    assert run(book, slow()).counts.done == 6


def test_a_source_of_heavy_items_is_not_read_far_ahead(book: hf.Pipeline) -> None:
    taken = most = 0
    done = Calls()

    @book.stage
    def read(text: str) -> int:
        done(1)
        return len(text)

    def heavy() -> Iterator[str]:
        nonlocal taken, most
        for number in range(20):
            taken += 1
            yield f"{number:04d}" + "x" * 4_000_000
            most = max(most, taken)

    report = run(book, heavy(), workers=1)
    assert report.counts.done == 20
    batch = find_batch(book.store, "book")
    assert len(book.store.chunks(batch.id)) >= 3, "20 items of 4 MB are admitted in several groups"


def test_a_source_is_closed_when_it_is_read(book: hf.Pipeline) -> None:
    define(book)
    closed = []

    def numbers() -> Iterator[int]:
        try:
            yield from range(10)
        finally:
            closed.append(threading.current_thread() is threading.main_thread())

    run(book, numbers())
    assert closed == [True], "a source is read and closed on the thread that called run()"


def test_a_source_may_use_the_pipeline(book: hf.Pipeline) -> None:
    define(book)
    run(book, range(5), batch="first")

    def results() -> Iterator[int]:
        for result in book.results("first"):
            yield result.output + 100

    assert run(book, results(), batch="second").counts.done == 5


def test_a_source_that_never_ends_is_ended_by_the_deadline(book: hf.Pipeline) -> None:
    define(book)

    def forever() -> Iterator[int]:
        number = 0
        while True:
            yield number
            number += 1

    report = run(book, forever(), deadline=1)
    assert report.state == "interrupted"
    assert report.counts.done > 100


def test_items_of_every_size_down_to_nothing(book: hf.Pipeline) -> None:
    book.stage(name="keep")(lambda value: value)
    report = run(book, ["", [], {}, 0, None, False, " ", [[]], {"": ""}])
    assert report.counts.done == report.counts.expected == 9


@pytest.mark.promise("P3")
@pytest.mark.parametrize("key", ["id", None, lambda row: row["id"]], ids=["field", "content", "function"])
def test_a_source_may_use_one_dict_for_all_of_its_items(book: hf.Pipeline, key: Any) -> None:
    book.stage(name="look")(lambda row: row["id"])

    def rows() -> Iterator[dict[str, int]]:
        row: dict[str, int] = {}
        for number in range(2000):
            row["id"] = number
            yield row

    report = run(book, rows(), key=key)
    assert report.counts.done == report.counts.expected == 2000
    assert sorted(result.output for result in report.results()) == list(range(2000))


@pytest.mark.promise("A14")
def test_a_source_that_raised_was_not_read_to_its_end(restart: Callable[..., hf.Pipeline]) -> None:
    def breaks() -> Iterator[int]:
        yield from range(3)
        raise OSError("the network is away")

    with pytest.raises(OSError, match="the network is away"):
        run(restart(define), breaks())
    book = restart(define)
    assert run(book).state == "open"  # what is stored is finished; there may be more
    assert book.store.batches()[0].ingested_at is None
    may_come = "more items may come: no source was read to its end, nor was it closed"
    assert book.reconcile().unexplained == (may_come,)


@pytest.mark.promise("A7")
def test_a_run_that_was_told_to_stop_admits_nothing_more_and_asks_for_little_more(book: hf.Pipeline) -> None:
    define(book)
    store = book.store
    batch = store.open_batch("book", "book", describe("book", book.stages, DEFAULT), actor="ann")
    reader = Ingester(store, batch, book.stages[0].input, key=None, identity="key", changed="refuse", owner="ann",
                      rerun=lambda *_: None)  # fmt: skip
    control, ledger = Control(1), Ledger([])
    taken = 0

    def source() -> Iterator[int]:
        nonlocal taken
        for number in range(100_000):
            if number == 20:
                control.stop("paused")
                taken = 0
            taken += 1
            yield number

    reader.read(source(), control, ledger, lambda: None)
    assert taken <= 64, "what was asked for at once, and no more"
    assert ledger.added == ledger.admitted < 20
    assert not ledger.ingested
    assert store.batches()[0].admitted == ledger.added


@pytest.mark.promise("A7", "P3")
def test_a_source_that_raises_while_it_is_compared_keeps_what_it_gave(restart: Callable[..., hf.Pipeline]) -> None:
    """It is read before anything is worked on, several groups at a time."""

    class Breaks:
        def __len__(self) -> int:
            return 2_000

        def __iter__(self) -> Iterator[int]:
            yield from range(1_500)
            raise ValueError("line 7 is broken")

    assert run(restart(define), [0]).is_complete
    with pytest.raises(ValueError, match="line 7 is broken"):
        run(restart(define), Breaks())
    assert restart(define).report().counts.expected == 1_500
