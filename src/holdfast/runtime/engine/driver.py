"""One hold on the calling thread, with a heartbeat beside it: used by a message, a tick and a redriven row.

The calling thread holds the lease and writes. The handler runs on it, or on a thread beside it that it watches.
"""

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Any

from holdfast.core.errors import HoldfastError
from holdfast.core.limits import LOAD_BYTES, ORPHAN_GRACE
from holdfast.core.model import Batch, Claim, ClaimRequest, Commit, Item, ItemNo, Receipt
from holdfast.core.outcome import Outcome
from holdfast.core.retry import Policy
from holdfast.core.settle import Reached, Settled
from holdfast.runtime.engine.assignment import Assignment, clock
from holdfast.runtime.engine.exchange import NEVER, Answer, CheckpointReached, Deadline
from holdfast.runtime.engine.hold import Hold, Saving
from holdfast.runtime.engine.leases import Heartbeat, HeldLease, new_commit_id, write
from holdfast.runtime.engine.pools import Finished, Refusal
from holdfast.stores.base import Idle, Store

log = logging.getLogger("holdfast.driver")

LOOK_SECONDS = 0.2
"""How often the lease is checked while a handler runs on a thread beside."""
LEAST_WAIT = 0.01
"""The shortest wait before a handler is checked again."""


class Left(StrEnum):
    """How the watch over a handler ended."""

    ENDED = "it came to its end"
    TIMED_OUT = "it did not answer within its timeout"
    TIME_UP = "the caller's time was up"
    LOST = "its lease was lost"


class Beside:
    """A handler on a thread beside the one that holds its lease."""

    def __init__(self, work: Assignment, finished: Finished) -> None:
        self.work = work
        self._finished = finished
        """The queue to which its checkpoints and its end are posted."""
        self.began = 0.0
        """When the handler that did not answer within its timeout had begun."""

    def run(self, call: Callable[[], None], *, timeout: float = math.inf, deadline: Deadline = NEVER,
            lost: Callable[[], bool] | None = None, save: Callable[[Saving], None] | None = None,
            leave: Callable[[], None] | None = None) -> Left:  # fmt: skip
        """Run the handler until it ends or must be left. Its checkpoints are saved on this thread; `lost` is called now
        and then. `leave` is called on the other thread at the end. Raises what the handler raised.

        Only the handler has a timeout: work before and after it, by verifiers, adopters and the sink, is not
        limited."""
        thread = threading.Thread(target=self._call, args=(call, leave), name="holdfast-beside", daemon=True)
        thread.start()
        try:
            while not self._is_over(self._next(timeout, deadline, lost is not None), save):
                if (why := self._why(timeout, deadline, lost)) is not None:
                    self.work.abandoned = True  # any later result is ignored; the handler learns of it at its next row
                    return why
        except BaseException:
            self.work.abandoned = True  # the store failed, or an interrupt came: the other thread must end
            raise
        return Left.ENDED

    def _call(self, call: Callable[[], None], leave: Callable[[], None] | None) -> None:
        end: Answer | Refusal
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
            end = Refusal(self.work, error)
        else:
            end = Answer(self.work, self.work.outcomes)
        finally:
            if leave is not None:
                leave()
        self._finished.put(end)

    def _next(self, timeout: float, deadline: Deadline, looks: bool) -> Any:
        """Return the next message of the other thread; None if there is none for as long as this thread can wait."""
        began, now = self.work.started, clock()
        until_late = max(LEAST_WAIT, began + timeout - now if began else timeout)
        wait = min(deadline.left(now), until_late, LOOK_SECONDS if looks else math.inf, threading.TIMEOUT_MAX)
        try:
            return self._finished.get(timeout=max(0.0, wait))
        except queue.Empty:
            return None

    def _is_over(self, message: Any, save: Callable[[Saving], None] | None) -> bool:
        if message is None or message.work is not self.work:
            return False
        if isinstance(message, Refusal):
            raise message.error
        if isinstance(message, CheckpointReached):
            assert save is not None
            save(message.saving)
        return isinstance(message, Answer)

    def _why(self, timeout: float, deadline: Deadline, lost: Callable[[], bool] | None) -> Left | None:
        """Return why the handler must be left, or None."""
        began, now = self.work.started, clock()
        if began and now - began > timeout:
            self.began = began
            return Left.TIMED_OUT
        if deadline.is_over(now):
            return Left.TIME_UP
        return Left.LOST if lost is not None and lost() else None


