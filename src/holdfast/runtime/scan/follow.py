"""One tick: check for new rows without claiming anything; if there are some, claim, walk to their end, commit, release.

A tick without new rows reads the checkpoint and the source, and writes nothing. Redriven rows are handled after new
ones, under the same lease.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from holdfast.core import canonical, changes, ingest, journal, retry
from holdfast.core import cursor as cursors
from holdfast.core.course import Barrier, BatchState, to_note
from holdfast.core.cursor import Cursor
from holdfast.core.errors import StoreUnavailable, Transient
from holdfast.core.limits import BLAME, SUSPECT
from holdfast.core.model import Batch, Checkpoint, Item, Kind, State
from holdfast.core.outcome import Outcome
from holdfast.core.settle import NOTHING
from holdfast.runtime.define import definition
from holdfast.runtime.define.options import Signals
from holdfast.runtime.engine.assignment import Assignment
from holdfast.runtime.engine.control import Control, Interrupts
from holdfast.runtime.engine.driver import LoneHold
from holdfast.runtime.engine.hold import killed_text, trouble_of
from holdfast.runtime.engine.hooks import tell_buried
from holdfast.runtime.engine.leases import new_commit_id
from holdfast.runtime.partitions import payload_of, standings
from holdfast.runtime.report.report import Report
from holdfast.runtime.scan.converge import Gathered
from holdfast.runtime.scan.partition import Approach, PartitionStage
from holdfast.runtime.scan.redrive import (
    FIRST,
    Again,
    Redriving,
    TickDriver,
    Waiting,
)
from holdfast.runtime.scan.rows import CAREFUL_ROWS, Feed
from holdfast.runtime.scan.tick import Ended, Tick, lag, unsettled
from holdfast.runtime.sources.base import UNAVAILABLE, Followable, Horizon, Span
from holdfast.runtime.text import brief, command, many, unpause_command
from holdfast.stores import owners
from holdfast.stores.base import Idle, Store, find_batch

if TYPE_CHECKING:
    from holdfast.runtime.define.pipeline import PipelineDefinition

log = logging.getLogger("holdfast.follow")

SOURCE_SECONDS = 60.0
"""How often a process that finds no new rows checks whether another source was accepted for the batch."""
DONE = frozenset({Ended.CAUGHT_UP, Ended.NOTHING_NEW})
"""Ends of a tick after which all final rows are behind the checkpoint."""
LOST = "another process continues with it"
UNSETTLED = "the newest row is not final yet"


class Follower(TickDriver):
    """The follower of one source for one batch, tick by tick, in this process."""

    def __init__(self, pipeline: "PipelineDefinition", stage: PartitionStage, *, batch: Batch, lease: float,
                 heartbeat: float | None = None) -> None:  # fmt: skip
        super().__init__(pipeline, stage, batch=batch, lease=lease, heartbeat=heartbeat)
        self._redriving = Redriving(self)
        self.looked_at = time.monotonic()
        """When it was last checked that the batch follows this source."""

    # -- looking ------------------------------------------------------------------------------------------------

    def tick(self, control: Control) -> Tick:
        """Handle new rows, committed or not at all, and redriven rows that are due; return the report."""
        self.control = control
        at = self._checkpoint()
        final, feed = self._look(at)
        rows = self._redriving.waiting()
        if feed is None and not self._is_any_due(rows):
            if time.monotonic() - self.looked_at > SOURCE_SECONDS:
                self._refuse_another_source()
            return self._idle(at, final, rows)
        return self._claimed(at, final, feed, rows)

    def redriven(self, control: Control) -> int:
        """Handle redriven rows, and nothing else; return how many were handled."""
        self.control = control
        rows = self._redriving.waiting(at_once=True)
        if not self._is_any_due(rows):
            return 0
        return self._claimed(self._checkpoint(), Horizon(nothing=True), None, rows).redriven

    def _claimed(self, at: Checkpoint | None, final: Horizon, feed: Feed | None, rows: list[Waiting]) -> Tick:
        answer = self.holds.claim(FIRST)
        if isinstance(answer, Idle):
            return self._not_ours(answer, at, final)
        try:
            with self.holds.held(answer) as hold:
                return self._work(hold, at, final, feed, rows)
        finally:
            self.holds.close()

    def _is_any_due(self, rows: list[Waiting]) -> bool:
        return any(each.due <= self.store.now() for each in rows)

    def _idle(self, at: Checkpoint | None, final: Horizon, rows: list[Waiting]) -> Tick:
        """Return the report of a tick that has nothing to do."""
        ended = Ended.WAITING if final.nothing and final.why else Ended.NOTHING_NEW
        told = self._told(ended, at, at, final, why=final.why if final.nothing else "")
        due = min((each.due for each in rows), default=None)
        return self._with_redriven(told, Again(waiting=len(rows), due=due))

    def _checkpoint(self) -> Checkpoint | None:
        found = self.store.checkpoints(self.batch.id, lo=FIRST, hi=FIRST + 1, limit=1)
        return found[0] if found else None

    def _look(self, at: Checkpoint | None) -> tuple[Horizon, Feed | None]:
        """Return how far rows are final, and the feed of new ones; None if there are none."""
        source, after = self.stage.source, _cursor(at)
        final = source.final(after, self.control.wait) if isinstance(source, Followable) else Horizon()
        if final.nothing:
            return final, None
        feed = Feed(iter(source.read(after, final.until)), 0 if at is None else at.rows, after)
        return final, None if feed.at_end else feed

    def _refuse_another_source(self) -> None:
        """Refuse another source; called while the lease is held, so that no other process moves the cursor
        afterwards."""
        self.looked_at = time.monotonic()
        now = find_batch(self.store, self.batch.name)
        if now is not None and now.definition != self.batch.definition:
            changes.check_source_still(self.stage.source.describe(), now)

    def _not_ours(self, idle: Idle, at: Checkpoint | None, final: Horizon) -> Tick:
        (item,) = self.store.items(self.batch.id, lo=FIRST, hi=FIRST + 1, limit=1)
        if item.place.state is State.DEAD:
            redrive = command("dead redrive", self.batch.name)
            why = f"{item.place.code}: {item.place.reason}; correct the cause, then: {redrive}"
            return self._told(Ended.DEAD, at, at, final, why=why)
        if item.place.state is not State.PENDING or idle.why in (Barrier.CANCELLED, Barrier.UNTIL):
            how = "has come to its end" if idle.why is Barrier.UNTIL else "was cancelled"
            if item.place.state in (State.DONE, State.SKIPPED):
                how = f"is {item.place.state}"
            return self._told(Ended.OVER, at, at, final, why=f"the batch {how}: it no longer follows its source")
        if idle.why is Barrier.PAUSED:
            why = f"the batch is paused: run `{unpause_command(self.batch.name)}`"
            return self._told(Ended.WAITING, at, at, final, why=why)
        if not retry.wait_is_over(item.place.due, item.place.wait, self.store.now()):
            why = f"{item.place.code}: {item.place.reason}"
            return self._told(Ended.WAITING, at, at, final, why=why, due=item.place.due)
        return self._told(Ended.HELD, at, at, final, due=idle.next_due)

    # -- working ------------------------------------------------------------------------------------------------

    def _work(self, hold: LoneHold, before: Checkpoint | None, final: Horizon, feed: Feed | None,
              rows: list[Waiting]) -> Tick:  # fmt: skip
        item = hold.load(FIRST)
        if item is None:
            return self._told(Ended.HELD, before, before, final)
        self._refuse_another_source()
        at = self._checkpoint()
        if feed is not None and _cursor(at) != _cursor(before):  # another process advanced it meanwhile
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

    def _walk(self, hold: LoneHold, item: Item, at: Checkpoint | None, feed: Feed, final: Horizon) -> Assignment:
        """Handle new rows, from the checkpoint on."""
        blame = hold.claim.blame
        if blame >= SUSPECT:
            log.warning("batch %s: %s ended because the process died: rows are handled one at a time", self.batch.name,
                        many(blame, "tick"))  # fmt: skip
            hold.put(hold.hold.start(new_commit_id()))
        condemned = killed_text(BLAME) if blame >= SUSPECT + BLAME else ""
        approach = Approach(feed=feed, until=final.until, follows=True, condemned=condemned,
                            few=(1, CAREFUL_ROWS) if blame >= SUSPECT else None)  # fmt: skip
        return self.beside(hold, item, at=at, approach=approach)

    # -- settling -----------------------------------------------------------------------------------------------

    def _settle(self, hold: LoneHold, work: Assignment, *, release: bool) -> tuple[Ended, str, float | None]:
        """Write the end, with the last checkpoint, and give the chunk back if nothing else is to be done under its
        lease: one commit."""
        if hold.lost:
            return Ended.LOST, LOST, None
        if work.abandoned:
            return Ended.TIME_UP, "the handler did not reach a checkpoint in time: its rows are handled again", None
        if work.outcomes:
            return self._failed(hold, work.outcomes[0])
        if work.reached is None:
            return _end(self.control), "", None
        if not self.write(hold, NOTHING, reached=work.reached, release=release):
            return Ended.LOST, LOST, None
        return Ended.CAUGHT_UP, "", None

    def _failed(self, hold: LoneHold, outcome: Outcome) -> tuple[Ended, str, float | None]:
        settled = self.settle(hold, [outcome])
        place = settled.moves[0].place
        waits = place.due if place.state is State.PENDING else 0.0
        if not self.write(hold, settled, release=True, due=waits):
            return Ended.LOST, LOST, None
        if (trouble := trouble_of(outcome)) is not None:
            raise trouble
        why = f"{place.code}: {place.reason}"
        if self.control.signalled and place.state is State.PENDING:
            return Ended.STOPPED, why, None
        if place.state is State.PENDING:
            return Ended.WAITING, why, place.due
        return Ended.DEAD, f"{why}; correct the cause, then: {command('dead redrive', self.batch.name)}", None

    # -- telling ------------------------------------------------------------------------------------------------

    def _with_redriven(self, told: Tick, again: Again) -> Tick:
        """Return the report with the results of redriven rows: a waiting row is left to do."""
        told = replace(told, redriven=again.done, waiting=again.waiting, dead=told.dead + again.buried)
        if again.left:
            ended = _end(self.control) if self.control.drains() else Ended.LOST
            return replace(told, ended=ended, why=again.told if again.told else told.why)
        if again.waiting and told.ended in DONE:
            return replace(told, ended=Ended.WAITING, due=again.due, why=again.told)
        return replace(told, why=again.told) if again.told else told

    def _told(self, ended: Ended, before: Checkpoint | None, at: Checkpoint | None, final: Horizon, *, why: str = "",
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


log = logging.getLogger("holdfast.follow")

T = TypeVar("T")
KEY = "follow"
FROM_START = "it begins at its first row"
QUIET = frozenset({Ended.NOTHING_NEW, Ended.CAUGHT_UP, Ended.HELD})
"""Ends of a tick that need no line in the log if nothing was handled."""
SHORTEST = 0.05
"""The seconds between two ticks if the first has left something to do."""


class Following:
    """The state in this process of a batch that follows a source: opened once, then checked with one read."""

    def __init__(self, pipeline: "PipelineDefinition", stage: PartitionStage, *, batch: str, lease: float,
                 accept: str | None, heartbeat: float | None = None) -> None:  # fmt: skip
        self.pipeline, self.stage = pipeline, stage
        found = open_batch(pipeline, stage, batch, accept)
        self.follower = Follower(pipeline, stage, batch=found, lease=lease, heartbeat=heartbeat)
        self._away_since: float | None = None
        """When the source or the store was first found to be away: that is logged once, and its end once."""

    def tick(self, control: Control, signals: Signals) -> Tick:
        """Handle new rows, committed or not at all. The first SIGTERM or SIGINT drains to the next checkpoint."""
        return self._heeding(control, signals, lambda: self._told(self.follower.tick, control))

    def redriven(self, control: Control) -> int:
        """Handle redriven rows, without looking for new ones; return how many were handled."""
        return self._heeding(control, "raise", lambda: self._told(self.follower.redriven, control))

    def _heeding(self, control: Control, signals: Signals, work: Callable[[], T]) -> T:
        """Return the result of work that signals may stop; Ctrl-C is raised to the caller as well. The second signal
        has its usual effect."""
        interrupts = Interrupts(control, signals=signals, once=True)
        with interrupts.heeded():
            came = work()
        interrupts.pass_on(self.follower.batch.name, str(came), came)
        return came

    def _told(self, work: Callable[[Control], T], control: Control) -> T:
        with self._telling():
            return work(control)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Call the `on_failure` hooks for buried rows, even if the rest failed."""
        try:
            yield
        finally:
            tell_buried(self.pipeline, self.pipeline.store, self.follower.batch.name, self.follower.buried)

    def stay(self, poll: float, control: Control, show: Callable[[Tick], None], signals: Signals) -> Tick:
        """Tick until asked to stop, until the time is up, or until a person has to act. A tick that did something, or
        ended differently from the one before, is shown."""
        return self._heeding(control, signals, lambda: self._tick_on(poll, control, show))

    def _tick_on(self, poll: float, control: Control, show: Callable[[Tick], None]) -> Tick:
        sum_ = Tick(Ended.NOTHING_NEW)
        while True:
            with self._telling():
                last = self._try(control, sum_)
            if last.did_something or _is_news(last.ended, sum_.ended):
                show(last)
            sum_ = replace(last, rows=sum_.rows + last.rows, dead=sum_.dead + last.dead,
                           redriven=sum_.redriven + last.redriven)  # fmt: skip
            if last.ended in (Ended.DEAD, Ended.OVER):
                return sum_
            if control.drains() or not control.wait(self._pause(last, poll)):
                return sum_ if last.again else replace(sum_, ended=_end(control))

    def _try(self, control: Control, before: Tick) -> Tick:
        """Return a tick. A database or a store that is away is tried again; the position of the scan is known from
        before."""
        try:
            tick = self.follower.tick(control)
        except (Transient, StoreUnavailable) as error:
            if isinstance(error, Transient) and error.code != UNAVAILABLE:
                raise
            if self._away_since is None:
                self._away_since = time.monotonic()
                log.warning("batch %s: %s", self.follower.batch.name, error)
            return replace(before, ended=Ended.FAILED, why=str(error), rows=0, dead=0, redriven=0, due=None,
                           lag=None)  # fmt: skip

        if self._away_since is not None:
            away = brief(time.monotonic() - self._away_since)
            log.warning("batch %s: it is back after %s", self.follower.batch.name, away)
            self._away_since = None
        return tick

    def _pause(self, last: Tick, poll: float) -> float:
        if last.ended is Ended.WAITING and last.due is not None:
            return max(SHORTEST, min(poll, last.due - time.time()))
        return poll if last.ended is not Ended.LOST else SHORTEST


