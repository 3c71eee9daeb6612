"""What can be read of a SQLite store, each verb in one view of the database."""

import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import apsw
import msgspec

from holdfast.core.course import stage_count
from holdfast.core.errors import UsageError
from holdfast.core.ingest import Known
from holdfast.core.limits import ITEMS
from holdfast.core.model import (
    Batch,
    BatchId,
    Checkpoint,
    Chunk,
    Entry,
    ItemNo,
    NewItem,
    Output,
    Place,
    State,
    StoredEvent,
    StoredItem,
)
from holdfast.stores import owners
from holdfast.stores.base import Capabilities, SetBack, further
from holdfast.stores.sqlite import keys
from holdfast.stores.sqlite.epoch import Epoch
from holdfast.stores.sqlite.file import SqliteFile, UnreadableRow
from holdfast.stores.sqlite.rows import (
    ITEM_BITS,
    STAGE_BITS,
    STAGE_MASK,
    batch_of,
    checkpoint_of,
    chunk_of,
    entry_of,
    event_of,
    state_of,
    stored_item_of,
)
from holdfast.stores.sqlite.statements import load

SQL = load("statements.sql")
GONE = "its row is gone: chunks or entries are there that belong to it, and nobody would miss them"
MISCOUNTED = "its row does not have as many stages as its definition"
LOOK_SECONDS = 0.25
"""How often a wait looks whether anybody has written."""
PAGE = 1000
"""Rows looked at together where only some of them are wanted."""


