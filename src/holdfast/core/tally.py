"""Which rows a total leaves out, and which it counts twice, as far as the journal tells."""

from itertools import pairwise

import msgspec

from holdfast.core import cursor
from holdfast.core.cursor import Cursor
from holdfast.core.passes import Pass, Span, Story, in_order, order

NARROWED = 3
"""So often what is known of one stretch is used for its neighbours."""


class Many(msgspec.Struct, frozen=True):
    """A number of rows: at least so many, and at most so many where that is known."""

    low: int = 0
    high: int | None = 0

    def __bool__(self) -> bool:
        return self.high is None or self.high > 0

    def __str__(self) -> str:
        if self.high is None:
            return f"at least {_rows(self.low)}" if self.low else "rows, nobody knows how many,"
        return _rows(self.high) if self.low == self.high else f"at most {_rows(self.high)}"

    def plus(self, other: "Many") -> "Many":
        return Many(self.low + other.low, None if self.high is None or other.high is None else self.high + other.high)

    @property
    def is_one(self) -> bool:
        return self.high == 1


class Tally(msgspec.Struct, frozen=True):
    """What is amiss with the total of a range."""

    left_out: Many = Many()
    twice: Many = Many()
    of_total: bool = True
    """False where nothing is accumulated: then rows are left out of the work itself."""

    @property
    def is_whole(self) -> bool:
        return not self.left_out and not (self.twice and self.of_total)

    def as_dict(self) -> dict[str, int | None]:
        return {"left_out": self.left_out.high, "twice": self.twice.high}

    def ahead(self) -> str:
        """In words, of what is about to be done; empty where the total stays whole."""
        out, twice = self.left_out, self.twice
        said = []
        if out and self.of_total:
            said.append(f"{out} {'leaves' if out.is_one else 'leave'} the total")
        if twice and self.of_total:
            said.append(f"{twice} {'counts' if twice.is_one else 'count'} twice in the total")
        return " and ".join(said)

    def standing(self) -> str:
        """In words, of what was done; empty where the total is whole."""
        if not self.of_total:
            out = self.left_out
            return f"{out} {'was' if out.is_one else 'were'} passed by and never handled" if out else ""
        said = [f"leaves out {self.left_out}"] if self.left_out else []
        said += [f"counts {self.twice} twice"] if self.twice else []
        return f"its total {' and '.join(said)}".rstrip(",") if said else ""


WHOLE = Tally()


def _rows(count: int) -> str:
    return f"{count:,} {'row' if count == 1 else 'rows'}"


def tally(told: Story) -> Tally:
    """What the total leaves out and counts twice once the range is at its end: as far as any pass has come."""
    edges = in_order([*(each for one in told.passes for each in (one.after, one.until)),
                      *(each for span in told.total for each in span)])  # fmt: skip
    begin = told.passes[0].after
    edges = [each for each in edges if order(each, begin) >= 0]
    spans = [*told.total[:-1], (told.total[-1][0], edges[-1])]  # the pass at hand goes on
    left_out = twice = Many()
    for many, edge in zip(_counts(told, edges), pairwise(edges), strict=True):
        times = times_in(spans, edge)
        if times == 0:
            left_out = left_out.plus(many)
        for _ in range(times - 1):
            twice = twice.plus(many)
    return Tally(left_out, twice, told.accumulates)


def times_in(spans: list[Span], edge: Span) -> int:
    """In how many of some stretches the rows between two places are."""
    return sum(order(after, edge[0]) <= 0 and order(edge[1], until) <= 0 for after, until in spans)


def _counts(told: Story, edges: list[Cursor | None]) -> list[Many]:
    """How many rows lie between each two places that follow each other, from what every pass handled there."""
    found = [_between(told, edge) for edge in pairwise(edges)]
    known = [_known(one, edges) for one in told.passes]
    for _ in range(NARROWED):
        for exact in known:
            for (lo, before), (hi, behind) in pairwise(exact):
                found[lo:hi] = _narrowed(found[lo:hi], behind - before)
    return found


def _known(one: Pass, edges: list[Cursor | None]) -> list[tuple[int, int]]:
    """At which places it is known exactly how many rows a pass had handled."""
    seen = ((i, one.rows_at(edge)) for i, edge in enumerate(edges))
    return [(i, rows[0]) for i, rows in seen if rows is not None and rows[0] == rows[1]]


def _between(told: Story, edge: Span) -> Many:
    low, high = 0, None
    for one in told.passes:
        if not one.covers(*edge):
            continue
        begin, end = one.rows_at(edge[0]), one.rows_at(edge[1])
        assert begin is not None
        assert end is not None
        if begin[1] is not None:
            low = max(low, end[0] - begin[1])
        if end[1] is not None:
            high = end[1] - begin[0] if high is None else min(high, end[1] - begin[0])
    if high is None and (apart := cursor.between(edge[1], edge[0])) is not None:
        return Many(apart, apart)
    return Many(low, high if high is None else max(low, high))


def _narrowed(some: list[Many], total: int) -> list[Many]:
    """Neighbours that are so many together."""
    found = []
    for i, each in enumerate(some):
        others = [other for k, other in enumerate(some) if k != i]
        most = total - sum(other.low for other in others)
        high = most if each.high is None else min(each.high, most)
        known = [other.high for other in others if other.high is not None]
        low = max(each.low, total - sum(known)) if len(known) == len(others) else each.low
        found.append(Many(max(0, min(low, high)), max(0, high)))
    return found
