"""Sealing on a bucket, chunk by chunk: the word of the seal is written into the batch, then into every chunk, and only
then the batch is sealed.

A chunk that carries the word takes no commit and no act while the batch carries it, too. Who has to write before the
batch is sealed takes the word back in the batch first, so that the seal cannot be finished over it. A word in a chunk
that the batch does not carry means nothing: a seal that was given up or lifted.
"""

import secrets
from collections.abc import Sequence

import msgspec

from holdfast.core import course
from holdfast.core.errors import Refused
from holdfast.core.model import Batch, BatchId, Event
from holdfast.stores import faults
from holdfast.stores.bucket.batches import TURNS, BucketBatches
from holdfast.stores.bucket.documents import ChunkDocument
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
        found = held.document.batch
        chunks = [seen.chunk for seen in self._sight.sweep(held)]
        course.check_sealable(found, chunks, reconciliation, now=self.now())
        word = secrets.token_hex(8)
        try:
            held = self._shelf.swap(held, replace(held.document, seal=word))
            faults.reach("bucket.sealing")
            marked = [self._mark_chunk(seen, word).chunk for seen in self._sight.sweep(held)]
            now, to_seal = self.now(), course.to_seal(reconciliation, reason=reason, events=events)
            change = to_seal(course.BatchFacts(found, now, lambda: marked, lambda _kind, _body: False))
            assert change is not None
            entry = self._entry_of_batch(found, change.kind, change.body, actor, now)
            return self._write_batch(held, replace(held.document, batch=change.batch), entry, "seal").document.batch
        except Raced:
            name = held.document.batch.name
            raise Refused(f"batch {name!r} cannot be sealed: it changed while it was sealed: try again") from None

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
