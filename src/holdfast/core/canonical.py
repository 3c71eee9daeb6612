"""Canonical bytes, fingerprints, keys, typed values and money."""

import base64
import hashlib
import math
import uuid
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from typing import Any

import msgspec

from holdfast.core.errors import UsageError
from holdfast.core.limits import MONEY_DIGITS, MONEY_USD

_encoder = msgspec.json.Encoder(order="sorted", decimal_format="string", uuid_format="canonical")
_decoder = msgspec.json.Decoder()

encode: Callable[[Any], bytes] = _encoder.encode
"""The canonical JSON bytes of a plain value: sorted keys, no whitespace."""

decode: Callable[[bytes], Any] = _decoder.decode
"""The plain value of JSON bytes."""


def digest(data: bytes) -> bytes:
    """Return the plain digest of bytes, for names and comparisons. The journal keeps commitments instead."""
    return hashlib.sha256(data).digest()


def fingerprint(value: Any) -> str:
    """Return a short, stable name for a plain value: the same value gives the same text."""
    return hashlib.sha256(encode(value)).hexdigest()[:32]


def key_text(key: object) -> str:
    """Return the text that identifies an item: 7 and "7" are one key."""
    return key if isinstance(key, str) else str(key)


def storable(text: str) -> str:
    """Return the text without characters that no store can hold: lone surrogates, as in file names, are escaped."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


DEPTH = 64
"""Lists and dictionaries nested deeper than this are refused."""
_MARK = "$"
_WHOLE = range(-(1 << 63), 1 << 63)
"""Integers that every JSON reader preserves."""


def encode_typed(value: Any, what: str = "the value") -> bytes:
    """Return canonical JSON that `decode_typed` turns back into the same value. Raise UsageError, naming the place in
    `what`."""
    try:
        return encode(to_plain(value, what))
    except (UnicodeError, msgspec.EncodeError) as error:
        raise UsageError(f"{what} cannot be stored: {error}") from None


def decode_typed(data: bytes, what: str = "the value") -> Any:
    """Return the value from such bytes. Raise UsageError if they are not valid."""
    try:
        return from_plain(decode(data), what)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise UsageError(f"{what} cannot be read: {error}") from None


def to_plain(value: Any, what: str = "the value") -> Any:
    """Return the value as JSON types."""
    return _plain(value, what, 0)


def from_plain(plain: Any, what: str = "the value") -> Any:
    """Return the value that was converted to JSON types."""
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
        return {"$set": sorted((_plain(each, where, depth + 1) for each in value), key=encode)}
    if isinstance(value, dict):
        return _plain_dict(value, where, depth)
    raise UsageError(
        f"{where} is of type {kind.__name__}, which cannot be stored: use numbers, text, dates, Decimal, UUID, bytes, "
        "lists, tuples, sets and dictionaries of these, or name a model in the annotation"
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
        raise ValueError(f"{tag!r} is not a type that this version knows")
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


UNIT = 10**MONEY_DIGITS
_EXACT = Context(prec=60, rounding=ROUND_HALF_EVEN)
"""Our own context: that of the surrounding program may round at six digits."""


def to_units(usd: Decimal | float | int | str) -> int:
    """Return dollars as units. A float means what it prints (0.1 is ten cents); finer amounts are rounded to a unit."""
    try:
        amount = Decimal(str(usd))
    except InvalidOperation:
        raise UsageError(f"usd={usd!r} is not an amount of money") from None
    if not amount.is_finite() or amount < 0:
        raise UsageError(f"usd={usd!r}: an amount of money is a finite number, 0 or more")
    if amount > MONEY_USD:
        raise UsageError(f"usd={usd!r}: an amount of money is at most {MONEY_USD:,} dollars")
    return int(amount.scaleb(MONEY_DIGITS, _EXACT).to_integral_value(context=_EXACT))


def to_usd(units: int) -> Decimal:
    """Return units as dollars, without trailing zeros beyond the cents."""
    amount = Decimal(units).scaleb(-MONEY_DIGITS, _EXACT)
    cents = amount.quantize(Decimal("0.01"), context=_EXACT)
    return cents if cents == amount else amount.normalize(_EXACT)
