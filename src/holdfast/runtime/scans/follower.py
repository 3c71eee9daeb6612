"""One tick: look what is new without claiming anything, else claim, walk to the end of what is there, commit, release.

The calling thread holds the lease and writes; the handler runs on a thread beside it. A tick with nothing new reads the
checkpoint and the source, and writes nothing.
"""

import logging
import math
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date, datetime
from typing import Any

from holdfast.core import cursor as cursors
from holdfast.core import sources
from holdfast.core.cursor import Cursor
from holdfast.core.errors import HoldfastError
from holdfast.core.limits import BLAME, LOAD_BYTES, ORPHAN_GRACE, SUSPECT
from holdfast.core.model import Batch, Checkpoint, Claim, Commit, Course, Item, ItemNo, State, Want
from holdfast.core.outcome import Outcome
from holdfast.core.settle import NOTHING, Reached, commit, settle, start
from holdfast.runtime.scans.burial import Burial
from holdfast.runtime.scans.elsewhere import ProcessRunner
from holdfast.runtime.scans.feed import Feed
from holdfast.runtime.scans.followed import FollowRunner
from holdfast.runtime.scans.runner import RangeRunner
from holdfast.runtime.scans.stage import RangeStage
from holdfast.runtime.scans.tick import Ended, Tick
from holdfast.runtime.sources.base import Final, Followable
from holdfast.runtime.words import many
from holdfast.runtime.working import remote
from holdfast.runtime.working.assignment import Answer, Assignment, clock
from holdfast.runtime.working.heartbeat import Heartbeat
from holdfast.runtime.working.holding import Holding
from holdfast.runtime.working.pools import Finished
from holdfast.runtime.working.saving import Refusal, Saving
from holdfast.runtime.working.writing import write
from holdfast.stores import owners
from holdfast.stores.base import Idle, Store

log = logging.getLogger("holdfast.follow")

FIRST = ItemNo(0)
"""The item that a scan which follows has from its first moment, and that never ends."""
LOOK_SECONDS = 0.2
SOURCE_SECONDS = 60.0
"""How often a process that finds nothing new looks whether somebody accepted another source for the batch."""
SHARE = 0.1
"""What of its time a tick keeps to end cleanly."""


class Stop:
    """When to come to an end: a deadline on the monotonic clock, or somebody said so."""

    def __init__(self, deadline: float | None = None) -> None:
        self.deadline = math.inf if deadline is None else deadline
        self._began = time.monotonic()
        self._said = threading.Event()

    def say(self) -> None:
        self._said.set()

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


