"""Ranges handled in processes of their own: rows are read there, checkpoints come back over a pipe.

The thread that holds the lease stays here: it starts the process, writes down what that reaches, answers whether it is
durable, and kills it when the lease is lost.
"""

import atexit
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from holdfast.core import cursor
from holdfast.core.cursor import Cursor
from holdfast.core.errors import HoldfastError, ResourceError
from holdfast.core.model import Checkpoint, Item, NewItem
from holdfast.core.outcome import Failed, Outcome
from holdfast.core.settle import Reached, further
from holdfast.runtime.engine import remote
from holdfast.runtime.engine.assignment import Assignment, Latch, clock
from holdfast.runtime.engine.exchange import CheckpointReached
from holdfast.runtime.engine.hold import Saving
from holdfast.runtime.engine.pools import Finished, Refusal
from holdfast.runtime.engine.processes import FAREWELL_SECONDS, GONE, Child, stop_sign
from holdfast.runtime.engine.resources import Handed, Resources
from holdfast.runtime.event_loop import Loan
from holdfast.runtime.operate.identity import refuse_changed
from holdfast.runtime.partitions import span_of
from holdfast.runtime.scan.isolation import Burial, Buried, DeadlyGroup, dead_letter
from holdfast.runtime.scan.partition import RangeRunner, RangeStage
from holdfast.runtime.scan.rows import SLICE, Careful, Interval, Misuse, Shape
from holdfast.runtime.scan.walk import Walk
from holdfast.runtime.sources.base import SourceAway

LOOK_SECONDS = 0.1
"""How often the lease is looked at while a process is at work."""


class Parcel(msgspec.Struct):
    """What a process is given."""

    batch: str
    fence: int
    ready_at: float
    item: Item
    at: Checkpoint | None
    until: bytes | None
    """The cursor up to which rows are final, where the source is followed; else the range says."""
    follows: bool
    size: int = 0
    """Rows between two checkpoints, in a group that killed a process before this one; 0: as the interval says."""
    window: int = 0
    condemned: str = ""
    patience: float | None = None
    """Seconds that a source which is away is waited for."""


class Message(msgspec.Struct, omit_defaults=True):
    """What a process says: a checkpoint, rows to bury, a question which are buried, a refusal, or its end."""

    reached: Reached | None = None
    bury: list[NewItem] | None = None
    ask: list[bytes] | None = None
    refused: str = ""
    """Why no range can be run."""
    away: bool = False
    """It is because the source is away."""
    unopened: str = ""
    """Why a resource cannot be opened."""
    end: bool = False
    outcome: Outcome | None = None


_encode = msgspec.msgpack.Encoder().encode
_message = msgspec.msgpack.Decoder(Message).decode
_parcel = msgspec.msgpack.Decoder(Parcel).decode


# -- here ---------------------------------------------------------------------------------------------------------