class SqliteReads:
    """An open file, and the verbs that change nothing."""

    capabilities = Capabilities()

    def __init__(self, path: str | Path, *, clock: Callable[[], float] = time.time,
                 is_dead: Callable[[str], bool] = owners.is_dead) -> None:  # fmt: skip
        self.path = Path(path)
        self.url = str(path)
        self._clock = clock
        self._is_dead = is_dead
        self._file = SqliteFile(self.path)
        self._epoch = Epoch(self._file)
        self._returning: dict[BatchId, bool] = {}
        """Of which batches items come that were admitted before: a guess that decides what is tried first."""

    def now(self) -> float:
        return self._clock()

    def wait(self, batch: BatchId, seconds: float) -> None:
        until, seen = time.monotonic() + seconds, self._file.mark()
        while (left := until - time.monotonic()) > 0 and self._file.mark() == seen:
            time.sleep(min(left, LOOK_SECONDS))

    def close(self) -> None:
        self._epoch.close()
        self._file.close()

    def set_back(self) -> SetBack | None:
        """When it was seen that the file had been set back, and by how much; None if it never was."""
        with self._file.reading() as db:
            return set_back_of(db)

    def flaws(self) -> list[tuple[int, str]]:
        """What is wrong with the rows of batches, by the number of the batch, where no chain tells."""
        with self._file.reading() as db:
            gone = [(number, GONE) for (number,) in db.execute(SQL["strays"])]
            rows = db.execute("SELECT id, stages, definition FROM batches")
        return gone + [(number, MISCOUNTED) for number, stages, what in rows if stages != _stages_in(what)]

    def batch(self, name: str) -> Batch | None:
        with self._file.reading() as db:
            return self._batch(db, "batch_by_name", name)

    def batches(self) -> list[Batch]:
        with self._file.reading() as db:
            return [batch_of(row) for row in db.execute(SQL["all_batches"])]

    def chunks(self, batch: BatchId) -> list[Chunk]:
        with self._file.reading() as db:
            return [chunk_of(row) for row in db.execute(SQL["chunks_of_batch"], (batch,))]

    def chunk_of(self, batch: BatchId, n: ItemNo) -> Chunk:
        with self._file.reading() as db:
            return self._chunk_of(db, batch, n)

    def is_settled(self, batch: BatchId) -> bool:
        with self._file.reading() as db:
            return not db.execute(SQL["any_pending"], (batch,))[0][0]

    def items(self, batch: BatchId, *, lo: int = 0, hi: int | None = None, state: State | None = None,
                limit: int = 1000) -> list[StoredItem]:  # fmt: skip
        base = batch << ITEM_BITS
        first, last = base + lo, base + (ITEMS if hi is None else hi)
        with self._file.reading() as db:
            stages = stage_count(self._known_batch(db, batch).definition)
            if state in (State.SKIPPED, State.DEAD, State.CANCELLED):
                rows = db.execute(SQL["records_settled"], (state, first, last, limit))
                return [stored_item_of(row, base, STAGE_MASK) for row in rows]
            found: list[StoredItem] = []
            page = limit if state is None else max(limit, PAGE)
            while len(found) < limit:
                rows = db.execute(SQL["records_any"], (first, last, page))
                looked_at = [stored_item_of(row, base, stages) for row in rows]
                found += [row for row in looked_at if state is None or row.place.state is state]
                if len(rows) < page:
                    break
                first = further(self.url, rows[-1][0], first) + 1
            return found[:limit]

    def _places(self, db: SqliteFile, batch: BatchId, ns: Iterable[ItemNo], stages: int) -> dict[ItemNo, Place]:
        base = batch << ITEM_BITS
        rows = db.execute(SQL["records_of"], (apsw.carray(array("q", [base + n for n in ns])),))
        return {record.n: record.place for record in (stored_item_of(row, base, stages) for row in rows)}

    def checkpoints(self, batch: BatchId, *, lo: int = 0, hi: int | None = None, limit: int = 1000) -> list[Checkpoint]:
        base = batch << ITEM_BITS
        with self._file.reading() as db:
            rows = db.execute(SQL["checkpoints_in_range"], (base + lo, base + (ITEMS if hi is None else hi), limit))
            return [checkpoint_of(row, base) for row in rows]

    def known(self, batch: BatchId, items: Sequence[NewItem]) -> Known:
        with self._file.reading() as db:
            return keys.known(db, batch, items) if self._known_batch(db, batch).admitted else {}

    def outputs(self, batch: BatchId, *, lo: int = 0, hi: int | None = None, stage: int | None = None,
                limit: int = 1000) -> list[Output]:  # fmt: skip
        base = batch << ITEM_BITS
        bounds = ((base + lo) << STAGE_BITS, (base + (ITEMS if hi is None else hi)) << STAGE_BITS)
        with self._file.reading() as db:
            if stage is None:
                rows = db.execute(SQL["outputs_in_range"], (*bounds, limit))
            else:
                rows = db.execute(SQL["outputs_of_stage"], (*bounds, stage, limit))
        return [
            Output(ItemNo((id_ >> STAGE_BITS) - base), id_ & STAGE_MASK, epoch, data, file)
            for id_, epoch, data, file in rows
        ]

    def events(self, after: int = 0, *, limit: int = 1000) -> list[StoredEvent]:
        with self._file.reading() as db:
            return [event_of(row) for row in db.execute(SQL["events_after"], (after, limit))]

    def entries(self, chain: int, *, after: int = 0, limit: int = 1000) -> list[Entry]:
        with self._file.reading() as db:
            return self._entries(db, chain, after, limit)

    def _entries(self, db: SqliteFile, chain: int, after: int, limit: int) -> list[Entry]:
        rows = db.execute(SQL["entries_after"], (chain, after, limit))
        return [entry_of(row) for row in rows]

    def _batch(self, db: SqliteFile, statement: str, value: str | int) -> Batch | None:
        rows = db.execute(SQL[statement], (value,))
        return batch_of(rows[0]) if rows else None

    def _known_batch(self, db: SqliteFile, batch: BatchId) -> Batch:
        found = self._batch(db, "batch_by_id", batch)
        if found is None:
            raise UsageError(f"{self.path} has no batch number {batch}")
        return found

    def _chunk_of(self, db: SqliteFile, batch: BatchId, n: ItemNo) -> Chunk:
        rows = db.execute(SQL["chunk_of_item"], (batch, n))
        if not rows or n >= (found := chunk_of(rows[0])).hi:
            raise UsageError(f"batch number {batch} has no item number {n}")
        return found

    def _states(self, db: SqliteFile, chunk: Chunk) -> list[State]:
        """One for each item of the chunk; refused if they do not sum up to what the chunk says."""
        base = chunk.batch << ITEM_BITS
        stages = stage_count(self._known_batch(db, chunk.batch).definition)
        rows = db.cursor(SQL["states_in_range"], (stages, base + chunk.lo, base + chunk.hi))
        states = [state_of(state) for (state,) in rows]
        if (pending := states.count(State.PENDING)) != chunk.pending or len(states) != chunk.hi - chunk.lo:
            raise UnreadableRow(f"chunk {chunk.id} says that {chunk.pending} of its items are pending, not {pending}")
        return states


def set_back_of(db: SqliteFile) -> SetBack | None:
    """What an open file knows of having been set back."""
    rows = db.execute("SELECT value FROM meta WHERE name = 'set_back'")
    if not rows:
        return None
    had, has, at = str(rows[0][0]).split()
    return SetBack(int(had), int(has), float(at))


def _stages_in(definition: bytes) -> int | None:
    """How many stages a definition has; None where it cannot be read."""
    try:
        return stage_count(definition)
    except (msgspec.DecodeError, TypeError, LookupError):
        return None
