"""The verbs of a SQLite store that concern a batch as a whole: opened, noted, steered, sealed; and the outbox."""

from collections.abc import Sequence

from holdfast.core import course, journal
from holdfast.core.errors import Refused, UsageError
from holdfast.core.limits import BATCHES
from holdfast.core.model import Batch, BatchId, Chunk, Course, Entry, Event, chain_of_batch
from holdfast.stores import faults
from holdfast.stores.base import check_redefinition, stage_count
from holdfast.stores.sqlite.file import SqliteFile
from holdfast.stores.sqlite.reads import SqliteReads
from holdfast.stores.sqlite.rows import chunk_of
from holdfast.stores.sqlite.statements import load, write_rows

SQL = load("statements.sql")


class SqliteBatches(SqliteReads):
    """Batches and their own chains."""

    def open_batch(self, name: str, pipeline: str, definition: bytes, *, actor: str) -> Batch:
        found = self.batch(name)
        if found is None or found.definition != definition:
            faults.reach("open_batch.before")
            body = journal.encode_body(journal.Opened(name=name, pipeline=pipeline, definition=definition))
            with self._file.writing("open_batch") as db:
                found = self._batch(db, "batch_by_name", name)
                if found is None:
                    row = (name, pipeline, definition, stage_count(definition), self.now(), journal.GENESIS)
                    batch_id = BatchId(db.execute(SQL["insert_batch"], row)[0][0])
                    if batch_id >= BATCHES:
                        raise UsageError(
                            f"{self.path} holds {BATCHES:,} batches, the most a store can: use another file"
                        )
                    self._link_batch(db, batch_id, 0, journal.GENESIS, "opened", body, actor)
                    self._tell(db, batch_id, [course.batch_opened(name, pipeline)])
                elif found.pipeline == pipeline and found.definition != definition:
                    check_redefinition(found, definition)
                    db.execute(SQL["redefine_batch"], (definition, stage_count(definition), found.id))
                    self._link_batch(db, found.id, found.seq, found.head, "opened", body, actor)
            found = self.batch(name)
        assert found is not None
        if found.pipeline != pipeline:
            raise UsageError(
                f"batch {name!r} belongs to pipeline {found.pipeline!r}, not to {pipeline!r}: choose another batch name"
            )
        return found

    def note(
        self, batch: BatchId, kind: str, body: bytes, *, actor: str, once: bool = False, events: Sequence[Event] = (),
        basis: bytes | None = None,
    ) -> bool:  # fmt: skip
        with self._file.writing("note") as db:
            found = self._known_batch(db, batch)
            same = (chain_of_batch(batch), len(body), body)
            if once and any(journal.decode_header(h).kind == kind for (h,) in db.execute(SQL["heads_of_body"], same)):
                return False
            if basis is not None:
                course.check_unchanged(found, self._chunks_of(db, batch), basis)
            self._link_batch(db, batch, found.seq, found.head, kind, body, actor)
            self._tell(db, batch, events)
        return True

    def steer(
        self, batch: BatchId, to: Course | None, *, actor: str, reason: str, ends_at: float | None = None,
        expected: int | None = None, close: bool = False,
    ) -> Batch:  # fmt: skip
        faults.reach("steer.before")
        with self._file.writing("steer") as db:
            found = self._known_batch(db, batch)
            body = course.steer(found, to, reason=reason, ends_at=ends_at, expected=expected, close=close)
            if body is not None:
                now = course.steered(found, body, self.now())
                row = (now.course, now.ends_at, now.expected, now.closed_at, now.ingested_at, batch)
                db.execute(SQL["steer_batch"], row)
                self._link_batch(db, batch, found.seq, found.head, "steered", journal.encode_body(body), actor)
            return self._known_batch(db, batch)

    def seal(
        self, batch: BatchId, *, actor: str, reconciliation: bytes, reason: str = "", events: Sequence[Event] = ()
    ) -> Batch:
        faults.reach("seal.before")
        with self._file.writing("seal") as db:
            found = self._known_batch(db, batch)
            chunks = self._chunks_of(db, batch)
            obstacle = course.obstacle(found, chunks, reconciliation, now=self.now())
            if obstacle is not None:
                raise Refused(f"batch {found.name!r} cannot be sealed: {obstacle}")
            body = journal.encode_body(course.seal(chunks, reconciliation, reason))
            db.execute(SQL["seal_batch"], (self.now(), batch))
            self._link_batch(db, batch, found.seq, found.head, "sealed", body, actor)
            self._tell(db, batch, events)
            return self._known_batch(db, batch)

    def reopen(self, batch: BatchId, *, actor: str, reason: str) -> Batch:
        with self._file.writing("reopen") as db:
            found = self._known_batch(db, batch)
            if found.sealed_at is None:
                raise UsageError(f"batch {found.name!r} is not sealed: nothing to reopen")
            db.execute(SQL["seal_batch"], (None, batch))
            body = journal.encode_body(journal.Reopened(reason=reason))
            self._link_batch(db, batch, found.seq, found.head, "reopened", body, actor)
            return self._known_batch(db, batch)

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
