"""Admission: validates a raw item, freezes it and gives it a key, or makes it a dead letter at once."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from holdfast.core import canonical
from holdfast.core.limits import KEY_BYTES, MESSAGE_CHARS, PAYLOAD_BYTES, PREVIEW_BYTES
from holdfast.core.model import START, Admitted, ItemNo, Key, NewItem
from holdfast.core.states import refused

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_NS, LAST_NS = -62_135_596_800 * 10**9, 253_402_300_800 * 10**9
"""The range of times that have a date: from the year 1 to before the year 10000."""


def admit(key: object, payload: bytes, raw: bytes | None = None) -> NewItem:
    """Return a validated item. A key or payload beyond its limit makes it a dead letter whose reason names the fix.
    `raw`: the item as its source gave it, if validation changed it."""
    if type(key) is str and key.isascii() and 0 < len(key) <= KEY_BYTES and len(payload) <= PAYLOAD_BYTES:
        return NewItem(key, payload, START, raw)
    return _admit_with_care(key, payload, raw)


def _admit_with_care(key: object, payload: bytes, raw: bytes | None) -> NewItem:
    """Return the same for all other keys, with every check."""
    if type(key) is not str and type(key) is not int:
        if isinstance(key, bool) or key is None:
            return refuse(
                key, payload, "invalid", f"its key is {key!r}: name a field that identifies it, or use a function"
            )
        key = canonical.key_text(key)
    if _cannot_be_printed(key):
        return refuse(key, payload, "invalid", _TOO_LONG)
    text = canonical.key_text(key)
    if len(text) > KEY_BYTES // 4 and len(text.encode("utf-8", "surrogatepass")) > KEY_BYTES:
        return refuse(key, payload, "invalid", _TOO_LONG)
    if text != canonical.storable(text):
        return refuse(
            key,
            payload,
            "invalid",
            f"its key {canonical.storable(text)!r} is not valid text: name another field, or use a function",
        )
    if not text:
        return refuse(key, payload, "invalid", "its key is empty: name a field that identifies it, or use a function")
    if type(key) is int and not _is_storable_number(key):
        key = text
    if len(payload) > PAYLOAD_BYTES:
        message = (
            f"its payload has {len(payload):,} bytes, but at most {PAYLOAD_BYTES:,} are stored: put the data in a file "
            "and pass its path"
        )
        return refuse(key, payload, "too_large", message)
    return NewItem(key, payload, START, raw)


_TOO_LONG = f"its key has more than {KEY_BYTES} bytes: use a shorter field, or a function"


def refuse(key: object, raw: bytes, code: str, message: str) -> NewItem:
    """Return a dead letter at the boundary. Its content stays readable, cut if it is too large to store."""
    is_text = isinstance(key, str | int) and not isinstance(key, bool) and not _cannot_be_printed(key)
    text = canonical.key_text(key) if is_text else ""
    named = text.encode("utf-8", "surrogatepass")
    if not text or len(named) > KEY_BYTES or text != canonical.storable(text):
        text = "invalid:" + canonical.digest(raw + named).hex()[:32]
    kept = (
        raw
        if len(raw) <= PAYLOAD_BYTES
        else canonical.encode(
            {"cut_after": PREVIEW_BYTES, "bytes": len(raw), "begins": raw[:PREVIEW_BYTES].decode("utf-8", "replace")}
        )
    )
    place = refused(code=code, reason=canonical.storable(message[:MESSAGE_CHARS]))
    stored: Key = key if type(key) is int and _is_storable_number(key) else text
    return NewItem(stored, kept, place)


def _is_storable_number(key: int) -> bool:
    return -(1 << 63) <= key < 1 << 63


def _cannot_be_printed(key: object) -> bool:
    """Return whether Python would refuse to print the number: it does for several thousand digits, which is too long
    anyway."""
    return isinstance(key, int) and key.bit_length() > 8 * KEY_BYTES


Known = Mapping[int, tuple[ItemNo, bool]]
"""Index in a group -> (number of the stored item, whether its payload is the same)."""


def sort_out(items: Sequence[NewItem], known: Known, lo: int) -> tuple[list[NewItem], Admitted]:
    """Return the new items of a group, and the answer about the others; the first new one gets the number `lo`."""
    if not known and len({canonical.key_text(item.key) for item in items}) == len(items):
        return list(items), all_new(items, lo)
    fresh: list[NewItem] = []
    first: dict[str, int] = {}
    changed: list[tuple[int, ItemNo]] = []
    for index, item in enumerate(items):
        at = known.get(index)
        text = canonical.key_text(item.key)
        if at is not None:
            number, same = at
        elif text in first:
            number, same = ItemNo(lo + first[text]), fresh[first[text]].payload == item.payload
        else:
            first[text] = len(fresh)
            fresh.append(item)
            continue
        if not same:
            changed.append((index, number))
    known_count = len(items) - len(fresh)
    dead = _dead(fresh, lo)
    return fresh, Admitted(added=len(fresh), lo=ItemNo(lo), known=known_count, dead=dead, changed=tuple(changed))


def all_new(items: Sequence[NewItem], lo: int) -> Admitted:
    """Return the answer about a group in which every item is new."""
    return Admitted(added=len(items), lo=ItemNo(lo), dead=_dead(items, lo))


def _dead(fresh: Sequence[NewItem], lo: int) -> tuple[ItemNo, ...]:
    return tuple([ItemNo(n) for n, item in enumerate(fresh, start=lo) if item.place is not START])


def difference(before: bytes, after: bytes) -> str:
    """Describe the difference between two payloads, field by field if they have fields."""
    try:
        old, new = canonical.decode(before), canonical.decode(after)
    except (msgspec.DecodeError, RecursionError):
        return f"{_short(before)} became {_short(after)}"
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return f"{_short(old)} became {_short(new)}"
    lines = [
        f"{name.removesuffix('_ns')}: {_file_fact(old, name)} became {_file_fact(new, name)}"
        if _is_file(old) and _is_file(new)
        else f"{name}: {_shown(old, name)} became {_shown(new, name)}"
        for name in _differing(old, new)
    ]
    return "; ".join(lines[:5]) + (f"; and {len(lines) - 5} more" if len(lines) > 5 else "")


def changed_fields(before: bytes, after: bytes) -> list[str]:
    """Return the names of the fields that differ between two payloads, for an entry that must not contain their
    values."""
    try:
        old, new = canonical.decode(before), canonical.decode(after)
    except (msgspec.DecodeError, RecursionError):
        return []
    return _differing(old, new) if isinstance(old, dict) and isinstance(new, dict) else []


def _differing(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return [name for name in sorted({*old, *new}) if _written(old, name) != _written(new, name)]


def _written(fields: dict[str, Any], name: str) -> bytes:
    """Return a value as stored: 1, 1.0 and true are equal in Python."""
    return canonical.encode(fields[name]) if name in fields else b""


def _shown(fields: dict[str, Any], name: str) -> str:
    return _short(fields[name]) if name in fields else "nothing"


def _is_file(fields: dict[str, Any]) -> bool:
    """Return whether a payload describes a file in a folder, not a similar payload of the user."""
    if {*fields} != {"path", "name", "size", "modified_ns"}:
        return False
    size, modified_ns = fields["size"], fields["modified_ns"]
    return type(size) is int and type(modified_ns) is int and FIRST_NS <= modified_ns < LAST_NS


def _file_fact(fields: dict[str, Any], name: str) -> str:
    """Return a fact about a file in readable form."""
    if name == "size":
        return "1 byte" if fields[name] == 1 else f"{fields[name]:,} bytes"
    if name != "modified_ns":
        return _shown(fields, name)
    at = EPOCH + timedelta(microseconds=fields[name] // 1000)
    return at.isoformat(" ", "milliseconds").replace("+00:00", "Z")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
