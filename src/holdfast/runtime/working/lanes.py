"""A lane for every stage of a run, and the pools behind them; stages of one kind share a pool."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import UsageError
from holdfast.runtime.define.options import Options
from holdfast.runtime.define.stage import Stage
from holdfast.runtime.engine.resources import Handed, Resources
from holdfast.runtime.scans.burial import Burial
from holdfast.runtime.scans.elsewhere import ProcessRunner
from holdfast.runtime.scans.runner import RangeRunner
from holdfast.runtime.scans.stage import RangeStage
from holdfast.runtime.working import remote
from holdfast.runtime.working.control import Control
from holdfast.runtime.working.executors import BorrowedProcesses, BorrowedThreads
from holdfast.runtime.working.lane import Lane, Slots
from holdfast.runtime.working.ledger import Ledger
from holdfast.runtime.working.loop import Loop
from holdfast.runtime.working.pools import Finished, Pool, Threads
from holdfast.runtime.working.processes import Processes
from holdfast.runtime.working.runner import StageRunner

if TYPE_CHECKING:
    from holdfast.runtime.define.pipeline import PipelineDefinition


AT_ONCE_SECONDS = 1.0
"""What a resource may take to close where the run was told to end at once."""


@contextmanager
def open_lanes(
    pipeline: "PipelineDefinition",
    options: Options,
    control: Control,
    finished: Finished,
    ledger: Ledger,
    resources: Resources,
) -> Iterator[Sequence[Lane]]:
    """The lanes of a run; at its end their pools are closed, then its resources."""
    stages = pipeline.stages
    if any(isinstance(stage, RangeStage) and stage.follows for stage in stages):
        raise UsageError(
            f"{pipeline.name!r} follows its source, which has no end: call tick(), or run(poll=…) of the scan"
        )
    kinds = [_kind(stage, options) for stage in stages]
    needed = _needed_here(stages, kinds, options, resources)
    pools = {kind: _pool(kind, pipeline, options, finished, resources) for kind in dict.fromkeys(kinds)}
    ahead = 2 if _may_run_ahead(set(kinds), options) and not stages[0].takes_ranges else 1
    slots = Slots(options.workers * ahead, one_by_one=options.cap is not None)
    lanes = []
    for index, (stage, kind) in enumerate(zip(stages, kinds, strict=True)):
        runner: StageRunner
        told: dict[str, Any] = {"pipeline": pipeline.name, "batch": options.batch, "now": pipeline.store.now,
                                "stopping": lambda: control.stopping, "loan": resources.loan}  # fmt: skip
        if isinstance(stage, RangeStage):
            runner = _range_runner(stage, pipeline, options, finished, ledger, resources.of(stage), told)
        else:
            runner = StageRunner(stage, stages[index - 1] if index else None, handed=resources.of(stage), **told)
        lanes.append(Lane(index, runner, pools[kind], slots, control, finished, partial(resources.open, needed)))
    try:
        yield lanes
    finally:
        for pool in pools.values():
            pool.close()
        for lane in lanes:
            lane.runner.close()
        resources.close(*[AT_ONCE_SECONDS] * control.at_once)


def _needed_here(stages: Sequence[Stage], kinds: Sequence[str], options: Options, resources: Resources) -> list[str]:
    """The names of all resources that are opened in this process; worker processes open theirs."""
    names: list[str] = []
    for stage, kind in zip(stages, kinds, strict=True):
        if kind == "executor":
            _refuse_unclosed(stage, options, resources)
        names += () if _in_processes(stage, options) else resources.of(stage).names
    return names


def _refuse_unclosed(stage: Stage, options: Options, resources: Resources) -> None:
    """On an executor of the user's nobody could close what belongs to its threads, or to its processes."""
    scopes = resources.scopes(stage)
    if "thread" in scopes or (scopes and not isinstance(options.executor, ThreadPoolExecutor)):
        raise UsageError(
            f"stage {stage.name!r} takes resources that nobody could close on an executor of yours: let it run on "
            "threads or on processes of the run (executor='threads' or 'processes')"
        )


def _range_runner(stage: RangeStage, pipeline: "PipelineDefinition", options: Options, finished: Finished,
                  ledger: Ledger, handed: Handed, told: dict[str, Any]) -> RangeRunner:  # fmt: skip
    """Ranges run on threads; those that were asked to be in processes are waited for by a thread each."""
    burial = Burial(pipeline.store, options.batch, ledger.admit)
    told = {**told, "finished": finished, "burial": burial, "patience": options.patience}
    if _in_processes(stage, options):
        return ProcessRunner(stage, target=remote.address(stage.home), **told)
    return RangeRunner(stage, handed=handed, **told)


def _in_processes(stage: Stage, options: Options) -> bool:
    chosen = stage.executor if stage.executor is not None else options.executor
    return chosen == "processes" and not stage.is_async


def _may_run_ahead(kinds: set[str], options: Options) -> bool:
    """Whether a worker that is done with an item finds its next one waiting, so that it need not wait for the disk.
    Not where what an item cost decides about the next one, and not where pools share their workers."""
    return kinds in ({"threads"}, {"loop"}) and options.cap is None


def _kind(stage: Stage, options: Options) -> str:
    if stage.is_async:
        return "loop"
    if stage.takes_ranges:
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
