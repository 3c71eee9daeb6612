"""A lease in the hands of a tick: renewed beside, its handler on a thread, its checkpoints written by who holds it.

The calling thread holds the lease and writes; the handler runs on a thread beside it.
"""

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.core import retry
from holdfast.core.errors import StoreError
from holdfast.core.model import Batch, Checkpoint, Claim, Item, ItemNo, Key, Place, State
from holdfast.core.outcome import Deferred, Done, Outcome, excuse
from holdfast.core.settle import NOTHING, Reached, Settled
from holdfast.runtime.engine import remote
from holdfast.runtime.engine.assignment import Assignment
from holdfast.runtime.engine.driver import HoldDriver, LoneHold
from holdfast.runtime.engine.exchange import Answer, CheckpointReached
from holdfast.runtime.engine.pools import Finished, Refusal
from holdfast.runtime.engine.processes import Host
from holdfast.runtime.scan.isolation import GONE, Burial
from holdfast.runtime.scan.partition import RangeRunner, RangeStage
from holdfast.runtime.scan.process import ProcessRunner
from holdfast.runtime.scan.rows import Careful, Feed, Interval
from holdfast.runtime.scan.walk import Walk
from holdfast.stores import owners
from holdfast.stores.base import Idle, each_item

if TYPE_CHECKING:
    from holdfast.runtime.define.pipeline import PipelineDefinition

log = logging.getLogger("holdfast.follow")

LOOK_SECONDS = 0.2
SHARE = 0.1
"""What of its time a tick keeps to end cleanly."""


class Stop:
    """When to come to an end: a deadline on the monotonic clock, or somebody said so."""

    def __init__(self, deadline: float | None = None) -> None:
        self.deadline = math.inf if deadline is None else deadline
        self._began = time.monotonic()
        self._said = threading.Event()
        self.signalled = False
        """A signal said so: what fails from now on may have got the same signal."""
        self.ctrl_c = False

    def say(self) -> None:
        self._said.set()

    def signal(self, *, ctrl_c: bool) -> None:
        """A signal says so."""
        self.signalled, self.ctrl_c = True, self.ctrl_c or ctrl_c
        self.say()

    def fairly(self, outcome: Outcome) -> Outcome:
        """The outcome as it shall count: what failed after a signal was interrupted."""
        return excuse(outcome, "interrupted") if self.signalled else outcome

    @property
    def was_said(self) -> bool:
        return self._said.is_set()

    @property
    def now(self) -> bool:
        """Whether to go no further than the next checkpoint."""
        early = 0.0 if self.deadline == math.inf else SHARE * (self.deadline - self._began)
        return self.was_said or time.monotonic() >= self.deadline - early

    @property
    def at_once(self) -> bool:
        return time.monotonic() >= self.deadline

    def wait(self, seconds: float) -> bool:
        """Wait; False where there is no time for that."""
        if self.was_said or time.monotonic() + seconds >= self.deadline:
            return False
        return not self._said.wait(seconds)


