"""A lease in the hands of a tick: renewed beside, its handler on a thread, its checkpoints written by who holds it.

The calling thread holds the lease and writes; the handler runs on a thread beside it.
"""

import logging
import math
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.core.errors import StoreError
from holdfast.core.model import Batch, Claim, Item, ItemNo
from holdfast.core.outcome import Deferred, Outcome, excuse
from holdfast.core.settle import NOTHING, Reached, Settled
from holdfast.runtime.engine.assignment import Assignment
from holdfast.runtime.engine.driver import HoldDriver, LoneHold
from holdfast.runtime.engine.exchange import Answer, CheckpointReached
from holdfast.runtime.engine.pools import Finished, Refusal
from holdfast.runtime.scans.burial import Burial
from holdfast.runtime.scans.runner import RangeRunner
from holdfast.runtime.scans.stage import RangeStage
from holdfast.stores import owners
from holdfast.stores.base import Idle, Store

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

    def __init__(self, store: Store, stage: RangeStage, *, pipeline: str, batch: Batch, lease: float,
                 heartbeat: float | None = None) -> None:  # fmt: skip
        self.store, self.stage, self.pipeline, self.batch, self.lease = store, stage, pipeline, batch, lease
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
