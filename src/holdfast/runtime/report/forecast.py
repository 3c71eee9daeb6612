"""The forecast of the time and cost of a run, or of the rest of a batch, from past attempts."""

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
    """The work at one stage; time and cost are None if no attempt there is known."""

    _tells: ClassVar[str] = "stage items seconds usd"

    stage: str
    items: int
    seconds: float | None
    """Seconds of handlers, over all its items."""
    usd: Decimal | None
    together: int = 1
    """The number of its items that may run at the same time."""

    @property
    def alone(self) -> float:
        """The time it would take if there were no other stage."""
        return (self.seconds or 0.0) / max(1, min(self.together, self.items))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunForecast(Plain):
    """The time and cost of a run."""

    _tells: ClassVar[str] = "seconds work_seconds usd workers learned_from unknown stages"

    stages: tuple[StageForecast, ...]
    workers: int
    learned_from: str | None
    """The batch whose attempts it is based on; None if there is none."""

    @property
    def unknown(self) -> tuple[str, ...]:
        """Stages with work whose time and cost are unknown."""
        return tuple(each.stage for each in self.stages if each.items and each.seconds is None)

    @property
    def work_seconds(self) -> float:
        """Seconds of handlers, at the stages where that is known."""
        return sum(each.seconds or 0.0 for each in self.stages)

    @property
    def seconds(self) -> float:
        """The estimated duration: limited by the workers, by the concurrency of each stage, and by the time of one
        item."""
        known = [each for each in self.stages if each.items and each.seconds]
        one_item = sum((each.seconds or 0.0) / each.items for each in known)
        narrowest = max((each.alone for each in known), default=0.0)
        return max(self.work_seconds / self.workers, narrowest, one_item)

    @property
    def usd(self) -> Decimal:
        """The cost, at the stages where that is known."""
        return sum((each.usd or Decimal(0) for each in self.stages), Decimal(0))


@dataclass(slots=True)
class StageCost:
    """Time and cost of the attempts at one stage."""

    attempts: int = 0
    ended: int = 0
    """Items that passed it, were skipped or were buried there."""
    seconds: float = 0.0
    spent: int = 0
    begun: dict[int, int] = field(default_factory=dict)
    """Money spent so far on unfinished partitions of a scan, by their number."""

    def end(self, n: int) -> None:
        """Count the whole cost of a partition that has ended."""
        self.spent += self.begun.pop(n, 0)

    @property
    def items(self) -> int:
        """The number of items to divide by: the cost of failed attempts is part of the cost of an item."""
        return self.ended if self.ended else self.attempts

    def of(self, items: int) -> tuple[float, int]:
        """Return the seconds, and the money in units, that this many items take here."""
        whole = round(Fraction(self.spent * items, self.items))
        return self.seconds * items / self.items, max(0, whole - sum(self.begun.values()))


@dataclass(slots=True)
class PastAttempts:
    """The past attempts of a batch, read from its journal in one pass."""

    costs: dict[int, StageCost] = field(default_factory=dict)
    _redriven: "array[int]" = field(default_factory=lambda: array("q"))
    """Number and stage of every item that an operator redrove, sorted."""

    def was_redriven(self, n: int, stage: int) -> bool:
        """Return whether an operator redrove the item at that stage."""
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
        """Return the seconds, and the money in units, that this many items at each stage take; None if the cost of a
        stage with work is unknown."""
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
    """Return whether the time and cost of an attempt count for the forecast."""
    return was_run(attempt) and not attempt.excused


def forecast(
    stages: Sequence[str], work: Mapping[int, int], past: PastAttempts, *, workers: int, learned_from: str | None,
    together: Sequence[int | None],
) -> RunForecast:  # fmt: skip
    """Return the time and cost of `work`, the number of items at each stage; `together` is the concurrency limit of
    each stage, if it has one."""
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
    """Return another batch to learn from while this one has no attempts: the last one of its pipeline with the same
    stages."""
    names = stage_names(batch)
    like = [other for other in store.batches() if other.pipeline == batch.pipeline and other.name != batch.name]
    return next((other for other in reversed(like) if other.admitted and stage_names(other) == names), None)


RATE_ENTRIES = 200


