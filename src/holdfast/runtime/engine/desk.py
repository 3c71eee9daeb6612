"""The desk of a run, sans-IO: the rules between its holds.

It decides what to claim next and how much, what may start, what is committed together, which items are kept apart, what
is released, when the run is over, and how long there is nothing to do. Everything that finishes while a write is under
way goes into the next one, so groups form by themselves under load, and at rest an item is durable at once. An item's
next stage starts only after its checkpoint is durable.

`work()` is a generator of effects (see `exchange`): the driver carries them out and sends the result of each. Before
that it sets the time with `at()`. Every change of state is made before its effect is yielded, so another thread may
take over with a new `work()` at any effect.
"""

import math
from collections.abc import Callable, Generator, Sequence
from typing import Any

import msgspec

from holdfast.core import course
from holdfast.core.model import Chunk, Claim, ClaimRequest, Item
from holdfast.core.outcome import Done, Failed, Lost, Outcome, excuse
from holdfast.core.settle import NOTHING
from holdfast.runtime.engine import exchange as ex
from holdfast.runtime.engine.dispatch import INLINE_SECONDS, Appetite, EmptyGrants, Purse, Slots, StageQueue
from holdfast.runtime.engine.hold import Hold, adjoining, by_hold, trouble_of
from holdfast.runtime.engine.withheld import WithheldDeaths, WithheldReturns
from holdfast.stores.base import Idle

BLAME_SECONDS = 1.0
"""How often the chunks are read again while some carry blame."""
BLAME_SHARE = 20
"""The pause between two reads of many chunks is at least this many times as long as one read takes."""
TOGETHER = 8
"""Items that may travel together, however few may still die."""

AT_ONCE = ex.Wait(0.0)
Effects = Generator[ex.Effect, Any, None]