class Handling:
    """What one process needs to hold a lease of a batch that follows, and to work under it."""

    def __init__(self, pipeline: "PipelineDefinition", stage: RangeStage, *, batch: Batch, lease: float,
                 heartbeat: float | None = None) -> None:  # fmt: skip
        self.store, self.stage, self.pipeline, self.batch, self.lease = pipeline.store, stage, pipeline, batch, lease
        store = self.store
        self.owner = owners.new_owner()
        self.finished: Finished = Finished()
        self.buried: list[ItemNo] = []
        """What was buried and nobody has heard of yet."""
        self.burial = Burial(store, batch.name, lambda admitted: self.buried.extend(admitted.dead))
        self.stop = Stop()
        self._driver = HoldDriver(store, batch, owner=self.owner, seconds=lease, stages=1, every=heartbeat)
        self._holds = 0

    # -- holding ------------------------------------------------------------------------------------------------

    def claim(self, n: ItemNo) -> Claim | Idle:
        return self._driver.claim(n)

    @contextmanager
    def held(self, claim: Claim) -> Iterator[LoneHold]:
        """Hold a claim: its lease is renewed beside, and it is given back whatever happens."""
        self._holds += 1
        try:
            with self._driver.held(claim) as hold:
                yield hold
        finally:
            self._holds -= 1
            if not self._holds:
                self._driver.close()

    # -- a handler beside -----------------------------------------------------------------------------------------

    def beside(self, runner: RangeRunner, hold: LoneHold, item: Item, *, fence: int | None = None) -> Assignment:
        """Run the handler on a thread, and write its checkpoints here, until it comes to an end or must be left. It
        sees the fence of its lease, where no other is said."""
        work = hold.assign(0, item, fence=fence)
        thread = threading.Thread(target=self._run, args=(runner, work), name="holdfast-follow", daemon=True)
        thread.start()
        try:
            while not self._is_over(hold, work):
                pass
        except BaseException:
            work.abandoned = True  # the store failed, or somebody interrupts: the handler's thread shall end, too
            raise
        finally:
            runner.close()
        return work

    def _run(self, runner: RangeRunner, work: Assignment) -> None:
        try:
            runner.run(work)
        except BaseException as error:  # noqa: BLE001 - no process can be had, or the like: nobody else would hear of it
            self.finished.put(Refusal(work, error))
        else:
            self.finished.put(Answer(work, work.outcomes))

    def _is_over(self, hold: LoneHold, work: Assignment) -> bool:
        try:
            message = self.finished.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            message = None
        if isinstance(message, CheckpointReached):
            if message.work is work:
                landed = self.write(hold, NOTHING, reached=message.saving.reached)
                message.saving.waiter.answer(landed)
        elif isinstance(message, Refusal) and message.work is work:
            raise message.error
        elif isinstance(message, Answer) and message.work is work:
            return True
        if self.stop.at_once or hold.lost:
            work.abandoned = True  # a thread gets LeaseLost at its next row; whatever it still does is not committed
        return work.abandoned

    # -- writing --------------------------------------------------------------------------------------------------

    def write(self, hold: LoneHold, settled: Settled, *, reached: Reached | None = None, release: bool = False,
              due: float = 0.0) -> bool:  # fmt: skip
        """Commit something under the lease, and perhaps give it back; return whether that landed."""
        if hold.lost:
            return False
        receipt = hold.write(settled, release=release, due=due, reached=reached)
        if not receipt.landed:
            log.warning("batch %s: a commit was refused (%s)", self.batch.name, receipt.reason)
            return False
        self.buried += [ItemNo(each.n) for each in settled.attempts if each.outcome == "bury"]
        return True


def refuse_trouble(outcome: Outcome) -> None:
    """Where the machine is in trouble, nothing more is tried; the rows stay where they are."""
    if isinstance(outcome, Deferred) and outcome.trouble:
        raise StoreError(f"{outcome.why}, then run again; nothing was buried for it")


class FollowRunner(RangeRunner):
    """Walks over a feed that was opened before, and leaves in the assignment how far it came."""

    def __init__(self, stage: RangeStage, *, pipeline: str, batch: str, stopping: Callable[[], bool],
                 now: Callable[[], float], finished: Finished, burial: Burial, feed: Feed, at: Checkpoint | None,
                 careful: bool, condemned: str) -> None:  # fmt: skip
        super().__init__(stage, pipeline=pipeline, batch=batch, stopping=stopping, now=now, finished=finished,
                         burial=burial)  # fmt: skip
        self._feed, self._at = feed, at
        self._careful, self._condemned = careful, condemned

    def _walk(self, work: Assignment, item: Item, ctx: Any) -> Walk:
        every = self.ranges.every
        interval = Careful(every) if self._careful else Interval(every)
        return self.walk_over(self._feed, interval, work, ctx, self._at, condemned=self._condemned)

    def _done(self, walk: Walk, result: Any, work: Assignment, ctx: Any, began: float) -> Done | None:
        """What is there was handled: the last checkpoint and the release are one commit."""
        self.refuse_rows_left(walk)
        work.reached = walk.reached(is_last=True)
        return None


FIRST = ItemNo(0)
"""The item that a scan which follows has from its first moment, and that never ends."""
NAMED = 5
"""Rows that are named one by one."""
REFRESH_SECONDS = 60.0
"""How often a process asks for what others may have done, where asking costs more than it is likely to find."""


class Waiting(NamedTuple):
    """A row that was redriven and is not handled yet."""

    n: ItemNo
    due: float


class Again(NamedTuple):
    """What became of rows that were redriven."""

    done: int = 0
    waiting: int = 0
    """Rows that wait for another attempt."""
    buried: int = 0
    left: bool = False
    """There was no time for all of them."""
    due: float | None = None
    """When the first of those that wait may be tried again."""
    why: str = ""
    """What the first of them failed for that was not handled."""
    gone: tuple[Key, ...] = ()
    """Those that are not in the source any more."""

    @property
    def told(self) -> str:
        """What to know about them."""
        more = len(self.gone) - NAMED
        rest = f" and {more:,} more" if more > 0 else ""
        gone = f"{', '.join(map(str, self.gone[:NAMED]))}{rest}: {GONE}" if self.gone else ""
        return "; ".join(each for each in (self.why, gone) if each)


