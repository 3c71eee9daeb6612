"""The worker of a run: it drives the desk with a store, threads and a clock until nothing is left to do.

It carries out what the desk asks for and decides nothing. At any time exactly one thread has this role.
"""

import logging
import queue
import time
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core import canonical, course, journal
from holdfast.core.errors import UsageError
from holdfast.core.limits import LISTED_NAMES, LOAD_BYTES
from holdfast.core.model import Batch, BatchId, Checkpoint, Chunk, Claim, Commit, CommitRefusal, Item, Receipt
from holdfast.core.outcome import Lost, Outcome
from holdfast.core.settle import NOTHING, booked
from holdfast.runtime.engine import exchange as ex
from holdfast.runtime.engine.assignment import Assignment
from holdfast.runtime.engine.control import Control, Role
from holdfast.runtime.engine.desk import Desk
from holdfast.runtime.engine.exchange import NEVER
from holdfast.runtime.engine.hold import Hold
from holdfast.runtime.engine.input_check import InputCheck
from holdfast.runtime.engine.leases import Heartbeat, HeldLease, write
from holdfast.runtime.engine.ledger import Ledger
from holdfast.runtime.engine.pools import Finished, Refusal, Tried, Unable
from holdfast.runtime.engine.stages import StageDriver
from holdfast.runtime.report import lifecycle, orphans
from holdfast.runtime.sources.base import SourceAway
from holdfast.runtime.text import many
from holdfast.stores.base import Idle, Store

log = logging.getLogger("holdfast.worker")
LISTEN_SECONDS = 0.01, 0.1
"""The shortest and the longest pause between two checks whether other processes have written, while there is nothing to
claim."""


