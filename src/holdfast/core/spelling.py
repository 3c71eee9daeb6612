"""Cursors as people spell them: text to a value of a type that is known, never a guess; and back."""

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from holdfast.core.cursor import Cursor, spoken_decimal
from holdfast.core.errors import UsageError

_FINER = re.compile(r"\.\d{6}\d*[1-9]")
"""More digits of a second than a datetime holds."""


def _integer(text: str) -> int:
    if not re.fullmatch(r"[+-]?\d+", text):
        raise ValueError
    return int(text)


def _timestamp(text: str) -> datetime:
    if _FINER.search(text):
        raise UsageError(f"{text!r} is finer than a microsecond, and would be cut: rows would be repeated or skipped")
    if "T" not in text and " " not in text:
        raise ValueError
    return datetime.fromisoformat(text)


def _decimal(text: str) -> Decimal:
    found = Decimal(text)
    if not found.is_finite():
        raise ValueError
    return found


TYPES: Mapping[str, tuple[type, Callable[[str], Any]]] = {
    "integer": (int, _integer),
    "decimal": (Decimal, _decimal),
    "float": (float, float),
    "text": (str, str),
    "timestamp": (datetime, _timestamp),
    "date": (date, date.fromisoformat),
    "uuid": (uuid.UUID, uuid.UUID),
}
"""What a cursor can be spelled as: its name, its type, and how text becomes one."""


def value_of(text: str, name: str, what: str) -> Any:
    """The value that a text spells, as the type of that name."""
    if name not in TYPES:
        raise UsageError(f"{what}: there is no type {name!r}: there is {', '.join(TYPES)}")
    try:
        return TYPES[name][1](text)
    except (ValueError, InvalidOperation):
        raise UsageError(f"{what}: {text!r} is no {name}") from None


def type_name(value: Any) -> str | None:
    """The name of a value's type; None for one that cannot be spelled."""
    return next((name for name, (kind, _) in TYPES.items() if type(value) is kind), None)


def cursor_of(text: str, keys: Sequence[str], like: Cursor, said: str | None) -> Cursor:
    """The cursor that `--to-cursor V --key PK` spells; its type is that of a cursor of the same source."""
    known = type_name(like.value)
    if said is not None and known is not None and said != known:
        raise UsageError(f"--type {said}: cursors of this source are of type {known}, such as {like}")
    name = said if known is None else known
    if name is None:
        raise UsageError(f"--to-cursor {text}: pass --type, the stored cursor {like} does not tell its type")
    return Cursor(like.kind, value_of(text, name, "--to-cursor"), _tiebreaker(keys, like))


def _tiebreaker(keys: Sequence[str], like: Cursor) -> Any:
    """The key of the row, in the shape that the source has: alone, several in order, or by name."""
    tie = like.tiebreaker
    if tie is None:
        if keys:
            raise UsageError(f"--key {keys[0]}: cursors of this source have no key, such as {like}")
        return None
    if not keys:
        raise UsageError(f"--to-cursor alone could skip rows of the same value: pass --key, as in {like}")
    if isinstance(tie, dict):
        alone = len(tie) == len(keys) == 1 and "=" not in keys[0]
        pairs = {next(iter(tie)): keys[0]} if alone else dict(each.partition("=")[::2] for each in keys)
        if pairs.keys() != tie.keys():
            raise UsageError(f"--key: pass {' '.join(f'--key {name}=…' for name in tie)}, as in {like}")
        return {name: _alike(pairs[name], tie[name]) for name in tie}
    if isinstance(tie, list | tuple):
        if len(keys) != len(tie):
            raise UsageError(f"--key: this source has {len(tie)} of them, as in {like}")
        return type(tie)(_alike(text, each) for text, each in zip(keys, tie, strict=True))
    if len(keys) != 1:
        raise UsageError(f"--key: this source has one, as in {like}")
    return _alike(keys[0], tie)


def _alike(text: str, like: Any) -> Any:
    name = type_name(like)
    if name is None:
        raise UsageError(f"--key {text}: a key such as {like!r} cannot be typed; use --to-file")
    return value_of(text, name, "--key")


def in_words(value: Any) -> str:
    """A value as people read it: what JSON has as JSON, and a number, a moment or bytes as they are written."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{in_words(name)}: {in_words(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        return "[" + ", ".join(map(in_words, value)) + "]"
    if isinstance(value, Decimal):
        return spoken_decimal(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if value is None:
        return "nothing"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | int | float) else str(value)
