"""Time and cost of the attempts of a batch, by stage and in all, computed from its journal.

Every attempt in the journal counts once, failed ones included; an adopted output was not run and counts only as an
outcome. Seconds, tokens and metrics have one number per attempt; `attempts` has one per item and stage that it
completed. Money is exact.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from itertools import repeat
from types import MappingProxyType
from typing import ClassVar

from holdfast.core import canonical, journal
from holdfast.core.course import stage_names
from holdfast.core.journal import FLOAT32, UINT16, unpack
from holdfast.core.limits import HELD_NUMBERS
from holdfast.core.model import Batch, Chunk, State
from holdfast.core.plain import Plain
from holdfast.runtime.journal import forward_over
from holdfast.runtime.report.attempts import (
    AttemptReader,
    Block,
    Column,
    NamedCounts,
    Number,
    Quantiles,
    Room,
    close_in,
)
from holdfast.stores.base import Store

POINTS = (Fraction(50, 100), Fraction(95, 100))
SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
MONEY = tuple(
    canonical.to_units(usd)
    for usd in ("0.0001", "0.0003", "0.001", "0.003", "0.01", "0.03", "0.1", "0.3", "1", "3", "10")
)
EDGES: dict[str, Sequence[Number]] = {"queue": SECONDS, "execution": SECONDS, "total": SECONDS, "usd": MONEY}
ALWAYS = ("queue", "execution", "total", "usd", "tokens")

Figure = int | float | Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramBin:
    """The count of numbers up to `upto` and above the previous bin; `upto` is None in the last one."""

    upto: Figure | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary(Plain):
    """Count, extremes, sum, mean, median and 95th percentile of some numbers; None if there are none."""

    _tells: ClassVar[str] = "count min max sum mean p50 p95 buckets?"

    count: int
    min: Figure | None
    max: Figure | None
    sum: Figure
    mean: Figure | None
    p50: Figure | None
    p95: Figure | None
    buckets: tuple[HistogramBin, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One model's share of the attempts, the money and the tokens."""

    attempts: int
    usd: Decimal
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStatistics(Plain):
    """The attempts of one stage, or of all stages together if `stage` is None."""

    stage: str | None
    runs: int
    """The number of attempts."""
    queue: Summary
    execution: Summary
    total: Summary
    usd: Summary
    tokens: Summary
    attempts: Summary
    """The number of attempts that an item needed at this stage."""
    metrics: Mapping[str, Summary]
    outcomes: Mapping[str, int]
    models: Mapping[str, Share]
    usage: Mapping[str, Number]
    codes: Mapping[str, int]
    attempt_counts: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics(Plain):
    """The statistics of a batch, as plain data."""

    _tells: ClassVar[str] = "stages overall"

    stages: tuple[StageStatistics, ...]
    """Those of each stage. `queue`, `execution`, `total` (seconds), `usd`, `tokens`, `attempts` and `metrics[name]`
    each have `count`, `min`, `max`, `sum`, `mean`, `p50`, `p95` and `buckets`; `runs`, `outcomes`, `codes`, `models`,
    `usage` and `attempt_counts` are counts. Quantiles are exact, by linear interpolation."""
    overall: StageStatistics
    """Those of all stages together."""
    passes: int = field(default=1, compare=False)
    """How often the journal was read."""


def collect(store: Store, batch: Batch, *, held: int = HELD_NUMBERS) -> Statistics:
    """Return the statistics of a batch. They are exact at every size; `held` limits the numbers in memory."""
    return _Collector(store, batch, held).statistics()


