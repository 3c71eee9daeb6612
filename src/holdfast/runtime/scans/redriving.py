"""Rows that were buried and that a person sent on their way again: handled under the fence of their scan.

A tick handles them while it holds the range, and their handler sees the fence of the range: so the fences that a
handler is shown only grow over a scan, whether a row came with its range or later. The commit of a row is guarded by
its own. Whether there are any is one read, and none where no row was ever buried.
"""

import math
import time
from typing import Any, NamedTuple

from holdfast.core import retry
from holdfast.core.model import Claim, Item, ItemNo, Key, Place, State
from holdfast.core.outcome import Outcome
from holdfast.core.settle import Reached
from holdfast.runtime.engine import remote
from holdfast.runtime.engine.driver import LoneHold
from holdfast.runtime.scans.burial import GONE
from holdfast.runtime.scans.elsewhere import ProcessRunner
from holdfast.runtime.scans.handling import Handling, refuse_trouble
from holdfast.runtime.scans.runner import RangeRunner
from holdfast.stores.base import each_item

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
            "pipeline": handling.pipeline, "batch": handling.batch.name, "finished": handling.finished,
            "stopping": lambda: handling.stop.now, "now": handling.store.now,
        }  # fmt: skip
        if stage.executor == "processes":
            return ProcessRunner(stage, target=remote.address(stage.home), **told)
        return RangeRunner(stage, **told)


def in_words(key: Key, place: Place) -> str:
    """Why a row was not handled."""
    return f"{key}: {place.code}: {place.reason}"


def _waits(told: Again, due: float | None) -> Again:
    soonest = [each for each in (told.due, due) if each is not None]
    return told._replace(waiting=told.waiting + 1, due=min(soonest) if soonest else None)
