"""The embedded store: one SQLite file, any number of processes on one host.

Read the verbs in the order of an item's life: add_items, claim, load, renew, commit, act. Each is one short transaction
that takes the write lock at its start, reads the facts, asks the core, and writes the answer. All bytes are built
before it begins.
"""

import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from holdfast.core import acts, course, ingest, journal, lease, record, settle
from holdfast.core.commitments import GRANT_BYTES, SALT_BYTES, UID_BYTES, Draw, KeyIndex
from holdfast.core.course import Barrier, stage_count
from holdfast.core.errors import Refused, UsageError
from holdfast.core.ingest import Known
from holdfast.core.limits import BATCHES, ITEMS
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
    Kind,
    Lease,
    NewItem,
    Output,
    Receipt,
    State,
    StoredEvent,
    StoredItem,
)
from holdfast.stores import faults, owners
from holdfast.stores.base import (
    NOWHERE,
    BatchCopy,
    Capabilities,
    Idle,
    SetBack,
    check_installable,
    further,
    note_mark,
    random_bytes,
    unwritten,
)
from holdfast.stores.sqlite import copies, rows
from holdfast.stores.sqlite.claims import Claims
from holdfast.stores.sqlite.file import SqliteFile
from holdfast.stores.sqlite.keys import insert_keys, insert_keys_one_by_one, known_items
from holdfast.stores.sqlite.rows import (
    ITEM_BITS,
    PLAIN_PLACES,
    STAGE_BITS,
    Granted,
    Landing,
    Prepared,
    Window,
    batch_of,
    checkpoint_of,
    chunk_of,
    entry_of,
    event_of,
    item_of,
    load,
    output_of,
    place_row,
    prepare,
    row_of_advance,
    row_of_grant,
    row_of_output,
    row_of_start,
    rows_of_checkpoints,
    rows_of_revisions,
    stored_items,
    write_rows,
)
from holdfast.stores.sqlite.safety import Epoch
from holdfast.stores.sqlite.upgrade import INDEX_KEY

SQL = load("statements.sql")
GONE = "its row is missing, but chunks or entries that belong to it exist"
LOOSE_ENTRIES = "the journal has entries after the end of one of its chains, or of a chain that it does not have"
LOOSE_KEYS = "its index of keys does not have one key for every item"
LOOSE_TEXTS = "there are words that belong to no entry"
MISCOUNTED = "the number of stages in its row differs from its definition"
T = TypeVar("T")
PAGE = 1000
"""Rows read together if only some of them are wanted."""


