"""The overview of a scan: rows, rate, cursor and lag of each partition."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from holdfast.core import canonical, cursor, journal
from holdfast.core.cursor import BYTE, Cursor, Standing
from holdfast.core.model import Batch, Chunk, State, StoredItem
from holdfast.core.plain import Plain
from holdfast.runtime.journal import backward
from holdfast.runtime.partitions import chunk_of, is_partition, standing_of, standings
from holdfast.runtime.text import brief, many
from holdfast.stores import owners
from holdfast.stores.base import Store

FOLLOW = "follow"
"""The key of the only partition of a scan that follows its source."""
RATE_CHECKPOINTS = 16
"""The number of last checkpoints from which the rate is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus(Plain):
    """The status of one partition."""

    key: Any
    state: str
    rows: int
    expected: int | None
    rate: float | None
    """Rows per second over the last checkpoints of its owner; None if it has no live owner, or fewer than two
    checkpoints."""
    cursor: str
    lag: str
    updated_at: float | None
    owner: str
    accumulated: int
    """The size of its accumulator in bytes."""
    error: str = ""
    share: float | None = None
    """The share of it that is behind the cursor, from 0 to 1: by rows if their number is known, otherwise by its
    borders."""
    rows_left: int | None = None
    """An estimate of its remaining rows; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOverview(Plain):
    """All partitions of a scan together."""

    rows: int
    rows_left: int | None
    """An estimate of the remaining rows; None if unknown, as for a scan that follows its source."""
    rate: float | None
    """Rows per second; None if there is no live owner."""
    seconds_left: float | None
    follows: bool
    lag: str
    """The lag of a scan that follows its source."""
    states: dict[str, int]
    """The number of partitions by state. Buried rows are items, not partitions."""


def overview(seen: Sequence[PartitionStatus]) -> ScanOverview:
    """Return the sum of the partitions."""
    rates = [each.rate for each in seen if each.rate is not None]
    open_ = [each for each in seen if each.state in ("running", "following", State.PENDING)]
    left = None if any(each.rows_left is None for each in open_) else sum(each.rows_left or 0 for each in open_)
    rate = sum(rates) if rates else None
    longest = max((each.rows_left / each.rate for each in open_ if each.rows_left and each.rate), default=0.0)
    follows = any(each.key == FOLLOW for each in seen)
    return ScanOverview(
        rows=sum(each.rows for each in seen), rows_left=left, rate=rate,
        seconds_left=max(left / rate, longest) if left is not None and rate else None,
        follows=follows, lag=next((each.lag for each in seen), "") if follows else "",
        states=dict(Counter("pending" if each in open_ else each.state for each in seen)),
    )  # fmt: skip


def has_begun(store: Store, batch: Batch) -> bool:
    """Return whether rows of a scan were handled, or a person set a cursor."""
    return bool(store.checkpoints(batch.id, limit=1))


def was_worked_on(store: Store, batch: Batch) -> bool:
    """Return whether rows of it were read here: a clone that was never run only has its cursors."""
    chunks = store.chunks(batch.id)
    return any(chunk.owner is not None or _last_is_of_work(store, chunk) for chunk in chunks)


def _last_is_of_work(store: Store, chunk: Chunk) -> bool:
    return any(isinstance(each.body, journal.Claimed | journal.Checkpointed) for each in backward(store, chunk))


def is_followed(store: Store, batch: Batch) -> bool:
    """Return whether the batch is a scan that follows its source."""
    first = next(iter(store.items(batch.id, limit=1)), None)
    return first is not None and first.key == FOLLOW and is_partition(store, batch, first)


def glances(store: Store, batch: Batch) -> Iterator[PartitionStatus]:
    """Yield the current status of every partition."""
    chunks, now = store.chunks(batch.id), store.now()
    for at in standings(store, batch):
        yield glance(store, at, chunk_of(chunks, at.n), now)


def glance(store: Store, at: Standing, chunk: Chunk, now: float) -> PartitionStatus:
    place = at.place
    is_live = place.state is State.PENDING and owners.is_live(chunk, now)
    where = at.cursor
    share = _share(at)
    return PartitionStatus(
        key=at.key,
        state="running" if is_live else _state(at),
        rows=at.rows,
        expected=at.expected,
        rate=_rate(store, chunk, at.n) if is_live else None,
        cursor="not begun" if where is None else str(where),
        lag=lag(at, now),
        updated_at=None if at.checkpoint is None else at.checkpoint.at,
        owner=owners.short(chunk.owner) if is_live and chunk.owner is not None else "",
        accumulated=0 if at.acc is None else len(at.acc),
        error=f"{place.code}: {place.reason}" if place.code else "",
        share=share,
        rows_left=_left(at, share),
    )


def _state(at: Standing) -> str:
    return "following" if at.key == FOLLOW and at.rows and at.place.state is State.PENDING else at.place.state.value


def of_item(store: Store, batch: Batch, item: StoredItem) -> PartitionStatus | None:
    """Return the status of one item, if it is a partition."""
    at = standing_of(store, batch, item)
    return None if at is None else glance(store, at, chunk_of(store.chunks(batch.id), at.n), store.now())


def lag(at: Standing, now: float) -> str:
    """Return what is left: in rows if their number is known, otherwise when the last row was handled. A tick, which
    reads the source, reports how far a scan is behind it."""
    if at.place.state is not State.PENDING and at.place.state is not State.DEAD:
        return ""
    if at.expected is not None:
        return f"{many(max(0, at.expected - at.rows), 'row')} left"
    if at.checkpoint is not None and at.checkpoint.cursor:
        return f"last row {brief(max(0.0, now - at.checkpoint.at))} ago"
    return "everything"


def _share(at: Standing) -> float | None:
    """Return the share of a partition that is behind its cursor."""
    if at.place.state in (State.DONE, State.SKIPPED):
        return 1.0
    if at.expected is not None:
        return min(1.0, at.rows / at.expected) if at.expected else 1.0
    in_file = at.until is not None and at.until.kind == BYTE
    low, high = 0.0 if at.after is None and in_file else _number(at.after), _number(at.until)
    here = _byte(at, low) if in_file and low is not None else _number(at.where)
    if low is None or here is None or high is None or high <= low:
        return None
    share = min(1.0, max(0.0, (here - low) / (high - low)))
    return share if share or not at.rows else None  # the rows did not move the cursor, so the share is unknown


def _byte(at: Standing, low: float) -> float | None:
    """Return about which byte of a file a partition has reached. Its cursor is the byte at which a block begins, and a
    number of rows in the block: their length is estimated from the rows before; in the first block it is unknown."""
    where = at.cursor
    if where is None:
        return low
    begin, inside = _number(where), where.tiebreaker
    if begin is None or type(inside) is not int or not inside:
        return begin
    before = at.rows - inside
    return begin + inside * (begin - low) / before if before > 0 and begin > low else None


def _left(at: Standing, share: float | None) -> int | None:
    if at.place.state in (State.DONE, State.SKIPPED, State.CANCELLED):
        return 0
    if at.expected is not None:
        return max(0, at.expected - at.rows)
    return None if not share or not at.rows else round(at.rows * (1 - share) / share)


def _number(at: Cursor | None) -> float | None:
    value = None if at is None else at.value
    if isinstance(value, datetime):
        return value.timestamp()
    return float(value) if isinstance(value, int | float | Decimal) and not isinstance(value, bool) else None


def partition_in_words(at: Standing) -> str:
    """Return how far a partition has come, in words."""
    if at.checkpoint is None or not at.checkpoint.cursor:
        return "at its beginning: no row has been handled"
    of = "" if at.expected is None else f" of {at.expected:,}"
    kept = "nothing accumulated" if at.acc is None else f"{many(len(at.acc), 'byte')} accumulated"
    rows = f"{at.rows:,}{of} rows" if of else many(at.rows, "row")
    return f"after {cursor.decode(at.checkpoint.cursor)}: {rows} handled, {kept}"


def of_a_row(item: StoredItem) -> str:
    """Return where the partition was when it buried the row, as far as that is known."""
    seen = canonical.decode(item.payload).get("seen")
    if seen is None:
        return ""
    where = "at its beginning" if seen["after"] is None else f"after {cursor.from_plain(seen['after'])}"
    return f"seen by partition {seen['range']}, {where}, with {many(seen['rows'], 'row')} handled"


def _rate(store: Store, chunk: Chunk, n: int) -> float | None:
    """Return rows per second over the last checkpoints."""
    seen: list[tuple[float, int]] = []
    for entry in backward(store, chunk):
        body = entry.body
        if not isinstance(body, journal.Checkpointed):
            break
        seen += [(entry.at, position.rows) for position in body.positions if position.n == n]
        if len(seen) >= RATE_CHECKPOINTS:
            break
    if len(seen) < 2 or seen[0][0] <= seen[-1][0]:
        return None
    return (seen[0][1] - seen[-1][1]) / (seen[0][0] - seen[-1][0])
