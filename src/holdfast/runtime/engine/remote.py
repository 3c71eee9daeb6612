"""What travels to a worker process and back: the address of a pipeline, a parcel of work, outcomes and questions.

Nothing of the user's is pickled: the child imports the pipeline from where the parent found it.
"""

import importlib
import importlib.util
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from holdfast.core.errors import HoldfastError, UsageError
from holdfast.core.model import Checkpoint, Item, Kind
from holdfast.core.outcome import Outcome
from holdfast.core.settle import Reached
from holdfast.runtime.define.stage import Stage
from holdfast.runtime.engine.assignment import Assignment
from holdfast.runtime.engine.resources import Resources, close_kept
from holdfast.runtime.engine.runner import Runner, StageRunner
from holdfast.runtime.sinks.base import Identity


class Parcel(msgspec.Struct, omit_defaults=True):
    """An assignment as it travels: a slice of items, or a partition of a scan."""

    batch: str
    stage: int
    fence: int
    ready_at: float
    resumed: bool
    items: list[Item]
    replaces: dict[int, Identity] = {}
    """Number -> the older file of an item that was sent back, where it may seem another batch's."""
    kind: Kind = Kind.ITEMS
    at: Checkpoint | None = None
    """Where its item stands, where it has checkpoints."""
    more: bytes = b""
    """What its kind of work has to know besides."""


class Asked(msgspec.Struct, tag=True):
    """A question of a process that waits for the answer; whoever runs that kind of work knows what it means."""

    what: bytes


class CameTo(msgspec.Struct, tag=True):
    """How far the item of a process had come at the end."""

    reached: Reached


Said = Outcome | Asked | CameTo
"""What a process says of a parcel; nothing, once that was all."""


_encode = msgspec.msgpack.Encoder().encode
_parcel = msgspec.msgpack.Decoder(Parcel).decode
_said: Callable[[bytes], Said] = msgspec.msgpack.Decoder(Said).decode
_outcomes = msgspec.msgpack.Decoder(list[Outcome]).decode


def pack(runner: Runner, work: Assignment, more: bytes = b"") -> bytes:
    """Return an assignment as bytes."""
    return _encode(Parcel(runner.batch, work.stage, work.fence, work.ready_at, work.resumed, work.items,
                          runner.own_files(work), work.kind, work.at, more))  # fmt: skip


def unpack(data: bytes) -> Said:
    """Return what came back."""
    return _said(data)


def unpack_all(data: bytes) -> list[Outcome]:
    """Return the outcomes that came back together."""
    return _outcomes(data)


def ready(target: str) -> None:
    """In a worker process, before it gets any work: can it find the pipeline?"""
    find(target)


def run(target: str, data: bytes) -> bytes:
    """In the worker process: find the pipeline, run the items, send the outcomes back."""
    parcel = _parcel(data)
    return _encode(_run(_runner(target, parcel.batch, parcel.stage, _never), parcel, []).outcomes)


def run_and_tell(target: str, data: bytes, pipe: Connection, stopping: Callable[[], bool]) -> None:
    """The same where each outcome is told when it is there, and nothing when that was all. An alarm must not break in
    on the telling: with a timeout, which items have alone, it comes after."""
    parcel, line = _parcel(data), Line(pipe)
    runner = _runner_there(target, parcel, line, stopping)
    if runner.stage.timeout is None:
        work = _run(runner, parcel, ToldOutcomes(line))
        if work.reached is not None:
            line.tell(CameTo(work.reached))
    else:
        for outcome in _run(runner, parcel, []).outcomes:
            line.tell(outcome)
    pipe.send_bytes(b"")


class Line:
    """The way back from a worker process: what is told, and one question at a time."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def tell(self, said: Said) -> None:
        self._pipe.send_bytes(_encode(said))

    def ask(self, what: bytes) -> bytes:
        """Return the answer to a question. Raises EOFError where nobody is there to give one."""
        with self._lock:
            self.tell(Asked(what))
            answer = self._pipe.recv_bytes()
        if not answer:
            raise EOFError
        return answer


class ToldOutcomes(list[Outcome]):
    """Outcomes that are told as they are added."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self._line = line

    def append(self, outcome: Outcome) -> None:
        super().append(outcome)
        self._line.tell(outcome)


def _never() -> bool:
    return False


