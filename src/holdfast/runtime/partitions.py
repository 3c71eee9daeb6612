"""The partitions of a scan: every checkpoint that one ever had, the present state of each, and a lasting remark on its
total.

A partition whose cursor a person set may have a total that does not contain every row exactly once. The journal shows
that: a return to an earlier state removes the remark, and so does a return to the beginning.
"""

import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec

from holdfast.core import canonical, cursor, journal
from holdfast.core.cursor import Cursor, Standing
from holdfast.core.errors import UsageError
from holdfast.core.model import Batch, Chunk, Kind, StoredItem
from holdfast.runtime import lookup
from holdfast.runtime.journal import JournalEntry, backward, backward_of, forward, forward_of
from holdfast.runtime.sources.base import Span
from holdfast.runtime.text import command, when
from holdfast.stores import base, owners
from holdfast.stores.base import Store, each_checkpoint, each_item

BEGUN, PLANTED = "planting", "planted"
"""Entries of a batch that begins in the middle: before its first item, and when it is complete."""
CLONED, IMPORTED = "cloned", "imported"
"""The kinds of such a batch: a clone of one in this store, or an import from elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastCheckpoint:
    """A checkpoint as the journal has it: written by a commit, or set by a person."""

    at: float
    n: int
    rows: int
    cursor: bytes
    kind: str
    """`checkpoint`, or the act of a person."""
    actor: str
    fence: int
    commit_id: str
    entry: str
    reason: str = ""
    digest: bytes = b""
    """The commitment to the accumulator; empty if there is none."""
    mark: bytes = b""
    """A mark by which the same accumulator is recognised."""
    is_end: bool = False
    """The partition was done with it."""
    spend: journal.Spend | None = None
    """The cost and metrics of its rows, as reported by their handler."""

    @property
    def usd(self) -> Decimal:
        return canonical.to_usd(0 if self.spend is None else self.spend.usd)

    @property
    def is_act(self) -> bool:
        return self.kind != "checkpoint"

    @property
    def position(self) -> journal.Position:
        return journal.Position(self.n, self.rows, self.cursor, self.digest)

    def as_dict(self, key: Any) -> dict[str, Any]:
        at = None if not self.cursor else cursor.to_plain(cursor.decode(self.cursor))
        plain = {
            "at": self.at, "partition": key, "rows": self.rows, "cursor": at, "kind": self.kind, "actor": self.actor,
            "fence": self.fence, "commit_id": self.commit_id, "entry": self.entry,
        }  # fmt: skip
        plain |= {"reason": self.reason} if self.reason else {}
        return plain if self.spend is None else plain | cost_facts(self.spend)


def cost_facts(said: journal.Spend) -> dict[str, Any]:
    """Return costs and metrics as plain values."""
    return {
        "usd": format(canonical.to_usd(said.usd), "f"), "tokens": said.tokens, "model": said.model, "usage": said.usage,
        "metrics": said.metrics,
    }  # fmt: skip


def cost_words(said: journal.Spend) -> str:
    """Return costs in words; empty if there were none."""
    parts = [
        f"${canonical.to_usd(said.usd)}" if said.usd else "",
        f"{said.tokens:,} tokens" if said.tokens else "",
        said.model,
    ]
    return ", ".join(part for part in parts if part)


def history(store: Store, batch: Batch, n: int | None = None) -> Iterator[PastCheckpoint]:
    """Yield the checkpoints of one partition, or of all, oldest first; read as a stream."""
    chunks = store.chunks(batch.id)
    if n is not None:
        return (past for entry in forward_of(store, chunks, n) for past in _told(entry) if past.n == n)
    streams = [_of_chunk(store, chunk) for chunk in chunks]
    return heapq.merge(*streams, key=lambda past: past.at)


def last_two(store: Store, chunks: list[Chunk], n: int) -> list[PastCheckpoint]:
    """Return the newest checkpoint of a partition and the one before it, if they exist."""
    found: list[PastCheckpoint] = []
    for entry in backward_of(store, chunks, n):
        found += [past for past in _told(entry) if past.n == n]
        if len(found) >= 2:
            return found[:2]
    return found


def _of_chunk(store: Store, chunk: Chunk) -> Iterator[PastCheckpoint]:
    for entry in forward(store, chunk):
        yield from _told(entry)


def _told(entry: JournalEntry) -> Iterator[PastCheckpoint]:
    body = entry.body
    if isinstance(body, journal.Checkpointed):
        for position in body.positions:
            ended = any(group.finished and position.n in group.items for group in body.advanced)
            spend = next((said for _, said in body.spends if said.n == position.n), None)
            yield _past(entry, position, is_end=ended, spend=spend)
    elif isinstance(body, journal.Acted):
        for moved in body.items:
            if moved.position is not None:
                yield _past(entry, moved.position, body.reason)


def _past(entry: JournalEntry, position: journal.Position, reason: str = "", *, is_end: bool = False,
          spend: journal.Spend | None = None) -> PastCheckpoint:  # fmt: skip
    header = entry.header
    return PastCheckpoint(at=header.at, n=position.n, rows=position.rows, cursor=position.cursor, kind=header.kind,
                actor=header.actor, fence=header.fence, commit_id=header.commit_id.hex(),
                entry=entry.name, reason=reason, digest=position.digest, mark=position.mark or position.digest,
                is_end=is_end, spend=spend)  # fmt: skip


def kind_by_number(chunks: Sequence[Chunk]) -> Callable[[int], Kind]:
    """Return a function that gives the kind of an item by its number."""
    starts = [chunk.lo for chunk in chunks]
    return lambda n: chunks[bisect_right(starts, n) - 1].kind


def rows_by_state(chunks: Sequence[Chunk]) -> dict[str, int]:
    """Return how many rows were buried one by one, by their present state."""
    found = Counter[str]()
    for chunk in chunks:
        if chunk.kind is Kind.ROWS:
            counts = chunk.counts
            found += Counter(pending=chunk.pending, done=counts.done, skipped=counts.skipped, dead=counts.dead,
                             cancelled=counts.cancelled)  # fmt: skip
    return dict(found)


def rows_handled(store: Store, batch: Batch, chunks: Sequence[Chunk]) -> int:
    """Return how many rows are behind the checkpoints of partitions; buried rows have their own."""
    kind_at = kind_by_number(chunks)
    return sum(at.rows for at in each_checkpoint(store, batch.id) if kind_at(at.n) is Kind.PARTITIONS)


def payload_of(span: Span) -> dict[str, Any]:
    """Return a partition as the payload of an item."""
    plain = {"after": _plain(span.after), "until": _plain(span.until), "rows": span.rows}
    return plain if span.identity is None else {**plain, "identity": span.identity}


def span_of(payload: bytes) -> Span:
    """Return the partition in the payload of an item."""
    plain = msgspec.json.decode(payload)
    after, until = plain["after"], plain["until"]
    return Span(
        after=None if after is None else cursor.from_plain(after),
        until=None if until is None else cursor.from_plain(until),
        rows=plain["rows"],
        identity=plain.get("identity"),
    )


def _plain(at: Cursor | None) -> Any:
    return None if at is None else cursor.to_plain(at)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLease:
    """The owner that may commit for a partition, and its times."""

    owner: str | None
    fence: int
    acquired_at: float | None
    heartbeat_at: float | None
    """When it was last renewed: by a heartbeat, or by a commit."""
    expires_at: float | None
    is_live: bool
    by_its_clock: bool = False
    """Whether that is by the owner's clock, which may be wrong: on a bucket there is no common clock."""


