"""Values that come back from JSON as what they were: a Decimal stays a Decimal, a date a date.

What JSON knows is written as it is; everything else as an object with one key that begins with `$` and names its type.
So a stored cursor or accumulator can be read by a person, and survives the round trip exactly.
"""

import base64
import math
import uuid
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import msgspec

from holdfast.core import canonical
from holdfast.core.errors import UsageError

DEPTH = 64
"""Lists and dictionaries nested deeper than that are refused."""
_MARK = "$"
_WHOLE = range(-(1 << 63), 1 << 63)
"""Integers that every reader of JSON keeps as they are."""


def encode(value: Any, what: str = "the value") -> bytes:
    """Canonical JSON that `decode` turns into the same value. Raises UsageError, with the place in `what`."""
    try:
        return canonical.encode(to_plain(value, what))
    except (UnicodeError, msgspec.EncodeError) as error:
        raise UsageError(f"{what} cannot be stored: {error}") from None


def decode(data: bytes, what: str = "the value") -> Any:
    """The value of such bytes. Raises UsageError if they are none."""
    try:
        return from_plain(canonical.decode(data), what)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise UsageError(f"{what} cannot be read: {error}") from None


def to_plain(value: Any, what: str = "the value") -> Any:
    """The value in the words of JSON."""
    return _plain(value, what, 0)


def from_plain(plain: Any, what: str = "the value") -> Any:
    """The value that was put into the words of JSON."""
    try:
        return _value(plain)
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
        raise UsageError(f"{what} cannot be read: {error}") from None


def _plain(value: Any, where: str, depth: int) -> Any:
    kind = type(value)
    if value is None or kind is str or kind is bool:
        return value
    if kind is int:
        return value if value in _WHOLE else {"$int": str(value)}
    if kind is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    tag = _TAGS.get(kind)
    if tag is not None:
        return {tag: _WRITE[tag](value)}
    if depth >= DEPTH:
        raise UsageError(f"{where}: nested deeper than {DEPTH} levels")
    if isinstance(value, (list, tuple)):
        items = [_plain(each, f"{where}[{at}]", depth + 1) for at, each in enumerate(value)]
        return items if kind is list else {"$tuple": items}
    if isinstance(value, (set, frozenset)):
        return {"$set": sorted((_plain(each, where, depth + 1) for each in value), key=canonical.encode)}
    if isinstance(value, dict):
        return _plain_dict(value, where, depth)
    raise UsageError(
        f"{where} is of type {kind.__name__}, which cannot be stored: use numbers, texts, dates, Decimal, UUID, bytes, "
        "lists, tuples, sets and dictionaries of them, or name a model in the annotation"
    )


def _plain_dict(value: dict[Any, Any], where: str, depth: int) -> Any:
    pairs = [(key, _plain(each, f"{where}[{key!r}]", depth + 1)) for key, each in value.items()]
    if all(type(key) is str and not key.startswith(_MARK) for key, _ in pairs):
        return dict(pairs)
    return {"$dict": [[_plain(key, where, depth + 1), each] for key, each in pairs]}


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_value(each) for each in plain]
    if not isinstance(plain, dict):
        return plain
    tag = next(iter(plain), "")
    if not tag.startswith(_MARK):
        return {key: _value(each) for key, each in plain.items()}
    if len(plain) != 1 or tag not in _READ:
        raise ValueError(f"{tag!r} names no type that this version knows")
    return _READ[tag](plain[tag])


_WRITE: dict[str, Callable[[Any], Any]] = {
    "$decimal": str,
    "$datetime": datetime.isoformat,
    "$date": date.isoformat,
    "$time": time.isoformat,
    "$seconds": lambda span: [span.days, span.seconds, span.microseconds],
    "$uuid": str,
    "$bytes": lambda data: base64.b64encode(data).decode(),
}
_TAGS: dict[type, str] = {
    Decimal: "$decimal", datetime: "$datetime", date: "$date", time: "$time", timedelta: "$seconds",
    uuid.UUID: "$uuid", bytes: "$bytes",
}  # fmt: skip
_READ: dict[str, Callable[[Any], Any]] = {
    "$int": int,
    "$float": float,
    "$decimal": Decimal,
    "$datetime": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$time": time.fromisoformat,
    "$seconds": lambda parts: timedelta(*parts),
    "$uuid": uuid.UUID,
    "$bytes": lambda text: base64.b64decode(text, validate=True),
    "$tuple": lambda items: tuple(map(_value, items)),
    "$set": lambda items: set(map(_value, items)),
    "$dict": lambda pairs: {_value(key): _value(each) for key, each in pairs},
}
