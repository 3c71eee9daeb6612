"""The verbs of a SQLite store that concern a batch as a whole: opened, noted, steered, sealed; and the outbox."""

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core import course, journal
from holdfast.core.errors import UsageError
from holdfast.core.limits import BATCHES
from holdfast.core.model import Batch, BatchId, Chunk, Entry, Event, chain_of_batch
from holdfast.stores import faults
from holdfast.stores.sqlite.file import SqliteFile
from holdfast.stores.sqlite.reads import SqliteReads
from holdfast.stores.sqlite.rows import chunk_of
from holdfast.stores.sqlite.statements import load, write_rows

SQL = load("statements.sql")


class SqliteBatches(SqliteReads):
    """Batches and their own chains."""

    def open_batch(self, name: str, pipeline: str, definition: bytes, *, actor: str) -> Batch:
        found = self.batch(name)
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
        row = (name, pipeline, definition, course.stage_count(definition), self.now(), journal.GENESIS)
        made = BatchId(db.execute(SQL["insert_batch"], row)[0][0])
        if made >= BATCHES:
            raise UsageError(f"{self.path} holds {BATCHES:,} batches, the most a store can: use another file")
        body = journal.encode_body(journal.Opened(name=name, pipeline=pipeline, definition=definition))
        self._link_batch(db, made, 0, journal.GENESIS, "opened", body, actor)
        self._tell(db, made, [course.batch_opened(name, pipeline)])
        return self._known_batch(db, made)

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
            db.point = faults.amendment(change.kind)
            after = change.batch
            if after != found:
                row = (after.definition, course.stage_count(after.definition), after.course, after.ends_at,
                       after.sealed_at, after.expected, after.closed_at, after.ingested_at, batch)  # fmt: skip
                db.execute(SQL["amend_batch"], row)
            head = self._link_batch(db, batch, found.seq, found.head, change.kind, change.body, actor)
            self._tell(db, batch, change.events)
            return course.Amended(batch=replace(after, seq=found.seq + 1, head=head), written=True)

    def _is_noted(self, db: SqliteFile, batch: BatchId, kind: str, body: bytes) -> bool:
        heads = db.execute(SQL["heads_of_body"], (chain_of_batch(batch), len(body), body))
        return any(journal.decode_header(head).kind == kind for (head,) in heads)

    def _chunks_of(self, db: SqliteFile, batch: BatchId) -> list[Chunk]:
        return [chunk_of(row) for row in db.execute(SQL["chunks_of_batch"], (batch,))]

    # -- the outbox ---------------------------------------------------------------------------------------------

    def delivered(self, receiver: str, up_to: int = 0) -> int:
        with self._file.reading() as db:
            rows = db.execute(SQL["receiver_at"], (receiver,))
            at = int(rows[0][0]) if rows else 0
        if up_to <= at:
            return at
        with self._file.writing("delivered") as db:
            return int(db.execute(SQL["advance_receiver"], (receiver, up_to))[0][0])

    def _tell(self, db: SqliteFile, batch: BatchId, events: Sequence[Event]) -> None:
        if events:
            now = self.now()
            write_rows(db.cursor, SQL["insert_events"], [(batch, now, e.kind, e.body, e.n) for e in events])

    # -- chains -------------------------------------------------------------------------------------------------

    def _link_batch(
        self, db: SqliteFile, batch: BatchId, seq: int, head: bytes, kind: str, body: bytes, actor: str
    ) -> bytes:
        entry = journal.link(head, chain=chain_of_batch(batch), batch=batch, seq=seq + 1, kind=kind, at=self.now(),
                             actor=actor, fence=0, commit_id=b"", body=body)  # fmt: skip
        self._insert_entries(db, [entry])
        db.execute(SQL["link_batch"], (entry.seq, entry.hash, batch))
        return entry.hash

    def _insert_entries(self, db: SqliteFile, entries: Sequence[Entry]) -> None:
        write_rows(db.cursor, SQL["insert_entries"], [(e.chain, e.seq, e.head, e.body, e.hash) for e in entries])
