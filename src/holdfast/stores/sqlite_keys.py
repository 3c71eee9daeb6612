"""The index of keys in a SQLite store: which key has which item.

The index is on the 56-bit numbers of `canonical.key_hash`, because a column of sorted numbers stays fast where a column
of texts does not. Two keys may have the same number: the second goes where `canonical.next_probe` leads, and whoever
looks it up follows. Nothing is ever taken out, so the way there stays whole.
"""

from collections.abc import Sequence

from holdfast.core.canonical import key_text, next_probe
from holdfast.core.model import BatchId, ItemNo, NewItem
from holdfast.stores.sqlite_file import SqliteFile
from holdfast.stores.sqlite_rows import ITEM_BITS
from holdfast.stores.statements import in_groups, load, write_rows

SQL = load("sqlite.sql")


def insert(db: SqliteFile, batch: BatchId, fresh: Sequence[NewItem], lo: int) -> None:
    """Index new items, which get the numbers from `lo` on."""
    rows = sorted((batch, item.key_number, lo + index) for index, item in enumerate(fresh))
    before = db.total_changes()
    write_rows(db.cursor, SQL["insert_keys"], rows)
    if db.total_changes() - before == len(rows):
        return
    for index, item in enumerate(fresh):
        _probe_in(db, batch, item.key_number, lo + index)


def known(db: SqliteFile, batch: BatchId, items: Sequence[NewItem]) -> dict[int, tuple[ItemNo, bool]]:
    """Which of the items the batch has: index -> (number, whether the payload is the same)."""
    found = {}
    for sql, numbers in in_groups(SQL["known_keys"], [item.key_number for item in items]):
        for number, n, key, payload in db.cursor(sql, (batch, *numbers)):
            found[number] = (n, key, payload)
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
    while True:
        rows = db.execute(f"{SQL['known_keys']} (?)", (batch, number))
        if not rows:
            return None
        _, n, stored, _ = rows[0]
        if key_text(stored) == key:
            return ItemNo(n)
        number = next_probe(number)


def _probe_in(db: SqliteFile, batch: BatchId, number: int, n: int) -> None:
    """Give the key a number of its own when its own is taken by another key."""
    while True:
        db.execute(f"{SQL['insert_keys']} (?, ?, ?)", (batch, number, n))
        taken_by = db.execute("SELECT n FROM keys WHERE batch = ? AND number = ?", (batch, number))[0][0]
        if taken_by == n:
            return
        number = next_probe(number)
