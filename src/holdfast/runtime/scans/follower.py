"""One tick: look what is new without claiming anything, else claim, walk to the end of what is there, commit, release.

A tick with nothing new reads the checkpoint and the source, and writes nothing. Rows that were redriven are handled
after what is new, under the same lease.
"""

import logging
import time
from dataclasses import replace
from typing import Any

from holdfast.core import changes, retry
from holdfast.core import cursor as cursors
from holdfast.core.course import Barrier
from holdfast.core.cursor import Cursor
from holdfast.core.limits import BLAME, SUSPECT
from holdfast.core.model import Batch, Checkpoint, Item, State
from holdfast.core.outcome import Outcome
from holdfast.core.settle import NOTHING
from holdfast.runtime.engine import remote
from holdfast.runtime.engine.assignment import Assignment
from holdfast.runtime.engine.driver import LoneHold, new_commit_id
from holdfast.runtime.engine.hold import killed_text
from holdfast.runtime.scans.elsewhere import ProcessRunner
from holdfast.runtime.scans.feed import Feed
from holdfast.runtime.scans.followed import FollowRunner
from holdfast.runtime.scans.handling import Handling, Stop, refuse_trouble
from holdfast.runtime.scans.lag import lag, unsettled
from holdfast.runtime.scans.redriving import FIRST, Again, Redriving, Waiting
from holdfast.runtime.scans.stage import RangeStage
from holdfast.runtime.scans.tick import Ended, Tick
from holdfast.runtime.sources.base import Final, Followable
from holdfast.runtime.text import command, many, unpause
from holdfast.stores.base import Idle, Store

log = logging.getLogger("holdfast.follow")

SOURCE_SECONDS = 60.0
"""How often a process that finds nothing new looks whether somebody accepted another source for the batch."""
DONE = frozenset({Ended.CAUGHT_UP, Ended.NOTHING_NEW})
"""All rows that are final are behind the checkpoint."""
LOST = "another process continues with it"
UNSETTLED = "the newest row is not final yet"


