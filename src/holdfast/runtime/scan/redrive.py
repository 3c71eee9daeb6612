"""Rows that were buried and redriven: handled under the fence of their scan.

A tick handles them while it holds the partition, and their handler sees the fence of the partition: so the fences that
a handler sees only grow over a scan, whether a row came with its partition or later. The commit of a row is guarded by
its own fence. One read finds out whether there are any; none is needed if no row was ever buried.
"""

import logging
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core import retry
from holdfast.core.model import Batch, Checkpoint, Claim, Item, ItemNo, ItemState, Key, Kind, State
from holdfast.core.outcome import Outcome, excuse
from holdfast.core.settle import NOTHING, Reached, Settled
from holdfast.runtime.engine import remote
from holdfast.runtime.engine.assignment import Assignment
from holdfast.runtime.engine.control import Control
from holdfast.runtime.engine.driver import Beside, HoldDriver, LoneHold
from holdfast.runtime.engine.hold import Saving, trouble_of
from holdfast.runtime.engine.pools import Finished
from holdfast.runtime.engine.processes import Host
from holdfast.runtime.engine.runner import Runner
from holdfast.runtime.scan.isolation import GONE, Burial
from holdfast.runtime.scan.partition import RUNNERS, Approach, PartitionStage
from holdfast.runtime.scan.process import InProcess
from holdfast.stores import owners
from holdfast.stores.base import each_item, find_batch

if TYPE_CHECKING:
    from holdfast.runtime.define.pipeline import PipelineDefinition

log = logging.getLogger("holdfast.follow")


class TickDriver:
    """The tools with which one process holds leases of a batch that follows, and works under them."""

    def __init__(self, pipeline: "PipelineDefinition", stage: PartitionStage, *, batch: Batch, lease: float,
                 heartbeat: float | None = None) -> None:  # fmt: skip
        self.store, self.stage, self.pipeline, self.batch = pipeline.store, stage, pipeline, batch
        self.finished: Finished = Finished()
        self.buried: list[ItemNo] = []
        """Items that were buried and whose hooks were not called yet."""
        self.burial = Burial(self.store, batch.name, lambda admitted: self.buried.extend(admitted.dead))
        self.control = Control(1)
        """The control of the current tick."""
        self.holds = HoldDriver(self.store, batch, owner=owners.new_owner(), seconds=lease, stages=1, every=heartbeat)

    def beside(self, hold: LoneHold, item: Item, *, fence: int | None = None, at: Checkpoint | None = None,
               approach: Approach | None = None) -> Assignment:  # fmt: skip
        """Run the handler on a thread, and write its checkpoints here, until it ends or must be left. It sees the fence
        of its lease, unless another one is passed."""
        work, runner = hold.assign(0, item, fence=fence), self._runner(hold.claim.kind, approach)
        work.at = at

        def save(saving: Saving) -> None:
            saving.waiter.answer(self.write(hold, NOTHING, reached=saving.reached))

        try:
            Beside(work, self.finished).run(lambda: runner.run(work), deadline=self.control.deadline,
                                            lost=lambda: hold.lost, save=save)  # fmt: skip
        finally:
            runner.close()
        return work

    def _runner(self, kind: Kind, approach: Approach | None) -> Runner:
        runner = RUNNERS[kind](
            self.stage, pipeline=self.pipeline.name, batch=self.batch.name, stopping=self.control.drains,
            now=self.store.now, finished=self.finished, approach=approach,
            burial=None if kind is Kind.ROWS else self.burial,
        )  # fmt: skip
        in_processes = self.stage.executor == "processes"
        return InProcess(runner, Host(remote.address(self.pipeline))) if in_processes else runner

    def write(self, hold: LoneHold, settled: Settled, *, reached: Reached | None = None, release: bool = False,
              due: float = 0.0) -> bool:  # fmt: skip
        """Commit under the lease, and perhaps give it back; return whether the commit landed."""
        if hold.lost:
            return False
        receipt = hold.write(settled, release=release, due=due, reached=reached)
        if not receipt.landed:
            log.warning("batch %s: a commit was refused (%s)", self.batch.name, receipt.reason)
            return False
        self.buried += [ItemNo(each.n) for each in settled.attempts if each.outcome == "bury"]
        return True

    def settle(self, hold: LoneHold, outcomes: Sequence[Outcome]) -> Settled:
        """Return what follows from outcomes; a failure after a signal counts as interrupted."""
        if self.control.signalled:
            outcomes = [excuse(outcome, "interrupted") for outcome in outcomes]
        return hold.settle(outcomes, [self.stage.policy])


