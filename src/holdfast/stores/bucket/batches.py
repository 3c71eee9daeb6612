"""The verbs of a bucket store that concern a batch as a whole: opened, noted, steered; each one swap of its document.

The entry is written first, then the document that makes it the head of the chain. Who loses the race decides again.
"""

import hashlib

import msgspec

from holdfast.core import course, journal
from holdfast.core.errors import StoreUnavailable, UsageError
from holdfast.core.limits import BATCHES
from holdfast.core.model import Batch, BatchId, Chunk, Entry, chain_of_batch
from holdfast.stores import faults
from holdfast.stores.bucket import names
from holdfast.stores.bucket.documents import BatchDocument, Root
from holdfast.stores.bucket.patience import patient
from holdfast.stores.bucket.reads import BucketReads
from holdfast.stores.bucket.shelf import Held, Raced

replace = msgspec.structs.replace
TURNS = 50
"""How often a decision is made again because others were first, before it is said that there are too many of them."""


class BucketBatches(BucketReads):
    """Batches and their own chains."""

    @patient
    def open_batch(self, name: str, pipeline: str, definition: bytes, *, actor: str) -> Batch:
        found = self.batch(name)
        if found is None:
            faults.reach("open_batch.before")
            found = self._make_batch(name, pipeline, definition, actor)
        if (found.pipeline, found.definition) == (pipeline, definition):
            return found
        return self._amend(found.id, course.to_redefine(pipeline, definition), actor).batch

    @patient
    def amend(self, batch: BatchId, decide: course.Decide, *, actor: str) -> course.Amended:
        faults.reach("amend.before")
        return self._amend(batch, decide, actor)

    # -- helpers ------------------------------------------------------------------------------------------------

    def _make_batch(self, name: str, pipeline: str, definition: bytes, actor: str) -> Batch:
        """The document of the batch first, under a number that nobody has; then its name in the root."""
        body = journal.encode_body(journal.Opened(name=name, pipeline=pipeline, definition=definition))
        for _ in range(TURNS):
            root = self._shelf.need(Root, names.ROOT)
            taken = next((number for number, known in root.document.names if known == name), None)
            if taken is not None:
                return self._shelf.need(BatchDocument, names.batch(BatchId(taken))).document.batch
            made = self._reserve_batch(root.document.next, name, pipeline, definition, body, actor)
            listed = [*root.document.names, (int(made.id), name)]
            faults.reach("open_batch.written")
            try:
                self._shelf.swap(
                    root,
                    replace(root.document, names=listed, next=made.id + 1),
                    lambda later, made=made: (made.id, name) in later.names,  # type: ignore[misc]
                )
            except Raced:
                continue
            faults.reach("open_batch.after")
            return made
        raise self._crowded(name)

    def _reserve_batch(
        self, number: int, name: str, pipeline: str, definition: bytes, body: bytes, actor: str
    ) -> Batch:
        """Numbers that a lost race, or a crash, left behind are passed over."""
        while number < BATCHES:
            batch = Batch(id=BatchId(number), name=name, pipeline=pipeline, definition=definition,
                          opened_at=self.now(), admitted=0, head=journal.GENESIS)  # fmt: skip
            entry = self._entry_of_batch(batch, "opened", body, actor, batch.opened_at)
            batch = replace(batch, seq=entry.seq, head=entry.hash)
            self._chains.write(batch.id, 0, journal.GENESIS, entry)
            if self._shelf.create(names.batch(batch.id), BatchDocument(batch=batch)) is not None:
                return batch
            number += 1
        raise UsageError(f"{self.url} holds {BATCHES:,} batches, the most a store can: use another place")

    def _amend(self, batch: BatchId, decide: course.Decide, actor: str) -> course.Amended:
        """Decide, write the entry, swap the document; from the beginning where someone else was first."""
        for _ in range(TURNS):
            held = self._known_batch(batch)
            document = held.document
            facts = course.BatchFacts(  # its time is taken before chunks are looked at: what comes later is later
                document.batch, self.now(), lambda: self._swept(batch),
                lambda kind, body, known=document.noted: _digest(kind, body) in known,  # type: ignore[misc]
            )  # fmt: skip
            change = decide(facts)
            if change is None:
                return course.Amended(batch=document.batch, written=False)
            entry = self._entry_of_batch(document.batch, change.kind, change.body, actor, facts.now)
            try:
                written = self._write_batch(held, _amended(document, change), entry, faults.amendment(change.kind))
            except Raced:
                continue
            return course.Amended(batch=written.document.batch, written=True)
        raise self._crowded(str(batch))

    def _swept(self, batch: BatchId) -> list[Chunk]:
        return [seen.chunk for seen in self._sight.sweep(self._known_batch(batch))]

    def _write_batch(
        self, held: Held[BatchDocument], after: BatchDocument, entry: Entry, point: str
    ) -> Held[BatchDocument]:
        before = held.document.batch
        name = self._chains.write(before.id, 0, before.head, entry)
        faults.reach(f"{point}.written")

        def landed(later: BatchDocument) -> bool:
            followed = self._chains.follow(later.batch.id, 0, later.batch.seq, later.batch.head)
            return name in followed[entry.seq - 1 : entry.seq]

        linked = replace(after, batch=replace(after.batch, seq=entry.seq, head=entry.hash))
        written = self._shelf.swap(held, linked, landed)
        faults.reach(f"{point}.after")
        return written

    def _entry_of_batch(self, batch: Batch, kind: str, body: bytes, actor: str, now: float) -> Entry:
        return journal.link(batch.head, chain=chain_of_batch(batch.id), batch=batch.id, seq=batch.seq + 1, kind=kind,
                            at=now, actor=actor, fence=0, commit_id=b"", body=body)  # fmt: skip

    def _crowded(self, what: str) -> StoreUnavailable:
        return StoreUnavailable(f"{self.url}: others keep changing {what}, {TURNS} times in a row: try again later")


def _amended(document: BatchDocument, change: course.Amendment) -> BatchDocument:
    """A batch after an amendment; its chain is not linked yet. A seal that is lifted takes its word along."""
    digest = _digest(change.kind, change.body)
    return replace(
        document,
        batch=change.batch,
        seal=document.seal if change.batch.sealed_at == document.batch.sealed_at else "",
        noted=document.noted if digest in document.noted else [*document.noted, digest],
    )


def _digest(kind: str, body: bytes) -> bytes:
    return hashlib.sha256(kind.encode() + b"\0" + body).digest()[:16]
