"""Cursors: how far a source has been read.

A cursor is a typed value with a tiebreaker, so that rows which share the value are told apart. Which values follow each
other is the source's to say; the kind keeps a cursor of one sort from being read as one of another.
"""

from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from holdfast.core import canonical, typed
from holdfast.core.errors import UsageError

DIGITS = 40
"""A number with more digits than these is written with an exponent."""


class Cursor(msgspec.Struct, frozen=True):
    """The last row that was consumed."""

    kind: str
    """What the value is: `row`, `byte`, `column+key`, `page`, `name` …"""
    value: Any = None
    tiebreaker: Any = None

    def __str__(self) -> str:
        tie = "" if self.tiebreaker is None else f", {_spoken(self.tiebreaker)}"
        return f"{self.kind} {_spoken(self.value)}{tie}"


def _spoken(value: Any) -> str:
    """A value as people read it: times and numbers as they are written, texts in quotes, keys by name."""
    if isinstance(value, dict):
        return ", ".join(f"{name}={_spoken(each)}" for name, each in value.items())
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return spoken_decimal(value)
    return str(value) if isinstance(value, UUID) else repr(value)


def spoken_decimal(value: Decimal) -> str:
    """A number without the zeros that a column of a database ends it with: -7, not -7.0000000000."""
    text = format(value, "f") if value.is_finite() and abs(value.adjusted()) < DIGITS else str(value)
    return text.rstrip("0").rstrip(".") if "." in text and "E" not in text else text


def encode(cursor: Cursor) -> bytes:
    """The cursor as canonical JSON that a person can read."""
    return canonical.encode(to_plain(cursor))


def decode(data: bytes, what: str = "the cursor") -> Cursor:
    """The cursor of such bytes. Raises UsageError if they are none."""
    try:
        plain = canonical.decode(data)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise UsageError(f"{what} cannot be read: {error}") from None
    return from_plain(plain, what)


def to_plain(cursor: Cursor) -> dict[str, Any]:
    return {
        "kind": cursor.kind,
        "value": typed.to_plain(cursor.value, "the cursor"),
        "tiebreaker": typed.to_plain(cursor.tiebreaker, "the tiebreaker"),
    }


def from_plain(plain: Any, what: str = "the cursor") -> Cursor:
    """The cursor of a dictionary with kind, value and tiebreaker."""
    if not isinstance(plain, dict) or not isinstance(plain.get("kind"), str) or "value" not in plain:
        raise UsageError(f"{what} is not a cursor: it needs a kind and a value")
    unknown = plain.keys() - {"kind", "value", "tiebreaker"}
    if unknown:
        raise UsageError(f"{what} has {', '.join(sorted(unknown))}, which no cursor has")
    return Cursor(
        plain["kind"], typed.from_plain(plain["value"], what), typed.from_plain(plain.get("tiebreaker"), what)
    )
