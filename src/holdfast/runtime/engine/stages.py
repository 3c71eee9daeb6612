"""The stages of a run as its threads see them: each with its runner, its pool, its assignments in flight, and its
outputs."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from holdfast.core.errors import StoreError, UsageError
from holdfast.core.limits import SLOW_SECONDS
from holdfast.core.model import Item, Kind
from holdfast.core.outcome import Outcome
from holdfast.core.settle import Settled
from holdfast.runtime.define.options import Options
from holdfast.runtime.define.stage import Stage
from holdfast.runtime.engine import remote
from holdfast.runtime.engine.assignment import Assignment, clock
from holdfast.runtime.engine.control import Control, HandedOn, Role
from holdfast.runtime.engine.dispatch import PoolKind, PoolLoad, Slots, StageBreaker, StageFacts, StageQueue
from holdfast.runtime.engine.exchange import Answer
from holdfast.runtime.engine.ledger import Ledger
from holdfast.runtime.engine.pools import BorrowedProcesses, BorrowedThreads, Finished, Loop, Pool, Threads, Unable
from holdfast.runtime.engine.processes import Processes
from holdfast.runtime.engine.resources import Resources
from holdfast.runtime.engine.runner import Runner, Setting, StageRunner
from holdfast.runtime.sinks.base import Evidence
from holdfast.stores.base import Store

if TYPE_CHECKING:
    from holdfast.runtime.define.pipeline import PipelineDefinition

log = logging.getLogger("holdfast.stages")

INLINE_PATIENCE = SLOW_SECONDS / 2
"""The time on the committing thread after which handlers count as slower than measured."""
LOOP_PATIENCE = 2.0
"""How late the event loop may be before a handler counts as blocking it."""


class StageDriver:
    """One stage: hands portions to its pool, watches assignments in flight, and makes its outputs durable."""

    def __init__(
        self, queue: StageQueue, runners: Mapping[Kind, Runner], pool: Pool, control: Control, finished: Finished,
        open_resources: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.queue = queue
        self.index = queue.index
        self.runners = runners
        """The runner for chunks of each kind."""
        self.runner = next(iter(runners.values()))
        self.stage: Stage = self.runner.stage
        self.pool = pool
        self.control = control
        self.finished = finished
        self.open_resources = open_resources
        """Opens the resources of all stages before the first item of the run begins: a failure then costs nothing."""
        for each in runners.values():
            each.is_too_late = self._is_too_late
        self.active: dict[int, Assignment] = {}
        self.role: Role | None = None
        """Moves to another thread when a handler on the committing thread is slow."""
        self._begun = False
        self._unpublished = False
        """Some outputs did not get their final names. That was logged once; the end of the run reports it again."""

    # -- starting -------------------------------------------------------------------------------------------------

    def start(self, work: Assignment) -> None:
        """Hand items over to the pool, or run them at once on this thread."""
        if not self._begun:
            self._begun = True
            self.open_resources()
            if self.stage.hooks.before.functions:
                self.stage.hooks.before.call(self.runner.batch, self.runner.loan)
        if work.inline:
            self._run_here(work)
            return
        assert work.lease is not None
        if work.lease.lease.expires > self.runner.now():
            work.valid = work.lease.lease.expires
        self.active[id(work)] = work
        self.pool.submit(self.runners[work.kind], work)

    def _is_too_late(self) -> bool:
        """Return whether the deadline would cut off a handler that begins now; called by the threads of the pool."""
        pace = self.queue.pace
        seconds = pace.mean if pace.known else self.runner.took
        return not self.stage.work.has_checkpoints and self.control.ends_within(seconds)

    def _run_here(self, work: Assignment) -> None:
        """Run items on this thread. If they turn out to be slow, the rest is left for other threads. If one item is so
        slow that another thread took the role, this thread hands in the outcome and leaves."""
        work.patience = INLINE_PATIENCE
        self.control.inline = work
        if self.control.stopping:
            work.cut = True
        if self.role is not None:
            self.role.lend(self, work)
        trouble = None
        try:
            self.runners[work.kind].run(work)
        except BaseException as error:  # noqa: BLE001 - raised below, on the thread that has the role by then
            trouble = error
        answer = work.answer()
        if work.is_split:
            self._leave(answer, trouble)
        self.control.inline = None
        if self.role is not None:
            self.role.keep()
        if trouble is not None:
            raise trouble
        self.finished.put(answer)

    def _leave(self, answer: Answer | None, trouble: BaseException | None) -> NoReturn:
        """Hand in the outcome that the thread with the role waits for, and touch nothing else."""
        try:
            if isinstance(self.pool, Threads):
                self.pool.take_back()
        except BaseException as error:  # noqa: BLE001 - no thread can be started for the items waiting in the pool
            trouble = trouble or error
        if trouble is not None:
            self.finished.put(Unable(trouble))
        elif answer is not None:
            self.finished.put(answer)
        raise HandedOn

    def handed_on(self, work: Assignment, answer: Answer) -> None:
        """Account for a slow item, on the thread that took the role: the item occupies its slot and a worker until it
        ends, and its stage does not run inline again."""
        self.queue.surprise(work)
        self.active[id(work)] = work
        if isinstance(self.pool, Threads):
            self.pool.lend()
        self.control.pace_ingest(False)
        self.finished.put(answer)

    def split_slow(self) -> Iterator[Answer]:
        """Yield the outcomes finished before a slow item on another thread, and the items waiting behind it."""
        if isinstance(self.pool, Threads | BorrowedThreads):
            since = clock() - SLOW_SECONDS
            slow = [work.split() for work in self.active.values() if work.is_slow(since)]
            yield from (answer for answer in slow if answer is not None)

    def until_slow(self) -> float:
        """Return how long until one of those assignments may have to be split."""
        if not isinstance(self.pool, Threads | BorrowedThreads):
            return math.inf
        oldest = min((work.started for work in self.active.values() if work.is_slow(math.inf)), default=math.inf)
        return oldest + SLOW_SECONDS - clock()

    @property
    def in_handlers(self) -> int:
        """The items that were handed over and have not come back; read by the thread that shows progress."""
        inline = self.control.inline
        here = [] if inline is None or inline.stage != self.index else [inline]
        return sum(len(work.items) - work.came_back for work in [*self.active.values(), *here])

    # -- finishing ------------------------------------------------------------------------------------------------

    def forget(self, work: Assignment) -> None:
        """Forget an assignment whose items have all come back."""
        self.active.pop(id(work), None)

    def overdue(self) -> Iterator[Answer]:
        """Yield, for assignments whose handler does not answer, the outcomes they have, with the current item as timed
        out, and the items that were not begun."""
        timeout = self.stage.timeout
        if timeout is None or not self.active:
            return
        if isinstance(self.pool, Loop):
            self._watch_loop(self.pool, timeout)
            return
        if isinstance(self.pool, BorrowedProcesses):
            return  # time waiting in the user's queue cannot be told from running time
        grace = self._grace()
        for work in [w for w in self.active.values() if w.started and clock() - w.started > timeout + grace]:
            work.abandoned = True
            self.pool.abandon(work)
            first, last = work.owed
            outcomes = list(work.outcomes)
            if len(outcomes) < last:
                outcomes.append(self.runner.timed_out(work.items[len(outcomes)], work, work.started))
            yield Answer(work, outcomes[first:], work.items[len(outcomes) : last])

    def cut_off(self) -> Iterator[Answer]:
        """Yield, for each assignment of a run that ends at once, the outcomes it has, with the cost of the current
        items, and the items that were not begun. Processes report nothing here."""
        for work in list(self.active.values()) if isinstance(self.pool, Loop | Threads | BorrowedThreads) else ():
            work.abandoned = True
            if isinstance(self.pool, Loop):
                running = self.pool.at_work(work)
                self.pool.abandon(work)
                yield Answer(work, [cut for item in running if (cut := self._cut_off(item, work, work.ready_at))])
                continue
            is_answered = work.is_answered  # the answer is on its way, but nothing receives it any more
            if not is_answered:
                self.pool.abandon(work)
            first, last = work.owed
            outcomes = list(work.outcomes)
            if len(outcomes) < last and work.started and not is_answered:
                cut = self._cut_off(work.items[len(outcomes)], work, work.started)
                outcomes += [] if cut is None else [cut]
            yield Answer(work, outcomes[first:], work.items[len(outcomes) : last])

    def _cut_off(self, item: Item, work: Assignment, began: float) -> Outcome | None:
        return self.runners[work.kind].cut_off(item, work, began)

    def _watch_loop(self, loop: Loop, timeout: float) -> None:
        """Stop the run if a handler keeps the event loop from turning; otherwise the loop times out its handlers
        itself."""
        item = loop.blocked_by(timeout + LOOP_PATIENCE)
        if item is not None:
            raise UsageError(
                f"the async handler of item {item.key!r} blocks the event loop, so its timeout cannot interrupt it: "
                "await what takes long, or write a plain function; nothing is lost, run again to continue"
            )

    def _grace(self) -> float:
        """Return how long to wait beyond a timeout. Worker processes interrupt their handlers themselves; a process is
        ended only if that fails. The time they take to start shows how quick the machine is."""
        return 1.0 + 3.0 * self.pool.start_seconds if isinstance(self.pool, Processes) else 0.0

    def give_back(self) -> None:
        """Begin nothing more, because the run stops: an assignment is left between two items."""
        self.pool.give_back()
        for work in self.active.values():
            work.cut = True

    def abandon_all(self) -> None:
        """End the run at once, without waiting for assignments in flight."""
        self.pool.give_back()
        for work in self.active.values():
            work.abandoned = True
            self.pool.abandon(work)

    def look_again(self) -> None:
        """Look for unrecorded outputs again: a chunk was claimed, and its last owner may have left some."""
        if self.stage.sink is not None:
            self.stage.sink.look_again()

    # -- outputs in files -------------------------------------------------------------------------------------------

    def sync_outputs(self, batch: Sequence[Settled]) -> None:
        """Make the staged outputs of a commit durable, before it is written."""
        if self.stage.sink is not None:
            found = [record for settled in batch for record in self._evidence(settled)]
            if found:
                try:
                    self.stage.sink.sync_folders(found)
                except OSError as error:
                    raise StoreError(
                        f"{len(found)} outputs of stage {self.stage.name!r} could not be made durable: {error}; "
                        "no acknowledged work is lost: check the disk, then run again"
                    ) from error

    def publish(self, landed: Sequence[Settled]) -> None:
        """Give outputs their final names, after their commit. An output for which this fails is durable under its
        staged name, and gets its final name the next time it is inspected."""
        if self.stage.sink is not None:
            found = [record for settled in landed for record in self._evidence(settled)]
            try:
                self.stage.sink.publish(found)
            except OSError as error:
                if not self._unpublished:
                    self._unpublished = True
                    log.warning(
                        "outputs of stage %s are safe, but did not get final names yet: %s", self.stage.name, error
                    )

    def _evidence(self, settled: Settled) -> list[Evidence]:
        return [Evidence.decode(o.file) for o in settled.outputs if o.file is not None and o.stage == self.index]


AT_ONCE_SECONDS = 1.0
"""How long a resource may take to close if the run ends at once."""


@contextmanager
def open_stages(
    pipeline: "PipelineDefinition",
    store: Store,
    options: Options,
    control: Control,
    finished: Finished,
    ledger: Ledger,
    resources: Resources,
) -> Iterator[Sequence[StageDriver]]:
    """Open the stages of a run; at its end their pools are closed, and then its resources."""
    stages = pipeline.stages
    kinds = [_kind(stage, options) for stage in stages]
    needed = _needed_here(stages, kinds, options, resources)
    pools = {kind: _pool(kind, pipeline, options, finished, resources) for kind in dict.fromkeys(kinds)}
    ahead = 2 if _may_run_ahead(set(kinds), options) and not stages[0].work.travels_alone else 1
    loads = {kind: PoolLoad(_kind_of_pool(pool)) for kind, pool in pools.items()}
    slots = Slots(options.workers * ahead, one_by_one=options.cap is not None)
    drivers = []
    for index, (stage, kind) in enumerate(zip(stages, kinds, strict=True)):
        setting = Setting(
            pipeline=pipeline, store=store, options=options, stopping=lambda: control.stopping,
            handed=resources.of(stage), loan=resources.loan, finished=finished, admitted=ledger.admit,
            in_processes=_in_processes(stage, options),
        )  # fmt: skip
        runners = _runners(stage, stages[index - 1] if index else None, setting)
        queue = _queue(index, next(iter(runners.values())), loads[kind], slots)
        drivers.append(StageDriver(queue, runners, pools[kind], control, finished, partial(resources.open, needed)))
    try:
        yield drivers
    finally:
        for pool in pools.values():
            pool.close()
        for driver in drivers:
            for work in driver.runners.values():
                work.close()
        resources.close(*[AT_ONCE_SECONDS] * control.at_once)


def _needed_here(stages: Sequence[Stage], kinds: Sequence[str], options: Options, resources: Resources) -> list[str]:
    """Return the names of the resources opened in this process; worker processes open their own."""
    names: list[str] = []
    for stage, kind in zip(stages, kinds, strict=True):
        if kind == "executor":
            _refuse_unclosed(stage, options, resources)
        names += () if _in_processes(stage, options) else resources.of(stage).names
    return names


def _refuse_unclosed(stage: Stage, options: Options, resources: Resources) -> None:
    """Refuse resources that belong to threads or processes of an executor of the user: nothing could close them
    there."""
    scopes = resources.scopes(stage)
    if "thread" in scopes or (scopes and not isinstance(options.executor, ThreadPoolExecutor)):
        raise UsageError(
            f"stage {stage.name!r} takes resources that could not be closed on your own executor: let it run on "
            "threads or processes of the run (executor='threads' or 'processes')"
        )


def _runners(stage: Stage, previous: Stage | None, setting: Setting) -> Mapping[Kind, Runner]:
    """Return the runner for chunks of each kind; a stage supplies its own if its items do not run one after the
    other."""
    if stage.runners is not None:
        found: Mapping[Kind, Runner] = stage.runners(setting)
        return found
    runner = StageRunner(stage, previous, pipeline=setting.pipeline.name, batch=setting.options.batch,
                         now=setting.store.now, stopping=setting.stopping, handed=setting.handed,
                         loan=setting.loan)  # fmt: skip
    runner.store = setting.store
    return {Kind.ITEMS: runner}


def _in_processes(stage: Stage, options: Options) -> bool:
    chosen = stage.executor if stage.executor is not None else options.executor
    return chosen == "processes" and not stage.is_async


def _may_run_ahead(kinds: set[str], options: Options) -> bool:
    """Return whether the next item waits for a worker, so that the worker need not wait for the disk. It does not if
    the cost of an item decides about the next one, or if pools share their workers."""
    return kinds in ({"threads"}, {"loop"}) and options.cap is None


def _kind(stage: Stage, options: Options) -> str:
    if stage.is_async:
        return "loop"
    if stage.runners is not None:
        return "threads"
    chosen = stage.executor if stage.executor is not None else options.executor
    if chosen is None or chosen == "threads":
        return "threads"
    return "processes" if chosen == "processes" else "executor"


def _pool(
    kind: str, pipeline: "PipelineDefinition", options: Options, finished: Finished, resources: Resources
) -> Pool:
    size, given = options.workers, options.executor
    if kind == "loop":
        return Loop(size, finished, resources.home)
    if kind == "threads":
        return Threads(size, finished, resources.leave_thread)
    if kind == "executor" and isinstance(given, ThreadPoolExecutor):
        return BorrowedThreads(given, finished)
    target = remote.address(pipeline)
    if kind == "processes":
        needing = [index for index, stage in enumerate(pipeline.stages)
                   if _in_processes(stage, options) and resources.of(stage).names]  # fmt: skip
        return Processes(size, target, finished, needing)
    assert isinstance(given, Executor)
    return BorrowedProcesses(given, target, finished)


def _kind_of_pool(pool: Pool) -> PoolKind:
    kinds = {Threads: PoolKind.THREADS, Loop: PoolKind.LOOP, Processes: PoolKind.PROCESSES,
             BorrowedThreads: PoolKind.BORROWED_THREADS, BorrowedProcesses: PoolKind.BORROWED_PROCESSES}  # fmt: skip
    return kinds[type(pool)]


def _queue(index: int, runner: Runner, load: PoolLoad, slots: Slots) -> StageQueue:
    stage = runner.stage
    facts = StageFacts(
        name=stage.name,
        policy=stage.policy,
        maker=stage.maker,
        concurrency=stage.concurrency,
        has_timeout=stage.timeout is not None,
        asks=runner.asks,
        is_bound=not runner.handed.is_fixed,
        adopts=stage.adopter is not None,
        reads_files=runner.reads_files,
        work=stage.work,
    )
    return StageQueue(index, facts, load, slots, StageBreaker(stage.name, stage.rule, stage.policy.defer_within))
