"""Claims in a SQLite store: chunks that are due and free, the reach of the budget, and why there is nothing."""

from collections.abc import Callable, Iterable, Sequence

from holdfast.core import lease
from holdfast.core.model import BatchId, Chunk, ChunkId, ClaimRequest
from holdfast.stores.base import Idle
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite.file import SqliteFile
from holdfast.stores.sqlite.rows import chunk_of, load

SQL = load("statements.sql")


class Claims:
    """Questions about the chunks of a batch, asked inside a transaction."""

    def __init__(self, is_dead: Callable[[str], bool]) -> None:
        self._is_dead = is_dead

    def claimable(self, db: SqliteFile, want: ClaimRequest, now: float, waited: float) -> Sequence[Chunk]:
        """Return chunks that may be granted, the preferred one first: those that waited, then fresh ones; if there is
        none, one that a dead process holds."""
        if want.only is not None:
            chunk = rows.chunk_with(db, want.batch, want.only)
            is_dead = chunk.owner is not None and self._is_dead(chunk.owner)
            may = lease.may_claim(chunk, now=now, waited=waited, owner_is_dead=is_dead)
            return [chunk] if may and chunk.id not in want.keeps else []
        most = max(1, want.chunks)
        lists = {"claimable_again": (now, now - waited), "claimable_fresh": (now - waited,),
                 "claimable_early": (now, now, now - waited)}  # fmt: skip
        for name, times in lists.items():
            if free := rows.free_chunks(db, SQL[name], (want.batch, *times), most, want.keeps):
                return free
        dead = [owner for owner in rows.holders(db, want.batch, now) if self._is_dead(owner)]
        left = [rows.free_chunks(db, SQL["left_by"], (want.batch, owner, now), 1, want.keeps) for owner in dead]
        return sorted((chunk for found in left for chunk in found), key=lambda chunk: chunk.lo)[:1]

    def _dead_owners(self, chunks: Iterable[Chunk]) -> set[str]:
        """Return the owners that are dead. Each is checked once, because that reads the system's process table."""
        return {owner for owner in {chunk.owner for chunk in chunks} if owner is not None and self._is_dead(owner)}

    def affordable(self, db: SqliteFile, want: ClaimRequest, now: float) -> int | None:
        """Return how many items the budget covers. Money reserved by a grant that ended without a release is free
        again: its owner spends no more."""
        if want.cap is None:
            return None
        spent = db.execute(SQL["money_spent"], (want.batch,))[0][0]
        reserved = sum(chunk.reserved for chunk in self._held(db, want.batch, now, want.keeps))
        return lease.affordable(cap=want.cap, reserve=want.reserve, spent=spent, reserved=reserved)

    def idle(self, db: SqliteFile, want: ClaimRequest, now: float) -> Idle:
        """Return why there is nothing to claim."""
        if want.only is not None:
            chunk = rows.chunk_with(db, want.batch, want.only)
            due = chunk.due if chunk.owner is None else max(chunk.due, chunk.expires)
            held = int(chunk.pending > 0 and self._is_held(chunk, now))
            return Idle(pending=chunk.pending, next_due=due if chunk.pending else None, held=held, mark=db.mark())
        pending, due = db.execute(SQL["idle_facts"], (want.batch,))[0]
        holders = rows.holders(db, want.batch, now)
        held = sum(count for owner, count in holders.items() if count and not self._is_dead(owner))
        return Idle(pending=pending, next_due=due, held=held, mark=db.mark())

    def _held(self, db: SqliteFile, batch: BatchId, now: float, keeps: frozenset[ChunkId]) -> list[Chunk]:
        held = [chunk_of(row) for row in db.execute(SQL["held_chunks"], (batch, now))]
        dead = self._dead_owners(held)
        return [each for each in held if each.id in keeps or (each.expires >= now and each.owner not in dead)]

    def _is_held(self, chunk: Chunk, now: float) -> bool:
        """Return whether the chunk has a live owner: its lease has not ended, and its process is not known to be
        dead."""
        return chunk.owner is not None and chunk.expires >= now and not self._is_dead(chunk.owner)
