"""A scan that follows its source: one item that never ends, a tick at a time, or staying and looking every so often."""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.core import canonical, changes, ingest, journal
from holdfast.core.canonical import SALT_BYTES
from holdfast.core.course import to_note
from holdfast.core.errors import StoreUnavailable, Transient
from holdfast.core.model import Batch, State
from holdfast.runtime.define import definition
from holdfast.runtime.define.options import Signals
from holdfast.runtime.engine.control import give_back, handled, interrupted
from holdfast.runtime.engine.hooks import FailureHooks
from holdfast.runtime.partitions import standings
from holdfast.runtime.report import Report
from holdfast.runtime.scans.convergence import Gathered
from holdfast.runtime.scans.follower import Follower
from holdfast.runtime.scans.handling import Stop
from holdfast.runtime.scans.stage import RangeStage, payload_of
from holdfast.runtime.scans.tick import Ended, Tick
from holdfast.runtime.sources.base import UNAVAILABLE, Span
from holdfast.runtime.text import brief, command, many
from holdfast.stores import owners
from holdfast.stores.base import Store

if TYPE_CHECKING:
    from holdfast.runtime.define.pipeline import PipelineDefinition

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

    def __init__(self, pipeline: "PipelineDefinition", stage: RangeStage, *, batch: str, lease: float,
                 accept: str | None, heartbeat: float | None = None) -> None:  # fmt: skip
        self.pipeline, self.stage = pipeline, stage
        found = open_batch(pipeline, stage, batch, accept)
        self.follower = Follower(pipeline.store, stage, pipeline=pipeline.name, batch=found, lease=lease,
                                 heartbeat=heartbeat)  # fmt: skip
        self.failures = FailureHooks(pipeline, batch, [])
        self._away_since: float | None = None
        """When the source, or the store, was first found not to answer: that is told once, and once that it is over."""

    def tick(self, stop: Stop, signals: Signals) -> Tick:
        """What is new, committed or not at all. The first SIGTERM or SIGINT drains to the next checkpoint."""
        with _signals(stop, signals), self._telling():
            told = self.follower.tick(stop)
        return self._passed_on(told, stop, signals)

    def redriven(self, stop: Stop) -> int:
        """Handle rows that were buried and redriven, without looking for new ones; how many were."""
        with _signals(stop, "raise"), self._telling():
            count = self.follower.redriven(stop)
        return self._passed_on(count, stop, "raise")

    def _passed_on(self, told: T, stop: Stop, signals: Signals) -> T:
        """How it ended; Ctrl-C was meant for the caller, too."""
        if stop.ctrl_c and signals == "raise":
            raise interrupted(f"batch {self.follower.batch.name!r} was interrupted: {told}", told)
        return told

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """The `on_failure` hooks hear of what was buried, also where the rest failed."""
        try:
            yield
        finally:
            self.failures.tell(self.follower.buried)

    def stay(self, poll: float, stop: Stop, show: Callable[[Tick], None], signals: Signals) -> Tick:
        """Tick for ever: until somebody says stop, the time is up, or a person has to act. A tick that did something,
        or ended in another way than the one before, is shown."""
        with _signals(stop, signals):
            told = self._tick_on(poll, stop, show)
        return self._passed_on(told, stop, signals)

    def _tick_on(self, poll: float, stop: Stop, show: Callable[[Tick], None]) -> Tick:
        sum_ = Tick(Ended.NOTHING_NEW)
        while True:
            with self._telling():
                last = self._try(stop, sum_)
            if last.did_something or _is_news(last.ended, sum_.ended):
                show(last)
            sum_ = replace(last, rows=sum_.rows + last.rows, dead=sum_.dead + last.dead,
                           redriven=sum_.redriven + last.redriven)  # fmt: skip
            if last.ended is Ended.DEAD:
                return sum_
            if stop.now or not stop.wait(self._pause(last, poll)):
                return sum_ if last.again else replace(sum_, ended=_end(stop))

    def _try(self, stop: Stop, before: Tick) -> Tick:
        """A tick. A database or a store that does not answer for now is looked at again; where the scan stands is known
        from before."""
        try:
            tick = self.follower.tick(stop)
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


def open_batch(pipeline: "PipelineDefinition", stage: RangeStage, name: str, accept: str | None) -> Batch:
    """The batch with its one item, made if it is missing. Another source than the one it was begun with is refused."""
    store, actor = pipeline.store, owners.new_owner()
    keyed = definition.keyed_by("range", "key")
    described = definition.describe(pipeline.name, pipeline.stages, keyed, pipeline.patience)
    known = store.batch(name)
    if known is not None:
        definition.check(known, pipeline.name, described, reads_items=False)
        accept_source(pipeline, known, stage, accept, actor)
    if known is None or known.definition != described:
        known = store.open_batch(name, pipeline.name, described, actor=actor)
    if not known.admitted:
        payload = canonical.encode({"range": KEY, **payload_of(Span())})
        store.add_items(known.id, [ingest.admit(KEY, payload, os.urandom(SALT_BYTES))], ended=True, actor=actor)
        fresh = store.batch(name)
        assert fresh is not None
        known = fresh
    return known


def accept_source(
    pipeline: "PipelineDefinition", known: Batch, stage: RangeStage, accept: str | None, actor: str
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
    """The report of a scan that follows: that it is open is no sign of trouble."""
    if run.state != "open":
        return run
    again = run.counts.pending - gathered.states.get(State.PENDING, 0)
    why = [f"{many(gathered.rows, 'row')} stand behind its checkpoint."]
    why += [f"{many(again, 'redriven row')} not handled yet: run a tick."] if again else []
    why += (
        [f"{many(run.counts.dead, 'dead letter')}: see `{command('dead list', run.batch)}`."] if run.counts.dead else []
    )
    return replace(run, state="following", why=" ".join(why))


def how_it_begins(store: Store, known: Batch) -> tuple[bool, str | None]:
    """Whether a reset lets a batch read another source: it does where no border of a range is a row of the old one.
    And, where its first row is still to be handled, that this is why the other one is fine. A range that is dead or
    done there would not be read: that it continues would not be true."""
    ranges = list(islice(standings(store, known), 2))
    resets = len(ranges) == 1 and ranges[0].after is None and ranges[0].until is None
    if not resets or ranges[0].place.state is not State.PENDING:
        return resets, None
    return True, FROM_START if ranges[0].cursor is None and not ranges[0].rows else None


def line(tick: Tick) -> str:
    """For a person who looks at the log later."""
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%SZ}  {tick}"


def show_line(tick: Tick) -> None:
    """Show it at once, wherever the log goes."""
    sys.stderr.write(f"{line(tick)}\n")
    sys.stderr.flush()


def _is_news(ended: Ended, before: Ended) -> bool:
    """Whether a tick without any row is worth a line: something is in the way, or no longer is."""
    return (ended in QUIET) != (before in QUIET) or (ended not in QUIET and ended is not before)


def _end(stop: Stop) -> Ended:
    return Ended.STOPPED if stop.was_said else Ended.TIME_UP


@contextmanager
def _signals(stop: Stop, signals: Signals) -> Iterator[None]:
    """The first signal drains to the next checkpoint; the second has its usual effect."""
    if signals == "ignore" or threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}

    def drain(number: int, _: object) -> None:
        stop.signal(ctrl_c=number == signal.SIGINT)
        give_back(before)

    with handled(drain) as earlier:
        before.update(earlier)
        yield
