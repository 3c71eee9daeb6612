"""Stages that pause: what their breakers say of outcomes, who is told, and what becomes of the items that wait."""

import logging
from collections.abc import Sequence

from holdfast.core import course, journal
from holdfast.core.course import to_note
from holdfast.core.model import Want
from holdfast.core.outcome import Outcome
from holdfast.runtime.working.control import Control
from holdfast.runtime.working.holding import Holding
from holdfast.runtime.working.lane import Lane
from holdfast.runtime.working.ledger import Ledger
from holdfast.stores.base import Store

log = logging.getLogger("holdfast.pauses")


class Pauses:
    """The breakers of all stages of one run."""

    def __init__(self, store: Store, lanes: Sequence[Lane], control: Control, ledger: Ledger, want: Want) -> None:
        self._store, self._lanes, self._control, self._ledger, self._want = store, lanes, control, ledger, want

    def judge(self, lane: Lane, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The outcomes as they shall count; the run ends where a stage would pause for too long in all."""
        judged = lane.breaker.judge(outcomes, self._store.now())
        self._ledger.paused = tuple(each.stage.name for each in self._lanes if each.breaker.until)
        while lane.breaker.news:
            self._tell(lane, lane.breaker.news.pop(0))
        if lane.breaker.asked:
            log.warning("%s", lane.breaker.asked)
            self._ledger.notes.append(lane.breaker.asked)
            lane.breaker.asked = ""
        if lane.breaker.is_hopeless:
            self._control.stop("breaker")
        return judged

    def _tell(self, lane: Lane, message: str) -> None:
        log.warning("%s", message)
        self._ledger.notes.append(message)
        warning = course.warning("breaker_open", message, stage=lane.index, until=lane.breaker.until)
        body = journal.encode_body(journal.Acted(reason=message, note=warning.body))
        self._store.amend(self._want.batch, to_note("warned", body, events=[warning]), actor=self._want.owner)

    def park(self, holdings: Sequence[Holding], now: float) -> None:
        """What waits for a stage that pauses for long need not be held, so that the other stages get further items; but
        where items begin at that stage, there is nothing else to be had."""
        paused = [lane for lane in self._lanes if lane.breaker.ends(now) - now > self._want.seconds / 2]
        for lane in paused if self._lanes[0] not in paused else []:
            for holding in holdings:
                holding.park(lane.index, lane.breaker.ends(now))
