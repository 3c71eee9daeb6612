"""The reference store: the contract as plain Python, in one process, for tests, simulation and reading.

Every verb is atomic under one lock and nothing is durable. If this store and another disagree, this one is right.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from holdfast.core import acts, course, ingest, journal, lease, record, settle
from holdfast.core.canonical import key_text
from holdfast.core.commitments import GRANT_BYTES, INDEX_KEY_BYTES, UID_BYTES, Draw, KeyIndex
from holdfast.core.course import Barrier
from holdfast.core.errors import Refused, UsageError
from holdfast.core.model import (
    START,
    Act,
    Admitted,
    Batch,
    BatchId,
    Checkpoint,
    Chunk,
    ChunkId,
    Claim,
    ClaimRequest,
    Commit,
    Entry,
    Event,
    Item,
    ItemNo,
    ItemOrigin,
    ItemState,
    Kind,
    Lease,
    Move,
    NewItem,
    Output,
    Receipt,
    State,
    StoredEvent,
    StoredItem,
    chain_of_batch,
)
from holdfast.core.states import on_plain_way
from holdfast.stores.base import (
    NOWHERE,
    BatchCopy,
    Capabilities,
    Idle,
    check_installable,
    chunk_of,
    copied_checkpoints,
    copied_items,
    each_checkpoint,
    each_item,
    each_output,
    find_batch,
    lineage,
    notes_in,
    random_bytes,
    unwritten,
)

replace = msgspec.structs.replace


class MemoryItem(NamedTuple):
    """One revision of an item."""

    item: NewItem
    salt: bytes
    raw_salt: bytes


class MemoryStore:
    """All state in dictionaries."""

    capabilities = Capabilities()

    def __init__(
        self, *, clock: Callable[[], float] = time.time, is_dead: Callable[[str], bool] = lambda owner: False,
        draw: Draw = random_bytes,
    ) -> None:  # fmt: skip
        self.url = "memory:"
        self.now = clock
        self._draw = draw
        self._index = KeyIndex(draw(INDEX_KEY_BYTES))
        self._is_dead = is_dead
        self._lock = threading.RLock()
        self._batches: dict[BatchId, Batch] = {}
        self._chunks: dict[ChunkId, Chunk] = {}
        self._items: dict[tuple[BatchId, ItemNo], list[MemoryItem]] = {}
        """All revisions of every item, oldest first."""
        self._numbers: dict[tuple[BatchId, str], ItemNo] = {}
        self._places: dict[tuple[BatchId, ItemNo], ItemState] = {}
        self._outputs: dict[tuple[BatchId, ItemNo, int], Output] = {}
        self._checkpoints: dict[tuple[BatchId, ItemNo], Checkpoint] = {}
        self._entries: dict[int, list[Entry]] = {}
        self._noted: set[tuple[BatchId, str, bytes]] = set()
        self._events: list[StoredEvent] = []
        self._delivered: dict[str, int] = {}

    def mark(self, batch: BatchId) -> int | None:
        """Return None: there is no other handle."""
        return None

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    # -- batches ------------------------------------------------------------------------------------------------

    def open_batch(self, name: str, pipeline: str, definition: bytes, *, actor: str) -> Batch:
        with self._lock:
            found = find_batch(self, name)
            if found is None:
                found = Batch(id=BatchId(len(self._batches) + 1), uid=self._draw(UID_BYTES), name=name,
                              pipeline=pipeline, definition=definition, opened_at=self.now(), admitted=0,
                              head=journal.GENESIS)  # fmt: skip
                self._batches[found.id] = found
                body = journal.Opened(name=name, pipeline=pipeline, definition=definition)
                self._link_batch(found.id, "opened", body, actor)
                self._tell(found.id, [course.batch_opened(name, pipeline)])
            return self.amend(found.id, course.to_redefine(pipeline, definition), actor=actor).batch

    def batches(self, name: str | None = None) -> list[Batch]:
        with self._lock:
            return [batch for batch in self._batches.values() if name in (None, batch.name)]

    def amend(self, batch: BatchId, decide: course.Decide, *, actor: str) -> course.Amended:
        with self._lock:
            found = self._known_batch(batch)
            facts = course.BatchFacts(
                found, self.now(), lambda: self.chunks(batch), lambda kind, body: self._is_noted(batch, kind, body)
            )
            change = decide(facts)
            if change is None:
                return course.Amended(batch=found, written=False)
            self._batches[batch] = change.batch
            if change.once:
                self._noted.add((batch, change.kind, journal.encode_content(change.body)))
            self._link_batch(batch, change.kind, change.body, actor)
            self._tell(batch, change.events)
            return course.Amended(batch=self._batches[batch], written=True)

    def _is_noted(self, batch: BatchId, kind: str, body: journal.Body) -> bool:
        return (batch, kind, journal.encode_content(body)) in self._noted

    def seal(
        self, batch: BatchId, *, actor: str, reconciliation: bytes, reason: str = "", events: Sequence[Event] = ()
    ) -> Batch:
        return self.amend(batch, course.to_seal(reconciliation, reason=reason, events=events), actor=actor).batch

    def install(self, copy: BatchCopy) -> Batch:
        with self._lock:
            check_installable(self, copy)
            items, reached = list(copied_items(copy)), list(copied_checkpoints(copy))
            entries = list(copy.entries())
            made = replace(copy.batch, id=BatchId(len(self._batches) + 1))
            ids = {chunk.id: ChunkId(at) for at, chunk in enumerate(copy.chunks, start=len(self._chunks) + 1)}
            chains = {chunk.number: int(ids[chunk.id]) for chunk in copy.chunks} | {0: chain_of_batch(made.id)}
            self._batches[made.id] = made
            for chunk in copy.chunks:
                parent = None if chunk.parent is None else ids[chunk.parent]
                self._chunks[ids[chunk.id]] = replace(chunk, id=ids[chunk.id], batch=made.id, parent=parent)
            for revisions, outputs in items:
                self._install_item(made.id, revisions, outputs)
            for at in reached:
                self._checkpoints[made.id, at.n] = at
            for number, entry in entries:
                self._entries.setdefault(chains[number], []).append(replace(entry, chain=chains[number]))
            self._noted.update((made.id, kind, journal.encode_content(body)) for kind, body in notes_in(entries))
            return made

    def _install_item(self, batch: BatchId, revisions: Sequence[StoredItem], outputs: Sequence[Output]) -> None:
        first = revisions[0]
        self._numbers[batch, key_text(first.key)] = first.n
        self._items[batch, first.n] = [
            MemoryItem(NewItem(row.key, row.payload, parent=row.parent), row.salt, row.raw_salt) for row in revisions
        ]
        for output in outputs:
            self._outputs[batch, output.n, output.stage] = output
        if self._place(chunk_of(self, batch, first.n), first.n) != first.place:
            self._places[batch, first.n] = first.place

    def chunks(
        self, batch: BatchId, *, of: ItemNo | None = None, pending: bool = False, limit: int | None = None
    ) -> list[Chunk]:
        with self._lock:
            found = [c for c in self._chunks.values() if c.batch == batch and (of is None or c.lo <= of < c.hi)]
            return sorted((c for c in found if c.pending or not pending), key=lambda c: (c.lo, c.hi))[:limit]

    def events(self, after: int = 0, *, limit: int = 1000) -> list[StoredEvent]:
        with self._lock:
            return self._events[after : after + limit]

    def delivered(self, receiver: str, up_to: int = 0) -> int:
        with self._lock:
            self._delivered[receiver] = max(up_to, self._delivered.get(receiver, 0))
            return self._delivered[receiver]

    # -- helpers ------------------------------------------------------------------------------------------------

    def _known_batch(self, batch: BatchId) -> Batch:
        if batch not in self._batches:
            raise UsageError(f"there is no batch number {batch}")
        return self._batches[batch]

    def _tell(self, batch: BatchId, events: Sequence[Event]) -> None:
        for event in events:
            self._events.append(
                StoredEvent(
                    id=len(self._events) + 1, batch=batch, at=self.now(), kind=event.kind, body=event.body, n=event.n
                )
            )

    def _link_batch(self, batch: BatchId, kind: str, body: journal.Body, actor: str) -> Entry:
        at = self._batches[batch]
        entry = record.link_batch(at, kind, body, actor, self.now(), self._draw)
        self._entries.setdefault(entry.chain, []).append(entry)
        self._batches[batch] = replace(at, seq=entry.seq, head=entry.hash)
        return entry

    def _new_numbers(self, batch: BatchId) -> tuple[ChunkId, int]:
        """Return the numbers of a new chunk: in this store, and within its batch."""
        numbers = [chunk.number for chunk in self._chunks.values() if chunk.batch == batch]
        return ChunkId(len(self._chunks) + 1), max(numbers, default=0) + 1

    # -- items in -----------------------------------------------------------------------------------------------

    def add_items(
        self, batch: BatchId, items: Sequence[NewItem], *, kind: Kind = Kind.ITEMS, ended: bool = False,
        actor: str = "", origin: ItemOrigin = NOWHERE,
    ) -> Admitted:  # fmt: skip
        with self._lock:
            found = self._known_batch(batch)
            fresh, answer = ingest.sort_out(items, self.known(batch, items), found.admitted)
            if not fresh and not (ended and found.ingested_at is None):
                return answer
            course.check_takes_items(found, len(fresh))
            self._admit(found, fresh, kind, ended or course.is_last(found, len(fresh)), actor, origin)
            return answer

    def known(self, batch: BatchId, items: Sequence[NewItem]) -> ingest.Known:
        with self._lock:
            self._known_batch(batch)
            numbers = [self._numbers.get((batch, key_text(item.key))) for item in items]
            return {
                index: (n, self._items[batch, n][-1].item.payload == items[index].payload)
                for index, n in enumerate(numbers)
                if n is not None
            }

    def _admit(
        self, batch: Batch, fresh: list[NewItem], kind: Kind, ended: bool, actor: str, origin: ItemOrigin
    ) -> None:
        lo, (id_, number) = batch.admitted, self._new_numbers(batch.id)
        body, salts, raw_salts = record.of_items(batch, fresh, number=number, kind=kind, ended=ended, origin=origin,
                                                 end=course.stage_count(batch.definition), draw=self._draw)  # fmt: skip
        for n, (item, salt, raw_salt) in enumerate(zip(fresh, salts, raw_salts, strict=True), start=lo):
            self._items[batch.id, ItemNo(n)] = [MemoryItem(item, salt, raw_salt or b"")]
            self._numbers[batch.id, key_text(item.key)] = ItemNo(n)
            if item.place.state is State.DEAD:
                self._places[batch.id, ItemNo(n)] = item.place
        self._tell(batch.id, [course.item_dead(n, fresh[n - lo].key, fresh[n - lo].place) for n, _ in body.invalid])
        entry = self._link_batch(batch.id, "ingested", body, actor)
        if fresh:
            self._chunks[id_] = record.chunk_of_items(body, batch, entry, id_=id_, fence=0, now=self.now())
        grown = self._batches[batch.id]
        at = self.now() if ended else grown.ingested_at
        self._batches[batch.id] = replace(grown, admitted=lo + len(fresh), ingested_at=at)

    # -- work ---------------------------------------------------------------------------------------------------

    def claim(self, want: ClaimRequest) -> Claim | Idle:
        with self._lock:
            now, batch = self.now(), self._known_batch(want.batch)
            why = course.barrier(batch, now, want.tolerance, self._dead(want.batch))
            chunk = self._claimable(want, now) if why is None else None
            afford = self._affordable(want, now)
            if chunk is None or afford == 0:
                return self._idle(want, why if chunk is None else Barrier.BUDGET)
            chunk = self._roll_over(batch, chunk) if lease.must_end(chunk) else chunk
            states = self._states(chunk)
            given = lease.grant(chunk, want, self._draw(GRANT_BYTES), now=now, states=lambda: states, affordable=afford)
            if given.child is not None:
                given = given.with_child(*self._new_numbers(batch.id))
                assert given.child is not None
                self._chunks[given.child.id] = given.child
            tried = ((n, self._places.get((batch.id, ItemNo(n)))) for n in range(given.chunk.lo, given.chunk.hi))
            self._chunks[chunk.id] = given.chunk
            snapshots = lease.snapshots((n, place) for n, place in tried if place is not None)
            self._append(given.entry(batch.uid, snapshots, now, self._draw))
            return given.claim(batch.uid)

    def _roll_over(self, batch: Batch, chunk: Chunk) -> Chunk:
        """End the chain of a chunk; return its successor."""
        id_, number = self._new_numbers(batch.id)
        rolled = record.roll_over(
            batch.uid, chunk, list(each_item(self, batch.id, lo=chunk.lo, hi=chunk.hi)),
            list(each_output(self, batch.id, lo=chunk.lo, hi=chunk.hi)),
            list(each_checkpoint(self, batch.id, lo=chunk.lo, hi=chunk.hi)),
            id_=id_, number=number, now=self.now(), draw=self._draw, mark=self._index.mark,
        )  # fmt: skip
        self._chunks |= {chunk.id: rolled.ended, id_: rolled.successor}
        self._append(rolled.last)
        self._append(rolled.first)
        return self._chunks[id_]

    def _states(self, chunk: Chunk) -> list[State]:
        return [self._place(chunk, ItemNo(n)).state for n in range(chunk.lo, chunk.hi)]

    def _claimable(self, want: ClaimRequest, now: float) -> Chunk | None:
        """Return the first free or expired chunk, waiting chunks first; if there is none, one that a dead process
        holds."""
        if want.only is not None:
            chunks = [chunk_of(self, want.batch, want.only)]
        else:
            chunks = [chunk for chunk in self._chunks.values() if chunk.batch == want.batch]
        chunks = [chunk for chunk in chunks if chunk.id not in want.keeps]
        free = [chunk for chunk in chunks if lease.may_claim(chunk, now=now)]
        if not free:
            left = [chunk for chunk in chunks if chunk.owner is not None and self._is_dead(chunk.owner)]
            free = [chunk for chunk in left if lease.may_claim(chunk, now=now, owner_is_dead=True)]
        return lease.first(free)

    def _affordable(self, want: ClaimRequest, now: float) -> int | None:
        """Return how many items the budget covers. Money reserved by a grant that ended without a release is free
        again: its owner spends no more."""
        if want.cap is None:
            return None
        chunks = self.chunks(want.batch)
        spent = sum(chunk.counts.spent for chunk in chunks)
        held = [chunk for chunk in chunks if chunk.id in want.keeps or self._is_held(chunk, now)]
        reserved = sum(chunk.reserved for chunk in held if chunk.pending)
        return lease.affordable(cap=want.cap, reserve=want.reserve, spent=spent, reserved=reserved)

    def _dead(self, batch: BatchId) -> int:
        return sum(chunk.counts.dead for chunk in self._chunks.values() if chunk.batch == batch)

    def _idle(self, want: ClaimRequest, why: Barrier | None) -> Idle:
        asked = self._chunks.values() if want.only is None else [chunk_of(self, want.batch, want.only)]
        chunks = [chunk for chunk in asked if chunk.batch == want.batch and chunk.pending]
        times = [chunk.due if chunk.owner is None else max(chunk.due, chunk.expires) for chunk in chunks]
        return Idle(
            pending=sum(chunk.pending for chunk in chunks),
            next_due=min(times, default=None),
            held=sum(self._is_held(chunk, self.now()) for chunk in chunks),
            why=why,
        )

    def _is_held(self, chunk: Chunk, now: float) -> bool:
        return chunk.owner is not None and chunk.expires >= now and not self._is_dead(chunk.owner)

    def load(self, claim: Claim, after: ItemNo | None, limit: int, max_bytes: int) -> list[Item]:
        with self._lock:
            items: list[Item] = []
            for n in map(ItemNo, range(claim.lo if after is None else after + 1, claim.hi)):
                place = self._place(claim, n)
                if place.state is not State.PENDING:
                    continue
                revisions, is_first = self._items[claim.batch, n], place.stage == claim.first
                new = revisions[-1].item
                output = None if is_first else self._outputs.get((claim.batch, n, place.stage - 1))
                given = new.payload if is_first else (output.data if output is not None else None) or b""
                file = output.file if output is not None else None
                plain = (claim.batch, n) not in self._places
                items.append(Item(n, new.key, given, place, plain, file, len(revisions) - 1))
                max_bytes -= len(given)
                if len(items) >= limit or max_bytes <= 0:
                    break
            return items

    def renew(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        with self._lock:
            kept = []
            for held in leases:
                chunk = self._chunks.get(held.chunk)
                if chunk is not None and lease.is_held_by(chunk, held):
                    expires = self.now() + seconds
                    self._chunks[chunk.id] = replace(chunk, expires=expires)
                    kept.append(replace(held, expires=expires))
            return kept

    def commit(self, commits: Sequence[Commit]) -> list[Receipt]:
        with self._lock:
            guards = {commit.chunk: self._guard(commit.chunk) for commit in commits if commit.chunk in self._chunks}
            judged = settle.judge(commits, guards, self._has_landed)
            landing = self._advanced([each.commit for each in judged if each.lands])
            for commit, advanced in landing:
                self._write(commit, advanced)
            return [each.receipt if each.lands else unwritten(each) for each in judged]

    def _guard(self, number: ChunkId) -> settle.Guard:
        chunk = self._chunks[number]
        return settle.guard_of(chunk, sealed=self._batches[chunk.batch].sealed_at is not None)

    def _advanced(self, commits: Sequence[Commit]) -> list[tuple[Commit, Chunk]]:
        """Return every commit with its chunk after it, in sequence: nothing is written if one is invalid."""
        chunks, found = dict[ChunkId, Chunk](), list[tuple[Commit, Chunk]]()
        for commit in commits:
            chunk = chunks.get(commit.chunk, self._chunks[commit.chunk])
            chunks[commit.chunk] = settle.advanced(chunk, commit, self.now())
            found.append((commit, chunks[commit.chunk]))
        return found

    def _write(self, commit: Commit, advanced: Chunk) -> None:
        before, written = self._chunks[commit.chunk], record.of_commit(commit, self._draw, self._index.mark)
        made = [replace(output, salt=salt) for output, salt in zip(commit.outputs, written.salts, strict=True)]
        self._store(before.batch, made, commit.moves, written.checkpoints)
        self._tell(before.batch, commit.events)
        self._chunks[before.id] = replace(advanced, seq=before.seq, head=before.head)
        uid = self._batches[before.batch].uid
        self._append(record.link_chunk(uid, before, commit.kind, written.encoded, before.owner or "", self.now(),
                                       fence=commit.fence, grant=commit.grant, commit_id=commit.id))  # fmt: skip

    def _has_landed(self, commit: Commit) -> bool:
        entries = self._entries.get(commit.chunk, [])
        return any(journal.decode_header(entry.head).commit_id == commit.id for entry in entries)

    # -- operators ----------------------------------------------------------------------------------------------

    def act(self, act: Act) -> list[ItemNo]:
        with self._lock:
            batch = self._known_batch(act.batch)
            if batch.sealed_at is not None:
                raise Refused(f"batch {batch.name!r} is sealed: reopen it before changing its items")
            changed: list[ItemNo] = []
            parts = list(acts.by_chunk(act, lambda n: chunk_of(self, act.batch, n)))
            if acts.may_come_again(act) and self._was_done(act, [chunk for chunk, _ in parts]):
                return []
            for chunk, changes in parts:
                effect = acts.apply(act, chunk, changes, {c.n: self._place(chunk, c.n) for c in changes})
                if not effect.changes:
                    continue
                written = record.of_act(effect, batch.uid, chunk, act.id, self._draw,
                                        lambda n: len(self._items[act.batch, n]) - 1, self._index.mark)  # fmt: skip
                moves = [Move(c.n, c.place) for c in effect.changes]
                self._store(act.batch, written.outputs, moves, written.checkpoints)
                for new in written.revisions:
                    self._items[act.batch, new.n].append(MemoryItem(new.item, new.salt, new.raw_salt))
                touched_at = self.now() if effect.revived else chunk.touched_at
                acted = replace(chunk, counts=chunk.counts.plus(effect.delta), touched_at=touched_at, due=0.0)
                if effect.seized:
                    acted = replace(
                        acted, fence=effect.fence, version=0, owner=None, expires=0.0, reserved=0, progressed=True
                    )
                self._chunks[chunk.id] = acted
                self._append(record.link_chunk(batch.uid, acted, act.kind, written.encoded, act.actor, self.now(),
                                               fence=effect.fence, commit_id=act.id))  # fmt: skip
                changed += [c.n for c in effect.changes]
            self._tell(act.batch, acts.heard(act, changed))
            return changed

    def _was_done(self, act: Act, chunks: list[Chunk]) -> bool:
        """Return whether the id of the act is in the chains of the chunks, or of those that they were cut from."""
        every = self.chunks(act.batch)
        chains = {before.id for chunk in chunks for before in lineage(every, chunk.lo)}
        entries = (entry for chain in chains for entry in self._entries.get(chain, []))
        return bool(act.id) and any(journal.decode_header(entry.head).commit_id == act.id for entry in entries)

    # -- reading ------------------------------------------------------------------------------------------------

    def items(self, batch: BatchId, *, lo: int = 0, hi: int | None = None, state: State | None = None,
                limit: int = 1000) -> list[StoredItem]:  # fmt: skip
        with self._lock:
            found: list[StoredItem] = []
            admitted = self._known_batch(batch).admitted
            numbers = range(lo, admitted if hi is None else min(hi, admitted))
            chunks = sorted((c for c in self._chunks.values() if c.batch == batch), key=lambda c: c.lo)
            held = ((ItemNo(n), chunk) for chunk in chunks for n in _both(numbers, chunk))
            for n, chunk in held:
                place, revisions = self._place(chunk, n), self._items[batch, n]
                if state is None or place.state is state:
                    (item, salt, raw_salt), parent = revisions[-1], revisions[0].item.parent
                    found.append(StoredItem(n=n, key=item.key, place=place, payload=item.payload, salt=salt,
                                            revision=len(revisions) - 1, raw_salt=raw_salt, parent=parent))  # fmt: skip
                if len(found) >= limit:
                    break
            return found

    def revisions(self, batch: BatchId, n: ItemNo) -> list[StoredItem]:
        with self._lock:
            return [
                replace(row, payload=each.item.payload, salt=each.salt, raw_salt=each.raw_salt, revision=number)
                for row in self.items(batch, lo=n, hi=n + 1)
                for number, each in enumerate(self._items[batch, n])
            ]

    def outputs(self, batch: BatchId, *, lo: int = 0, hi: int | None = None, stage: int | None = None,
                limit: int = 1000) -> list[Output]:  # fmt: skip
        with self._lock:
            found = [
                output for (b, n, s), output in self._outputs.items()
                if b == batch and n >= lo and (hi is None or n < hi) and (stage is None or s == stage)
            ]  # fmt: skip
            return sorted(found, key=lambda output: (output.n, output.stage))[:limit]

    def checkpoints(self, batch: BatchId, *, lo: int = 0, hi: int | None = None, limit: int = 1000) -> list[Checkpoint]:
        with self._lock:
            self._known_batch(batch)
            found = [
                each for (b, n), each in self._checkpoints.items() if b == batch and n >= lo and (hi is None or n < hi)
            ]
            return sorted(found, key=lambda each: each.n)[:limit]

    def entries(self, chain: int, *, after: int = 0, limit: int = 1000) -> list[Entry]:
        with self._lock:
            return self._entries.get(chain, [])[after : after + limit]

    # -- helpers ------------------------------------------------------------------------------------------------

    def _place(self, chunk: Chunk | Claim, n: ItemNo) -> ItemState:
        """Return the stored place of an item of a chunk, or the one that follows from its outputs."""
        place = self._places.get((chunk.batch, n))
        if place is not None:
            return place
        stages = range(chunk.first, chunk.end)
        stage = next((s for s in stages if (chunk.batch, n, s) not in self._outputs), chunk.end)
        return START if stage == 0 else on_plain_way(stage, chunk.end)

    def _store(
        self, batch: BatchId, outputs: Sequence[Output], moves: Sequence[Move], reached: Sequence[Checkpoint]
    ) -> None:
        for output in outputs:
            self._outputs[batch, output.n, output.stage] = output
        for move in moves:
            self._places[batch, move.n] = move.place
        for checkpoint in reached:
            self._checkpoints[batch, checkpoint.n] = replace(checkpoint, at=self.now())

    def _append(self, entry: Entry) -> None:
        """Add the next entry to the chain of a chunk."""
        self._entries.setdefault(entry.chain, []).append(entry)
        number = ChunkId(entry.chain)
        self._chunks[number] = replace(self._chunks[number], seq=entry.seq, head=entry.hash)


def _both(numbers: range, chunk: Chunk) -> range:
    """Return the numbers that are also in a chunk."""
    return range(max(numbers.start, chunk.lo), min(numbers.stop, chunk.hi))
