"""One tick: look what is new without claiming anything, else claim, walk to the end of what is there, commit, release.

A tick with nothing new reads the checkpoint and the source, and writes nothing. Rows that were redriven are handled
after what is new, under the same lease.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from holdfast.core import canonical, changes, ingest, journal, retry
from holdfast.core import cursor as cursors
from holdfast.core.canonical import SALT_BYTES
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
"""How often a process that finds nothing new looks whether somebody accepted another source for the batch."""
DONE = frozenset({Ended.CAUGHT_UP, Ended.NOTHING_NEW})
"""All rows that are final are behind the checkpoint."""
LOST = "another process continues with it"
UNSETTLED = "the newest row is not final yet"


class Follower(TickDriver):
    """Follows one source for one batch, tick by tick, in this process."""

    def __init__(self, pipeline: "PipelineDefinition", stage: PartitionStage, *, batch: Batch, lease: float,
                 heartbeat: float | None = None) -> None:  # fmt: skip
        super().__init__(pipeline, stage, batch=batch, lease=lease, heartbeat=heartbeat)
        self._redriving = Redriving(self)
        self.looked_at = time.monotonic()
        """When it was last seen that the batch follows our source."""

    # -- looking ------------------------------------------------------------------------------------------------

    def tick(self, control: Control) -> Tick:
        """Return what is new, committed or not at all; and rows that were redriven and are due."""
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
        """Handle rows that were redriven, and nothing else. How many were handled."""
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
        """There is nothing to do now."""
        ended = Ended.WAITING if final.nothing and final.why else Ended.NOTHING_NEW
        told = self._told(ended, at, at, final, why=final.why if final.nothing else "")
        due = min((each.due for each in rows), default=None)
        return self._with_redriven(told, Again(waiting=len(rows), due=due))

    def _checkpoint(self) -> Checkpoint | None:
        found = self.store.checkpoints(self.batch.id, lo=FIRST, hi=FIRST + 1, limit=1)
        return found[0] if found else None

    def _look(self, at: Checkpoint | None) -> tuple[Horizon, Feed | None]:
        """Return how far rows are final, and those that are new; None where there are none."""
        source, after = self.stage.source, _cursor(at)
        final = source.final(after, self.control.wait) if isinstance(source, Followable) else Horizon()
        if final.nothing:
            return final, None
        feed = Feed(iter(source.read(after, final.until)), 0 if at is None else at.rows, after)
        return final, None if feed.at_end else feed

    def _refuse_another_source(self) -> None:
        """Asked while the lease is held, so that nobody moves the cursor in another source afterwards."""
        self.looked_at = time.monotonic()
        now = find_batch(self.store, self.batch.name)
        if now is not None and now.definition != self.batch.definition:
            changes.check_source_still(self.stage.source.describe(), now)

    def _not_ours(self, idle: Idle, at: Checkpoint | None, final: Horizon) -> Tick:
        (item,) = self.store.items(self.batch.id, lo=FIRST, hi=FIRST + 1, limit=1)
        if item.place.state is State.DEAD:
            redrive = command("dead redrive", self.batch.name)
            why = f"{item.place.code}: {item.place.reason}; see to it, then: {redrive}"
            return self._told(Ended.DEAD, at, at, final, why=why)
        if item.place.state is not State.PENDING or idle.why in (Barrier.CANCELLED, Barrier.UNTIL):
            return self._told(Ended.DEAD, at, at, final, why=f"the scan is {item.place.state}: it follows no more")
        if idle.why is Barrier.PAUSED:
            why = f"it is paused: call `{unpause_command(self.batch.name)}`"
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

    def _walk(self, hold: LoneHold, item: Item, at: Checkpoint | None, feed: Feed, final: Horizon) -> Assignment:
        """Handle what is new, from the checkpoint on."""
        blame = hold.claim.blame
        if blame >= SUSPECT:
            log.warning("batch %s: %s ended in a dead process: its rows are handled one at a time", self.batch.name,
                        many(blame, "tick"))  # fmt: skip
            hold.put(hold.hold.start(new_commit_id()))
        condemned = killed_text(BLAME) if blame >= SUSPECT + BLAME else ""
        approach = Approach(feed=feed, until=final.until, follows=True, condemned=condemned,
                            few=(1, CAREFUL_ROWS) if blame >= SUSPECT else None)  # fmt: skip
        return self.beside(hold, item, at=at, approach=approach)

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
        return Ended.DEAD, f"{why}; see to it, then: {command('dead redrive', self.batch.name)}", None

    # -- telling ------------------------------------------------------------------------------------------------

    def _with_redriven(self, told: Tick, again: Again) -> Tick:
        """Return what became of rows that were redriven is told with the rest: one that waits is left to do."""
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
"""How ticks end that have nothing to tell but what they did."""
SHORTEST = 0.05
"""Seconds between two ticks where the first has left something to do."""


class Following:
    """What this process knows about a batch that follows a source: opened once, looked at with one read after that."""

    def __init__(self, pipeline: "PipelineDefinition", stage: PartitionStage, *, batch: str, lease: float,
                 accept: str | None, heartbeat: float | None = None) -> None:  # fmt: skip
        self.pipeline, self.stage = pipeline, stage
        found = open_batch(pipeline, stage, batch, accept)
        self.follower = Follower(pipeline, stage, batch=found, lease=lease, heartbeat=heartbeat)
        self._away_since: float | None = None
        """When the source, or the store, was first found not to answer: that is told once, and once that it is over."""

    def tick(self, control: Control, signals: Signals) -> Tick:
        """Return what is new, committed or not at all. The first SIGTERM or SIGINT drains to the next checkpoint."""
        return self._heeding(control, signals, lambda: self._told(self.follower.tick, control))

    def redriven(self, control: Control) -> int:
        """Handle rows that were buried and redriven, without looking for new ones; how many were."""
        return self._heeding(control, "raise", lambda: self._told(self.follower.redriven, control))

    def _heeding(self, control: Control, signals: Signals, work: Callable[[], T]) -> T:
        """Return what comes of work that signals may stop; Ctrl-C was meant for the caller, too. The second signal has
        its usual effect."""
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
        """The `on_failure` hooks hear of what was buried, also where the rest failed."""
        try:
            yield
        finally:
            tell_buried(self.pipeline, self.pipeline.store, self.follower.batch.name, self.follower.buried)

    def stay(self, poll: float, control: Control, show: Callable[[Tick], None], signals: Signals) -> Tick:
        """Tick for ever: until somebody says stop, the time is up, or a person has to act. A tick that did something,
        or ended in another way than the one before, is shown."""
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
            if last.ended is Ended.DEAD:
                return sum_
            if control.drains() or not control.wait(self._pause(last, poll)):
                return sum_ if last.again else replace(sum_, ended=_end(control))

    def _try(self, control: Control, before: Tick) -> Tick:
        """Return a tick. A database or a store that does not answer for now is looked at again; where the scan stands
        is known from before."""
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
            log.warning("batch %s: it answers again, after %s", self.follower.batch.name, away)
            self._away_since = None
        return tick

    def _pause(self, last: Tick, poll: float) -> float:
        if last.ended is Ended.WAITING and last.due is not None:
            return max(SHORTEST, min(poll, last.due - time.time()))
        return poll if last.ended is not Ended.LOST else SHORTEST


def open_batch(pipeline: "PipelineDefinition", stage: PartitionStage, name: str, accept: str | None) -> Batch:
    """Return the batch with its one item, made if it is missing. Another source than the one it was begun with is
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
        only = ingest.admit(KEY, payload, os.urandom(SALT_BYTES))
        store.add_items(known.id, [only], kind=Kind.PARTITIONS, ended=True, actor=actor)
        (fresh,) = store.batches(name)
        known = fresh
    return known


