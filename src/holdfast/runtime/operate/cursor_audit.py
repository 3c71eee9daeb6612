"""The audit of a scan: whether every row that the source holds up to each cursor was delivered.

The source is read once, as a stream, in the stretches between the checkpoints in the journal. A stretch that holds more
rows than were delivered from it is reported.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cmp_to_key
from itertools import pairwise
from typing import Any, NamedTuple

from holdfast.core import canonical, cursor
from holdfast.core.cursor import Cursor, Standing
from holdfast.core.errors import Refused
from holdfast.core.limits import FINDINGS_LISTED
from holdfast.core.model import Batch, Kind
from holdfast.runtime.operate.identity import refuse_changed_batch
from holdfast.runtime.partitions import IMPORTED, PastCheckpoint, Remark, history, remarks, source_of, standings
from holdfast.runtime.sources.base import Readable
from holdfast.runtime.text import many
from holdfast.stores.base import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A stretch of the source from which not every row was delivered."""

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
        end = f"a person skipped {lacking}" if self.by_hand else f"{lacking} missing"
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
    """One partition up to its cursor. Every row that the source holds is handled, passed by or missing."""

    key: Any
    held: int = 0
    """Rows that the source holds now."""
    handled: int = 0
    """Held rows that were handled at least once, or became dead letters."""
    passed: int = 0
    """Held rows that were not handled because a person set the cursor past them."""
    missing: int = 0
    """The other held rows."""
    twice: int = 0
    """Deliveries beyond the first: a row that was handled three times counts twice."""
    surplus: int = 0
    """Rows that were handled and are no longer there: deleted, or moved past the cursor by an update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorAudit:
    """The result of an audit of cursors."""

    batch: str
    parts: tuple[Count, ...]
    gaps: tuple[Gap, ...]
    dead_rows: int
    """Rows of the scan that are dead letters: delivered, but not done."""
    notes: tuple[Remark, ...] = ()
    """Partitions whose total may not count every row exactly once."""

    @property
    def is_whole(self) -> bool:
        """True if every row was delivered, and no cursor was set in a way that can make a total wrong."""
        return not any(part.missing or part.passed for part in self.parts) and not self.notes

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        held, handled, passed, missing, twice = (
            sum(getattr(part, name) for part in self.parts)
            for name in ("held", "handled", "passed", "missing", "twice")
        )
        up_to = f"up to the cursors of {self.batch}"
        if handled == held:
            said = [f"All {held:,} rows {up_to} were delivered" if held != 1 else f"The one row {up_to} was delivered"]
        else:
            said = [f"{handled:,} of {many(held, 'row')} {up_to} were delivered"]
            said += [f"{many(missing, 'row')} never {'was' if missing == 1 else 'were'}"] if missing else []
            said += [f"a person skipped {many(passed, 'row')}"] if passed else []
        said += (
            [f"{many(twice, 'row')} {'was' if twice == 1 else 'were'} delivered again after a reset"] if twice else []
        )
        said += [f"{many(self.dead_rows, 'row')} as dead letters"] if self.dead_rows else []
        return "; ".join(said) + "."

    def as_dict(self) -> dict[str, Any]:
        parts = [{"partition": part.key, "held": part.held, "handled": part.handled, "passed": part.passed,
                  "missing": part.missing, "twice": part.twice, "surplus": part.surplus}
                 for part in self.parts]  # fmt: skip
        return {
            "batch": self.batch,
            "whole": self.is_whole,
            "dead_rows": self.dead_rows,
            "partitions": parts,
            "gaps": [gap.as_dict() for gap in self.gaps],
            "notes": [note.as_dict() for note in self.notes],
        }


KEPT = 1_000
"""The most points of a pass that are kept; of a longer pass, every second point is dropped repeatedly."""
Span = tuple[Cursor | None, Cursor | None]
"""After one place, up to and including another."""


class Point(NamedTuple):
    """The number of rows that a pass had handled up to a place."""

    until: Cursor | None
    rows: int
    is_needed: bool = False


class Pass:
    """Rows that were handled one after the other. A new pass begins when a person sets the cursor."""

    def __init__(self, after: Cursor | None, *, base: int = 0, counted: bool = True) -> None:
        self.after, self.counted = after, counted
        self._base = base
        self.points: list[Point] = []
        self._every = self._dropped = 0
        self._last: Point | None = None

    @property
    def until(self) -> Cursor | None:
        return self.points[-1].until if self.points else self.after

    def covers(self, after: Cursor | None, until: Cursor | None) -> bool:
        """Return whether all rows between the two were handled in it."""
        return _order(self.after, after) <= 0 and _order(until, self.until) <= 0

    def reach(self, place: Cursor | None, rows: int, *, needed: bool) -> None:
        """Note a checkpoint of the pass. The checkpoints on both sides of a place where a person set the cursor are
        needed."""
        last = self._last
        if self.points and self.points[-1] is last and not self._is_kept():
            self.points.pop()  # it was kept because it was the last
        if needed and last is not None and (not self.points or self.points[-1] is not last):
            self.points.append(last._replace(is_needed=True))
        self._last = Point(place, rows - self._base, needed)
        self._dropped = 0 if self._is_kept() else self._dropped + 1
        self.points.append(self._last)
        if len(self.points) > KEPT:
            self._every = self._every * 2 + 1
            thin = [each for i, each in enumerate(self.points) if i % 2 or each.is_needed]
            self.points = thin if thin[-1] is self._last else [*thin, self._last]

    def _is_kept(self) -> bool:
        return self._last is not None and (self._last.is_needed or self._dropped >= self._every)

    def rows_at(self, place: Cursor | None) -> tuple[int, int | None] | None:
        """Return the least and the most rows that were handled up to a place; None if the pass never reached it."""
        if _order(place, self.after) < 0 or _order(place, self.until) > 0:
            return None
        if place == self.after:
            return 0, 0
        if not self.counted:
            return 0, None
        before = [each for each in self.points if _order(each.until, place) <= 0]
        low = before[-1] if before else Point(self.after, 0)
        if low.until == place or len(before) == len(self.points):
            return low.rows, low.rows
        high = self.points[len(before)]
        behind, apart = cursor.between(place, low.until), cursor.between(high.until, low.until)
        if behind is not None and apart in (None, high.rows - low.rows):
            return low.rows + behind, low.rows + behind
        return low.rows, high.rows


def passes(pasts: Callable[[], Iterable[PastCheckpoint]], at: Standing) -> list[Pass]:
    """Return the passes over a partition, from its history. That is read twice: first for the places where a person set
    the cursor."""
    targets = _in_order(_place(past, at) for past in pasts() if past.is_act)
    found, ahead, known = [Pass(at.after)], list(targets), set[tuple[bytes, int]]()
    before: PastCheckpoint | None = None
    for past in pasts():
        place = _place(past, at)
        if past.is_act:
            if (past.cursor, past.rows) not in known:
                found += _elsewhere(found, past, place, before)
            found.append(Pass(place, base=past.rows))
            ahead = [each for each in targets if _order(each, place) > 0]
        else:
            behind = len(ahead)
            ahead = [each for each in ahead if _order(each, place) > 0]
            found[-1].reach(place, past.rows, needed=past.is_end or len(ahead) < behind)
        if place in targets:
            known.add((past.cursor, past.rows))
        before = past
    return found


def _place(past: PastCheckpoint, at: Standing) -> Cursor | None:
    if past.is_end and at.until is not None:
        return at.until
    return cursor.decode(past.cursor) if past.cursor else at.after


def _elsewhere(
    found: list[Pass], past: PastCheckpoint, place: Cursor | None, before: PastCheckpoint | None
) -> list[Pass]:
    """Return the pass that an imported state says was made elsewhere. A reset that skips rows adds none."""
    here = begin = found[-1].until
    rows = 0 if before is None else before.rows
    is_uncounted = past.kind == IMPORTED and not past.rows
    if _order(place, here) <= 0 or not (past.rows > rows or (is_uncounted and before is None)):
        return []
    for one in found:
        if _order(one.after, begin) <= 0 < _order(one.until, begin):
            begin = one.until
    if _order(begin, place) >= 0:
        return []
    made = Pass(begin, base=rows, counted=begin == here and not is_uncounted)
    made.reach(place, past.rows, needed=True)
    return [made]


def _order(one: Cursor | None, other: Cursor | None) -> int:
    """Return a number below, at or above 0, as `cmp` does; 0 if only the source knows the order."""
    found = cursor.compare(one, other)
    return 0 if found is None else found


def _in_order(places: Iterable[Cursor | None]) -> list[Cursor | None]:
    """Return places in order, each once."""
    found: list[Cursor | None] = []
    for place in places:
        if place not in found:
            found.append(place)
    return sorted(found, key=cmp_to_key(_order))


def audit(store: Store, batch: Batch, source: Readable) -> CursorAudit:
    """Count the rows that the source holds up to every cursor, and find those that were not delivered. Nothing is
    changed."""
    known = source_of(batch)
    described = canonical.decode(canonical.encode(source.describe()))
    if described != known:
        raise Refused(
            f"this source is not the one that {batch.name!r} scans: {described!r} here, {known!r} in the batch; the "
            "cursors of the batch have no meaning in it"
        )
    refuse_changed_batch(source, store, batch)
    parts: list[Count] = []
    gaps: list[Gap] = []
    for at in standings(store, batch):
        found, missed = _count(store, batch, source, at)
        parts.append(found)
        gaps += missed[: FINDINGS_LISTED - len(gaps)]
    dead = sum(chunk.counts.dead for chunk in store.chunks(batch.id) if chunk.kind is Kind.ROWS)
    notes = tuple(note for note in remarks(store, batch) if note.accumulates)
    return CursorAudit(batch=batch.name, parts=tuple(parts), gaps=tuple(gaps), dead_rows=dead, notes=notes)


def _count(store: Store, batch: Batch, source: Readable, at: Standing) -> tuple[Count, list[Gap]]:
    """Count stretch by stretch, so that missing rows in one are not offset by deleted rows in another. If several
    passes handled a stretch, the last one counts."""
    walked = passes(lambda: history(store, batch, at.n), at)
    found, gaps, reached = Count(key=at.key), list[Gap](), walked[-1].until
    places = _in_order(each for one in walked for each in (one.after, one.until))
    edges = [each for each in places if _order(each, at.after) >= 0 and _order(each, reached) <= 0]
    for edge in pairwise(edges):
        inside = [one for one in walked if one.covers(*edge) and one.after != one.until]
        count, some = _stretch(source, at.key, inside[-1] if inside else None, edge)
        again = _again(inside, edge, count.held)
        gaps += some[: FINDINGS_LISTED - len(gaps)]
        found = replace(found, held=found.held + count.held, handled=found.handled + count.handled,
                        passed=found.passed + count.passed, missing=found.missing + count.missing,
                        surplus=found.surplus + count.surplus,
                        twice=found.twice + max(0, len(inside) - 1) * again)  # fmt: skip
    return found, gaps


def _stretch(source: Readable, key: Any, one: Pass | None, edge: Span) -> tuple[Count, list[Gap]]:
    """Count one stretch between two places, by the checkpoints of the last pass over it."""
    if one is None:
        held = rows_between(source, *edge)
        gap = Gap(key=key, after=edge[0], until=edge[1], held=held, delivered=0, by_hand=True)
        return Count(key=key, held=held, passed=held), [gap] if held else []
    inner = [point.until for point in one.points if _order(edge[0], point.until) < 0 < _order(edge[1], point.until)]
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
    """Return how many rows of a stretch every pass over it can have handled: a row inserted or deleted between two
    passes was handled by only one."""
    known = [most for _, most in (_delivered(one, *edge) for one in inside) if most is not None]
    return min(known, default=held)


def _delivered(one: Pass, begin: Cursor | None, end: Cursor | None) -> tuple[int, int | None]:
    """Return the least and the most rows that were handled between two places."""
    low, high = one.rows_at(begin), one.rows_at(end)
    if low is None or high is None:
        return 0, None
    most = None if high[1] is None else high[1] - low[0]
    return (0 if low[1] is None else max(0, high[0] - low[1])), most


def rows_between(source: Readable, after: Cursor | None, until: Cursor | None) -> int:
    """Return how many rows the source holds after one cursor, up to and including another."""
    return 0 if after == until else sum(len(page.rows) for page in source.read(after, until))