def open_batch(pipeline: "PipelineDefinition", stage: PartitionStage, name: str, accept: str | None) -> Batch:
    """Return the batch with its one item, created if it is missing. Another source than the one it began with is
    refused."""
    store, actor = pipeline.store, owners.new_owner()
    keyed = definition.keyed_by("range", "key")
    described = definition.describe(pipeline.name, pipeline.stages, keyed, pipeline.patience)
    known = find_batch(store, name)
    if known is not None:
        definition.check(known, pipeline.name, described, reads_items=False)
        accept_source(pipeline, known, stage, accept, actor)
    if known is None or known.definition != described:
        known = store.open_batch(name, pipeline.name, described, actor=actor)
    if not known.admitted:
        payload = canonical.encode({"range": KEY, **payload_of(Span())})
        only = ingest.admit(KEY, payload)
        store.add_items(known.id, [only], kind=Kind.PARTITIONS, ended=True, actor=actor)
        (fresh,) = store.batches(name)
        known = fresh
    return known


def accept_source(
    pipeline: "PipelineDefinition", known: Batch, stage: PartitionStage, accept: str | None, actor: str
) -> None:
    """Refuse a changed source; if a reason to accept it was passed, record that with the difference."""
    now = stage.source.describe()
    if not changes.source_changes(known, now):
        return
    resets, from_start = how_it_begins(pipeline.store, known)
    accept = accept if accept else from_start
    if changed := changes.check_source(known, now, accept, resets=resets):
        body = journal.Acted(reason=f"{accept} ({'; '.join(changed)})")
        pipeline.store.amend(known.id, to_note(changes.ACCEPTED, body), actor=actor)
        log.warning("batch %s continues with another source (%s): %s", known.name, accept, "; ".join(changed))


