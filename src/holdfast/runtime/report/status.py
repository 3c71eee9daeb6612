"""How fast a batch is worked on, from its last commits: only time in which somebody worked on it counts.

A run is at work from the beginning of the work that it commits first until its last commit. Between two runs nobody is.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import ClassVar, NamedTuple

from holdfast.core import acts, canonical, course, journal
from holdfast.core.course import ENDED, End, end_of, word_of
from holdfast.core.journal import FLOAT32, unpack
from holdfast.core.limits import DEAD_SEEN, RATE_PAUSE
from holdfast.core.model import Batch, Chunk, Course, State
from holdfast.core.plain import Plain
from holdfast.runtime import lookup
from holdfast.runtime.journal import forward
from holdfast.runtime.lifecycle import end
from holdfast.runtime.lifecycle.end import Seal
from holdfast.runtime.report import orphans, statistics
from holdfast.runtime.report.forecast import PastAttempts
from holdfast.runtime.report.orphans import Activity, Blame
from holdfast.stores import owners
from holdfast.stores.base import Store, each_item
from holdfast.stores.owners import IsDead

RATE_ENTRIES = 200


class Committed(NamedTuple):
    """A commit: when, by whom, and what it says."""

    at: float
    owner: str
    body: journal.Checkpointed


def rate(commits: Iterable[Committed]) -> float | None:
    """Items settled per second of work over the last commits; None before there are two."""
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
    """How many items a commit brought to their end."""
    finished = sum(len(group.items) for group in body.advanced if group.finished)
    return finished + sum(1 for attempt in body.attempts if attempt.outcome in ("skip", "bury"))


RECENT_ENTRIES = 1_000
CHUNK_ENTRIES = 64
SAMPLED_ITEMS = 1_000
"""Pending items that are looked at to tell at which stages the rest stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCounts(Plain):
    """How many items a batch has, by what has become of them. They always add up."""

    expected: int
    done: int
    skipped: int
    dead: int
    cancelled: int
    pending: int
    ready: int
    running: int
    waiting: int
    orphaned: int

    def __post_init__(self) -> None:
        assert self.expected == self.done + self.skipped + self.dead + self.cancelled + self.pending, self
        assert self.pending == self.ready + self.running + self.waiting + self.orphaned, self
        settled = (self.done, self.skipped, self.dead, self.cancelled)
        assert min(*settled, self.ready, self.running, self.waiting, self.orphaned) >= 0, self

    @property
    def settled(self) -> int:
        return self.expected - self.pending


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldChunk:
    """A chunk in somebody's hands."""

    chunk: int
    lo: int
    hi: int
    owner: str
    fence: int
    pending: int
    expires_in: float
    """Seconds until the lease ends, if it is not renewed; negative when it has ended."""
    is_live: bool
    by_its_clock: bool = False
    """Whether that is told by its owner's clock, which may be wrong: on a bucket no clock is common to all."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Status(Plain):
    """A batch as it stood at `at`. It holds nothing of the store and cannot be changed."""

    _tells: ClassVar[str] = (
        "batch pipeline at opened_at ingested_at sealed_at expected closed_at seal course ends_at "
        "end progressed_at complete=is_complete stages counts totals forecast leases dead_codes "
        "dead_codes_complete blame"
    )

    batch: str
    pipeline: str
    at: float
    opened_at: float
    ingested_at: float | None
    sealed_at: float | None
    course: Course
    ends_at: float | None
    end: End | None
    """How it ended, or None while it may continue, or where its source gave nothing: that is not an end."""
    progressed_at: float | None
    stages: tuple[str, ...]
    counts: StateCounts
    totals: statistics.Totals
    forecast: Forecast
    leases: tuple[HeldChunk, ...]
    dead_codes: Mapping[str, int]
    dead_codes_complete: bool
    blame: Blame | None = None
    """Which deaths keep it from being worked on at full speed."""
    seal: Seal | None = None
    """Who sealed it, and what came after that."""
    expected: int | None = None
    """How many items it was said to have in all, where somebody did; `counts.expected` are those that came."""
    closed_at: float | None = None
    """Since when it takes no new items."""
    is_empty: bool = False
    """Its source gave nothing, and nobody said that this is fine."""
    halted: str = ""
    """Why its last run ended, where that is on record and nothing has come further since: any reason of a run; those
    in `HALTS` have a word."""

    @property
    def word(self) -> str:
        """One word for how it ended, or why it does not continue; nothing while it may continue as it is."""
        paused = self.course is Course.PAUSED
        return word_of(self.end, empty=self.is_empty, findings=self.surplus > 0, paused=paused, halted=self.halted)

    @property
    def surplus(self) -> int:
        """How many more items came than were expected."""
        return max(0, self.counts.expected - self.expected) if self.expected is not None else 0

    @property
    def is_complete(self) -> bool:
        """Whether all items are there, as far as is known, and nothing is left to do."""
        return self.ingested_at is not None and self.counts.pending == 0


def snapshot(store: Store, batch: Batch, *, is_dead: IsDead = owners.is_dead) -> Status:
    """The batch as it stands now."""
    chunks, now = store.chunks(batch.id), store.now()
    counts = count_of(store, batch, chunks, now=now, is_dead=is_dead)
    totals = statistics.totals(chunks)
    recent = Recent(recent_commits(store, chunks, RECENT_ENTRIES))
    is_empty = not counts.pending and end.is_empty(store, batch)
    codes = Counter[str]()
    for seen, each in enumerate(each_item(store, batch.id, state=State.DEAD) if counts.dead else ()):
        if seen == DEAD_SEEN:
            break
        codes[each.place.code] += 1
    return Status(
        batch=batch.name,
        pipeline=batch.pipeline,
        at=now,
        opened_at=batch.opened_at,
        ingested_at=batch.ingested_at,
        sealed_at=batch.sealed_at,
        course=batch.course,
        ends_at=batch.ends_at,
        end=None if is_empty else end_of_batch(store, batch, counts, now),
        progressed_at=recent.progressed_at(chunks),
        stages=tuple(lookup.stage_names(batch)),
        counts=counts,
        totals=totals,
        forecast=_forecast(store, batch, chunks, counts, recent),
        leases=tuple(
            _held(chunk, now, is_dead, store.capabilities.one_clock)
            for chunk in chunks
            if chunk.owner is not None and chunk.pending
        ),
        dead_codes=MappingProxyType(dict(codes.most_common())),
        dead_codes_complete=counts.dead <= DEAD_SEEN,
        blame=orphans.blame_of(store, batch, chunks, now=now, is_dead=is_dead) if counts.pending else None,
        seal=end.seal_of(store, batch),
        expected=batch.expected,
        closed_at=batch.closed_at,
        is_empty=is_empty,
        halted=end.halted_by(store, batch, chunks) if not counts.running else "",
    )


def end_of_batch(store: Store, batch: Batch, counts: StateCounts, now: float) -> End | None:
    """How a batch ended; None while it may continue."""
    over = course.has_ended(batch, now)
    looks = over and counts.cancelled and not counts.pending and batch.course is not Course.CANCELLED
    cancelled = each_item(store, batch.id, state=State.CANCELLED) if looks else ()
    return end_of(
        batch.course, over=over, was_read=batch.ingested_at is not None, pending=counts.pending, dead=counts.dead,
        cut_short=any(item.place.code == ENDED for item in cancelled),
        short=batch.expected is not None and batch.admitted < batch.expected,
    )  # fmt: skip


def count_of(
    store: Store, batch: Batch, chunks: Sequence[Chunk], *, now: float, is_dead: IsDead = owners.is_dead
) -> StateCounts:
    """Every item of a batch once, with the patience that the batch was last run with."""
    return count(chunks, Activity.of(store, batch, chunks, now=now, is_dead=is_dead))


def count(chunks: Sequence[Chunk], activity: Activity) -> StateCounts:
    """Every item once. The rows of the chunks were read together, so the sum holds."""
    pending: Counter[str] = Counter()
    for chunk in chunks:
        pending[_word(chunk, activity)] += chunk.pending
    return StateCounts(
        expected=sum(chunk.size for chunk in chunks),
        done=sum(chunk.counts.done for chunk in chunks),
        skipped=sum(chunk.counts.skipped for chunk in chunks),
        dead=sum(chunk.counts.dead for chunk in chunks),
        cancelled=sum(chunk.counts.cancelled for chunk in chunks),
        pending=pending.total(),
        ready=pending["ready"],
        running=pending["running"],
        waiting=pending["waiting"],
        orphaned=pending["orphaned"],
    )


def _word(chunk: Chunk, activity: Activity) -> str:
    if not chunk.pending:
        return "settled"
    facts = activity.facts(chunk)
    if acts.judge_orphan(facts, now=activity.now, grace=activity.grace, dead_after=0.0) is not None:
        return "orphaned"
    if facts.is_held:
        return "running"
    return "waiting" if facts.due > activity.now else "ready"


def _held(chunk: Chunk, now: float, is_dead: IsDead, one_clock: bool) -> HeldChunk:
    assert chunk.owner is not None
    return HeldChunk(
        chunk=chunk.id,
        lo=chunk.lo,
        hi=chunk.hi,
        owner=owners.short(chunk.owner),
        fence=chunk.fence,
        pending=chunk.pending,
        expires_in=chunk.expires - now,
        is_live=owners.is_live(chunk, now, is_dead),
        by_its_clock=not one_clock,
    )


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


def _forecast(store: Store, batch: Batch, chunks: Sequence[Chunk], counts: StateCounts, recent: Recent) -> Forecast:
    left, past = counts.pending, recent.past
    speed = rate(recent.commits)
    cost = past.cost(_work_left(store, batch, chunks, left)) if past.costs else None
    return Forecast(
        left=left, rate=speed, seconds=left / speed if speed and (counts.running or not left) else None,
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
    stages, sample = len(lookup.stage_names(batch)), Counter[int]()
    for chunk in chunks:
        if chunk.pending and sample.total() < SAMPLED_ITEMS:
            some = store.items(batch.id, lo=chunk.lo, hi=chunk.hi, state=State.PENDING, limit=SAMPLED_ITEMS)
            sample.update(item.place.stage for item in some)
    seen = max(1, sample.total())
    return {stage: round(Fraction(left * sum(sample[at] for at in range(stage + 1)), seen)) for stage in range(stages)}