def _run(runner: Runner, parcel: Parcel, outcomes: list[Outcome]) -> Assignment:
    work = Assignment(parcel.stage, parcel.items, parcel.fence, parcel.ready_at, None, parcel.resumed)
    work.outcomes, work.replaces, work.kind, work.at = outcomes, parcel.replaces, parcel.kind, parcel.at
    try:
        with _alarm(runner):
            runner.run(work)
    except TimeoutError:  # it rang when the handler had just answered
        missed = work.items[len(work.outcomes) :]
        work.outcomes += [runner.timed_out(item, work, work.started) for item in missed]
    return work


@contextmanager
def _alarm(runner: Runner) -> Iterator[None]:
    """Break in on a handler that hangs. Only what even a signal cannot interrupt costs the process its life."""
    if runner.stage.timeout is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: object) -> None:
        raise runner.too_late()

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, runner.stage.timeout)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def in_worker() -> bool:
    """Return whether this is a worker process, or one that is just being started and imports the program for it."""
    return _Place.is_worker or hasattr(multiprocessing.current_process(), "_inheriting")


class _Place:
    is_worker = False
    resources: Resources | None = None
    """Of this worker process, which runs items of one pipeline."""


@contextmanager
def holding(resources: Resources, stages: Sequence[int]) -> Iterator[str]:
    """In a worker process: open the resources of some stages, and close them in the end. Yields why that failed."""
    _Place.resources = resources
    error = ""
    try:
        try:
            for stage in stages:
                resources.open_here(stage)
        except HoldfastError as trouble:
            error = f"{trouble} (in a worker process)"
        yield error
    finally:
        resources.close()
        close_kept()


def address(pipeline: Any) -> str:
    """Return where another process finds this pipeline, or the scan it belongs to: `file.py:name` or
    `package.module:name`."""
    for name, module in list(sys.modules.items()):
        for attribute, value in list(vars(module).items()) if isinstance(module, ModuleType) else ():
            if value is pipeline.home:
                return f"{_importable(name, module, pipeline.name)}:{attribute}"
    raise UsageError(
        f"pipeline {pipeline.name!r} is not at the top of a module, so worker processes cannot find it: assign it "
        "to a name there"
    )


def _importable(name: str, module: ModuleType, pipeline: str) -> str:
    spec = getattr(module, "__spec__", None)
    file = getattr(module, "__file__", None)
    if name in ("__main__", "__mp_main__"):
        if spec is not None and spec.name not in ("__main__", "__mp_main__"):
            return str(spec.name)
        if file is None:
            raise UsageError(
                f"pipeline {pipeline!r} was defined in a notebook or at a prompt, which worker processes cannot "
                "import: move it into a file, or use threads"
            )
        return str(os.path.abspath(file))
    if file is not None and getattr(module, "__holdfast_file__", False):
        return str(os.path.abspath(file))
    return name


def _runner_there(target: str, parcel: Parcel, line: Line, stopping: Callable[[], bool]) -> Runner:
    """Return what runs a parcel: a stage may have its own, else its items are run one after the other."""
    pipeline = _found(target)
    stage: Stage = pipeline.stages[parcel.stage]
    if stage.runs_there is None:
        return _runner(target, parcel.batch, parcel.stage, stopping)
    assert _Place.resources is not None
    runner: Runner = stage.runs_there(parcel, line, pipeline=pipeline.name, stopping=stopping,
                                           handed=_Place.resources.of(stage))  # fmt: skip
    return runner


@cache
def _runner(target: str, batch: str, stage: int, stopping: Callable[[], bool]) -> StageRunner:
    pipeline = _found(target)
    stages = pipeline.stages
    previous = stages[stage - 1] if stage else None
    resources = _Place.resources if _Place.resources is not None else Resources(pipeline)
    return StageRunner(stages[stage], previous, pipeline=pipeline.name, batch=batch, stopping=stopping,
                       handed=resources.of(stages[stage]))  # fmt: skip


@cache
def _found(target: str) -> Any:
    return find(target)


def find(target: str) -> Any:
    """Return the pipeline at an address, or the one of the scan that is there."""
    _Place.is_worker = multiprocessing.parent_process() is not None
    where, _, name = target.rpartition(":")
    module = load_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    found = getattr(module, name)
    return getattr(found, "pipeline", found)


def load_file(path: Path) -> ModuleType:
    """Return the module of a file, imported once, as `python file.py` would see its neighbours."""
    path = path.resolve()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file is not None and isinstance(file, str) and os.path.abspath(file) == str(path):
            return module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = path.stem if path.stem not in sys.modules else f"holdfast_app_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    module.__holdfast_file__ = True  # type: ignore[attr-defined]
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
