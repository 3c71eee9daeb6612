"""A partition in a process of its own: rows are read there, checkpoints come back over its line.

The thread that holds the lease stays here: it has a process started, writes down what that reaches, answers whether it
is durable, and has it killed when the lease is lost.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.core import cursor
from holdfast.core.cursor import Cursor
from holdfast.core.errors import HoldfastError
from holdfast.core.model import Checkpoint, Item, NewItem
from holdfast.core.outcome import Failed
from holdfast.core.settle import Reached, further
from holdfast.runtime.engine import remote
from holdfast.runtime.engine.assignment import Assignment, Latch, clock
from holdfast.runtime.engine.exchange import CheckpointReached
from holdfast.runtime.engine.hold import Saving
from holdfast.runtime.engine.pools import Finished, Refusal, Unable
from holdfast.runtime.engine.processes import Child, Host, NotReady
from holdfast.runtime.engine.resources import Handed
from holdfast.runtime.event_loop import Loan
from holdfast.runtime.operate.identity import refuse_changed
from holdfast.runtime.partitions import span_of
from holdfast.runtime.scan.isolation import Burial, Buried, DeadlyGroup, dead_letter
from holdfast.runtime.scan.partition import RangeRunner, RangeStage
from holdfast.runtime.scan.rows import SLICE, Careful, Interval, Misuse, Shape
from holdfast.runtime.scan.walk import Walk
from holdfast.runtime.sources.base import SourceAway


class PartitionStart(msgspec.Struct):
    """What a process is told of a partition besides its item."""

    at: Checkpoint | None
    until: bytes | None
    """The cursor up to which rows are final, where the source is followed; else the partition says."""
    follows: bool
    patience: float | None = None
    """Seconds that a source which is away is waited for."""
    size: int = 0
    """Rows between two checkpoints, in a group that killed a process before this one; 0: as the interval says."""
    window: int = 0
    condemned: str = ""


class Message(msgspec.Struct, omit_defaults=True):
    """What a process asks: to write a checkpoint, to bury rows, which rows are buried, to refuse the run."""

    reached: Reached | None = None
    bury: list[NewItem] | None = None
    ask: list[bytes] | None = None
    refused: str = ""
    """Why no partition can be run."""
    away: bool = False
    """It is because the source is away."""


_encode = msgspec.msgpack.Encoder().encode
_message = msgspec.msgpack.Decoder(Message).decode
_start = msgspec.msgpack.Decoder(PartitionStart).decode


# -- here ---------------------------------------------------------------------------------------------------------


class ProcessRunner(RangeRunner):
    """Runs each partition in a process of its own, from the thread that waits for it."""

    def __init__(self, stage: RangeStage, *, host: Host, pipeline: str, batch: str, stopping: Callable[[], bool],
                 now: Callable[[], float], finished: Finished, burial: Burial | None = None, follows: bool = False,
                 at: Checkpoint | None = None, until: Cursor | None = None,
                 patience: float | None = None, loan: Loan | None = None) -> None:  # fmt: skip
        super().__init__(stage, pipeline=pipeline, batch=batch, stopping=stopping, now=now, finished=finished,
                         burial=burial, patience=patience, loan=loan)  # fmt: skip
        self._host, self._follows, self._at, self._until = host, follows, at, until

    def close(self) -> None:
        """Whoever is still at work was given up, and is gone before the run returns."""
        super().close()
        self._host.close()

    def run(self, work: Assignment) -> None:
        if self.may_not_begin(work):
            return
        began = clock()
        at = self._at if self._follows else work.hold.checkpoints.get(work.items[0].n)
        try:
            work.fence = self.fence(work)
        except HoldfastError as error:  # the store does not answer
            work.outcomes.append(self._explain(work.items[0], error, work, began, None))
            return
        group = DeadlyGroup(self.ranges.every.rows or SLICE) if self._is_last_chance(work.items[0]) else None
        while True:
            at, died = self._once(work, at, group)
            if not died or work.is_vain or (group is not None and self.stopping()):
                return
            if group is None:
                self._bury_range(work, "its worker process died", began, again=True)
                return
            group.died(0 if at is None else at.rows)
            if group.trouble:
                self._bury_range(work, group.trouble, began, again=False)
                return

    def _is_last_chance(self, item: Item) -> bool:
        """Whether to look for the row where a process dies: once the policy has no further attempt for the range."""
        stage = self.ranges
        isolates = self.isolates(item) and self.burial is not None and stage.handler.shape is not Shape.GENERATOR
        return isolates and item.place.attempt + 1 >= stage.policy.attempts

    def _bury_range(self, work: Assignment, text: str, began: float, *, again: bool) -> None:
        failed = Failed(work.items[0], again, "process_died", text, 0.5, 0.0, clock() - began)
        work.outcomes.append(failed)

    def _once(
        self, work: Assignment, at: Checkpoint | None, group: DeadlyGroup | None
    ) -> tuple[Checkpoint | None, bool]:
        """One process: how far it came, and whether it died."""
        child = self._child(work)
        if child is None:
            return at, False
        until = None if self._until is None else cursor.encode(self._until)
        start = PartitionStart(at, until, self._follows, self.patience)
        if group is not None:
            start.size, start.window, start.condemned = group.size, group.window, group.condemned
        heard = _Heard(self, work, at)
        try:
            parcel = remote.pack(self, work, _encode(start))
            died = not self._host.attend(child, parcel, work, heard.answer, self.look)
        finally:
            self._host.end(child)
        if work.outcomes:
            work.items[0] = work.outcomes[0].item
        return heard.at, died

    def _child(self, work: Assignment) -> Child | None:
        """A process that is ready; None where it is not wanted any more. Raises what ends the run."""

        def wanted() -> bool:
            return not (work.is_vain or self.stopping())

        try:
            child = self._host.start(work, wanted)
            return None if child is None else self._host.opened(child, work, wanted)
        except NotReady as error:
            raise Unable(str(error)).trouble() from error

    def look(self) -> None:
        """Tell processes whether the run stops."""
        self._host.stop.value = self.stopping()

    def post(self, event: CheckpointReached | Refusal) -> None:
        """Hand something to whoever commits."""
        self._finished.put(event)


class _Heard:
    """What a process says on its way, and how far it has come by that."""

    def __init__(self, runner: ProcessRunner, work: Assignment, at: Checkpoint | None) -> None:
        self._runner, self._work, self.at = runner, work, at

    def answer(self, data: bytes) -> bytes:
        """Do what the process asks for, and return what came of it."""
        message, runner = _message(data), self._runner
        runner.look()
        if message.reached is not None:
            return _encode(self._save(message.reached))
        if message.refused:
            kind = SourceAway if message.away else Misuse
            runner.post(Refusal(self._work, kind(message.refused)))
            return _encode(True)
        assert runner.burial is not None
        if message.bury is not None:
            runner.burial.admit(message.bury)
            return _encode(True)
        return _encode(sorted(runner.burial.buried([cursor.decode(each) for each in message.ask or ()])))

    def _save(self, reached: Reached) -> bool:
        """Have a checkpoint written; return whether it is durable."""
        latch = Latch(self._work)
        self._runner.post(CheckpointReached(self._work, Saving(reached, latch)))
        if not latch.wait():
            return False
        self._work.items[0], self.at = further(reached.item), reached.checkpoint
        return True


# -- there --------------------------------------------------------------------------------------------------------


class PartitionThere(RangeRunner):
    """A partition in its process: the checkpoint it begins with came with it."""

    def __init__(self, stage: RangeStage, parcel: remote.Parcel, line: remote.Line, *, pipeline: str,
                 stopping: Callable[[], bool], handed: Handed) -> None:  # fmt: skip
        start = _start(parcel.more)
        there = _Line(line)
        super().__init__(stage, pipeline=pipeline, batch=parcel.batch, stopping=stopping, now=lambda: 0.0,
                         handed=handed, finished=there, burial=_RemoteBurial(there),  # type: ignore[arg-type]
                         patience=start.patience)  # fmt: skip
        self._start = start

    def _walk(self, work: Assignment, item: Item, ctx: Any) -> Walk:
        start, span, at = self._start, span_of(item.input), self._start.at
        refuse_changed(self.ranges.source, span, f"range {item.key}")
        after = cursor.decode(at.cursor) if at is not None and at.cursor else span.after
        until = span.until if start.until is None else cursor.decode(start.until)
        feed = self.feed_of(work, after, until, at)
        every = self.ranges.every
        interval = Careful(every, start.size, start.window) if start.size else Interval(every)
        return self.walk_over(feed, interval, work, ctx, at, condemned=start.condemned)

    def _done(self, walk: Walk, result: Any, work: Assignment, ctx: Any, began: float) -> Any:
        if self._start.follows:
            self.refuse_rows_left(walk)
            work.reached = walk.reached(is_last=True)
            return None
        return super()._done(walk, result, work, ctx, began)


class _Line:
    """What a walk posts here is asked of the parent."""

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
    """Has the parent bury rows."""

    def __init__(self, line: _Line) -> None:
        self._line = line
        self.count = 0

    def bury(self, rows: Sequence[Buried]) -> None:
        if rows:
            self._line.ask(Message(bury=[dead_letter(each) for each in rows]))

    def buried(self, places: Sequence[Cursor]) -> set[int]:
        return set(self._line.ask(Message(ask=[cursor.encode(at) for at in places])))
