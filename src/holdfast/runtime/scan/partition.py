"""The one stage of a scan, whose items are partitions of the source, and the runner of a partition.

A walk becomes an outcome, like the attempt at any other item.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

from holdfast.core import canonical, cursor
from holdfast.core.cursor import Cursor
from holdfast.core.errors import Skip, UsageError
from holdfast.core.limits import BLAME, SUSPECT
from holdfast.core.model import Checkpoint, Item, Kind
from holdfast.core.outcome import Done, Failed
from holdfast.runtime.define.calls import current_batch
from holdfast.runtime.define.policy import Breaker, Retry
from holdfast.runtime.define.schema import Invalid
from holdfast.runtime.define.stage import Stage, Where, WorkFacts, code_of
from holdfast.runtime.engine.assignment import Assignment, clock
from holdfast.runtime.engine.failures import with_place
from holdfast.runtime.engine.hold import killed_text
from holdfast.runtime.engine.pools import Finished, Refusal
from holdfast.runtime.engine.resources import Handed
from holdfast.runtime.engine.runner import Runner
from holdfast.runtime.event_loop import Loan, this_thread
from holdfast.runtime.operate.identity import refuse_changed
from holdfast.runtime.partitions import span_of
from holdfast.runtime.scan.isolation import GONE, Burial
from holdfast.runtime.scan.rows import (
    CAREFUL_ROWS,
    MISTAKES,
    RIGHT,
    Careful,
    Every,
    Feed,
    Handler,
    Interval,
    Misuse,
    Shape,
    feed_of,
    mistaken,
)
from holdfast.runtime.scan.walk import IsolatingWalk, Parked, RangeLost, Walk
from holdfast.runtime.sources.base import Notice, Outage, Readable, SourceAway, asked, is_away
from holdfast.runtime.sources.text_file import LineFile


class PartitionStage(Stage):
    """The stage that reads partitions of a source and passes their rows to a handler."""

    def __init__(self, handler: Handler, source: Readable, every: Every, *, retry: Retry | None = None,
                 executor: Where | None = None, breaker: Breaker | bool | None = False,
                 isolate: bool = False) -> None:  # fmt: skip
        if isolate and handler.shape is Shape.GENERATOR:
            raise UsageError(
                f"{handler.what} is a generator, which takes its rows itself: isolate=True is only for (rows) and for "
                "(rows, acc)"
            )
        super().__init__(_range, name="scan", retry=retry, executor=executor, breaker=breaker)
        spared = frozenset({Kind.PARTITIONS}) if isolate else frozenset[Kind]()
        self.work = WorkFacts(kind=Kind.PARTITIONS, travels_alone=True, has_checkpoints=True, spares=spared)
        self.handler = handler
        self.what = handler.what
        self.parameters = self.parameters._replace(
            needed=handler.needed, optional=handler.optional, accumulator=handler.accumulator
        )
        self.awaits = handler.is_async and handler.shape is not Shape.GENERATOR
        self.accumulated = self._accumulated if handler.is_typed else None
        self.source = source
        self.every = every
        self.follows = False
        """Its item never ends: ticks advance it, not a run."""
        self.isolate = isolate
        """Rows that the handler cannot process are buried one by one, and the others continue."""

    def _accumulated(self, value: Any) -> bytes | None:
        try:
            return self.handler.encode(value)
        except Misuse as error:
            raise UsageError(str(error).removesuffix(RIGHT)) from None

    @property
    def maker(self) -> str:
        """Return nothing: the program code that made a checkpoint is not recorded."""
        return ""

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "code": code_of(self.handler.function), "source": self.source.describe()}


def _range(span: dict[str, Any]) -> Any:  # noqa: ARG001 - its annotation is the schema of an item
    """Define the schema of a partition as an item; a runner runs it."""
    raise UsageError("a partition of a scan is run by the scan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Approach:
    """How a partition is walked, if that differs from its definition."""

    feed: Feed | None = None
    """Its rows, if they were opened before."""
    until: Cursor | None = None
    """The cursor up to which rows are final, if the source is followed."""
    follows: bool = False
    """It is walked to the end of the present rows, and has no end of its own."""
    few: tuple[int, int] | None = None
    """The rows between two checkpoints, and for how many rows, if one of them killed its process."""
    condemned: str = ""
    """Why its first row is buried without being tried."""


AS_IT_SAYS = Approach()


class PartitionRunner(Runner):
    """Runs partitions of a source, one at a time. It never raises: any error becomes an outcome."""

    isolates = True
    """Rows may be buried one by one, if the scan is defined so."""

    def __init__(self, stage: PartitionStage, *, pipeline: str, batch: str, stopping: Callable[[], bool],
                 now: Callable[[], float], finished: Finished, burial: Burial | None = None,
                 patience: float | None = None, handed: Handed | None = None, loan: Loan | None = None,
                 approach: Approach | None = None) -> None:  # fmt: skip
        super().__init__(stage, pipeline=pipeline, batch=batch, stopping=stopping, now=now, handed=handed, loan=loan)
        self.scanned = stage
        self.finished = finished
        self.burial = burial
        self.patience = patience
        """How many seconds to wait for a source that is away; None if that is a failed attempt."""
        self.approach = approach
        self._notice = Notice(repr(stage.source))

    def cut_off(self, item: Item, work: Assignment, began: float) -> None:
        """Return None: only checkpoints are kept."""

    def run(self, work: Assignment) -> None:
        if self.may_not_begin(work):
            return
        (item,) = work.items
        self.handler()  # a resource that cannot be opened here is not the fault of the partition
        current_batch.set((self.pipeline, self.batch))
        was_below, this_thread.is_below = this_thread.is_below, self.loan.is_below
        began = work.started = clock()
        ctx = work.ctx = self.context(item, work)
        walk: Walk | None = None
        try:
            ctx.fence = self.fence(work)
            walk = self._walk(work, item, ctx)
            result = walk.go()
            outcome: Any = self._done(walk, result, work, began)
        except (Parked, RangeLost):
            outcome = None
        except (Misuse, SourceAway) as error:
            outcome = None
            self.finished.put(Refusal(work, error))
        except MISTAKES as error:
            outcome = None
            self.finished.put(Refusal(work, mistaken(self.scanned.handler.what, error, with_place(error))))
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything; it becomes an outcome
            outcome = self._explain(item if walk is None else walk.item, error, work, began, ctx)
            outcome = self._with_rows(outcome, walk)
        current_batch.set(None)
        this_thread.is_below = was_below
        work.started = 0.0
        if outcome is not None and not work.abandoned:
            work.outcomes.append(outcome)
        elif walk is not None and not work.abandoned:
            work.items[0] = walk.item  # it comes back in its present state

    def _with_rows(self, outcome: Any, walk: Walk | None) -> Any:
        """Return a failure with the rows that the handler had, and their lines in the file."""
        source, held = self.scanned.source, walk.in_hand() if walk is not None else None
        if walk is None or held is None or not isinstance(outcome, Failed) or not isinstance(source, LineFile):
            return outcome
        before, first, count = held
        rows = f"row {first:,}" if count == 1 else f"rows {first:,} to {first + count - 1:,}"
        said = f"{outcome.message} ({rows} of the partition, {source.lines_after(before, count)})"
        return msgspec.structs.replace(outcome, message=said)

    def handler(self) -> Handler:
        """Return the handler with its resources bound, for this thread. Raises ResourceError."""
        return self.scanned.handler.handed(self.handed)

    def _walk(self, work: Assignment, item: Item, ctx: Any) -> Walk:
        stage, span, at = self.scanned, span_of(item.input), work.at
        how = self.approach if self.approach is not None else self._approach(work)
        feed = how.feed
        if feed is None:
            refuse_changed(stage.source, span, f"partition {item.key}")
            after = cursor.decode(at.cursor) if at is not None and at.cursor else span.after
            feed = self.feed_of(work, after, span.until if how.until is None else how.until, at)
        interval = Interval(stage.every) if how.few is None else Careful(stage.every, *how.few)
        return self._walk_over(feed, interval, work, ctx, condemned=how.condemned)

    def _approach(self, work: Assignment) -> Approach:
        """Return how to walk a partition: if its process died and rows are isolated, row by row, and its first row is
        buried in the end."""
        if not self.scanned.isolate or work.blame < SUSPECT:
            return AS_IT_SAYS
        return Approach(few=(1, CAREFUL_ROWS), condemned=killed_text(BLAME) if work.is_condemned else "")

    def feed_of(self, work: Assignment, after: Cursor | None, until: Cursor | None, at: Checkpoint | None) -> Feed:
        """Return the rows of a partition, once the source answers."""
        outage = self._outage(work)
        if outage is None:
            return feed_of(self.scanned.source, after, until, at)
        try:
            found: Feed = asked(lambda: feed_of(self.scanned.source, after, until, at), outage, told=False)
        except Exception as error:
            if is_away(error) and not isinstance(error, SourceAway):
                raise Parked from None  # the run stops while the source is away
            raise
        return found

    def _outage(self, work: Assignment) -> Outage | None:
        if self.patience is None:
            return None
        return Outage(self.patience, lambda: work.is_vain or self.stopping(), self._notice)

    def fence(self, work: Assignment) -> int:
        """Return the fence that a handler sees. Raises HoldfastError."""
        return work.fence

    def _walk_over(self, feed: Feed, interval: Interval, work: Assignment, ctx: Any, *, condemned: str) -> Walk:
        """Return the walk over a feed; rows are isolated if the scan is defined so."""
        stage, told = self.scanned, self._told(work)
        if stage.isolate and self.burial is not None:
            return IsolatingWalk(self.handler(), interval, work, ctx, feed, burial=self.burial, policy=stage.policy,
                                 condemned=condemned, **told)  # fmt: skip
        return Walk(self.handler(), interval, work, ctx, feed, burial=self.burial, **told)

    def _told(self, work: Assignment) -> dict[str, Any]:
        return {"acc": None if work.at is None else work.at.acc, "send": self.finished.put, "stopping": self.stopping,
                "loan": self.loan, "outage": self._outage(work)}  # fmt: skip

    def _refuse_rows_left(self, walk: Walk) -> None:
        """Refuse the result of a handler that returned before the end of its partition. If it was asked to stop because
        the run ends, that is correct: the partition stays at its last checkpoint."""
        if walk.feed.at_end:
            return
        if self.stopping():
            raise Parked
        raise Invalid(
            f"{walk.handler.what} returned after {walk.feed.rows:,} rows of its partition, and there are more: iterate "
            "the partition to its end; rows that you do not need can be skipped",
            "rows_left",
        )

    def _done(self, walk: Walk, result: Any, work: Assignment, began: float) -> Done | None:
        """Return the end of a partition, whose last checkpoint and result are one commit. For a followed source, the
        last checkpoint and the release are one."""
        self._refuse_rows_left(walk)
        if self.approach is not None and self.approach.follows:
            work.reached = walk.reached(is_last=True)
            return None
        try:
            data = canonical.encode_typed(result, "the result") if result is not None else b"null"
        except UsageError as error:
            raise Misuse(f"{walk.handler.what}: {error}") from None
        work.reached = walk.reached()
        item = walk.item
        return Done(item, data, max(0.0, began - work.ready_at), clock() - began)


class RowRunner(PartitionRunner):
    """Runs rows that were buried and redriven, each a partition of that one row: it succeeds or fails as a whole, and
    is not buried by itself."""

    isolates = False

    def fence(self, work: Assignment) -> int:
        """Return the fence that a handler sees. A row has its own lease: it is shown a fence that is not lower than
        that of its partition, so that an effect guarded by the largest fence accepts it; and not higher, because its
        partition may be running."""
        return work.fence if self.burial is None else max(work.fence, self.burial.highest_fence())

    def _approach(self, work: Assignment) -> Approach:
        return AS_IT_SAYS

    def _walk_over(self, feed: Feed, interval: Interval, work: Assignment, ctx: Any, *, condemned: str) -> Walk:
        return Walk(self.handler(), interval, work, ctx, feed, **self._told(work))

    def _done(self, walk: Walk, result: Any, work: Assignment, began: float) -> Done | None:
        self._refuse_rows_left(walk)
        if not walk.feed.rows:
            raise Skip(GONE)
        return super()._done(walk, result, work, began)


RUNNERS: Mapping[Kind, type[PartitionRunner]] = MappingProxyType(
    {Kind.PARTITIONS: PartitionRunner, Kind.ROWS: RowRunner}
)
"""The runner for each kind of chunk of a scan."""
