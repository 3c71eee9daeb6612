"""A lease in the hands of a tick: renewed beside, its handler on a thread, its checkpoints written by who holds it.

The calling thread holds the lease and writes; the handler runs on a thread beside it.
"""

import logging
import math
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from holdfast.core.errors import HoldfastError, StoreError
from holdfast.core.limits import ORPHAN_GRACE
from holdfast.core.model import Batch, Claim, Commit, Item, ItemNo
from holdfast.core.outcome import Deferred, Outcome, excuse
from holdfast.core.settle import NOTHING, Reached, commit
from holdfast.runtime.scans.burial import Burial
from holdfast.runtime.scans.runner import RangeRunner
from holdfast.runtime.scans.stage import RangeStage
from holdfast.runtime.working.assignment import Answer, Assignment, clock
from holdfast.runtime.working.heartbeat import Heartbeat
from holdfast.runtime.working.holding import Holding
from holdfast.runtime.working.pools import Finished
from holdfast.runtime.working.saving import Refusal, Saving
from holdfast.runtime.working.writing import write
from holdfast.stores import owners
from holdfast.stores.base import Store

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
        self.heartbeat = heartbeat
        self.store, self.stage, self.pipeline, self.batch, self.lease = store, stage, pipeline, batch, lease
        self.owner = owners.new_owner()
        self.finished: Finished = Finished()
        self.buried: list[ItemNo] = []
        """What was buried and nobody has heard of yet."""
        self.burial = Burial(store, batch.name, lambda admitted: self.buried.extend(admitted.dead))
        self.stop = Stop()

    # -- holding ------------------------------------------------------------------------------------------------

    @contextmanager
    def held(self, claim: Claim) -> Iterator[Holding]:
        """A lease: renewed beside, given back whatever happens."""
        holding = Holding(claim, 1, self.lease, 0)
        heartbeat = Heartbeat(self.store, self.lease, grace=max(ORPHAN_GRACE, self.lease),
                              on_trouble=lambda why: self._in_trouble(holding, why), every=self.heartbeat)  # fmt: skip
        heartbeat.add(holding)
        heartbeat.start()
        try:
            yield holding
        finally:
            heartbeat.stop()
            if not holding.lost and holding.left:
                with suppress(HoldfastError):  # perhaps the store is what failed: then the lease must run out
                    self.write(holding, NOTHING, release=True)

    def _in_trouble(self, holding: Holding, why: str) -> None:
        log.warning("batch %s: the lease cannot be kept: %s", self.batch.name, why)
        holding.lose()

    # -- a handler beside -----------------------------------------------------------------------------------------

    def beside(self, runner: RangeRunner, holding: Holding, item: Item, *, fence: int | None = None) -> Assignment:
        """Run the handler on a thread, and write its checkpoints here, until it comes to an end or must be left. It
        sees the fence of its lease, where no other is said."""
        work = Assignment(0, [item], holding.lease.fence if fence is None else fence, clock(), holding)
        thread = threading.Thread(target=self._run, args=(runner, work), name="holdfast-follow", daemon=True)
        thread.start()
        try:
            while not self._is_over(holding, work):
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

    def _is_over(self, holding: Holding, work: Assignment) -> bool:
        try:
            message = self.finished.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            message = None
        if isinstance(message, Saving):
            if message.work is work:
                message.answer(self.write(holding, NOTHING, reached=message.reached))
        elif isinstance(message, Refusal) and message.work is work:
            raise message.error
        elif isinstance(message, Answer) and message.work is work:
            return True
        if self.stop.at_once or holding.lost:
            work.abandoned = True  # a thread gets LeaseLost at its next row; whatever it still does is not committed
        return work.abandoned

    # -- writing --------------------------------------------------------------------------------------------------

    def write(self, holding: Holding, settled: Any, *, reached: Reached | None = None, release: bool = False,
              due: float = 0.0) -> bool:  # fmt: skip
        """Commit something under the lease, and perhaps give it back; whether that landed."""
        if holding.lost:
            return False
        landed = self.put(
            holding,
            commit(holding.holder, settled, commit_id=holding.new_commit_id(), release=release, due=due,
                   reached=[] if reached is None else [reached]),
        )  # fmt: skip
        if release:
            holding.left = 0
        if landed:
            self.buried += [ItemNo(each.n) for each in settled.attempts if each.outcome == "bury"]
        return landed

    def put(self, holding: Holding, written: Commit) -> bool:
        """Write one commit; the lease is lost where it is refused."""
        (receipt,) = write(self.store, [written])
        if receipt.landed:
            holding.version += 1
            holding.progressed_at = time.monotonic()
        else:
            log.warning("batch %s: a commit was refused (%s)", self.batch.name, receipt.reason)
            holding.lose()
        return receipt.landed


def refuse_trouble(outcome: Outcome) -> None:
    """Where the machine is in trouble, nothing more is tried; the rows stay where they are."""
    if isinstance(outcome, Deferred) and outcome.trouble:
        raise StoreError(f"{outcome.why}, then run again; nothing was buried for it")
