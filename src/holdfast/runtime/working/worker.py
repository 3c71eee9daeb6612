"""The worker: claim, run, settle, commit, until there is nothing left to do.

It owns the control flow and nothing else. One thread goes round: collect what executors finished, settle and commit
all of it in one write, send on what may go on, claim more. Everything that is finished while a write is on its way
goes into the next one, so groups form by themselves under load, and at rest an item is durable at once. An item's
next stage starts only after its checkpoint is durable.
"""

import logging
import queue
import time
from collections.abc import Sequence

import msgspec

from holdfast.core import lease as leases
from holdfast.core.errors import Damaged, StoreError, UsageError
from holdfast.core.limits import CLAIM_CHUNKS, LOAD_BYTES, LOAD_ITEMS, SUSPECT
from holdfast.core.model import Claim, Commit, CommitRefusal, Item, Want
from holdfast.core.outcome import Deferred, Done, Failed, Lost, Outcome, excuse
from holdfast.core.settle import NOTHING, Settled, booked, commit, settle, start
from holdfast.runtime.ending.pauses import Pauses
from holdfast.runtime.ending.watch import Watch
from holdfast.runtime.lifecycle import end
from holdfast.runtime.scans.burial import is_row
from holdfast.runtime.sources.base import SourceAway
from holdfast.runtime.text import command, many
from holdfast.runtime.verify.gate import Gate, Passed
from holdfast.runtime.working import replaced
from holdfast.runtime.working.appetite import Appetite
from holdfast.runtime.working.assignment import Answer, Assignment
from holdfast.runtime.working.caution import Caution
from holdfast.runtime.working.control import Control
from holdfast.runtime.working.executors import Tried
from holdfast.runtime.working.heartbeat import Heartbeat
from holdfast.runtime.working.holding import Holding, adjoining, by_holding
from holdfast.runtime.working.lane import Lane
from holdfast.runtime.working.ledger import Ledger
from holdfast.runtime.working.pace import INLINE_SECONDS
from holdfast.runtime.working.pools import Broken, Finished, Unable
from holdfast.runtime.working.role import Role
from holdfast.runtime.working.saving import Refusal, Saving
from holdfast.runtime.working.withheld import Withheld, has_success
from holdfast.runtime.working.writing import write
from holdfast.stores.base import Idle, Receipt, Store

log = logging.getLogger("holdfast.worker")

IDLE_SECONDS = 0.25
"""The longest wait before looking again for work that others may have left."""


