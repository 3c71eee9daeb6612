"""The documents of batches on a bucket: found, created, swapped with the entry at the head of their chain, and sealed.

A chunk that has the id of a seal takes no commit and no act while its batch has the same id. A process that must write
before the batch is sealed first removes the id from the batch, so that the seal cannot be finished. An id in a chunk
that the batch does not have is ignored: that seal was abandoned or lifted.
"""

from collections.abc import Callable, Sequence

import msgspec

from holdfast.core import journal, record
from holdfast.core.commitments import INDEX_KEY_BYTES, UID_BYTES, Draw, KeyIndex
from holdfast.core.course import Amendment
from holdfast.core.errors import StoreUnavailable, UsageError
from holdfast.core.limits import BATCHES
from holdfast.core.model import Batch, BatchId, Chunk, Entry
from holdfast.stores import faults
from holdfast.stores.bucket import names
from holdfast.stores.bucket.cas import DocumentStore, HeldDocument, Raced
from holdfast.stores.bucket.documents import BatchDocument, ChunkDocument, Root
from holdfast.stores.bucket.items import Chains

replace = msgspec.structs.replace
FORMATTED = "formatted"
"""The kind of the entry at which format 2 of the journal begins."""
TURNS = 50
"""How often a decision is repeated because other processes were first, before an error is raised."""


