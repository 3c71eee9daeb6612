"""The index of keys.

The index of keys uses the 63-bit numbers of `commitments.KeyIndex`, because an index of sorted numbers stays fast and
an index of text does not. Two keys may have the same number: the second is stored where `KeyIndex.probe` leads, and a
lookup follows the same path. Nothing is ever removed, so the path stays intact.
"""

from array import array
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

import apsw

from holdfast.core.canonical import key_text
from holdfast.core.commitments import SALT_BYTES, KeyIndex
from holdfast.core.model import BatchId, ItemNo, NewItem, StoredItem
from holdfast.stores.sqlite.rows import load

if TYPE_CHECKING:
    from holdfast.stores.sqlite.file import SqliteFile

SQL = load("statements.sql")


def insert_keys(db: "SqliteFile", batch: BatchId, numbers: "array[int]", lo: int) -> bool:
    """Index items by the numbers of their keys, numbered from `lo`. Return False and index nothing if a key number is
    taken: by a known item, by another of the group, or by another key."""
    if not numbers:
        return True
    try:
        db.execute(SQL["insert_keys"], (batch, lo - 1, apsw.carray(numbers)))
    except apsw.ConstraintError:
        return False
    return True


def insert_keys_one_by_one(
    db: "SqliteFile", batch: BatchId, fresh: Sequence[NewItem | StoredItem], lo: int, index: KeyIndex
) -> None:
    """Index items that are known to be new, if some share their number with another key."""
    numbers = index.numbers(item.key for item in fresh)
    for n, (item, number) in enumerate(zip(fresh, numbers, strict=True), start=lo):
        _probe_in(db, batch, item, number, n, index)


def known_items(
    db: "SqliteFile", batch: BatchId, items: Sequence[NewItem], numbers: "array[int]", index: KeyIndex
) -> dict[int, tuple[ItemNo, bool]]:
    """Return which of the items the batch has: index -> (number, whether the payload is the same)."""
    rows = db.cursor(SQL["known_keys"], (batch, apsw.carray(numbers))) if items else ()
    found = {number: (n, key, payload) for number, n, key, payload in rows}
    have: dict[int, tuple[ItemNo, bool]] = {}
    for at, item in enumerate(items) if found else ():
        stored = found.get(numbers[at])
        if stored is None:
            continue
        n, key, payload = stored
        if key != item.key and key_text(key) != key_text(item.key):
            other = find_key(db, batch, key_text(item.key), numbers[at], index)
            if other is None:
                continue
            n, payload = other
        have[at] = (n, payload is not None and payload[SALT_BYTES:] == item.payload)
    return have


def find_key(
    db: "SqliteFile", batch: BatchId, key: str, number: int, index: KeyIndex
) -> tuple[ItemNo, bytes | None] | None:
    """Return the item with that key, and its payload; the search begins at `number`."""
    for turn in count(1):
        rows = db.execute(SQL["known_keys"], (batch, apsw.carray(array("q", [number]))))
        if not rows:
            break
        _, n, stored, payload = rows[0]
        if key_text(stored) == key:
            return ItemNo(n), payload
        number = index.probe(key, turn)
    return None


def _probe_in(
    db: "SqliteFile", batch: BatchId, item: NewItem | StoredItem, number: int, n: int, index: KeyIndex
) -> None:
    """Index a key; if its number is taken by another key, probe for a free one."""
    for turn in count(1):
        db.execute("INSERT OR IGNORE INTO keys (batch, number, n) VALUES (?, ?, ?)", (batch, number, n))
        taken_by = db.execute("SELECT n FROM keys WHERE batch = ? AND number = ?", (batch, number))[0][0]
        if taken_by == n:
            return
        number = index.probe(key_text(item.key), turn)
