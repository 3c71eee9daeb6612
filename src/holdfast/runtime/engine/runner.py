"""Runners of chunks, one for each kind. The runner of a stage makes every call of its handler: on threads, on the event
loop, in worker processes, and for messages."""

import asyncio
import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core import canonical
from holdfast.core.envelope import Envelope
from holdfast.core.errors import HoldfastError, SinkError
from holdfast.core.journal import Spend
from holdfast.core.limits import OUTPUT_BYTES
from holdfast.core.model import Admitted, Item
from holdfast.core.outcome import Done, Lost, Outcome, excuse
from holdfast.core.verify import may_have_been_tried
from holdfast.runtime.define.calls import Asker, Check, current_batch
from holdfast.runtime.define.context import Context
from holdfast.runtime.define.options import Options
from holdfast.runtime.define.resource import unbound
from holdfast.runtime.define.schema import Invalid
from holdfast.runtime.define.stage import Stage
from holdfast.runtime.engine.assignment import Assignment, clock
from holdfast.runtime.engine.control import await_stop, await_stop_async
from holdfast.runtime.engine.failures import InputLost, Unverified, explain
from holdfast.runtime.engine.resources import Handed
from holdfast.runtime.event_loop import Loan, this_thread
from holdfast.runtime.sinks.base import Evidence, Identity, Provenance, SinkTrouble
from holdfast.runtime.sinks.files import Files
from holdfast.stores import faults
from holdfast.stores.base import Store

if TYPE_CHECKING:
    from holdfast.runtime.define.pipeline import PipelineDefinition
    from holdfast.runtime.envelopes import EnvelopeReader

CARRIED_BYTES = 64 * 1024
"""An output in a file that is larger than this is not kept in memory: the next stage reads the file."""


class _Forks:
    """Counts how often this process was forked while Holdfast was loaded; cheaper than getpid."""

    count = 0

    @classmethod
    def happened(cls) -> None:
        cls.count += 1


forks = _Forks
os.register_at_fork(after_in_child=forks.happened)


