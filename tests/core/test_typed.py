"""A value comes back as what it was, of the same type, whatever it is; what cannot is refused by name."""

from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import canonical, cursor
from holdfast.core.cursor import Cursor
from holdfast.core.errors import UsageError

OFFSETS = st.sampled_from([None, UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-8))])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXTS, st.binary(max_size=12),
    st.decimals(allow_nan=False), st.uuids(), st.dates(), st.times(), st.timedeltas(), st.datetimes(timezones=OFFSETS),
)  # fmt: skip
KEYS = st.one_of(TEXTS, st.integers(), st.sampled_from(["$int", "$dict", "$"]))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.lists(inner, max_size=4).map(tuple), st.dictionaries(KEYS, inner, max_size=4),
        st.frozensets(st.integers() | TEXTS, max_size=4).map(set),
    ),
    max_leaves=12,
)  # fmt: skip


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types all through: 1 is not 1.0, and 1.0 is not Decimal(1)."""
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, dict):
        return all(
            same(a, b) for pair in zip(one.items(), other.items(), strict=True) for a, b in zip(*pair, strict=True)
        )
    if isinstance(one, (list, tuple)):
        return all(map(same, one, other))
    return str(one) == str(other)


@pytest.mark.promise("B9")
@given(VALUES)
def test_every_value_comes_back_as_it_was(value: Any) -> None:
    again = canonical.decode_typed(canonical.encode_typed(value))
    if isinstance(value, dict):
        again = {key: again[key] for key in value}
    assert again == value
    assert canonical.encode_typed(again) == canonical.encode_typed(value)


@pytest.mark.promise("B9")
@pytest.mark.parametrize(
    "value",
    [
        0, -1, 2**53, 2**63, -(2**63) - 1, 10**40, 0.0, -0.0, 1.5, float("inf"), "", "é", None, True,
        Decimal("1.50"), Decimal("-0"), Decimal("1E+3"), date(2026, 11, 16), time(1, 2, 3, 456789),
        datetime(2026, 4, 7, 1, 23, 45, 123456), datetime(2026, 4, 7, 1, 23, 45, 123456, UTC),  # noqa: DTZ001 - naive ones are cursors, too
        timedelta(days=-1, microseconds=1), UUID(int=7), b"\x00\xff", (), (1, "a"), [1, [2.0]], {1, 2},
        {"a": {"b": Decimal(1)}}, {"$decimal": "1"}, {1: "one"}, {"$": 1},
    ],
)  # fmt: skip
def test_a_value_keeps_its_type(value: Any) -> None:
    assert same(canonical.decode_typed(canonical.encode_typed(value)), value)


@pytest.mark.promise("B9")
@given(TEXTS, VALUES, VALUES)
def test_a_cursor_comes_back_as_it_was(kind: str, value: Any, tiebreaker: Any) -> None:
    at = Cursor(kind, value, tiebreaker)
    again = cursor.decode(cursor.encode(at))
    assert (again.kind, again.value, again.tiebreaker) == (kind, value, tiebreaker)
    assert cursor.encode(again) == cursor.encode(at)


def test_the_bytes_do_not_depend_on_the_order_in_which_a_set_or_a_dictionary_was_filled() -> None:
    assert canonical.encode_typed({"b": {3, 1, 2}, "a": 1}) == canonical.encode_typed({"a": 1, "b": {2, 3, 1}})


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (object(), "the total is of type object"),
        ({"a": [1, object()]}, r"the total\['a'\]\[1\] is of type object"),
        ("\ud800", "the total cannot be stored"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_place(value: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        canonical.encode_typed(value, "the total")


def test_a_value_without_an_end_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(UsageError, match="nested deeper than 64 levels"):
        canonical.encode_typed(value)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff", b'{"$wrong":1}', b'{"$int":"x"}', b'{"$date":7}', b'{"$int":"1","a":2}',
             b'{"$decimal":"1,5"}', b'{"$bytes":"*"}', b'{"$dict":[1]}'],
)  # fmt: skip
def test_bytes_that_are_no_value_are_refused(data: bytes) -> None:
    with pytest.raises(UsageError, match="the total cannot be read"):
        canonical.decode_typed(data, "the total")


@pytest.mark.parametrize("plain", [None, 7, {}, {"kind": 7, "value": 1}, {"kind": "row"}])
def test_what_has_no_kind_or_no_value_is_no_cursor(plain: Any) -> None:
    with pytest.raises(UsageError, match="is not a cursor"):
        cursor.decode(canonical.encode(plain))


def test_a_cursor_with_something_unknown_is_refused() -> None:
    with pytest.raises(UsageError, match="has page, which no cursor has"):
        cursor.from_plain({"kind": "row", "value": 1, "page": 2})


def test_subclasses_are_kept_as_what_they_are_made_of() -> None:
    assert canonical.decode_typed(canonical.encode_typed(OrderedDict(a=1))) == {"a": 1}
