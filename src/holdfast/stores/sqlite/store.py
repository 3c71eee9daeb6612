"""The embedded store: one SQLite file, any number of processes on one host.

Read the verbs in the order of an item's life: add_items, claim, load, renew, commit, act; those of a batch as a whole
stand in `batches`. Each is one short transaction that takes the write lock at its start, reads the facts, asks
the core, and writes the answer. All bytes are made before it begins.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apsw
from msgspec.structs import replace

from holdfast.core import acts, course, ingest, journal, lease, settle
from holdfast.core.course import Barrier
from holdfast.core.errors import Refused, UsageError
from holdfast.core.limits import ITEMS
from holdfast.core.model import (
    Act,
    Admitted,
    Batch,
    BatchId,
    Chunk,
    ChunkId,
    Claim,
    Commit,
    Counts,
    Item,
    ItemNo,
    Lease,
    NewItem,
    Want,
)  # fmt: skip
from holdfast.stores import faults
from holdfast.stores.base import Idle, Receipt, receipt_of
from holdfast.stores.sqlite import keys
from holdfast.stores.sqlite.batches import SqliteBatches
from holdfast.stores.sqlite.file import SqliteFile
from holdfast.stores.sqlite.rows import (
    ITEM_BITS,
    PLAIN_PLACES,
    STAGE_BITS,
    ChainHead,
    Granted,
    Landing,
    Prepared,
    chain_head_of,
    chunk_of,
    item_of,
    place_row,
    row_of_advance,
    row_of_grant,
    row_of_start,
    rows_of_checkpoints,
    rows_of_commit,
)  # fmt: skip
from holdfast.stores.sqlite.statements import load, write_rows

SQL = load("statements.sql")


class SqliteStore(SqliteBatches):
    """Batches, items, outputs and the journal in one file."""

    # -- items in -----------------------------------------------------------------------------------------------

    def add_items(self, batch: BatchId, items: Sequence[NewItem], *, ended: bool = False, actor: str = "") -> Admitted:
        known = None
        if self._returning.get(batch, True):
            with self._file.reading() as db:
                found = self._known_batch(db, batch)
                known = keys.known(db, batch, items) if found.admitted else {}
            if _is_nothing_new(found, items, known, ended=ended):
                return ingest.sort_out(items, known, found.admitted)[1]
        faults.reach("add_items.before")
        with self._file.writing("add_items") as db:
            found = self._known_batch(db, batch)
            if found.sealed_at is not None:
                there = keys.known(db, batch, items)
                if _is_nothing_new(found, items, there, ended=ended):
                    return ingest.sort_out(items, there, found.admitted)[1]
            course.check_open_to_items(found)
            fresh, answer = self._index(db, found, items, look_first=bool(known))
            course.check_takes_new(found, len(fresh))
            ended = ended or course.is_last(found, len(fresh))
            if found.admitted + len(fresh) > ITEMS:
                raise UsageError(f"batch {found.name!r} would have more than {ITEMS:,} items: split it")
            if fresh or (ended and found.ingested_at is None):
                self._admit(db, found, fresh, answer.dead, ended, actor)
        self._returning[batch] = answer.known > 0
        return answer

    def _index(
        self, db: SqliteFile, batch: Batch, items: Sequence[NewItem], *, look_first: bool
    ) -> tuple[Sequence[NewItem], Admitted]:
        """Which items are new, with their keys in the index. Items of a group are mostly all new or all known: what
        is taken for new is not looked up, the index refuses it if it is not."""
        lo = batch.admitted
        if not look_first and keys.insert(db, batch.id, items, lo):
            return items, ingest.all_new(items, lo)
        fresh, answer = ingest.sort_out(items, keys.known(db, batch.id, items), lo)
        if not keys.insert(db, batch.id, fresh, lo):
            keys.insert_one_by_one(db, batch.id, fresh, lo)
        return fresh, answer

    def _admit(
        self, db: SqliteFile, batch: Batch, fresh: Sequence[NewItem], dead: Sequence[ItemNo], ended: bool, actor: str
    ) -> None:
        lo, now = batch.admitted, self.now()
        hi = lo + len(fresh)
        refused = [(n, fresh[n - lo].place) for n in dead]
        if fresh:
            base = batch.id << ITEM_BITS
            rows = [(n, x.key, x.salt, x.payload) for n, x in enumerate(fresh, start=base + lo)]
            write_rows(db.cursor, SQL["insert_items"], rows)
            write_rows(db.cursor, SQL["put_places"], [(base + n, *place_row(place)) for n, place in refused])
            self._tell(db, batch.id, [course.item_dead(n, fresh[n - lo].key, place) for n, place in refused])
        chunk = self._new_chunk_id(db) if fresh else 0
        body = journal.Ingested(
            lo=lo, hi=hi, digests=b"".join([x.digest for x in fresh]), chunk=chunk, ended=ended,
            invalid=[(n, place.code) for n, place in refused],
        )  # fmt: skip
        head = self._link_batch(db, batch.id, batch.seq, batch.head, "ingested", journal.encode_body(body), actor)
        if fresh:
            new = Chunk(id=ChunkId(chunk), batch=batch.id, lo=ItemNo(lo), hi=ItemNo(hi), fence=self._epoch.floor,
                        head=head, counts=Counts(dead=len(dead)), touched_at=now)  # fmt: skip
            assert self._insert_chunk(db, new) == chunk
        db.execute(SQL["grow_batch"], (hi, now if ended else None, batch.id))

    # -- work ---------------------------------------------------------------------------------------------------

    def claim(self, want: Want) -> Claim | Idle:
        with self._file.reading() as db:
            offer = self._offer(db, replace(want, chunks=1), self.now(), 0.0)
        if isinstance(offer, Idle):
            return offer  # nothing had to be written to see that
        faults.reach("claim.before")
        with self._file.writing("claim") as db:
            now = self.now()
            offer = self._offer(db, want, now, db.waited)
            if isinstance(offer, Idle):
                return offer
            afford = self._affordable(db, want, now)
            if afford == 0:
                return replace(self._idle(db, want), why=Barrier.BUDGET)
            first, *others = offer
            head = self._grant(db, first, want, now, afford)
            self._write_grants(db, [head])
            self._epoch.granted(db)  # a lost transaction takes the others along: the note is ahead by one at most
            more = list(self._grant_others(db, head.claim, others, want, now))
            self._write_grants(db, more)
            return replace(head.claim, more=tuple(each.claim for each in more))

    def _grant_others(
        self, db: SqliteFile, claim: Claim, others: Sequence[Chunk], want: Want, now: float
    ) -> Iterator[Granted]:
        granted = claim.pending
        for chunk in others if not claim.blame else ():
            if lease.is_further(chunk, want, granted):
                yield self._grant(db, chunk, want, now, None)
                granted += chunk.pending

    def _write_grants(self, db: SqliteFile, granted: Sequence[Granted]) -> None:
        self._insert_entries(db, [each.entry for each in granted])
        self._change_chunks(db, "grant_chunks", [each.row for each in granted])

    def _offer(self, db: SqliteFile, want: Want, now: float, waited: float) -> Sequence[Chunk] | Idle:
        """Chunks that may be claimed, the first before others, or why there is none."""
        dead = self._dead(db, want.batch) if want.tolerance is not None else 0
        why = course.barrier(self._known_batch(db, want.batch), now, want.tolerance, dead)
        chunks = self._claimable(db, want, now, waited) if why is None else ()
        return chunks or replace(self._idle(db, want), why=why)

    def _dead(self, db: SqliteFile, batch: BatchId) -> int:
        return int(db.execute(SQL["dead_count"], (batch,))[0][0])

    def _claimable(self, db: SqliteFile, want: Want, now: float, waited: float) -> Sequence[Chunk]:
        if want.only is not None:
            chunk = self._chunk_of(db, want.batch, want.only)
            is_dead = chunk.owner is not None and self._is_dead(chunk.owner)
            may = lease.may_claim(chunk, now=now, waited=waited, owner_is_dead=is_dead)
            return [chunk] if may and chunk.id not in want.keeps else []
        most = max(1, want.chunks)
        lists = {"claimable_again": (now, now - waited), "claimable_fresh": (now - waited,),
                 "claimable_early": (now, now, now - waited)}  # fmt: skip
        for name, times in lists.items():
            if free := self._free(db, SQL[name], (want.batch, *times), most, want.keeps):
                return free
        dead = [owner for owner in self._holders(db, want.batch, now) if self._is_dead(owner)]
        left = [self._free(db, SQL["left_by"], (want.batch, owner, now), 1, want.keeps) for owner in dead]
        return sorted((chunk for found in left for chunk in found), key=lambda chunk: chunk.lo)[:1]

    def _free(
        self, db: SqliteFile, sql: str, terms: tuple[Any, ...], most: int, keeps: frozenset[ChunkId]
    ) -> list[Chunk]:
        """So many chunks that may be claimed, without those the claimer keeps, which are looked past only where some
        of their leases have ended."""
        rows = db.execute(sql, (*terms, most))
        if any(row[0] in keeps for row in rows):
            rows = [row for row in db.execute(sql, (*terms, most + len(keeps))) if row[0] not in keeps]
        return [chunk_of(row) for row in rows[:most]]

    def _holders(self, db: SqliteFile, batch: BatchId, now: float) -> dict[str, int]:
        """Who holds chunks that are due, and how many of each under leases that have not ended."""
        return dict(db.execute(SQL["holders"], (now, batch, now)))

    def _dead_owners(self, chunks: Iterable[Chunk]) -> set[str]:
        """Each owner is judged once: that reads what the system knows of its process."""
        return {owner for owner in {chunk.owner for chunk in chunks} if owner is not None and self._is_dead(owner)}

    def _affordable(self, db: SqliteFile, want: Want, now: float) -> int | None:
        """What a grant that ended without a release had set aside is free again: its owner spends no more."""
        if want.cap is None:
            return None
        spent = db.execute(SQL["money_spent"], (want.batch,))[0][0]
        reserved = sum(chunk.reserved for chunk in self._held(db, want.batch, now, want.keeps))
        return lease.affordable(cap=want.cap, reserve=want.reserve, spent=spent, reserved=reserved)

    def _grant(self, db: SqliteFile, chunk: Chunk, want: Want, now: float, afford: int | None) -> Granted:
        given = lease.grant(chunk, want, now=now, states=lambda: self._states(db, chunk), affordable=afford,
                            floor=self._epoch.floor)  # fmt: skip
        if given.child is not None:
            given = given.with_child(self._insert_chunk(db, given.child))
        entry = given.entry(self._snapshots(db, given.chunk) if chunk.seq or chunk.parent else [], now)
        return Granted(given.claim, entry, row_of_grant(given.chunk, chunk.fence, entry))

    def _snapshots(self, db: SqliteFile, chunk: Chunk) -> list[journal.Snapshot]:
        """What was tried before, of what is pending. Nothing was, where the chunk has no entry and no parent."""
        base = chunk.batch << ITEM_BITS
        return [
            journal.Snapshot(n=row[0] - base, stage=row[1], epoch=row[2], attempt=row[3], code=row[4], used=row[5])
            for row in db.execute(SQL["places_in_range"], (base + chunk.lo, base + chunk.hi))
        ]

    def _idle(self, db: SqliteFile, want: Want) -> Idle:
        if want.only is not None:
            chunk = self._chunk_of(db, want.batch, want.only)
            due = chunk.due if chunk.owner is None else max(chunk.due, chunk.expires)
            held = int(chunk.pending > 0 and self._is_held(chunk, self.now()))
            return Idle(pending=chunk.pending, next_due=due if chunk.pending else None, held=held)
        pending, due = db.execute(SQL["idle_facts"], (want.batch,))[0]
        holders = self._holders(db, want.batch, self.now())
        held = sum(count for owner, count in holders.items() if count and not self._is_dead(owner))
        return Idle(pending=pending, next_due=due, held=held)

    def _held(self, db: SqliteFile, batch: BatchId, now: float, keeps: frozenset[ChunkId]) -> list[Chunk]:
        held = [chunk_of(row) for row in db.execute(SQL["held_chunks"], (batch, now))]
        dead = self._dead_owners(held)
        return [each for each in held if each.id in keeps or (each.expires >= now and each.owner not in dead)]

    def _is_held(self, chunk: Chunk, now: float) -> bool:
        """Whether somebody holds it: under a lease that has not ended, in a process not known to be dead."""
        return chunk.owner is not None and chunk.expires >= now and not self._is_dead(chunk.owner)

    def load(self, claim: Claim, after: ItemNo | None, limit: int, max_bytes: int) -> list[Item]:
        base = claim.batch << ITEM_BITS
        lo, hi = base + (claim.lo if after is None else after + 1), base + claim.hi
        items: list[Item] = []
        with self._file.reading() as db:
            if not db.execute(SQL["anything_in_range"], (lo, hi, lo << STAGE_BITS, hi << STAGE_BITS))[0][0]:
                start = PLAIN_PLACES[0]
                for id_, key, salt, payload in db.cursor(SQL["load_plain"], (lo, hi, limit)):
                    items.append(Item(ItemNo(id_ - base), key, salt, payload, start, True))
                    max_bytes -= len(payload)
                    if max_bytes <= 0:
                        break
                return items
            stages = course.stage_count(self._known_batch(db, claim.batch).definition)
            for row in db.cursor(SQL["load_any"], (lo, hi, stages, limit)):
                item = item_of(row, base)
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
                Lease(chunk=held.chunk, fence=held.fence, owner=held.owner, expires=expires)
                for held in leases
                if db.execute(SQL["renew_lease"], (expires, held.chunk, held.fence, held.owner))
            ]

    def commit(self, commits: Sequence[Commit]) -> list[Receipt]:
        prepared = [Prepared(commit, *rows_of_commit(commit)) for commit in commits]
        faults.reach("commit.before")
        with self._file.writing("commit") as db:
            faults.reach("commit.begun")
            return self._commit_together(db, prepared)

    def _commit_together(self, db: SqliteFile, prepared: Sequence[Prepared]) -> list[Receipt]:
        """Let every commit through by its own guard, then write in bulk what all of them write."""
        commits = [each.commit for each in prepared]
        heads = self._heads(db, [commit.chunk for commit in commits])
        guards = {chunk: head.guard for chunk, head in heads.items()}
        judged = settle.judge(commits, guards, lambda commit: self._has_landed(db, commit))
        landing: list[Landing] = []
        for each, verdict in zip(prepared, judged, strict=True):
            if verdict.lands:
                commit, head, now = each.commit, heads[each.commit.chunk], self.now()
                entry = journal.link(head.head, chain=commit.chunk, batch=commit.batch, seq=head.seq + 1,
                                     kind=commit.kind, at=now, actor=head.guard.owner or "", fence=commit.fence,
                                     commit_id=commit.id, body=commit.body)  # fmt: skip
                heads[commit.chunk] = ChainHead(entry.seq, entry.hash, head.guard)
                landing.append(Landing(*each, entry, now))
        for some in _of_different_chunks(landing):
            self._write_commits(db, some)
        return [receipt_of(verdict) for verdict in judged]

    def _heads(self, db: SqliteFile, chunks: Sequence[ChunkId]) -> dict[ChunkId, ChainHead]:
        return dict(map(chain_head_of, db.execute(SQL["guard_chunks"], (apsw.carray(array("q", chunks)),))))

    def _write_commits(self, db: SqliteFile, landing: Sequence[Landing]) -> None:
        reached = [rows_of_checkpoints(each.commit.batch, each.commit.checkpoints, each.at) for each in landing]
        write_rows(db.cursor, SQL["put_outputs"], [row for each in landing for row in each.outputs])
        write_rows(db.cursor, SQL["put_places"], [row for each in landing for row in each.places])
        write_rows(db.cursor, SQL["put_checkpoints"], [row for rows in reached for row in rows])
        for each in landing:
            self._tell(db, each.commit.batch, each.commit.events)
        faults.reach("commit.outputs")
        self._insert_entries(db, [each.entry for each in landing])
        starting = [each for each in landing if each.commit.kind == journal.STARTED]
        going_on = [each for each in landing if each.commit.kind != journal.STARTED]
        self._change_chunks(db, "start_chunks", list(map(row_of_start, starting)))
        self._change_chunks(db, "advance_chunks", list(map(row_of_advance, going_on)))

    def _change_chunks(self, db: SqliteFile, statement: str, rows: Sequence[Any]) -> None:
        """Each row changes the one chunk that its guard names."""
        before = db.changes()
        write_rows(db.cursor, SQL[statement], rows)
        assert db.changes() - before == len(rows), f"a chunk changed inside the transaction that writes it: {rows}"

    def _has_landed(self, db: SqliteFile, commit: Commit) -> bool:
        """Look back from the newest entry to the grant that the commit was made under: nothing of it lies before."""
        for (head,) in db.cursor(SQL["newest_heads"], (commit.chunk,)):
            header = journal.decode_header(head)
            if header.commit_id == commit.id:
                return True
            if header.kind == "claimed" and header.fence <= commit.fence:
                return False
        return False

    # -- operators ----------------------------------------------------------------------------------------------

    def act(self, act: Act) -> list[ItemNo]:
        faults.reach("act.before")
        with self._file.writing("act") as db:
            batch = self._known_batch(db, act.batch)
            if batch.sealed_at is not None:
                raise Refused(f"batch {batch.name!r} is sealed: reopen it before changing its items")
            now = self.now()
            stages = course.stage_count(batch.definition)
            changed: list[ItemNo] = []
            parts = list(acts.by_chunk(act, lambda n: self._chunk_of(db, act.batch, n)))
            if acts.may_come_again(act) and self._was_done(db, act, [chunk.id for chunk, _ in parts]):
                return []
            for chunk, changes in parts:
                places = self._places(db, act.batch, [change.n for change in changes], stages)
                changed += self._act_on(db, act, acts.apply(act, chunk, changes, places), chunk, now)
            self._tell(db, act.batch, acts.heard(act, changed))
        return changed

    def _was_done(self, db: SqliteFile, act: Act, chunks: list[ChunkId]) -> bool:
        """Whether its id is in the chains of the chunks, or of those that they were cut from."""
        rows = db.execute(SQL["heads_with_id"], (apsw.carray(array("q", chunks)), act.id)) if act.id else []
        return any(journal.decode_header(head).commit_id == act.id for (head,) in rows)

    def _act_on(self, db: SqliteFile, act: Act, effect: acts.Effect, chunk: Chunk, now: float) -> list[ItemNo]:
        if not effect.changes:
            return []
        base = act.batch << ITEM_BITS
        write_rows(db.cursor, SQL["put_outputs"], [
            (((base + c.n) << STAGE_BITS) | c.output.stage, c.output.epoch, c.output.data, c.output.file)
            for c in effect.changes if c.output is not None])  # fmt: skip
        write_rows(db.cursor, SQL["put_places"], [(base + c.n, *place_row(c.place)) for c in effect.changes])
        reached = [c.checkpoint for c in effect.changes if c.checkpoint is not None]
        write_rows(db.cursor, SQL["put_checkpoints"], rows_of_checkpoints(act.batch, reached, now))
        for c in effect.changes:
            if c.renewed is not None:
                db.execute(SQL["renew_item"], (c.renewed.salt, c.renewed.payload, base + c.n))
        entry = journal.link(chunk.head, chain=chunk.id, batch=act.batch, seq=chunk.seq + 1, kind=act.kind, at=now,
                             actor=act.actor, fence=effect.fence, commit_id=act.id, body=effect.body)  # fmt: skip
        self._insert_entries(db, [entry])
        d, touched_at = effect.delta, now if effect.revived else chunk.touched_at
        db.execute(
            SQL["act_chunk"], (entry.seq, entry.hash, touched_at, d.done, d.skipped, d.dead, d.cancelled, chunk.id)
        )
        if effect.seized:
            db.execute(SQL["seize_chunk"], (effect.fence, chunk.id))
        return [c.n for c in effect.changes]

    # -- helpers ------------------------------------------------------------------------------------------------

    def _insert_chunk(self, db: SqliteFile, new: Chunk) -> ChunkId:
        c = new.counts
        row = (new.batch, new.lo, new.hi, new.parent, new.fence, new.due, new.blame, int(new.progressed), c.done,
               c.skipped, c.dead, c.cancelled, new.head, new.touched_at)  # fmt: skip
        return ChunkId(db.execute(SQL["insert_chunk"], row)[0][0])

    def _new_chunk_id(self, db: SqliteFile) -> int:
        return int(db.execute("SELECT coalesce(max(id), 0) + 1 FROM chunks")[0][0])


def _is_nothing_new(batch: Batch, items: Sequence[NewItem], known: ingest.Known, *, ended: bool) -> bool:
    """Whether nothing is to be written: that is refused by no batch."""
    return len(known) == len(items) and (not ended or batch.ingested_at is not None)


def _of_different_chunks(landing: Sequence[Landing]) -> Iterable[Sequence[Landing]]:
    """Groups in which every chunk stands once, so that one statement writes each; mostly that is one group."""
    rounds: list[dict[ChunkId, Landing]] = []
    for each in landing:
        free = next((some for some in rounds if each.commit.chunk not in some), None)
        if free is None:
            rounds.append(free := {})
        free[each.commit.chunk] = each
    return [list(some.values()) for some in rounds]