class _Collector:
    """A reader of the journal, in as many passes as needed."""

    def __init__(self, store: Store, batch: Batch, held: int) -> None:
        self._names = stage_names(batch)
        self._reader = AttemptReader(store, store.chunks(batch.id))
        self._room = Room(held)
        self._columns: dict[tuple[int, str], Column] = {}

    def statistics(self) -> Statistics:
        tallies: dict[int, NamedCounts] = {}
        for stage, name, block in self._reader.read(tallies):
            column = self._columns.get((stage, name))
            if column is None:
                whole = name in ("usd", "tokens")
                column = self._columns[stage, name] = Column(self._room, edges=EDGES.get(name, ()), whole=whole)
            column.add(block)
        wanted = {key: Quantiles(columns, POINTS, self._room) for key, columns in self._groups().items()}
        passes = 1 + close_in(list(wanted.values()), self._read_again)
        stages = tuple(
            self._stage(name, tallies.get(index, NamedCounts()), {n: q for (s, n), q in wanted.items() if s == index})
            for index, name in enumerate(self._names)
        )
        everything = NamedCounts.sum(tallies.values())
        overall = self._stage(None, everything, {name: each for (stage, name), each in wanted.items() if stage is None})
        return Statistics(stages=stages, overall=overall, passes=passes)

    def _groups(self) -> dict[tuple[int | None, str], list[Column]]:
        groups: dict[tuple[int | None, str], list[Column]] = {}
        for (stage, name), column in self._columns.items():
            groups.setdefault((stage, name), []).append(column)
            groups.setdefault((None, name), []).append(column)
        return groups

    def _read_again(self) -> Iterator[tuple[Column, Block]]:
        for stage, name, block in self._reader.read():
            yield self._columns[stage, name], block

    def _stage(self, name: str | None, tally: NamedCounts, wanted: Mapping[str, Quantiles]) -> StageStatistics:
        summaries = {key: summarise(each, exact=key == "usd") for key, each in wanted.items()}
        nothing = Summary(count=0, min=None, max=None, sum=0, mean=None, p50=None, p95=None)
        no_money = Summary(count=0, min=None, max=None, sum=canonical.to_usd(0), mean=None, p50=None, p95=None)
        always = {key: summaries.get(key, no_money if key == "usd" else nothing) for key in ALWAYS}
        return StageStatistics(
            stage=name,
            runs=tally.runs,
            **always,
            attempts=summarise_counts(tally.attempt_counts),
            metrics=MappingProxyType(
                {key.removeprefix("metrics."): each for key, each in sorted(summaries.items()) if key not in ALWAYS}
            ),
            outcomes=_counted(tally.outcomes),
            models=_shares(tally),
            usage=MappingProxyType(dict(sorted(tally.usage.items()))),
            codes=_counted(tally.codes),
            attempt_counts=MappingProxyType(dict(sorted(tally.attempt_counts.items()))),
        )


def summarise(quantiles: Quantiles, *, exact: bool = False) -> Summary:
    """Return the summary of some columns together; `exact` for money, which is kept in units."""
    columns = quantiles.columns
    count = quantiles.count
    total = sum(column.total for column in columns)
    p50, p95 = quantiles.values()
    shown = _usd if exact else _number
    edges = columns[0].edges
    cells = [sum(column.cells[cell] for column in columns) for cell in range(len(edges) + 1)] if edges else []
    return Summary(
        count=count,
        min=shown(min(column.least for column in columns)),
        max=shown(max(column.most for column in columns)),
        sum=canonical.to_usd(round(total)) if exact else total,
        mean=shown(Fraction(total, count) if isinstance(total, int) else total / count),
        p50=shown(p50),
        p95=shown(p95),
        buckets=tuple(
            HistogramBin(upto=shown(edge), count=cell) for edge, cell in zip((*edges, None), cells, strict=False)
        ),
    )


def summarise_counts(counts: Counter[int]) -> Summary:
    """Return the summary of a few small numbers, given as how often each occurs."""
    count = counts.total()
    if not count:
        return Summary(count=0, min=None, max=None, sum=0, mean=None, p50=None, p95=None)
    ordered = sorted(counts.items())
    total = sum(value * times for value, times in ordered)

    def at(rank: int) -> int:
        for value, times in ordered:
            if rank < times:
                return value
            rank -= times
        raise AssertionError("a rank is less than the count")

    def quantile(point: Fraction) -> Figure | None:
        place = (count - 1) * point
        low, high = at(place.__floor__()), at(place.__ceil__())
        return _number(low + (high - low) * (place % 1))

    p50, p95 = map(quantile, POINTS)
    return Summary(
        count=count,
        min=ordered[0][0],
        max=ordered[-1][0],
        sum=total,
        mean=_number(Fraction(total, count)),
        p50=p50,
        p95=p95,
    )