class Redriving:
    """The rows of one batch that were redriven."""

    def __init__(self, handling: Handling) -> None:
        self._with = handling
        self._admitted = handling.batch.admitted
        self._asked = time.monotonic()
        self._looked = -math.inf
        self._found = False

    def waiting(self, *, at_once: bool = False) -> list[Waiting]:
        """Rows that are on their way again, due or not. Where no row was ever buried, nothing is read."""
        if not self._were_buried() or not (at_once or self._is_worth_it()):
            return []
        store, batch = self._with.store, self._with.batch.id
        self._looked = time.monotonic()
        now = store.now()
        found = [
            Waiting(item.n, retry.item_waits_until(item.place, now))
            for chunk in store.chunks(batch) if chunk.lo > FIRST and chunk.pending
            for item in each_item(store, batch, lo=chunk.lo, hi=chunk.hi, state=State.PENDING)
        ]  # fmt: skip
        self._found = bool(found)
        return found

    def _were_buried(self) -> bool:
        if self._admitted == 1 and time.monotonic() - self._asked > REFRESH_SECONDS:
            self._asked = time.monotonic()
            found = self._with.store.batch(self._with.batch.name)
            self._admitted = found.admitted if found is not None else 1
        return self._admitted > 1 or self._with.burial.count > 0

    def _is_worth_it(self) -> bool:
        """Every tick looks where that is one read. In a bucket it is a listing, paid for by the request: there a
        process looks at first, and then once a minute, unless rows are known to be on their way."""
        if self._with.store.capabilities.one_clock or self._found:
            return True
        return time.monotonic() - self._looked > REFRESH_SECONDS

    def handle(self, rows: list[Waiting], over: LoneHold) -> Again:
        """Handle those that are due, each as a range of one row, under the fence of the range that is held."""
        handling, told = self._with, Again()
        for row in rows:
            if handling.stop.now or over.lost:
                return told._replace(left=True)
            if row.due > handling.store.now():
                told = _waits(told, row.due)
                continue
            told = self._again(row.n, over.hold.lease.fence, told)
        return told

    def _again(self, n: ItemNo, fence: int, told: Again) -> Again:
        handling = self._with
        claim = handling.claim(n)
        if not isinstance(claim, Claim):  # in the hands of a process that was killed, until its lease has run out
            return _waits(told, claim.next_due)
        with handling.held(claim) as hold:
            item = hold.load(n)
            if item is not None:
                return self._settled(hold, item, fence, told)
        return _waits(told, None)  # what stands before it in a suspect was granted: next time it comes alone

    def _settled(self, hold: LoneHold, item: Item, fence: int, told: Again) -> Again:
        handling = self._with
        outcomes, reached = self._tried(hold, item, fence)
        if not outcomes:
            return told._replace(left=True) if handling.stop.now else _waits(told, None)
        outcomes = [handling.stop.fairly(outcome) for outcome in outcomes]
        settled = hold.settle(outcomes, [handling.stage.policy])
        if not handling.write(hold, settled, reached=reached if settled.counts.done else None, release=True):
            return _waits(told, None)
        for outcome in outcomes:
            refuse_trouble(outcome)
        if settled.counts.skipped and settled.moves[0].place.reason == GONE:
            return told._replace(gone=(*told.gone, item.key))
        if settled.counts.done or settled.counts.skipped:
            return told._replace(done=told.done + 1)
        place = settled.moves[0].place
        why = told.why if told.why else in_words(item.key, place)
        if place.state is State.PENDING:
            return _waits(told, place.due)._replace(why=why)
        return told._replace(buried=told.buried + 1, why=why)

    def _tried(self, hold: LoneHold, item: Item, fence: int) -> tuple[list[Outcome], Reached | None]:
        """What came of an attempt. A row whose process died too often while it was handled is not tried again."""
        if hold.hold.is_condemned:
            return [hold.hold.condemned(item)], None
        hold.start()
        work = self._with.beside(self._runner(), hold, item, fence=fence)
        return ([] if work.abandoned else work.outcomes), work.reached

    def _runner(self) -> RangeRunner:
        handling, stage = self._with, self._with.stage
        told: dict[str, Any] = {
            "pipeline": handling.pipeline.name, "batch": handling.batch.name, "finished": handling.finished,
            "stopping": lambda: handling.stop.now, "now": handling.store.now,
        }  # fmt: skip
        if stage.executor == "processes":
            return ProcessRunner(stage, host=Host(remote.address(handling.pipeline)), **told)
        return RangeRunner(stage, **told)


def in_words(key: Key, place: Place) -> str:
    """Why a row was not handled."""
    return f"{key}: {place.code}: {place.reason}"


def _waits(told: Again, due: float | None) -> Again:
    soonest = [each for each in (told.due, due) if each is not None]
    return told._replace(waiting=told.waiting + 1, due=min(soonest) if soonest else None)