class Desk:
    """All holds of one run."""

    def __init__(
        self, rules: ex.Rules, queues: Sequence[StageQueue], orders: ex.Orders, purse: Purse, appetite: Appetite,
        deaths: WithheldDeaths, returns: WithheldReturns, *, new_id: Callable[[], bytes],
        portion: Callable[..., Any] = ex.Portion, careful: bool = False, is_empty: bool = False,
    ) -> None:  # fmt: skip
        self.rules, self.queues, self.orders, self.purse = rules, queues, orders, purse
        self.appetite, self.deaths, self.returns = appetite, deaths, returns
        self._new_id, self._portion = new_id, portion
        self.slots: Slots = queues[0].slots
        self._work = queues[0].facts.work
        self._adopting = frozenset(queue.index for queue in queues if queue.facts.adopts)
        self._policies = [queue.facts.policy for queue in queues]
        makers = [queue.facts.maker for queue in queues]
        self._makers = makers if any(makers) else []
        self.now = self.moment = 0.0
        self.holds: list[Hold] = []
        self.idle: Idle | None = Idle(pending=0) if is_empty else None
        """The answer of the store when there was nothing to claim; for a batch without items, set before the first
        claim."""
        self.asked_at_end = False
        """Whether it was asked after the source was read: an older answer does not include items admitted since."""
        self.careful = careful
        """Whether any chunk of the batch carries blame. When a process dies, everything it has claimed is blamed, begun
        or not. Nothing is claimed ahead then, so that a second death blames no item that was only in line."""
        self._blame_at = self._claim_at = self._looked_at = -math.inf
        self._is_begun = self._gave_back = False
        self._takes_turns = False
        """Whether the reading of the source was asked to take turns."""
        self._grants = EmptyGrants(rules.name)
        self._answered: list[tuple[Any, int]] = []
        """Portions that keep their slots until they are committed: this limits how far workers run ahead."""

    def at(self, now: float, moment: float) -> None:
        """Set the time: by the clock of the store, and by the monotonic clock of this process."""
        self.now, self.moment = now, moment

    # -- the round ----------------------------------------------------------------------------------------------

    def work(self) -> Effects:
        """Repeat until nothing is left to do or the run is asked to stop; then release everything."""
        self._takes_turns = False
        if not self._is_begun:
            self._is_begun = True
            self._claim_at, self._looked_at = self.moment + self.rules.idle_seconds, self.moment
            yield from self._count_dead()
        while not self._at_end():
            events = yield self._wait()
            if events:
                yield from self._receive(events)
            if self.holds:
                yield from self._write_what_is_finished()
            self._free_slots()
            if self.moment - self._looked_at >= self.rules.look_seconds:
                yield from self._look_at_batch()
            if self.orders.stopping:
                yield from self._drop_what_is_ready()
            elif self.orders.comparing:
                yield from self._rest()
            else:
                yield from self._begin_what_may_begin()
        yield from self._receive((yield AT_ONCE))
        if self.orders.at_once:
            yield from self._receive((yield ex.CutOff()))
        self.deaths.release()
        yield from self._commit()
        yield from self.release_all()

    def _write_what_is_finished(self) -> Effects:
        yield from self._catch_up()
        yield from self._refill()
        yield from self._commit()

    def _begin_what_may_begin(self) -> Effects:
        for hold in self.holds:
            hold.wake(self.now, self.moment)
        self.returns.let_through(self.holds, nothing_left=self.idle is not None)
        yield from self._isolate()
        yield from self._top_up()
        self.deaths.look(self.holds, self.idle.pending if self.idle and self.asked_at_end else None, self.moment)
        if self.holds or self._takes_turns:
            yield from self._dispatch()
            yield from self._let_go()

    def _at_end(self) -> bool:
        if self.orders.stopping:
            return self.orders.at_once or not any(h.running or h.is_ripe for h in self.holds)
        return self.idle is not None and self.idle.pending == 0 and not self.holds and self.asked_at_end

    def _wait(self) -> ex.Wait:
        """Return the wait for events: none while something can be done at once."""
        if any(h.is_ripe for h in self.holds):
            return AT_ONCE
        longest = min(self.rules.idle_seconds, max(0.0, self._time_left()))
        if self.orders.stopping:
            return ex.Wait(longest)
        if any(self._can_start(h) for h in self._startable()):
            return AT_ONCE
        is_hungry = self._is_hungry()
        if is_hungry and (self._may_claim() or not all(h.loaded_all for h in self.holds)):
            return AT_ONCE
        times = [due - self.now for h in self.holds if (due := h.next_due()) is not None]
        return ex.Wait(max(0.0, min([longest, *times])), for_others=is_hungry and self.idle is not None)

    def _time_left(self) -> float:
        return self.orders.deadline.left(self.moment)

    @property
    def slowest(self) -> float:
        """The mean seconds of the slowest stage."""
        return max(queue.pace.mean for queue in self.queues)

    # -- events -------------------------------------------------------------------------------------------------

    def _receive(self, events: Sequence[ex.Event]) -> Effects:
        for event in events:
            if isinstance(event, ex.Answer):
                yield from self._finish(*event)
            elif isinstance(event, ex.Beat):
                self._hear_beat(event)
            elif isinstance(event, ex.CheckpointReached):
                yield from self._save(event)
            elif isinstance(event, ex.InputAnswer):
                yield from self._passed(event)
            elif isinstance(event, ex.Broken):
                yield from self._broken(event)
            else:
                self._claim_at = -math.inf
                self.idle = self.idle if event.by_others else None

    def _hear_beat(self, beat: ex.Beat) -> None:
        kept = {(lease.chunk, lease.fence): lease for lease in beat.kept}
        lost = {(lease.chunk, lease.fence) for lease in beat.lost}
        for hold in self.holds:
            at = hold.lease.chunk, hold.lease.fence
            if at in lost:
                hold.lose()
            elif at in kept:
                hold.renewed(kept[at])

    def _save(self, event: ex.CheckpointReached) -> Effects:
        hold = event.work.hold
        if hold.lost:
            yield ex.Reply([event.saving], landed=False)
        else:
            hold.savings.append(event.saving)

    def _passed(self, passed: ex.InputAnswer) -> Effects:
        question, outcomes = passed.question, passed.outcomes
        if not question.hold.lost:
            at = question.items[0].place.stage
            outcomes = yield from self.deaths.sift(question.hold, at, outcomes, stopping=self.orders.stopping)
        yield from self.returns.take(passed, outcomes, self.moment)
        yield from self._stop_at_trouble(passed.outcomes)

    def _finish(self, work: Any, outcomes: list[Outcome], unrun: Sequence[Item] = ()) -> Effects:
        queue, hold = self.queues[work.stage], work.hold
        count = len(outcomes) + len(unrun)
        self._answered.append((work, count))
        queue.pool.items -= count
        queue.learn(outcomes)
        if self.orders.signalled:
            outcomes = [excuse(outcome, "interrupted") for outcome in outcomes]
        odd = [outcome for outcome in outcomes if not isinstance(outcome, Done)]
        if odd or not queue.breaker.is_calm:
            outcomes = yield from self._judge(queue, outcomes)
        hold.running -= count
        if hold.suspects:
            hold.acquit(outcome.item.n for outcome in outcomes)
        if not hold.lost:
            if work.reached is not None and outcomes:
                hold.reached.append(work.reached)
            hold.put_back(work.stage, unrun, work.ready_at, resumed=work.resumed)
            lost = [each for each in outcomes if isinstance(each, Lost)]
            others = len(outcomes) - len(lost)
            outcomes = yield from self.deaths.sift(hold, work.stage, outcomes, stopping=self.orders.stopping)
            hold.outcomes += [each for each in outcomes if not isinstance(each, Lost)] if lost else outcomes
            if lost or queue.facts.reads_files:
                yield from self.returns.hear(hold, lost, others=others)
        yield from self._stop_at_trouble(odd)

    def _stop_at_trouble(self, outcomes: Sequence[Outcome]) -> Effects:
        for outcome in outcomes:
            if (trouble := trouble_of(outcome)) is not None:
                yield ex.StopRun("trouble", trouble)

    def _judge(self, queue: StageQueue, outcomes: Sequence[Outcome]) -> Generator[ex.Effect, Any, list[Outcome]]:
        """Return the outcomes as they count; the run ends if a stage would pause for too long in all."""
        breaker = queue.breaker
        judged = breaker.judge(outcomes, self.now)
        while breaker.news:
            yield ex.TellPause(queue.index, breaker.news.pop(0), breaker.until)
        if breaker.asked:
            message, breaker.asked = breaker.asked, ""
            yield ex.TellPause(queue.index, message)
        if breaker.is_hopeless:
            yield ex.StopRun("breaker")
        return judged

    def _broken(self, event: ex.Broken) -> Effects:
        """Handle the death of a process. Its finished items count; the current item is tried again in a new process,
        and then alone. If that dies as well, the item is to blame, unless a signal is just ending everything."""
        work, left = event.work, event.work.items[len(event.work.outcomes) :]
        if work.lone and not self.orders.stopping:
            text = f"its worker process died ({event.error})"
            yield from self._finish(work, [Failed(left[0], True, "process_died", text, 0.0, 0.0, 0.0)])
            return
        yield from self._finish(work, work.outcomes, left)
        begun = [item.n for item in left] if event.suspect is None else [event.suspect.n]
        work.hold.suspect(begun)
        if work.stage in self._adopting:
            work.hold.resumed.update(begun)

    def _free_slots(self) -> None:
        for work, count in self._answered:
            self.queues[work.stage].finish(work, count)
        self._answered.clear()

    def _catch_up(self) -> Effects:
        """Renew leases that expired while this process was suspended, before another process takes the chunks."""
        if any(h.lease.expires < self.now and h.is_kept(self.moment, self.rules.grace) for h in self.holds):
            for beat in (yield ex.Renew()):
                self._hear_beat(beat)

    # -- commit -------------------------------------------------------------------------------------------------

    def _commit(self) -> Effects:
        """Write everything that is finished in one write; each chunk with its own guard."""
        for hold in [h for h in self.holds if h.lost]:
            yield from self._drop(hold, "the lease was lost")
        group = [self._written(hold) for hold in self.holds if hold.is_ripe]
        if not group:
            return
        receipts = yield ex.Write(group)
        self._book([each for each, receipt in zip(group, receipts, strict=True) if receipt.landed])
        if self.purse.is_empty:
            yield ex.StopRun("budget")
        for written, receipt in zip(group, receipts, strict=True):
            if receipt.landed:
                yield from self._landed(written)
            else:
                yield from self._drop(written.hold, f"its commit was refused ({receipt.reason})")
        if any(written.settled.counts.dead for written in group):
            yield from self._count_dead()

    def _written(self, hold: Hold) -> ex.Written:
        settled = hold.settle(self._policies, self.now)
        return ex.Written(hold, settled, hold.commit(settled, self._new_id(), makers=self._makers))

    def _book(self, landed: Sequence[ex.Written]) -> None:
        """Add up everything that is durable before a partition continues with its next rows: a budget may be used
        up."""
        for written in landed:
            self.purse.add(written.settled, written.hold.all_reached())

    def _landed(self, written: ex.Written) -> Effects:
        """Continue with items that are durable."""
        hold, settled = written.hold, written.settled
        rows = hold.landed(settled, self.now, self.moment)
        crowded = self.appetite.learn(settled.counts.settled, self.moment)
        self.orders.crowded = self.orders.crowded if crowded is None else crowded
        if rows:
            yield ex.CameFurther(rows)
        if hold.savings:
            yield ex.Reply(hold.answered_savings(), landed=True)
        if written.commit.release:
            yield from self._forget(hold)

    # -- claim and load -------------------------------------------------------------------------------------------

    def _may_claim(self) -> bool:
        """Return whether to claim more: not while a page of a hold is unread, not beside a suspect, and not while the
        first stage pauses and has items to try."""
        first = self.queues[0]
        if first.breaker.until and (first.used or any(h.ready[0].count or h.waiting for h in self.holds)):
            return False
        return (self.idle is None or self.moment >= self._claim_at) and all(
            h.loaded_all and not h.exclusive for h in self.holds
        )

    def _top_up(self) -> Effects:
        """Load further pages of the holds; claim more if that is not enough."""
        if self.careful and self.moment >= self._blame_at:
            yield from self._look_for_blame()
        while True:
            wanted = self.appetite.wants(self.holds)
            for some in list(adjoining(self.holds, self.rules.page)) if wanted > 0 else ():
                if wanted > 0:
                    wanted -= yield from self._load(some)
            if wanted <= 0 or not self._has_room() or not self._may_claim() or not (yield from self._claim()):
                return

    def _is_hungry(self) -> bool:
        """Return whether more items should be at hand, and may be."""
        return not self.orders.comparing and self.appetite.wants(self.holds) > 0 and self._has_room()

    def _has_room(self) -> bool:
        """Return whether more may be claimed: while any chunk of the batch carries blame, only items that can start at
        once."""
        return self._work.travels_alone or not self.careful or self._room() > 0

    def _room(self) -> int:
        return self.queues[0].room(self.holds, self.orders.workers)

    def _claim(self) -> Generator[ex.Effect, Any, bool]:
        if self.orders.stopping:
            return False
        self.asked_at_end = self.orders.ingested
        request = self._request()
        answer = yield ex.AskFor(request)
        if isinstance(answer, Claim):
            yield from self._granted(answer, request.reserve)
            return True
        if answer is None:
            self._claim_at = self.moment + self.rules.idle_seconds
            self.idle = Idle(pending=1)
            return False
        self.idle, self._claim_at = answer, self.moment + self._wait_for_work(answer)
        if answer.why is not None and (answer.why is not course.Barrier.BUDGET or not answer.held):
            yield ex.StopRun(answer.why)
        return False

    def _request(self) -> ClaimRequest:
        """Return the next claim request."""
        room, portion = max(1, self._room()), self.appetite.portion()
        limit = min(portion, room) if self.careful else portion
        most = self.purse.most_at_once()
        keeps = frozenset(h.lease.chunk for h in self.holds if h.is_kept(self.moment, self.rules.grace))
        return msgspec.structs.replace(
            self.rules.request, reserve=self.purse.reserve(), limit=limit if most is None else min(limit, most),
            keeps=keeps, at_once=room, chunks=1 if self.careful else self.rules.chunks,
        )  # fmt: skip

    def _granted(self, claim: Claim, reserve: int) -> Effects:
        self.idle = None
        if claim.blame and not self.careful:
            yield from self._look_for_blame()
        granted = []
        for each in (claim, *claim.more):
            hold = Hold(each, len(self.queues), self.rules.request.seconds, reserve, moment=self.moment,
                        guarded=self.rules.guarded, adopting=self._adopting)  # fmt: skip
            self.holds.append(hold)
            granted.append(hold)
            yield ex.Taken(hold)
        yield from self._load(next(adjoining(granted, self.rules.page)))

    def _wait_for_work(self, idle: Idle) -> float:
        longest = self.rules.idle_seconds
        return longest if idle.next_due is None else min(longest, max(0.005, idle.next_due - self.now))

    def _load(self, some: Sequence[Hold]) -> Generator[ex.Effect, Any, int]:
        """Read a page of chunks that follow one another. For chunks after the first one without items, the page may
        have ended before them: they are read again."""
        first, last = some[0], some[-1]
        whole = first.claim if first is last else msgspec.structs.replace(first.claim, hi=last.claim.hi)
        most = min(self.rules.page, sum(hold.unread for hold in some))
        items = yield ex.Read(whole, first.loaded_to, most)
        if items is None:
            return most
        for hold, page in zip(some, list(by_hold(items, some)), strict=True):
            if page or hold is first:
                yield from self._take_page(hold, page)
        return len(items)

    def _take_page(self, hold: Hold, items: Sequence[Item]) -> Effects:
        self._grants.check(hold, items)
        hold.read(items)
        if self._work.has_checkpoints:
            hold.checkpoints = {at.n: at for at in (yield ex.ReadCheckpoints(hold.claim))}
        if hold.is_condemned and hold.claim.kind not in self._work.spares:
            hold.condemn(items)
        else:
            hold.take_in(items, self.now, self.moment, from_store=True)

    # -- dispatch -------------------------------------------------------------------------------------------------

    def _dispatch(self) -> Effects:
        """Start ready items, later stages first, so that items leave memory."""
        inline, until = 0.0, self.moment + INLINE_SECONDS
        if len(self.holds) == 1 and self.holds[0].on_trial:
            yield from self._note_start(self.holds[0])
        holds = self._startable()
        yield from self.returns.start(holds)
        for queue in reversed(self.queues):
            for hold in holds:
                while (not inline or (inline < 1.0 and self.moment < until)) and self._may_start(queue, hold):
                    inline += yield from self._start(queue, hold)
        self.orders.crowded = self.orders.crowded and not inline
        yield from self._take_turns(inline > 0)

    def _take_turns(self, busy: bool) -> Effects:
        """Tell the ingester whether this thread runs handlers, if that has changed."""
        if busy is not self._takes_turns:
            self._takes_turns = busy
            yield ex.TakeTurns(busy)

    def _startable(self) -> Sequence[Hold]:
        """Return the holds that may start items: a suspect only if nothing else is held, an accused one before
        others."""
        if len(self.holds) == 1:
            return self.holds
        if any(h.exclusive for h in self.holds):
            return ()
        return [h for h in self.holds if h.suspects and h.is_accused][:1] or self.holds

    def _can_start(self, hold: Hold) -> bool:
        if hold.unasked and self.returns.can_start(hold):
            return True
        return hold.ready_count > 0 and any(self._may_start(queue, hold) for queue in self.queues)

    def _may_start(self, queue: StageQueue, hold: Hold) -> bool:
        return hold.ready[queue.index].count > 0 and queue.can_start(hold, self.now, self._time_left())

    def _start(self, queue: StageQueue, hold: Hold) -> Generator[ex.Effect, Any, float]:
        """Begin some items; return what share this is of everything that runs on the committing thread between two
        commits."""
        inline = queue.inline(hold)
        ready_at, items, resumed = hold.take(queue.index, queue.how_many(hold, inline))
        work = self._portion(queue.index, items, hold.lease.fence, ready_at, hold, resumed)
        deaths = hold.suspects.get(items[0].n, 0)
        work.fresh, work.lone, work.inline, work.kind = deaths > 0, deaths > 1, inline, hold.claim.kind
        if self._work.has_checkpoints:
            work.at, work.blame = hold.checkpoints.get(items[0].n), hold.claim.blame
            work.is_condemned = hold.is_condemned
        queue.begin(work)
        yield ex.Begin(work)
        return len(items) / queue.most_together(inline) if inline else 0.0

    def _note_start(self, suspect: Hold) -> Effects:
        """Run an item on trial only after its start is durable: a death before its turn does not count against it."""
        if suspect.lost or not self._can_start(suspect):
            return
        (receipt,) = yield ex.Write([ex.Written(suspect, NOTHING, suspect.start(self._new_id()))])
        if receipt.landed:
            suspect.version += 1
        else:
            yield from self._drop(suspect, f"its start was refused ({receipt.reason})")

    def _refill(self) -> Effects:
        """Hand over as many items as there is room for before the write to disk, so that no worker has to wait for
        it."""
        if self.orders.stopping or self.orders.comparing or any(h.exclusive for h in self.holds):
            return
        holds = [h for h in self._startable() if h.ready_count]
        for queue in reversed(self.queues) if holds else ():
            for hold in holds if not queue.is_inline else ():
                while self._may_start(queue, hold):
                    yield from self._start(queue, hold)

    # -- letting go -----------------------------------------------------------------------------------------------

    def _let_go(self) -> Effects:
        """Release holds whose items all wait for too long, or that have nothing left in memory."""
        self._park()
        for hold in [h for h in self.holds if h.is_idle]:
            due = hold.next_due()
            if due is None or due - self.now > self.rules.request.seconds / 2:
                yield from self._release(hold)

    def _park(self) -> None:
        """Release items that wait for a stage in a long pause, so that other stages get further items. If items begin
        at that stage, they stay: no other items can be claimed."""
        paused = [queue for queue in self.queues if queue.breaker.until
                  and queue.breaker.ends(self.now) - self.now > self.rules.request.seconds / 2]  # fmt: skip
        for queue in paused if self.queues[0] not in paused else []:
            for hold in self.holds:
                hold.park(queue.index, queue.breaker.ends(self.now))

    def _isolate(self) -> Effects:
        """Leave the process to a suspect alone: other chunks are given back, so that they do not share its blame."""
        suspect = next((h for h in self.holds if h.exclusive), None)
        if suspect is None:
            return
        self.deaths.believe()
        for hold in [h for h in self.holds if h is not suspect]:
            hold.drop_ready()
            if not hold.running and not hold.outcomes:
                yield from self._release(hold)

    def _rest(self) -> Effects:
        """Begin nothing until payloads are compared, and give back each chunk once its running items are committed."""
        self.returns.give_back()
        self.deaths.release()
        for hold in list(self.holds):
            hold.drop_ready()
            if not hold.running and not hold.is_ripe:
                yield from self._release(hold)
        yield from self._take_turns(busy=False)
        if not self.holds:
            yield ex.Rest()

    def _release(self, hold: Hold) -> Effects:
        written = ex.Written(hold, NOTHING, hold.release(self._new_id(), hold.release_due(self.now)))
        yield ex.Write([written])
        yield from self._forget(hold)

    def release_all(self) -> Effects:
        """Give back every chunk, so that no process has to wait for a lease to expire."""
        yield ex.Abandon()
        for hold in list(self.holds):
            if savings := hold.answered_savings():
                yield ex.Reply(savings, landed=False)
            if hold.lost:
                yield from self._forget(hold)
            else:
                yield from self._release(hold)

    def _drop_what_is_ready(self) -> Effects:
        """Start nothing new, because the run stops; items in flight continue to their checkpoint."""
        if not self._gave_back:
            self._gave_back = True
            yield ex.GiveBack()
        self.returns.give_back()
        self.deaths.release()
        for hold in self.holds:
            hold.drop_ready()

    def _drop(self, hold: Hold, why: str) -> Effects:
        hold.lose()
        if savings := hold.answered_savings():
            yield ex.Reply(savings, landed=False)
        yield from self._forget(hold, why)
        hold.outcomes.clear()

    def _forget(self, hold: Hold, why: str = "") -> Effects:
        self.deaths.forget(hold)
        if hold in self.holds:
            self.holds.remove(hold)
        self.idle = None
        yield ex.Leave(hold, why)

    # -- looks ------------------------------------------------------------------------------------------------------

    def _look_at_batch(self) -> Effects:
        """Check now and then, not for each item, whether the batch was paused or cancelled, or its end has come."""
        self._looked_at = self.moment
        batch = yield ex.LookAt(ex.Look.BATCH)
        if batch is not None and (why := course.barrier(batch, self.now)):
            yield ex.StopRun(why)

    def _count_dead(self) -> Effects:
        """Count all dead items, including those buried by other processes, before anything else begins."""
        tolerance = self.rules.request.tolerance
        if tolerance is None:
            return
        batch = yield ex.LookAt(ex.Look.BATCH)
        chunks: Sequence[Chunk] | None = yield ex.LookAt(ex.Look.CHUNKS)
        if batch is None or chunks is None:
            return
        dead = sum(chunk.counts.dead for chunk in chunks)
        if course.is_exceeded(tolerance, dead, batch):
            yield ex.StopRun("tolerance")
        self.slots.most = max(TOGETHER, course.spare(tolerance, dead, batch))

    def _look_for_blame(self) -> Effects:
        began = self.moment
        self.careful = yield ex.LookAt(ex.Look.BLAME)
        took = self.moment - began
        self._blame_at = self.moment + max(BLAME_SECONDS, BLAME_SHARE * took)