class Follower(Handling):
    """Follows one source for one batch, tick by tick, in this process."""

    def __init__(self, store: Store, stage: RangeStage, *, pipeline: str, batch: Batch, lease: float,
                 heartbeat: float | None = None) -> None:  # fmt: skip
        super().__init__(store, stage, pipeline=pipeline, batch=batch, lease=lease, heartbeat=heartbeat)
        self._redriving = Redriving(self)
        self.looked_at = time.monotonic()
        """When it was last seen that the batch follows our source."""

    # -- looking ------------------------------------------------------------------------------------------------

    def tick(self, stop: Stop) -> Tick:
        """What is new, committed or not at all; and rows that were redriven and are due."""
        self.stop = stop
        at = self._checkpoint()
        final, feed = self._look(at)
        rows = self._redriving.waiting()
        if feed is None and not self._is_any_due(rows):
            if time.monotonic() - self.looked_at > SOURCE_SECONDS:
                self._refuse_another_source()
            return self._idle(at, final, rows)
        return self._claimed(at, final, feed, rows)

    def redriven(self, stop: Stop) -> int:
        """Handle rows that were redriven, and nothing else. How many were handled."""
        self.stop = stop
        rows = self._redriving.waiting(at_once=True)
        if not self._is_any_due(rows):
            return 0
        return self._claimed(self._checkpoint(), Final(nothing=True), None, rows).redriven

    def _claimed(self, at: Checkpoint | None, final: Final, feed: Feed | None, rows: list[Waiting]) -> Tick:
        answer = self.claim(FIRST)
        if isinstance(answer, Idle):
            return self._not_ours(answer, at, final)
        with self.held(answer) as hold:
            return self._work(hold, at, final, feed, rows)

    def _is_any_due(self, rows: list[Waiting]) -> bool:
        return any(each.due <= self.store.now() for each in rows)

    def _idle(self, at: Checkpoint | None, final: Final, rows: list[Waiting]) -> Tick:
        """There is nothing to do now."""
        ended = Ended.WAITING if final.nothing and final.why else Ended.NOTHING_NEW
        told = self._told(ended, at, at, final, why=final.why if final.nothing else "")
        due = min((each.due for each in rows), default=None)
        return self._with_redriven(told, Again(waiting=len(rows), due=due))

    def _checkpoint(self) -> Checkpoint | None:
        found = self.store.checkpoints(self.batch.id, lo=FIRST, hi=FIRST + 1, limit=1)
        return found[0] if found else None

    def _look(self, at: Checkpoint | None) -> tuple[Final, Feed | None]:
        """How far rows are final, and those that are new; None where there are none."""
        source, after = self.stage.source, _cursor(at)
        final = source.final(after, self.stop.wait) if isinstance(source, Followable) else Final()
        if final.nothing:
            return final, None
        feed = Feed(iter(source.read(after, final.until)), 0 if at is None else at.rows, after)
        return final, None if feed.at_end else feed

    def _refuse_another_source(self) -> None:
        """Asked while the lease is held, so that nobody moves the cursor in another source afterwards."""
        self.looked_at = time.monotonic()
        now = self.store.batch(self.batch.name)
        if now is not None and now.definition != self.batch.definition:
            changes.check_source_still(self.stage.source.describe(), now)

    def _not_ours(self, idle: Idle, at: Checkpoint | None, final: Final) -> Tick:
        (item,) = self.store.items(self.batch.id, lo=FIRST, hi=FIRST + 1, limit=1)
        if item.place.state is State.DEAD:
            redrive = command("dead redrive", self.batch.name)
            why = f"{item.place.code}: {item.place.reason}; see to it, then: {redrive}"
            return self._told(Ended.DEAD, at, at, final, why=why)
        if item.place.state is not State.PENDING or idle.why in (Barrier.CANCELLED, Barrier.UNTIL):
            return self._told(Ended.DEAD, at, at, final, why=f"the scan is {item.place.state}: it follows no more")
        if idle.why is Barrier.PAUSED:
            why = f"it is paused: call `{unpause(self.batch.name)}`"
            return self._told(Ended.WAITING, at, at, final, why=why)
        if not retry.wait_is_over(item.place.due, item.place.wait, self.store.now()):
            why = f"{item.place.code}: {item.place.reason}"
            return self._told(Ended.WAITING, at, at, final, why=why, due=item.place.due)
        return self._told(Ended.HELD, at, at, final, due=idle.next_due)

    # -- working ------------------------------------------------------------------------------------------------

    def _work(self, hold: LoneHold, before: Checkpoint | None, final: Final, feed: Feed | None,
              rows: list[Waiting]) -> Tick:  # fmt: skip
        item = hold.load(FIRST)
        if item is None:
            return self._told(Ended.HELD, before, before, final)
        self._refuse_another_source()
        at = self._checkpoint()
        if feed is not None and _cursor(at) != _cursor(before):  # somebody was here between our look and our claim
            before = at
            final, feed = self._look(at)
        if feed is None:
            told = self._told(Ended.NOTHING_NEW, at, at, final, why=final.why if final.nothing else "")
        else:
            buried = self.burial.count
            work = self._walk(hold, item, at, feed, final)
            ended, why, due = self._settle(hold, work, release=not rows)
            now = self._checkpoint()
            told = self._told(ended, before, now, final, why=why, due=due, dead=self.burial.count - buried)
        if told.ended in DONE and rows:
            return self._with_redriven(told, self._redriving.handle(rows, hold))
        return told

    def _walk(self, hold: LoneHold, item: Item, at: Checkpoint | None, feed: Feed, final: Final) -> Assignment:
        """Handle what is new, from the checkpoint on."""
        blame = hold.claim.blame
        if blame >= SUSPECT:
            log.warning("batch %s: %s ended in a dead process: its rows are handled one at a time", self.batch.name,
                        many(blame, "tick"))  # fmt: skip
            hold.put(hold.hold.start(new_commit_id()))
        told: dict[str, Any] = {
            "pipeline": self.pipeline, "batch": self.batch.name, "finished": self.finished, "burial": self.burial,
            "stopping": lambda: self.stop.now, "now": self.store.now,
        }  # fmt: skip
        if self.stage.executor == "processes":
            child = ProcessRunner(self.stage, target=remote.address(self.stage.home), follows=True, at=at,
                                  until=final.until, **told)  # fmt: skip
            return self.beside(child, hold, item)
        condemned = killed_text(BLAME) if blame >= SUSPECT + BLAME else ""
        runner = FollowRunner(self.stage, feed=feed, at=at, careful=blame >= SUSPECT, condemned=condemned, **told)
        return self.beside(runner, hold, item)

    # -- settling -----------------------------------------------------------------------------------------------

    def _settle(self, hold: LoneHold, work: Assignment, *, release: bool) -> tuple[Ended, str, float | None]:
        """Write how it ended, with the last checkpoint, and give the chunk back, where nothing else is to be done under
        its lease: one commit."""
        if hold.lost:
            return Ended.LOST, LOST, None
        if work.abandoned:
            return Ended.TIME_UP, "the handler did not come to a checkpoint in time: it is handled again", None
        if work.outcomes:
            return self._failed(hold, work.outcomes[0])
        if work.reached is None:
            return (Ended.STOPPED if self.stop.was_said else Ended.TIME_UP), "", None
        if not self.write(hold, NOTHING, reached=work.reached, release=release):
            return Ended.LOST, LOST, None
        return Ended.CAUGHT_UP, "", None

    def _failed(self, hold: LoneHold, outcome: Outcome) -> tuple[Ended, str, float | None]:
        settled = hold.settle([self.stop.fairly(outcome)], [self.stage.policy])
        place = settled.moves[0].place
        waits = place.due if place.state is State.PENDING else 0.0
        if not self.write(hold, settled, release=True, due=waits):
            return Ended.LOST, LOST, None
        refuse_trouble(outcome)
        why = f"{place.code}: {place.reason}"
        if self.stop.signalled and place.state is State.PENDING:
            return Ended.STOPPED, why, None
        if place.state is State.PENDING:
            return Ended.WAITING, why, place.due
        return Ended.DEAD, f"{why}; see to it, then: {command('dead redrive', self.batch.name)}", None

    # -- telling ------------------------------------------------------------------------------------------------

    def _with_redriven(self, told: Tick, again: Again) -> Tick:
        """What became of rows that were redriven is told with the rest: one that waits is left to do."""
        told = replace(told, redriven=again.done, waiting=again.waiting, dead=told.dead + again.buried)
        if again.left:
            ended = Ended.STOPPED if self.stop.was_said else Ended.TIME_UP if self.stop.now else Ended.LOST
            return replace(told, ended=ended, why=again.told if again.told else told.why)
        if again.waiting and told.ended in DONE:
            return replace(told, ended=Ended.WAITING, due=again.due, why=again.told)
        return replace(told, why=again.told) if again.told else told

    def _told(self, ended: Ended, before: Checkpoint | None, at: Checkpoint | None, final: Final, *, why: str = "",
              due: float | None = None, dead: int = 0) -> Tick:  # fmt: skip
        known, total = 0 if before is None else before.rows, 0 if at is None else at.rows
        reached, caught_up = _cursor(at), ended in DONE
        if caught_up and not why and unsettled(final):
            why = final.why if final.why else UNSETTLED
        return Tick(ended, why, rows=total - known, dead=dead, total=total, due=due,
                    lag=lag(self.stage.source, final, reached),
                    cursor="" if reached is None else str(reached))  # fmt: skip


def _cursor(at: Checkpoint | None) -> Cursor | None:
    return None if at is None or not at.cursor else cursors.decode(at.cursor)
