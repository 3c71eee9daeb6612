"""The public classes of scans: a handler over the rows of a source, and the results of its partitions."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, overload

from holdfast.core import canonical
from holdfast.core.errors import Incomplete, Interrupted, NotConverged, UsageError
from holdfast.core.model import Batch
from holdfast.runtime.define.decorators import AnyFunction, Converging, FailureHook
from holdfast.runtime.define.options import OnCodeChange, Signals, check_signals, heartbeat_seconds, lease_seconds
from holdfast.runtime.define.pipeline import check_name
from holdfast.runtime.define.policy import Budget, Retry
from holdfast.runtime.define.resource import Scope
from holdfast.runtime.define.stage import Where
from holdfast.runtime.engine.control import Control
from holdfast.runtime.engine.exchange import NEVER
from holdfast.runtime.events import Target, delivering
from holdfast.runtime.operate.identity import accept_corrected, grown, refuse_changed_batch
from holdfast.runtime.partitions import remarks
from holdfast.runtime.pipeline import Pipeline
from holdfast.runtime.plan import Plan
from holdfast.runtime.report.report import Report
from holdfast.runtime.report.status import Figures
from holdfast.runtime.scan import follow, plan
from holdfast.runtime.scan.converge import Convergence, Gathered, gather
from holdfast.runtime.scan.follow import Following
from holdfast.runtime.scan.partition import PartitionStage
from holdfast.runtime.scan.plan import BorderSearch
from holdfast.runtime.scan.process import runner_there, runners_of
from holdfast.runtime.scan.rows import NOTHING, Every, Handler, Said
from holdfast.runtime.scan.tick import Tick
from holdfast.runtime.sources import base
from holdfast.runtime.sources.base import Readable
from holdfast.runtime.sources.parquet import Parquet
from holdfast.runtime.sources.text_file import LineFile
from holdfast.runtime.text import Duration, command, moment, printable, seconds
from holdfast.stores import owners
from holdfast.stores.base import Store, find_batch
from holdfast.stores.buckets.base import is_place


@dataclass(frozen=True, slots=True)
class ScanReport:
    """The report of a scan. It has every member of `hf.Report` as well, for the partitions."""

    run: Report
    """The `hf.Report` of its partitions."""
    rows: int
    """Rows that were handled, in total."""
    parts: tuple[Any, ...] = ()
    """The accumulators of the partitions, in order, and of redriven rows; complete once every partition is done."""
    result: Any = None
    """The return value of `converge`; without `converge`, the accumulator of a single partition. None if there are
    several partitions and no `converge`: see `parts`."""
    unconverged: str = ""
    """Why there is no result although every partition is settled; empty if there is one."""
    run_again: bool = False
    """Whether work is left for the next run, `converge` included."""

    def __getattr__(self, name: str) -> Any:
        """Everything else is as with any batch: counts, state, dead, warnings …"""
        return getattr(object.__getattribute__(self, "run"), name)

    @property
    def why(self) -> str:
        """The state in a sentence, and what to do next."""
        return f"{self.run.why} {self.unconverged}".strip()

    @property
    def exit_code(self) -> int:
        """0, 1 or 75 as in `hf.Report`; a scan whose result is missing is not complete."""
        if self.run.exit_code or not self.unconverged:
            return self.run.exit_code
        return 75 if self.run_again else 1

    @property
    def is_complete(self) -> bool:
        """Whether every partition is accounted for and the result is there, if there is to be one."""
        return self.exit_code == 0

    def raise_unless_complete(self) -> "ScanReport":
        """Raise Incomplete, with what is missing, unless the scan is complete."""
        if not self.is_complete:
            raise Incomplete(f"batch {self.run.batch!r} is {self.run.state}: {self.why}", self)
        return self

    def plain_result(self) -> Any:
        """Return the result as JSON values, with types that JSON lacks written as tagged values."""
        return canonical.to_plain(self.result, "the result")

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values, for machines."""
        told = {"why": self.why, "exit_code": self.exit_code, "run_again": self.run_again}
        return {**self.run.as_dict(), **told}

    @property
    def are_apart(self) -> bool:
        """Whether several partitions have results and there is no `converge` to combine them."""
        return self.result is None and sum(part is not None for part in self.parts) > 1

    def __str__(self) -> str:
        return printable(f"{self.run}\n  result   {self.unconverged}") if self.unconverged else str(self.run)


