"""The conversion of values to JSON for machines: by their fields, or by the names that their class lists."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import fields
from decimal import Decimal
from enum import Enum
from operator import attrgetter
from typing import Any, ClassVar


class Plain:
    """A value that can be converted to plain values. If a list of names is not enough, a class writes its own
    `as_dict`."""

    __slots__ = ()
    _tells: ClassVar[str] = "*"
    """The attributes to output, in order. `*` means all fields, `key=attribute` gives another name (dots reach into the
    attribute), and a trailing `?` omits an empty value. Any class may define it."""

    def as_dict(self) -> dict[str, Any]:
        """Return the value as plain values, for machines."""
        return dict(_told(self))


def plain(value: Any) -> Any:
    """Return a value as JSON types: money as text, enums by their value, bytes as text."""
    if value is None or (isinstance(value, str | int | float) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Plain):
        return value.as_dict()
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | Set):
        return [plain(each) for each in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return dict(_told(value)) if _names(value) else str(value)


def _told(value: Any) -> Iterator[tuple[str, Any]]:
    for word in getattr(value, "_tells", "*").split():
        if word == "*":
            yield from ((name, plain(getattr(value, name))) for name in _names(value))
            continue
        key, _, path = word.rstrip("?").partition("=")
        found = attrgetter(path or key)(value)
        if found or not word.endswith("?"):
            yield key, plain(found)


def _names(value: Any) -> tuple[str, ...]:
    if hasattr(value, "__dataclass_fields__"):
        return tuple(each.name for each in fields(value) if not each.name.startswith("_"))
    return getattr(value, "__struct_fields__", ())
