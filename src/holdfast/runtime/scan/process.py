"""A partition in a process of its own: rows are read there, checkpoints come back over its line.

The thread that holds the lease stays here: it has a process started, writes its checkpoints, answers whether they are
durable, and kills the process when the lease is lost.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.core import cursor
from holdfast.core.cursor import Cursor
from holdfast.core.errors import HoldfastError, UsageError
from holdfast.core.model import Item, Kind, NewItem
from holdfast.core.outcome import Failed
from holdfast.core.settle import Reached, further
from holdfast.runtime.engine import remote
from holdfast.runtime.engine.assignment import Assignment, Latch, clock
from holdfast.runtime.engine.exchange import CheckpointReached
from holdfast.runtime.engine.hold import Saving
from holdfast.runtime.engine.pools import Refusal, Unable
from holdfast.runtime.engine.processes import Child, Host, NotReady
from holdfast.runtime.engine.resources import Handed
from holdfast.runtime.engine.runner import Runner, Setting
from holdfast.runtime.scan.isolation import Burial, Buried, DeadlyGroup, dead_letter
from holdfast.runtime.scan.partition import RUNNERS, Approach, PartitionRunner, PartitionStage
from holdfast.runtime.scan.rows import SLICE, Misuse, Shape
from holdfast.runtime.sources.base import SourceAway


class PartitionStart(msgspec.Struct):
    """The data about a partition that a process gets in addition to its item and checkpoint: the approach, as it
    travels."""

    until: bytes | None
    follows: bool
    patience: float | None = None
    """How many seconds to wait for a source that is away."""
    few: tuple[int, int] | None = None
    condemned: str = ""


class Message(msgspec.Struct, omit_defaults=True):
    """A request of a process: to write a checkpoint, to bury rows, to list buried rows, or to refuse the run."""

    reached: Reached | None = None
    bury: list[NewItem] | None = None
    ask: list[bytes] | None = None
    refused: str = ""
    """Why no partition can be run."""
    away: bool = False
    """The reason is that the source is away."""


_encode = msgspec.msgpack.Encoder().encode
_message = msgspec.msgpack.Decoder(Message).decode
_start = msgspec.msgpack.Decoder(PartitionStart).decode


# -- here ---------------------------------------------------------------------------------------------------------


def runners_of(stage: PartitionStage, setting: Setting) -> dict[Kind, Runner]:
    """Return the runners of a scan, for partitions and for rows: on threads, which wait for processes if the scan uses
    them. Raises UsageError."""
    pipeline, options = setting.pipeline, setting.options
    if stage.follows:
        raise UsageError(
            f"{pipeline.name!r} follows its source, which has no end: call tick() or run(poll=…) of the scan"
        )
    told: dict[str, Any] = {
        "pipeline": pipeline.name, "batch": options.batch, "now": setting.store.now, "stopping": setting.stopping,
        "loan": setting.loan, "finished": setting.finished, "patience": options.patience,
        "burial": Burial(setting.store, options.batch, setting.admitted),
        "handed": None if setting.in_processes else setting.handed,
    }  # fmt: skip
    here = {kind: runner(stage, **told) for kind, runner in RUNNERS.items()}
    if not setting.in_processes:
        return {**here}
    host = Host(remote.address(pipeline), [0] if setting.handed.names else ())
    return {kind: InProcess(runner, host) for kind, runner in here.items()}


class InProcess(Runner):
    """Has each partition, or row, run in a process of its own, from the thread that waits for it."""

    def __init__(self, inner: PartitionRunner, host: Host) -> None:
        super().__init__(inner.stage, pipeline=inner.pipeline, batch=inner.batch, stopping=inner.stopping,
                         now=inner.now, handed=inner.handed, loan=inner.loan)  # fmt: skip
        self._inner, self._host = inner, host

    def cut_off(self, item: Item, work: Assignment, began: float) -> None:
        """Return None: only checkpoints are kept."""

    def close(self) -> None:
        """Kill processes that are still running: they were given up, and must be gone before the run returns."""
        self._inner.close()
        self._host.close()

    def run(self, work: Assignment) -> None:
        if self.may_not_begin(work):
            return
        began, group = clock(), self._group(work.items[0])
        try:
            work.fence = self._inner.fence(work)
        except HoldfastError as error:  # the store does not answer
            work.outcomes.append(self._explain(work.items[0], error, work, began, None))
            return
        while self._died(work, group) and not work.is_vain:
            if group is None:
                self._bury(work, "its worker process died", began, again=True)
                return
            if self.stopping():
                return
            group.died(0 if work.at is None else work.at.rows)
            if group.trouble:
                self._bury(work, group.trouble, began, again=False)
                return

    def _group(self, item: Item) -> DeadlyGroup | None:
        """Return the rows among which to search for the one that kills its process, once the policy has no further
        attempt for the partition."""
        stage = self._inner.scanned
        isolates = self._inner.isolates and stage.isolate and stage.handler.shape is not Shape.GENERATOR
        is_last_chance = item.place.attempt + 1 >= stage.policy.attempts
        return DeadlyGroup(stage.every.rows or SLICE) if isolates and is_last_chance else None

    def _bury(self, work: Assignment, text: str, began: float, *, again: bool) -> None:
        work.outcomes.append(Failed(work.items[0], again, "process_died", text, 0.5, 0.0, clock() - began))

    def _died(self, work: Assignment, group: DeadlyGroup | None) -> bool:
        """Have one process run it; return whether that process died."""
        child = self._child(work)
        if child is None:
            return False
        try:
            parcel = remote.pack(self, work, _encode(self._start(group)))
            answers = _Answers(self._inner, work, self._look)
            died = not self._host.attend(child, parcel, work, answers.answer, self._look)
        finally:
            self._host.end(child)
        if work.outcomes:
            work.items[0] = work.outcomes[0].item
        return died

    def _start(self, group: DeadlyGroup | None) -> PartitionStart:
        approach, inner = self._inner.approach, self._inner
        start = PartitionStart(None, follows=False, patience=inner.patience)
        if approach is not None:
            start.until = None if approach.until is None else cursor.encode(approach.until)
            start.follows = approach.follows
        if group is not None:
            start.few, start.condemned = (group.size, group.window) if group.size else None, group.condemned
        return start

    def _child(self, work: Assignment) -> Child | None:
        """Return a process that is ready; None if it is not wanted any more. Raises the error that ends the run."""

        def wanted() -> bool:
            return not (work.is_vain or self.stopping())

        try:
            child = self._host.start(work, wanted)
            return None if child is None else self._host.opened(child, work, wanted)
        except NotReady as error:
            raise Unable(str(error)).trouble() from error

    def _look(self) -> None:
        """Tell the processes whether the run stops."""
        self._host.stop.value = self.stopping()


class _Answers:
    """The requests of a process, and their answers."""

    def __init__(self, inner: PartitionRunner, work: Assignment, look: Callable[[], None]) -> None:
        self._inner, self._work, self._look = inner, work, look

    def answer(self, data: bytes) -> bytes:
        """Do what the process asks for, and return the result."""
        message, burial = _message(data), self._inner.burial
        self._look()
        if message.reached is not None:
            return _encode(self._save(message.reached))
        if message.refused:
            kind = SourceAway if message.away else Misuse
            self._inner.finished.put(Refusal(self._work, kind(message.refused)))
            return _encode(True)
        assert burial is not None
        if message.bury is not None:
            burial.admit(message.bury)
            return _encode(True)
        return _encode(sorted(burial.buried([cursor.decode(each) for each in message.ask or ()])))

    def _save(self, reached: Reached) -> bool:
        """Have a checkpoint written; return whether it is durable."""
        work, latch = self._work, Latch(self._work)
        self._inner.finished.put(CheckpointReached(work, Saving(reached, latch)))
        if not latch.wait():
            return False
        work.items[0], work.at = further(reached.item), reached.checkpoint
        return True


# -- there --------------------------------------------------------------------------------------------------------


def runner_there(stage: PartitionStage, parcel: remote.Parcel, line: remote.Line, *, pipeline: str,
                 stopping: Callable[[], bool], handed: Handed) -> PartitionRunner:  # fmt: skip
    """Return the runner of a partition, or a row, in its process."""
    start, there = _start(parcel.more), _Line(line)
    until = None if start.until is None else cursor.decode(start.until)
    approach = Approach(until=until, follows=start.follows, few=start.few, condemned=start.condemned)
    burial = None if parcel.kind is Kind.ROWS else _RemoteBurial(there)
    return RUNNERS[parcel.kind](
        stage, pipeline=pipeline, batch=parcel.batch, stopping=stopping, now=lambda: 0.0, handed=handed,
        finished=there, burial=burial, patience=start.patience, approach=approach,  # type: ignore[arg-type]
    )  # fmt: skip


class _Line:
    """The queue of a walk in a worker process: each message becomes a request to the parent."""

    def __init__(self, line: remote.Line) -> None:
        self._line = line

    def ask(self, message: Message) -> Any:
        return msgspec.msgpack.decode(self._line.ask(_encode(message)))

    def put(self, said: CheckpointReached | Refusal) -> None:
        if isinstance(said, Refusal):
            self.ask(Message(refused=str(said.error), away=isinstance(said.error, SourceAway)))
        else:
            said.saving.waiter.answer(bool(self.ask(Message(reached=said.saving.reached))))


class _RemoteBurial(Burial):
    """A burial that has the parent bury rows."""

    def __init__(self, line: _Line) -> None:
        self._line = line
        self.count = 0

    def bury(self, rows: Sequence[Buried]) -> None:
        if rows:
            self._line.ask(Message(bury=[dead_letter(each) for each in rows]))

    def buried(self, places: Sequence[Cursor]) -> set[int]:
        return set(self._line.ask(Message(ask=[cursor.encode(at) for at in places])))
