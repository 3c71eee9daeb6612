"""The part of a migration that SQL cannot do: random ids, keyed numbers, and linked entries.

Runs inside the transaction of the migration that it belongs to, so a file is upgraded wholly or not at all.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

import apsw

from holdfast.core import journal, record
from holdfast.core.commitments import INDEX_KEY_BYTES, UID_BYTES, Draw, KeyIndex
from holdfast.core.model import Batch, BatchId

ITEM_BITS = 34
GROUP = 20_000
INDEX_KEY = "index_key"
FORMATTED = "formatted"


def to_second_format(db: apsw.Connection, draw: Draw) -> Iterator[None]:
    """Complete migration 7; yields after each change."""
    key = draw(INDEX_KEY_BYTES)
    db.execute("INSERT INTO meta (name, value) VALUES (?, ?)", (INDEX_KEY, key))
    yield
    yield from _index_keys(db, KeyIndex(key))
    for (number,) in _rows(db, "SELECT id FROM batches ORDER BY id"):
        _begin_format(db, BatchId(number), draw)
        yield


def _index_keys(db: apsw.Connection, index: KeyIndex) -> Iterator[None]:
    """Write the index of keys again, under numbers that cannot be guessed."""
    db.execute("DELETE FROM keys")
    last = -1
    while rows := _rows(db, "SELECT id, key FROM items WHERE id > ? ORDER BY id LIMIT ?", last, GROUP):
        last = rows[-1][0]
        found = zip(rows, index.numbers(key for _, key in rows), strict=True)
        for number, id_, key in sorted((number, id_, str(key)) for (id_, key), number in found):
            batch, n = id_ >> ITEM_BITS, id_ & ((1 << ITEM_BITS) - 1)
            for turn in count(1):
                db.execute("INSERT OR IGNORE INTO keys (batch, number, n) VALUES (?, ?, ?)", (batch, number, n))
                if db.changes():
                    break
                number = index.probe(key, turn)  # noqa: PLW2901
        yield


def _begin_format(db: apsw.Connection, number: BatchId, draw: Draw) -> None:
    """Give a batch its uid, and add the entry at which format 2 begins."""
    chunks = _rows(db, "SELECT id, number FROM chunks WHERE batch = ? ORDER BY id", number)
    seq, head = _rows(db, "SELECT seq, head FROM batches WHERE id = ?", number)[0]
    batch = Batch(id=number, uid=draw(UID_BYTES), name="", pipeline="", definition=b"", opened_at=0.0,
                  admitted=0, seq=seq, head=head)  # fmt: skip
    body = journal.Formatted(batch=number, chunks=chunks)
    entry = record.link_batch(batch, FORMATTED, body, "", time.time(), draw)
    db.execute("INSERT INTO journal (chain, seq, head, body, hash) VALUES (?, ?, ?, ?, ?)",
               (entry.chain, entry.seq, entry.head, entry.body, entry.hash))  # fmt: skip
    db.execute("UPDATE batches SET uid = ?, seq = ?, head = ? WHERE id = ?",
               (batch.uid, entry.seq, entry.hash, number))  # fmt: skip


def _rows(db: apsw.Connection, sql: str, *bindings: int) -> list[Any]:
    return db.execute(sql, bindings).fetchall()


COMPLETED_BY: Mapping[int, Callable[[apsw.Connection, Draw], Iterator[None]]] = {7: to_second_format}
"""By the number of the migration that they complete."""
