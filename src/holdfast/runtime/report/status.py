"""The status of a batch: counts that add up, money, leases, and how it ended."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from types import MappingProxyType
from typing import ClassVar

from holdfast.core import acts
from holdfast.core.counts import BatchStanding, StateCounts, Totals, stand
from holdfast.core.course import ENDED, BatchState, End, stage_names, word_of
from holdfast.core.limits import DEAD_SEEN
from holdfast.core.model import Batch, BatchMode, Chunk, Counts, Kind, State
from holdfast.core.plain import Plain
from holdfast.runtime.partitions import rows_by_state
from holdfast.runtime.report import lifecycle, orphans
from holdfast.runtime.report.forecast import (
    NOTHING_LEFT,
    RECENT_ENTRIES,
    Forecast,
    Recent,
    forecast_left,
    recent_commits,
)
from holdfast.runtime.report.lifecycle import Seal
from holdfast.runtime.report.orphans import Activity, Blame
from holdfast.stores import owners
from holdfast.stores.base import SetBack, Store, TellsHistory, each_item
from holdfast.stores.owners import IsDead


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldChunk:
    """A chunk that has an owner."""

    chunk: int
    lo: int
    hi: int
    owner: str
    fence: int
    pending: int
    expires_in: float
    """Seconds until the lease expires, unless it is renewed; negative if it has expired."""
    is_live: bool
    by_its_clock: bool = False
    """True if that is by its owner's clock, which may be wrong: on a bucket there is no common clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanFacts:
    """Facts about a scan in addition to its counts."""

    unconverged: str
    """Why it has no result although its partitions are done; empty if it has one, or needs none."""
    has_begun: bool
    """True if rows were handled, or a person set a cursor."""
    is_followed: bool
    was_worked_on: bool
    """True if rows of it were read here: a clone that was never run only has its cursors."""


