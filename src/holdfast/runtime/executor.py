"""Running a stage on items. It never raises and never touches the store: what happened comes back as outcomes.

The same code runs on threads, on the event loop, in worker processes and on the thread that commits.
"""

import asyncio
import math
import os
import random
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast.core import canonical
from holdfast.core.errors import Defer, HoldfastError, Signal, SinkError, Skip
from holdfast.core.journal import Spend
from holdfast.core.limits import OUTPUT_BYTES, REQUEST_HINT_CHARS
from holdfast.core.model import Item
from holdfast.core.outcome import Deferred, Done, Failed, Lost, Outcome, Skipped
from holdfast.core.retry import classify, retry_after
from holdfast.runtime.context import Context
from holdfast.runtime.schema import Invalid
from holdfast.runtime.sinks.base import Evidence, Provenance
from holdfast.runtime.stage import Stage
from holdfast.stores import faults

clock = time.perf_counter


class _Forks:
    """Counts how often this process came out of a fork while Holdfast was loaded; asking it is cheaper than getpid."""

    count = 0

    @classmethod
    def happened(cls) -> None:
        cls.count += 1


forks = _Forks
os.register_at_fork(after_in_child=forks.happened)
TRACE_CHARS = 4000
SINK_WAIT = 1.0
LONGEST_WAIT = 366 * 86_400


class _Here(threading.local):
    """Of which pipeline and batch this thread runs a handler, if it does."""

    batch: tuple[str, str] | None = None


here = _Here()


class Assignment:
    """Some items of one stage under one fence, on their way through an executor and back."""

    __slots__ = (
        "abandoned",
        "ctx",
        "fence",
        "holding",
        "items",
        "left",
        "lone",
        "outcomes",
        "ready_at",
        "resumed",
        "stage",
        "started",
        "until",
    )

    def __init__(
        self, stage: int, items: list[Item], fence: int, ready_at: float, holding: Any, resumed: bool = False
    ) -> None:
        self.stage = stage
        self.items = items
        self.fence = fence
        self.ready_at = ready_at
        self.holding = holding
        self.resumed = resumed
        """The items were read from the store, not handed on by this run: what they rest on is verified first."""
        self.outcomes: list[Outcome] = []
        self.left = len(items)
        """Items the worker has not had back."""
        self.started = 0.0
        """When the item at hand was begun; 0 while none is."""
        self.ctx: Context | None = None
        """The context of the item at hand, where its stage takes one: what it cost is known even if it hangs."""
        self.lone = False
        """Nothing else of its stage was in flight: if its process dies, it is to blame."""
        self.abandoned = False
        """Given up by the worker: whatever still comes is ignored."""
        self.until = math.inf
        """When to stop between two items and leave the rest."""

    @property
    def is_vain(self) -> bool:
        """Whether nothing that still comes of it can be committed: it was given up, or its lease was lost."""
        return self.abandoned or (self.holding is not None and self.holding.lost)


class Answer(NamedTuple):
    """Outcomes on their way back to the worker: of a whole assignment or of a part of it."""

    work: Assignment
    outcomes: list[Outcome]


