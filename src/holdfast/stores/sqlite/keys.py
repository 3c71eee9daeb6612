"""The index of keys in a SQLite store: which key has which item.

The index is on the 56-bit numbers of `canonical.key_hash`, because a column of sorted numbers stays fast where a column
of texts does not. Two keys may have the same number: the second goes where `canonical.probe` leads, and whoever
looks it up follows. Nothing is ever taken out, so the way there stays whole.
"""

from array import array
from collections.abc import Sequence
from itertools import count

import apsw

from holdfast.core.canonical import key_text, probe
from holdfast.core.model import BatchId, ItemNo, NewItem
from holdfast.stores.sqlite.file import SqliteFile
from holdfast.stores.sqlite.rows import ITEM_BITS
from holdfast.stores.sqlite.statements import load

SQL = load("statements.sql")


def insert(db: SqliteFile, batch: BatchId, items: Sequence[NewItem], lo: int) -> bool:
    """Index items, which get the numbers from `lo` on. False, and nothing is indexed, when a number is taken: by an
    item that is known, by another of the group, or by another key."""
    if not items:
        return True
    numbers = array("q", [item.key_number for item in items])
    try:
        db.execute(SQL["insert_keys"], (batch, lo - 1, apsw.carray(numbers)))
    except apsw.ConstraintError:
        return False
    return True


def insert_one_by_one(db: SqliteFile, batch: BatchId, fresh: Sequence[NewItem], lo: int) -> None:
    """Index items that are known to be new, where some share their number with another key."""
    for n, item in enumerate(fresh, start=lo):
        _probe_in(db, batch, item, n)


def known(db: SqliteFile, batch: BatchId, items: Sequence[NewItem]) -> dict[int, tuple[ItemNo, bool]]:
    """Which of the items the batch has: index -> (number, whether the payload is the same)."""
    numbers = array("q", [item.key_number for item in items])
    rows = db.cursor(SQL["known_keys"], (batch, apsw.carray(numbers))) if items else ()
    found = {number: (n, key, payload) for number, n, key, payload in rows}
    have: dict[int, tuple[ItemNo, bool]] = {}
    for index, item in enumerate(items) if found else ():
        at = found.get(item.key_number)
        if at is None:
            continue
        n, key, payload = at
        if key == item.key or key_text(key) == key_text(item.key):
            have[index] = (n, payload == item.payload)
        else:
            other = find(db, batch, key_text(item.key), item.key_number)
            if other is not None:
                row = db.execute("SELECT payload FROM items WHERE id = ?", ((batch << ITEM_BITS) + other,))
                have[index] = (other, row[0][0] == item.payload)
    return have


def find(db: SqliteFile, batch: BatchId, key: str, number: int) -> ItemNo | None:
    """The item with that key; `number` is where the search begins."""
    for turn in count(1):
        rows = db.execute(SQL["key_at"], (batch, number))
        if not rows:
            break
        n, stored = rows[0]
        if key_text(stored) == key:
            return ItemNo(n)
        number = probe(key, turn)
    return None


def _probe_in(db: SqliteFile, batch: BatchId, item: NewItem, n: int) -> None:
    """Give the key a number of its own when its own is taken by another key."""
    number = item.key_number
    for turn in count(1):
        db.execute("INSERT OR IGNORE INTO keys (batch, number, n) VALUES (?, ?, ?)", (batch, number, n))
        taken_by = db.execute("SELECT n FROM keys WHERE batch = ? AND number = ?", (batch, number))[0][0]
        if taken_by == n:
            return
        number = probe(key_text(item.key), turn)
