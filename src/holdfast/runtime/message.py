"""One item at a time, for programs that receive messages: admit it, claim exactly it, run its stages, commit each.

Whatever happens in between, the next delivery of the same message continues at the checkpoint: an admitted item is
known by its key, an item claimed by a dead process is claimed again, a staged output is adopted, and a finished item is
answered from the store. A message takes four writes or more: admitted, claimed, and committed after each stage.
"""

import asyncio
import logging
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary, WeakSet

from msgspec.structs import replace

from holdfast.core import course, ingest
from holdfast.core.course import Barrier
from holdfast.core.errors import HoldfastError, Refused, StoreError, Superseded
from holdfast.core.model import (
    Admitted,
    Batch,
    CommitRefusal,
    Item,
    ItemNo,
    ItemOrigin,
    Key,
    NewItem,
    Receipt,
    State,
    StoredItem,
)
from holdfast.core.outcome import Failed, Outcome
from holdfast.core.settle import Settled
from holdfast.core.states import keeps_outputs
from holdfast.core.verify import GoesBack
from holdfast.runtime import lookup
from holdfast.runtime.acts import Actor
from holdfast.runtime.define import definition
from holdfast.runtime.define.calls import current_batch
from holdfast.runtime.define.options import Changed, KeyFrom
from holdfast.runtime.define.stage import Stage
from holdfast.runtime.engine.assignment import Assignment, clock
from holdfast.runtime.engine.driver import Beside, HoldDriver, Left, LoneHold
from holdfast.runtime.engine.exchange import LEAST_SECONDS, NEVER, Deadline
from holdfast.runtime.engine.handover import Handover, make_calls
from holdfast.runtime.engine.hooks import tell_buried
from holdfast.runtime.engine.ingester import Ingester
from holdfast.runtime.engine.input_check import ask
from holdfast.runtime.engine.pools import Finished
from holdfast.runtime.engine.resources import Resources
from holdfast.runtime.engine.runner import StageRunner
from holdfast.runtime.operate import steer
from holdfast.runtime.report import reconcile
from holdfast.runtime.sinks.base import Evidence
from holdfast.runtime.text import in_utc
from holdfast.runtime.verify import ownership, recheck
from holdfast.runtime.verify.inspector import OutputInspector, value_of
from holdfast.runtime.verify.recheck import back, send_back
from holdfast.stores import owners
from holdfast.stores.base import Idle, Store, find_batch

if TYPE_CHECKING:
    from holdfast.runtime.define.pipeline import PipelineDefinition


