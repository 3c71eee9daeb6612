"""A store in one file: each line is one transaction, written as the rows that it changed.

Opening the log means reading all of its lines. Any number of processes on one host may share it: each call locks the
file and reads what others have written before it decides. Every decision is a function of the core, and so is every
entry of the journal. The store looks up facts and writes the answers. It holds everything in memory and never removes a
line, so it is for small batches, and for showing how to write a store.
"""

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core import acts, course, ingest, journal, lease, record, sections, settle
from holdfast.core.canonical import key_text
from holdfast.core.commitments import GRANT_BYTES, INDEX_KEY_BYTES, UID_BYTES, Draw, KeyIndex, Mark
from holdfast.core.course import Amended, Barrier, BatchFacts, Decide
from holdfast.core.errors import Refused, StoreUnavailable, UsageError
from holdfast.core.model import (
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
    Key,
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
from holdfast.stores import faults, owners
from holdfast.stores.base import (
    NOWHERE,
    BatchCopy,
    Capabilities,
    CopiedItem,
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
    random_bytes,
    unwritten,
)

replace = msgspec.structs.replace
INDEX_KEY = "index"


class Revision(msgspec.Struct, frozen=True):
    """One payload of an item, with its salts. `NewItem.raw` is not stored: the journal has a commitment to it."""

    key: Key
    payload: bytes
    salt: bytes
    raw_salt: bytes
    parent: ItemNo | None


TABLES: dict[str, tuple[Any, Any]] = {
    "batches": (int, Batch),
    "chunks": (int, Chunk),
    "items": (tuple[int, int, int], Revision),
    "places": (tuple[int, int], ItemState),
    "outputs": (tuple[int, int, int], Output),
    "checkpoints": (tuple[int, int], Checkpoint),
    "entries": (tuple[int, int], Entry),
    "events": (int, StoredEvent),
    "receivers": (str, int),
    "secrets": (str, bytes),
}
"""The type of the key and of the row of every table. Outputs, checkpoints and revisions have their salts beside their
content, and entries have their words (`Entry.texts`)."""


class LogStore:
    """All state in a log of rows."""

    capabilities = Capabilities()

    def __init__(
        self, path: str | Path, *, clock: Callable[[], float] = time.time,
        is_dead: Callable[[str], bool] = owners.is_dead, draw: Draw = random_bytes,
    ) -> None:  # fmt: skip
        self.url = f"log:{path}"
        self._clock, self._is_dead, self._draw = clock, is_dead, draw
        self._mutex = threading.RLock()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        _sync_folder(Path(path).parent)
        self._forget()
        with self._turn("open_batch"):
            if INDEX_KEY not in self._rows["secrets"]:
                self._put("secrets", INDEX_KEY, draw(INDEX_KEY_BYTES))

    def now(self) -> float:
        return self._clock()

    def mark(self, batch: BatchId) -> int:
        """Return the length of the log."""
        return os.fstat(self._file).st_size

    def close(self) -> None:
        with self._mutex:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1

    # -- batches ------------------------------------------------------------------------------------------------

    def open_batch(self, name: str, pipeline: str, definition: bytes, *, actor: str) -> Batch:
        with self._turn("open_batch"):
            found = find_batch(self, name)
            if found is None:
                number = BatchId(len(self._rows["batches"]) + 1)
                found = Batch(id=number, uid=self._draw(UID_BYTES), name=name, pipeline=pipeline, definition=definition,
                              opened_at=self.now(), admitted=0, head=journal.GENESIS)  # fmt: skip
                body = journal.Opened(name=name, pipeline=pipeline, definition=definition)
                self._link_batch(found, "opened", body, actor)
                self._tell(number, [course.batch_opened(name, pipeline)])
            return self._amend(found.id, course.to_redefine(pipeline, definition), actor).batch

    def amend(self, batch: BatchId, decide: Decide, *, actor: str) -> Amended:
        with self._turn("amend"):
            return self._amend(batch, decide, actor)

    def seal(
        self, batch: BatchId, *, actor: str, reconciliation: bytes, reason: str = "", events: Sequence[Event] = ()
    ) -> Batch:
        with self._turn("seal"):
            return self._amend(batch, course.to_seal(reconciliation, reason=reason, events=events), actor).batch

    def install(self, copy: BatchCopy) -> Batch:
        with self._turn("open_batch"):
            check_installable(self, copy)
            made, first = replace(copy.batch, id=BatchId(len(self._rows["batches"]) + 1)), len(self._rows["chunks"]) + 1
            ids = {chunk.id: ChunkId(at) for at, chunk in enumerate(copy.chunks, start=first)}
            chains = {chunk.number: int(ids[chunk.id]) for chunk in copy.chunks} | {0: chain_of_batch(made.id)}
            self._put("batches", made.id, made)
            for chunk in copy.chunks:
                parent = None if chunk.parent is None else ids[chunk.parent]
                self._put("chunks", ids[chunk.id], replace(chunk, id=ids[chunk.id], batch=made.id, parent=parent))
            for item in copied_items(copy):
                self._install_item(made.id, item)
            for at in copied_checkpoints(copy):
                self._put("checkpoints", (made.id, at.n), at)
            for number, entry in copy.entries():
                self._put("entries", (chains[number], entry.seq), replace(entry, chain=chains[number]))
            return made

    def _install_item(self, batch: BatchId, item: CopiedItem) -> None:
        """Write an item with everything that belongs to it; a place only if it does not follow from the outputs."""
        for row in item.revisions:
            revision = Revision(row.key, row.payload, row.salt, row.raw_salt, row.parent)
            self._put("items", (batch, row.n, row.revision), revision)
        for output in item.outputs:
            self._put("outputs", (batch, output.n, output.stage), output)
        first = item.revisions[0]
        if self._place(chunk_of(self, batch, first.n), first.n) != first.place:
            self._put("places", (batch, first.n), first.place)

    def _amend(self, batch: BatchId, decide: Decide, actor: str) -> Amended:
        found = self._known(batch)
        facts = BatchFacts(found, self.now(), lambda: self.chunks(batch), lambda *note: self._is_noted(batch, *note))
        change = decide(facts)
        if change is None:
            return Amended(batch=found, written=False)
        self._tell(batch, change.events)
        self._link_batch(change.batch, change.kind, change.body, actor)
        return Amended(batch=self._known(batch), written=True)

    def _is_noted(self, batch: BatchId, kind: str, body: journal.Body) -> bool:
        """Return whether there is such a note. Stored bodies have salts, so bodies are compared with their words put
        back. That is possible because this store never removes words: others remember a mark of the note."""
        content = journal.encode_content(body)
        entries = self.entries(chain_of_batch(batch), limit=1 << 60)
        notes = (entry for entry in entries if journal.decode_header(entry.head).kind == kind)
        return any(journal.encode_content(sections.decode(entry)) == content for entry in notes)

    def delivered(self, receiver: str, up_to: int = 0) -> int:
        with self._turn("delivered"):
            at = self._rows["receivers"].get(receiver, 0)
            return at if up_to <= at else self._put("receivers", receiver, up_to)

    # -- items in -----------------------------------------------------------------------------------------------

    def add_items(
        self, batch: BatchId, items: Sequence[NewItem], *, kind: Kind = Kind.ITEMS, ended: bool = False,
        actor: str = "", origin: ItemOrigin = NOWHERE,
    ) -> Admitted:  # fmt: skip
        with self._turn("add_items"):
            found = self._known(batch)
            fresh, answer = ingest.sort_out(items, self.known(batch, items), found.admitted)
            if not fresh and not (ended and found.ingested_at is None):
                return answer
            course.check_takes_items(found, len(fresh))
            self._admit(found, fresh, kind, ended or course.is_last(found, len(fresh)), actor, origin)
            return answer

    def _admit(
        self, batch: Batch, fresh: Sequence[NewItem], kind: Kind, ended: bool, actor: str, origin: ItemOrigin
    ) -> None:
        lo, now, (id_, number) = batch.admitted, self.now(), self._new_numbers(batch.id)
        body, salts, raw_salts = record.of_items(batch, fresh, number=number, kind=kind, ended=ended, origin=origin,
                                                 end=course.stage_count(batch.definition), draw=self._draw)  # fmt: skip
        for n, (item, salt, raw_salt) in enumerate(zip(fresh, salts, raw_salts, strict=True), start=lo):
            self._put("items", (batch.id, n, 0), Revision(item.key, item.payload, salt, raw_salt or b"", item.parent))
            if item.place.state is State.DEAD:
                self._put("places", (batch.id, n), item.place)
        self._tell(batch.id, [course.item_dead(n, fresh[n - lo].key, fresh[n - lo].place) for n, _ in body.invalid])
        grown = replace(batch, admitted=lo + len(fresh), ingested_at=now if ended else batch.ingested_at)
        entry = self._link_batch(grown, "ingested", body, actor)
        if fresh:
            self._put("chunks", id_, record.chunk_of_items(body, batch, entry, id_=id_, fence=0, now=now))

    def known(self, batch: BatchId, items: Sequence[NewItem]) -> ingest.Known:
        with self._turn():
            self._known(batch)
            numbers = [self._numbers.get((batch, key_text(item.key))) for item in items]
            return {
                index: (ItemNo(n), self._newest(batch, n).payload == items[index].payload)
                for index, n in enumerate(numbers)
                if n is not None
            }

    # -- work ---------------------------------------------------------------------------------------------------

    def claim(self, want: ClaimRequest) -> Claim | Idle:
        with self._turn("claim"):
            now, batch = self.now(), self._known(want.batch)
            dead = sum(chunk.counts.dead for chunk in self.chunks(batch.id))
            why = course.barrier(batch, now, want.tolerance, dead)
            chunk = self._claimable(want, now) if why is None else None
            afford = self._affordable(want, now)
            if chunk is None or afford == 0:
                return self._idle(want, now, why if chunk is None else Barrier.BUDGET)
            if lease.must_end(chunk):
                chunk = self._roll_over(batch, chunk, now)
            states = [self._place(chunk, n).state for n in range(chunk.lo, chunk.hi)]
            given = lease.grant(chunk, want, self._draw(GRANT_BYTES), now=now, states=lambda: states, affordable=afford)
            if given.child is not None:
                given = given.with_child(*self._new_numbers(batch.id))
                assert given.child is not None
                self._put("chunks", given.child.id, given.child)
            places = self._rows["places"]
            tried = [(n, places[batch.id, n]) for n in range(given.chunk.lo, given.chunk.hi) if (batch.id, n) in places]
            self._link(given.chunk, given.entry(batch.uid, lease.snapshots(tried), now, self._draw))
            return given.claim(batch.uid)

    def _roll_over(self, batch: Batch, chunk: Chunk, now: float) -> Chunk:
        """End the chain of a chunk; return its successor. The chunk stays, without items: its chain is read by it."""
        id_, number = self._new_numbers(batch.id)
        rolled = record.roll_over(
            batch.uid, chunk, list(each_item(self, batch.id, lo=chunk.lo, hi=chunk.hi)),
            list(each_output(self, batch.id, lo=chunk.lo, hi=chunk.hi)),
            list(each_checkpoint(self, batch.id, lo=chunk.lo, hi=chunk.hi)),
            id_=id_, number=number, now=now, draw=self._draw, mark=self._mark(),
        )  # fmt: skip
        self._link(rolled.ended, rolled.last)
        self._link(rolled.successor, rolled.first)
        return rolled.successor

    def _claimable(self, want: ClaimRequest, now: float) -> Chunk | None:
        chunks = [chunk for chunk in self._asked(want) if chunk.id not in want.keeps]
        free = [chunk for chunk in chunks if lease.may_claim(chunk, now=now)]
        left = [chunk for chunk in chunks if chunk.owner is not None and self._is_dead(chunk.owner)]
        return lease.first(free) or lease.first(
            chunk for chunk in left if lease.may_claim(chunk, now=now, owner_is_dead=True)
        )

    def _asked(self, want: ClaimRequest) -> list[Chunk]:
        return self.chunks(want.batch) if want.only is None else [chunk_of(self, want.batch, want.only)]

    def _affordable(self, want: ClaimRequest, now: float) -> int | None:
        chunks = self.chunks(want.batch)
        held = [chunk for chunk in chunks if chunk.pending and (chunk.id in want.keeps or self._is_held(chunk, now))]
        return lease.affordable(cap=want.cap, reserve=want.reserve, spent=sum(chunk.counts.spent for chunk in chunks),
                                reserved=sum(chunk.reserved for chunk in held))  # fmt: skip

    def _idle(self, want: ClaimRequest, now: float, why: Barrier | None) -> Idle:
        chunks = [chunk for chunk in self._asked(want) if chunk.pending]
        times = [chunk.due if chunk.owner is None else max(chunk.due, chunk.expires) for chunk in chunks]
        return Idle(pending=sum(chunk.pending for chunk in chunks), next_due=min(times, default=None),
                    held=sum(self._is_held(chunk, now) for chunk in chunks), why=why,
                    mark=self._read_to)  # fmt: skip

    def _is_held(self, chunk: Chunk, now: float) -> bool:
        return chunk.owner is not None and chunk.expires >= now and not self._is_dead(chunk.owner)

    def load(self, claim: Claim, after: ItemNo | None, limit: int, max_bytes: int) -> list[Item]:
        with self._turn():
            found: list[Item] = []
            for n in map(ItemNo, range(claim.lo if after is None else after + 1, claim.hi)):
                place, new = self._place(claim, n), self._newest(claim.batch, n)
                if place.state is not State.PENDING:
                    continue
                is_first = place.stage == claim.first
                output = None if is_first else self._rows["outputs"].get((claim.batch, n, place.stage - 1))
                given = new.payload if is_first else (output.data if output is not None else None) or b""
                is_plain, file = (claim.batch, n) not in self._rows["places"], None if output is None else output.file
                found.append(Item(n, new.key, given, place, is_plain, file, self._revisions[claim.batch, n]))
                max_bytes -= len(given)
                if len(found) >= limit or max_bytes <= 0:
                    break
            return found

    def renew(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        with self._turn("renew"):
            expires, kept = self.now() + seconds, list[Lease]()
            for held in leases:
                chunk = self._rows["chunks"].get(held.chunk)
                if chunk is not None and lease.is_held_by(chunk, held):
                    self._put("chunks", chunk.id, replace(chunk, expires=expires))
                    kept.append(replace(held, expires=expires))
            return kept

    def commit(self, commits: Sequence[Commit]) -> list[Receipt]:
        with self._turn("commit"):
            chunks = self._rows["chunks"]
            guards = {
                number: settle.guard_of(chunks[number], sealed=self._known(chunks[number].batch).sealed_at is not None)
                for number in {commit.chunk for commit in commits if commit.chunk in chunks}
            }
            judged = settle.judge(commits, guards, lambda commit: self._has(commit.chunk, commit.id))
            for commit in (each.commit for each in judged if each.lands):
                self._land(commit, chunks[commit.chunk])
            return [each.receipt if each.lands else unwritten(each) for each in judged]

    def _land(self, commit: Commit, chunk: Chunk) -> None:
        now, written = self.now(), record.of_commit(commit, self._draw, self._mark())
        outputs = [replace(output, salt=salt) for output, salt in zip(commit.outputs, written.salts, strict=True)]
        self._write(chunk.batch, outputs, commit.moves, written.checkpoints)
        self._tell(chunk.batch, commit.events)
        entry = record.link_chunk(self._known(chunk.batch).uid, chunk, commit.kind, written.encoded, chunk.owner or "",
                                  now, fence=commit.fence, grant=commit.grant, commit_id=commit.id)  # fmt: skip
        self._link(settle.advanced(chunk, commit, now), entry)

    # -- operators ----------------------------------------------------------------------------------------------

    def act(self, act: Act) -> list[ItemNo]:
        with self._turn("act"):
            batch, changed = self._known(act.batch), list[ItemNo]()
            if batch.sealed_at is not None:
                raise Refused(f"batch {batch.name!r} is sealed: reopen it before changing its items")
            parts = list(acts.by_chunk(act, lambda n: chunk_of(self, act.batch, n)))
            if acts.may_come_again(act) and act.id and self._was_done(act, [chunk for chunk, _ in parts]):
                return []
            for chunk, changes in parts:
                effect = acts.apply(act, chunk, changes, {each.n: self._place(chunk, each.n) for each in changes})
                changed += self._act_on(act, chunk, effect) if effect.changes else []
            self._tell(act.batch, acts.heard(act, changed))
            return changed

    def _act_on(self, act: Act, chunk: Chunk, effect: acts.Effect) -> list[ItemNo]:
        now, changes, uid = self.now(), effect.changes, self._known(act.batch).uid
        written = record.of_act(effect, uid, chunk, act.id, self._draw, lambda n: self._revisions[act.batch, n],
                                self._mark())  # fmt: skip
        self._write(act.batch, written.outputs, [Move(each.n, each.place) for each in changes], written.checkpoints)
        for n, number, item, salt, raw_salt in written.revisions:
            self._put("items", (act.batch, n, number), Revision(item.key, item.payload, salt, raw_salt, item.parent))
        acted = replace(chunk, counts=chunk.counts.plus(effect.delta), due=0.0,
                        touched_at=now if effect.revived else chunk.touched_at)  # fmt: skip
        if effect.seized:
            acted = replace(acted, fence=effect.fence, version=0, owner=None, expires=0.0, reserved=0, progressed=True)
        entry = record.link_chunk(uid, chunk, act.kind, written.encoded, act.actor, now, fence=effect.fence,
                                  commit_id=act.id)  # fmt: skip
        self._link(acted, entry)
        return [each.n for each in changes]

    def _was_done(self, act: Act, chunks: Sequence[Chunk]) -> bool:
        """Return whether the act is in the chains of the chunks, or of those that they were cut off or succeed."""
        every = self.chunks(act.batch)
        return any(self._has(before.id, act.id) for chunk in chunks for before in lineage(every, chunk.lo))

    # -- reading ------------------------------------------------------------------------------------------------

    def batches(self, name: str | None = None) -> list[Batch]:
        with self._turn():
            return [batch for batch in self._rows["batches"].values() if name in (None, batch.name)]

    def chunks(
        self, batch: BatchId, *, of: ItemNo | None = None, pending: bool = False, limit: int | None = None
    ) -> list[Chunk]:
        with self._turn():
            every = [chunk for chunk in self._rows["chunks"].values() if chunk.batch == batch]
            found = [chunk for chunk in every if (of is None or chunk.lo <= of < chunk.hi)]
            wanted = (each for each in found if each.pending or not pending)
            return sorted(wanted, key=lambda each: (each.lo, each.hi, each.number))[:limit]

    def items(self, batch: BatchId, *, lo: int = 0, hi: int | None = None, state: State | None = None,
              limit: int = 1000) -> list[StoredItem]:  # fmt: skip
        with self._turn():
            end, found = self._known(batch).admitted if hi is None else hi, list[StoredItem]()
            every = ((chunk, n) for chunk in self.chunks(batch) for n in range(max(lo, chunk.lo), min(end, chunk.hi)))
            for chunk, n in every:
                place, new = self._place(chunk, n), self._newest(batch, n)
                if len(found) >= limit:
                    break
                if state is None or place.state is state:
                    found.append(StoredItem(n=ItemNo(n), key=new.key, place=place, payload=new.payload, salt=new.salt,
                                            revision=self._revisions[batch, n], raw_salt=new.raw_salt,
                                            parent=self._rows["items"][batch, n, 0].parent))  # fmt: skip
            return found

    def revisions(self, batch: BatchId, n: ItemNo) -> list[StoredItem]:
        with self._turn():
            rows = self._rows["items"]
            return [
                replace(item, revision=number, payload=each.payload, salt=each.salt, raw_salt=each.raw_salt)
                for item in self.items(batch, lo=n, hi=n + 1)
                for number in range(item.revision + 1)
                for each in [rows[batch, n, number]]
            ]

    def outputs(self, batch: BatchId, *, lo: int = 0, hi: int | None = None, stage: int | None = None,
                limit: int = 1000) -> list[Output]:  # fmt: skip
        with self._turn():
            found = [
                output
                for (number, n, s), output in sorted(self._rows["outputs"].items())
                if number == batch and lo <= n and (hi is None or n < hi) and stage in (None, s)
            ]
            return found[:limit]

    def checkpoints(self, batch: BatchId, *, lo: int = 0, hi: int | None = None, limit: int = 1000) -> list[Checkpoint]:
        with self._turn():
            self._known(batch)
            every = sorted(self._rows["checkpoints"].items())
            return [at for (number, n), at in every if number == batch and lo <= n and (hi is None or n < hi)][:limit]

    def entries(self, chain: int, *, after: int = 0, limit: int = 1000) -> list[Entry]:
        with self._turn():
            found, rows = list[Entry](), self._rows["entries"]
            while len(found) < limit and (entry := rows.get((chain, after + len(found) + 1))) is not None:
                found.append(entry)
            return found

    def events(self, after: int = 0, *, limit: int = 1000) -> list[StoredEvent]:
        with self._turn():
            return list(self._rows["events"].values())[after : after + limit]

    def _mark(self) -> Mark:
        """Return the function that makes keyed marks, by which accumulators are recognised."""
        return KeyIndex(self._rows["secrets"][INDEX_KEY]).mark

    # -- rows ---------------------------------------------------------------------------------------------------

    def _known(self, batch: BatchId) -> Batch:
        if batch not in self._rows["batches"]:
            raise UsageError(f"{self.url} has no batch number {batch}")
        return self._rows["batches"][batch]

    def _new_numbers(self, batch: BatchId) -> tuple[ChunkId, int]:
        """Return the numbers of a new chunk: in this store, and within its batch."""
        numbers = [chunk.number for chunk in self._rows["chunks"].values() if chunk.batch == batch]
        return ChunkId(len(self._rows["chunks"]) + 1), max(numbers, default=0) + 1

    def _newest(self, batch: BatchId, n: int) -> Revision:
        return self._rows["items"][batch, n, self._revisions[batch, n]]

    def _place(self, chunk: Chunk | Claim, n: int) -> ItemState:
        """Return the stored place, or the one that follows from the outputs within the window of stages."""
        if (chunk.batch, n) in self._rows["places"]:
            return self._rows["places"][chunk.batch, n]
        window, outputs = range(chunk.first, chunk.end), self._rows["outputs"]
        return on_plain_way(next((s for s in window if (chunk.batch, n, s) not in outputs), chunk.end), chunk.end)

    def _write(
        self, batch: BatchId, outputs: Sequence[Output], moves: Sequence[Move], reached: Sequence[Checkpoint]
    ) -> None:
        for output in outputs:
            self._put("outputs", (batch, output.n, output.stage), output)
        for move in moves:
            self._put("places", (batch, move.n), move.place)
        for at in reached:
            self._put("checkpoints", (batch, at.n), replace(at, at=self.now()))

    def _tell(self, batch: BatchId, events: Sequence[Event]) -> None:
        for event in events:
            number = len(self._rows["events"]) + 1
            self._put("events", number, StoredEvent(id=number, batch=batch, at=self.now(), kind=event.kind,
                                                    body=event.body, n=event.n))  # fmt: skip

    def _link_batch(self, batch: Batch, kind: str, body: journal.Body, actor: str) -> Entry:
        entry = record.link_batch(batch, kind, body, actor, self.now(), self._draw)
        self._put("batches", batch.id, replace(batch, seq=entry.seq, head=entry.hash))
        return self._put("entries", (entry.chain, entry.seq), entry)

    def _link(self, chunk: Chunk, entry: Entry) -> None:
        self._put("entries", (entry.chain, entry.seq), entry)
        self._put("chunks", chunk.id, replace(chunk, seq=entry.seq, head=entry.hash))

    def _has(self, chain: int, commit_id: bytes) -> bool:
        entries = self.entries(chain, limit=1 << 60)
        return any(journal.decode_header(entry.head).commit_id == commit_id for entry in entries)

    def _put(self, table: str, key: Any, row: Any) -> Any:
        self._changed.append((table, key, row))
        self._take(table, key, row)
        return row

    def _take(self, table: str, key: Any, row: Any) -> None:
        self._rows[table][key] = row
        if table == "items":
            batch, n, revision = key
            self._numbers[batch, key_text(row.key)], self._revisions[batch, n] = n, revision

    # -- the log ------------------------------------------------------------------------------------------------

    @contextmanager
    def _turn(self, verb: str = "") -> Iterator[None]:
        """Lock the file, read what others have written, and write everything that this turn changes, or nothing."""
        with self._mutex:
            if self._depth:
                yield
                return
            if self._file < 0:
                raise StoreUnavailable(f"{self.url} is closed")
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._depth += 1
            try:
                self._catch_up()
                yield
                self._append(verb)
            except BaseException:
                self._forget()
                raise
            finally:
                self._depth = 0
                if self._file >= 0:
                    fcntl.flock(self._file, fcntl.LOCK_UN)

    def _append(self, verb: str) -> None:
        if not self._changed:
            return
        line = msgspec.json.encode(self._changed) + b"\n"
        try:
            written = os.pwrite(self._file, line, self._read_to)
            faults.reach(f"{verb}.written")
            if written < len(line):
                raise OSError(f"{written} of {len(line)} bytes were written")
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, self._read_to)
            raise StoreUnavailable(f"{self.url} cannot be written: {error}; nothing was changed") from error
        self._read_to += len(line)
        self._changed = []

    def _catch_up(self) -> None:
        size = os.fstat(self._file).st_size
        if size == self._read_to:
            return
        whole, _, torn = os.pread(self._file, size - self._read_to, self._read_to).rpartition(b"\n")
        for line in whole.splitlines():
            for table, key, row in msgspec.json.decode(line, type=list[tuple[str, msgspec.Raw, msgspec.Raw]]):
                kinds = TABLES[table]
                self._take(table, msgspec.json.decode(key, type=kinds[0]), msgspec.json.decode(row, type=kinds[1]))
        self._read_to = size - len(torn)
        if torn:
            os.ftruncate(self._file, self._read_to)

    def _forget(self) -> None:
        """Clear the memory: the next turn reads the log again."""
        self._rows: dict[str, dict[Any, Any]] = {table: {} for table in TABLES}
        self._numbers: dict[tuple[int, str], int] = {}
        self._revisions: dict[tuple[int, int], int] = {}
        """The number of the newest revision of every item."""
        self._changed: list[tuple[str, Any, Any]] = []
        self._read_to = self._depth = 0


def open_log(url: str, *, must_exist: bool = False) -> LogStore:
    """Open the store of a URL such as `log:squares.log`: the function for an entry point of `holdfast.stores`."""
    path = Path(url.partition(":")[2].removeprefix("//"))
    if must_exist and not path.exists():
        raise UsageError(f"there is no store at {path}: run a pipeline first, or name another")
    return LogStore(path)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