def source_of(batch: Batch) -> Any:
    """Return the source of a scan, from its definition. Raises UsageError for a batch that is not a scan."""
    if (found := _source(batch)) is None:
        raise UsageError(
            f"batch {batch.name!r} is not a scan, so its items have no cursors: see `{command('show', batch.name)}`"
        )
    return found


def _source(batch: Batch) -> Any:
    stages = canonical.decode(batch.definition)["stages"]
    return stages[0].get("source") if len(stages) == 1 and isinstance(stages[0], dict) else None


def standings(store: Store, batch: Batch, partition: str | None = None) -> Iterator[Standing]:
    """Yield the present state of every partition of the scan, or of the named one; buried rows are not included."""
    source_of(batch)
    if partition is None:
        items = each_item(store, batch.id, kind=Kind.PARTITIONS)
    else:
        found = lookup.item_named(store, batch, partition)
        if not is_partition(store, batch, found):
            raise UsageError(f"item {found.key!r} of {batch.name!r} is a row, not a partition: it has no cursor")
        items = [found]
    for item in items:
        if (at := _standing(store, batch, item)) is not None:
            yield at


def expected_rows(store: Store, batch: Batch) -> int | None:
    """Return how many rows all partitions have together; None if the number is unknown for one."""
    parts = (_borders(item) for item in each_item(store, batch.id, kind=Kind.PARTITIONS))
    found = [within[2] for within in parts if within is not None]
    return None if any(rows is None for rows in found) else sum(rows for rows in found if rows is not None)


def is_partition(store: Store, batch: Batch, item: StoredItem) -> bool:
    """Return whether an item is a partition of a scan, and so has a cursor."""
    return base.chunk_of(store, batch.id, item.n).kind is Kind.PARTITIONS


def standing_of(store: Store, batch: Batch, item: StoredItem) -> Standing | None:
    """Return the present state of an item that is a partition of a scan; None if it is not one."""
    return _standing(store, batch, item) if is_partition(store, batch, item) else None


def _standing(store: Store, batch: Batch, item: StoredItem) -> Standing | None:
    within = _borders(item)
    if within is None:
        return None
    found = store.checkpoints(batch.id, lo=item.n, hi=item.n + 1, limit=1)
    after, until, expected = within
    return Standing(n=item.n, key=item.key, place=item.place, payload=item.payload, after=after,
                    until=until, expected=expected, checkpoint=found[0] if found else None)  # fmt: skip


def _borders(item: StoredItem) -> tuple[Cursor | None, Cursor | None, int | None] | None:
    """Return the cursor before a partition, its last cursor, and its approximate number of rows; None if that cannot be
    read."""
    try:
        plain = canonical.decode(item.payload)
    except msgspec.DecodeError:
        return None
    after, until = (None if plain[each] is None else cursor.from_plain(plain[each]) for each in ("after", "until"))
    return after, until, plain.get("rows")