def told(run: Report, gathered: Gathered) -> Report:
    """Return the report of a scan that follows: an open batch is normal here."""
    if run.state != "open":
        return run
    again = run.counts.pending - gathered.states.get(State.PENDING, 0)
    why = [f"{many(gathered.rows, 'row')} behind its checkpoint."]
    why += [f"{many(again, 'redriven row')} not handled yet: run a tick."] if again else []
    why += (
        [f"{many(run.counts.dead, 'dead letter')}: see `{command('dead list', run.batch)}`."] if run.counts.dead else []
    )
    return replace(run, state=BatchState.FOLLOWING, why=" ".join(why))


def how_it_begins(store: Store, known: Batch) -> tuple[bool, str | None]:
    """Return whether a reset lets a batch read another source: it does if no border of a partition is a row of the old
    one. And, if its first row is still to be handled, that this is the reason why the other source is accepted. A
    partition that is dead or done there would not be read, so it would not be true that it continues."""
    ranges = list(islice(standings(store, known), 2))
    resets = len(ranges) == 1 and ranges[0].after is None and ranges[0].until is None
    if not resets or ranges[0].place.state is not State.PENDING:
        return resets, None
    return True, FROM_START if ranges[0].cursor is None and not ranges[0].rows else None


def show_line(tick: Tick) -> None:
    """Print it at once, wherever the log goes."""
    sys.stderr.write(f"{tick.line}\n")
    sys.stderr.flush()


def _is_news(ended: Ended, before: Ended) -> bool:
    """Return whether a tick without any row deserves a line: an obstacle appeared, or is gone."""
    return (ended in QUIET) != (before in QUIET) or (ended not in QUIET and ended is not before)


def _end(control: Control) -> Ended:
    return Ended.STOPPED if control.signalled else Ended.TIME_UP