class SqliteStore:
    """Batches, items, outputs and the journal in one file."""

    capabilities = Capabilities()

    def __init__(self, path: str | Path, *, clock: Callable[[], float] = time.time,
                 is_dead: Callable[[str], bool] = owners.is_dead, draw: Draw = random_bytes) -> None:  # fmt: skip
        self.path = Path(path)
        self.url = str(path)
        self.now = clock
        self._draw = draw
        self._claims = Claims(is_dead)
        self._file = SqliteFile(self.path, draw)
        self._epoch = Epoch(self._file)
        with self._file.reading() as db:
            self._index = KeyIndex(db.execute(SQL["get_meta"], (INDEX_KEY,))[0][0])
        self._returning: dict[BatchId, bool] = {}
        """Batches whose items are known ones: a guess that decides what is tried first."""

    def mark(self, batch: BatchId) -> int:
        return self._file.mark()

    def close(self) -> None:
        self._epoch.close()
        self._file.close()

    def open_batch(self, name: str, pipeline: str, definition: bytes, *, actor: str) -> Batch:
        found = next(iter(self.batches(name)), None)
        if found is None:
            faults.reach("open_batch.before")
            with self._file.writing("open_batch") as db:
                found = self._batch(db, "batch_by_name", name) or self._make_batch(
                    db, name, pipeline, definition, actor
                )
        if (found.pipeline, found.definition) == (pipeline, definition):
            return found
        faults.reach("open_batch.before")
        return self._amend(found.id, course.to_redefine(pipeline, definition), actor).batch

    def _make_batch(self, db: SqliteFile, name: str, pipeline: str, definition: bytes, actor: str) -> Batch:
        row = (self._draw(UID_BYTES), name, pipeline, definition, course.stage_count(definition), self.now(),
               journal.GENESIS)  # fmt: skip
        made = self._known_batch(db, BatchId(db.execute(SQL["insert_batch"], row)[0][0]))
        if made.id >= BATCHES:
            raise UsageError(f"{self.path} has {BATCHES:,} batches, the most a store can hold: use another file")
        body = journal.Opened(name=name, pipeline=pipeline, definition=definition)
        self._tell(db, made.id, [course.batch_opened(name, pipeline)])
        return replace(made, seq=1, head=self._link_batch(db, made, "opened", body, actor).hash)

    def amend(self, batch: BatchId, decide: course.Decide, *, actor: str) -> course.Amended:
        faults.reach("amend.before")
        return self._amend(batch, decide, actor)

    def seal(
        self, batch: BatchId, *, actor: str, reconciliation: bytes, reason: str = "", events: Sequence[Event] = ()
    ) -> Batch:
        faults.reach("seal.before")
        return self._amend(batch, course.to_seal(reconciliation, reason=reason, events=events), actor).batch

    def _amend(self, batch: BatchId, decide: course.Decide, actor: str) -> course.Amended:
        with self._file.writing("note") as db:
            found = self._known_batch(db, batch)
            facts = course.BatchFacts(found, self.now(), lambda: self._chunks_of(db, batch),
                                      lambda kind, body: self._is_noted(db, batch, kind, body))  # fmt: skip
            change = decide(facts)
            if change is None:
                return course.Amended(batch=found, written=False)
            db.point = faults.AMENDMENTS.get(change.kind, faults.NOTE)
            after = change.batch
            if after != found:
                row = (after.definition, course.stage_count(after.definition), after.course, after.ends_at,
                       after.sealed_at, after.expected, after.closed_at, after.ingested_at, batch)  # fmt: skip
                db.execute(SQL["amend_batch"], row)
            if change.once:
                db.execute(SQL["note_once"], (batch, note_mark(self._index, change.kind, change.body)))
            entry = self._link_batch(db, found, change.kind, change.body, actor)
            self._tell(db, batch, change.events)
            return course.Amended(batch=replace(after, seq=entry.seq, head=entry.hash), written=True)

    def _is_noted(self, db: SqliteFile, batch: BatchId, kind: str, body: journal.Body) -> bool:
        return rows.is_noted(db, batch, note_mark(self._index, kind, body), kind, journal.encode_content(body))

    def _chunks_of(self, db: SqliteFile, batch: BatchId) -> list[Chunk]:
        return [chunk_of(row) for row in db.execute(SQL["chunks_of_batch"], (batch, -1))]

    def install(self, copy: BatchCopy) -> Batch:
        check_installable(self, copy)
        faults.reach("open_batch.before")
        with self._file.writing("open_batch") as db:
            if db.execute(SQL["same_batch"], (copy.batch.uid, copy.batch.name)):
                raise Refused(f"{self.path} has a batch {copy.batch.name!r} since just now: nothing was changed")
            batch = copies.install(db, copy, self._index)
            return self._known_batch(db, batch)

    # -- the outbox ---------------------------------------------------------------------------------------------

    def delivered(self, receiver: str, up_to: int = 0) -> int:
        with self._file.reading() as db:
            found = db.execute(SQL["receiver_at"], (receiver,))
            at = int(found[0][0]) if found else 0
        if up_to <= at:
            return at
        with self._file.writing("delivered") as db:
            return int(db.execute(SQL["advance_receiver"], (receiver, up_to))[0][0])

    def _tell(self, db: SqliteFile, batch: BatchId, events: Sequence[Event]) -> None:
        if events:
            now = self.now()
            write_rows(db.cursor, SQL["insert_events"], [(batch, now, e.kind, e.body, e.n) for e in events])

    # -- chains -------------------------------------------------------------------------------------------------

    def _link_batch(self, db: SqliteFile, batch: Batch, kind: str, body: journal.Body, actor: str) -> Entry:
        entry = record.link_batch(batch, kind, body, actor, self.now(), self._draw)
        rows.insert_entries(db, [entry])
        db.execute(SQL["link_batch"], (entry.seq, entry.hash, batch.id))
        return entry

    # -- items in -----------------------------------------------------------------------------------------------

    def add_items(
        self, batch: BatchId, items: Sequence[NewItem], *, kind: Kind = Kind.ITEMS, ended: bool = False,
        actor: str = "", origin: ItemOrigin = NOWHERE,
    ) -> Admitted:  # fmt: skip
        numbers, known = self._index.numbers([item.key for item in items]), None
        with self._file.reading() as db:
            found = self._known_batch(db, batch)
            if self._returning.get(batch, True):
                known = known_items(db, batch, items, numbers, self._index) if found.admitted else {}
        if known is not None and _is_nothing_new(found, items, known, ended=ended):
            return ingest.sort_out(items, known, found.admitted)[1]
        salted = None if known else record.salt_items(found.uid, items, self._draw)
        faults.reach("add_items.before")
        with self._file.writing("add_items") as db:
            found = self._known_batch(db, batch)
            if found.sealed_at is not None:
                there = known_items(db, batch, items, numbers, self._index)
                if _is_nothing_new(found, items, there, ended=ended):
                    return ingest.sort_out(items, there, found.admitted)[1]
            fresh, answer = self._number(db, found, items, numbers, look_first=bool(known))
            course.check_takes_items(found, len(fresh))
            ended = ended or course.is_last(found, len(fresh))
            if found.admitted + len(fresh) > ITEMS:
                raise UsageError(f"batch {found.name!r} would have more than {ITEMS:,} items: split it")
            if fresh or (ended and found.ingested_at is None):
                self._admit(db, found, fresh, kind, ended, actor, origin, salted)
        self._returning[batch] = answer.known > 0
        return answer

    def _number(
        self, db: SqliteFile, batch: Batch, items: Sequence[NewItem], numbers: "array[int]", *, look_first: bool
    ) -> tuple[Sequence[NewItem], Admitted]:
        """Return the new items, with their keys in the index. Items of a group are mostly all new or all known:
        presumably new items are not looked up first, because the index refuses known ones."""
        lo = batch.admitted
        if not look_first and insert_keys(db, batch.id, numbers, lo):
            return items, ingest.all_new(items, lo)
        known = known_items(db, batch.id, items, numbers, self._index)
        fresh, answer = ingest.sort_out(items, known, lo)
        if not insert_keys(db, batch.id, self._index.numbers(item.key for item in fresh), lo):
            insert_keys_one_by_one(db, batch.id, fresh, lo, self._index)
        return fresh, answer

    def _admit(self, db: SqliteFile, batch: Batch, fresh: Sequence[NewItem], kind: Kind, ended: bool, actor: str,
               origin: ItemOrigin, salted: record.SaltedItems | None) -> None:  # fmt: skip
        now, (id_, number) = self.now(), rows.new_numbers(db, batch.id)
        body, salts, raw_salts = record.of_items(batch, fresh, number=number, kind=kind, ended=ended, origin=origin,
                                                 end=course.stage_count(batch.definition), draw=self._draw,
                                                 salted=salted)  # fmt: skip
        if fresh:
            base = batch.id << ITEM_BITS
            new = enumerate(zip(fresh, salts, raw_salts, strict=True), start=base + body.lo)
            items = [(n, x.key, salt + x.payload, raw, x.parent) for n, (x, salt, raw) in new]
            write_rows(db.cursor, SQL["insert_items"], items)
            refused = [(n, fresh[n - body.lo]) for n, _ in body.invalid]
            write_rows(db.cursor, SQL["put_places"], [(base + n, *place_row(item.place)) for n, item in refused])
            self._tell(db, batch.id, [course.item_dead(n, item.key, item.place) for n, item in refused])
        entry = self._link_batch(db, batch, "ingested", body, actor)
        if fresh:
            rows.insert_chunk(db, record.chunk_of_items(body, batch, entry, id_=id_, fence=self._epoch.floor, now=now))
        db.execute(SQL["grow_batch"], (body.hi, now if ended else None, batch.id))

    # -- work ---------------------------------------------------------------------------------------------------

    def claim(self, want: ClaimRequest) -> Claim | Idle:
        with self._file.reading() as db:
            offer = self._offer(db, replace(want, chunks=1), self.now(), 0.0)
        if isinstance(offer, Idle):
            return offer  # found without a write
        faults.reach("claim.before")
        with self._file.writing("claim") as db:
            now = self.now()
            offer = self._offer(db, want, now, db.waited)
            if isinstance(offer, Idle):
                return offer
            afford = self._claims.affordable(db, want, now)
            if afford == 0:
                return replace(self._claims.idle(db, want, self.now()), why=Barrier.BUDGET)
            first, *others = offer
            batch = self._known_batch(db, want.batch)
            first = self._roll_over(db, batch, first) if lease.must_end(first) else first
            head = self._grant(db, batch.uid, first, want, now, afford)
            self._write_grants(db, [head])
            self._epoch.granted(db)  # the others share the transaction, so the note is at most one ahead
            more = list(self._grant_others(db, batch.uid, head.claim, others, want, now))
            self._write_grants(db, more)
            return replace(head.claim, more=tuple(each.claim for each in more))

    def _grant_others(
        self, db: SqliteFile, uid: bytes, claim: Claim, others: Sequence[Chunk], want: ClaimRequest, now: float
    ) -> Iterator[Granted]:
        granted = claim.pending
        for chunk in others if not claim.blame else ():
            if lease.is_further(chunk, want, granted):
                yield self._grant(db, uid, chunk, want, now, None)
                granted += chunk.pending

    def _roll_over(self, db: SqliteFile, batch: Batch, chunk: Chunk) -> Chunk:
        """End the chain of a chunk; return its successor."""
        base, (id_, number) = batch.id << ITEM_BITS, rows.new_numbers(db, batch.id)
        span = (base + chunk.lo, base + chunk.hi)
        items = stored_items(db, batch.id, db.execute(SQL["records_any"], (*span, -1)), chunk.end)
        outputs = db.execute(SQL["outputs_in_range"], (span[0] << STAGE_BITS, span[1] << STAGE_BITS, -1))
        reached = db.execute(SQL["checkpoints_in_range"], (*span, -1))
        rolled = record.roll_over(
            batch.uid, chunk, items, [output_of(row, base) for row in outputs],
            [checkpoint_of(row, base) for row in reached], id_=id_, number=number, now=self.now(), draw=self._draw,
            mark=self._index.mark,
        )  # fmt: skip
        rows.insert_entries(db, [rolled.last, rolled.first])
        rows.end_chunk(db, rolled.ended)
        rows.insert_chunk(db, rolled.successor)
        return rolled.successor

    def _write_grants(self, db: SqliteFile, granted: Sequence[Granted]) -> None:
        rows.insert_entries(db, [each.entry for each in granted])
        rows.change_chunks(db, "grant_chunks", [each.row for each in granted])

    def _offer(self, db: SqliteFile, want: ClaimRequest, now: float, waited: float) -> Sequence[Chunk] | Idle:
        """Return chunks that may be claimed, the preferred one first, or the reason why there is none."""
        dead = rows.dead_count(db, want.batch) if want.tolerance is not None else 0
        why = course.barrier(self._known_batch(db, want.batch), now, want.tolerance, dead)
        chunks = self._claims.claimable(db, want, now, waited) if why is None else ()
        return chunks or replace(self._claims.idle(db, want, self.now()), why=why)

    def _grant(
        self, db: SqliteFile, uid: bytes, chunk: Chunk, want: ClaimRequest, now: float, afford: int | None
    ) -> Granted:
        given = lease.grant(chunk, want, self._draw(GRANT_BYTES), now=now, affordable=afford, floor=self._epoch.floor,
                            states=lambda: rows.states(db, chunk))  # fmt: skip
        if given.child is not None:
            given = given.with_child(*rows.new_numbers(db, chunk.batch))
            assert given.child is not None
            rows.insert_chunk(db, given.child)
        tried = rows.snapshots(db, given.chunk) if chunk.seq or chunk.parent else []
        entry = given.entry(uid, tried, now, self._draw)
        return Granted(given.claim(uid), entry, row_of_grant(given.chunk, chunk.fence, entry))

    def load(self, claim: Claim, after: ItemNo | None, limit: int, max_bytes: int) -> list[Item]:
        base = claim.batch << ITEM_BITS
        lo, hi = base + (claim.lo if after is None else after + 1), base + claim.hi
        items: list[Item] = []
        with self._file.reading() as db:
            if not db.execute(SQL["anything_in_range"], (lo, hi, lo << STAGE_BITS, hi << STAGE_BITS))[0][0]:
                start = PLAIN_PLACES[claim.first]
                for id_, key, payload in db.cursor(SQL["load_plain"], (lo, hi, limit)):
                    items.append(Item(ItemNo(id_ - base), key, payload[SALT_BYTES:], start, True))
                    max_bytes -= len(payload) - SALT_BYTES
                    if max_bytes <= 0:
                        break
                return items
            window = Window(claim.first, claim.end)
            for row in db.cursor(SQL["load_any"], (claim.first, lo, hi, claim.end, limit)):
                item = item_of(row, base, window)
                items.append(item)
                max_bytes -= len(item.input)
                if max_bytes <= 0:
                    break
        return items

    def renew(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        faults.reach("renew.before")
        with self._file.writing("renew") as db:
            expires = self.now() + seconds
            return [
                replace(held, expires=expires)
                for held in leases
                if db.execute(SQL["renew_lease"], (expires, held.chunk, held.fence, held.owner, held.grant))
            ]

    def commit(self, commits: Sequence[Commit]) -> list[Receipt]:
        prepared = [prepare(commit, self._draw, self._index.mark) for commit in commits]
        faults.reach("commit.before")
        with self._file.writing("commit") as db:
            faults.reach("commit.begun")
            return self._commit_together(db, prepared)

    def _commit_together(self, db: SqliteFile, prepared: Sequence[Prepared]) -> list[Receipt]:
        """Judge every commit by its own guard, then write all of them in bulk."""
        commits = [each.commit for each in prepared]
        heads = rows.chain_heads(db, [commit.chunk for commit in commits])
        guards = {chunk: head.guard for chunk, head in heads.items()}
        judged = settle.judge(commits, guards, lambda commit: rows.has_landed(db, commit))
        landing: list[Landing] = []
        for each, verdict in zip(prepared, judged, strict=True):
            if verdict.lands:
                commit, head, now = each.commit, heads[each.commit.chunk], self.now()
                assert (commit.uid, commit.number) == head.chain[:2], f"a commit for chunk {commit.chunk} names another"
                entry = journal.link(head.head, head.chain, seq=head.seq + 1, kind=commit.kind, at=now,
                                     actor=head.guard.owner or "", fence=commit.fence, grant=commit.grant,
                                     commit_id=commit.id, encoded=each.encoded)  # fmt: skip
                heads[commit.chunk] = head._replace(seq=entry.seq, head=entry.hash)
                landing.append(Landing(commit, each.outputs, each.places, each.checkpoints, entry, now))
        for some in _of_different_chunks(landing):
            self._write_commits(db, some)
        return [verdict.receipt if verdict.lands else unwritten(verdict) for verdict in judged]

    def _write_commits(self, db: SqliteFile, landing: Sequence[Landing]) -> None:
        reached = [rows_of_checkpoints(each.commit.batch, each.checkpoints, each.at) for each in landing]
        write_rows(db.cursor, SQL["put_outputs"], [row for each in landing for row in each.outputs])
        write_rows(db.cursor, SQL["put_places"], [row for each in landing for row in each.places])
        write_rows(db.cursor, SQL["put_checkpoints"], [row for some in reached for row in some])
        for each in landing:
            self._tell(db, each.commit.batch, each.commit.events)
        faults.reach("commit.outputs")
        rows.insert_entries(db, [each.entry for each in landing])
        starting = [each for each in landing if each.commit.kind == journal.STARTED]
        going_on = [each for each in landing if each.commit.kind != journal.STARTED]
        rows.change_chunks(db, "start_chunks", list(map(row_of_start, starting)))
        rows.change_chunks(db, "advance_chunks", list(map(row_of_advance, going_on)))

    # -- operators ----------------------------------------------------------------------------------------------

    def act(self, act: Act) -> list[ItemNo]:
        faults.reach("act.before")
        with self._file.writing("act") as db:
            batch = self._known_batch(db, act.batch)
            if batch.sealed_at is not None:
                raise Refused(f"batch {batch.name!r} is sealed: reopen it before changing its items")
            now = self.now()
            changed: list[ItemNo] = []
            parts = list(acts.by_chunk(act, lambda n: rows.chunk_with(db, act.batch, n)))
            if acts.may_come_again(act) and rows.was_done(db, act, [chunk.id for chunk, _ in parts]):
                return []
            for chunk, changes in parts:
                places = rows.places_of(db, chunk, [change.n for change in changes])
                changed += self._act_on(db, act, acts.apply(act, chunk, changes, places), batch, chunk, now)
            self._tell(db, act.batch, acts.heard(act, changed))
        return changed

    def _act_on(
        self, db: SqliteFile, act: Act, effect: acts.Effect, batch: Batch, chunk: Chunk, now: float
    ) -> list[ItemNo]:
        if not effect.changes:
            return []
        base = act.batch << ITEM_BITS
        made = record.of_act(effect, batch.uid, chunk, act.id, self._draw,
                             lambda n: rows.newest_revision(db, act.batch, n), self._index.mark)  # fmt: skip
        write_rows(db.cursor, SQL["put_outputs"], [row_of_output(base, o, o.salt) for o in made.outputs])
        write_rows(db.cursor, SQL["put_places"], [(base + c.n, *place_row(c.place)) for c in effect.changes])
        write_rows(db.cursor, SQL["put_checkpoints"], rows_of_checkpoints(act.batch, made.checkpoints, now))
        write_rows(db.cursor, SQL["insert_revisions"], rows_of_revisions(act.batch, made.revisions))
        entry = record.link_chunk(batch.uid, chunk, act.kind, made.encoded, act.actor, now, fence=effect.fence,
                                  commit_id=act.id)  # fmt: skip
        rows.insert_entries(db, [entry])
        d, touched_at = effect.delta, now if effect.revived else chunk.touched_at
        db.execute(
            SQL["act_chunk"], (entry.seq, entry.hash, touched_at, d.done, d.skipped, d.dead, d.cancelled, chunk.id)
        )
        if effect.seized:
            db.execute(SQL["seize_chunk"], (effect.fence, chunk.id))
        return [c.n for c in effect.changes]

    def set_back(self) -> SetBack | None:
        """Return when the file was found to have been set back, and by how much; None if it never was."""
        with self._file.reading() as db:
            return rows.set_back(db)

    def flaws(self) -> list[tuple[int, str]]:
        """Return damage to the rows of batches that no chain reveals, by the number of the batch."""
        with self._file.reading() as db:
            gone = [(number, GONE) for (number,) in db.execute(SQL["strays"])]
            told = db.execute("SELECT id, stages, definition FROM batches")
            gone += [(batch, LOOSE_ENTRIES) for _, batch in db.execute(SQL["loose_entries"])]
            gone += [(batch, LOOSE_KEYS) for (batch,) in db.execute(SQL["miscounted_keys"])]
            gone += [(0, LOOSE_TEXTS)] if db.execute(SQL["loose_texts"])[0][0] else []
        return gone + [(number, MISCOUNTED) for number, stages, what in told if stages != rows.stages_in(what)]

    def batches(self, name: str | None = None) -> list[Batch]:
        with self._file.reading() as db:
            told = db.execute(SQL["all_batches"]) if name is None else db.execute(SQL["batch_by_name"], (name,))
            return [batch_of(row) for row in told]

    def chunks(
        self, batch: BatchId, *, of: ItemNo | None = None, pending: bool = False, limit: int | None = None
    ) -> list[Chunk]:
        statement = "chunk_of_item" if of is not None else "pending_chunks" if pending else "chunks_of_batch"
        terms = (batch, of) if of is not None else (batch, -1 if limit is None else limit)
        with self._file.reading() as db:
            told = [chunk_of(row) for row in db.execute(SQL[statement], terms)]
        if of is not None:
            return [chunk for chunk in told if of < chunk.hi and (chunk.pending or not pending)][:limit]
        return sorted(told, key=lambda chunk: (chunk.lo, chunk.hi, chunk.id))

    def items(self, batch: BatchId, *, lo: int = 0, hi: int | None = None, state: State | None = None,
                limit: int = 1000) -> list[StoredItem]:  # fmt: skip
        base = batch << ITEM_BITS
        first, last = base + lo, base + (ITEMS if hi is None else hi)
        with self._file.reading() as db:
            stages = stage_count(self._known_batch(db, batch).definition)
            if state in (State.SKIPPED, State.DEAD, State.CANCELLED):
                told = db.execute(SQL["records_settled"], (state, first, last, limit))
                return stored_items(db, batch, told, stages)
            found: list[StoredItem] = []
            page = limit if state is None else max(limit, PAGE)
            while len(found) < limit:
                told = db.execute(SQL["records_any"], (first, last, page))
                looked_at = stored_items(db, batch, told, stages)
                found += [row for row in looked_at if state is None or row.place.state is state]
                if len(told) < page:
                    break
                first = further(self.url, told[-1][0], first) + 1
            return found[:limit]

    def revisions(self, batch: BatchId, n: ItemNo) -> list[StoredItem]:
        id_ = (batch << ITEM_BITS) + n
        with self._file.reading() as db:
            told = db.execute(SQL["revisions_of"], (id_, id_))
        return [rows.revised(row, *each) for row in self.items(batch, lo=n, hi=n + 1) for each in told]

    def checkpoints(self, batch: BatchId, *, lo: int = 0, hi: int | None = None, limit: int = 1000) -> list[Checkpoint]:
        base = batch << ITEM_BITS
        with self._file.reading() as db:
            told = db.execute(SQL["checkpoints_in_range"], (base + lo, base + (ITEMS if hi is None else hi), limit))
            return [checkpoint_of(row, base) for row in told]

    def known(self, batch: BatchId, items: Sequence[NewItem]) -> Known:
        numbers = self._index.numbers(item.key for item in items)
        with self._file.reading() as db:
            has_any = self._known_batch(db, batch).admitted
            return known_items(db, batch, items, numbers, self._index) if has_any else {}

    def outputs(self, batch: BatchId, *, lo: int = 0, hi: int | None = None, stage: int | None = None,
                limit: int = 1000) -> list[Output]:  # fmt: skip
        base = batch << ITEM_BITS
        bounds = ((base + lo) << STAGE_BITS, (base + (ITEMS if hi is None else hi)) << STAGE_BITS)
        with self._file.reading() as db:
            if stage is None:
                told = db.execute(SQL["outputs_in_range"], (*bounds, limit))
            else:
                told = db.execute(SQL["outputs_of_stage"], (*bounds, stage, limit))
        return [output_of(row, base) for row in told]

    def events(self, after: int = 0, *, limit: int = 1000) -> list[StoredEvent]:
        with self._file.reading() as db:
            return [event_of(row) for row in db.execute(SQL["events_after"], (after, limit))]

    def entries(self, chain: int, *, after: int = 0, limit: int = 1000) -> list[Entry]:
        with self._file.reading() as db:
            told = db.execute(SQL["entries_after"], (chain, after, limit))
            span = (chain, told[0][1], told[-1][1]) if told else (chain, 0, 0)
            texts = rows.texts_of(db.execute(SQL["texts_between"], span))
            return [entry_of(row, texts.get(row[1], ())) for row in told]

    def _batch(self, db: SqliteFile, statement: str, value: str | int) -> Batch | None:
        told = db.execute(SQL[statement], (value,))
        return batch_of(told[0]) if told else None

    def _known_batch(self, db: SqliteFile, batch: BatchId) -> Batch:
        found = self._batch(db, "batch_by_id", batch)
        if found is None:
            raise UsageError(f"{self.path} has no batch number {batch}")
        return found


def _is_nothing_new(batch: Batch, items: Sequence[NewItem], known: ingest.Known, *, ended: bool) -> bool:
    """Return whether there is nothing to write: then even a sealed batch accepts the items."""
    return len(known) == len(items) and (not ended or batch.ingested_at is not None)


def _of_different_chunks(landing: Sequence[Landing]) -> Iterable[Sequence[Landing]]:
    """Return groups in which every chunk occurs once, so that one statement writes each; mostly there is one group."""
    rounds: list[dict[ChunkId, Landing]] = []
    for each in landing:
        free = next((some for some in rounds if each.commit.chunk not in some), None)
        if free is None:
            rounds.append(free := {})
        free[each.commit.chunk] = each
    return [list(some.values()) for some in rounds]
