"""The ranges of a scan as they stand: item, checkpoint and lease of each, gathered."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.core import canonical, cursor, journal
from holdfast.core.cursor import Cursor, Standing
from holdfast.core.errors import UsageError
from holdfast.core.model import Batch, Chunk, StoredItem
from holdfast.runtime import lookup
from holdfast.runtime.journal import backward
from holdfast.runtime.text import command
from holdfast.stores import owners
from holdfast.stores.base import Store, each_item

ROW = "row "
"""How the keys of rows begin that were buried one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Who may commit for a range, and since when."""

    owner: str | None
    fence: int
    acquired_at: float | None
    heartbeat_at: float | None
    """When it was last renewed: by a heartbeat, or by a commit."""
    expires_at: float | None
    is_live: bool
    by_its_clock: bool = False
    """Whether that is told by its owner's clock, which may be wrong: on a bucket no clock is common to all."""


def source_of(batch: Batch) -> Any:
    """What the batch scans, as its definition tells. Raises UsageError for a batch that is no scan."""
    if not is_scan(batch):
        raise UsageError(
            f"batch {batch.name!r} is not a scan, its items have no cursors: see `{command('show', batch.name)}`"
        )
    return canonical.decode(batch.definition)["stages"][0]["source"]


def is_scan(batch: Batch) -> bool:
    """Whether the items of the batch are ranges of a source."""
    stages = canonical.decode(batch.definition)["stages"]
    return len(stages) == 1 and isinstance(stages[0], dict) and "source" in stages[0]


def standings(store: Store, batch: Batch, partition: str | None = None) -> Iterator[Standing]:
    """Every range of the scan as it stands, or the one that is named; rows that were buried are none."""
    source_of(batch)
    if partition is None:
        items = each_item(store, batch.id)
    else:
        found = lookup.item_named(store, batch, partition)
        if borders(found) is None:
            raise UsageError(f"item {found.key!r} of {batch.name!r} is a row, not a partition: it has no cursor")
        items = [found]
    for item in items:
        at = standing_of(store, batch, item)
        if at is not None:
            yield at


def expected_rows(store: Store, batch: Batch) -> int | None:
    """How many rows all partitions have together; None where that is not known of one."""
    found = [within[2] for item in each_item(store, batch.id) if (within := borders(item)) is not None]
    return None if any(rows is None for rows in found) else sum(rows for rows in found if rows is not None)


def standing_of(store: Store, batch: Batch, item: StoredItem) -> Standing | None:
    """An item as it stands that is a range of a scan; None if it is none."""
    within = borders(item) if is_scan(batch) else None
    if within is None:
        return None
    found = store.checkpoints(batch.id, lo=item.n, hi=item.n + 1, limit=1)
    after, until, expected = within
    return Standing(n=item.n, key=item.key, place=item.place, salt=item.salt, payload=item.payload, after=after,
                    until=until, expected=expected, checkpoint=found[0] if found else None)  # fmt: skip


def borders(item: StoredItem) -> tuple[Cursor | None, Cursor | None, int | None] | None:
    """After what a partition begins, where it ends, and about how many rows it has; None for a row that was buried."""
    try:
        plain = canonical.decode(item.payload)
    except msgspec.DecodeError:
        return None
    if not isinstance(plain, dict) or not {"after", "until"} <= plain.keys() or "row" in plain:
        return None
    if isinstance(plain.get("range"), str) and plain["range"].startswith(ROW):
        return None
    after, until = (None if plain[each] is None else cursor.from_plain(plain[each]) for each in ("after", "until"))
    return after, until, plain.get("rows")


def identity_of(at: Standing) -> Any:
    """What the source was like when it was divided into ranges; None where it cannot tell."""
    return canonical.decode(at.payload).get("identity")


def chunk_of(chunks: Sequence[Chunk], n: int) -> Chunk:
    """The chunk that holds the item."""
    return next(chunk for chunk in chunks if chunk.lo <= n < chunk.hi)


def lease_of(store: Store, chunk: Chunk) -> Lease:
    """Who holds the chunk. When it was last renewed follows from how long it was granted for."""
    if chunk.owner is None:
        return Lease(owner=None, fence=chunk.fence, acquired_at=None, heartbeat_at=None, expires_at=None, is_live=False)
    acquired = heartbeat = None
    for entry in backward(store, chunk, "claimed"):
        acquired = entry.at
        heartbeat = chunk.expires - (entry.told(journal.Claimed).expires - entry.at)
        break
    return Lease(owner=chunk.owner, fence=chunk.fence, acquired_at=acquired, heartbeat_at=heartbeat,
                 expires_at=chunk.expires, is_live=owners.is_live(chunk, store.now()),
                 by_its_clock=not store.capabilities.one_clock)  # fmt: skip