WAITING, RUNNING, AGAIN = "waiting", "running", "again"
FINISHED = frozenset({State.DONE, State.SKIPPED, State.DEAD, State.CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """The answer of `process()`: the state of the item after the call."""

    key: Key
    """The key of the item."""
    number: int
    """Its number in the batch, from 0."""
    state: str
    """`done`, `skipped`, `dead` or `cancelled`; else `waiting` (until `due`), `running` (another process works on it)
    or `again` (it can be delivered again at once: the deadline came, or another process took it over)."""
    output: Any = None
    """The output of the last stage, validated, if the item is done."""
    stage: str = ""
    """The stage the item is at, while it is not done."""
    code: str = ""
    """The code of its error, if it is dead."""
    why: str = ""
    """The reason for the state, in words."""
    due: float | None = None
    """When it may be tried again, in seconds since 1970, while it waits."""

    @property
    def is_finished(self) -> bool:
        """Whether the message can be acknowledged: the item is done, skipped, dead or cancelled, and that is
        recorded."""
        return self.state in FINISHED

    @property
    def run_again(self) -> bool:
        """Whether the message has to be delivered again, now or later."""
        return not self.is_finished


def describe_item(
    stored: StoredItem, stages: list[Stage], *, state: str | None = None, output: Any = None, why: str = "",
    due: float | None = None,
) -> Processed:  # fmt: skip
    """Return the answer for an item as it is stored; `state` if that says more than what is stored."""
    place = stored.place
    stage = stages[place.stage].name if place.stage < len(stages) else ""
    return Processed(
        key=stored.key, number=stored.n, state=state if state is not None else str(place.state), output=output,
        stage=stage, code=place.code, why=why if why else place.reason, due=due,
    )  # fmt: skip


def output_of_item(store: Store, batch: Batch, stored: StoredItem, stages: list[Stage]) -> Any:
    """Return the recorded output of the last stage, validated. Raises like `value_of`."""
    last = len(stages) - 1
    outputs = store.outputs(batch.id, lo=stored.n, hi=stored.n + 1, stage=last, limit=1)
    if not outputs:
        return None
    return value_of(stages[last], outputs[0], batch.name, stored)


TURN_SECONDS = 0.5
"""How long a coroutine that was given up may block the loop before the loop is abandoned."""


class Inline:
    """Runs stages one at a time; coroutines on the event loop of the process."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._at_work: asyncio.Task[Any] | None = None

    def run(self, runner: StageRunner, work: Assignment, deadline: Deadline) -> Outcome | None:
        """Return the outcome of the item; None if it was not begun, or did not end before the deadline."""
        stage = runner.stage
        timeout = stage.timeout if stage.timeout is not None and not stage.is_async else math.inf
        call = self._coroutine(runner, work) if stage.is_async else lambda: runner.run(work)
        if timeout == math.inf and deadline is NEVER:
            handled_here = current_batch.get()
            try:
                call()
            finally:
                current_batch.set(handled_here)
        else:
            beside = Beside(work, Finished())
            left = beside.run(call, timeout=timeout, deadline=deadline, leave=self._resources.leave_thread)
            if left is not Left.ENDED:
                return self._give_up(runner, work, beside.began)
        return work.outcomes[0] if work.outcomes else None

    def _coroutine(self, runner: StageRunner, work: Assignment) -> Callable[[], None]:
        home = self._resources.home

        async def attempt() -> Outcome:
            self._at_work = asyncio.current_task()
            current_batch.set((runner.pipeline, runner.batch))
            return await runner.attempt_async(work.items[0], work, clock())

        def call() -> None:
            if not runner.may_not_begin(work):
                outcome = home.run(attempt())
                if not work.abandoned:
                    work.outcomes.append(outcome)

        return call

    def _give_up(self, runner: StageRunner, work: Assignment, began: float) -> Outcome | None:
        """Ignore the rest of the handler; a coroutine is cancelled, and if it blocks the loop, the loop is abandoned.
        `began` is 0 if it had no timeout, or was still within it."""
        if runner.stage.is_async and self._at_work is not None:
            self._leave(self._at_work)
        if work.outcomes:
            return work.outcomes[0]
        if began:
            return runner.timed_out(work.items[0], work, began)
        is_begun = work.started > 0 or work.items[0].n in work.contexts
        return runner.cut_off(work.items[0], work, work.started or work.ready_at) if is_begun else None

    def _leave(self, at_work: "asyncio.Task[Any]") -> None:
        home = self._resources.home
        home.soon(at_work.cancel)
        if not home.turns(TURN_SECONDS) and asyncio.current_task(home.loop) is at_work:
            self._resources.lose_home()


log = logging.getLogger("holdfast.process")

_begun: WeakSet[Stage] = WeakSet()
"""Stages whose `before` hooks have ended in this process."""
_beginning: WeakKeyDictionary[Stage, threading.RLock] = WeakKeyDictionary()
"""The thread that has the lock of a stage calls its hooks; the items of other threads wait."""
_registering = threading.Lock()


class Processor(Handover):
    """Handles items of one batch, one after the other, on the calling thread."""

    def __init__(
        self, pipeline: "PipelineDefinition", *, batch: str, key: KeyFrom, changed: Changed, lease: float,
        deadline: float | None = None,
    ) -> None:  # fmt: skip
        self.pipeline, self.stages, self.store = pipeline, pipeline.stages, pipeline.store
        self.resources = Resources(pipeline)
        self.policies = [stage.policy for stage in self.stages]
        self.makers = [stage.maker for stage in self.stages]
        self.owner = owners.new_owner()
        self.lease = lease
        self.deadline = Deadline.of(deadline, time.monotonic())
        self.key: KeyFrom = None
        self.owned = ownership.own(self.store, pipeline.name, batch, self.stages)
        try:
            self.batch = self._open(batch, key)
        except BaseException:
            self.owned.close()
            raise
        self.ingester = Ingester(self.store, self.batch, self.stages[0].input, key=self.key, identity="key",
                                 changed=changed, owner=self.owner, rerun=self._rerun)  # fmt: skip
        self.ingester.origin = replace(self.ingester.origin_of(None), source="a message")
        self.inline = Inline(self.resources)
        self.inspector = OutputInspector(self.stages, pipeline=pipeline.name, batch=batch, uid=self.batch.uid)
        self.runners = [self._runner(index) for index in range(len(self.stages))]
        self.driver = HoldDriver(self.store, self.batch, owner=self.owner, seconds=lease, stages=len(self.stages))
        self._has_written = False
        """Whether anything was written for the current item."""
        self._slowest: dict[int, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.driver.close()
        self.owned.close()
        self.inspector.close()
        for runner in self.runners:
            runner.close()
        self.resources.close()

    def process(self, raw: Any) -> Processed:
        """Admit the item, or find it; then bring it as far as possible. The process that settles the last item
        publishes the end."""
        item = self.ingester.freeze(raw, None)
        known = self.store.known(self.batch.id, [item])
        if not known:
            self.owned.check_idle(self.batch.name)
            admitted = self._admit(item)
            known = {} if admitted.added else self.store.known(self.batch.id, [item])
        if known:
            self.ingester.settle_changed([item], ingest.sort_out([item], known, 0)[1])
        n = known[0][0] if known else admitted.lo
        if not known and admitted.dead:
            self._tell_buried(n)
        self._has_written = not known
        result = self._bring_on(n)
        if result.is_finished:
            self._look_for_end(n)
        return result

    def _admit(self, item: NewItem) -> Admitted:
        self._check_end()
        try:
            return self.store.add_items(self.batch.id, [item], actor=self.owner, origin=self.ingester.origin)
        except Refused:
            now = find_batch(self.store, self.batch.name)
            if now is not None and now.closed_at is not None and now.sealed_at is None:
                steer.note_turned_away(self.store, now, actor=self.owner)
            raise

    def _check_end(self) -> None:
        """Refuse a new item after the end of the batch. An item that is admitted at that very moment is cancelled."""
        if not course.has_ended(self.batch, self.store.now()):
            return
        self.batch = lookup.batch_named(self.store, self.batch.name)  # it may have a later end by now
        if self.batch.sealed_at is None and course.barrier(self.batch, self.store.now()) is Barrier.UNTIL:
            raise Refused(
                f"batch {self.batch.name!r} ended at {in_utc(self.batch.ends_at or 0.0)}: it takes no new items; "
                "give it a later end (`until`), or send this item to another batch"
            )

    def _look_for_end(self, n: ItemNo) -> None:
        """Publish the end of the batch, if it has come. A settled item may be delivered again forever: then an end that
        is already recorded is enough. An error here is left to the next check: the item is finished."""
        sinks = {index: stage.sink for index, stage in enumerate(self.stages) if stage.sink is not None}
        try:
            message = reconcile.LastMessage(n, again=not self._has_written)
            reconcile.look_for_end(self.store, self.batch, actor=self.owner, sinks=sinks, message=message)
        except HoldfastError as error:
            log.warning("could not check whether batch %s has ended: %s", self.batch.name, error)

    # -- finding it ---------------------------------------------------------------------------------------------

    def _open(self, name: str, key: KeyFrom) -> Batch:
        """Return the batch. Changes of its program code are left to the next run: instances of two versions may be
        running, and each would change it back."""
        known = find_batch(self.store, name)
        self.key = definition.remembered_key(known, key, "key")
        described = definition.describe(
            self.pipeline.name, self.stages, definition.keyed_by(self.key, "key"), self.pipeline.patience
        )
        if known is None:
            known = self.store.open_batch(name, self.pipeline.name, described, actor=self.owner)
            self.owned.settle(known)
        definition.check(known, self.pipeline.name, described, reads_items=True)
        return known

    def _rerun(self, n: ItemNo, item: NewItem, origin: ItemOrigin) -> None:
        left = recheck.LeftAlone()
        recheck.renew(self.store, self.batch, n, item, left, origin=origin, actor=self.owner)
        if left.count:
            log.warning("%s", left.warning(self.batch.name))
        elif item.place.state is State.DEAD:
            self._tell_buried(n)

    def _runner(self, index: int) -> StageRunner:
        runner = StageRunner(
            self.stages[index], self.stages[index - 1] if index else None, pipeline=self.pipeline.name,
            batch=self.batch.name, stopping=lambda: self.deadline.is_over(time.monotonic()), now=self.store.now,
            handed=self.resources.of(self.stages[index]), loan=self.resources.loan,
        )  # fmt: skip
        runner.store = self.store
        return runner

    def stored(self, n: ItemNo) -> StoredItem:
        return self.store.items(self.batch.id, lo=n, hi=n + 1, limit=1)[0]

    def verified(self, n: ItemNo) -> StoredItem:
        stored = self._looked_over(n)
        if stored.place.state is State.PENDING:
            self.owned.check_idle(self.batch.name)
        return stored

    def _looked_over(self, n: ItemNo) -> StoredItem:
        """Return the item as it is after the files it depends on were inspected: a missing output is made again."""
        stored = self.stored(n)
        looks = stored.place.state in (State.DONE, State.PENDING, State.SKIPPED) and keeps_outputs(stored.place)
        if not looks or not any(stage.sink for stage in self.stages):
            return stored
        outputs = self.store.outputs(self.batch.id, lo=n, hi=n + 1)
        past = recheck.past_of(stored, outputs, fence=0)
        try:
            decision = self.inspector.look_over(past, full=False, digests={})
        except OSError as error:
            raise StoreError(f"recorded outputs of item {stored.key!r} could not be checked: {error}") from error
        if not isinstance(decision, GoesBack):
            return stored
        sent = back(past.key, n, stored.place, decision.stage, len(self.stages), reason=decision.why)
        if send_back(self.store, self.batch, [sent], Actor(name=self.owner, reason=decision.why)).buried:
            self._tell_buried(n)
        return self.stored(n)

    # -- bringing it on -----------------------------------------------------------------------------------------

    def _bring_on(self, n: ItemNo) -> Processed:
        brought = make_calls(self.bring_on(n))
        stored = brought.stored
        if brought.idle is not None:
            return self._not_ours(stored, brought.idle)
        if stored.place.state is not State.PENDING:
            return self._answer(stored)
        if brought.due is not None:
            return self._waiting(stored, brought.due)
        return describe_item(stored, self.stages, state=AGAIN, why=brought.why)

    def now(self) -> float:
        return self.store.now()

    def look_again(self) -> None:
        for stage in self.stages:
            if stage.sink is not None:
                stage.sink.look_again()

    def ask(self, item: Item, hold: LoneHold) -> Outcome | None:
        return ask(self.inspector, self.store, item, hold.hold, random.random())  # noqa: S311

    def run(self, item: Item, hold: LoneHold, resumed: bool) -> Outcome | None:
        at = item.place.stage
        self.runners[at].handed.open()
        self._begin(self.stages[at])
        began, work = clock(), hold.assign(at, item, resumed=resumed)
        outcome = self.inline.run(self.runners[at], work, self.deadline)
        self._slowest[at] = max(self._slowest.get(at, 0.0), clock() - began)
        if isinstance(outcome, Failed) and outcome.code == "KeyboardInterrupt" and _is_main():
            raise KeyboardInterrupt
        return outcome

    def _begin(self, stage: Stage) -> None:
        """Call the `before` hooks of a stage, once in a process; if they raise, the next item calls them again."""
        if stage in _begun:
            return
        with _registering:
            lock = _beginning.setdefault(stage, threading.RLock())
        with lock:
            if stage not in _begun:
                stage.hooks.before.call(self.batch.name)
                _begun.add(stage)

    def has_time(self, stage: int) -> bool:
        """Return whether to begin a stage: not if it took longer before than there is time, unless nothing was begun at
        all, because a stage that takes longer than the whole time would never begin."""
        return self.deadline.has_time(time.monotonic(), max(LEAST_SECONDS, self._slowest.get(stage, 0.0)))

    # -- committing ---------------------------------------------------------------------------------------------

    def check(self, receipt: Receipt | None) -> None:
        """Refuse to continue if the batch was sealed meanwhile."""
        if receipt is None:
            return
        self._has_written = self._has_written or receipt.landed
        if receipt.reason is CommitRefusal.SEALED:
            raise Refused(f"batch {self.batch.name!r} was sealed meanwhile: the outcome is not recorded")

    def sync(self, settled: Settled) -> None:
        for stage, evidence in self._evidence(settled):
            try:
                stage.sink.sync_folders([evidence])  # type: ignore[union-attr]
            except OSError as error:
                raise StoreError(f"the output of stage {stage.name!r} could not be made durable: {error}") from error

    def publish(self, settled: Settled, outcome: Outcome) -> None:
        self._name_outputs(settled)
        if settled.events:
            self._tell_buried(outcome.item.n)

    def _name_outputs(self, settled: Settled) -> None:
        for stage, evidence in self._evidence(settled):
            try:
                stage.sink.publish([evidence])  # type: ignore[union-attr]
            except OSError as error:
                log.warning("an output of stage %s is safe, but has no final name yet: %s", stage.name, error)

    def _evidence(self, settled: Settled) -> list[tuple[Stage, Evidence]]:
        found = [(self.stages[output.stage], output.file) for output in settled.outputs]
        return [(stage, Evidence.decode(file)) for stage, file in found if file is not None and stage.sink is not None]

    # -- answering ----------------------------------------------------------------------------------------------

    def _answer(self, stored: StoredItem) -> Processed:
        output = None
        if stored.place.state is State.DONE:
            try:
                output = output_of_item(self.store, self.batch, stored, self.stages)
            except Superseded as error:
                return describe_item(stored, self.stages, why=str(error))
        return describe_item(stored, self.stages, output=output)

    def _waiting(self, stored: StoredItem, due: float, why: str = "") -> Processed:
        return describe_item(stored, self.stages, state=WAITING, due=due, why=why)

    def _not_ours(self, stored: StoredItem, idle: Idle) -> Processed:
        """Return why there was nothing to claim."""
        if stored.place.state is not State.PENDING:
            return self._answer(stored)
        if idle.held:
            return describe_item(stored, self.stages, state=RUNNING, why="another process is handling it")
        if idle.why in (Barrier.CANCELLED, Barrier.UNTIL):
            return self._cancelled(stored)
        if idle.why is Barrier.PAUSED:
            return describe_item(stored, self.stages, state=WAITING, why="the batch is paused")
        if idle.next_due is not None and idle.next_due > self.store.now():
            return self._waiting(stored, idle.next_due)
        return describe_item(stored, self.stages, state=AGAIN, why="another process was handling it until now")

    def _cancelled(self, stored: StoredItem) -> Processed:
        """Record that the item is cancelled, as a run does: its batch is over, and no process holds it."""
        batch = lookup.batch_named(self.store, self.batch.name)
        steer.clear_one(self.store, batch, stored, actor=self.owner)
        self._has_written = True
        now = self.stored(stored.n)
        if now.place.state is not State.PENDING:
            return self._answer(now)
        return describe_item(now, self.stages, state=AGAIN, why="another process was handling it until now")

    def _tell_buried(self, n: ItemNo) -> None:
        tell_buried(self.pipeline, self.store, self.batch.name, [n])


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
