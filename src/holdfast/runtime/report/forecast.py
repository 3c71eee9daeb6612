"""The forecast: what is left of a batch, or what a run would take and cost, from what attempts so far took and cost."""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import ClassVar, NamedTuple

from holdfast.core import canonical, journal
from holdfast.core.course import stage_names
from holdfast.core.journal import FLOAT32, unpack
from holdfast.core.limits import RATE_PAUSE
from holdfast.core.model import Batch, Chunk, State
from holdfast.core.plain import Plain
from holdfast.runtime.journal import forward
from holdfast.runtime.report.attempts import ENDS, was_run
from holdfast.stores.base import Store

STAGE_BITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class StageForecast:
    """What is to be done at one stage; None where no attempt there is known."""

    _tells: ClassVar[str] = "stage items seconds usd"

    stage: str
    items: int
    seconds: float | None
    """Of handlers, over all its items."""
    usd: Decimal | None
    together: int = 1
    """How many of its items may run at the same time."""

    @property
    def alone(self) -> float:
        """How long it would take if there were no other stage."""
        return (self.seconds or 0.0) / max(1, min(self.together, self.items))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunForecast(Plain):
    """What a run would take and cost."""

    _tells: ClassVar[str] = "seconds work_seconds usd workers learned_from unknown stages"

    stages: tuple[StageForecast, ...]
    workers: int
    learned_from: str | None
    """The batch whose attempts it rests on; None where there were none."""

    @property
    def unknown(self) -> tuple[str, ...]:
        """Stages that have something to do, and of which nothing is known."""
        return tuple(each.stage for each in self.stages if each.items and each.seconds is None)

    @property
    def work_seconds(self) -> float:
        """Seconds of handlers, at the stages of which something is known."""
        return sum(each.seconds or 0.0 for each in self.stages)

    @property
    def seconds(self) -> float:
        """How long it would take: no stage is quicker than what may run of it together, and none than one item."""
        known = [each for each in self.stages if each.items and each.seconds]
        one_item = sum((each.seconds or 0.0) / each.items for each in known)
        narrowest = max((each.alone for each in known), default=0.0)
        return max(self.work_seconds / self.workers, narrowest, one_item)

    @property
    def usd(self) -> Decimal:
        """At the stages of which something is known."""
        return sum((each.usd or Decimal(0) for each in self.stages), Decimal(0))


@dataclass(slots=True)
class StageCost:
    """What the attempts at one stage took and cost."""

    attempts: int = 0
    ended: int = 0
    """Items that came to an end there: through it, skipped or buried."""
    seconds: float = 0.0
    spent: int = 0
    begun: dict[int, int] = field(default_factory=dict)
    """What ranges of a scan have cost, by their number, that are not at their end: a part of what they will cost."""

    def end(self, n: int) -> None:
        """Count what a range has cost from its first checkpoint on."""
        self.spent += self.begun.pop(n, 0)

    @property
    def items(self) -> int:
        """By how many to divide: what failed attempts cost is a part of what an item costs."""
        return self.ended if self.ended else self.attempts

    def of(self, items: int) -> tuple[float, int]:
        """Return the seconds, and the money in units, that so many items take here."""
        whole = round(Fraction(self.spent * items, self.items))
        return self.seconds * items / self.items, max(0, whole - sum(self.begun.values()))


