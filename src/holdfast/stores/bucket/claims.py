"""Claiming, holding and loading on a bucket: who may have a chunk is judged by what this process has seen itself."""

import random
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.core import course, journal, lease
from holdfast.core.errors import StoreUnavailable, UsageError
from holdfast.core.model import Chunk, Claim, Entry, Item, ItemNo, Lease, Place, State, Want
from holdfast.stores import faults
from holdfast.stores.base import Idle
from holdfast.stores.bucket import chunks, names
from holdfast.stores.bucket.admission import BucketAdmission
from holdfast.stores.bucket.batches import TURNS
from holdfast.stores.bucket.documents import BatchDocument, ChunkDocument, Data
from holdfast.stores.bucket.items import PART_BYTES, by_group
from holdfast.stores.bucket.patience import patient
from holdfast.stores.bucket.shelf import Held, Raced, StillUnknown
from holdfast.stores.bucket.sight import Seen

replace = msgspec.structs.replace
NEVER = float("inf")


class BucketClaims(BucketAdmission):
    """Leases and what they cover."""

    @patient
    def claim(self, want: Want) -> Claim | Idle:
        if want.cap is not None:
            raise UsageError(f"{self.url}: a bucket cannot hold a batch to a budget: keep its state in a database")
        for turn in range(TURNS):
            batch = self._known_batch(want.batch)
            seen = self._sight.sweep(batch, *_asked(want))
            offer = self._offer(batch.document, seen, want, is_crowded=turn > 0)
            if isinstance(offer, Idle):
                return offer
            if turn == 0:
                faults.reach("claim.before")
            try:
                return self._grant(batch.document, offer, want)
            except Raced:
                continue
            except StillUnknown as error:
                raise StoreUnavailable(f"{error}; if a chunk was granted, its lease ends by itself") from error
        raise self._crowded(f"the chunks of batch {want.batch}")

    def _offer(self, document: BatchDocument, seen: Sequence[Seen], want: Want, *, is_crowded: bool) -> Seen | Idle:
        """A chunk that may be claimed, or why there is none. Who lost a race tries elsewhere."""
        now = self.now()
        why = course.barrier(document.batch, now, want.tolerance, sum(each.chunk.counts.dead for each in seen))
        if want.only is not None:
            seen = [self._chunk_of(document, seen, want.only)]
        if why is not None:
            return replace(self._idle(seen, now), why=why)
        others = [each for each in seen if each.chunk.id not in want.keeps]
        free = [each for each in others if self._may_claim(each, now)]
        if not free:
            free = [each for each in others if self._may_claim(each, now, is_dead=self._is_known_dead(each.chunk))]
        if not free:
            return self._idle(seen, now)
        if is_crowded:
            return random.choice(free)  # noqa: S311 - any will do
        return min(free, key=lambda each: (each.chunk.due == 0, each.chunk.due, each.chunk.lo))

    def _may_claim(self, seen: Seen, now: float, *, is_dead: bool = False) -> bool:
        """The time that an owner wrote down is not asked: its clock may be wrong."""
        is_over = seen.chunk.owner is not None and self._sight.remaining(seen) < 0
        return lease.may_claim(replace(seen.chunk, expires=NEVER), now=now, owner_is_dead=is_over or is_dead)

    def _is_known_dead(self, chunk: Chunk) -> bool:
        return chunk.owner is not None and self._is_dead(chunk.owner)

    def _idle(self, seen: Sequence[Seen], now: float) -> Idle:
        open_ones = [each for each in seen if each.chunk.pending]
        return Idle(
            pending=sum(each.chunk.pending for each in open_ones),
            next_due=min((self._free_at(each, now) for each in open_ones), default=None),
            held=sum(map(self._is_held, open_ones)),
        )

    def _is_held(self, seen: Seen) -> bool:
        is_owned = seen.chunk.owner is not None and self._sight.remaining(seen) >= 0
        return is_owned and not self._is_known_dead(seen.chunk)

    def _free_at(self, seen: Seen, now: float) -> float:
        """When a chunk may become claimable, on the clock of this process."""
        if seen.chunk.owner is None:
            return seen.chunk.due
        return max(seen.chunk.due, now + self._sight.remaining(seen))

    def _grant(self, batch: BatchDocument, seen: Seen, want: Want) -> Claim:
        """What is cut off is written first; it is real once the document of its parent says so."""
        held = self._sight.document(seen)
        if held.document.revision != seen.revision:
            raise Raced
        now, stages, floor = self.now(), course.stage_count(batch.batch.definition), self._shelf.epoch
        number = self._next_number(want.batch)
        while True:
            cut = chunks.grant(held.document, want, now=now, stages=stages, floor=floor, child=number)
            child = self._shelf.create(names.chunk(want.batch, number), cut.child) if cut.child is not None else None
            if child is not None or cut.child is None:
                break
            number = self._next_number(want.batch, taken=number)
        self._write_chunk(held, cut.granted, cut.given.entry(chunks.snapshots(cut.granted), now), "claim")
        if child is not None:
            self._sight.saw(child)
        return cut.given.claim

    # -- holding ------------------------------------------------------------------------------------------------

    def renew(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        faults.reach("renew.before")
        answers = self._sight.each(lambda held: self._renew_one(held, seconds), leases)
        return [renewed for renewed in answers if renewed is not None]

    def _renew_one(self, lease: Lease, seconds: float) -> Lease | None:
        batch, number = names.batch_of(lease.chunk), names.number_of(lease.chunk)
        held = self._sight.known(batch, number)
        for _ in range(TURNS):
            if held is None or (held.document.chunk.fence, held.document.chunk.owner) != (lease.fence, lease.owner):
                held = self._sight.fresh(batch, number)  # what is known may be old: that would be no lost lease
                if held is None or (held.document.chunk.fence, held.document.chunk.owner) != (lease.fence, lease.owner):
                    return None
            expires = self.now() + seconds
            faults.reach("renew.written")
            try:
                written = self._shelf.swap(held, chunks.renewed(held.document, expires, seconds))
            except Raced:
                held = self._sight.fresh(batch, number)
                continue
            self._sight.saw(written)
            faults.reach("renew.after")
            return replace(lease, expires=expires)
        raise self._crowded(f"chunk {lease.chunk}")

    # -- loading ------------------------------------------------------------------------------------------------

    @patient
    def load(self, claim: Claim, after: ItemNo | None, limit: int, max_bytes: int) -> list[Item]:
        batch = self._known_batch(claim.batch)
        lo = claim.lo if after is None else after + 1
        found: list[Item] = []
        for document in self._held_or_cut(batch, claim):
            pending = [(n, place) for n, place in self._places(document, batch.document, lo, claim.hi)
                       if place.state is State.PENDING]  # fmt: skip
            for item in self._loaded(batch.document, document, pending[: limit - len(found)], max_bytes):
                found.append(item)
                max_bytes -= len(item.input)
                if len(found) >= limit or max_bytes <= 0:
                    return found
        return found

    def _held_or_cut(self, batch: Held[BatchDocument], claim: Claim) -> Sequence[ChunkDocument]:
        """The document of a claim; of one that was lost, those of what has become of it."""
        held = self._sight.known(claim.batch, names.number_of(claim.lease.chunk))
        if held is not None and held.document.chunk.fence == claim.lease.fence and held.document.chunk.hi == claim.hi:
            return [held.document]
        return list(self._covering(batch, claim.lo, claim.hi))

    def _loaded(
        self, batch: BatchDocument, document: ChunkDocument, pending: Sequence[tuple[int, Place]], most: int
    ) -> Iterator[Item]:
        places, columns, nothing = dict(pending), document.columns(), [0] * document.chunk.size
        for group, ns in by_group(batch.groups, [n for n, _ in pending]):
            for n, key, salt, payload in self._items.rows(group, ns, min(most, PART_BYTES)):
                place, given = places[n], payload
                file: bytes | None = None
                if n in document.renewed:
                    salt, given = self._items.data(batch.batch.id, document.renewed[n].ref).renewed[n]  # noqa: PLW2901
                if place.stage:
                    ref = columns.get(place.stage - 1, nothing)[n - document.chunk.lo]
                    output = self._items.output(document, n, place.stage - 1, ref) if ref else None
                    given = output.data if output is not None and output.data is not None else b""
                    file = output.file if output is not None else None
                yield Item(ItemNo(n), key, salt, given, place, n not in document.places, file)

    # -- helpers ------------------------------------------------------------------------------------------------

    def _chunk_of(self, document: BatchDocument, seen: Sequence[Seen], n: ItemNo) -> Seen:
        found = next((each for each in seen if each.chunk.lo <= n < each.chunk.hi), None)
        if found is None:
            raise UsageError(f"batch number {document.batch.id} has no item number {n}")
        return found

    def _write_chunk(
        self, held: Held[ChunkDocument], after: ChunkDocument, entry: Entry, point: str, data: Data | None = None
    ) -> Held[ChunkDocument]:
        """What never changes, then the document with the entry at the head of its chain."""
        chunk, number = held.document.chunk, names.number_of(held.document.chunk.id)
        name = self._chains.write(chunk.batch, number, chunk.head, entry)
        if data is not None:
            self._items.write_data(chunk.batch, number, name, data)
            after = chunks.named(after, str(name), data.accs)
        faults.reach(f"{point}.written")

        def landed(later: ChunkDocument) -> bool:
            followed = self._chains.follow(chunk.batch, number, later.chunk.seq, later.chunk.head)
            return name in followed[entry.seq - 1 : entry.seq]

        linked = replace(after, chunk=replace(after.chunk, seq=entry.seq, head=entry.hash))
        try:
            written = self._shelf.swap(held, linked, landed)
        except Raced:
            self._sight.fresh(chunk.batch, number)
            raise
        self._sight.saw(written)
        faults.reach(f"{point}.after")
        return written

    def _entry_of_chunk(
        self, chunk: Chunk, kind: str, body: bytes, actor: str, fence: int, commit_id: bytes, now: float
    ) -> Entry:
        return journal.link(chunk.head, chain=chunk.id, batch=chunk.batch, seq=chunk.seq + 1, kind=kind, at=now,
                            actor=actor, fence=fence, commit_id=commit_id, body=body)  # fmt: skip


def _asked(want: Want) -> tuple[int, int | None]:
    """The items whose chunks have to be seen: all, where dead letters are counted."""
    return (0, None) if want.only is None or want.tolerance is not None else (want.only, want.only + 1)
