"""What brings the results of all ranges together is called once for the same parts, and what it made is on record."""

import asyncio
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core import canonical, ingest, journal
from holdfast.core.model import chain_of_batch
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate.operations import discard, redrive
from holdfast.runtime.partitions import payload_of
from holdfast.stores.base import each_entry, find_batch
from holdfast.stores.open import open_store
from holdfast.testing.rows import Rows
from tests.runtime.support import SOON

BY = Actor(name="ann", reason="it is mended")


@pytest.fixture(params=["memory", "sqlite", "bucket"])
def store(request: pytest.FixtureRequest, folder: Path) -> Any:
    where = {"memory": "memory:", "sqlite": str(folder / "state.db"), "bucket": f"file://{folder}/bucket"}
    return open_store(where[request.param])


def totals(store: Any, rows: Any = range(100), **options: Any) -> tuple[hf.Scan, list[Any]]:
    """A scan that counts rows in two ranges; what its converge was given. A row "poison" cannot be handled."""
    scan = hf.Scan("totals", Rows(rows), store=store, **{"partitions": 2, "every": 10, "retry": SOON, **options})

    @scan.handler
    def count(some: list[Any], acc: int) -> int:
        if "poison" in some:
            raise ValueError("this row cannot be handled")
        return acc + len(some)

    called: list[Any] = []

    @scan.converge
    def add(parts: list[int]) -> int:
        called.append(parts)
        return sum(parts)

    return scan, called


def converged(store: Any) -> list[str]:
    """Who is on record with a result."""
    batch = find_batch(store, "totals")
    entries = each_entry(store, chain_of_batch(batch.id))
    return [head.actor for entry in entries if (head := journal.decode_header(entry.head)).kind == "converged"]


def _first_range(scan: hf.Scan) -> Any:
    payload = canonical.encode({"range": 0, **payload_of(next(iter(Rows(range(100)).split(2))))})
    return ingest.admit(0, payload)


def run(scan: hf.Scan, **options: Any) -> Any:
    return scan.run(progress=False, **options)


@pytest.mark.promise("B10")
def test_it_is_called_once_and_a_later_run_or_report_reads_what_it_made(store: Any) -> None:
    scan, called = totals(store)
    assert run(scan).result == 100
    again, never = totals(store)
    assert run(again).result == 100
    report = again.report()
    assert (report.result, report.parts, report.exit_code) == (100, (50, 50), 0)
    assert (called, never, len(converged(store))) == ([[50, 50]], [], 1)


@pytest.mark.promise("B10", "C11")
def test_a_buried_row_does_not_keep_it_from_being_called_and_a_redriven_one_is_one_more_part(store: Any) -> None:
    rows: list[Any] = ["poison" if n == 7 else n for n in range(100)]
    scan, called = totals(store, rows, isolate=True)
    first = run(scan)
    assert (first.result, first.rows, first.counts.dead, first.exit_code) == (99, 100, 1, 1)
    assert run(scan).result == 99
    assert called == [[50 - 1, 50]]
    rows[7] = "mended"
    redrive(store, find_batch(store, "totals"), BY)
    assert scan.report().result == 99, "its ranges are done: nothing is taken back before the row is handled"
    last = run(scan)
    assert (last.result, last.rows, last.exit_code) == (100, 100, 0)
    assert scan.report().result == 100
    assert called == [[49, 50], [49, 50, 1]]


def test_a_range_that_is_dead_keeps_it_from_being_called(store: Any) -> None:
    rows: list[Any] = ["poison" if n == 7 else n for n in range(100)]
    scan, called = totals(store, rows)
    report = run(scan)
    assert (report.result, report.parts, report.exit_code) == (None, (), 1)
    assert "converge 'add' was not called: of 2 partitions 1 dead" in report.why
    rows[7] = "mended"
    redrive(store, find_batch(store, "totals"), BY)
    assert run(scan).result == 100
    assert called == [[50, 50]]


def test_a_range_that_was_given_up_is_no_success(store: Any) -> None:
    scan, called = totals(store, ["poison", *range(99)])
    run(scan)
    discard(store, find_batch(store, "totals"), BY)
    report = run(scan)
    assert (report.run.exit_code, report.exit_code, report.is_complete, called) == (0, 1, False, [])
    assert "of 2 partitions 1 cancelled" in str(report)
    assert report.as_dict()["exit_code"] == 1
    with pytest.raises(hf.Incomplete, match="was not called"):
        report.raise_unless_complete()


def test_what_it_raises_is_told_and_the_next_run_calls_it_again(store: Any) -> None:
    scan, called = totals(store)
    broken = [True]

    @scan.converge
    def add(parts: list[int]) -> int:
        called.append(parts)
        if broken:
            raise ZeroDivisionError("no parts of that kind")
        return sum(parts)

    with pytest.raises(hf.NotConverged, match=r"'add' raised ZeroDivisionError: no parts.*run again") as caught:
        run(scan)
    report = caught.value.report
    assert (report.exit_code, report.run_again, report.parts, report.rows) == (75, True, (50, 50), 100)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    standing = scan.report()
    assert (standing.result, standing.exit_code, standing.run_again) == (None, 75, True)
    assert "run again" in standing.why
    broken.clear()
    assert run(scan).result == 100
    assert (called, scan.report().exit_code) == ([[50, 50], [50, 50]], 0)


@pytest.mark.promise("B16")
def test_an_empty_source_converges_too(store: Any) -> None:
    scan, called = totals(store, [])
    assert (run(scan).result, run(scan).exit_code, scan.report().rows) == (0, 1, 0)
    scan.pipeline.allow_empty = True
    assert (run(scan).result, run(scan).exit_code) == (0, 0)
    assert called == [[0, 0]]


