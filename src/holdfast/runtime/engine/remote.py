"""The traffic to a worker process and back: the address of a pipeline, a parcel of work, outcomes and questions.

No object of the user is pickled: the child imports the pipeline from where the parent found it.
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

from holdfast.core.envelope import Envelope
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
    """Number -> the older file of an item that was sent back, if it could be mistaken for that of another batch."""
    kind: Kind = Kind.ITEMS
    at: Checkpoint | None = None
    """The checkpoint of its item, if it has checkpoints."""
    more: bytes = b""
    """Further data that its kind of work needs."""
    envelopes: dict[int, Envelope] = {}


class Asked(msgspec.Struct, tag=True):
    """A question of a process that waits for the answer; the runner of that kind of work interprets it."""

    what: bytes


class CameTo(msgspec.Struct, tag=True):
    """How far the item of a process had come at the end."""

    reached: Reached


Said = Outcome | Asked | CameTo
"""A message of a process about a parcel; an empty one is the last."""


_encode = msgspec.msgpack.Encoder().encode
_parcel = msgspec.msgpack.Decoder(Parcel).decode
_said: Callable[[bytes], Said] = msgspec.msgpack.Decoder(Said).decode
_outcomes = msgspec.msgpack.Decoder(list[Outcome]).decode


def pack(runner: Runner, work: Assignment, more: bytes = b"") -> bytes:
    """Return an assignment as bytes."""
    return _encode(Parcel(runner.batch, work.stage, work.fence, work.ready_at, work.resumed, work.items,
                          runner.own_files(work), work.kind, work.at, more, runner.own_envelopes(work)))  # fmt: skip


def unpack(data: bytes) -> Said:
    """Return the message that came back."""
    return _said(data)


def unpack_all(data: bytes) -> list[Outcome]:
    """Return the outcomes that came back together."""
    return _outcomes(data)


def ready(target: str) -> None:
    """Find the pipeline, in a worker process before it gets any work."""
    find(target)


def run(target: str, data: bytes) -> bytes:
    """Run the items in the worker process: find the pipeline, and return the outcomes."""
    parcel = _parcel(data)
    return _encode(_run(_runner(target, parcel.batch, parcel.stage, _never), parcel, []).outcomes)


def run_and_tell(target: str, data: bytes, pipe: Connection, stopping: Callable[[], bool]) -> None:
    """Run the items and send each outcome as soon as it exists, and an empty message at the end. An alarm must not
    interrupt the sending: with a timeout, for which items travel alone, the outcome is sent afterward."""
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
    """The connection back from a worker process: it carries messages, and one question at a time."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def tell(self, said: Said) -> None:
        self._pipe.send_bytes(_encode(said))

    def ask(self, what: bytes) -> bytes:
        """Return the answer to a question. Raises EOFError if the parent is gone."""
        with self._lock:
            self.tell(Asked(what))
            answer = self._pipe.recv_bytes()
        if not answer:
            raise EOFError
        return answer


class ToldOutcomes(list[Outcome]):
    """Outcomes that are sent as they are added."""

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
    work.envelopes = parcel.envelopes
    try:
        with _alarm(runner):
            runner.run(work)
    except TimeoutError:  # the alarm went off just after the handler had answered
        missed = work.items[len(work.outcomes) :]
        work.outcomes += [runner.timed_out(item, work, work.started) for item in missed]
    return work


@contextmanager
def _alarm(runner: Runner) -> Iterator[None]:
    """Interrupt a handler that hangs. The process is killed only if a signal cannot interrupt the handler."""
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
    """Return whether this is a worker process, or a process that is being started as one and imports the program."""
    return _Place.is_worker or hasattr(multiprocessing.current_process(), "_inheriting")


class _Place:
    is_worker = False
    resources: Resources | None = None
    """The resources of this worker process, which runs items of one pipeline."""


@contextmanager
def holding(resources: Resources, stages: Sequence[int]) -> Iterator[str]:
    """Open the resources of some stages in a worker process, and close them at the end. Yields why opening failed, or
    an empty string."""
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
    """Return the address at which another process finds this pipeline, or its scan: `file.py:name` or
    `package.module:name`."""
    for name, module in list(sys.modules.items()):
        for attribute, value in list(vars(module).items()) if isinstance(module, ModuleType) else ():
            if value is pipeline.home:
                return f"{_importable(name, module, pipeline.name)}:{attribute}"
    raise UsageError(
        f"pipeline {pipeline.name!r} is not at the top level of a module, so worker processes cannot find it: assign "
        "it to a name there"
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
    """Return the runner for a parcel: a stage may have its own, else its items run one after the other."""
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
    """Return the pipeline at an address, or the pipeline of the scan there."""
    _Place.is_worker = multiprocessing.parent_process() is not None
    where, _, name = target.rpartition(":")
    module = load_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    found = getattr(module, name)
    return getattr(found, "pipeline", found)


def load_file(path: Path) -> ModuleType:
    """Return the module of a file, imported once; it can import its neighbors as under `python file.py`."""
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