class Worker:
    """Works on one batch until it is settled, or until the run is asked to stop."""

    def __init__(self, store: Store, batch: Batch, desk: Desk, stages: Sequence[StageDriver], control: Control,
                 ledger: Ledger, heartbeat: Heartbeat, finished: Finished,
                 gate: InputCheck | None) -> None:  # fmt: skip
        self.store, self.batch, self.desk, self.stages = store, batch, desk, stages
        self.control, self.ledger, self.heartbeat = control, ledger, heartbeat
        self.finished, self.gate = finished, gate
        self._owner = desk.rules.request.owner
        self._leases: dict[Hold, HeldLease] = {}
        self._mark: int | None = None
        """The mark of the store when there was nothing to claim."""
        self._claimed_at = time.monotonic()
        self._role: Role | None = None
        self._carry_out: dict[type, Callable[[Any], Any]] = {
            ex.Wait: self._wait,
            ex.Write: self._write_group,
            ex.Begin: self._begin,
            ex.AskFor: self._ask_for,
            ex.Read: self._read,
            ex.ReadCheckpoints: self._read_checkpoints,
            ex.Taken: self._taken,
            ex.Leave: self._leave,
            ex.Renew: self._renew,
            ex.Reply: self._reply,
            ex.CameFurther: lambda effect: ledger.read(effect.rows),
            ex.Inspect: self._inspect,
            ex.LookAt: lambda effect: self._looks[effect.what](),
            ex.StopRun: self._stop,
            ex.TellPause: self._tell,
            ex.CutOff: self._cut_off,
            ex.GiveBack: self._give_back,
            ex.Abandon: self._abandon,
            ex.TakeTurns: lambda effect: control.pace_ingest(effect.busy),
            ex.Rest: lambda _: control.rest(),
        }
        self._looks: dict[ex.Look, Callable[[], Any]] = {
            ex.Look.BATCH: lambda: next(iter(store.batches(batch.name)), None),
            ex.Look.CHUNKS: lambda: store.chunks(batch.id),
            ex.Look.BLAME: lambda: look_for_blame(store, batch, store.chunks(batch.id), ledger),
        }

    def serve(self, role: Role) -> None:
        """Work under a role, which moves to another thread if a handler blocks this one."""
        self._role = role
        for stage in self.stages:
            stage.role = role

    def work(self) -> None:
        """Work until nothing is left to do or the run is asked to stop; then release everything."""
        self._drive(self.desk.work())

    def release_all(self) -> None:
        """Give back every chunk, so that no process has to wait for a lease to expire."""
        self._drive(self.desk.release_all())

    def _drive(self, effects: Any) -> None:
        desk, control, now, answer = self.desk, self.control, self.store.now, None
        while True:
            if control.deadline is not NEVER or control.stopping:
                control.watch_deadline(desk.slowest)
            desk.at(now(), time.monotonic())
            try:
                effect = effects.send(answer)
            except StopIteration:
                return
            answer = self._carry_out[type(effect)](effect)

    # -- events -------------------------------------------------------------------------------------------------

    def _wait(self, effect: ex.Wait) -> list[ex.Event]:
        """Take the answers of executors; wait for the first one if there is nothing else to do."""
        self.ledger.paused = tuple(stage.stage.name for stage in self.stages if stage.queue.breaker.until)
        events: list[ex.Event] = [ex.Woken()] if effect.for_others and self.control.admit_early() else []
        patience = effect.seconds and max(0.0, min([effect.seconds, *(stage.until_slow() for stage in self.stages)]))
        try:
            waits = patience > 0 and not events
            message = self._first(patience, listens=effect.for_others) if waits else self.finished.get_nowait()
            while True:
                events += self._received(message)
                message = self.finished.get_nowait()
        except queue.Empty:
            pass
        for stage in self.stages:
            events += [self._came_back(answer) for answer in (*stage.overdue(), *stage.split_slow())]
        return events + self._news()

    def _first(self, patience: float, *, listens: bool) -> Any:
        """Wait for the first message, or until other processes have written since there was nothing to claim. The store
        is checked often at first, and less often the longer nothing could be claimed. Raises queue.Empty."""
        if not listens or self._mark is None:
            return self.finished.get(timeout=patience)
        now = time.monotonic()
        until, pause = now + patience, max(LISTEN_SECONDS[0], min(LISTEN_SECONDS[1], (now - self._claimed_at) / 8))
        while True:
            try:
                return self.finished.get(timeout=max(0.0, min(pause, until - time.monotonic())))
            except queue.Empty:
                if self.store.mark(self.batch.id) != self._mark:
                    return ex.Woken(by_others=True)
                if time.monotonic() >= until:
                    raise

    def _received(self, message: Any) -> Sequence[ex.Event]:
        if message is None or isinstance(message, ex.Woken):
            return [message or ex.Woken()]
        if isinstance(message, Tried):
            message.pool.begin()
            return ()
        if isinstance(message, Unable):
            return self._unable(message)
        if isinstance(message, Refusal):
            self._refuse(message.error)
            return ()
        if isinstance(message, ex.InputAnswer):
            assert self.gate is not None
            self.gate.answered()
            if message.error is not None:
                raise message.error
            return [message]
        return self._of_work(message)

    def _of_work(self, message: ex.Answer | ex.Broken | ex.CheckpointReached) -> Sequence[ex.Event]:
        if isinstance(message, ex.CheckpointReached):
            if message.work.abandoned:
                message.saving.waiter.answer(landed=False)
                return ()
            return [message]
        if message.work.abandoned:
            return ()  # it answered at the moment it was given up, and is already accounted for
        if isinstance(message, ex.Answer):
            return [self._came_back(message)]
        if message.final:
            raise UsageError(f"the executor passed to run() is broken: {message.error}; pass a new one and run again")
        self.stages[message.work.stage].forget(message.work)
        return [message]

    def _came_back(self, answer: ex.Answer) -> ex.Answer:
        work: Assignment = answer.work
        work.came_back += len(answer.outcomes) + len(answer.unrun)
        if work.came_back >= len(work.items):
            self.stages[work.stage].forget(work)
        return answer

    def _unable(self, message: Unable) -> Sequence[ex.Event]:
        """End the run, because nothing more can be run. If it is known which assignment will not answer, the other
        assignments in flight finish and are kept."""
        if message.answer is None:
            raise message.trouble()
        self.control.fail(message.trouble())
        return [self._came_back(message.answer)]

    def _refuse(self, error: BaseException) -> None:
        """Refuse to run any partition: the definition of the scan is wrong, or its source is unavailable."""
        if isinstance(error, SourceAway):
            self.ledger.notes += [] if self.control.stopping else [str(error)]
            self.control.stop("away")
        else:
            self.control.fail(error)

    def _news(self) -> list[ex.Event]:
        beat = self.heartbeat.news()
        return [] if beat is None else [beat]

    def _renew(self, effect: ex.Renew) -> list[ex.Event]:
        self.heartbeat.beat()
        return self._news()

    def _give_back(self, effect: ex.GiveBack) -> None:
        for stage in self.stages:
            stage.give_back()

    def _abandon(self, effect: ex.Abandon) -> None:
        for stage in self.stages:
            stage.abandon_all()

    def _cut_off(self, effect: ex.CutOff) -> list[ex.Event]:
        return [self._came_back(answer) for stage in self.stages for answer in stage.cut_off()]

    # -- the store ----------------------------------------------------------------------------------------------

    def _write_group(self, effect: ex.Write) -> list[Receipt]:
        """Write commits; their outputs are made durable before, and get their final names after."""
        assert self._role is None or self._role.is_mine, "two threads have the role of the worker"
        group = effect.group
        commits = [written.commit for written in group]
        if all(written.settled is NOTHING for written in group):
            return self._write(commits)
        for stage in self.stages:
            stage.sync_outputs([written.settled for written in group])
        with self.ledger.writing():
            receipts = self._write(commits)
            landed = [written for written, receipt in zip(group, receipts, strict=True) if receipt.landed]
            for written in landed:
                self._book(written)
        for stage in self.stages:
            stage.publish([written.settled for written in landed])
        if late := [c for c, receipt in zip(commits, receipts, strict=True) if receipt.reason is CommitRefusal.SEALED]:
            self.ledger.late += lifecycle.note_late(self.store, late, owner=self._owner)
        return receipts

    def _book(self, written: ex.Written) -> None:
        self.ledger.add(booked(written.settled, written.hold.all_reached()))
        self._leases[written.hold].progressed()

    def _write(self, commits: list[Commit]) -> list[Receipt]:
        return write(self.store, commits)

    def _ask_for(self, effect: ex.AskFor) -> Claim | Idle:
        answer = self.store.claim(effect.request)
        if isinstance(answer, Idle):
            self._mark = answer.mark
        else:
            self._claimed_at = time.monotonic()
            for stage in self.stages:
                stage.look_again()
        return answer

    def _read(self, effect: ex.Read) -> Sequence[Item]:
        return self.store.load(effect.claim, effect.after, effect.most, LOAD_BYTES)

    def _read_checkpoints(self, effect: ex.ReadCheckpoints) -> Sequence[Checkpoint]:
        claim = effect.claim
        return self.store.checkpoints(claim.batch, lo=claim.lo, hi=claim.hi)

    # -- holds --------------------------------------------------------------------------------------------------

    def _taken(self, effect: ex.Taken) -> None:
        self._leases[effect.hold] = self.heartbeat.add(effect.hold.lease)

    def _inspect(self, effect: ex.Inspect) -> None:
        assert self.gate is not None, "no stage has a verifier"
        self.gate.ask(effect.question)

    def _begin(self, effect: ex.Begin) -> None:
        work: Assignment = effect.work
        work.lease = self._leases[work.hold]
        self.stages[work.stage].start(work)

    def _reply(self, effect: ex.Reply) -> None:
        for saving in effect.savings:
            saving.waiter.answer(effect.landed)

    def _leave(self, effect: ex.Leave) -> None:
        held = self._leases.pop(effect.hold)
        self.heartbeat.remove(held)
        if effect.why:
            held.lost = True  # its handlers are asked to stop
            self._tell_dropped(effect.hold, effect.why)

    def _tell_dropped(self, hold: Hold, why: str) -> None:
        running = [item for stage in self.stages for work in stage.active.values() if work.hold is hold
                   for item in work.items]  # fmt: skip
        finished, name = [*hold.in_write, *hold.outcomes], self.batch.name
        if text := replaced_payloads(self.store, hold.claim.batch, name, finished, running):
            log.warning("%s", text)
            return
        then = "the batch is finished" if "sealed" in why else "another worker continues with it"
        log.warning("batch %r, items number %d to %d: %s; %s", name, hold.claim.lo, hold.claim.hi - 1, why, then)

    # -- the run ------------------------------------------------------------------------------------------------

    def _stop(self, effect: ex.StopRun) -> None:
        if effect.error is not None:
            self.control.fail(effect.error)
        else:
            self.control.stop(effect.reason)

    def _tell(self, effect: ex.TellPause) -> None:
        """Log that a stage pauses; if its breaker opened, write an event."""
        log.warning("%s", effect.message)
        self.ledger.notes.append(effect.message)
        note_pause(self.store, self.batch.id, effect, actor=self._owner)