class Follower:
    """Follows one source for one batch, tick by tick, in this process."""

    def __init__(self, store: Store, stage: RangeStage, *, pipeline: str, batch: Batch, lease: float,
                 heartbeat: float | None = None) -> None:  # fmt: skip
        self.heartbeat = heartbeat
        self.store, self.stage, self.pipeline, self.batch, self.lease = store, stage, pipeline, batch, lease
        self.owner = owners.new_owner()
        self.finished: Finished = Finished()
        self.buried: list[ItemNo] = []
        """What was buried and nobody has heard of yet."""
        self.burial = Burial(store, batch.name, lambda admitted: self.buried.extend(admitted.dead))
        self._stop = Stop()
        self.looked_at = time.monotonic()
        """When it was last seen that the batch follows our source."""

    # -- looking ------------------------------------------------------------------------------------------------

    def tick(self, stop: Stop) -> Tick:
        """What is new, committed or not at all."""
        self._stop = stop
        at = self._checkpoint()
        final, feed = self._look(at)
        if feed is None:
            if time.monotonic() - self.looked_at > SOURCE_SECONDS:
                self._refuse_another_source()
            ended = Ended.WAITING if final.nothing and final.why else Ended.NOTHING_NEW
            return self._told(ended, at, at, final, why=final.why)
        answer = self.store.claim(Want(batch=self.batch.id, owner=self.owner, limit=1, seconds=self.lease, only=FIRST))
        if isinstance(answer, Idle):
            return self._not_ours(answer, at, final)
        with self._held(answer) as holding:
            return self._work(holding, at, final, feed)

    def _checkpoint(self) -> Checkpoint | None:
        found = self.store.checkpoints(self.batch.id, lo=FIRST, hi=FIRST + 1, limit=1)
        return found[0] if found else None

    def _look(self, at: Checkpoint | None) -> tuple[Final, Feed | None]:
        """How far rows are final, and those that are new; None where there are none."""
        source, after = self.stage.source, _cursor(at)
        final = source.final(after, self._stop.wait) if isinstance(source, Followable) else Final()
        if final.nothing:
            return final, None
        feed = Feed(iter(source.read(after, final.until)), 0 if at is None else at.rows, after)
        return final, None if feed.at_end else feed

    def _refuse_another_source(self) -> None:
        """Asked while the lease is held, so that nobody moves the cursor in another source afterwards."""
        self.looked_at = time.monotonic()
        now = self.store.batch(self.batch.name)
        if now is not None and now.definition != self.batch.definition:
            sources.check_still(self.stage.source.describe(), now)

    def _not_ours(self, idle: Idle, at: Checkpoint | None, final: Final) -> Tick:
        (item,) = self.store.items(self.batch.id, lo=FIRST, hi=FIRST + 1, limit=1)
        if item.place.state is State.DEAD:
            why = f"{item.place.code}: {item.place.reason}; see to it, then: holdfast dead redrive {self.batch.name}"
            return self._told(Ended.DEAD, at, at, final, why=why)
        if item.place.state is not State.PENDING or idle.course is Course.CANCELLED or idle.ended:
            return self._told(Ended.DEAD, at, at, final, why=f"the scan is {item.place.state}: it follows no more")
        if idle.course is Course.PAUSED:
            why = f"it is paused: say `holdfast pause {self.batch.name} --off --reason …`"
            return self._told(Ended.WAITING, at, at, final, why=why)
        if item.place.due > self.store.now():
            why = f"{item.place.code}: {item.place.reason}"
            return self._told(Ended.WAITING, at, at, final, why=why, due=item.place.due)
        return self._told(Ended.HELD, at, at, final, due=idle.next_due)

    # -- holding ------------------------------------------------------------------------------------------------

    @contextmanager
    def _held(self, claim: Claim) -> Iterator[Holding]:
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
                    self._write(holding, NOTHING, release=True)

    def _in_trouble(self, holding: Holding, why: str) -> None:
        log.warning("batch %s: the lease cannot be kept: %s", self.batch.name, why)
        holding.lose()

    def _work(self, holding: Holding, before: Checkpoint | None, final: Final, feed: Feed) -> Tick:
        items = self.store.load(holding.claim, None, 1, LOAD_BYTES)
        if not items or items[0].n != FIRST:
            return self._told(Ended.HELD, before, before, final)
        self._refuse_another_source()
        at = self._checkpoint()
        if _cursor(at) != _cursor(before):  # somebody was here between our look and our claim
            fresh, found = self._look(at)
            if found is None:
                return self._told(Ended.NOTHING_NEW, at, at, fresh)
            before, final, feed = at, fresh, found
        buried = self.burial.count
        work = self._walk(holding, items[0], at, feed, final)
        ended, why, due = self._settle(holding, work)
        now = self._checkpoint()
        return self._told(ended, before, now, final, why=why, due=due, dead=self.burial.count - buried)

    def _walk(self, holding: Holding, item: Item, at: Checkpoint | None, feed: Feed, final: Final) -> Assignment:
        """Run the handler on a thread, and write its checkpoints here, until it comes to an end or must be left."""
        blame = holding.claim.blame
        if blame >= SUSPECT:
            log.warning("batch %s: %s ended in a dead process: its rows are handled one at a time", self.batch.name,
                        many(blame, "tick"))  # fmt: skip
            self._put(holding, start(holding.holder, commit_id=holding.new_commit_id()))
        told: dict[str, Any] = {
            "pipeline": self.pipeline, "batch": self.batch.name, "finished": self.finished, "burial": self.burial,
            "stopping": lambda: self._stop.now, "now": self.store.now,
        }  # fmt: skip
        if self.stage.executor == "processes":
            child = ProcessRunner(self.stage, target=remote.address(self.stage.home), follows=True, at=at,
                                  until=final.until, **told)  # fmt: skip
            return self._beside(child, holding, item)
        condemned = f"its process died {BLAME} times while it was handled alone" if blame >= SUSPECT + BLAME else ""
        runner = FollowRunner(self.stage, feed=feed, at=at, careful=blame >= SUSPECT, condemned=condemned, **told)
        return self._beside(runner, holding, item)

    def _beside(self, runner: RangeRunner, holding: Holding, item: Item) -> Assignment:
        work = Assignment(0, [item], holding.lease.fence, clock(), holding)
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
        runner.run(work)
        self.finished.put(Answer(work, work.outcomes))

    def _is_over(self, holding: Holding, work: Assignment) -> bool:
        try:
            message = self.finished.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            message = None
        if isinstance(message, Saving):
            if message.work is work:
                message.answer(self._write(holding, NOTHING, reached=message.reached))
        elif isinstance(message, Refusal) and message.work is work:
            raise message.error
        elif isinstance(message, Answer) and message.work is work:
            return True
        if self._stop.at_once or holding.lost:
            work.abandoned = True  # a thread gets LeaseLost at its next row; whatever it still does is not committed
        return work.abandoned

    # -- settling -----------------------------------------------------------------------------------------------

    def _settle(self, holding: Holding, work: Assignment) -> tuple[Ended, str, float | None]:
        """Write how it ended, with the last checkpoint, and give the chunk back: one commit."""
        if holding.lost:
            return Ended.LOST, "another process goes on with it", None
        if work.abandoned:
            return Ended.TIME_UP, "the handler did not come to a checkpoint in time: it is handled again", None
        if work.outcomes:
            return self._failed(holding, work.outcomes[0])
        if work.reached is None:
            return (Ended.STOPPED if self._stop.was_said else Ended.TIME_UP), "", None
        if not self._write(holding, NOTHING, reached=work.reached, release=True):
            return Ended.LOST, "another process goes on with it", None
        return Ended.CAUGHT_UP, "", None

    def _failed(self, holding: Holding, outcome: Outcome) -> tuple[Ended, str, float | None]:
        settled = settle([outcome], stages=1, policies=[self.stage.policy], now=self.store.now())
        place = settled.moves[0].place
        waits = place.due if place.state is State.PENDING else 0.0
        holding.left -= settled.counts.settled
        if not self._write(holding, settled, release=True, due=waits):
            return Ended.LOST, "another process goes on with it", None
        why = f"{place.code}: {place.reason}"
        if place.state is State.PENDING:
            return Ended.WAITING, why, place.due
        return Ended.DEAD, f"{why}; see to it, then: holdfast dead redrive {self.batch.name}", None

    def _write(self, holding: Holding, settled: Any, *, reached: Reached | None = None, release: bool = False,
               due: float = 0.0) -> bool:  # fmt: skip
        if holding.lost:
            return False
        landed = self._put(
            holding,
            commit(holding.holder, settled, commit_id=holding.new_commit_id(), release=release, due=due,
                   reached=[] if reached is None else [reached]),
        )  # fmt: skip
        if release:
            holding.left = 0
        if landed:
            self.buried += [ItemNo(each.n) for each in settled.attempts if each.outcome == "bury"]
        return landed

    def _put(self, holding: Holding, written: Commit) -> bool:
        (receipt,) = write(self.store, [written])
        if receipt.landed:
            holding.version += 1
            holding.progressed_at = time.monotonic()
        else:
            log.warning("batch %s: a commit was refused (%s)", self.batch.name, receipt.reason)
            holding.lose()
        return receipt.landed

    # -- rows that were buried and redriven -----------------------------------------------------------------------

    def redriven(self, stop: Stop) -> int:
        """Handle rows that a person sent on their way again: each is a range of one row. How many were handled."""
        self._stop, count = stop, 0
        for chunk in self.store.chunks(self.batch.id):
            if chunk.lo > FIRST and chunk.pending:
                for item in self.store.items(self.batch.id, lo=chunk.lo, hi=chunk.hi, state=State.PENDING):
                    count += not stop.now and item.place.due <= self.store.now() and self._again(item.n)
        return count

    def _again(self, n: ItemNo) -> bool:
        claim = self.store.claim(Want(batch=self.batch.id, owner=self.owner, limit=1, seconds=self.lease, only=n))
        if isinstance(claim, Idle):
            return False
        with self._held(claim) as holding:
            items = self.store.load(claim, ItemNo(n - 1), 1, LOAD_BYTES)
            if not items or items[0].n != n:
                return False
            self._refuse_another_source()
            runner = RangeRunner(self.stage, pipeline=self.pipeline, batch=self.batch.name, finished=self.finished,
                                 stopping=lambda: self._stop.now, now=self.store.now)  # fmt: skip
            work = self._beside(runner, holding, items[0])
            if work.abandoned or not work.outcomes:
                return False
            settled = settle(work.outcomes, stages=1, policies=[self.stage.policy], now=self.store.now())
            reached = work.reached if settled.counts.done else None
            return self._write(holding, settled, reached=reached, release=True)

    # -- telling ------------------------------------------------------------------------------------------------

    def _told(self, ended: Ended, before: Checkpoint | None, at: Checkpoint | None, final: Final, *, why: str = "",
              due: float | None = None, dead: int = 0) -> Tick:  # fmt: skip
        known, total = 0 if before is None else before.rows, 0 if at is None else at.rows
        reached = _cursor(at)
        return Tick(ended, why, rows=total - known, dead=dead, total=total, due=due, lag=_lag(final.newest, reached),
                    cursor="" if reached is None else str(reached))  # fmt: skip


def _cursor(at: Checkpoint | None) -> Cursor | None:
    return None if at is None or not at.cursor else cursors.decode(at.cursor)


def _lag(newest: Cursor | None, reached: Cursor | None) -> float | None:
    """How far behind the newest row; None where the cursor is no time."""
    if newest is None or reached is None:
        return None
    ends = [_moment(newest.value), _moment(reached.value)]
    if ends[0] is None or ends[1] is None or (ends[0].tzinfo is None) != (ends[1].tzinfo is None):
        return None
    return max(0.0, (ends[0] - ends[1]).total_seconds())


def _moment(value: Any) -> datetime | None:
    if isinstance(value, datetime):
        return value
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) else _midnight(value)
    except ValueError:
        return None


def _midnight(value: Any) -> datetime | None:
    return datetime(value.year, value.month, value.day) if isinstance(value, date) else None  # noqa: DTZ001 - a day