class ProcessRunner(RangeRunner):
    """Runs each range in a process of its own, from the thread that waits for it."""

    def __init__(self, stage: RangeStage, *, target: str, pipeline: str, batch: str, stopping: Callable[[], bool],
                 now: Callable[[], float], finished: Finished, burial: Burial | None = None, follows: bool = False,
                 at: Checkpoint | None = None, until: Cursor | None = None,
                 patience: float | None = None, loan: Loan | None = None) -> None:  # fmt: skip
        super().__init__(stage, pipeline=pipeline, batch=batch, stopping=stopping, now=now, finished=finished,
                         burial=burial, patience=patience, loan=loan)  # fmt: skip
        self._target, self._follows, self._at, self._until = target, follows, at, until
        self._living: set[Child] = set()
        self._is_closed = False
        self._changed = threading.Condition()
        atexit.register(self.close)  # before the processes are waited for, where a run is left alone on its thread

    def close(self) -> None:
        """Whoever is still at work was given up, and is gone before the run returns."""
        atexit.unregister(self.close)
        super().close()
        with self._changed:
            self._is_closed = True
            for child in self._living:
                child.kill()
            self._changed.wait_for(lambda: not self._living, FAREWELL_SECONDS + 1.0)

    def run(self, work: Assignment) -> None:
        if self.may_not_begin(work):
            return
        began = work.started = clock()
        at = self._at if self._follows else work.hold.checkpoints.get(work.items[0].n)
        try:
            work.fence = self.fence(work)
        except HoldfastError as error:  # the store does not answer
            work.outcomes.append(self._explain(work.items[0], error, work, began, None))
            return
        group = DeadlyGroup(self.ranges.every.rows or SLICE) if self._is_last_chance(work.items[0]) else None
        while True:
            at, died = self._once(work, at, group)
            if not died or (group is not None and (work.is_vain or self.stopping())):
                break
            if group is None:
                self._bury_range(work, "its worker process died", began, again=True)
                break
            group.died(0 if at is None else at.rows)
            if group.trouble:
                self._bury_range(work, group.trouble, began, again=False)
                break
        work.started = 0.0

    def _is_last_chance(self, item: Item) -> bool:
        """Whether to look for the row where a process dies: once the policy has no further attempt for the range."""
        stage = self.ranges
        isolates = self.isolates(item) and self._burial is not None and stage.handler.shape is not Shape.GENERATOR
        return isolates and item.place.attempt + 1 >= stage.policy.attempts

    def _bury_range(self, work: Assignment, text: str, began: float, *, again: bool) -> None:
        failed = Failed(work.items[0], again, "process_died", text, 0.5, 0.0, clock() - began)
        work.outcomes.append(failed)

    def _once(
        self, work: Assignment, at: Checkpoint | None, group: DeadlyGroup | None
    ) -> tuple[Checkpoint | None, bool]:
        """One process: how far it came, and whether it died."""
        until = None if self._until is None else cursor.encode(self._until)
        parcel = Parcel(self.batch, work.fence, work.ready_at, work.items[0], at, until, self._follows)
        parcel.patience = self.patience
        if group is not None:
            parcel.size, parcel.window, parcel.condemned = group.size, group.window, group.condemned
        stop = stop_sign()
        child = Child(_work, stop, self._target, _encode(parcel))
        with self._changed:
            self._living.add(child)
            if self._is_closed:
                child.kill()
        try:
            return self._attend(child, stop, work, at)
        finally:
            if work.is_vain:
                child.kill()
            child.end()  # by itself, so that what it printed is not lost
            with self._changed:
                self._living.remove(child)
                self._changed.notify_all()

    def _attend(
        self, child: Child, stop: Any, work: Assignment, at: Checkpoint | None
    ) -> tuple[Checkpoint | None, bool]:
        """Listen to the process until it ends, dies, or must be killed."""
        while not work.is_vain:
            stop.value = self.stopping()
            try:
                if not child.has_news(LOOK_SECONDS):
                    continue
                message = _message(child.hear())
            except GONE:
                return at, True
            if message.end:
                self._ended(message, work)
                break
            answer = self._answer(message, work)
            if message.reached is not None and answer:
                at = message.reached.checkpoint
            try:
                child.tell(_encode(answer))
            except OSError:
                return at, True
        return at, False

    def _answer(self, message: Message, work: Assignment) -> Any:
        if message.reached is not None:
            latch = Latch(work)
            self._finished.put(CheckpointReached(work, Saving(message.reached, latch)))
            landed = latch.wait()
            if landed:
                work.items[0] = further(message.reached.item)
            return landed
        if message.refused:
            kind = SourceAway if message.away else Misuse
            self._finished.put(Refusal(work, kind(message.refused)))
            return True
        if message.unopened:
            self._finished.put(Refusal(work, ResourceError(message.unopened)))
            return True
        assert self._burial is not None
        if message.bury is not None:
            self._burial.admit(message.bury)
            return True
        return sorted(self._burial.buried([cursor.decode(each) for each in message.ask or ()]))

    def _ended(self, message: Message, work: Assignment) -> None:
        if message.outcome is not None:
            work.outcomes.append(message.outcome)
            work.items[0] = message.outcome.item
        work.reached = message.reached


# -- there --------------------------------------------------------------------------------------------------------


def _work(pipe: Connection, stop: Any, target: str, data: bytes) -> None:
    """In the process: find the scan, read the rows, handle them, say how it went."""
    parcel = _parcel(data)
    scan = remote.find(target)
    stage = scan.pipeline.stages[0]
    line = _Line(pipe)
    resources = Resources(scan.pipeline)
    runner = _Child(stage, parcel, line, pipeline=scan.pipeline.name, stopping=lambda: bool(stop.value),
                    handed=resources.of(stage))  # fmt: skip
    work = Assignment(0, [parcel.item], parcel.fence, parcel.ready_at, None)
    with remote.holding(resources, [0]) as trouble:
        if trouble:
            line.ask(Message(unopened=trouble))
        else:
            runner.run(work)
    outcome = work.outcomes[0] if work.outcomes else None
    pipe.send_bytes(_encode(Message(end=True, outcome=outcome, reached=work.reached)))


class _Line:
    """The way back: one question at a time."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def ask(self, message: Message) -> Any:
        with self._lock:
            self._pipe.send_bytes(_encode(message))
            return msgspec.msgpack.decode(self._pipe.recv_bytes())

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


class _Child(RangeRunner):
    """A range in its process: the checkpoint it begins with came with it."""

    def __init__(self, stage: RangeStage, parcel: Parcel, line: _Line, *, pipeline: str,
                 stopping: Callable[[], bool], handed: Handed) -> None:  # fmt: skip
        super().__init__(stage, pipeline=pipeline, batch=parcel.batch, stopping=stopping, now=lambda: 0.0,
                         handed=handed, finished=line, burial=_RemoteBurial(line),  # type: ignore[arg-type]
                         patience=parcel.patience)  # fmt: skip
        self._parcel = parcel

    def _walk(self, work: Assignment, item: Item, ctx: Any) -> Walk:
        parcel, span, at = self._parcel, span_of(item.input), self._parcel.at
        refuse_changed(self.ranges.source, span, f"range {item.key}")
        after = cursor.decode(at.cursor) if at is not None and at.cursor else span.after
        until = span.until if parcel.until is None else cursor.decode(parcel.until)
        feed = self.feed_of(work, after, until, at)
        every = self.ranges.every
        interval = Careful(every, parcel.size, parcel.window) if parcel.size else Interval(every)
        return self.walk_over(feed, interval, work, ctx, at, condemned=parcel.condemned)

    def _done(self, walk: Walk, result: Any, work: Assignment, ctx: Any, began: float) -> Any:
        if self._parcel.follows:
            self.refuse_rows_left(walk)
            work.reached = walk.reached(is_last=True)
            return None
        return super()._done(walk, result, work, ctx, began)