@pytest.mark.promise("B16")
def test_partitions_with_an_empty_range_complete_with_no_rows_and_their_handler_is_never_called(store: Any) -> None:
    scan, called = totals(store, range(3), partitions=5)
    given: list[int] = []

    @scan.handler
    def count(some: list[int], acc: int) -> int:
        given.append(len(some))
        return acc + len(some)

    report = run(scan)
    assert (report.result, report.rows, report.counts.done, report.exit_code) == (3, 3, 5, 0)
    assert called == [[0, 1, 0, 1, 1]]
    assert given == [1, 1, 1]
    batch = find_batch(store, "totals")
    rows = {at.n: at.rows for at in store.checkpoints(batch.id)}
    assert [rows.get(n, 0) for n in range(5)] == [0, 1, 0, 1, 1]


@pytest.mark.promise("B16")
def test_a_source_without_any_range_converges_too(store: Any) -> None:
    class Nothing(Rows):
        def split(self, parts: int) -> Any:
            return iter(())

    scan, called = totals(store)
    scan.source = Nothing([])
    scan.pipeline.allow_empty = True
    report = run(scan)
    assert (report.result, report.parts, report.exit_code, called) == (0, (), 0, [[]])


def test_it_is_not_called_before_all_ranges_are_known(store: Any) -> None:
    """As after a crash while the source was split: those that are known are done, and are not all."""

    class Splitting(Rows):
        def split(self, parts: int) -> Any:
            yield next(iter(super().split(parts)))
            if broken:
                raise OSError("the disk is away")
            yield from list(super().split(parts))[1:]

    broken = [True]
    scan, called = totals(store)
    scan.source = Splitting(range(100))
    with pytest.raises(OSError, match="away"):
        run(scan)
    batch = find_batch(store, "totals")
    if not batch.admitted:  # nothing was written: as if it had never begun
        store.add_items(batch.id, [_first_range(scan)])
    broken.clear()
    scan.pipeline.run(None, "totals", progress=False)
    standing = scan.report()
    assert (standing.counts.done, standing.result, called) == (1, None, [])
    assert run(scan).result == 100
    assert called == [[50, 50]]


def test_of_two_that_called_it_at_once_the_first_on_record_is_right(store: Any) -> None:
    scan, _ = totals(store)
    results = []

    @scan.converge
    def mine(parts: list[int]) -> str:
        if threading.current_thread() is threading.main_thread():
            thread = threading.Thread(target=lambda: results.append(run(scan).result))
            thread.start()
            thread.join()
            return "the slow one"
        return "the quick one"

    assert run(scan).result == "the quick one"
    assert results == ["the quick one"]
    assert scan.report().result == "the quick one"


def test_another_function_is_called_and_neither_changes_the_parts_of_the_report(store: Any) -> None:
    scan, called = totals(store)
    run(scan)

    @scan.handler(initial=[])
    def keep(some: list[Any], acc: list[Any]) -> list[Any]:
        return [*acc, *some]

    @scan.converge
    def greedy(parts: list[list[int]]) -> list[int]:
        first = parts.pop(0)
        for part in parts:
            first.extend(part)
        return first

    report = run(scan, batch="lists")
    assert (len(report.result), [len(part) for part in report.parts]) == (100, [50, 50])
    assert len(called) == 1

    @scan.converge
    def largest(parts: list[int]) -> int:
        return max(parts)

    assert run(scan, batch="totals").result == 50, "it is another function than the one on record"


def test_it_may_be_a_coroutine_also_within_a_loop(store: Any) -> None:
    scan, called = totals(store)

    @scan.converge
    async def add(parts: list[int]) -> int:
        await asyncio.sleep(0)
        called.append(parts)
        return sum(parts)

    async def main() -> Any:
        return run(scan).result

    assert asyncio.run(main()) == 100
    assert run(scan).result == 100
    assert called == [[50, 50]]


@pytest.mark.parametrize(
    ("made", "says"),
    [(object, "what converge 'give' returned"), (lambda: "x" * (17 << 20), "write the result to a file")],
    ids=["object", "huge"],
)
def test_what_cannot_be_kept_is_refused(store: Any, made: Callable[[], Any], says: str) -> None:
    scan, _ = totals(store)

    @scan.converge
    def give(parts: list[int]) -> Any:
        return made()

    with pytest.raises(hf.NotConverged, match="give") as caught:
        run(scan)
    assert says in str(caught.value)
    assert converged(store) == []


def test_exact_values_come_back_as_they_were(store: Any) -> None:
    scan, _ = totals(store)

    @scan.converge
    def exact(parts: list[int]) -> Any:
        return {"sum": Decimal("0.10"), "sizes": {1, 2}, "none": None}

    assert run(scan).result == scan.report().result == {"sum": Decimal("0.10"), "sizes": {1, 2}, "none": None}


def test_what_cannot_be_one_is_refused_when_it_is_defined() -> None:
    scan = hf.Scan("totals", Rows([]), store="memory:")
    for wrong in (lambda: 1, lambda a, b: 1, 5):
        with pytest.raises(hf.UsageError, match="parts"):
            scan.converge(wrong)  # type: ignore[arg-type]

    def each(parts: list[Any]) -> Any:
        yield from parts

    with pytest.raises(hf.UsageError, match="return the result"):
        scan.converge(each)


def test_it_may_not_run_the_scan_it_belongs_to() -> None:
    scan, _ = totals("memory:")

    @scan.converge
    def again(parts: list[int]) -> Any:
        return run(scan)

    with pytest.raises(hf.NotConverged, match="would wait for itself"):
        run(scan)
