"""Sealing on a bucket, chunk by chunk: the word of the seal is written into the batch, then into every chunk, and only
then the batch is sealed.

A chunk that carries the word takes no commit and no act while the batch carries it, too. Who has to write before the
batch is sealed takes the word back in the batch first, so that the seal cannot be finished over it. A word in a chunk
that the batch does not carry means nothing: a seal that was given up or lifted.
"""

import secrets
from collections.abc import Sequence

import msgspec

from holdfast.core import course, journal
from holdfast.core.errors import Refused
from holdfast.core.model import Batch, BatchId, Event
from holdfast.stores import faults
from holdfast.stores.bucket.batches import TURNS, Amendment, BucketBatches
from holdfast.stores.bucket.documents import BatchDocument, ChunkDocument
from holdfast.stores.bucket.shelf import Held, Raced
from holdfast.stores.bucket.sight import Seen

replace = msgspec.structs.replace


class BucketSeal(BucketBatches):
    """Finishing a batch for good."""

    def seal(
        self, batch: BatchId, *, actor: str, reconciliation: bytes, reason: str = "", events: Sequence[Event] = ()
    ) -> Batch:
        faults.reach("seal.before")
        held = self._known_batch(batch)
        self._check_sealable(held.document, self._sight.sweep(held), reconciliation)
        word = secrets.token_hex(8)
        try:
            held = self._shelf.swap(held, replace(held.document, seal=word))
            faults.reach("bucket.sealing")
            marked = [self._mark_chunk(seen, word) for seen in self._sight.sweep(held)]
            self._check_sealable(held.document, marked, reconciliation)
            body = course.seal([seen.chunk for seen in marked], reconciliation, reason)
            sealed = replace(held.document, batch=replace(held.document.batch, sealed_at=self.now()))
            entry = self._entry_of_batch(held.document.batch, "sealed", journal.encode_body(body), actor)
            return self._write_batch(held, Amendment(document=sealed, entry=entry), "seal").document.batch
        except Raced:
            name = held.document.batch.name
            raise Refused(f"batch {name!r} cannot be sealed: it changed while it was sealed: try again") from None

    def _check_sealable(self, document: BatchDocument, seen: Sequence[Seen], reconciliation: bytes) -> None:
        batch = document.batch
        obstacle = course.obstacle(batch, [each.chunk for each in seen], reconciliation, now=self.now())
        if obstacle is not None:
            raise Refused(f"batch {batch.name!r} cannot be sealed: {obstacle}")

    def _mark_chunk(self, seen: Seen, word: str) -> Seen:
        """The chunk with the word of the seal in it; Raced where it is not as it was seen."""
        held = self._sight.document(seen)
        if held.document.revision != seen.revision:
            raise Raced
        written = self._shelf.swap(held, replace(held.document, seal=word))
        self._sight.saw(written)
        return replace(seen, chunk=written.document.chunk)

    # -- for who writes to a chunk ------------------------------------------------------------------------------

    def _is_sealed(self, held: Held[ChunkDocument]) -> bool:
        """Whether a chunk that carries a word is sealed. A seal that is being made is stopped: the batch loses the
        word, and who makes the seal finds that out."""
        word = held.document.seal
        if not word:
            return False
        for _ in range(TURNS):
            batch = self._known_batch(held.document.chunk.batch)
            if batch.document.seal != word:
                return False
            if batch.document.batch.sealed_at is not None:
                return True
            try:
                self._shelf.swap(batch, replace(batch.document, seal=""))
            except Raced:
                continue
            return False
        raise self._crowded(f"batch {held.document.chunk.batch}")
