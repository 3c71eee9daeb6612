"""In which passes the rows of a range were handled, and which of them its total is made of: read from the journal.

A range is walked once, from its beginning to its end. A person who sets its cursor begins another pass: rows may then
be handled in two passes, or in none. What was accumulated is kept, dropped or replaced by that person, so the total may
be made of other rows than were handled.
"""

from collections.abc import Callable, Iterable
from functools import cmp_to_key

import msgspec

from holdfast.core import cursor
from holdfast.core.cursor import Cursor

KEPT = 1_000
"""So many points of a pass are kept at most; of a longer one, every second is forgotten again and again."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint, or a cursor that a person set, as the journal has it."""

    at: Cursor | None
    """None at the beginning of the range."""
    rows: int
    acc: bytes = b""
    """The digest of what is accumulated; empty where nothing is."""
    is_act: bool = False
    is_end: bool = False
    """The range was done with it."""
    is_uncounted: bool = False
    """It comes from a program that did not say how many rows it had handled."""


class Point(msgspec.Struct, frozen=True):
    """How many rows a pass had handled up to somewhere."""

    until: Cursor | None
    rows: int
    is_needed: bool = False


class Pass:
    """Rows that were handled one after the other."""

    def __init__(self, after: Cursor | None, *, counted: bool = True) -> None:
        self.after = after
        self.counted = counted
        self.points: list[Point] = []
        self._every = self._passed = 0
        self._last: Point | None = None

    @property
    def until(self) -> Cursor | None:
        return self.points[-1].until if self.points else self.after

    def covers(self, after: Cursor | None, until: Cursor | None) -> bool:
        """Whether all rows between the two were handled in it."""
        return order(self.after, after) <= 0 and order(until, self.until) <= 0

    def reach(self, point: Point, *, crosses: bool) -> None:
        """It came to a checkpoint. The two on both sides of a place where a person set the cursor are kept."""
        if self.points and self.points[-1] is self._last and not self._is_kept():
            self.points.pop()  # it was kept because it was the last
        if crosses and self._last is not None and (not self.points or self.points[-1] is not self._last):
            self.points.append(msgspec.structs.replace(self._last, is_needed=True))
        self._last = msgspec.structs.replace(point, is_needed=crosses)
        self._passed = 0 if self._is_kept() else self._passed + 1
        self.points.append(self._last)
        if len(self.points) > KEPT:
            self.points = [each for i, each in enumerate(self.points) if i % 2 or each.is_needed]
            self._every = self._every * 2 + 1
            if self.points[-1] is not self._last:
                self.points.append(self._last)

    def _is_kept(self) -> bool:
        return self._last is not None and (self._last.is_needed or self._passed >= self._every)

    def rows_at(self, place: Cursor | None) -> tuple[int, int | None] | None:
        """At least and at most so many rows were handled up to a place; None where it never came there."""
        if order(place, self.after) < 0 or order(place, self.until) > 0:
            return None
        low, high = Point(self.after, 0), None
        for point in self.points:
            if order(point.until, place) > 0:
                high = point
                break
            low = point
        if place == self.after:
            return 0, 0
        if not self.counted:
            return 0, None
        if low.until == place or high is None:
            return low.rows, low.rows
        behind, apart = cursor.between(place, low.until), cursor.between(high.until, low.until)
        if behind is not None and apart in (None, high.rows - low.rows):
            return low.rows + behind, low.rows + behind
        return low.rows, high.rows


Span = tuple[Cursor | None, Cursor | None]
"""After one place, up to another and with it."""


class Story(msgspec.Struct, frozen=True):
    """What became of the rows of a range."""

    passes: list[Pass]
    total: list[Span]
    """Of which rows the total is made; a stretch may be in it twice. Without an accumulator: of which there were
    effects."""
    accumulates: bool
    acts: int
    """How often a person set the cursor."""

    @property
    def reached(self) -> Cursor | None:
        """Where the range stands."""
        return self.passes[-1].until if self.passes else None


def order(one: Cursor | None, other: Cursor | None) -> int:
    """Below, at or above 0 as places follow each other; 0 where only the source knows."""
    found = cursor.compare(one, other)
    return 0 if found is None else found


