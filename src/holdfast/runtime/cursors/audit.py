"""Whether every row of a source was delivered: what it holds up to each cursor, counted against what was handled.

The source is read once, as a stream, in the stretches between the checkpoints that the journal has: so a stretch that
holds more rows than were delivered of it is named.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from holdfast.core import canonical, cursor
from holdfast.core.cursor import Cursor, Standing
from holdfast.core.errors import Refused
from holdfast.core.limits import FINDINGS_LISTED
from holdfast.core.model import Batch, State
from holdfast.core.passes import Pass, Span, in_order, order
from holdfast.core.tally import WHOLE, Many, Tally, times_in
from holdfast.runtime.cursors.standing import borders, source_of, standings
from holdfast.runtime.cursors.totals import story_of
from holdfast.runtime.scans.unchanged import refuse_changed_batch
from holdfast.runtime.sources.base import Readable
from holdfast.runtime.text import many
from holdfast.stores.base import Store, each_item


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A stretch of the source of which not every row was delivered."""

    key: Any
    after: Cursor | None
    until: Cursor | None
    held: int
    delivered: int
    by_hand: bool = False
    """A person set the cursor past it."""

    def __str__(self) -> str:
        begin = "from its beginning" if self.after is None else f"after {self.after}"
        lacking = many(self.held - self.delivered, "row")
        end = f"a person passed {lacking} by" if self.by_hand else f"{lacking} missing"
        were = "was" if self.delivered == 1 else "were"
        return (
            f"partition {self.key}: {begin} up to {self.until} the source holds {many(self.held, 'row')}, "
            f"{self.delivered:,} {were} delivered: {end}"
        )

    def as_dict(self) -> dict[str, Any]:
        plain = {"partition": self.key, "held": self.held, "delivered": self.delivered, "by_hand": self.by_hand}
        borders = {"after": self.after, "until": self.until}
        return plain | {name: None if at is None else cursor.to_plain(at) for name, at in borders.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """One partition up to its cursor. What the source holds is handled, passed by or missing."""

    key: Any
    held: int = 0
    """Rows that the source holds now."""
    handled: int = 0
    """Of them, those that were handled at least once, or became dead letters."""
    passed: int = 0
    """Those that a person set the cursor past, and nobody handled."""
    missing: int = 0
    """The others."""
    twice: int = 0
    """Rows that were handled more than once, counted as often as that was once too much."""
    surplus: int = 0
    """Rows that were handled and are not there any more: deleted, or moved on by an update."""
    total: Tally = WHOLE
    """What the total leaves out and counts twice, counted in the source."""


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
        """Whether every row was delivered, and every total is made of every row once."""
        return not any(part.missing or part.passed or not part.total.is_whole for part in self.parts)

    @property
    def sentence(self) -> str:
        """What was found, in words that the figures bear out."""
        held, handled, passed, missing, twice = (
            sum(getattr(part, name) for part in self.parts)
            for name in ("held", "handled", "passed", "missing", "twice")
        )
        up_to = f"up to the cursors of {self.batch}"
        if handled == held:
            said = [f"All {many(held, 'row')} {up_to} were delivered"]
        else:
            said = [f"{handled:,} of {many(held, 'row')} {up_to} were delivered"]
            said += [f"{many(missing, 'row')} never {'was' if missing == 1 else 'were'}"] if missing else []
            said += [f"a person passed {many(passed, 'row')} by"] if passed else []
        said += (
            [f"{many(twice, 'row')} {'was' if twice == 1 else 'were'} delivered again after a reset"] if twice else []
        )
        said += [f"{many(self.dead_rows, 'row')} of them in dead letters"] if self.dead_rows else []
        return "; ".join(said) + "."

    @property
    def totals(self) -> list[str]:
        """What is amiss with totals, partition by partition."""
        return [f"partition {part.key}: {part.total.standing()}" for part in self.parts
                if part.total.of_total and not part.total.is_whole]  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        parts = [{"partition": part.key, "held": part.held, "handled": part.handled, "passed": part.passed,
                  "missing": part.missing, "twice": part.twice, "surplus": part.surplus,
                  "total": part.total.as_dict() if part.total.of_total else None} for part in self.parts]  # fmt: skip
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
    refuse_changed_batch(source, store, batch)
    parts: list[Count] = []
    gaps: list[Gap] = []
    for at in standings(store, batch):
        found, missed = _count(store, batch, source, at)
        parts.append(found)
        gaps += missed[: FINDINGS_LISTED - len(gaps)]
    dead = sum(borders(item) is None for item in each_item(store, batch.id, state=State.DEAD))
    return Audit(batch=batch.name, parts=tuple(parts), gaps=tuple(gaps), dead_rows=dead)


def _count(store: Store, batch: Batch, source: Readable, at: Standing) -> tuple[Count, list[Gap]]:
    """Stretch by stretch: rows that are missing in one are not made up for by rows that were deleted in another. Where
    rows were handled in several passes, the last one tells what was there."""
    told = story_of(store, batch, at)
    found, gaps, left_out, twice = Count(key=at.key), list[Gap](), 0, 0
    places = [each for one in told.passes for each in (one.after, one.until)]
    places += [each for span in told.total for each in span]
    edges = [each for each in in_order(places) if order(each, at.after) >= 0 and order(each, told.reached) <= 0]
    for edge in pairwise(edges):
        inside = [one for one in told.passes if one.covers(*edge) and one.after != one.until]
        count, some = _stretch(source, at.key, inside[-1] if inside else None, edge)
        times = times_in(told.total, edge)
        left_out += 0 if times else count.held
        again = _again(inside, edge, count.held)
        twice += max(0, times - 1) * again
        gaps += some[: FINDINGS_LISTED - len(gaps)]
        found = replace(found, held=found.held + count.held, handled=found.handled + count.handled,
                        passed=found.passed + count.passed, missing=found.missing + count.missing,
                        surplus=found.surplus + count.surplus,
                        twice=found.twice + max(0, len(inside) - 1) * again)  # fmt: skip
    total = Tally(Many(left_out, left_out), Many(twice, twice), told.accumulates)
    return replace(found, total=total), gaps


def _stretch(source: Readable, key: Any, one: Pass | None, edge: Span) -> tuple[Count, list[Gap]]:
    """Between two places that a person or a pass came to: by the checkpoints of the pass that went over it last."""
    if one is None:
        held = rows_between(source, *edge)
        gap = Gap(key=key, after=edge[0], until=edge[1], held=held, delivered=0, by_hand=True)
        return Count(key=key, held=held, passed=held), [gap] if held else []
    inner = [point.until for point in one.points if order(edge[0], point.until) < 0 < order(edge[1], point.until)]
    found, gaps = Count(key=key), []
    for begin, end in pairwise([edge[0], *inner, edge[1]]):
        held, delivered = rows_between(source, begin, end), _delivered(one, begin, end)
        missing = 0 if delivered[1] is None else max(0, held - delivered[1])
        if missing:
            gaps.append(Gap(key=key, after=begin, until=end, held=held, delivered=held - missing))
        found = replace(found, held=found.held + held, handled=found.handled + held - missing,
                        missing=found.missing + missing,
                        surplus=found.surplus + max(0, delivered[0] - held))  # fmt: skip
    return found, gaps


def _again(inside: list[Pass], edge: Span, held: int) -> int:
    """How many rows of a stretch each pass over it can have handled: one that came or went between two passes was in
    the hands of one of them only."""
    known = [most for _, most in (_delivered(one, *edge) for one in inside) if most is not None]
    return min(known, default=held)


def _delivered(one: Pass, begin: Cursor | None, end: Cursor | None) -> tuple[int, int | None]:
    """At least and at most so many rows were handled between two places."""
    low, high = one.rows_at(begin), one.rows_at(end)
    if low is None or high is None:
        return 0, None
    most = None if high[1] is None else high[1] - low[0]
    return (0 if low[1] is None else max(0, high[0] - low[1])), most


def rows_between(source: Readable, after: Cursor | None, until: Cursor | None) -> int:
    """How many rows the source holds after one cursor, up to another and with it."""
    return 0 if after == until else sum(len(page.rows) for page in source.read(after, until))