FIRST = ItemNo(0)
"""The one item of a scan that follows: it exists from the beginning and never ends."""
NAMED = 5
"""Rows that are named one by one."""
REFRESH_SECONDS = 60.0
"""How often a process reads what other processes may have redriven, if a read costs more than it is likely to find."""


class Waiting(NamedTuple):
    """A row that was redriven and is not handled yet."""

    n: ItemNo
    due: float


class Again(NamedTuple):
    """The results of redriven rows."""

    done: int = 0
    waiting: int = 0
    """Rows that wait for another attempt."""
    buried: int = 0
    left: bool = False
    """There was not enough time for all rows."""
    due: float | None = None
    """When the first waiting row may be tried again."""
    why: str = ""
    """Why the first row that was not handled failed."""
    gone: tuple[Key, ...] = ()
    """Rows that are not in the source any more."""

    @property
    def told(self) -> str:
        """A note about them for the report."""
        more = len(self.gone) - NAMED
        rest = f" and {more:,} more" if more > 0 else ""
        gone = f"{', '.join(map(str, self.gone[:NAMED]))}{rest}: {GONE}" if self.gone else ""
        return "; ".join(each for each in (self.why, gone) if each)


class Redriving:
    """The redriven rows of one batch."""

    def __init__(self, driver: TickDriver) -> None:
        self._with = driver
        self._admitted = driver.batch.admitted
        self._asked = time.monotonic()
        self._looked = -math.inf
        self._found = False

    def waiting(self, *, at_once: bool = False) -> list[Waiting]:
        """Return redriven rows, due or not. If no row was ever buried, nothing is read."""
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
            found = find_batch(self._with.store, self._with.batch.name)
            self._admitted = found.admitted if found is not None else 1
        return self._admitted > 1 or self._with.burial.count > 0

    def _is_worth_it(self) -> bool:
        """Return whether to read now: every tick does if that is one read. In a bucket it is a listing, paid for by the
        request: there a process reads at first, and then once a minute, unless rows are known to be redriven."""
        if self._with.store.capabilities.one_clock or self._found:
            return True
        return time.monotonic() - self._looked > REFRESH_SECONDS

    def handle(self, rows: list[Waiting], over: LoneHold) -> Again:
        """Handle the rows that are due, each as a partition of one row, under the fence of the partition that is
        held."""
        driver, told = self._with, Again()
        for row in rows:
            if driver.control.drains() or over.lost:
                return told._replace(left=True)
            if row.due > driver.store.now():
                told = _waits(told, row.due)
                continue
            told = self._again(row.n, over.hold.lease.fence, told)
        return told

    def _again(self, n: ItemNo, fence: int, told: Again) -> Again:
        driver = self._with
        claim = driver.holds.claim(n)
        if not isinstance(claim, Claim):  # a killed process has it until its lease expires
            return _waits(told, claim.next_due)
        with driver.holds.held(claim) as hold:
            item = hold.load(n)
            if item is not None:
                return self._settled(hold, item, fence, told)
        return _waits(told, None)  # items before it in a suspect were granted: next time it comes alone

    def _settled(self, hold: LoneHold, item: Item, fence: int, told: Again) -> Again:
        driver = self._with
        outcomes, reached = self._tried(hold, item, fence)
        if not outcomes:
            return told._replace(left=True) if driver.control.drains() else _waits(told, None)
        settled = driver.settle(hold, outcomes)
        if not driver.write(hold, settled, reached=reached if settled.counts.done else None, release=True):
            return _waits(told, None)
        for outcome in outcomes:
            if (trouble := trouble_of(outcome)) is not None:
                raise trouble
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
        """Return the result of an attempt. A row whose process died too often while it was handled is not tried
        again."""
        if hold.hold.is_condemned:
            return [hold.hold.condemned(item)], None
        hold.start()
        work = self._with.beside(hold, item, fence=fence)
        return ([] if work.abandoned else work.outcomes), work.reached


def in_words(key: Key, place: ItemState) -> str:
    """Return why a row was not handled."""
    return f"{key}: {place.code}: {place.reason}"


def _waits(told: Again, due: float | None) -> Again:
    soonest = [each for each in (told.due, due) if each is not None]
    return told._replace(waiting=told.waiting + 1, due=min(soonest) if soonest else None)
