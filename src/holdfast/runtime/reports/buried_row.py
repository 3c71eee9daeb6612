"""A row that was buried, as people read it: what stood in it, and where it stood."""

from typing import Any

import msgspec

from holdfast.core import canonical, cursor, typed
from holdfast.core.errors import HoldfastError
from holdfast.core.model import StoredItem
from holdfast.runtime.scans.burial import is_row


def fields(item: StoredItem) -> list[tuple[str, str]]:
    """The row field by field, then its place in the source; nothing where the item is no row."""
    if not is_row(item.key):
        return []
    try:
        plain = canonical.decode(item.payload)
        return [*_row(plain), ("stood", _place(plain))]
    except (HoldfastError, msgspec.DecodeError, KeyError, TypeError):
        return []  # damaged, or cut: it is shown as it is


def _row(plain: dict[str, Any]) -> list[tuple[str, str]]:
    if "row" not in plain:
        return [("row", "too large to be kept: the source has it")]
    row = typed.from_plain(plain["row"], "the row")
    if not isinstance(row, dict) or not row:
        return [("row", _shown(row))]
    wide = max(len(str(name)) for name in row)
    return [("row", "\n".join(f"{name!s:<{wide}}  {_shown(value)}" for name, value in row.items()))]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and value and value.isprintable() else repr(value)


def _place(plain: dict[str, Any]) -> str:
    after = plain["after"]
    begins = "at the start" if after is None else f"after {cursor.from_plain(after)}"
    return f"{begins}, up to {cursor.from_plain(plain['until'])}"