def in_order(places: Iterable[Cursor | None]) -> list[Cursor | None]:
    """Places as they follow each other, each once."""
    found: list[Cursor | None] = []
    for place in places:
        if place not in found:
            found.append(place)
    return sorted(found, key=cmp_to_key(order))


def story(marks: Callable[[], Iterable[Mark]], after: Cursor | None, until: Cursor | None) -> Story:
    """What the marks of a range tell, which are read twice: first for where a person set the cursor."""
    targets: list[Cursor | None] = []
    wanted: list[Mark] = []
    for mark in marks():
        if mark.is_act:
            targets.append(mark.at if mark.at is not None else after)
            wanted.append(mark)
    teller = _Teller(after, until, in_order(targets), wanted)
    for mark in marks():
        teller.hear(mark)
    return teller.told()


class _Teller:
    def __init__(
        self, after: Cursor | None, until: Cursor | None, targets: list[Cursor | None], acts: list[Mark]
    ) -> None:
        self._after, self._until, self._targets = after, until, targets
        self._wanted = {each.acc for each in acts} - {b""}
        self._states = [(each.at, each.rows) for each in acts]
        self._known: list[tuple[Cursor | None, int]] = []
        """States that acts go by and that the range was in before."""
        self._passes = [Pass(after)]
        self._base = self._rows = 0
        self._acc = b""
        self._spans: list[Span] = []
        self._remembered: dict[bytes, list[Span]] = {}
        self._accumulates = False
        self._ahead = list(targets)
        """Places where a person set the cursor that the pass at hand has not come to."""
        self._acts = 0
        self._begun = False

    def hear(self, mark: Mark) -> None:
        place = mark.at if mark.at is not None else self._after
        if mark.is_act:
            self._set(mark, place)
        else:
            self._reach(mark, self._until if mark.is_end and self._until is not None else place)
        self._rows, self._acc, self._begun = mark.rows, mark.acc, True
        self._accumulates |= bool(mark.acc)
        if (mark.at, mark.rows) in self._states and (mark.at, mark.rows) not in self._known:
            self._known.append((mark.at, mark.rows))
        if mark.acc in self._wanted:
            self._remembered[mark.acc] = self._now()

    def _reach(self, mark: Mark, place: Cursor | None) -> None:
        crosses = False
        while self._ahead and order(self._ahead[0], place) <= 0:
            self._ahead.pop(0)
            crosses = True
        self._passes[-1].reach(Point(place, mark.rows - self._base), crosses=crosses or mark.is_end)

    def _set(self, mark: Mark, place: Cursor | None) -> None:
        """A person set the cursor. Where that says of rows before it that they were handled, they were so elsewhere."""
        here, spans = self._passes[-1].until, self._now()
        claimed = self._claimed(mark, here, place)
        if claimed is not None:
            elsewhere = Pass(claimed[0], counted=claimed[0] == here and not mark.is_uncounted)
            elsewhere.reach(Point(place, mark.rows - self._rows), crosses=True)
            self._passes.append(elsewhere)
        if not mark.acc and self._accumulates:
            spans = []
        elif mark.acc and mark.acc != self._acc:
            spans = list(self._remembered.get(mark.acc, [(self._after, place)]))
        elif claimed is not None and not self._accumulates:
            spans.append(claimed)
        self._spans = [each for each in spans if each[0] != each[1]]
        self._passes.append(Pass(place))
        self._base, self._acts = mark.rows, self._acts + 1
        self._ahead = [each for each in self._targets if order(each, place) > 0]

    def _claimed(self, mark: Mark, here: Cursor | None, place: Cursor | None) -> Span | None:
        """Between which places rows are said to be handled that no pass has seen: by a state from elsewhere. A reset
        that skips rows says so of none."""
        if (mark.at, mark.rows) in self._known:
            return None
        if order(place, here) <= 0 or not (mark.rows > self._rows or (mark.is_uncounted and not self._begun)):
            return None
        begin = here
        for one in self._passes:
            if order(one.after, begin) <= 0 < order(one.until, begin):
                begin = one.until
        return (begin, place) if order(begin, place) < 0 else None

    def _now(self) -> list[Span]:
        last = self._passes[-1]
        return [*self._spans, (last.after, last.until)]

    def told(self) -> Story:
        return Story(self._passes, self._now(), self._accumulates, self._acts)