class Committed(NamedTuple):
    """A commit with its time, owner and body."""

    at: float
    owner: str
    body: journal.Checkpointed


def rate(commits: Iterable[Committed]) -> float | None:
    """Return items settled per second of work over the last commits; None before there are two."""
    seen = sorted(commits, key=lambda each: each.at)[-RATE_ENTRIES:]
    seconds = worked(seen)
    return sum(settled_in(each.body) for each in seen[1:]) / seconds if seconds > 0 else None


def worked(commits: list[Committed]) -> float:
    """Return the seconds between the first and the last of some commits in which a worker was running."""
    seconds, until = 0.0, commits[0].at if commits else 0.0
    for since, at in sorted(_spans(commits)):
        seconds += max(0.0, at - max(since, until))
        until = max(until, at)
    return seconds


def _spans(commits: list[Committed]) -> Iterator[tuple[float, float]]:
    last: dict[str, float] = {}
    for each in commits:
        since = last.get(each.owner)
        if since is None or each.at - since > RATE_PAUSE:  # another run, or its machine slept
            since = each.at - _longest(each.body)
        last[each.owner] = each.at
        yield since, each.at


def _longest(body: journal.Checkpointed) -> float:
    """Return how long the longest work of a commit took, from when it was ready."""
    took = [attempt.queued + attempt.seconds for attempt in body.attempts]
    for group in body.advanced:
        took += map(sum, zip(unpack(FLOAT32, group.queued), unpack(FLOAT32, group.seconds), strict=True))
    return max(took, default=0.0)


def settled_in(body: journal.Checkpointed) -> int:
    """Return how many items a commit settled."""
    finished = sum(len(group.items) for group in body.advanced if group.finished)
    return finished + sum(1 for attempt in body.attempts if attempt.outcome in ("skip", "bury"))


RECENT_ENTRIES = 1_000
CHUNK_ENTRIES = 64
SAMPLED_ITEMS = 1_000
"""The pending items from whose stages those of the rest are estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The remaining work, at the rate and the cost of the last commits. None if these are unknown."""

    left: int
    rate: float | None
    """Items settled per second, over the last entries of the journal."""
    seconds: float | None
    """Seconds until the end at that rate, while a worker is running."""
    work_seconds: float | None
    """Seconds of handlers that the rest will take."""
    usd: Decimal | None


NOTHING_LEFT = Forecast(left=0, rate=None, seconds=0.0, work_seconds=0.0, usd=Decimal(0))


class Recent:
    """The last commits of a batch, read once: time and cost of items, their rate, and the last progress."""

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
        """Return the time of the last progress; releasing a claim is not progress."""
        bare = {each.at for each in self.commits}.difference(self._moved)
        touched = (chunk.touched_at for chunk in chunks if chunk.touched_at not in bare)
        return max([*self._moved, *touched], default=None)


def forecast_left(
    store: Store, batch: Batch, chunks: Sequence[Chunk], recent: Recent, *, left: int, running: int
) -> Forecast:
    """Return the time and cost of the remaining items, by the last commits."""
    past = recent.past
    speed = rate(recent.commits)
    cost = past.cost(_work_left(store, batch, chunks, left)) if past.costs else None
    return Forecast(
        left=left, rate=speed, seconds=left / speed if speed and (running or not left) else None,
        work_seconds=None if cost is None else cost[0], usd=None if cost is None else canonical.to_usd(cost[1]),
    )  # fmt: skip


def recent_commits(store: Store, chunks: Sequence[Chunk], entries: int) -> Iterator[Committed]:
    """Yield the last commits of a batch, by any owner: from the chunks that were written last, at least some of each,
    about this many entries in all, and none written after these chunks were read."""
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
    """Return how many items have to run at each stage, estimated from the stages of the first pending ones."""
    stages, sample = len(stage_names(batch)), Counter[int]()
    for chunk in chunks:
        if chunk.pending and sample.total() < SAMPLED_ITEMS:
            some = store.items(batch.id, lo=chunk.lo, hi=chunk.hi, state=State.PENDING, limit=SAMPLED_ITEMS)
            sample.update(item.place.stage for item in some)
    seen = max(1, sample.total())
    return {stage: round(Fraction(left * sum(sample[at] for at in range(stage + 1)), seen)) for stage in range(stages)}