class Runner(ABC):
    """One kind of work, ready to run: a slice of the items of a stage, a partition of a source, or one row.

    It gets an assignment: items that one fence guards, and what is known about each. It does not use the claims behind
    them, so items may come from several claims. It posts its checkpoints, and waits until they are durable.
    """

    def __init__(
        self, stage: Stage, *, pipeline: str, batch: str, stopping: Callable[[], bool],
        now: Callable[[], float] = time.time, handed: Handed | None = None, loan: Loan | None = None,
    ) -> None:  # fmt: skip
        self.stage = stage
        self.pipeline = pipeline
        self.batch = batch
        self.stopping = stopping
        self.is_too_late: Callable[[], bool] = lambda: False
        """Whether the deadline would cut off a handler that begins now."""
        self.took = 0.0
        """Seconds of the attempt that ended last."""
        self.now = now
        self.asks = self.reads_files = False
        self.store: Store | None = None
        """The store from which envelopes are read for handlers that ask; None in a worker process."""
        self.handed = handed if handed is not None else Handed(None, unbound(stage.parameters))
        self.loan = loan if loan is not None else Loan()
        """The event loop of the run; a loan made here is also given back here."""
        self._is_own_loan = loan is None
        self._envelopes: EnvelopeReader | None = None
        self._draw = random.SystemRandom().random

    @abstractmethod
    def run(self, work: Assignment) -> None:
        """Run the items of an assignment on this thread, and put the outcomes into it."""

    @abstractmethod
    def cut_off(self, item: Item, work: Assignment, began: float) -> Outcome | None:
        """Return the outcome of an item whose handler is running when the run ends at once: it does not count as an
        attempt, and its cost is kept. None if the cost is recorded already."""

    def close(self) -> None:
        if self._is_own_loan:
            self.loan.give_back()

    def may_not_begin(self, work: Assignment) -> bool:
        """Return whether items that were handed over and not begun should be left."""
        return work.is_vain or self.stopping() or work.is_late(self.now()) or self.is_too_late()

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Remember how long the last attempt took."""
        if outcomes and not isinstance(outcomes[-1], Lost):
            self.took = outcomes[-1].seconds

    def context(self, item: Item, work: Assignment) -> Context:
        return Context(
            item=item, batch=self.batch, pipeline=self.pipeline, stage=self.stage.name, fence=work.fence,
            timeout=self.stage.timeout, stopping=lambda: work.is_vain or self.stopping(), metrics=self.stage.metrics,
            envelope=self._envelope_of(item, work),
        )  # fmt: skip

    def _envelope_of(self, item: Item, work: Assignment) -> Callable[[], Envelope] | None:
        """Return a function that reads the envelope of an item. A worker process was given it with the item."""
        if item.n in work.envelopes:
            return partial(work.envelopes.__getitem__, item.n)
        return partial(self._read_envelope, item) if self.store is not None else None

    def _read_envelope(self, item: Item) -> Envelope:
        if self._envelopes is None:
            from holdfast.runtime.envelopes import EnvelopeReader  # most handlers never ask

            assert self.store is not None
            self._envelopes = EnvelopeReader(self.store, self.batch)
        return self._envelopes.of(item.n, item.revision)

    def own_envelopes(self, work: Assignment) -> dict[int, Envelope]:
        """Return the envelopes of the items, for a worker process, which has no store to ask; only if the handler takes
        a context."""
        if self.store is None or not self.handed.context:
            return {}
        return {item.n: self._read_envelope(item) for item in work.items}

    def timed_out(self, item: Item, work: Assignment, began: float) -> Outcome:
        """Return the outcome of an item whose handler did not answer in time."""
        return self._explain(item, self.too_late(), work, began, work.context_of(item))

    def too_late(self) -> TimeoutError:
        return TimeoutError(f"stage {self.stage.name!r} did not answer within {self.stage.timeout:g} s")

    def own_files(self, work: Assignment) -> dict[int, Identity]:
        """Return the older files of items that were sent back, by number, if they could be mistaken for those of
        another batch: for a worker process, which has no records to ask."""
        return {}

    def _explain(
        self, item: Item, error: BaseException, work: Assignment, began: float, ctx: Context | None, *,
        waits: bool = True,
    ) -> Outcome:  # fmt: skip
        if waits:
            await_stop(error, self.stopping)
        return explain(item, error, queued=max(0.0, began - work.ready_at), seconds=clock() - began, draw=self._draw(),
                       spend=ctx.paid(item.n) if ctx is not None else None)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The values that a run passes to the runners of a stage."""

    pipeline: "PipelineDefinition"
    store: Store
    options: Options
    stopping: Callable[[], bool]
    handed: Handed
    loan: Loan
    finished: Any
    """The queue to which checkpoints are posted."""
    admitted: Callable[[Admitted], None]
    """Called with items that are added to the batch on the way."""
    in_processes: bool