def _number(value: Number | Fraction | None) -> Figure | None:
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else float(value)
    return value


def _usd(value: Number | Fraction | None) -> Decimal | None:
    """Return units as dollars; a mean or a quantile between two units is rounded."""
    return None if value is None else canonical.to_usd(round(value))


def _shares(tally: NamedCounts) -> Mapping[str, Share]:
    return MappingProxyType(
        {
            model: Share(
                attempts=attempts, usd=canonical.to_usd(tally.model_usd[model]), tokens=tally.model_tokens[model]
            )
            for model, attempts in tally.models.most_common()
        }
    )


def _counted(counter: Counter[str]) -> Mapping[str, int]:
    """Return counts by name, the most frequent first; names with the same count in alphabetical order."""
    return MappingProxyType(dict(sorted(counter.items(), key=lambda each: (-each[1], each[0]))))


class ItemCost:
    """Time and cost of the attempts of one item at one stage, in its last epoch there."""

    __slots__ = ("epoch", "seconds", "spent")

    def __init__(self, epoch: int) -> None:
        self.epoch, self.seconds, self.spent = epoch, 0.0, 0


class Savings:
    """Items that were done before a run and left untouched by it, with their cost."""

    def __init__(self) -> None:
        self._costs: dict[int, dict[int, ItemCost]] = {}
        self._done: set[int] = set()

    @property
    def items(self) -> int:
        return len(self._done)

    def sum(self) -> tuple[float, int]:
        """Return the seconds, and the money in units, of these items."""
        kept = [cost for n in self._done for cost in self._costs.get(n, {}).values()]
        return sum(cost.seconds for cost in kept), sum(cost.spent for cost in kept)

    def learn(self, body: journal.Body) -> None:
        """Replay an entry from before the run."""
        if isinstance(body, journal.Acted):
            for moved in body.items:
                (self._done.add if moved.after == State.DONE else self._done.discard)(moved.n)
        elif isinstance(body, journal.Checkpointed):
            for group in body.advanced:
                self._advanced(group)
            for attempt in body.attempts:
                self._at(attempt.n, attempt.stage, attempt.epoch).seconds += attempt.seconds
            for at in body.positions:
                self._at(at.n, 0, self._epoch(at.n, 0)).seconds += at.seconds
            for stage, spend in body.spends:
                self._at(spend.n, stage, self._epoch(spend.n, stage)).spent += spend.usd

    def forget(self, body: journal.Body) -> None:
        """Replay an entry of the run: the items it names were not left untouched."""
        if isinstance(body, journal.Acted):
            self._done.difference_update(moved.n for moved in body.items)
        elif isinstance(body, journal.Checkpointed):
            self._done.difference_update(*(group.items for group in body.advanced))
            self._done.difference_update(attempt.n for attempt in body.attempts)

    def _advanced(self, group: journal.Advanced) -> None:
        epochs: Iterable[int] = unpack(UINT16, group.epochs) if group.epochs else repeat(0, len(group.items))
        took: Iterable[float] = repeat(0.0, len(group.items)) if group.adopted else unpack(FLOAT32, group.seconds)
        for n, epoch, seconds in zip(group.items, epochs, took, strict=True):
            self._at(n, group.stage, epoch).seconds += seconds
        if group.finished:
            self._done.update(group.items)

    def _at(self, n: int, stage: int, epoch: int) -> ItemCost:
        """Return the cost of an item at a stage; the cost of an earlier epoch does not count, because that work was
        done again."""
        stages = self._costs.setdefault(n, {})
        if stage not in stages or stages[stage].epoch != epoch:
            stages[stage] = ItemCost(epoch)
        return stages[stage]

    def _epoch(self, n: int, stage: int) -> int:
        known = self._costs.get(n, {}).get(stage)
        return 0 if known is None else known.epoch


def read_savings(store: Store, chunks: Sequence[Chunk], began_with: Mapping[int, int]) -> Savings:
    """Replay a batch; `began_with` is the length of each chunk's chain when the run began."""
    found = Savings()
    for entry in forward_over(store, chunks):
        take = found.learn if entry.seq <= began_with.get(entry.stored.chain, 0) else found.forget
        take(entry.body)
    return found
