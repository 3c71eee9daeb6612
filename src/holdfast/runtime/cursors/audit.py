"""Whether every row of a source was delivered: what it holds up to each cursor, counted against what was handled.

The source is read once, as a stream, in the stretches between the checkpoints that the journal has: so a stretch that
holds more rows than were delivered of it is named.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.core import canonical, cursor, cursors
from holdfast.core.cursor import Cursor
from holdfast.core.cursors import Standing
from holdfast.core.errors import Refused
from holdfast.core.limits import FINDINGS_LISTED
from holdfast.core.model import Batch, State
from holdfast.runtime.cursors.history import Past, history
from holdfast.runtime.cursors.planting import IMPORTED
from holdfast.runtime.cursors.standing import borders, source_of, standings
from holdfast.runtime.sources.base import Readable
from holdfast.runtime.words import many
from holdfast.stores.base import Store, each_item

STRETCHES = 1_000
"""So many stretches of a partition are told apart at most; of a longer past, neighbours are taken together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A stretch of the source of which not every row was delivered."""

    key: Any
    after: Cursor | None
    until: Cursor | None
    held: int
    delivered: int

    def __str__(self) -> str:
        begin = "its beginning" if self.after is None else f"after {self.after}"
        return (
            f"partition {self.key}: from {begin} up to {self.until} the source holds {many(self.held, 'row')}, "
            f"{self.delivered:,} were delivered: {many(self.held - self.delivered, 'row')} missing"
        )

    def as_dict(self) -> dict[str, Any]:
        plain = {"partition": self.key, "held": self.held, "delivered": self.delivered}
        borders = {"after": self.after, "until": self.until}
        return plain | {name: None if at is None else cursor.to_plain(at) for name, at in borders.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """One partition up to its cursor."""

    key: Any
    held: int
    """Rows that the source holds now."""
    handled: int
    """Rows that were handled, or became dead letters."""
    missing: int
    surplus: int
    """Rows that were delivered and are not there any more: deleted, or moved on by an update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What was found."""

    batch: str
    parts: tuple[Count, ...]
    gaps: tuple[Gap, ...]
    dead_rows: int
    """Rows of the scan that are dead letters of their own: delivered, and not done."""

    @property
    def is_whole(self) -> bool:
        return not any(part.missing for part in self.parts)

    @property
    def sentence(self) -> str:
        held, missing = (sum(getattr(part, name) for part in self.parts) for name in ("held", "missing"))
        dead = f"; {many(self.dead_rows, 'row')} of them in dead letters" if self.dead_rows else ""
        if missing:
            return f"{many(missing, 'row')} of {held:,} up to the cursors of {self.batch} were never delivered."
        return f"All {many(held, 'row')} up to the cursors of {self.batch} were delivered{dead}."

    def as_dict(self) -> dict[str, Any]:
        parts = [{"partition": part.key, "held": part.held, "handled": part.handled, "missing": part.missing,
                  "surplus": part.surplus} for part in self.parts]  # fmt: skip
        return {"batch": self.batch, "whole": self.is_whole, "dead_rows": self.dead_rows, "partitions": parts,
                "gaps": [gap.as_dict() for gap in self.gaps]}  # fmt: skip


def audit(store: Store, batch: Batch, source: Readable) -> Audit:
    """Count what the source holds up to every cursor, and find what was not delivered. Nothing is changed."""
    known = source_of(batch)
    described = canonical.decode(canonical.encode(source.describe()))
    if described != known:
        raise Refused(
            f"the source is not the one that {batch.name!r} scans: {described!r} here, {known!r} there; its cursors "
            "mean something else"
        )
    parts: list[Count] = []
    gaps: list[Gap] = []
    for at in standings(store, batch):
        found, missed = _count(store, batch, source, at)
        parts.append(found)
        gaps += missed[: FINDINGS_LISTED - len(gaps)]
    dead = sum(borders(item) is None for item in each_item(store, batch.id, state=State.DEAD))
    return Audit(batch=batch.name, parts=tuple(parts), gaps=tuple(gaps), dead_rows=dead)


def _count(store: Store, batch: Batch, source: Readable, at: Standing) -> tuple[Count, list[Gap]]:
    """Stretch by stretch: rows that are missing in one are not made up for by rows that were deleted in another."""
    held = missing = surplus = 0
    gaps: list[Gap] = []
    begin, delivered_before = at.after, 0
    for each in stretches(history(store, batch, at.n)):
        there = rows_between(source, begin, each.until)
        delivered = there if each.was_passed else each.rows - delivered_before
        held += there
        missing += max(0, there - delivered)
        surplus += max(0, delivered - there)
        if there > delivered and len(gaps) < FINDINGS_LISTED:
            gaps.append(Gap(key=at.key, after=begin, until=each.until, held=there, delivered=delivered))
        begin, delivered_before = each.until, each.rows
    return Count(key=at.key, held=held, handled=at.rows, missing=missing, surplus=surplus), gaps


def rows_between(source: Readable, after: Cursor | None, until: Cursor) -> int:
    """How many rows the source holds after one cursor, up to another and with it."""
    return 0 if after == until else sum(len(page.rows) for page in source.read(after, until))


@dataclass(frozen=True, slots=True)
class Stretch:
    """From the stretch before it up to a checkpoint."""

    until: Cursor
    rows: int
    """Rows that were handled up to there in all, as that checkpoint says."""
    was_passed: bool = False
    """A person set the cursor back to there, or another program had come there: everything up to it was passed, and
    its count of rows says less."""


def stretches(past: Iterator[Past]) -> list[Stretch]:
    """The checkpoints that lead to the last one; what a reset undid is left out. Of many, every second is forgotten
    again and again, so that memory stays flat."""
    kept: list[Stretch] = []
    last: Stretch | None = None
    every = skipped = 0
    for each in past:
        where = cursor.decode(each.cursor) if each.cursor else None
        is_act = each.kind != "checkpoint"
        is_back = is_act and last is not None and cursors.compare(where, last.until) == -1
        if is_act:
            kept = [] if where is None else [one for one in kept if cursors.compare(one.until, where) == -1]
        uncounted = each.kind == IMPORTED and not each.rows  # the state that was imported did not say how many
        last = None if where is None else Stretch(where, each.rows, is_back or uncounted)
        skipped += 1
        if last is not None and (is_act or skipped > every):
            kept.append(last)
            skipped = 0
        if len(kept) > STRETCHES:
            kept, every = kept[1::2], every * 2 + 1
    return kept if last is None or last in kept[-1:] else [*kept, last]