class StageRunner:
    """One stage of one batch, ready to run items."""

    def __init__(
        self, stage: Stage, previous: Stage | None, *, pipeline: str, batch: str, stopping: Callable[[], bool]
    ) -> None:
        self.stage = stage
        self.previous = previous
        self.pipeline = pipeline
        self.batch = batch
        self.stopping = stopping
        self.touches_files = stage.sink is not None or (previous is not None and previous.sink is not None)
        self._forks = forks.count
        self._draw = random.SystemRandom().random
        self.plain = not (stage.wants_context or stage.sink or stage.verifier or stage.metrics)

    def run(self, work: Assignment) -> None:
        """Run every item of an assignment, one after the other, and leave the outcomes in it."""
        here.batch = (self.pipeline, self.batch)
        if self.plain and not work.resumed:
            self._run_plain(work)
        else:
            for item in work.items:
                began = work.started = clock()
                if work.abandoned or began > work.until:
                    break
                self._keep(work, item, self._attempt(item, work, began))
        here.batch = None
        work.started = 0.0

    def _run_plain(self, work: Assignment) -> None:
        """The short way for a stage with nothing around its handler: what a quick item costs, it costs in this loop."""
        decode, handle, encode = self.stage.input.decode, self.stage.function, self.stage.output.encode
        digest, reach = canonical.digest, faults.reach
        ended = clock()
        until = work.until
        for item in work.items:
            if work.abandoned or ended > until:
                return
            began = work.started = ended
            outcome: Outcome
            try:
                value = decode(item.input if item.input else self._input(item))
                reach("stage.before")
                data = encode(handle(value))
                reach("stage.after")
                if len(data) > OUTPUT_BYTES:
                    raise _too_large(data)
            except BaseException as error:  # noqa: BLE001 - a handler may raise anything; it becomes an outcome that names it
                outcome = self._explain(item, error, work, began, None)
                ended = clock()
            else:
                ended = clock()
                outcome = Done(item, data, digest(item.salt, data), began - work.ready_at, ended - began)
            self._keep(work, item, outcome)

    def _keep(self, work: Assignment, item: Item, outcome: Outcome) -> None:
        if forks.count != self._forks:
            _leave_child(self, item)
        if not work.abandoned:
            work.outcomes.append(outcome)

    def _stay_parent(self, item: Item) -> None:
        """A handler forked and its child came back: it must not go on with its parent's work."""
        if forks.count != self._forks:
            _leave_child(self, item)

    def _attempt(self, item: Item, work: Assignment, began: float) -> Outcome:
        ctx = work.ctx = self.context(item, work)
        try:
            item, found = self._set_out(item, work, ctx, began)
            if found is not None:
                return found
            value = self.stage.input.decode(item.input)
            faults.reach("stage.before")
            made = self.stage.function(value, ctx) if self.stage.wants_context else self.stage.function(value)
            faults.reach("stage.after")
            return self.finish(item, made, ctx, work, began)
        except BaseException as error:  # noqa: BLE001 - see above
            return self._explain(item, error, work, began, ctx)

    async def attempt_async(self, item: Item, work: Assignment, began: float) -> Outcome:
        """The same for a coroutine; the loop stays free while it waits."""
        here.batch = (self.pipeline, self.batch)
        ctx = self.context(item, work)
        limit = asyncio.timeout(self.stage.timeout)
        aside = asyncio.to_thread if self.touches_files else _at_once
        try:
            item, found = await aside(self._set_out, item, work, ctx, began)
            if found is not None:
                return found
            value = self.stage.input.decode(item.input)
            faults.reach("stage.before")
            try:
                async with limit:
                    made = await (
                        self.stage.function(value, ctx) if self.stage.wants_context else self.stage.function(value)
                    )
            finally:
                self._stay_parent(item)
            faults.reach("stage.after")
            return await aside(self.finish, item, made, ctx, work, began)
        except BaseException as error:  # noqa: BLE001 - see above
            if isinstance(error, TimeoutError) and limit.expired():
                return self.timed_out(item, work, began, ctx)
            return self._explain(item, error, work, began, ctx)

    def context(self, item: Item, work: Assignment) -> Context:
        return Context(
            item=item, batch=self.batch, pipeline=self.pipeline, stage=self.stage.name, fence=work.fence,
            timeout=self.stage.timeout, stopping=lambda: work.is_vain or self.stopping(), metrics=self.stage.metrics,
        )  # fmt: skip

    def _set_out(self, item: Item, work: Assignment, ctx: Context, began: float) -> tuple[Item, Outcome | None]:
        """Before the handler: the input at hand and verified, or an output that needs no handler."""
        item = self.prepare(item, work, ctx)
        return item, self._adopt(item, work, began)

    def prepare(self, item: Item, work: Assignment, ctx: Context) -> Item:
        """The item with its input at hand, after what it rests on was verified."""
        if item.source_file is not None and not item.input:
            item = Item(item.n, item.key, item.salt, self._input(item), item.place, item.plain, item.source_file)
        verifier = self.previous.verifier if self.previous is not None and work.resumed else None
        if self.previous is not None and verifier is not None and not verifier.wants_item:
            out = self.previous.output.decode(item.input)
            if not verifier.holds(out, None, ctx):
                raise InputLost(f"the verifier of stage {self.previous.name!r} no longer accepts its output")
        return item

    def finish(self, item: Item, made: Any, ctx: Context, work: Assignment, began: float) -> Outcome:
        """From what the handler made to an outcome: validated, measured, verified, written to its sink."""
        stage = self.stage
        data = stage.output.encode(made)
        if len(data) > OUTPUT_BYTES:
            raise _too_large(data)
        spend = ctx.said(item.n)
        if stage.verifier is not None and not stage.verifier.holds(
            stage.output.decode(data), stage.input.decode(item.input), ctx
        ):
            raise Unverified(f"the verifier of stage {stage.name!r} did not accept the output")
        file = None
        if stage.sink is not None:
            self._stay_parent(item)
            try:
                file = stage.sink.stage(self._provenance(item, work), data, _bill(spend)).encode()
            except OSError as error:
                raise SinkTrouble(f"the output of stage {stage.name!r} could not be written: {error}") from error
        digest = canonical.digest(item.salt, data)
        return Done(item, data, digest, max(0.0, began - work.ready_at), clock() - began, spend, file)

    def timed_out(self, item: Item, work: Assignment, began: float, ctx: Context | None) -> Outcome:
        """The outcome of an item whose handler did not answer in time."""
        return self._explain(item, self.too_late(), work, began, ctx)

    def too_late(self) -> TimeoutError:
        return TimeoutError(f"stage {self.stage.name!r} did not answer within {self.stage.timeout:g} s")

    def _adopt(self, item: Item, work: Assignment, began: float) -> Outcome | None:
        """An output that an earlier run made, staged, and could not record: never paid for again."""
        sink = self.stage.sink
        if sink is None:
            return None
        try:
            file = sink.find(self._provenance(item, work))
        except OSError as error:
            raise SinkTrouble(f"the outputs of stage {self.stage.name!r} cannot be looked at: {error}") from error
        if file is None:
            return None
        try:
            data = sink.read(file)
            self.stage.output.decode(data)
        except (SinkError, Invalid, OSError):
            return None
        paid = _paid(item, sink.note(file))
        return Done(item, data, canonical.digest(item.salt, data), 0.0, 0.0, paid, file.encode(), True)

    def _input(self, item: Item) -> bytes:
        """The input that a sink keeps in a file, checked."""
        assert self.previous is not None
        assert self.previous.sink is not None
        assert item.source_file is not None
        try:
            return self.previous.sink.read(Evidence.decode(item.source_file))
        except OSError as error:
            raise SinkTrouble(f"the output of stage {self.previous.name!r} could not be read: {error}") from error
        except SinkError as error:
            raise InputLost(f"the output of stage {self.previous.name!r} is gone or damaged: {error}") from error

    def _provenance(self, item: Item, work: Assignment) -> Provenance:
        return Provenance(
            pipeline=self.pipeline, batch=self.batch, stage=self.stage.name, n=item.n, epoch=item.place.epoch,
            fence=work.fence, input_digest=canonical.digest(b"", item.input), key=item.key,
        )  # fmt: skip

    def _explain(
        self, item: Item, error: BaseException, work: Assignment, began: float, ctx: Context | None
    ) -> Outcome:
        """What an exception means for its item. It may be anything: even its text may raise."""
        queued, seconds = max(0.0, began - work.ready_at), clock() - began
        spend: Spend | None = ctx.paid(item.n) if ctx is not None else None
        if isinstance(error, SinkTrouble):
            return Deferred(item, SINK_WAIT, str(error), queued, seconds, spend, True)
        if isinstance(error, InputLost):
            return Lost(item, item.place.stage - 1, str(error))
        if isinstance(error, Skip):
            return Skipped(item, _text(error), queued, seconds, spend)
        if isinstance(error, Defer):
            return Deferred(item, error.seconds, _text(error), queued, seconds, spend)
        try:
            transient, code = _kind_of(error)
            code, after = str(code)[:REQUEST_HINT_CHARS], _wait_of(error)
        except Exception:  # noqa: BLE001 - an error of the user's whose attributes raise: nothing speaks for trying again
            transient, code, after = False, type(error).__name__, None
        trace = "" if isinstance(error, Signal | Invalid) else _trace(error)
        return Failed(item, transient, code, _text(error), self._draw(), queued, seconds, after, trace, spend)