def identity_of(at: Standing) -> Any:
    """Return the identity of the source when it was divided into partitions; None if it has none."""
    return canonical.decode(at.payload).get("identity")


def chunk_of(chunks: Sequence[Chunk], n: int) -> Chunk:
    """Return the chunk that holds the item."""
    return next(chunk for chunk in chunks if chunk.lo <= n < chunk.hi)


def lease_of(store: Store, chunk: Chunk) -> PartitionLease:
    """Return the owner of the chunk. The last renewal follows from the duration of the lease."""
    if chunk.owner is None:
        return PartitionLease(
            owner=None, fence=chunk.fence, acquired_at=None, heartbeat_at=None, expires_at=None, is_live=False
        )
    acquired = heartbeat = None
    for entry in backward(store, chunk, "claimed"):
        acquired = entry.at
        heartbeat = chunk.expires - (entry.told(journal.Claimed).expires - entry.at)
        break
    return PartitionLease(owner=chunk.owner, fence=chunk.fence, acquired_at=acquired, heartbeat_at=heartbeat,
                 expires_at=chunk.expires, is_live=owners.is_live(chunk, store.now()),
                 by_its_clock=not store.capabilities.one_clock)  # fmt: skip


MISCOUNTS = "its total may leave rows out or count them twice"
PASSES_BY = "rows may have been skipped and never handled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """A remark on the total of a partition."""

    key: Any
    act: PastCheckpoint
    """The act of a person that set its cursor: the remark applies since then."""
    accumulates: bool
    """False if there is no total, and rows may be missing from the work itself."""
    text: str

    def __str__(self) -> str:
        return self.text

    def as_dict(self) -> dict[str, Any]:
        return {"partition": self.key, "by": self.act.actor, "at": self.act.at, "reason": self.act.reason,
                "text": self.text}  # fmt: skip


def remarks(store: Store, batch: Batch, partition: str | None = None) -> list[Remark]:
    """Return a remark for every partition that has one, or for the named one. The journal is read only for partitions
    whose cursor may have been set."""
    if _source(batch) is None:
        return []
    found, begun_with = [], _begun_with(store, batch)
    for at in standings(store, batch, partition):
        before = begun_with.get(canonical.key_text(at.key), "")
        if at.place.epoch and (made := _remark(store, batch, at, before)) is not None:
            found.append(made)
    return found


def for_a_clone(found: Iterable[Remark]) -> list[dict[str, Any]]:
    """Return the remarks on the totals that a clone begins with, for its journal."""
    return [{"partition": each.key, "text": each.text} for each in found]


def _begun_with(store: Store, batch: Batch) -> dict[str, str]:
    """Return the remarks on the totals that a clone began with, by the key of the partition."""
    for entry in forward(store, batch, PLANTED):
        return {canonical.key_text(each["partition"]): each["text"] for each in entry.note.get("totals", ())}
    return {}


def _remark(store: Store, batch: Batch, at: Standing, before: str) -> Remark | None:
    """Return the remark. The journal is read twice: first for the states that a person set, then for which of them had
    occurred before."""
    states = {_known(past) for past in history(store, batch, at.n) if past.is_act}
    since, accumulates = _set_at(history(store, batch, at.n), at.after, states, before) if states else (None, False)
    if since is None:
        return None
    why = f": {since.reason}" if since.reason else ""
    what = f"was {since.kind.replace('_', ' ')}" if since.kind in (CLONED, IMPORTED) else "was reset"
    follows = before if before and since.kind == CLONED else MISCOUNTS if accumulates else PASSES_BY
    text = f"partition {at.key} {what} by {owners.short(since.actor)} on {when(since.at)}{why}; {follows}"
    return Remark(key=at.key, act=since, accumulates=accumulates, text=text)


Known = tuple[int, bytes, bytes]


def _known(past: PastCheckpoint) -> Known:
    return past.rows, past.cursor, past.mark


def _set_at(
    pasts: Iterator[PastCheckpoint], begin: Cursor | None, states: set[Known], before: str
) -> tuple[PastCheckpoint | None, bool]:
    """Return the act since which the total may be wrong, if any, and whether there is a total at all. Without one, rows
    are skipped if the cursor is set beyond the furthest position that was reached."""
    since: PastCheckpoint | None = None
    known, furthest, accumulates = set[Known](), begin, False
    for past in pasts:
        place = cursor.decode(past.cursor) if past.cursor else begin
        accumulates |= bool(past.digest)
        if past.is_act and past.kind == CLONED:
            since = past if before else None
        elif past.is_act:
            is_fine = _known(past) in known if accumulates else cursor.compare(place, furthest) in (0, -1)
            if is_fine or not past.cursor:
                since = None
            elif since is None and past.kind != IMPORTED:  # an imported state says what was handled elsewhere
                since = past
        if since is None:
            known |= {_known(past)} & states
            furthest = furthest if cursor.compare(place, furthest) == -1 else place
    return since, accumulates
