"""A scan at a glance: rows, rate, cursor and lag of each partition, in words that a tired person understands."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.core import canonical, cursor, journal
from holdfast.core.cursors import Standing
from holdfast.core.model import Batch, Chunk, State, StoredItem
from holdfast.runtime import status
from holdfast.runtime.cursors.history import backwards
from holdfast.runtime.cursors.standing import ROW, chunk_of, is_scan, standing_of, standings
from holdfast.runtime.durations import brief
from holdfast.runtime.words import many
from holdfast.stores import owners
from holdfast.stores.base import Store

RATE_CHECKPOINTS = 16
"""So many of the last checkpoints tell how fast it goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """One partition."""

    key: Any
    state: str
    rows: int
    expected: int | None
    rate: float | None
    """Rows per second over the last checkpoints of its owner; None where nobody is at work, or before there are two."""
    cursor: str
    lag: str
    updated_at: float | None
    owner: str
    accumulated: int
    """Bytes."""
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def glances(store: Store, batch: Batch) -> Iterator[Glance]:
    """Every partition as it stands now."""
    chunks, now = store.chunks(batch.id), store.now()
    for at in standings(store, batch):
        yield glance(store, at, chunk_of(chunks, at.n), now)


def glance(store: Store, at: Standing, chunk: Chunk, now: float) -> Glance:
    place = at.place
    is_live = place.state is State.PENDING and status.is_live(chunk, now)
    where = at.cursor
    return Glance(
        key=at.key,
        state="running" if is_live else place.state.value,
        rows=at.rows,
        expected=at.expected,
        rate=_rate(store, chunk, at.n) if is_live else None,
        cursor="not begun" if where is None else str(where),
        lag=lag(at, now),
        updated_at=None if at.checkpoint is None else at.checkpoint.at,
        owner=owners.short(chunk.owner) if is_live and chunk.owner is not None else "",
        accumulated=0 if at.acc is None else len(at.acc),
        error=f"{place.code}: {place.reason}" if place.code else "",
    )


def of_item(store: Store, batch: Batch, item: StoredItem) -> Glance | None:
    """One item of a batch, if it is a range."""
    at = standing_of(store, batch, item) if is_scan(batch) else None
    return None if at is None else glance(store, at, chunk_of(store.chunks(batch.id), at.n), store.now())


def lag(at: Standing, now: float) -> str:
    """How far behind it is: in rows where their number is known, in time where the cursor is a moment."""
    if at.place.state is not State.PENDING and at.place.state is not State.DEAD:
        return ""
    if at.expected is not None:
        return f"{many(max(0, at.expected - at.rows), 'row')} left"
    value = at.cursor.value if at.cursor is not None else None
    if isinstance(value, datetime) and value.tzinfo is not None:
        return f"{brief(max(0.0, now - value.timestamp()))} behind"
    if at.checkpoint is not None and at.checkpoint.cursor:
        return f"last row {brief(max(0.0, now - at.checkpoint.at))} ago"
    return "everything"


def in_words(at: Standing) -> str:
    """How far a range has come, in a sentence."""
    if at.checkpoint is None or not at.checkpoint.cursor:
        return "at its beginning: no row has been handled"
    of = "" if at.expected is None else f" of {at.expected:,}"
    kept = "nothing accumulated" if at.acc is None else f"{len(at.acc):,} bytes accumulated"
    return f"after {cursor.decode(at.checkpoint.cursor)}: {at.rows:,}{of} rows handled, {kept}"


def of_a_row(batch: Batch, item: StoredItem) -> str:
    """Where the partition stood that came upon a row which was buried; nothing for any other item."""
    if not is_scan(batch) or not str(item.key).startswith(ROW):
        return ""
    seen = canonical.decode(item.payload).get("seen")
    if seen is None:
        return ""
    where = "at its beginning" if seen["after"] is None else f"after {cursor.from_plain(seen['after'])}"
    return f"seen by partition {seen['range']}, {where}, with {many(seen['rows'], 'row')} handled"


def _rate(store: Store, chunk: Chunk, n: int) -> float | None:
    """Rows per second over the last checkpoints."""
    seen: list[tuple[float, int]] = []
    for header, body in backwards(store, chunk):
        if not isinstance(body, journal.Checkpointed):
            break
        seen += [(header.at, position.rows) for position in body.positions if position.n == n]
        if len(seen) >= RATE_CHECKPOINTS:
            break
    if len(seen) < 2 or seen[0][0] <= seen[-1][0]:
        return None
    return (seen[0][1] - seen[-1][1]) / (seen[0][0] - seen[-1][0])
