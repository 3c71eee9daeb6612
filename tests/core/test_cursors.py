"""Cursors, decided: order, types, what comes again, how people spell them."""

import uuid
from datetime import UTC, date, datetime
from decimal import Decimal

import hypothesis.strategies as st
import pytest
from hypothesis import given

from holdfast.core import cursor, journal
from holdfast.core.cursor import Cursor, Shift, Standing
from holdfast.core.errors import UsageError
from holdfast.core.model import Checkpoint, ItemNo, ItemState

NOW = datetime(2026, 4, 7, 1, 23, 45, 123456, tzinfo=UTC)


def standing(at: Cursor | None = None, rows: int = 0, *, acc: bytes | None = None, after: Cursor | None = None,
             until: Cursor | None = None) -> Standing:  # fmt: skip
    found = None if at is None else Checkpoint(ItemNo(0), rows, cursor.encode(at), acc)
    return Standing(n=ItemNo(0), key="0", place=ItemState(), payload=b"", after=after, until=until,
                    checkpoint=found)  # fmt: skip


def by_id(value: datetime, key: int) -> Cursor:
    return Cursor("column+key", value, {"id": key})


@given(st.integers(), st.integers())
def test_cursors_are_ordered_as_their_values(one: int, other: int) -> None:
    assert cursor.compare(Cursor("row", one), Cursor("row", other)) == (one > other) - (one < other)


def test_a_tiebreaker_decides_between_equal_values_and_nothing_stands_before_all() -> None:
    assert cursor.compare(by_id(NOW, 1), by_id(NOW, 2)) == -1
    assert cursor.compare(by_id(NOW, 2), by_id(NOW, 2)) == 0
    assert cursor.compare(None, by_id(NOW, 2)) == -1


@pytest.mark.parametrize(
    "other",
    [Cursor("byte", 5), Cursor("row", "5"), Cursor("row", None), Cursor("row", 5, {"a": 1, "b": 2})],
)
def test_what_only_the_source_can_order_is_not_guessed(other: Cursor) -> None:
    mine = Cursor("row", 5, {"a": 2, "b": 1}) if other.tiebreaker else Cursor("row", 5)
    assert cursor.compare(mine, other) is None


@pytest.mark.parametrize(
    "wrong",
    [
        Cursor("row", NOW, {"id": 1}),
        Cursor("column+key", "2026-04-07", {"id": 1}),
        Cursor("column+key", NOW.replace(tzinfo=None), {"id": 1}),
        Cursor("column+key", NOW, {"id": "1"}),
        Cursor("column+key", NOW, {"key": 1}),
        Cursor("column+key", NOW, 1),
        Cursor("column+key", NOW),
        Cursor("column+key", True, {"id": 1}),
    ],
)
def test_a_cursor_of_another_sort_is_refused(wrong: Cursor) -> None:
    with pytest.raises(UsageError):
        cursor.check_like(wrong, by_id(NOW, 12), "it")


def test_how_many_rows_come_again_is_told_from_the_journal() -> None:
    at = standing(by_id(NOW, 9), 300)
    past = [journal.Position(0, rows, cursor.encode(by_id(NOW, key))) for rows, key in ((100, 3), (200, 6), (300, 9))]
    exact, shift = cursor.at_cursor(at, by_id(NOW, 6), past, None)
    assert (exact.rows, shift) == (200, Shift(again=100))
    between, shift = cursor.at_cursor(at, by_id(NOW, 5), past, None)
    assert (between.rows, shift) == (100, Shift(again=200, exact=False))
    beyond, shift = cursor.at_cursor(at, by_id(NOW, 11), past, None)
    assert (beyond.rows, shift) == (300, Shift(skipped=None, exact=False))
    assert "an unknown number of rows" in str(shift)


def test_a_past_before_a_reset_to_the_start_does_not_count() -> None:
    at = standing(by_id(NOW, 4), 50)
    past = [journal.Position(0, 300, cursor.encode(by_id(NOW, 3))), journal.Position(0, 0)]
    found, _ = cursor.at_cursor(at, by_id(NOW, 3), past, None)
    assert found.rows == 0


@pytest.mark.parametrize(
    ("like", "text", "value"),
    [
        (5, "-12", -12),
        (Decimal("1.50"), "2.50", Decimal("2.50")),
        ("a", "b=c", "b=c"),
        (NOW, "2026-04-07T01:23:45.000001+00:00", NOW.replace(microsecond=1)),
        (date(2026, 1, 1), "2026-04-07", date(2026, 4, 7)),
        (uuid.UUID(int=1), str(uuid.UUID(int=2)), uuid.UUID(int=2)),
        (1.5, "2.5", 2.5),
    ],
)
def test_the_type_of_the_stored_cursor_decides_what_is_spelled(like: object, text: str, value: object) -> None:
    found = cursor.cursor_of(text, ["7"], Cursor("column+key", like, (3,)), None)
    assert found == Cursor("column+key", value, (7,))
    assert type(found.value) is type(value)


@pytest.mark.parametrize(
    ("like", "text"),
    [
        (5, "5.0"), (5, "five"), (Decimal(1), "NaN"), (NOW, "2026-04-07"), (NOW, "yesterday"),
        (NOW, "2026-04-07T01:23:45.1234567Z"), (date(2026, 1, 1), "2026-13-01"), (uuid.UUID(int=1), "12"),
    ],
)  # fmt: skip
def test_what_is_not_of_that_type_is_refused(like: object, text: str) -> None:
    with pytest.raises(UsageError):
        cursor.cursor_of(text, [], Cursor("column", like), None)


@pytest.mark.promise("C17")
@pytest.mark.parametrize("keys", [[], ["1", "2"], ["name=1"], ["x"]])
def test_a_value_without_its_key_is_refused_because_rows_could_be_skipped(keys: list[str]) -> None:
    with pytest.raises(UsageError, match="--key"):
        cursor.cursor_of("5", keys, Cursor("column+key", 5, {"id": 3}), None)
    assert cursor.cursor_of("5", ["id=4"], Cursor("column+key", 5, {"id": 3}), None).tiebreaker == {"id": 4}