Function = Callable[..., Any]
NO_ORPHAN = "36500d"


def _hide(_: Tick) -> None:
    """Show nothing."""


class SourceWalk:
    """The base of a scan and a follow: a source, a handler for its rows, and a pipeline with one stage."""

    follows: ClassVar[bool]
    partitions: int

    def __init__(
        self,
        name: str,
        source: Readable,
        *,
        every: Said,
        retry: Retry | None,
        isolate: bool,
        **options: Any,
    ) -> None:
        if not isinstance(source, Readable):
            raise UsageError(
                f"{type(self).__name__}({name!r}, {_given(source)}): pass a source that can be read from a "
                f"cursor{_meant(source)}"
            )
        check_name(name, "scan")
        self.isolate = isolate
        self._following: dict[tuple[str, float, float | None], Following] = {}
        self.name = name
        self.source = source
        self.every = Every.of(every)
        self._retry = retry
        self._converge: Convergence | None = None
        self.pipeline = Pipeline(name, **options)
        self.pipeline.home = self

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self.source!r}>"

    # -- defining -----------------------------------------------------------------------------------------------

    @overload
    def handler(
        self, function: AnyFunction, *, initial: Any = NOTHING, executor: Where | None = None
    ) -> AnyFunction: ...

    @overload
    def handler(
        self, function: None = None, *, initial: Any = NOTHING, executor: Where | None = None
    ) -> Callable[[AnyFunction], AnyFunction]: ...

    def handler(
        self, function: Function | None = None, *, initial: Any = NOTHING, executor: Where | None = None
    ) -> Any:
        """Make a function the handler of the rows: `(rows)`, `(rows, acc) -> acc`, or a generator `(partition)`. Each
        may also take an `hf.Context` and, in an `hf.Scan`, resources after a `*`.

        Args:
            initial: The accumulator to begin with; by default the empty value of its annotation.
            executor: `"threads"` (the default) or `"processes"`.
        """

        def register(given: Function) -> Function:
            stage = PartitionStage(Handler(given, initial=initial), self.source, self.every, retry=self._retry,
                               executor=executor, isolate=self.isolate)  # fmt: skip
            stage.follows = self.follows
            stage.runners, stage.runs_there = partial(runners_of, stage), partial(runner_there, stage)
            self.pipeline.stages[:] = [stage]
            self._following.clear()
            return given

        return register if function is None else register(function)

    @overload
    def resource(self, function: AnyFunction, /) -> AnyFunction: ...

    @overload
    def resource(self, *, name: str | None = None, scope: Scope = "run") -> Callable[[AnyFunction], AnyFunction]: ...

    def resource(self, function: Any = None, **options: Any) -> Any:
        """Make a function the opener of a resource, which the handler takes as a parameter of that name after a `*`. An
        `hf.Follow` refuses resources."""
        return self.pipeline.resource(**options) if function is None else self.pipeline.resource(function)

    def converge(self, function: Converging) -> Converging:
        """Register the function that combines the accumulators of all partitions: `(parts) -> result`. Its result is
        recorded; it is called again only if the accumulators change."""
        self._converge = Convergence(function)
        return function

    def on_failure(self, function: FailureHook) -> FailureHook:
        """Register a function to be called with the `hf.DeadLetter` of each partition and each row that this process
        buries, once that is durable."""
        return self.pipeline.on_failure(function)

    def plan(self, batch: str | None = None, *, workers: int | None = None, **options: Any) -> Plan:
        """Return what a run would do with every partition, and why. It changes nothing."""
        self._stage()
        name = check_name(batch if batch is not None else self.name, "batch")
        return plan.plan(self, name, workers=workers, **options)

    def _stage(self) -> PartitionStage:
        if not self.pipeline.stages:
            raise UsageError(f"scan {self.name!r} has no handler: define one with @{self.name}.handler")
        stage = self.pipeline.stages[0]
        assert isinstance(stage, PartitionStage)
        return stage

    def _noted(self, run: Report, batch: Batch) -> Report:
        """Return the report with notes that matter before its result is used."""
        notes = (*map(str, remarks(self.pipeline.store, batch)), *grown(self.source, self.pipeline.store, batch))
        return replace(run, warnings=(*run.warnings, *notes)) if notes else run

    def _known(self, name: str) -> Batch:
        (found,) = self.pipeline.store.batches(name)
        return found


