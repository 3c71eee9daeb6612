"""Batches that come from another store, written into a bucket.

The document of the batch is created first, so that everything below its number belongs to this batch alone. Objects and
chunks are written in any order, then the whole document, then the name in the root. Nobody sees any of it before the
root names it, and an attempt that ends earlier leaves a number that is never used.

Chains are written as they are. Outputs, later payloads and large accumulators are not stored with the entries that
brought them, but with the chunk that has their items now, in objects of a limited size: references to them have the
mark `COPIED`, so they are read without searching a chain. Items whose first chunk is the same form groups.
"""

import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from holdfast.core.errors import Refused
from holdfast.core.journal import GENESIS, Ingested, pack
from holdfast.core.limits import BUCKET_CHUNK_ITEMS, BUCKET_ITEMS
from holdfast.core.model import (
    Batch,
    BatchId,
    Checkpoint,
    Chunk,
    ChunkId,
    Entry,
    ItemState,
    NewItem,
    Output,
    StoredItem,
    chain_of_batch,
)
from holdfast.core.record import Admission
from holdfast.stores import faults
from holdfast.stores.base import BatchCopy, CopiedItem, copied_checkpoints, copied_items, notes_in
from holdfast.stores.bucket import names
from holdfast.stores.bucket.batches import TURNS, BatchDocuments, mark_of
from holdfast.stores.bucket.cache import ChunkCache
from holdfast.stores.bucket.cas import DocumentStore, Raced, StoreIndex, patient
from holdfast.stores.bucket.chunks import LARGE_ACC
from holdfast.stores.bucket.documents import (
    PAYLOAD,
    REF,
    BatchDocument,
    ChunkDocument,
    Data,
    ItemGroup,
    Payload,
    Renewal,
    Root,
    StoredReach,
    copied_ref,
    row_of,
)
from holdfast.stores.bucket.items import PART_BYTES, Chains, Items

replace = msgspec.structs.replace
WRITES_AT_A_TIME = 64
BYTES_AT_A_TIME = 32 * 1024 * 1024
"""Objects that wait to be written together."""
CHUNKS = 1 << names.CHUNK_BITS


def check_fits(copy: BatchCopy, url: str) -> None:
    """Refuse a batch that is too large for a bucket."""
    name, items = copy.batch.name, copy.batch.admitted
    if items > BUCKET_ITEMS:
        raise Refused(
            f"batch {name!r} has {items:,} items, but a batch on a bucket has at most {BUCKET_ITEMS:,}: copy it into a "
            f"database; {url} was not changed"
        )
    if any(chunk.number >= CHUNKS for chunk in copy.chunks):
        raise Refused(
            f"batch {name!r} has more chunks than the {CHUNKS:,} of a batch on a bucket: copy it into a database; "
            f"{url} was not changed"
        )


class Copies:
    """Writes batches of other stores."""

    def __init__(
        self, documents: DocumentStore, batches: BatchDocuments, chains: Chains, items: Items, chunks: ChunkCache,
        index: StoreIndex,
    ) -> None:  # fmt: skip
        self._documents, self._batches, self._chains = documents, batches, chains
        self._items, self._chunks, self._index = items, chunks, index

    def install(self, copy: BatchCopy, check: Callable[[], None]) -> Batch:
        """Write a batch; `check` raises if it cannot be taken over any more."""
        self._index()
        batch = self._reserved(copy.batch)
        writes = Writes(lambda calls: self._chunks.each(self._write, calls))
        noted = self._write_entries(copy, batch.id, writes)
        parts = CopiedParts(copy, batch, self._items, self._index)
        for document in parts.chunks(writes):
            self._write_chunk(document, writes)
        writes.flush()
        self._complete(parts.document(noted))
        faults.reach("open_batch.written")
        self._list(batch, check)
        faults.reach("open_batch.after")
        return batch

    @patient
    def _reserved(self, batch: Batch) -> Batch:
        """Return the batch under a number of its own."""
        root = self._documents.need(Root, names.ROOT).document
        return self._batches.reserve(root.next, lambda number: replace(batch, id=number)).document.batch

    @patient
    def _write(self, call: Callable[[], object]) -> None:
        call()

    def _write_entries(self, copy: BatchCopy, batch: BatchId, writes: "Writes") -> list[bytes]:
        """Write all chains; return the marks of the notes among them. Nothing reads the hash before the first entry of
        a chunk in its name, so it is left out there."""
        heads: dict[int, bytes] = {}
        noted: dict[bytes, None] = {}
        for number, entry in copy.entries():
            chain = chain_of_batch(batch) if number == 0 else int(names.chunk_id(batch, number))
            self._write_entry(batch, number, heads.get(number, GENESIS), replace(entry, chain=chain), writes)
            heads[number] = entry.hash
            noted |= {mark_of(self._index(), kind, body): None for kind, body in notes_in([(number, entry)])}
        return list(noted)

    def _write_entry(self, batch: BatchId, number: int, before: bytes, entry: Entry, writes: "Writes") -> None:
        size = len(entry.body) + sum(len(text.frame or b"") for text in entry.texts)
        writes.add(lambda: self._chains.write(batch, number, before, entry), size)

    def _write_chunk(self, document: ChunkDocument, writes: "Writes") -> None:
        """Create a chunk. If it is there, an earlier send of the same content landed."""
        name = names.chunk(document.chunk.batch, document.chunk.number)
        size = sum(map(len, document.outputs.values()))
        writes.add(lambda: self._documents.create(name, document), size)

    @patient
    def _complete(self, document: BatchDocument) -> None:
        self._documents.swap(self._documents.need(BatchDocument, names.batch(document.batch.id)), document)

    @patient
    def _list(self, batch: Batch, check: Callable[[], None]) -> None:
        """Add the name to the root, which puts the batch into effect."""
        named = (int(batch.id), batch.name)
        for _ in range(TURNS):
            root = self._documents.need(Root, names.ROOT)
            if named in root.document.names:
                return
            check()
            later = max(root.document.next, batch.id + 1)
            try:
                self._documents.swap(
                    root,
                    replace(root.document, names=[*root.document.names, named], next=later),
                    lambda found: named in found.names,
                )
            except Raced:
                continue
            return
        raise self._batches.crowded(batch.name)


