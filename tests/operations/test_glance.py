"""A scan at a glance: what is behind each partition, what is left, and for how long."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core import cursor
from holdfast.core.cursor import Cursor, Standing
from holdfast.core.model import Checkpoint, ItemNo, ItemState, State
from holdfast.runtime.engine.ledger import Ledger
from holdfast.runtime.engine.progress import sentence
from holdfast.runtime.report.overview import PartitionStatus, _left, _share, overview
from holdfast.runtime.report.status import Figures
from tests.operations.scanned import Totals

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def standing(after: Any, at: Any, until: Any, *, rows: int = 100, kind: str = "column", **more: Any) -> Standing:
    def of(value: Any) -> Cursor | None:
        return None if value is None else Cursor(kind, value)

    checkpoint = Checkpoint(ItemNo(0), rows, cursor.encode(Cursor(kind, at)) if at is not None else b"")
    return Standing(n=ItemNo(0), key=0, place=ItemState(), payload=b"", after=of(after), until=of(until),
                    checkpoint=checkpoint, **more)  # fmt: skip


@pytest.mark.parametrize(
    ("at", "share", "left"),
    [
        (standing(None, 5, None, expected=400), 0.25, 300),
        (standing(1000, 1250, 2000), 0.25, 300),
        (standing(None, 250, 1000, kind="byte"), 0.25, 300),
        (standing(NOON, NOON + timedelta(hours=1), NOON + timedelta(hours=4)), 0.25, 300),
        (standing(Decimal(0), Decimal("0.5"), Decimal(2)), 0.25, 300),
        (standing(None, 250, 1000), None, None),
        (standing("a", "b", "c"), None, None),
        (standing(0, 0, 1000), None, None),
        (standing(0, None, 1000, rows=0), 0.0, None),
        (standing(None, None, None, rows=0, expected=0), 1.0, 0),
    ],
)
def test_the_share_is_told_by_rows_or_by_borders_and_not_guessed(at: Standing, share: Any, left: Any) -> None:
    assert _share(at) == share
    assert _left(at, share) == left


def in_file(byte: int, inside: int, rows: int, *, after: int | None = None) -> Standing:
    """In a file of 230,000 bytes: so many rows of the block that begins at a byte are behind it."""
    at = standing(after, 0, 230_000, rows=rows, kind="byte")
    assert at.checkpoint is not None
    where = cursor.encode(Cursor("byte", byte, inside))
    return replace(at, checkpoint=replace(at.checkpoint, cursor=where))


def test_what_is_left_of_a_file_is_not_told_by_the_byte_at_which_a_block_begins() -> None:
    first = in_file(5, 3600, 3600)
    assert (_share(first), _left(first, _share(first))) == (None, None), "how long its rows are, nobody knows yet"
    later = in_file(46_000, 1_000, 9_000)
    assert _share(later) == pytest.approx((46_000 + 1_000 * 46_000 / 8_000) / 230_000)
    assert _left(later, _share(later)) == pytest.approx(31_000, rel=0.01)
    begun = in_file(100_000, 500, 500, after=100_000)
    assert _share(begun) is None
    assert _share(in_file(115_000, 0, 20_000)) == 0.5


def part(state: str, rows: int, left: int | None, rate: float | None = None, key: Any = 0) -> PartitionStatus:
    return PartitionStatus(key=key, state=state, rows=rows, expected=None, rate=rate, cursor="", lag="4 s behind",
                  updated_at=None, owner="", accumulated=0, rows_left=left)  # fmt: skip


def test_partitions_together_take_as_long_as_the_slowest_or_as_all_of_them() -> None:
    seen = overview([part("running", 10, 300, 10.0), part("running", 5, 10, 40.0), part("done", 7, 0)])
    assert (seen.rows, seen.rows_left, seen.rate, seen.seconds_left) == (22, 310, 50.0, 30.0)
    waiting = overview([part("running", 10, 100, 10.0), part(State.PENDING, 0, 900)])
    assert waiting.seconds_left == 100.0


def test_what_is_not_known_of_one_partition_is_not_known_of_all() -> None:
    seen = overview([part("running", 10, 300, 10.0), part("running", 5, None, 40.0)])
    assert (seen.rows_left, seen.seconds_left) == (None, None)


def test_a_followed_source_has_a_lag_and_no_end() -> None:
    seen = overview([part("following", 10, None, key="follow")])
    assert (seen.follows, seen.lag, seen.rows_left) == (True, "4 s behind", None)


def test_progress_tells_what_is_left_of_rows_that_are_counted() -> None:
    ledger = Ledger([])
    asked: list[int] = []

    def expected() -> int:
        asked.append(1)
        return 1000

    ledger.count_rows(200, expected)
    ledger.read(300)
    assert ledger.figures().rows_expected is None, "asked before all ranges were known"
    ledger.ingested = True
    assert [ledger.figures().rows_expected for _ in range(3)] == [1000] * 3
    assert len(asked) == 1
    figures: Figures = ledger.figures()
    assert "200 rows before, 300 rows now" in sentence("totals", figures)
    assert "500 left, about" in sentence("totals", figures)


def test_a_run_knows_how_many_rows_its_partitions_have(store: Any) -> None:
    totals = Totals(store, range(1000), partitions=4)
    seen: list[int | None] = []
    totals.scan.run(progress=lambda figures: seen.append(figures.rows_expected))
    assert seen[-1] == 1000
