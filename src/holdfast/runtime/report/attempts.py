"""The attempts of a batch, read from its journal, and exact quantiles of more numbers than fit in memory.

A column takes all numbers of one kind, in blocks. It counts, sums and sorts them into a histogram, and holds them while
there is room. If there is none, the numbers are read again: a pass sorts them into 65,536 bins between the least and
the greatest, the next one sorts the bin that holds the rank. Two or three passes find most ranks, four find any. The
result is the same in both cases: linear interpolation between the two nearest ranks.
"""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import chain, groupby
from math import isfinite
from operator import add
from typing import Any

from holdfast.core import journal
from holdfast.core.journal import FLOAT32, UINT16, unpack
from holdfast.core.limits import DISTINCT_NAMES
from holdfast.core.model import Chunk
from holdfast.runtime.journal import forward
from holdfast.stores.base import Store

Number = int | float
Block = list[Number]

BIN_BITS = 16
MAGNITUDE = (1 << 63) - 1


class Room:
    """The number of values that all columns together may still hold."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.left = limit


class Column:
    """All numbers of one kind, seen once."""

    def __init__(self, room: Room, *, edges: Sequence[Number] = (), whole: bool = False) -> None:
        self.count = 0
        self.least: Number = math.inf
        self.most: Number = -math.inf
        self.edges = edges
        self.cells = [0] * (len(edges) + 1)
        """Counts of numbers up to the first edge, up to the second, …, above the last."""
        self.whole = whole
        self.held: array[float] | array[int] | None = array("q") if whole else array("d")
        self._room = room
        self._whole = 0
        self._parts: list[float] = []

    @property
    def total(self) -> Number:
        return self._whole + math.fsum(self._parts) if self._parts else self._whole

    def add(self, block: Block) -> None:
        """Add a block of numbers."""
        if not block:
            return
        ordered = sorted(block)
        self.count += len(ordered)
        self.least, self.most = min(self.least, ordered[0]), max(self.most, ordered[-1])
        self._sum(ordered)
        self._hold(ordered)
        below = 0
        for cell, edge in enumerate(self.edges):
            upto = bisect_right(ordered, edge)
            self.cells[cell] += upto - below
            below = upto
        self.cells[-1] += len(ordered) - below

    def _sum(self, values: Block) -> None:
        """Add whole numbers exactly, and others with one rounding per block."""
        if all(type(value) is int for value in values):
            self._whole += sum(values)  # type: ignore[assignment]
            return
        self._parts.append(math.fsum(values))
        if len(self._parts) > 1000:
            self._parts = [math.fsum(self._parts)]

    def _hold(self, values: Block) -> None:
        if self.held is None:
            return
        if self._room.left >= len(values):
            self._room.left -= len(values)
            self.held.extend(values)  # type: ignore[arg-type]
        else:
            self._room.left += len(self.held)
            self.held = None


class Bracket:
    """Keys from `low` to `high`, with the numbers of some ranks among them: a pass sorts them into bins."""

    def __init__(self, low: int, high: int, ranks: Mapping[int, int], count: int, room: int) -> None:
        self.low, self.high = low, high
        self.ranks = ranks
        """Each rank with the place of its number within the bracket, counted from 0 in ascending order."""
        self._room = room
        self._shift = 0 if count <= room else max(0, (high - low).bit_length() - BIN_BITS)
        self._bins: Counter[int] = Counter()

    def look(self, ordered: Sequence[int]) -> None:
        """Count one block of the pass, given as keys in ascending order."""
        inside = ordered[bisect_left(ordered, self.low) : bisect_right(ordered, self.high)]
        self._bins.update([(key - self.low) >> self._shift for key in inside])

    def narrowed(self) -> "Iterator[Bracket]":
        """End a pass: yield the bins that hold the numbers."""
        below = 0
        for cell, count in sorted(self._bins.items()):
            ranks = {rank: at - below for rank, at in self.ranks.items() if below <= at < below + count}
            if ranks:
                low = self.low + (cell << self._shift)
                yield Bracket(low, min(self.high, low + (1 << self._shift) - 1), ranks, count, self._room)
            below += count


class Quantiles:
    """The quantiles of one or several columns taken together."""

    def __init__(self, columns: Sequence[Column], points: Sequence[Fraction], room: Room) -> None:
        self.columns = columns
        self.count = sum(column.count for column in columns)
        self._points = points
        self._whole = all(column.whole for column in columns)
        ranks = sorted({rank for point in points for rank in self._ranks(point)}) if self.count else []
        self._brackets: list[Bracket] = []
        self._values: dict[int, Number] = {}
        if all(column.held is not None for column in columns):
            ordered = sorted(chain.from_iterable(column.held or () for column in columns))
            self._values = {rank: ordered[rank] for rank in ranks}
        else:
            ends = [column.least for column in columns] + [column.most for column in columns]
            low, *_, high = sorted(keys(ends, whole=self._whole))
            self._sort_out([Bracket(low, high, {rank: rank for rank in ranks}, self.count, room.limit // 32)])

    @property
    def is_known(self) -> bool:
        return not self._brackets

    def look(self, block: Block) -> None:
        """Count one block of a pass."""
        if self._brackets:
            ordered = sorted(keys(block, whole=self._whole))
            for bracket in self._brackets:
                bracket.look(ordered)

    def narrow(self) -> None:
        """End a pass."""
        self._sort_out([each for bracket in self._brackets for each in bracket.narrowed()])

    def values(self) -> list[Fraction | float | None]:
        """Return one value per point; exact if the numbers are whole."""
        return [self._between(point) if self.count else None for point in self._points]

    def _sort_out(self, brackets: Sequence[Bracket]) -> None:
        """Keep the brackets that must be narrowed; a bracket of one key is a number that was found."""
        self._brackets = [each for each in brackets if each.low < each.high]
        for each in brackets:
            if each.low == each.high:
                self._values.update(dict.fromkeys(each.ranks, number(each.low, whole=self._whole)))

    def _between(self, point: Fraction) -> Fraction | float:
        first, last = (self._values[rank] for rank in self._ranks(point))
        part = (self.count - 1) * point % 1
        if isinstance(first, int) and isinstance(last, int):
            return first + (last - first) * part
        return first + (last - first) * float(part)

    def _ranks(self, point: Fraction) -> tuple[int, int]:
        place = (self.count - 1) * point
        return math.floor(place), math.ceil(place)


def keys(block: Sequence[Number], *, whole: bool) -> "array[int] | list[int]":
    """Return integers that sort like the numbers: whole numbers themselves, or the bits of floats."""
    if whole:
        return array("q", block)  # type: ignore[arg-type]
    bits = array("q", array("d", block).tobytes())
    return [each if each >= 0 else -(each & MAGNITUDE) for each in bits]  # both zeros have one key


def number(key: int, *, whole: bool) -> Number:
    """Return the number of a key."""
    if whole:
        return key
    found: float = array("d", array("q", [abs(key)]).tobytes())[0]
    return found if key >= 0 else -found


def close_in(wanted: Sequence[Quantiles], read_again: Callable[[], Iterable[tuple[Column, Block]]]) -> int:
    """Read the numbers again until every quantile is known; return how many passes that took."""
    passes = 0
    while unknown := [each for each in wanted if not each.is_known]:
        passes += 1
        by_column: dict[int, list[Quantiles]] = {}
        for each in unknown:
            for column in each.columns:
                by_column.setdefault(id(column), []).append(each)
        for column, block in read_again():
            for each in by_column.get(id(column), ()):
                each.look(block)
        for each in unknown:
            each.narrow()
    return passes


BLOCK = 4096
OTHER = "other"
OUTCOMES = {"skip": "skipped", "defer": "deferred", "retry": "retried", "bury": "buried", "rewind": "rewound"}
ENDS = frozenset({"skip", "bury"})
FAILURES = frozenset({"retry", "bury"})


class NamedCounts:
    """Counts by name at one stage."""

    def __init__(self) -> None:
        self.runs = 0
        self.outcomes: Counter[str] = Counter()
        self.codes: Counter[str] = Counter()
        self.models: Counter[str] = Counter()
        self.model_usd: Counter[str] = Counter()
        self.model_tokens: Counter[str] = Counter()
        self.usage: dict[str, Number] = {}
        self.attempt_counts: Counter[int] = Counter()

    @classmethod
    def sum(cls, tallies: Iterable["NamedCounts"]) -> "NamedCounts":
        whole = cls()
        for tally in tallies:
            whole.runs += tally.runs
            for name in ("outcomes", "codes", "models", "model_usd", "model_tokens", "attempt_counts"):
                getattr(whole, name).update(getattr(tally, name))
            for name, amount in tally.usage.items():
                whole.usage[name] = whole.usage.get(name, 0) + amount
        return whole

    def advanced(self, group: journal.Advanced) -> None:
        count = len(group.items)
        if group.adopted:
            self.outcomes["adopted"] += count
            return
        self.runs += count
        self.outcomes["done"] += count
        if group.attempts:
            self.attempt_counts.update(unpack(UINT16, group.attempts))
        else:
            self.attempt_counts[1] += count

    def attempted(self, attempt: journal.Attempted) -> None:
        self.outcomes[OUTCOMES.get(attempt.outcome, attempt.outcome)] += 1
        if not was_run(attempt):
            return
        self.runs += 1
        if attempt.outcome in FAILURES:
            self.codes[named(attempt.code, self.codes)] += 1
        if attempt.outcome in ENDS:
            self.attempt_counts[attempt.attempt] += 1

    def spent(self, spend: journal.Spend) -> None:
        if spend.model:
            model = named(spend.model, self.models)
            self.models[model] += 1
            self.model_usd[model] += spend.usd
            self.model_tokens[model] += spend.tokens
        for name, amount in numbers_in(spend.usage):
            key = named(name, self.usage)
            self.usage[key] = self.usage.get(key, 0) + amount


class AttemptReader:
    """A reader of the journal of some chunks, up to its first end, so that every pass reads the same entries."""

    def __init__(self, store: Store, chunks: Sequence[Chunk]) -> None:
        self._store = store
        self._chunks = [chunk for chunk in chunks if chunk.seq]

    def read(self, tallies: dict[int, NamedCounts] | None = None) -> Iterator[tuple[int, str, Block]]:
        """Yield blocks of (stage, name, numbers): every number once. Counts by name are added to `tallies`, by
        stage."""
        waiting: dict[tuple[int, str], Block] = {}
        metrics: dict[str, None] = {}
        for body in self.checkpoints():
            if tallies is not None:
                tally_up(body, tallies)
            for stage, name, numbers in numbers_of(body, metrics):
                block = waiting.setdefault((stage, name), [])
                block += numbers
                if len(block) >= BLOCK:
                    yield stage, name, block
                    waiting[stage, name] = []
        for (stage, name), block in waiting.items():
            if block:
                yield stage, name, block

    def checkpoints(self) -> Iterator[journal.Checkpointed]:
        """Yield the bodies of all commits."""
        for chunk in self._chunks:
            for entry in forward(self._store, chunk, upto=chunk.seq):
                if isinstance(entry.body, journal.Checkpointed):
                    yield entry.body


def tally_up(body: journal.Checkpointed, tallies: dict[int, NamedCounts]) -> None:
    """Add the counts by name of one commit."""
    for group in body.advanced:
        _tally_of(group.stage, tallies).advanced(group)
    for attempt in body.attempts:
        _tally_of(attempt.stage, tallies).attempted(attempt)
    for stage, spend in body.spends:
        _tally_of(stage, tallies).spent(spend)


def _tally_of(stage: int, tallies: dict[int, NamedCounts]) -> NamedCounts:
    found = tallies.get(stage)
    if found is None:
        found = tallies[stage] = NamedCounts()
    return found


def numbers_of(body: journal.Checkpointed, metrics: dict[str, None]) -> Iterator[tuple[int, str, Block]]:
    """Yield the numbers of one commit, by stage and name. `metrics` keeps the names of the metrics that are counted
    separately."""
    for group in body.advanced:
        if not group.adopted:
            queued, took = unpack(FLOAT32, group.queued), unpack(FLOAT32, group.seconds)
            yield from _times(group.stage, queued, took)
    runs = sorted(filter(was_run, body.attempts), key=lambda attempt: attempt.stage)
    for stage, some in groupby(runs, key=lambda attempt: attempt.stage):
        times = [(attempt.queued, attempt.seconds) for attempt in some]
        yield from _times(stage, [queued for queued, _ in times], [took for _, took in times])
    for stage, spend in body.spends:
        if spend.usd or spend.tokens or spend.model or spend.usage:
            yield stage, "usd", [spend.usd]
            yield stage, "tokens", [spend.tokens]
        for name, value in numbers_in(spend.metrics):
            if name in metrics or len(metrics) < DISTINCT_NAMES:
                metrics[name] = None
                yield stage, f"metrics.{name}", [value]


def was_run(attempt: journal.Attempted) -> bool:
    """Return whether a handler was called. Attempts are numbered from 1; number 0 means that the item went back, or was
    buried, because an output was lost."""
    return attempt.attempt > 0


def _times(stage: int, queued: Sequence[float], seconds: Sequence[float]) -> Iterator[tuple[int, str, Block]]:
    yield stage, "queue", list(queued)
    yield stage, "execution", list(seconds)
    yield stage, "total", list(map(add, queued, seconds))


def numbers_in(facts: Mapping[str, Any]) -> Iterator[tuple[str, Number]]:
    """Yield the numbers among some facts, without booleans and values that are not finite."""
    for name, value in facts.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if isfinite(value) if isinstance(value, float) else abs(value) < 1 << 63:
            yield name, value


def named(name: str, known: Mapping[str, Any]) -> str:
    """Return the name to count under; beyond the limit of distinct names, all others are counted together."""
    return name if name in known or len(known) < DISTINCT_NAMES else OTHER