class Writes:
    """Writes that are sent together, several at a time."""

    def __init__(self, each: Callable[[Sequence[Callable[[], object]]], object]) -> None:
        self._each = each
        self._calls: list[Callable[[], object]] = []
        self._bytes = 0

    def add(self, call: Callable[[], object], size: int) -> None:
        self._calls.append(call)
        self._bytes += size
        if len(self._calls) >= WRITES_AT_A_TIME or self._bytes > BYTES_AT_A_TIME:
            self.flush()

    def flush(self) -> None:
        calls, self._calls, self._bytes = self._calls, [], 0
        self._each(calls)


class CopiedParts:
    """The documents of a copied batch, made while its items are read once, in order."""

    def __init__(self, copy: BatchCopy, batch: Batch, items: Items, index: StoreIndex) -> None:
        self._copy, self._batch, self._items, self._index = copy, batch, items, index
        numbers: Mapping[ChunkId, int] = {chunk.id: chunk.number for chunk in copy.chunks}
        self._parents = {chunk.number: numbers[chunk.parent] for chunk in copy.chunks if chunk.parent is not None}
        self._children: defaultdict[int, list[int]] = defaultdict(list)
        for child, parent in sorted(self._parents.items()):
            self._children[parent].append(child)
        self._seal = "" if batch.sealed_at is None else secrets.token_hex(8)
        self._groups: dict[int, ItemGroup] = {}
        self._renewed = False

    def document(self, noted: list[bytes]) -> BatchDocument:
        """Return the batch, once everything else was written."""
        groups = [group for _, group in sorted(self._groups.items())]
        return BatchDocument(batch=self._batch, groups=groups, seal=self._seal, renewed=self._renewed, noted=noted)

    def chunks(self, writes: "Writes") -> Iterator[ChunkDocument]:
        """Yield every chunk; groups of items and the content of chunks are written meanwhile."""
        rows, reached = copied_items(self._copy), Ahead(copied_checkpoints(self._copy))
        group, root = list[StoredItem](), 0
        for chunk in self._copy.chunks:
            content = ChunkContent(chunk, self._batch.id, self._items, self._index, writes)
            for row in islice(rows, chunk.size):
                content.add(row)
                if len(group) == BUCKET_CHUNK_ITEMS or root != self._root(chunk.number):
                    self._write_group(group, root, writes)
                    group, root = [], self._root(chunk.number)
                group.append(row.revisions[0])
            for at in reached.below(chunk.hi):
                content.reach(at)
            self._renewed = self._renewed or content.is_renewed
            yield self._linked(content.finish())
        self._write_group(group, root, writes)

    def _root(self, number: int) -> int:
        """Return the number of the first chunk of the items of a chunk."""
        while number in self._parents:
            number = self._parents[number]
        return number

    def _linked(self, document: ChunkDocument) -> ChunkDocument:
        """Return a chunk with the numbers that it and its relatives have here."""
        chunk, batch = document.chunk, self._batch.id
        parent = self._parents.get(chunk.number)
        here = replace(
            chunk, id=names.chunk_id(batch, chunk.number), batch=batch,
            parent=None if parent is None else names.chunk_id(batch, parent),
        )  # fmt: skip
        return replace(document, chunk=here, seal=self._seal, children=self._children[chunk.number])

    def _write_group(self, rows: Sequence[StoredItem], root: int, writes: "Writes") -> None:
        """Write items that have the same first chunk."""
        if not rows:
            return
        lo, hi = rows[0].n, rows[-1].n + 1
        fresh = [NewItem(row.key, row.payload, parent=row.parent) for row in rows]
        admission = Admission(
            Ingested(lo=lo, hi=hi), [row.salt for row in rows], [row.raw_salt or None for row in rows]
        )

        def write() -> None:
            self._groups[lo] = ItemGroup(lo, hi, root, self._items.write(self._batch.id, fresh, admission))

        writes.add(write, sum(len(row.payload) for row in rows))


