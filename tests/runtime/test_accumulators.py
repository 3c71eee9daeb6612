"""What a scan accumulates is checked before it is kept; what is refused leaves the checkpoint before it."""

import logging
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

import holdfast as hf
from holdfast.core import canonical
from holdfast.core.limits import ACC_BYTES
from holdfast.testing.rows import Rows


class Stock(BaseModel):
    pieces: int
    value: Decimal


def scan_of(rows: int = 1000) -> hf.Scan:
    return hf.Scan("stock", Rows(range(rows)), every=200, store="memory:")


def kept(scan: hf.Scan) -> tuple[int, object]:
    """Rows and accumulator of the checkpoint that stands."""
    (batch,) = scan.pipeline.store.batches("stock")
    (at,) = scan.pipeline.store.checkpoints(batch.id)
    return at.rows, None if at.acc is None else canonical.decode_typed(at.acc, "the accumulator")


@pytest.mark.promise("B15")
def test_an_accumulator_with_a_field_missing_is_refused_and_the_checkpoint_before_it_stands() -> None:
    scan = scan_of()

    @scan.handler(initial={"pieces": 0, "value": Decimal(0)})
    def add(rows: list[int], acc: Stock) -> Stock:
        if rows[0] >= 400:
            return {"pieces": acc.pieces}  # type: ignore[return-value]
        return Stock(pieces=acc.pieces + len(rows), value=acc.value + Decimal("0.10") * len(rows))

    with pytest.raises(hf.UsageError, match=r"handler 'add': the accumulator is not valid: value"):
        scan.run(progress=False)
    report = scan.report()
    assert (report.counts.dead, report.counts.pending) == (0, 1), "no range is buried for what is wrong with the scan"
    assert kept(scan) == (400, {"pieces": 400, "value": Decimal("40.00")})


class Odd:
    """As numpy's numbers are: a value that cannot be kept."""


def odd(rows: list[int], acc: Any = 0) -> Any:
    return Odd() if rows[0] >= 400 else acc + len(rows)


def text(rows: list[int], acc: int) -> int:
    return "abc" if rows[0] >= 400 else acc + len(rows)  # type: ignore[return-value]


@pytest.mark.promise("B15")
@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("handler", [odd, text])
def test_an_accumulator_of_another_type_stops_the_scan_and_buries_nothing(
    handler: Any, follow: bool, isolate: bool
) -> None:
    scan = (hf.Follow if follow else hf.Scan)("stock", Rows(range(1000)), every=200, store="memory:", isolate=isolate)
    scan.handler(handler)
    for _ in range(4):
        with pytest.raises(hf.UsageError, match=f"handler '{handler.__name__}'"):
            scan.tick() if follow else scan.run(progress=False)
        assert (scan.report().counts.dead, scan.report().counts.pending) == (0, 1)
        assert kept(scan) == (400, 400)
    scan.handler(lambda rows, acc=0: acc + len(rows))  # put right: it goes on where it is
    scan.tick() if follow else scan.run(progress=False)
    assert kept(scan) == (1000, 1000)


@pytest.mark.promise("B9", "B10")
def test_a_decimal_stays_a_decimal_to_the_last_digit() -> None:
    scan = scan_of()

    @scan.handler
    def add(rows: list[int], acc: Decimal = Decimal("0.00")) -> Decimal:
        assert type(acc) is Decimal
        return acc + sum(Decimal(row) / 100 for row in rows)

    result = scan.run(progress=False).result
    assert type(result) is Decimal
    assert str(result) == "4995.00"


@pytest.mark.promise("B15")
def test_an_accumulator_beyond_the_limit_is_refused_with_advice() -> None:
    scan = scan_of()

    @scan.handler
    def keep_everything(rows: list[int], acc: list[str]) -> list[str]:
        return [*acc, "x" * (ACC_BYTES // 3)]

    report = scan.run(progress=False)
    (dead,) = report.dead
    assert dead.code == "acc_too_large"
    assert "keep totals in it, not rows" in dead.reason
    rows, acc = kept(scan)
    assert (rows, len(acc)) == (400, 2)  # type: ignore[arg-type]


def test_an_accumulator_of_more_than_half_the_limit_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    scan = scan_of()

    @scan.handler
    def keep_much(rows: list[int], acc: str) -> str:
        return "x" * (ACC_BYTES // 2 + 1)

    with caplog.at_level(logging.WARNING, "holdfast.scan"):
        assert scan.run(progress=False).exit_code == 0
    assert [record.message for record in caplog.records if "accumulator" in record.message] == [
        f"handler 'keep_much': the accumulator has {ACC_BYTES // 2 + 3:,} bytes; the limit is {ACC_BYTES:,}"
    ]


def test_what_a_generator_does_to_its_accumulator_after_a_yield_is_not_in_that_checkpoint() -> None:
    scan = scan_of()

    @scan.handler
    def add(part: hf.Partition):  # type: ignore[no-untyped-def]
        totals = part.acc if part.acc is not None else {"rows": 0}
        for row in part:
            totals["rows"] += 1
            if row == 399:
                yield totals
                totals["rows"] += 1_000
                raise ValueError("the five hundredth row")

    assert scan.run(progress=False).exit_code != 0
    assert kept(scan) == (400, {"rows": 400})