STATES = ("done", "skipped", "dead", "cancelled", "pending")
"""The states that add up to the items of a batch, in the order in which they are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status(Plain):
    """The status of a batch at one moment. It is plain data: it does not change when the batch does."""

    _tells: ClassVar[str] = (
        "batch pipeline at opened_at ingested_at sealed_at expected closed_at seal mode ends_at "
        "end progressed_at complete=is_complete stages counts totals forecast leases dead_codes "
        "dead_codes_complete blame state"
    )

    batch: str
    """The name of the batch."""
    pipeline: str
    """The name of its pipeline or scan."""
    at: float
    """The moment, in seconds since 1970, as are all times here."""
    opened_at: float
    """When it was opened."""
    ingested_at: float | None
    """When its source had been read to the end; None before that."""
    sealed_at: float | None
    """When it was sealed; None while it is open."""
    mode: BatchMode
    """`open`, `paused` or `cancelled`."""
    ends_at: float | None
    """When it is to end, if `until` was given."""
    end: End | None
    """How it ended; None while it can continue, or if its source was empty."""
    progressed_at: float | None
    """When an item was last committed."""
    stages: tuple[str, ...]
    """The names of its stages, in order."""
    counts: StateCounts
    """Items by state, which add up to `expected`."""
    totals: Totals
    """Money, tokens, attempts and seconds so far."""
    forecast: Forecast
    """Time and money that the rest will take."""
    leases: tuple[HeldChunk, ...]
    """The chunks that owners hold now."""
    dead_codes: Mapping[str, int]
    """How many dead letters there are of each code."""
    dead_codes_complete: bool
    """Whether `dead_codes` covers all dead letters."""
    blame: Blame | None = None
    """Deaths of owners that keep it from full speed."""
    seal: Seal | None = None
    """Who sealed it, and what happened after that."""
    expected: int | None = None
    """How many items it has in total, if that was recorded; `counts.expected` counts those that were admitted."""
    closed_at: float | None = None
    """When it was closed to new items."""
    is_empty: bool = False
    """Whether its source was empty without `allow_empty`."""
    kind: Kind = Kind.ITEMS
    """What it consists of: items, or partitions of a scan."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """Buried rows of a scan, by state; `counts` includes them."""
    scan: "ScanFacts | None" = None
    """What decides the state of a scan beside its counts; None for a pipeline."""
    halted: str = ""
    """Why its last run ended, if that was recorded and there was no progress since."""

    def __str__(self) -> str:
        counts = " + ".join(f"{getattr(self.counts, name):,} {name}" for name in STATES)
        return f"{self.batch}: {self.state}\n  items {self.counts.expected:,} = {counts}"

    @property
    def state(self) -> BatchState:
        """Its state in one word."""
        state, scan = self._state(), self.scan
        if scan is None:
            return state
        if state in (BatchState.COMPLETE, BatchState.WITH_DEAD) and scan.unconverged:
            return BatchState.NOT_CONVERGED
        if state not in (BatchState.NOT_BEGUN, BatchState.INTERRUPTED) or not scan.has_begun:
            return state
        if scan.is_followed:
            return BatchState.FOLLOWING
        return BatchState.INTERRUPTED if scan.was_worked_on else BatchState.NOT_BEGUN

    def _state(self) -> BatchState:
        counts = self.counts
        if self.sealed_at is not None:
            return BatchState.SEALED_WITH_DEAD if counts.dead else BatchState.SEALED
        if self.word:
            return BatchState(self.word)
        if counts.running:
            return BatchState.RUNNING
        if counts.orphaned:
            return BatchState.ORPHANED
        if counts.waiting and not counts.ready:
            return BatchState.WAITING
        if counts.settled and not counts.pending:
            return BatchState.OPEN
        return BatchState.INTERRUPTED if counts.settled or self.totals.attempts else BatchState.NOT_BEGUN

    @property
    def word(self) -> str:
        """Its state at its end, or why it does not continue; empty while it can continue."""
        paused = self.mode is BatchMode.PAUSED
        return word_of(self.end, empty=self.is_empty, findings=self.surplus > 0, paused=paused, halted=self.halted)

    @property
    def surplus(self) -> int:
        """How many more items there are than were expected."""
        return max(0, self.counts.expected - self.expected) if self.expected is not None else 0

    @property
    def is_complete(self) -> bool:
        """Whether all items are there, as far as is known, and nothing is left to do for them."""
        return self.ingested_at is not None and self.counts.pending == 0


def snapshot(store: Store, batch: Batch, *, is_dead: IsDead = owners.is_dead, brief: bool = False) -> Status:
    """Return the current status of a batch. `brief`: if nothing is left to do, do not read its last commits."""
    chunks, now = store.chunks(batch.id), store.now()
    counts, totals, kind, end = standing_of(store, batch, chunks, now=now, is_dead=is_dead)
    recent = Recent(recent_commits(store, chunks, RECENT_ENTRIES)) if counts.pending or not brief else None
    is_empty = not counts.pending and lifecycle.is_empty(store, batch, chunks)
    may_continue = bool(counts.pending) or batch.ingested_at is None
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
        mode=batch.course,
        ends_at=batch.ends_at,
        end=None if is_empty else end,
        progressed_at=None if recent is None else recent.progressed_at(chunks),
        stages=tuple(stage_names(batch)),
        counts=counts,
        totals=totals,
        forecast=NOTHING_LEFT
        if recent is None
        else forecast_left(store, batch, chunks, recent, left=counts.pending, running=counts.running),
        leases=tuple(
            _held(chunk, now, is_dead, store.capabilities.one_clock)
            for chunk in chunks
            if chunk.owner is not None and chunk.pending
        ),
        dead_codes=MappingProxyType(dict(codes.most_common())),
        dead_codes_complete=counts.dead <= DEAD_SEEN,
        blame=orphans.blame_of(store, batch, chunks, now=now, is_dead=is_dead) if counts.pending else None,
        seal=lifecycle.seal_of(store, batch),
        expected=batch.expected,
        closed_at=batch.closed_at,
        is_empty=is_empty,
        kind=kind,
        rows={} if kind is Kind.ITEMS else rows_by_state(chunks),
        halted=lifecycle.halted_by(store, batch, chunks) if may_continue and not counts.running else "",
    )


def standing_of(
    store: Store, batch: Batch, chunks: Sequence[Chunk], *, now: float, is_dead: IsDead = owners.is_dead
) -> BatchStanding:
    """Return the standing of a batch, with every item counted once, judged with the patience of its last run."""
    activity = cache(lambda: Activity.of(store, batch, chunks, now=now, is_dead=is_dead))

    def cut_short() -> bool:
        any_cancelled = any(chunk.counts.cancelled for chunk in chunks)
        cancelled = each_item(store, batch.id, state=State.CANCELLED) if any_cancelled else ()
        return any(item.place.code == ENDED for item in cancelled)

    return stand(batch, chunks, now, lambda chunk: doing(chunk, activity()), cut_short)


def set_back_note(store: Store, batch: Batch | None = None) -> str:
    """Return the note about a store that was set back, if that was after the batch was opened; otherwise empty."""
    told = store.set_back() if isinstance(store, TellsHistory) else None
    if told is None or (batch is not None and batch.opened_at > told.at):
        return ""
    return f"{set_back_words(told)}; work recorded in the missing entries is done again"


def set_back_words(told: SetBack) -> str:
    """Return that a store was set back, by how much, and when that was noticed."""
    seen = datetime.fromtimestamp(told.at, UTC).isoformat(sep=" ", timespec="seconds")
    return f"the store was set back: it had {told.had:,} entries and came back with {told.has:,}, noticed at {seen}"


def doing(chunk: Chunk, activity: Activity) -> str:
    """Return what the pending items of a chunk are doing, in one word."""
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


@dataclass(frozen=True, slots=True)
class Figures:
    """A moment of a run, as `run(progress=…)` passes it to a function: counts of the batch, and of every stage."""

    before: Counts
    """Items that were settled before this run, less those that it sent back."""
    now: Counts
    """Items that this run settled, with its attempts and its money."""
    admitted: int
    """Items of the batch so far."""
    added: int
    """Items that this run admitted."""
    known: int
    """Items of the source that the batch had already."""
    seconds: float
    """Seconds since the run began."""
    ingested: bool
    """Whether the source has been read to its end."""
    rewound: int = 0
    """Items that this run sent back."""
    elsewhere: Counts = field(default_factory=Counts)
    """Items that other processes settled since the run began, as far as this run has read it."""
    looking: str = ""
    """The progress of the check of recorded outputs, while it runs."""
    paused: tuple[str, ...] = ()
    """Stages whose breaker is open."""
    adopted: int = 0
    """Outputs that this run found and did not make again."""
    rows_before: int = 0
    """Rows of a scan that were handled before this run."""
    rows: int = 0
    """Rows of a scan that this run handled."""
    counts_rows: bool = False
    """Whether the items are partitions of a scan, whose progress is counted in rows."""
    rows_expected: int | None = None
    """The number of rows in all, if it is known."""
    letters: "Letters" = field(default_factory=lambda: Letters())  # noqa: PLW0108 - it is defined below
    """The items of a scan that are buried rows, not partitions."""
    careful: str = ""
    """The reason why no more items are claimed than can be started at once, while that is so."""
    stages: tuple["StageFigures", ...] = ()
    """The stages in their order."""

    @property
    def whole(self) -> Counts:
        """The whole batch: before this run, by this run, and by other processes."""
        return self.before.plus(self.now).plus(self.elsewhere)


@dataclass(frozen=True, slots=True)
class Letters:
    """Rows of a scan that were buried: items that are not partitions."""

    count: int = 0
    settled: int = 0
    dead: int = 0
    done_now: int = 0
    """Redriven rows that this run has done."""

    def plus(self, count: int, settled: int, dead: int, done: int = 0) -> "Letters":
        return Letters(self.count + count, self.settled + settled, self.dead + dead, self.done_now + done)


@dataclass(frozen=True, slots=True)
class StageFigures:
    """A stage at one moment of a run. Items that have not reached it are in none of its counts; those that passed
    the last stage are the settled items of the batch."""

    name: str
    """The name of the stage."""
    passed: int
    """Items that need this stage no more: they passed it, or they are settled."""
    running: int
    """Items that are in handlers of this stage in this process."""
    waiting: int
    """Other items at this stage: ready, waiting for a retry, held by another process, or handled and not committed."""
    rate: float = 0.0
    """Items per second that passed it lately."""
    seconds_left: float | None = None
    """Seconds until no item needs this stage, at that rate; None if it is 0, or the source is still read."""
    is_estimate: bool = False
    """Whether the split between stages is estimated: too many items were pending before the run to count them all."""