def accept_source(
    pipeline: "PipelineDefinition", known: Batch, stage: PartitionStage, accept: str | None, actor: str
) -> None:
    """Refuse a changed source; where somebody says why it is fine, keep that with the difference."""
    now = stage.source.describe()
    if not changes.source_changes(known, now):
        return
    resets, from_start = how_it_begins(pipeline.store, known)
    accept = accept if accept else from_start
    if changed := changes.check_source(known, now, accept, resets=resets):
        body = journal.Acted(reason=f"{accept} ({'; '.join(changed)})")
        pipeline.store.amend(known.id, to_note(changes.ACCEPTED, journal.encode_body(body)), actor=actor)
        log.warning("batch %s continues with another source (%s): %s", known.name, accept, "; ".join(changed))


def told(run: Report, gathered: Gathered) -> Report:
    """Return the report of a scan that follows: that it is open is no sign of trouble."""
    if run.state != "open":
        return run
    again = run.counts.pending - gathered.states.get(State.PENDING, 0)
    why = [f"{many(gathered.rows, 'row')} stand behind its checkpoint."]
    why += [f"{many(again, 'redriven row')} not handled yet: run a tick."] if again else []
    why += (
        [f"{many(run.counts.dead, 'dead letter')}: see `{command('dead list', run.batch)}`."] if run.counts.dead else []
    )
    return replace(run, state=BatchState.FOLLOWING, why=" ".join(why))


def how_it_begins(store: Store, known: Batch) -> tuple[bool, str | None]:
    """Return whether a reset lets a batch read another source: it does where no border of a range is a row of the old
    one. And, where its first row is still to be handled, that this is why the other one is fine. A range that is dead
    or done there would not be read: that it continues would not be true."""
    ranges = list(islice(standings(store, known), 2))
    resets = len(ranges) == 1 and ranges[0].after is None and ranges[0].until is None
    if not resets or ranges[0].place.state is not State.PENDING:
        return resets, None
    return True, FROM_START if ranges[0].cursor is None and not ranges[0].rows else None


def show_line(tick: Tick) -> None:
    """Show it at once, wherever the log goes."""
    sys.stderr.write(f"{tick.line}\n")
    sys.stderr.flush()


def _is_news(ended: Ended, before: Ended) -> bool:
    """Return whether a tick without any row is worth a line: something is in the way, or no longer is."""
    return (ended in QUIET) != (before in QUIET) or (ended not in QUIET and ended is not before)


def _end(control: Control) -> Ended:
    return Ended.STOPPED if control.signalled else Ended.TIME_UP
