"""The verbs of a bucket store that concern a batch as a whole: opened, noted, steered; each one swap of its document.

The entry is written first, then the document that makes it the head of the chain. Who loses the race decides again.
"""

import hashlib
from collections.abc import Callable, Sequence

import msgspec

from holdfast.core import course, journal
from holdfast.core.errors import StoreUnavailable, UsageError
from holdfast.core.limits import BATCHES
from holdfast.core.model import Batch, BatchId, Course, Entry, Event, chain_of_batch
from holdfast.stores import faults
from holdfast.stores.base import check_redefinition
from holdfast.stores.bucket import names
from holdfast.stores.bucket.documents import BatchDocument, Root
from holdfast.stores.bucket.patience import patient
from holdfast.stores.bucket.reads import BucketReads
from holdfast.stores.bucket.shelf import Held, Raced

replace = msgspec.structs.replace
TURNS = 50
"""How often a decision is made again because others were first, before it is said that there are too many of them."""


class Amendment(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a batch: its next document, and the entry that tells of it."""

    document: BatchDocument
    entry: Entry


class BucketBatches(BucketReads):
    """Batches and their own chains."""

    @patient
    def open_batch(self, name: str, pipeline: str, definition: bytes, *, actor: str) -> Batch:
        body = journal.encode_body(journal.Opened(name=name, pipeline=pipeline, definition=definition))
        found = self.batch(name)
        if found is None:
            faults.reach("open_batch.before")
            found = self._make_batch(name, pipeline, definition, body, actor)
        if found.pipeline != pipeline:
            raise UsageError(
                f"batch {name!r} belongs to pipeline {found.pipeline!r}, not to {pipeline!r}: choose another batch name"
            )
        if found.definition == definition:
            return found

        def redefine(at: BatchDocument) -> Amendment | None:
            if at.batch.definition == definition:
                return None
            check_redefinition(at.batch, definition)
            redefined = replace(at, batch=replace(at.batch, definition=definition))
            return Amendment(document=redefined, entry=self._entry_of_batch(at.batch, "opened", body, actor))

        return self._amend(found.id, redefine, "open_batch").batch

    @patient
    def note(
        self, batch: BatchId, kind: str, body: bytes, *, actor: str, once: bool = False, events: Sequence[Event] = (),
        basis: bytes | None = None,
    ) -> bool:  # fmt: skip
        digest = hashlib.sha256(kind.encode() + b"\0" + body).digest()[:16]
        written = False

        def decide(at: BatchDocument) -> Amendment | None:
            nonlocal written
            written = not (once and digest in at.noted)
            noted = at.noted if digest in at.noted else [*at.noted, digest]
            entry = self._entry_of_batch(at.batch, kind, body, actor)
            if written and basis is not None:  # after the time of the entry was taken: what comes later is later
                chunks = [seen.chunk for seen in self._sight.sweep(self._known_batch(batch))]
                course.check_unchanged(at.batch, chunks, basis)
            return Amendment(document=replace(at, noted=noted), entry=entry) if written else None

        self._amend(batch, decide, "note")
        return written

    @patient
    def steer(
        self, batch: BatchId, to: Course | None, *, actor: str, reason: str, ends_at: float | None = None,
        expected: int | None = None, close: bool = False,
    ) -> Batch:  # fmt: skip
        faults.reach("steer.before")

        def decide(at: BatchDocument) -> Amendment | None:
            body = course.steer(at.batch, to, reason=reason, ends_at=ends_at, expected=expected, close=close)
            if body is None:
                return None
            steered = replace(at, batch=course.steered(at.batch, body, self.now()))
            entry = self._entry_of_batch(at.batch, "steered", journal.encode_body(body), actor)
            return Amendment(document=steered, entry=entry)

        return self._amend(batch, decide, "steer").batch

    def reopen(self, batch: BatchId, *, actor: str, reason: str) -> Batch:
        def decide(at: BatchDocument) -> Amendment:
            if at.batch.sealed_at is None:
                raise UsageError(f"batch {at.batch.name!r} is not sealed: nothing to reopen")
            lifted = replace(at, batch=replace(at.batch, sealed_at=None), seal="")
            body = journal.encode_body(journal.Reopened(reason=reason))
            return Amendment(document=lifted, entry=self._entry_of_batch(at.batch, "reopened", body, actor))

        return self._amend(batch, decide, "reopen").batch

    # -- helpers ------------------------------------------------------------------------------------------------

    def _make_batch(self, name: str, pipeline: str, definition: bytes, body: bytes, actor: str) -> Batch:
        """The document of the batch first, under a number that nobody has; then its name in the root."""
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
            entry = self._entry_of_batch(batch, "opened", body, actor)
            batch = replace(batch, seq=entry.seq, head=entry.hash)
            self._chains.write(batch.id, 0, journal.GENESIS, entry)
            if self._shelf.create(names.batch(batch.id), BatchDocument(batch=batch)) is not None:
                return batch
            number += 1
        raise UsageError(f"{self.url} holds {BATCHES:,} batches, the most a store can: use another place")

    def _amend(self, batch: BatchId, decide: Callable[[BatchDocument], Amendment | None], point: str) -> BatchDocument:
        """Decide, write the entry, swap the document; from the beginning where someone else was first."""
        for _ in range(TURNS):
            held = self._known_batch(batch)
            change = decide(held.document)
            if change is None:
                return held.document
            try:
                return self._write_batch(held, change, point).document
            except Raced:
                continue
        raise self._crowded(str(batch))

    def _write_batch(self, held: Held[BatchDocument], change: Amendment, point: str) -> Held[BatchDocument]:
        before, changed, entry = held.document.batch, change.document.batch, change.entry
        name = self._chains.write(before.id, 0, before.head, entry)
        faults.reach(f"{point}.written")

        def landed(later: BatchDocument) -> bool:
            followed = self._chains.follow(later.batch.id, 0, later.batch.seq, later.batch.head)
            return name in followed[entry.seq - 1 : entry.seq]

        after = replace(change.document, batch=replace(changed, seq=entry.seq, head=entry.hash))
        written = self._shelf.swap(held, after, landed)
        faults.reach(f"{point}.after")
        return written

    def _entry_of_batch(self, batch: Batch, kind: str, body: bytes, actor: str) -> Entry:
        return journal.link(batch.head, chain=chain_of_batch(batch.id), batch=batch.id, seq=batch.seq + 1, kind=kind,
                            at=self.now(), actor=actor, fence=0, commit_id=b"", body=body)  # fmt: skip

    def _crowded(self, what: str) -> StoreUnavailable:
        return StoreUnavailable(f"{self.url}: others keep changing {what}, {TURNS} times in a row: try again later")