class Worker:
    """Works on one batch until it is settled, or the run is told to stop."""

    def __init__(self, store: Store, lanes: Sequence[Lane], control: Control, ledger: Ledger, heartbeat: Heartbeat,
                 finished: Finished, want: Want, gate: Gate, caution: Caution, *,
                 believes: bool = False) -> None:  # fmt: skip
        self.store = store
        self.lanes = lanes
        self.control = control
        self.ledger = ledger
        self.heartbeat = heartbeat
        self.finished = finished
        self.want = want
        self.gate = gate
        self.caution = caution
        self.takes_ranges = lanes[0].stage.takes_ranges
        self.isolates_rows = self.takes_ranges and bool(getattr(lanes[0].stage, "isolate", False))
        """Of a range whose process died again and again, the row is buried, not the range."""
        self.adopting = frozenset(lane.index for lane in lanes if lane.stage.adopter is not None)
        self.pauses = Pauses(store, lanes, control, ledger, want)
        self.watch = Watch(store, lanes[0].runner.batch, control, want, lanes[0].slots)
        doubts = not (believes or self.takes_ranges or has_success(ledger.began_with))
        self.withheld = Withheld(store, lanes, control, want, self.watch, active=doubts)
        self.policies = [lane.stage.policy for lane in lanes]
        self.makers = [] if self.takes_ranges else [lane.stage.maker for lane in lanes]
        self.holdings: list[Holding] = []
        self.idle: Idle | None = None
        self.asked_at_end = False
        """Whether that was asked after the source was read: what is admitted in the meantime is not in the answer."""
        self.look_again_at = 0.0
        self.appetite = Appetite(lanes, control)
        self._role: Role | None = None
        self._gave_back = False
        self._empty: set[int] = set()
        """Chunks whose last grant had nothing to load."""
        self._answered: list[tuple[Assignment, int]] = []
        """What came back and holds its slots until it is committed: so far may the workers run ahead of the disk."""

    def serve(self, role: Role) -> None:
        """Work under a role, which moves to another thread where a handler keeps this one."""
        self._role = role
        for lane in self.lanes:
            lane.role = role

    # -- the round ----------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Go round until there is nothing left to do or the run is told to stop; then let go of everything."""
        while not self._at_end():
            self._collect(self._patience())
            self.heartbeat.catch_up(self.store.now())
            self._refill()
            self._commit()
            self._free_slots()
            self.control.watch_deadline(max(lane.pace.mean for lane in self.lanes))
            self.watch.look()
            self._look_after_timeouts()
            if self.control.stopping:
                self._drop_what_is_ready()
                continue
            if self.control.comparing:
                self._rest()
                continue
            self._wake()
            self.gate.let_through(self.holdings, nothing_left=self.idle is not None)
            self._isolate()
            self._top_up()
            self.withheld.look(self.holdings, self.idle.pending if self.idle and self.asked_at_end else None)
            self._dispatch()
            self._let_go()
        self._collect(0.0)
        if self.control.at_once and not self.takes_ranges:
            for lane in self.lanes:
                for work, outcomes, rest in lane.cut_off():
                    self._finish(work, outcomes, rest)
        self.withheld.release()
        self._commit()
        self.release_all()

    def _at_end(self) -> bool:
        if self.control.stopping:
            return self.control.at_once or not any(h.running or h.is_ripe for h in self.holdings)
        return self.idle is not None and self.idle.pending == 0 and not self.holdings and self.asked_at_end

    def _patience(self) -> float:
        """How long to wait for an executor: not at all while something can be done at once."""
        if any(h.is_ripe for h in self.holdings):
            return 0.0
        if self.control.stopping:
            return self.control.patience(IDLE_SECONDS)
        if any(self._can_start(h) for h in self._startable()):
            return 0.0
        if self._is_hungry() and (self._may_claim() or not all(h.loaded_all for h in self.holdings)):
            return 0.0
        now = self.store.now()
        times = [due - now for h in self.holdings if (due := h.next_due()) is not None]
        times += [lane.until_slow() for lane in self.lanes]
        return max(0.0, min([IDLE_SECONDS, self.control.patience(IDLE_SECONDS), *times]))

    # -- collect, settle, commit ----------------------------------------------------------------------------------

    def _collect(self, patience: float) -> None:
        """Take what executors finished; wait for the first if there is nothing else to do."""
        try:
            message = self.finished.get(timeout=patience) if patience > 0 else self.finished.get_nowait()
        except queue.Empty:
            return
        while True:
            self._receive(message)
            try:
                message = self.finished.get_nowait()
            except queue.Empty:
                return

    def _receive(self, message: Answer | Broken | Passed | Refusal | Saving | Tried | Unable | None) -> None:
        if message is None:
            self.idle, self.look_again_at = None, 0.0
        elif isinstance(message, Saving):
            self._save(message)
        elif isinstance(message, Refusal):
            self._refuse(message.error)
        elif isinstance(message, Tried):
            message.pool.begin()
        elif isinstance(message, Unable):
            self._unable(message)
        elif isinstance(message, Passed):
            holding, at = message.question.holding, message.question.items[0].place.stage
            told = message.outcomes if holding.lost else self.withheld.sift(holding, at, message.outcomes)
            self.gate.take(message._replace(outcomes=told))
            self._stop_at_trouble(message.outcomes)
        elif message.work.abandoned:
            return  # it answered in the moment it was given up, and is accounted for already
        elif isinstance(message, Broken):
            self._broken(message)
        else:
            self._finish(*message)

    def _unable(self, message: Unable) -> None:
        """End the run, because nothing more can be run. Work that others have in flight comes to its end and is kept,
        where it is known which assignment is not to be waited for."""
        if message.answer is None:
            raise message.trouble()
        self.control.fail(message.trouble())
        self._finish(*message.answer)

    def _refuse(self, error: BaseException) -> None:
        """No range can be run: as the scan is written, or while its source is away."""
        if isinstance(error, SourceAway):
            self.ledger.notes += [] if self.control.stopping else [str(error)]
            self.control.stop("away")
        else:
            self.control.fail(error)

    def _save(self, message: Saving) -> None:
        """A handler came to a checkpoint of its range, and waits until that is durable."""
        if message.work.is_vain:
            message.answer(landed=False)
        else:
            message.work.holding.savings.append(message)

    def _finish(self, work: Assignment, outcomes: list[Outcome], unrun: Sequence[Item] = ()) -> None:
        lane, holding = self.lanes[work.stage], work.holding
        count = len(outcomes) + len(unrun)
        self._answered.append((work, count))
        lane.pace.learn(outcomes)
        if self.control.signalled:
            outcomes = [excuse(outcome, "interrupted") for outcome in outcomes]
        odd = [outcome for outcome in outcomes if not isinstance(outcome, Done)]
        if odd or not lane.breaker.is_calm:
            outcomes = self.pauses.judge(lane, outcomes)
        holding.running -= count
        if holding.suspects:
            holding.acquit(outcome.item.n for outcome in outcomes)
        if not holding.lost:
            if work.reached is not None and outcomes:
                holding.reached.append(work.reached)
            holding.put_back(work, unrun)
            lost = [each for each in outcomes if isinstance(each, Lost)]
            others = len(outcomes) - len(lost)
            outcomes = self.withheld.sift(holding, work.stage, outcomes)
            holding.outcomes += [each for each in outcomes if not isinstance(each, Lost)] if lost else outcomes
            if lost or lane.runner.reads_files:
                self.gate.hear(holding, lost, others=others)
        self._stop_at_trouble(odd)

    def _stop_at_trouble(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Deferred) and outcome.trouble:
                self.control.fail(StoreError(f"{outcome.why}, then run again; nothing was buried for it"))

    def _free_slots(self) -> None:
        for work, count in self._answered:
            self.lanes[work.stage].finish(work, count)
        self._answered.clear()

    def _broken(self, message: Broken) -> None:
        """A process died. What it had finished counts; the item it was at is tried again in a new one, then alone; then
        it is to blame, unless somebody is just ending everything."""
        work, left = message.work, message.work.items[len(message.work.outcomes) :]
        if message.final:
            raise UsageError(
                f"the executor that was given to run() is broken: {message.error}; give a new one and run again"
            )
        if work.lone and not self.control.stopping:
            text = f"its worker process died ({message.error})"
            self._finish(work, [Failed(left[0], True, "process_died", text, 0.0, 0.0, 0.0)])
            return
        self._finish(work, work.outcomes, left)
        begun = [item.n for item in left] if message.suspect is None else [message.suspect.n]
        work.holding.suspect(begun)
        if work.stage in self.adopting:
            work.holding.resumed.update(begun)

    def _commit(self) -> None:
        """Everything that is finished, in one write; each chunk with its own guard."""
        assert self._role is None or self._role.is_mine, "two threads have the role of the worker"
        for holding in [h for h in self.holdings if h.lost]:
            self._drop(holding, "the lease was lost")
        now = self.store.now()
        batch = [(h, self._settle(h, now)) for h in self.holdings if h.is_ripe]
        if not batch:
            return
        for lane in self.lanes:
            lane.sync_outputs([s for _, s in batch])
        commits = [self._commit_of(holding, settled) for holding, settled in batch]
        with self.ledger.writing():
            receipts = self._write(commits)
            self._book([each for each, receipt in zip(batch, receipts, strict=True) if receipt.landed])
        for lane in self.lanes:
            lane.publish([s for (_, s), receipt in zip(batch, receipts, strict=True) if receipt.landed])
        if late := [c for c, receipt in zip(commits, receipts, strict=True) if receipt.reason is CommitRefusal.SEALED]:
            self.ledger.late += end.note_late(self.store, late, owner=self.want.owner)
        for (holding, settled), receipt, written in zip(batch, receipts, commits, strict=True):
            if receipt.landed:
                self._landed(holding, settled, written.release)
            else:
                self._drop(holding, f"its commit was refused ({receipt.reason})")
        if any(settled.counts.dead for _, settled in batch):
            self.watch.after_burial()

    def _book(self, landed: list[tuple[Holding, Settled]]) -> None:
        """Add up what is durable, all of it before a range goes on to its next rows: a budget may be used up."""
        for holding, settled in landed:
            self.ledger.add(booked(settled, holding.all_reached()))
        if self.ledger.broke:
            self.control.stop("budget")

    def _settle(self, holding: Holding, now: float) -> Settled:
        holding.in_write, holding.outcomes = holding.outcomes, []
        return settle(holding.in_write, stages=len(self.lanes), policies=self.policies, now=now)

    def _commit_of(self, holding: Holding, settled: Settled) -> Commit:
        """The chunk is given back with its last item."""
        holding.left -= settled.counts.settled
        return commit(holding.holder, settled, commit_id=holding.new_commit_id(), release=holding.left == 0,
                      reserved=holding.reserved(), reached=holding.all_reached(), makers=self.makers)  # fmt: skip

    def _write(self, commits: list[Commit]) -> list[Receipt]:
        return write(self.store, commits)

    def _landed(self, holding: Holding, settled: Settled, released: bool) -> None:
        """What is durable may go on."""
        holding.version += 1
        holding.progressed_at = time.monotonic()
        holding.clear()
        self.ledger.read(holding.came_further())
        self.appetite.learn(settled.counts.settled)
        if released:
            self._forget(holding)
            self.idle = None
        else:
            holding.take_in(settled.onward, self.store.now(), from_store=False)

    # -- claim and load -------------------------------------------------------------------------------------------

    def _may_claim(self) -> bool:
        """Whether to look for more: not while a page of what is held was not read, not beside a suspect, and not while
        the stage at which items begin pauses and has some to try."""
        first = self.lanes[0]
        if first.breaker.until and (first.used or any(h.ready[0].count or h.waiting for h in self.holdings)):
            return False
        return (self.idle is None or time.monotonic() >= self.look_again_at) and all(
            h.loaded_all and not h.exclusive for h in self.holdings
        )

    def _top_up(self) -> None:
        """Load further pages of what is held; claim more when even that is not enough."""
        while True:
            wanted = self.appetite.wants(self.holdings)
            for some in adjoining(self.holdings, LOAD_ITEMS) if wanted > 0 else ():
                if wanted > 0:
                    wanted -= self._load(some)
            if wanted <= 0 or not self._has_room() or not self._may_claim() or not self._claim():
                return

    def _is_hungry(self) -> bool:
        """Whether more should be at hand, and may be."""
        return not self.control.comparing and self.appetite.wants(self.holdings) > 0 and self._has_room()

    def _has_room(self) -> bool:
        """Whether more may be claimed: while any part of the batch carries blame, only what can be started at once."""
        return self.takes_ranges or not self.caution.is_careful or self.lanes[0].room(self.holdings) > 0

    def _claim(self) -> bool:
        room = max(1, self.lanes[0].room(self.holdings))
        limit = min(self.appetite.portion(), room) if self.caution.is_careful else self.appetite.portion()
        reserve, most = self.ledger.reserve(), self.ledger.most_at_once()
        if self.control.stopping:
            return False
        most = limit if most is None else min(limit, most)
        keeps, self.asked_at_end = self.heartbeat.keeps, self.control.ingested
        want = msgspec.structs.replace(self.want, reserve=reserve, limit=most, keeps=keeps, at_once=room,
                                       chunks=1 if self.caution.is_careful else CLAIM_CHUNKS)  # fmt: skip
        answer = self.store.claim(want)
        if isinstance(answer, Idle):
            self.idle = answer
            self.look_again_at = time.monotonic() + self._wait_for_work(answer)
            self.watch.refused(answer)
            return False
        self.idle = None
        self.caution.met(answer)
        for lane in self.lanes:
            lane.look_again()
        granted = [self._hold(claim, reserve) for claim in (answer, *answer.more)]
        self._load(next(adjoining(granted, LOAD_ITEMS)))
        return True

    def _hold(self, claim: Claim, reserve: int) -> Holding:
        holding = Holding(claim, len(self.lanes), self.want.seconds, reserve, guarded=self.gate.guarded,
                          adopting=self.adopting)  # fmt: skip
        self.holdings.append(holding)
        self.heartbeat.add(holding)
        return holding

    def _wait_for_work(self, idle: Idle) -> float:
        if idle.next_due is None:
            return IDLE_SECONDS
        return min(IDLE_SECONDS, max(0.005, idle.next_due - self.store.now()))

    def _load(self, some: Sequence[Holding]) -> int:
        """Read a page of chunks that stand one behind the other. Of those behind the first that got nothing, it is not
        known whether the page ended before them: they are asked for again."""
        first, last = some[0], some[-1]
        whole = first.claim if first is last else msgspec.structs.replace(first.claim, hi=last.claim.hi)
        limit = min(LOAD_ITEMS, sum(holding.unread for holding in some))
        items = self.store.load(whole, first.loaded_to, limit, LOAD_BYTES)
        for holding, page in zip(some, by_holding(items, some), strict=True):
            if page or holding is first:
                self._take_page(holding, page)
        return len(items)

    def _take_page(self, holding: Holding, items: Sequence[Item]) -> None:
        self._check_loaded(holding, items)
        holding.read(items)
        if self.takes_ranges:
            claim = holding.claim
            holding.checkpoints = {at.n: at for at in self.store.checkpoints(claim.batch, lo=claim.lo, hi=claim.hi)}
        dies = not self.isolates_rows or all(is_row(item.key) for item in items)
        if leases.condemned(holding.claim.pending, holding.claim.blame) and dies:
            for item in items:
                text = f"its process died {holding.claim.blame - SUSPECT} times while it was handled alone"
                holding.outcomes.append(Failed(item, False, "killed_process", text, 0.0, 0.0, 0.0))
            return
        holding.take_in(items, self.store.now(), from_store=True)

    def _check_loaded(self, holding: Holding, items: Sequence[Item]) -> None:
        """Stop at a chunk that counts pending items and has none: it would be claimed and let go for ever. Once that
        may be, because somebody settled them behind the grant; a second grant knows of that."""
        if items or holding.loaded_to is not None:
            self._empty.discard(holding.lease.chunk)
        elif holding.lease.chunk not in self._empty:
            self._empty.add(holding.lease.chunk)
        else:
            batch, pending = self.lanes[0].runner.batch, holding.claim.pending
            raise Damaged(
                f"chunk {holding.lease.chunk} of batch {batch!r} counts {many(pending, 'pending item')}, and the store "
                f"has none to hand out: it is damaged; `{command('audit verify', batch)}` says more; put "
                "back a backup"
            )

    # -- dispatch -------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        now = self.store.now()
        for holding in self.holdings:
            holding.wake(now)

    def _dispatch(self) -> None:
        """Hand ready items to their lanes: later stages first, so that items leave memory."""
        inline, until = 0.0, time.perf_counter() + INLINE_SECONDS
        if len(self.holdings) == 1 and self.holdings[0].on_trial:
            self._note_start(self.holdings[0])
        self.gate.start(self._startable())
        for lane in reversed(self.lanes):
            for holding in self._startable():
                while (not inline or (inline < 1.0 and time.perf_counter() < until)) and lane.can_start(holding):
                    inline += lane.start(holding)
        self.control.pace_ingest(bool(inline))
        self.control.crowded = self.control.crowded and not inline

    def _startable(self) -> Sequence[Holding]:
        """What may be started from: a suspect only when nothing else is held, one that is accused before others."""
        if len(self.holdings) == 1:
            return self.holdings
        if any(h.exclusive for h in self.holdings):
            return ()
        return [h for h in self.holdings if h.suspects and h.is_accused][:1] or self.holdings

    def _can_start(self, holding: Holding) -> bool:
        return self.gate.can_start(holding) or any(lane.can_start(holding) for lane in self.lanes)

    def _note_start(self, suspect: Holding) -> None:
        """An item on trial is run only after that is durable: a death before it was its turn is not held against it."""
        if suspect.lost or not self._can_start(suspect):
            return
        suspect.on_trial = False
        (receipt,) = self._write([start(suspect.holder, commit_id=suspect.new_commit_id())])
        if receipt.landed:
            suspect.version += 1
        else:
            self._drop(suspect, f"its start was refused ({receipt.reason})")

    def _refill(self) -> None:
        """Before the disk keeps us: hand over what there is room for, so that no worker has to wait for it."""
        if self.control.stopping or self.control.comparing or any(h.exclusive for h in self.holdings):
            return
        for lane in reversed(self.lanes):
            for holding in self._startable() if not lane.is_inline else []:
                while lane.can_start(holding):
                    lane.start(holding)

    def _look_after_timeouts(self) -> None:
        for lane in self.lanes:
            for work, outcomes, rest in lane.overdue():
                self._finish(work, outcomes, rest)
            for answer in lane.split_slow():
                self._finish(*answer)

    # -- letting go -----------------------------------------------------------------------------------------------

    def _let_go(self) -> None:
        """Release what only waits for longer than is worth holding it, or has nothing left in memory."""
        now = self.store.now()
        self.pauses.park(self.holdings, now)
        for holding in [h for h in self.holdings if h.is_idle]:
            due = holding.next_due()
            if due is None or due - now > self.want.seconds / 2:
                self._release(holding)

    def _isolate(self) -> None:
        """A suspect has the process to itself: other chunks are given back, so that none of them shares its blame."""
        suspect = next((h for h in self.holdings if h.exclusive), None)
        if suspect is not None:
            self.withheld.believe()
        for holding in [h for h in self.holdings if suspect is not None and h is not suspect]:
            holding.drop_ready()
            if not holding.running and not holding.outcomes:
                self._release(holding)

    def _rest(self) -> None:
        """Begin nothing and give back each chunk once what runs of it is committed, until payloads are compared."""
        self.gate.give_back()
        self.withheld.release()
        for holding in list(self.holdings):
            holding.drop_ready()
            if not holding.running and not holding.is_ripe:
                self._release(holding)
        self.control.pace_ingest(busy=False)
        if not self.holdings:
            self.control.rest()

    def _release(self, holding: Holding) -> None:
        due = holding.release_due(self.store.now())
        self._write([commit(holding.holder, NOTHING, commit_id=holding.new_commit_id(), release=True, due=due)])
        self._forget(holding)
        self.idle = None

    def release_all(self) -> None:
        """Give back every chunk, so that nobody has to wait for a lease to run out."""
        for lane in self.lanes:
            lane.abandon_all()
        for holding in list(self.holdings):
            holding.answer_savings(landed=False)
            if holding.lost:
                self._forget(holding)
            else:
                self._release(holding)

    def _drop_what_is_ready(self) -> None:
        """Stopping: nothing new starts; what is in flight comes to its checkpoint."""
        if not self._gave_back:
            self._gave_back = True
            for lane in self.lanes:
                lane.give_back()
        self.gate.give_back()
        self.withheld.release()
        for holding in self.holdings:
            holding.drop_ready()

    def _drop(self, holding: Holding, why: str) -> None:
        then = "the batch is finished" if "sealed" in why else "another worker continues with it"
        running = [item for lane in self.lanes for work in lane.active.values() if work.holding is holding
                   for item in work.items]  # fmt: skip
        finished, batch = [*holding.in_write, *holding.outcomes], self.lanes[0].runner.batch
        if text := replaced.told(self.store, holding.claim.batch, batch, finished, running):
            log.warning("%s", text)
        else:
            log.warning("batch %r, items number %d to %d: %s; %s", batch, holding.claim.lo,
                        holding.claim.hi - 1, why, then)  # fmt: skip
        holding.lose()
        holding.outcomes.clear()
        holding.answer_savings(landed=False)
        self._forget(holding)
        self.idle = None

    def _forget(self, holding: Holding) -> None:
        self.heartbeat.remove(holding)
        self.withheld.forget(holding)
        if holding in self.holdings:
            self.holdings.remove(holding)