@dataclass(slots=True)
class PastAttempts:
    """What the journal of a batch tells about its attempts, in one reading."""

    costs: dict[int, StageCost] = field(default_factory=dict)
    _redriven: "array[int]" = field(default_factory=lambda: array("q"))
    """Number and stage of every item that an operator tried again, in order."""

    def was_redriven(self, n: int, stage: int) -> bool:
        """Return whether an operator tried the item again at that stage."""
        wanted = n << STAGE_BITS | stage
        at = bisect_left(self._redriven, wanted)
        return at < len(self._redriven) and self._redriven[at] == wanted

    @staticmethod
    def of(bodies: Iterable[journal.Checkpointed]) -> "PastAttempts":
        """Learn from these commits."""
        past = PastAttempts()
        for body in bodies:
            past.learn(body)
        return past

    def cost(self, work: Mapping[int, int]) -> tuple[float, int] | None:
        """Return the seconds, and the money in units, that so many items at each stage take; None where the cost of a
        stage with something to do is not known."""
        busy = {stage: items for stage, items in work.items() if items}
        if any(stage not in self.costs or not self.costs[stage].items for stage in busy):
            return None
        each = [self.costs[stage].of(items) for stage, items in busy.items()]
        return sum(seconds for seconds, _ in each), sum(spent for _, spent in each)

    @staticmethod
    def read(store: Store, chunks: Sequence[Chunk]) -> "PastAttempts":
        past = PastAttempts()
        for chunk in chunks:
            for entry in forward(store, chunk) if chunk.seq else ():
                body = entry.body
                if isinstance(body, journal.Checkpointed):
                    past.learn(body)
                elif isinstance(body, journal.Acted) and entry.kind == "redriven":
                    past._redriven.extend(item.n << STAGE_BITS | item.stage_after for item in body.items)
        past._redriven = array("q", sorted(past._redriven))
        return past

    def learn(self, body: journal.Checkpointed) -> None:
        for group in body.advanced:
            if not group.adopted:
                cost, count = self.costs.setdefault(group.stage, StageCost()), len(group.items)
                cost.attempts, cost.ended = cost.attempts + count, cost.ended + count
                cost.seconds += sum(unpack(FLOAT32, group.seconds))
        excused = {(attempt.stage, attempt.n) for attempt in body.attempts if attempt.excused}
        for attempt in filter(_tells, body.attempts):
            cost = self.costs.setdefault(attempt.stage, StageCost())
            cost.attempts += 1
            cost.ended += attempt.outcome in ENDS
            cost.seconds += attempt.seconds
        begun = {at.n for at in body.positions}.difference(*(group.items for group in body.advanced if group.finished))
        for stage, spend in body.spends:
            if (stage, spend.n) in excused:
                continue
            cost = self.costs.setdefault(stage, StageCost())
            if spend.n in begun:
                cost.begun[spend.n] = cost.begun.get(spend.n, 0) + spend.usd
            else:
                cost.spent += spend.usd
        self._end_ranges(body)

    def _end_ranges(self, body: journal.Checkpointed) -> None:
        ended = [(attempt.stage, attempt.n) for attempt in body.attempts if attempt.outcome in ENDS]
        ended += [(group.stage, at.n) for group in body.advanced for at in body.positions if at.n in group.items]
        for stage, n in ended:
            self.costs[stage].end(n)


def _tells(attempt: journal.Attempted) -> bool:
    """Return whether an attempt tells what an item takes."""
    return was_run(attempt) and not attempt.excused


def forecast(
    stages: Sequence[str], work: Mapping[int, int], past: PastAttempts, *, workers: int, learned_from: str | None,
    together: Sequence[int | None],
) -> RunForecast:  # fmt: skip
    """Return what `work`, the number of items at each stage, would take and cost; `together` is how many of a stage may
    run at the same time, where it has a limit of its own."""
    found = []
    for index, name in enumerate(stages):
        items, cost = work.get(index, 0), past.costs.get(index)
        limit = min(workers, together[index] or workers)
        if cost is None or not cost.items:
            found.append(StageForecast(stage=name, items=items, seconds=None, usd=None, together=limit))
            continue
        seconds, spent = cost.of(items)
        found.append(
            StageForecast(stage=name, items=items, seconds=seconds, usd=canonical.to_usd(spent), together=limit)
        )
    known = any(each.seconds is not None for each in found)
    return RunForecast(stages=tuple(found), workers=workers, learned_from=learned_from if known else None)


def teacher(store: Store, batch: Batch) -> Batch | None:
    """Another batch to learn from while nothing is known of this one: the last of its pipeline with these stages."""
    names = stage_names(batch)
    like = [other for other in store.batches() if other.pipeline == batch.pipeline and other.name != batch.name]
    return next((other for other in reversed(like) if other.admitted and stage_names(other) == names), None)


RATE_ENTRIES = 200


class Committed(NamedTuple):
    """A commit: when, by whom, and what it says."""

    at: float
    owner: str
    body: journal.Checkpointed


def rate(commits: Iterable[Committed]) -> float | None:
    """Return items settled per second of work over the last commits; None before there are two."""
    seen = sorted(commits, key=lambda each: each.at)[-RATE_ENTRIES:]
    seconds = worked(seen)
    return sum(settled_in(each.body) for each in seen[1:]) / seconds if seconds > 0 else None


def worked(commits: list[Committed]) -> float:
    """Return the seconds between the first and the last of some commits in which somebody was at work."""
    seconds, until = 0.0, commits[0].at if commits else 0.0
    for since, at in sorted(_spans(commits)):
        seconds += max(0.0, at - max(since, until))
        until = max(until, at)
    return seconds


