"""Grants of chunks: which chunk a claim is offered, and how it is granted, cut, and continued once its chain ends."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from holdfast.core import course, lease, record
from holdfast.core.commitments import GRANT_BYTES, Draw
from holdfast.core.model import Claim, ClaimRequest, Entry
from holdfast.stores.base import Idle
from holdfast.stores.bucket import chunks, names
from holdfast.stores.bucket.cache import ChunkCache, SeenChunk, chunk_with
from holdfast.stores.bucket.cas import DocumentStore, HeldDocument, Raced, StoreIndex
from holdfast.stores.bucket.documents import BatchDocument, ChunkDocument
from holdfast.stores.bucket.items import Chains, Items
from holdfast.stores.bucket.writer import ChunkWriter

replace = msgspec.structs.replace


class RolledOver(NamedTuple):
    """The successor of a chunk, and what is still to be written: the chunk without its items, and its last entry."""

    successor: HeldDocument[ChunkDocument]
    ended: ChunkDocument
    last: Entry


class ChunkGrants:
    """The chunks of a store, offered and granted."""

    def __init__(
        self, documents: DocumentStore, chains: Chains, items: Items, cache: ChunkCache, index: StoreIndex,
        writer: ChunkWriter, clock: Callable[[], float], draw: Draw,
    ) -> None:  # fmt: skip
        self._documents, self._chains, self._items = documents, chains, items
        self._chunks, self._index, self._writer = cache, index, writer
        self._clock, self._draw = clock, draw

    def offer(
        self, document: BatchDocument, seen: Sequence[SeenChunk], want: ClaimRequest, *, is_crowded: bool
    ) -> SeenChunk | Idle:
        """Return a chunk that may be claimed, or why there is none. After a lost race, choose another one."""
        now = self._clock()
        why = course.barrier(document.batch, now, want.tolerance, sum(each.chunk.counts.dead for each in seen))
        if want.only is not None:
            seen = [chunk_with(seen, want.only, document.batch)]
        if why is not None:
            return replace(self._chunks.idle(seen, now), why=why)
        others = [each for each in seen if each.chunk.id not in want.keeps]
        free = [each for each in others if self._chunks.may_claim(each, now)]
        if not free:
            free = [
                each
                for each in others
                if self._chunks.may_claim(each, now, is_dead=self._chunks.is_known_dead(each.chunk))
            ]
        if not free:
            return self._chunks.idle(seen, now)
        if is_crowded:
            return random.choice(free)  # noqa: S311 - any will do
        return min(free, key=lambda each: (each.chunk.due == 0, each.chunk.due, each.chunk.lo))

    def grant(self, batch: BatchDocument, seen: SeenChunk, want: ClaimRequest) -> Claim:
        """Grant a chunk. The chunk that is cut off is written first; it exists once the document of its parent lists
        it. So does the successor of a chunk whose chain ends: it is granted before it is listed."""
        held = self._chunks.document(seen)
        if held.document.revision != seen.revision:
            raise Raced
        over = self._roll_over(batch, held) if lease.must_end(held.document.chunk) else None
        before, held = held, held if over is None else over.successor
        now, uid, grant_id = self._clock(), batch.batch.uid, self._draw(GRANT_BYTES)
        number = self._chunks.next_number(want.batch)
        while True:
            cut = chunks.grant(held.document, want, grant_id, now=now, floor=self._documents.epoch, child=number)
            child = (
                self._documents.create(names.chunk(want.batch, number), cut.child) if cut.child is not None else None
            )
            if child is not None or cut.child is None:
                break
            number = self._chunks.next_number(want.batch, taken=number)
        entry = cut.given.entry(uid, chunks.snapshots(cut.granted), now, self._draw)
        self._writer.write(held, cut.granted, entry, "claim")
        if over is not None:
            self._writer.write(before, over.ended, over.last, "claim")
        if child is not None:
            self._chunks.saw(child)
        return cut.given.claim(uid)

    def _roll_over(self, batch: BatchDocument, held: HeldDocument[ChunkDocument]) -> RolledOver:
        """Write the successor of a chunk whose chain ends. It is returned with the owner that the chunk has, because a
        grant names the owner before."""
        document, chunk = held.document, held.document.chunk
        items = list(self._items.stored(batch, document, list(chunks.places_of(document).items())))
        outputs = list(self._items.outputs(batch, document, chunk.lo, chunk.hi, None))
        reached = list(self._items.checkpoints(batch, document, chunk.lo, chunk.hi))
        number, made = self._chunks.next_number(chunk.batch), None
        while made is None:
            rolled = record.roll_over(
                batch.batch.uid, chunk, items, outputs, reached, id_=names.chunk_id(chunk.batch, number), number=number,
                now=self._clock(), draw=self._draw, mark=self._index().mark,
            )  # fmt: skip
            ended, successor = chunks.continued(document, rolled)
            self._chains.write(chunk.batch, number, rolled.last.hash, rolled.first)
            made = self._documents.create(names.chunk(chunk.batch, number), successor)
            number = number if made is not None else self._chunks.next_number(chunk.batch, taken=number)
        self._chunks.saw(made)
        owned = HeldDocument(made.name, replace(made.document, chunk=rolled.successor), made.mark)
        return RolledOver(owned, ended, rolled.last)