class StageRunner(Runner):
    """A slice of the items of one stage, run one after the other."""

    def __init__(
        self, stage: Stage, previous: Stage | None, *, pipeline: str, batch: str, stopping: Callable[[], bool],
        now: Callable[[], float] = time.time, handed: Handed | None = None, loan: Loan | None = None,
    ) -> None:  # fmt: skip
        super().__init__(stage, pipeline=pipeline, batch=batch, stopping=stopping, now=now, handed=handed, loan=loan)
        self.previous = previous
        self.touches_files = stage.sink is not None or (previous is not None and previous.sink is not None)
        self.reads_files = previous is not None and previous.sink is not None
        self._forks = forks.count
        self.asks = stage.verifier is not None or stage.adopter is not None
        """Whether a verifier or adopter of the user is called beside the handler, and may hang."""
        self._asker = Asker() if self.asks else None
        self._bare = None if self.handed.names else stage.function
        """The handler, if it takes no resources."""
        self.plain = not (self.handed.context or stage.sink or self.asks or stage.metrics)

    def close(self) -> None:
        if self._asker is not None:
            self._asker.close()
        super().close()

    def run(self, work: Assignment) -> None:
        """Run every item of an assignment, one after the other, and put the outcomes into it."""
        if self.may_not_begin(work):
            return
        handle = self._bare or self.handed.to(self.stage.function)
        current_batch.set((self.pipeline, self.batch))
        was_below, this_thread.is_below = this_thread.is_below, self.loan.is_below
        if self.plain:
            self._run_plain(work, handle)
        else:
            ended = clock()
            until = ended + work.patience
            for item in work.items:
                if work.abandoned or work.cut or ended > until:
                    break
                work.started = ended
                self._keep(work, item, self._attempt(item, work, ended, handle))
                ended = clock()
        current_batch.set(None)
        this_thread.is_below = was_below
        work.started = 0.0
        self.learn(work.outcomes)

    def _run_plain(self, work: Assignment, handle: Callable[..., Any]) -> None:
        """Run a stage with nothing around its handler: this loop is the whole overhead of a quick item."""
        decode, encode = self.stage.input.decode, self.stage.output.encode
        keep, armed = work.outcomes.append, faults.reach is not faults.unarmed
        ready_at, ended = work.ready_at, clock()
        until = ended + work.patience
        for item in work.items:
            if work.abandoned or work.cut or ended > until:
                return
            began = work.started = ended
            outcome: Outcome
            try:
                value = decode(item.input if item.input else self._input(item))
                if armed:
                    faults.reach("stage.before")
                made = handle(value)
                if armed:
                    faults.reach("stage.after")
                data = encode(made)
                if len(data) > OUTPUT_BYTES:
                    raise _too_large(data)
            except BaseException as error:  # noqa: BLE001 - a handler may raise anything; it becomes an outcome
                outcome = self._explain(item, error, work, began, None)
                ended = clock()
            else:
                ended = clock()
                outcome = Done(item, data, began - ready_at, ended - began)
            if forks.count != self._forks:
                _leave_child(self, item)
            if not work.abandoned:
                keep(outcome)

    def _keep(self, work: Assignment, item: Item, outcome: Outcome) -> None:
        if forks.count != self._forks:
            _leave_child(self, item)
        if not work.abandoned:
            work.outcomes.append(outcome)

    def _stay_parent(self, item: Item) -> None:
        """End this process if it is a child that a handler forked: it must not continue the work of its parent."""
        if forks.count != self._forks:
            _leave_child(self, item)

    def _attempt(self, item: Item, work: Assignment, began: float, handle: Callable[..., Any]) -> Outcome:
        ctx = work.ctx = self.context(item, work)
        try:
            ready, found = self._set_out(item, work)
            if found is not None:
                return found
            value = self.stage.input.decode(ready.input)
            faults.reach("stage.before")
            made = self._call(handle, value, ctx)
            faults.reach("stage.after")
            work.started = 0.0  # it has answered in time; the rest is not limited
            return self.finish(ready, made, ctx, work, began)
        except BaseException as error:  # noqa: BLE001 - see above
            return self._explain(item, error, work, began, ctx)

    def _call(self, handle: Callable[..., Any], value: Any, ctx: Context) -> Any:
        """Call the handler, with the context if it takes one."""
        if not self.handed.context:
            return handle(value)
        return handle(value, **{self.handed.context: ctx}) if self.handed.by_name else handle(value, ctx)

    async def attempt_async(self, item: Item, work: Assignment, began: float) -> Outcome:
        """Return the outcome of a coroutine; the loop stays free while it waits. Raises ResourceError."""
        handle = self._bare or self.handed.to(self.stage.function)
        ctx = work.contexts[item.n] = self.context(item, work)
        limit = asyncio.timeout(self.stage.timeout)
        aside = asyncio.to_thread if self.touches_files or self.asks else _at_once
        try:
            ready, found = await aside(self._set_out, item, work)
            if found is not None:
                return found
            value = self.stage.input.decode(ready.input)
            faults.reach("stage.before")
            try:
                async with limit:
                    made = await self._call(handle, value, ctx)
            finally:
                self._stay_parent(item)
            faults.reach("stage.after")
            return await aside(self.finish, ready, made, ctx, work, began)
        except BaseException as error:  # noqa: BLE001 - see above
            if isinstance(error, TimeoutError) and limit.expired():
                return self.timed_out(item, work, began)
            await await_stop_async(error, self.stopping)
            return self._explain(item, error, work, began, ctx, waits=False)

    def is_short(self, work: Assignment) -> bool:
        """Return whether its coroutines may use `attempt_plain`."""
        return self.plain and self.stage.timeout is None

    async def attempt_plain(self, item: Item, work: Assignment, began: float) -> Outcome:
        """Return the outcome of a coroutine with nothing around it: with a thousand coroutines on one thread every
        microsecond counts. Raises ResourceError."""
        handle = self._bare or self.handed.to(self.stage.function)
        try:
            value = self.stage.input.decode(item.input if item.input else self._input(item))
            faults.reach("stage.before")
            made = await handle(value)
            self._stay_parent(item)
            faults.reach("stage.after")
            data = self.stage.output.encode(made)
            if len(data) > OUTPUT_BYTES:
                raise _too_large(data)
        except BaseException as error:  # noqa: BLE001 - see above
            self._stay_parent(item)
            await await_stop_async(error, self.stopping)
            return self._explain(item, error, work, began, None, waits=False)
        queued = max(0.0, began - work.ready_at)
        return Done(item, data, queued, clock() - began)

    def _set_out(self, item: Item, work: Assignment) -> tuple[Item, Outcome | None]:
        """Return the input, and possibly an output that makes the handler unnecessary."""
        if item.source_file is not None and not item.input:
            item = msgspec.structs.replace(item, input=self._input(item))
        staged = self._adopt_staged(item, work)
        return item, staged if staged is not None else self._adopt_found(item, work)

    def finish(self, item: Item, made: Any, ctx: Context, work: Assignment, began: float) -> Outcome:
        """Return the outcome for the handler's result: validated, measured, verified, written to its sink."""
        stage = self.stage
        data = stage.output.encode(made)
        if len(data) > OUTPUT_BYTES:
            raise _too_large(data)
        spend = ctx.said(item.n)
        if (objection := self._objection(item, data, ctx, work)) is not None:
            raise Unverified(f"the output of stage {stage.name!r} does not hold: {objection}")
        file = self._stage(item, work, data, _bill(spend))
        if file is not None and len(data) > CARRIED_BYTES:
            data = b""
        return Done(item, data, max(0.0, began - work.ready_at), clock() - began, spend, file)

    def cut_off(self, item: Item, work: Assignment, began: float) -> Outcome:
        error = TimeoutError("its handler was running when the time was up, or when the run was asked to end at once")
        return excuse(self._explain(item, error, work, began, work.context_of(item), waits=False), "cut off")

    def _objection(self, item: Item, data: bytes, ctx: Context, work: Assignment) -> str | None:
        """Return the objection of the verifier, if any, against an output. It gets its own values, so that changes to
        them have no effect."""
        stage, verifier = self.stage, self.stage.verifier
        if verifier is None:
            return None
        given = stage.input.decode(item.input) if verifier.wants_item else None
        objection: str | None = self._ask(verifier, verifier.objection, work, stage.output.decode(data), given, ctx)
        return objection

    def _ask(self, check: Check, function: Callable[..., Any], work: Assignment, *args: Any) -> Any:
        """Call a check of the user; it has its own time limit, apart from the handler's."""
        began, started, work.started = clock(), work.started, 0.0
        try:
            assert self._asker is not None
            return self._asker.ask(function, *args, seconds=check.seconds)
        except BaseException as error:
            raise check.failed(error) from error
        finally:
            work.started = started + (clock() - began) if started else 0.0

    def _stage(self, item: Item, work: Assignment, data: bytes, note: bytes) -> bytes | None:
        """Return the record of the staged file, if the stage has a sink."""
        if self.stage.sink is None:
            return None
        self._stay_parent(item)
        if not work.may_stage(item):
            raise TimeoutError("its handler was abandoned before its output was written")
        try:
            return self.stage.sink.stage(self._provenance(item, work), data, note).encode()
        except OSError as error:
            raise SinkTrouble(f"the output of stage {self.stage.name!r} could not be written: {error}") from error

    def _adopt_staged(self, item: Item, work: Assignment) -> Outcome | None:
        """Return an output that an earlier run made, staged, and could not record: it is never paid for again."""
        sink = self.stage.sink
        if sink is None:
            return None
        try:
            file = sink.find(self._provenance(item, work))
        except OSError as error:
            raise SinkTrouble(f"the outputs of stage {self.stage.name!r} could not be read: {error}") from error
        if file is None:
            return None
        try:
            data = sink.read(file)
            self.stage.output.decode(data)
        except (SinkError, Invalid, OSError):
            return None
        if self._objection(item, data, self.context(item, work), work) is not None:
            return None
        paid = _paid(item, sink.note(file))
        return Done(item, data, 0.0, 0.0, paid, file.encode(), True)

    def _adopt_found(self, item: Item, work: Assignment) -> Outcome | None:
        """Return an output that an earlier attempt left in the outside world, if the stage's adopter finds it."""
        adopter = self.stage.adopter
        if adopter is None or not may_have_been_tried(item.place, resumed=work.resumed):
            return None
        ctx = self.context(item, work)
        found = self._ask(adopter, adopter.find, work, self.stage.input.decode(item.input), ctx)
        if found is None:
            return None
        try:
            data = self.stage.output.encode(found)
            if len(data) > OUTPUT_BYTES:
                raise _too_large(data)
        except Invalid as error:
            ctx.log.warning("%s found something for item %r that is not an output: %s", adopter.what, item.key, error)
            return None
        if (objection := self._objection(item, data, self.context(item, work), work)) is not None:
            ctx.log.warning("%s found something for item %r that does not hold: %s", adopter.what, item.key, objection)
            return None
        file = self._stage(item, work, data, b"")
        carried = b"" if file is not None and len(data) > CARRIED_BYTES else data
        return Done(item, carried, 0.0, 0.0, None, file, True)

    def _input(self, item: Item) -> bytes:
        """Return the input that a sink keeps in a file, checked."""
        assert self.previous is not None
        if self.previous.sink is None or item.source_file is None:
            raise InputLost(f"the output of stage {self.previous.name!r} was never recorded")
        try:
            return self.previous.sink.read(Evidence.decode(item.source_file))
        except OSError as error:
            raise SinkTrouble(
                f"the output of stage {self.previous.name!r} for item {item.key!r} could not be read: {error}"
            ) from error
        except SinkError as error:
            raise InputLost(f"the output of stage {self.previous.name!r} is gone or damaged: {error}") from error

    def _provenance(self, item: Item, work: Assignment) -> Provenance:
        return Provenance(
            pipeline=self.pipeline, batch=self.batch, stage=self.stage.name, n=item.n, epoch=item.place.epoch,
            fence=work.fence, input_digest=canonical.digest(item.input), key=item.key,
            replaces=work.replaces.get(item.n),
        )  # fmt: skip

    def own_files(self, work: Assignment) -> dict[int, Identity]:
        sink = self.stage.sink
        if not isinstance(sink, Files):
            return {}
        found: dict[int, Identity] = {}
        for item in work.items:
            if item.place.epoch:
                with suppress(HoldfastError, OSError):  # the item's own run reports the error
                    if (own := sink.own_file(self._provenance(item, work))) is not None:
                        found[item.n] = own
        return found


def _bill(spend: Spend | None) -> bytes:
    """Return the cost of an output as a note that stays with it: if the output is adopted, its cost is recorded."""
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


def _too_large(data: bytes) -> Invalid:
    text = (
        f"the output has {len(data):,} bytes, more than the limit of {OUTPUT_BYTES:,}: write it to a file and return "
        "its path, or return less"
    )
    return Invalid(text, "invalid_output")


def _leave_child(runner: StageRunner, item: Item) -> None:
    message = (
        f"holdfast: stage {runner.stage.name!r} forked while handling item {item.key!r}; the child ends here, the "
        "parent continues\n"
    )
    os.write(2, message.encode("utf-8", "replace"))
    os._exit(70)