class Scan(SourceWalk):
    """A scan: reads a source in the order of its cursor to the end, in partitions that run in parallel.

    >>> from holdfast.testing.rows import Rows
    >>> totals = Scan("inventory", Rows([{"price": 2}, {"price": 3}]), store="memory:")
    >>> @totals.handler
    ... def add(rows, acc: int) -> int:
    ...     return acc + sum(row["price"] for row in rows)
    >>> totals.run(progress=False).result
    5

    Args:
        name: The name of the scan, and of its batch unless `run(batch=…)` names one.
        source: A source with a cursor, such as `hf.Csv`, `hf.Table`, or any `hf.Readable`.
        every: How often a checkpoint is made: after a number of rows, after a time such as `"5s"`, or `"auto"`.
        partitions: How many partitions the source is split into, which run in parallel.
        store: A path, a URL or an open store. The default is `$HOLDFAST_STORE`, else `.holdfast/state.db`.
        retry: How often a failing group of rows is tried, an `hf.Retry`.
        events: Where events are sent.
        isolate: True to find a row that fails or kills the process, and bury it alone.
        allow_empty: True if a source without rows is fine.
    """

    follows = False

    def __init__(
        self,
        name: str,
        source: Readable,
        *,
        every: Said = 1000,
        partitions: int = 1,
        store: str | Path | Store | None = None,
        retry: Retry | None = None,
        events: Sequence[Target] | Target = (),
        isolate: bool = False,
        allow_empty: bool = False,
    ) -> None:
        if type(partitions) is not int or partitions < 1:
            raise UsageError(f"Scan({name!r}, partitions={partitions!r}): a whole number, 1 or more")
        self.partitions = partitions
        super().__init__(name, source, every=every, retry=retry, isolate=isolate, store=store, events=events,
                         allow_empty=allow_empty)  # fmt: skip

    def run(self, batch: str | None = None, *, workers: int | None = None, deadline: Duration | datetime | None = None,
            lease: Duration = "30s", executor: Executor | Where | None = None,
            progress: bool | Callable[[Figures], None] | None = None, accept_source: str | None = None,
            heartbeat: Duration | None = None, on_code_change: OnCodeChange | None = None,
            budget: Budget | None = None, signals: Signals = "raise", patience: Duration = "5m",
            allow_empty: bool | None = None) -> ScanReport:  # fmt: skip
        """Scan the source, or continue at its checkpoints: rows before a checkpoint are not handled again.

        It raises `hf.SourceChanged` if the source is not the one that the scan began with, `hf.NotConverged` if
        `converge` fails, and the errors of `Pipeline.run`.

        Args:
            batch: The name of the batch; by default that of the scan.
            workers: How many partitions run at the same time; by default all of them.
            deadline: The end of this run: a time from now, or an aware `datetime`. Run again to continue.
            lease: How long a claim lasts if this process dies and no other process can see that.
            executor: `"threads"`, `"processes"` or a `concurrent.futures.Executor`.
            progress: False for none, or a function that is called with an `hf.Figures`.
            accept_source: A reason: continue although the source has changed.
            heartbeat: How often leases are renewed; by default three times per lease.
            on_code_change: What to do if the handler has changed: `"keep"` the work done, or `"refuse"`.
            budget: The most the scan may cost, checked at every checkpoint.
            signals: What Ctrl-C does, as in `Pipeline.run`.
            patience: How long to wait for a source that does not answer.
            allow_empty: True if a source without rows is fine.
        """
        stage, name = self._stage(), check_name(batch if batch is not None else self.name, "batch")
        check_signals(signals)
        heartbeat_seconds(lease, heartbeat)  # refused before anything is written
        if on_code_change == "rerun":
            raise UsageError(
                f'scan {self.name!r} does not take on_code_change="rerun": its partitions are at their checkpoints. '
                f"Reset them ({command('reset', name, options='--from-start')}), or scan under a new batch name"
            )
        notes = base.asked(lambda: self._compared(name, stage, accept_source), self._outage(patience, deadline))
        known = find_batch(self.pipeline.store, name)
        ranges = None
        if known is None or known.ingested_at is None:
            ranges = plan.Ranges(self, BorderSearch(self.pipeline.store, name))
        try:
            run = self.pipeline.run(ranges, name, key="range", executor=executor, progress=progress,
                                    on_code_change=on_code_change,
                                    workers=workers if workers is not None else self.partitions, deadline=deadline,
                                    lease=lease, heartbeat=heartbeat, budget=budget, signals=signals,
                                    patience=patience, allow_empty=allow_empty)  # fmt: skip
        except Interrupted as error:
            error.report = self._ended(name, error.report, notes)
            raise
        return self._ended(name, run, notes)

    def _outage(self, patience: Duration, deadline: Duration | datetime | None) -> base.Outage:
        control = _control(deadline)

        def is_over() -> bool:
            return control.ends_within(0.0)

        return base.Outage(seconds(patience, "patience"), is_over, base.Notice(repr(self.source)))

    def _compared(self, name: str, stage: PartitionStage, accept_source: str | None) -> tuple[str, ...]:
        """Refuse another source than the one the batch began with; return notes about a source that has grown."""
        self.source.describe()  # a table fails here if it does not exist
        known = find_batch(self.pipeline.store, name)
        if known is None:
            return ()
        actor = owners.new_owner()
        if accept_source:  # a reason does not make another file the old one, but rows may be corrected in it
            accept_corrected(self.source, self.pipeline.store, known, accept_source, actor)
            refuse_changed_batch(self.source, self.pipeline.store, known)
        follow.accept_source(self.pipeline, known, stage, accept_source, actor)
        return refuse_changed_batch(self.source, self.pipeline.store, known)

    def report(self, batch: str | None = None) -> ScanReport:
        """Return the report of the scan as it is now, without running anything or calling `converge`."""
        name = check_name(batch if batch is not None else self.name, "batch")
        found = self._known(name)
        run = self._noted(self.pipeline.report(name), found)
        gathered = gather(self.pipeline.store, found)
        made = self._converge if gathered.is_whole else None
        there = made.found(self.pipeline.store, found, gathered.parts) if made is not None else None
        if made is not None and there is None:
            why = f"{made.what} was not called with its parts yet: run again."
            return ScanReport(run, gathered.rows, gathered.decoded(), unconverged=why, run_again=True)
        return self._told(run, gathered, None if there is None else there.result)

    def _ended(self, name: str, run: Report, notes: tuple[str, ...] = ()) -> ScanReport:
        """Bring the results together after a run, once all partitions are done, and not before."""
        found = self._known(name)
        run = self._noted(replace(run, warnings=(*run.warnings, *notes)) if notes else run, found)
        gathered = gather(self.pipeline.store, found)
        if self._converge is None or not gathered.is_whole:
            return self._told(run, gathered, None)
        try:
            made = self._converge.ensure(self.pipeline.store, self.pipeline.name, found, gathered)
        except NotConverged as error:
            error.report = ScanReport(run, gathered.rows, gathered.decoded(), None, str(error), run_again=True)
            raise
        return self._told(run, gathered, made.result)

    def _told(self, run: Report, gathered: Gathered, result: Any) -> ScanReport:
        if not gathered.is_whole:
            made = self._converge if run.state.startswith("complete") else None
            lacks = f"{made.what} was not called: {gathered.missing()}." if made is not None else ""
            return ScanReport(run, gathered.rows, unconverged=lacks, run_again=run.run_again)
        parts = gathered.decoded()
        if self._converge is None and len(parts) == 1:
            (result,) = gathered.decoded()
        return ScanReport(run, gathered.rows, parts, result, run_again=run.run_again)