class Ahead:
    """Checkpoints in order, of which those of one chunk after the other are taken."""

    def __init__(self, checkpoints: Iterator[Checkpoint]) -> None:
        self._left, self._next = checkpoints, next(checkpoints, None)

    def below(self, hi: int) -> Iterator[Checkpoint]:
        """Yield those of the items before a number."""
        while (at := self._next) is not None and at.n < hi:
            yield at
            self._next = next(self._left, None)


class ChunkContent:
    """The document of one chunk while its items are read; content that is too large for it is written in parts."""

    def __init__(self, chunk: Chunk, batch: BatchId, items: Items, index: StoreIndex, writes: Writes) -> None:
        self._chunk, self._batch, self._items, self._index, self._writes = chunk, batch, items, index, writes
        self._columns: dict[int, list[int]] = {}
        self._places: dict[int, ItemState] = {}
        self._renewed: dict[int, list[Renewal]] = {}
        self._reached: dict[int, StoredReach] = {}
        self._open: dict[int, Data] = {}
        """Parts that are not written yet, by their numbers. Each has at most one payload of an item."""
        self._parts = self._bytes = 0

    @property
    def is_renewed(self) -> bool:
        return bool(self._renewed)

    def add(self, row: CopiedItem) -> None:
        first, *later = row.revisions
        self._places[first.n] = first.place
        for output in row.outputs:
            self._add_output(output)
        for revision in later:
            ref, part = self._part(len(revision.payload), revision.n)
            part.renewed[revision.n] = Payload(revision.salt, revision.payload, revision.raw_salt)
            mark = self._index().mark(PAYLOAD, revision.payload)
            self._renewed.setdefault(revision.n, []).append(Renewal(ref, mark, revision.revision))

    def _add_output(self, output: Output) -> None:
        ref, part = self._part(len(output.data or output.file or b""))
        part.outputs[output.n, output.stage] = output
        column = self._columns.setdefault(output.stage, [0] * self._chunk.size)
        column[output.n - self._chunk.lo] = ref

    def reach(self, at: Checkpoint) -> None:
        frame, ref = None if at.acc is None else at.salt + at.acc, 0
        if at.acc is not None and len(at.acc) > LARGE_ACC:
            ref, part = self._part(len(at.acc))
            part.accs[at.n], frame = at.salt + at.acc, None
        self._reached[at.n] = StoredReach(at.rows, at.cursor, at.at, frame, ref)

    def finish(self) -> ChunkDocument:
        """Return the document: with the places of items off the plain way, and without links to other chunks."""
        self._close()
        outputs = {stage: pack(REF, column) for stage, column in sorted(self._columns.items())}
        plain = ChunkDocument(chunk=self._chunk, outputs=outputs, renewed=self._renewed, checkpoints=self._reached)
        columns = plain.columns()
        off = {n: row_of(place) for n, place in self._places.items() if plain.place(n, columns) != place}
        return replace(plain, places=off)

    def _part(self, size: int, n: int | None = None) -> tuple[int, Data]:
        """Return a part for some bytes, with the reference to it: one that has no payload of item `n` yet."""
        if self._open and self._bytes + size > PART_BYTES:
            self._close()
        self._bytes += size
        number = next((number for number, part in self._open.items() if n not in part.renewed), None)
        if number is None:
            self._parts += 1
            number = self._parts
            self._open[number] = Data({}, {}, {})
        return copied_ref(self._chunk.number, number), self._open[number]

    def _close(self) -> None:
        for number, part in self._open.items():
            self._write(number, part)
        self._open, self._bytes = {}, 0

    def _write(self, number: int, part: Data) -> None:
        batch, chunk = self._batch, self._chunk.number
        self._writes.add(lambda: self._items.write_copied(batch, chunk, number, part), self._bytes)