def note_pause(store: Store, batch: BatchId, effect: ex.TellPause, *, actor: str) -> None:
    """Write an event if the breaker of a stage opened."""
    if effect.until is not None:
        warning = course.warning("breaker_open", effect.message, stage=effect.stage, until=effect.until)
        body = journal.Acted(reason=effect.message, note=warning.body)
        store.amend(batch, course.to_note("warned", body, events=[warning]), actor=actor)


def look_for_blame(store: Store, batch: Batch, chunks: Sequence[Chunk], ledger: Ledger) -> bool:
    """Return whether any chunk of a batch carries blame; if so, say so in the progress of the run."""
    found = orphans.blame_of(store, batch, chunks, now=store.now())
    ledger.careful = "" if found is None else found.brief
    if found is not None and found.is_suspected and found.note not in ledger.notes:
        ledger.notes.append(found.note)
    return found is not None


def replaced_payloads(
    store: Store, batch: BatchId, name: str, finished: Sequence[Outcome], running: Sequence[Item]
) -> str | None:
    """Return what became of work that cannot be recorded; None unless a payload of these items was replaced."""
    items = {item.n: item for item in (*running, *(outcome.item for outcome in finished))}
    if not items:
        return None
    stored = {item.n: item.revision for item in store.items(batch, lo=min(items), hi=max(items) + 1)}
    gone = [item for item in items.values() if stored.get(item.n, item.revision) != item.revision]
    if not gone:
        return None
    others = [item for item in items.values() if item not in gone]
    return f"batch {name!r}: {_of_replaced(gone)}{_of_others(others)}{_cost_so_far(finished)}"


def _of_replaced(gone: Sequence[Item]) -> str:
    if len(gone) == 1:
        return (
            f"the payload of item {_keys(gone)} was replaced while it was handled: its result and its cost are not "
            "recorded; it is handled again with the new payload"
        )
    return (
        f"the payloads of {len(gone):,} items ({_keys(gone)}) were replaced while they were handled: their results "
        "and costs are not recorded; they are handled again with the new payloads"
    )


def _of_others(others: Sequence[Item]) -> str:
    """Return a sentence about the other items of the claim: items that were claimed together are taken away
    together."""
    if not others:
        return ""
    return f". The work on {many(len(others), 'item')} claimed with it is not recorded either ({_keys(others)})"


def _keys(items: Sequence[Item]) -> str:
    names = [canonical.key_text(item.key) for item in items[:LISTED_NAMES]]
    return ", ".join(names) + (", …" if len(items) > LISTED_NAMES else "")


def _cost_so_far(finished: Sequence[Outcome]) -> str:
    """Return the cost as far as it is known: running handlers have not reported theirs."""
    spends = [each.spend for each in finished if not isinstance(each, Lost)]
    units = sum(spend.usd for spend in spends if spend is not None)
    return f" (${canonical.to_usd(units)} so far)" if units else ""