class SinkTrouble(HoldfastError):
    """The place for outputs is in trouble: nothing is wrong with the item, and no further one should be paid for."""


class InputLost(HoldfastError):
    """What a stage rests on is gone."""


class Unverified(HoldfastError):
    """The handler's answer did not pass its verifier."""


def _bill(spend: Spend | None) -> bytes:
    """What an output cost, as a note that stays with it: whoever adopts the output books its cost."""
    if spend is None or not (spend.usd or spend.tokens):
        return b""
    return msgspec.msgpack.encode((spend.usd, spend.tokens, spend.model[:24]))


def _paid(item: Item, note: bytes) -> Spend | None:
    if not note:
        return None
    try:
        usd, tokens, model = msgspec.msgpack.decode(note, type=tuple[int, int, str])
    except msgspec.MsgspecError:
        return None
    return Spend(item.n, usd=usd, tokens=tokens, model=model)


async def _at_once(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def _kind_of(error: BaseException) -> tuple[bool, str]:
    if isinstance(error, Invalid):
        return False, error.code
    if isinstance(error, Unverified):
        return True, "unverified"
    return classify(error)


def _wait_of(error: BaseException) -> float | None:
    """The least wait that the other side asked for, where that is a time one can wait."""
    after = retry_after(error)
    if isinstance(after, int | float) and 0 <= after < LONGEST_WAIT:
        return float(after)
    return None


def _text(error: BaseException) -> str:
    try:
        return canonical.storable(str(error)) or type(error).__name__
    except Exception as worse:  # noqa: BLE001 - a __str__ of the user's may raise anything
        return f"{type(error).__name__} (its text cannot be had: {type(worse).__name__})"


def _too_large(data: bytes) -> Invalid:
    text = (
        f"the output has {len(data):,} bytes, at most {OUTPUT_BYTES:,} are kept: write it to a file and return its "
        "path, or return less"
    )
    return Invalid(text, "invalid_output")


def _trace(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f"{os.sep}holdfast{os.sep}runtime{os.sep}" not in f.filename] or frames
    lines = [f"{Path(f.filename).name}:{f.lineno} in {f.name}" for f in own[-8:]]
    return canonical.storable("; ".join(lines)[:TRACE_CHARS])


def _leave_child(runner: StageRunner, item: Item) -> None:
    message = (
        f"holdfast: stage {runner.stage.name!r} forked while handling item {item.key!r}; the child ends here, the "
        "parent goes on\n"
    )
    os.write(2, message.encode("utf-8", "replace"))
    os._exit(70)