class LoneHold:
    """A hold whose commits are written one by one."""

    def __init__(self, store: Store, hold: Hold, lease: HeldLease, new_id: Callable[[], bytes] = new_commit_id) -> None:
        self._store, self.hold, self.lease, self._new_id = store, hold, lease, new_id
        self.is_over = False
        """It was given back, or another owner has it."""

    @property
    def claim(self) -> Claim:
        return self.hold.claim

    @property
    def lost(self) -> bool:
        return self.lease.lost

    def load(self, n: ItemNo) -> Item | None:
        """Return the item with that number; None if it is not pending under this hold."""
        items = self._store.load(self.claim, ItemNo(n - 1) if n else None, 1, LOAD_BYTES)
        return items[0] if items and items[0].n == n else None

    def assign(self, stage: int, item: Item, *, resumed: bool = False, fence: int | None = None) -> Assignment:
        """Return an assignment of one item; its handler sees the fence of the hold, unless another one is passed."""
        own = self.hold.lease.fence
        work = Assignment(stage, [item], own if fence is None else fence, clock(), self.hold, resumed)
        work.lease, work.kind = self.lease, self.claim.kind
        return work

    def start(self) -> Receipt | None:
        """Make durable that the item is about to run, if it is on trial; otherwise nothing is written."""
        return self.put(self.hold.start(self._new_id())) if self.hold.on_trial else None

    def settle(self, outcomes: Sequence[Outcome], policies: Sequence[Policy]) -> Settled:
        """Return what follows from outcomes."""
        self.hold.outcomes += outcomes
        return self.hold.settle(policies, self._store.now())

    def write(self, settled: Settled, *, release: bool = False, due: float = 0.0, reached: Reached | None = None,
              makers: Sequence[str] = ()) -> Receipt:  # fmt: skip
        """Commit what was settled and reached, and perhaps give the chunk back."""
        self.hold.reached = [] if reached is None else [reached]
        written = self.hold.commit(settled, self._new_id(), makers=makers, release=release, due=due)
        self.is_over = self.is_over or written.release
        return self.put(written)

    def put(self, written: Commit) -> Receipt:
        """Write one commit; if it is refused, the lease is lost."""
        (receipt,) = write(self._store, [written])
        if receipt.landed:
            self.hold.written(time.monotonic())
            self.lease.progressed()
        else:
            self.lose()
        return receipt

    def lose(self) -> None:
        self.lease.lost = self.is_over = True
        self.hold.lose()

    def release(self) -> None:
        """Give the chunk back unless that was done before, so that no process has to wait for the lease to expire."""
        if not self.is_over and not self.lost:
            self.is_over = True
            self.put(self.hold.release(self._new_id()))


class HoldDriver:
    """Claims and holds single items of one batch, on the thread that calls it."""

    def __init__(self, store: Store, batch: Batch, *, owner: str, seconds: float, stages: int,
                 every: float | None = None, new_id: Callable[[], bytes] = new_commit_id) -> None:  # fmt: skip
        self._store, self._batch, self._owner, self._stages = store, batch, owner, stages
        self._seconds, self._every, self._new_id = seconds, every, new_id
        self._heartbeat: Heartbeat | None = None
        self.trouble = ""
        """Why leases could not be renewed."""

    def claim(self, n: ItemNo) -> Claim | Idle:
        """Claim the chunk of an item; of a suspect, only the item, or first the items before it."""
        return self._store.claim(
            ClaimRequest(batch=self._batch.id, owner=self._owner, limit=1, seconds=self._seconds, only=n)
        )

    @contextmanager
    def held(self, claim: Claim) -> Iterator[LoneHold]:
        """Hold a claim: its lease is renewed meanwhile, and the claim is given back whatever happens."""
        heartbeat, self.trouble = self._beating(), ""
        lease = heartbeat.add(claim.lease)
        hold = Hold(claim, self._stages, self._seconds, moment=time.monotonic())
        lone = LoneHold(self._store, hold, lease, self._new_id)
        try:
            yield lone
        finally:
            heartbeat.remove(lease)
            with suppress(HoldfastError):  # perhaps the store itself failed: then the lease must expire
                lone.release()

    def give_back(self, claim: Claim) -> None:
        """Give a claim back as it was granted."""
        with self.held(claim):
            pass

    def close(self) -> None:
        """Stop the heartbeat; it begins again with the next hold."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None

    def _beating(self) -> Heartbeat:
        if self._heartbeat is None:
            grace = max(ORPHAN_GRACE, self._seconds)
            self._heartbeat = Heartbeat(self._store, self._seconds, grace=grace, every=self._every,
                                        on_trouble=self._in_trouble)  # fmt: skip
            self._heartbeat.start()
        return self._heartbeat

    def _in_trouble(self, why: str) -> None:
        log.warning("batch %s: the lease cannot be renewed: %s", self._batch.name, why)
        self.trouble = why
        if self._heartbeat is not None:
            self._heartbeat.lose_all()