def _spans(commits: list[Committed]) -> Iterator[tuple[float, float]]:
    last: dict[str, float] = {}
    for each in commits:
        since = last.get(each.owner)
        if since is None or each.at - since > RATE_PAUSE:  # another run; or its machine slept
            since = each.at - _longest(each.body)
        last[each.owner] = each.at
        yield since, each.at


def _longest(body: journal.Checkpointed) -> float:
    """Return how long the oldest work of a commit took, from the moment it was ready."""
    took = [attempt.queued + attempt.seconds for attempt in body.attempts]
    for group in body.advanced:
        took += map(sum, zip(unpack(FLOAT32, group.queued), unpack(FLOAT32, group.seconds), strict=True))
    return max(took, default=0.0)


def settled_in(body: journal.Checkpointed) -> int:
    """Return how many items a commit brought to their end."""
    finished = sum(len(group.items) for group in body.advanced if group.finished)
    return finished + sum(1 for attempt in body.attempts if attempt.outcome in ("skip", "bury"))


RECENT_ENTRIES = 1_000
CHUNK_ENTRIES = 64
SAMPLED_ITEMS = 1_000
"""Pending items that are looked at to tell at which stages the rest stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is left, at the rate and the cost of the last commits. None where they do not tell."""

    left: int
    rate: float | None
    """Items settled per second, over the last entries of the journal."""
    seconds: float | None
    """Until the end, at that rate, while somebody works on it."""
    work_seconds: float | None
    """Seconds of handlers that the rest will take."""
    usd: Decimal | None


NOTHING_LEFT = Forecast(left=0, rate=None, seconds=0.0, work_seconds=0.0, usd=Decimal(0))


class Recent:
    """What the last commits of a batch tell, read once: what items took and cost, how fast they came, when they did."""

    def __init__(self, commits: Iterable[Committed]) -> None:
        self.past = PastAttempts()
        self.commits: list[Committed] = []
        self._moved: set[float] = set()
        for each in commits:
            self.past.learn(each.body)
            self.commits.append(each)
            if each.body.advanced or each.body.attempts or each.body.positions:
                self._moved.add(each.at)

    def progressed_at(self, chunks: Sequence[Chunk]) -> float | None:
        """Return when something last moved: to give back what was claimed is not progress."""
        bare = {each.at for each in self.commits}.difference(self._moved)
        touched = (chunk.touched_at for chunk in chunks if chunk.touched_at not in bare)
        return max([*self._moved, *touched], default=None)


def forecast_left(
    store: Store, batch: Batch, chunks: Sequence[Chunk], recent: Recent, *, left: int, running: int
) -> Forecast:
    """Return what the items that are left take and cost, as the last commits tell."""
    past = recent.past
    speed = rate(recent.commits)
    cost = past.cost(_work_left(store, batch, chunks, left)) if past.costs else None
    return Forecast(
        left=left, rate=speed, seconds=left / speed if speed and (running or not left) else None,
        work_seconds=None if cost is None else cost[0], usd=None if cost is None else canonical.to_usd(cost[1]),
    )  # fmt: skip


def recent_commits(store: Store, chunks: Sequence[Chunk], entries: int) -> Iterator[Committed]:
    """Yield the last commits of a batch, whoever made them: from the chunks that were written last, at
    least some of each, about so many entries in all, and none that came after these chunks were read."""
    for chunk in sorted(chunks, key=lambda chunk: chunk.touched_at, reverse=True):
        if entries <= 0:
            return
        after = max(0, chunk.seq - max(CHUNK_ENTRIES, entries // 2))
        entries -= chunk.seq - after
        for entry in forward(store, chunk, after=after, upto=chunk.seq):
            body = entry.body
            if isinstance(body, journal.Checkpointed):
                yield Committed(entry.at, entry.actor, body)


def _work_left(store: Store, batch: Batch, chunks: Sequence[Chunk], left: int) -> dict[int, int]:
    """Return how many items have to run at each stage, judged by where the first pending ones are."""
    stages, sample = len(stage_names(batch)), Counter[int]()
    for chunk in chunks:
        if chunk.pending and sample.total() < SAMPLED_ITEMS:
            some = store.items(batch.id, lo=chunk.lo, hi=chunk.hi, state=State.PENDING, limit=SAMPLED_ITEMS)
            sample.update(item.place.stage for item in some)
    seen = max(1, sample.total())
    return {stage: round(Fraction(left * sum(sample[at] for at in range(stage + 1)), seen)) for stage in range(stages)}