class Follow(SourceWalk):
    """A follower of a source that grows: every tick handles the new rows and commits them, checkpoint by checkpoint.

    >>> from holdfast.testing.rows import Rows
    >>> orders = Follow("orders", Rows([{"price": 2}, {"price": 3}]), store="memory:")
    >>> @orders.handler
    ... def add(rows, acc: int) -> int:
    ...     return acc + sum(row["price"] for row in rows)
    >>> orders.tick().rows
    2

    Args:
        name: The name of the follower, and of its batch unless a call names one.
        source: A source with a cursor that grows, such as `hf.Table`, `hf.Folder` or `hf.Objects`.
        every: How often a checkpoint is made within a tick: after a number of rows, a time, or `"auto"`.
        store: A path, a URL or an open store.
        retry: How often a failing group of rows is tried, an `hf.Retry`.
        events: Where events are sent.
        isolate: True to find a row that fails or kills the process, and bury it alone.
    """

    follows = True
    partitions = 1

    def __init__(
        self,
        name: str,
        source: Readable,
        *,
        every: Said = 1000,
        store: str | Path | Store | None = None,
        retry: Retry | None = None,
        events: Sequence[Target] | Target = (),
        isolate: bool = False,
    ) -> None:
        if isinstance(source, LineFile | Parquet):
            raise UsageError(
                f"Follow({name!r}, {source!r}): a file cannot be followed: write new rows to files of their own and "
                "follow the folder (hf.Folder), or scan each file under a batch name of its own"
            )
        # It may have nothing to do for months, which does not make it an orphan.
        super().__init__(name, source, every=every, retry=retry, isolate=isolate, store=store, events=events,
                         orphan_after=NO_ORPHAN)  # fmt: skip

    def tick(self, batch: str | None = None, *, deadline: Duration | datetime | None = None, lease: Duration = "30s",
             accept_source: str | None = None, heartbeat: Duration | None = None,
             signals: Signals = "raise") -> Tick:  # fmt: skip
        """Look at the source once: handle the new rows, and commit them.

        Args:
            batch: The name of the batch; by default that of the follower.
            deadline: When the tick must be over: a time from now, or an aware `datetime`.
            lease: How long the claim lasts if this process dies.
            accept_source: A reason: continue although the source has changed.
            heartbeat: How often the lease is renewed.
            signals: What Ctrl-C does, as in `Pipeline.run`.
        """
        self._stage()
        check_signals(signals)
        name = check_name(batch if batch is not None else self.name, "batch")
        control = _control(deadline)
        with self._delivering(control):
            return self._followed(name, lease, accept_source, heartbeat).tick(control, signals)

    def run(self, batch: str | None = None, *, poll: Duration, deadline: Duration | datetime | None = None,
            lease: Duration = "30s", progress: bool | Callable[[Tick], None] | None = None,
            accept_source: str | None = None, heartbeat: Duration | None = None,
            signals: Signals = "raise") -> Tick:  # fmt: skip
        """Tick every `poll` until the deadline or a signal, and return the sum of all ticks.

        Args:
            batch: The name of the batch; by default that of the follower.
            poll: The time between two ticks.
            deadline: The end of this run: a time from now, or an aware `datetime`.
            lease: How long the claim lasts if this process dies.
            progress: True to print a line for each tick that found something, or a function that is called with it.
            accept_source: A reason: continue although the source has changed.
            heartbeat: How often the lease is renewed.
            signals: What Ctrl-C does, as in `Pipeline.run`.
        """
        self._stage()
        name = check_name(batch if batch is not None else self.name, "batch")
        check_signals(signals)
        every, control = seconds(poll, "poll"), _control(deadline)
        with self._delivering(control):
            show = progress if callable(progress) else follow.show_line if progress else _hide
            return self._followed(name, lease, accept_source, heartbeat).stay(every, control, show, signals)

    def _delivering(self, control: Control) -> AbstractContextManager[None]:
        """Deliver events, such as those of buried rows, beside a tick."""
        pipeline, deadline = self.pipeline, None if control.deadline is NEVER else control.deadline.at
        return delivering(lambda: pipeline.store, pipeline.name, pipeline.receivers, deadline)

    def _followed(
        self, batch: str, lease: Duration, accept: str | None, heartbeat: Duration | None = None
    ) -> Following:
        """Return the follower, opened once in this process, and again if a changed source is accepted."""
        self._refuse_resources()
        held, beat = lease_seconds(lease), heartbeat_seconds(lease, heartbeat)
        told = (batch, held, beat)
        if accept is not None or told not in self._following:
            self._following[told] = Following(self.pipeline, self._stage(), batch=batch, lease=held, accept=accept,
                                              heartbeat=beat)  # fmt: skip
        return self._following[told]

    def _refuse_resources(self) -> None:
        """Refuse resources: a tick is not a run, so nothing would close them."""
        taken = self._stage().parameters
        names = [*taken.needed, *(name for name in taken.optional if name in self.pipeline.resources)]
        if names:
            raise UsageError(
                f"scan {self.name!r} follows its source, so its handler cannot take resources ({', '.join(names)}): "
                "keep the client at the top of the module; the event loop outlives ticks"
            )

    def report(self, batch: str | None = None) -> ScanReport:
        """Return what it has accumulated so far, and what `converge` makes of that, without handling any row."""
        name = check_name(batch if batch is not None else self.name, "batch")
        found = self._known(name)
        run = self._noted(self.pipeline.report(name), found)
        return self._so_far(run, found, gather(self.pipeline.store, found))

    def _so_far(self, run: Report, batch: Batch, gathered: Gathered) -> ScanReport:
        """Return the accumulator of a scan that follows, and the results of redriven rows. It has no end at which that
        could be recorded, so `converge` is called with the present results."""
        at = next(iter(self.pipeline.store.checkpoints(batch.id, lo=0, hi=1)), None)
        stored = at.acc if at is not None else None
        parts = (self._stage().handler.decode(stored), *gathered.decoded())
        result = self._stage().handler.decode(stored) if len(parts) == 1 else None
        if self._converge is not None:
            fresh = (self._stage().handler.decode(stored), *gathered.decoded())
            result = self._converge.call(fresh, (self.pipeline.name, batch.name))
        return ScanReport(follow.told(run, gathered), gathered.rows, parts, result, run_again=run.run_again)

    def redriven(self, batch: str | None = None, *, lease: Duration = "30s") -> int:
        """Handle redriven rows and no others, and return how many were handled. Every tick does so as well."""
        name = check_name(batch if batch is not None else self.name, "batch")
        return self._followed(name, lease, None).redriven(Control(1))


def _control(deadline: Duration | datetime | None) -> Control:
    return Control(1, None if deadline is None else moment(deadline))


FILES = {".csv": "Csv", ".tsv": "Csv", ".jsonl": "JsonLines", ".ndjson": "JsonLines", ".parquet": "Parquet"}


def _given(source: object) -> str:
    """Return the argument for a message: of a URL only its beginning, because it may contain a password."""
    if not isinstance(source, str | Path):
        return type(source).__name__
    scheme, is_url, _ = str(source).partition("://")
    return repr(f"{scheme}://…" if is_url else str(source))


def _meant(source: object) -> str:
    """Return a suggestion for what was passed instead of a source."""
    if isinstance(source, str | Path):
        if "://" in str(source):
            kind = "Objects(…)" if is_place(str(source)) else "Table(url, table, …), hf.Query or hf.Pages"
            return f": pass hf.{kind}"
        named = FILES.get(Path(source).suffix.lower(), "Folder" if Path(source).is_dir() else "")
        return f": pass hf.{named}({str(source)!r})" if named else ", such as hf.Csv(path) or hf.Folder(path)"
    if isinstance(source, Iterable):
        return ", such as hf.Csv(path); items in memory are for an hf.Pipeline"
    return ", such as hf.Csv(path)"
