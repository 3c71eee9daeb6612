"""Batches that come from another store, as rows."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import msgspec

from holdfast.core.commitments import KeyIndex
from holdfast.core.course import stage_count
from holdfast.core.model import Batch, BatchId, Chunk, ChunkId, StoredItem, chain_of_batch
from holdfast.stores.base import BatchCopy, CopiedItem, copied_checkpoints, copied_items, note_mark, notes_in
from holdfast.stores.sqlite.keys import insert_keys, insert_keys_one_by_one
from holdfast.stores.sqlite.rows import (
    ITEM_BITS,
    Window,
    insert_chunk,
    insert_entries,
    load,
    new_numbers,
    place_row,
    row_of_checkpoint,
    row_of_output,
    write_rows,
)

if TYPE_CHECKING:
    from holdfast.stores.sqlite.file import SqliteFile

SQL = load("statements.sql")
GROUP = 1000
"""Rows that are written together, so that memory stays flat."""
T = TypeVar("T")


def install(db: "SqliteFile", copy: BatchCopy, index: KeyIndex) -> BatchId:
    """Write a batch with everything that belongs to it, under numbers of this store; return its number."""
    batch = insert_copied_batch(db, copy.batch)
    ids = insert_copied_chunks(db, batch, copy.chunks)
    for some in _in_groups(copied_items(copy)):
        _index_keys(db, batch, [revisions[0] for revisions, _ in some], index)
        insert_copied_items(db, batch, some, copy.chunks)
    for reached in _in_groups(copied_checkpoints(copy)):
        told = [row_of_checkpoint(batch << ITEM_BITS, at, at.at) for at in reached]
        write_rows(db.cursor, SQL["put_checkpoints"], told)
    chains = {chunk.number: int(ids[chunk.id]) for chunk in copy.chunks} | {0: chain_of_batch(batch)}
    for entries in _in_groups(copy.entries(), 16):
        insert_entries(db, [msgspec.structs.replace(entry, chain=chains[number]) for number, entry in entries])
        for kind, body in notes_in(entries):
            db.execute(SQL["note_once"], (batch, note_mark(index, kind, body)))
    return batch


def _index_keys(db: "SqliteFile", batch: BatchId, items: Sequence[StoredItem], index: KeyIndex) -> None:
    lo = items[0].n
    if not insert_keys(db, batch, index.numbers(item.key for item in items), lo):
        insert_keys_one_by_one(db, batch, list(items), lo, index)


def _in_groups(values: Iterable[T], size: int = GROUP) -> Iterator[list[T]]:
    """Yield values in lists, so that memory stays flat; an entry may have half a megabyte."""
    left = iter(values)
    while some := list(islice(left, size)):
        yield some


def insert_copied_batch(db: "SqliteFile", batch: Batch) -> BatchId:
    """Write a batch that comes from another store; return its number here."""
    row = (batch.uid, batch.name, batch.pipeline, batch.definition, stage_count(batch.definition), batch.opened_at,
           batch.head)  # fmt: skip
    id_ = BatchId(db.execute(SQL["insert_batch"], row)[0][0])
    db.execute(SQL["link_batch"], (batch.seq, batch.head, id_))
    db.execute(SQL["grow_batch"], (batch.admitted, batch.ingested_at, id_))
    after = (batch.definition, stage_count(batch.definition), batch.course, batch.ends_at, batch.sealed_at,
             batch.expected, batch.closed_at, batch.ingested_at, id_)  # fmt: skip
    db.execute(SQL["amend_batch"], after)
    return id_


def insert_copied_chunks(db: "SqliteFile", batch: BatchId, chunks: Sequence[Chunk]) -> dict[ChunkId, ChunkId]:
    """Write the chunks of such a batch; return their numbers here by those they had."""
    first, _ = new_numbers(db, batch)
    ids = {chunk.id: ChunkId(first + at) for at, chunk in enumerate(chunks)}
    for chunk in chunks:
        parent = None if chunk.parent is None else ids[chunk.parent]
        insert_chunk(db, msgspec.structs.replace(chunk, id=ids[chunk.id], batch=batch, parent=parent))
    return ids


def insert_copied_items(db: "SqliteFile", batch: BatchId, some: Sequence[CopiedItem], chunks: Sequence[Chunk]) -> None:
    """Write items of such a batch, with their revisions and outputs; a place only for those off the plain way."""
    base = batch << ITEM_BITS
    held = [chunk for chunk in chunks if not chunk.is_ended]
    starts = [chunk.lo for chunk in held]
    items, revisions, outputs, places = [], [], [], []
    for rows, made in some:
        first, window = rows[0], held[bisect_right(starts, rows[0].n) - 1]
        items.append((base + first.n, first.key, first.salt + first.payload, first.raw_salt or None, first.parent))
        revisions += [(base + r.n, r.revision, r.salt + r.payload, r.raw_salt or None) for r in rows[1:]]
        outputs += [row_of_output(base, output, output.salt) for output in made]
        last = max((output.stage for output in made), default=None)
        if Window(window.first, window.end).reached(last) != first.place:
            places.append((base + first.n, *place_row(first.place)))
    for name, told in (("insert_items", items), ("insert_revisions", revisions), ("put_outputs", outputs),
                       ("put_places", places)):  # fmt: skip
        write_rows(db.cursor, SQL[name], told)