class BatchDocuments:
    """The batches of a store, by number and by name."""

    def __init__(self, documents: DocumentStore, chains: Chains, clock: Callable[[], float], draw: Draw) -> None:
        self._documents, self._chains, self._clock, self._draw = documents, chains, clock, draw

    def find(self, batch: BatchId) -> HeldDocument[BatchDocument] | None:
        """Return a batch, or None if it never existed: a missing document raises an error."""
        held = self._documents.read(BatchDocument, names.batch(batch))
        if held is None and batch in [number for number, _ in self._documents.need(Root, names.ROOT).document.names]:
            raise self._documents.missing(names.batch(batch))
        return held

    def known(self, batch: BatchId) -> HeldDocument[BatchDocument]:
        held = self.find(batch)
        if held is None:
            raise UsageError(f"{self._documents.bucket.url} has no batch number {batch}")
        return held

    def number(self, number: int) -> Batch:
        """Return the batch that a name in the root refers to."""
        return self._documents.need(BatchDocument, names.batch(BatchId(number))).document.batch

    def make(self, name: str, pipeline: str, definition: bytes, actor: str) -> Batch:
        """Write the document of the batch first, under an unused number; then its name in the root."""
        body = journal.Opened(name=name, pipeline=pipeline, definition=definition)
        for _ in range(TURNS):
            root = self._documents.need(Root, names.ROOT)
            taken = next((number for number, known in root.document.names if known == name), None)
            if taken is not None:
                return self.number(taken)
            made = self.reserve(root.document.next, lambda number: self._opened(number, body, actor)).document.batch
            listed = [*root.document.names, (int(made.id), name)]
            key = root.document.index_key or self._draw(INDEX_KEY_BYTES)
            faults.reach("open_batch.written")
            try:
                self._documents.swap(
                    root,
                    replace(root.document, names=listed, next=made.id + 1, index_key=key),
                    lambda later, made=made: (made.id, name) in later.names,  # type: ignore[misc]
                )
            except Raced:
                continue
            faults.reach("open_batch.after")
            return made
        raise self.crowded(name)

    def _opened(self, number: BatchId, body: journal.Opened, actor: str) -> Batch:
        """Return a new batch, whose first entry is written."""
        batch = Batch(id=number, uid=self._draw(UID_BYTES), name=body.name, pipeline=body.pipeline,
                      definition=body.definition, opened_at=self._clock(), admitted=0,
                      head=journal.GENESIS)  # fmt: skip
        entry = record.link_batch(batch, "opened", body, actor, batch.opened_at, self._draw)
        self._chains.write(batch.id, 0, journal.GENESIS, entry)
        return replace(batch, seq=entry.seq, head=entry.hash)

    def reserve(self, number: int, make: Callable[[BatchId], Batch]) -> HeldDocument[BatchDocument]:
        """Create a batch under the first free number, skipping those left behind by a lost race or a crash."""
        while number < BATCHES:
            batch = make(BatchId(number))
            held = self._documents.create(names.batch(batch.id), BatchDocument(batch=batch))
            if held is not None:
                return held
            number += 1
        raise UsageError(
            f"{self._documents.bucket.url} has {BATCHES:,} batches, the most a store can hold: use another place"
        )

    def write(
        self, held: HeldDocument[BatchDocument], after: BatchDocument, entry: Entry, point: str
    ) -> HeldDocument[BatchDocument]:
        """Write an entry, then swap the document that makes it the head of the chain. Raise Raced if that fails."""
        before = held.document.batch
        name = self._chains.write(before.id, 0, before.head, entry)
        faults.reach(f"{point}.written")

        def landed(later: BatchDocument) -> bool:
            followed = self._chains.follow(later.batch.id, 0, later.batch.seq, later.batch.head)
            return name in followed[entry.seq - 1 : entry.seq]

        linked = replace(after, batch=replace(after.batch, seq=entry.seq, head=entry.hash))
        written = self._documents.swap(held, linked, landed)
        faults.reach(f"{point}.after")
        return written

    def with_uid(
        self, held: HeldDocument[BatchDocument], chunks: Callable[[HeldDocument[BatchDocument]], Sequence[Chunk]]
    ) -> HeldDocument[BatchDocument]:
        """Return a batch with its uid. One of an earlier format gets it before anything else is written to it, with the
        entry at which format 2 of the journal begins; `chunks` reads its chunks."""
        for _ in range(TURNS):
            batch = held.document.batch
            if batch.uid:
                return held
            told = sorted((int(chunk.id), chunk.number) for chunk in chunks(held))
            named = replace(batch, uid=self._draw(UID_BYTES))
            body = journal.Formatted(batch=batch.id, chunks=told)
            entry = record.link_batch(named, FORMATTED, body, "", self._clock(), self._draw)
            try:
                return self.write(held, replace(held.document, batch=named), entry, faults.NOTE)
            except Raced:
                held = self.known(batch.id)
        raise self.crowded(f"batch {held.document.batch.id}")

    def is_sealed(self, held: HeldDocument[ChunkDocument]) -> bool:
        """Return whether a chunk that has the id of a seal is sealed. An unfinished seal is stopped: the id is removed
        from the batch, and the sealing process notices that."""
        word = held.document.seal
        if not word:
            return False
        for _ in range(TURNS):
            batch = self.known(held.document.chunk.batch)
            if batch.document.seal != word:
                return False
            if batch.document.batch.sealed_at is not None:
                return True
            try:
                self._documents.swap(batch, replace(batch.document, seal=""))
            except Raced:
                continue
            return False
        raise self.crowded(f"batch {held.document.chunk.batch}")

    def expect_renewals(self, batch: BatchId) -> None:
        """Note in the batch that payloads are being replaced, before one is: then comparisons read the chunks as
        well."""
        for _ in range(TURNS):
            held = self.known(batch)
            if held.document.renewed:
                return
            try:
                self._documents.swap(held, replace(held.document, renewed=True))
            except Raced:
                continue
            return
        raise self.crowded(f"batch {batch}")

    def crowded(self, what: str) -> StoreUnavailable:
        """Return the error for a document that other processes keep changing first."""
        url = self._documents.bucket.url
        return StoreUnavailable(f"{url}: other processes keep changing {what}, {TURNS} times in a row: try again later")


def amended(document: BatchDocument, change: Amendment, marks: Sequence[bytes] = ()) -> BatchDocument:
    """Return a batch after an amendment; its chain is not linked yet. Lifting a seal removes its id. `marks`: that of
    a note that is written only once."""
    return replace(
        document,
        batch=change.batch,
        seal=document.seal if change.batch.sealed_at == document.batch.sealed_at else "",
        noted=[*document.noted, *(mark for mark in marks if mark not in document.noted)],
    )


def mark_of(index: KeyIndex, kind: str, body: journal.Body) -> bytes:
    """Return the mark by which a batch remembers that a note was written."""
    return index.mark(f"note {kind}", journal.encode_content(body))
