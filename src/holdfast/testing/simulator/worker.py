"""A worker process: it drives the runtime's desk in virtual time, with handlers in parallel, and meets every fault.

A process is one run: it keeps everything in memory and loses all of it when it crashes. A paused process does not
notice the time that passed: it continues where it was, with leases that others may have taken over. When a run ends
before the world does, another one begins.
"""

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, NoReturn

import msgspec

from holdfast.core import journal, settle
from holdfast.core.errors import StoreError
from holdfast.core.lease import carries_blame
from holdfast.core.model import Claim, ClaimRequest, Commit, Item, Lease, Receipt
from holdfast.core.outcome import Failed, Lost, Outcome
from holdfast.runtime.define.stage import WorkFacts
from holdfast.runtime.engine import exchange as ex
from holdfast.runtime.engine.assignment import Assignment
from holdfast.runtime.engine.desk import Desk
from holdfast.runtime.engine.dispatch import (
    Appetite,
    PoolKind,
    PoolLoad,
    Purse,
    Slots,
    StageBreaker,
    StageFacts,
    StageQueue,
)
from holdfast.runtime.engine.hold import Hold
from holdfast.runtime.engine.leases import Sending
from holdfast.runtime.engine.withheld import WithheldDeaths, WithheldReturns
from holdfast.runtime.engine.worker import note_pause
from holdfast.stores.base import Idle, find_batch
from holdfast.testing.replay import Violation
from holdfast.testing.simulator.conduct import PauseOracle, ProcessOracle, RunOracle, SliceOracle, TimeOracle
from holdfast.testing.simulator.handlers import effect_of
from holdfast.testing.simulator.network import CommitConnection
from holdfast.testing.simulator.oracles import check_condemned, check_waits, end_trials
from holdfast.testing.simulator.plan import LEASE, WorldPlan, most_per_item
from holdfast.testing.simulator.pool import HandlerPool
from holdfast.testing.simulator.world import Behavior, Died, Effect, World, world_pause

BEATS = 3
MISSED_BEATS = 3
GRACE = 7200.0


class DrawnAppetite(Appetite):
    """An appetite that claims as many items as the plan of the world sets."""

    def __init__(self, plan: WorldPlan, queues: Sequence[StageQueue], moment: float) -> None:
        super().__init__(queues, plan.slice, moment)
        self._most = plan.limit

    def portion(self) -> int:
        return min(super().portion(), self._most) if self._one_by_one else self._most


class Crew:
    """The workers of a world. If a run ends before the world does, another one begins."""

    def __init__(self, world: World) -> None:
        self.world, plan = world, world.plan
        work = WorkFacts(travels_alone=plan.every > 0, has_checkpoints=plan.every > 0)
        self.facts = [StageFacts(name=str(n), policy=policy, adopts=plan.adopts, work=work)
                      for n, policy in enumerate(plan.policies)]  # fmt: skip
        self.guarded = frozenset(range(1, len(self.facts))) if plan.checks or plan.lost else frozenset()

    def begin(self) -> None:
        for number in range(self.world.plan.workers):
            self.world.begin(partial(self.start, number, 1), 4 * self.world.chance())

    def start(self, number: int, life: int) -> None:
        SimulatedWorker(self, number, life).resume(0)

    def succeed(self, number: int, life: int) -> None:
        """Start the next run if there is something to do; else check again later, while something may come."""
        world = self.world
        if world.ingesting or world.is_pending() or world.chance() < 0.1:
            self.start(number, life)
        elif not world.is_over():
            world.begin(partial(self.succeed, number, life), 5.0 + world.chance() * 2 * LEASE)


def desk_of(crew: Crew, owner: str) -> Desk:
    """Return the desk of a run in a world, as in the runtime."""
    world, facts = crew.world, crew.facts
    plan, ahead = world.plan, 1 if world.plan.processes else 2
    slots = Slots(ahead * plan.slice, one_by_one=world.cap is not None)
    load = PoolLoad(PoolKind.PROCESSES if plan.processes else PoolKind.THREADS)
    queues = [StageQueue(n, each, load, slots, _breaker(plan, each)) for n, each in enumerate(facts)]
    request = ClaimRequest(batch=world.batch.id, owner=owner, limit=plan.limit, seconds=LEASE, cap=world.cap,
                   tolerance=world.tolerance)  # fmt: skip
    deaths = WithheldDeaths(world.batch.name, [each.name for each in facts], plan.slice, active=not plan.every,
                            has_cap=world.cap is not None, tolerance=world.tolerance)  # fmt: skip
    returns = WithheldReturns(is_open=False, allowed=1.0, workers=plan.slice, refusal=lambda *_: Violation("too many"))
    moment = world.clock.now
    rules = ex.Rules(request=request, name=world.batch.name, grace=GRACE, page=plan.page, chunks=plan.chunks,
                  guarded=crew.guarded, idle_seconds=20 + 30 * world.chance(), look_seconds=20.0)  # fmt: skip
    purse = Purse(world.cap, most_per_item(plan) if world.cap is not None else None)
    return Desk(
        rules, queues, ex.Orders(plan.slice, _deadline(world)), purse,
        DrawnAppetite(plan, queues, moment), deaths, returns, new_id=world.new_id,
        portion=Assignment, is_empty=not world.store.chunks(world.batch.id, limit=1),
    )  # fmt: skip


def _deadline(world: World) -> ex.Deadline:
    """Return the deadline of a run; none once faults have stopped, so that the world can end."""
    if not world.plan.time or not world.faulty:
        return ex.NEVER
    now = world.clock.now
    return ex.Deadline(now + world.plan.time * (0.5 + world.chance()), now)


def _breaker(plan: WorldPlan, facts: StageFacts) -> StageBreaker:
    return StageBreaker(facts.name, plan.rule, facts.policy.defer_within)


class SimulatedWorker:
    """One run of a worker."""

    def __init__(self, crew: Crew, number: int, life: int) -> None:
        self.crew, self.number, self.life = crew, number, life
        self.world = world = crew.world
        self.name = f"w{number}.{life}"
        self.alive = True
        self.beating = False
        self.asleep_until = 0.0
        self.shaken = False
        """True if something happened that may cost it its leases."""
        self.waits_since: list[float] = []
        """Start times of its requests in progress: the other half of the process knows nothing of a slow one yet."""
        self.unsure = False
        """True if it does not know the result of one of its writes, and may hold chunks that it does not know of."""
        self.skew = (world.chance() * 2 - 1) * world.plan.skew
        self.store = world.connect(self)
        self.connection = CommitConnection(world, self.store)
        self.desk = desk_of(crew, self.name)
        self.effects: dict[Hold, list[Effect]] = {}
        """Handlers that were started and whose outcome is not committed, for each held chunk."""
        self._inbox: list[ex.Event] = []
        self._sleep = 0
        """Grows with every sleep, so that an outdated wake-up is ignored."""
        self._is_asleep = False
        self.pool = HandlerPool(self)
        self.pauses = PauseOracle(self)
        self.oracles: list[RunOracle] = [self.pauses] if world.plan.outages else []
        self.oracles += [ProcessOracle(self)] if world.plan.processes else []
        self.times = TimeOracle(self)
        self.oracles += [self.times] if world.plan.time else []
        self.slices = SliceOracle(self)
        self.oracles += [self.slices] if world.plan.quick or world.plan.processes else []
        self._main = self._work()
        self._carry_out: dict[type, Callable[[Any], Any]] = {
            ex.AskFor: self._ask_for,
            ex.Begin: self._begin,
            ex.CutOff: self.pool.cut_off,
            ex.Inspect: lambda effect: world.begin(self.live(self._inspect(effect.question)), world.chance()),
            ex.Leave: self._leave,
            ex.LookAt: self._look_at,
            ex.Read: self._read,
            ex.ReadCheckpoints: lambda effect: self._checkpoints,
            ex.Renew: lambda _: self._renew(),
            ex.Reply: self.pool.reply,
            ex.StopRun: self._stop,
            ex.Taken: self._taken,
            ex.TellPause: self._tell_pause,
        }
        self._checkpoints: Sequence[Any] = ()
        self._late: dict[bytes, Commit] = {}
        """Delayed releases, by the ids of the commits before them."""

    def now(self) -> float:
        """Return its own clock, which is not the store's."""
        return self.world.clock.now + self.skew

    @property
    def is_shaken(self) -> bool:
        """True if it was, or is being, kept from renewing its leases in time."""
        return self.shaken or any(self.world.clock.now - since > LEASE / 10 for since in self.waits_since)

    def leases(self) -> list[Lease]:
        """Return all its leases."""
        return [hold.lease for hold in self.desk.holds]

    def is_gone(self) -> bool:
        return not self.alive

    # -- living and dying ---------------------------------------------------------------------------------------

    def resume(self, sleep: int) -> None:
        """Let the run continue, unless it was woken before, is asleep, or dies or is paused now."""
        if sleep != self._sleep or not self.alive:
            return
        world = self.world
        try:
            if sleep:
                self._meets_faults()
            delay = self.asleep_until - world.clock.now
            if delay <= 0:
                self._sleep += 1
                delay = next(self._main, -1.0)
        except Died:
            return
        if delay >= 0:
            world.begin(partial(self.resume, self._sleep), delay)

    def _meets_faults(self) -> None:
        """Let the process die or be paused now and then."""
        world, plan = self.world, self.world.plan
        if world.faulty and self.asleep_until <= world.clock.now:
            if plan.crash and world.chance() < plan.crash:
                self.die("crashes")
            if plan.pause and world.chance() < plan.pause:
                self.sleep()

    def tell(self, *events: ex.Event) -> None:
        """Report events beside the run: wake it if it waits for them."""
        self._inbox += events
        if self._is_asleep:
            self._is_asleep = False
            self.world.begin(partial(self.resume, self._sleep))

    def live(self, actor: Behavior) -> Behavior:
        """Run an actor of this process until the process dies; with pauses."""
        clock = self.world.clock
        if self.is_gone():
            return
        try:
            for delay in actor:
                yield delay
                while self.alive and self.asleep_until > clock.now:
                    yield self.asleep_until - clock.now
                if not self.alive:
                    return
                self._meets_faults()
                if self.asleep_until > clock.now:
                    yield self.asleep_until - clock.now
                    if self.is_gone():
                        return
        except Died:
            return

    def die(self, how: str) -> NoReturn:
        world = self.world
        world.say(self.name, how)
        world.counts["crashes"] += 1
        for hold in self.effects:
            self._excuse(hold)
        self._end(0.5 + world.chance() * LEASE)
        raise Died

    def _end(self, after: float) -> None:
        """End the process; its successor begins after some seconds."""
        self.alive = False
        if self.world.plan.same_host:
            self.world.dead.add(self.name)
        self.world.begin(partial(self.crew.succeed, self.number, self.life + 1), after)

    def sleep(self) -> None:
        seconds = world_pause(self.world.chance())
        self.world.say(self.name, f"is paused for {seconds:.0f} s")
        self.world.counts["pauses"] += 1
        self.asleep_until, self.shaken = self.world.clock.now + seconds, True

    def _excuse(self, hold: Hold) -> None:
        self.world.excused.update(self.effects[hold])

    def _beat(self) -> Behavior:
        """Renew all leases in one write while any are held; stop the run if that fails."""
        world, failures = self.world, 0
        while self.desk.holds:
            if world.goes_wrong(world.plan.missed_beat):
                failures += 1
                world.counts["beats missed"] += 1
            else:
                failures = 0 if (beats := self._renew()) else failures + 1
                if any(beat.lost for beat in beats):
                    self.tell(*beats)
                else:
                    self._inbox += beats
            if failures:
                self.shaken = True
            if failures == MISSED_BEATS:
                self._stop(ex.StopRun("trouble"))
            if failures > 2 * MISSED_BEATS:
                self.die("stops: its heartbeat failed too often")
            yield LEASE / BEATS
        self.beating = False

    def _renew(self) -> list[ex.Beat]:
        """Renew the leases; return nothing if the store cannot tell whether they are still held."""
        leases = [hold.lease for hold in self.desk.holds if not hold.lost]
        try:
            kept = self.store.renew(leases, LEASE)
        except StoreError:
            return []
        chunks = {lease.chunk for lease in kept}
        return [ex.Beat(kept, [lease for lease in leases if lease.chunk not in chunks])]

    # -- the run ------------------------------------------------------------------------------------------------

    def _work(self) -> Behavior:
        desk, world, carry_out = self.desk, self.world, self._carry_out
        clock, orders, ask = world.clock, desk.orders, desk.work().send
        answer: Any = None
        yield 0.05 * world.chance()
        while True:
            now = clock.now
            if orders.deadline is not ex.NEVER:
                self._watch_deadline(now)
            desk.at(now + self.skew, now)
            orders.ingested = not world.ingesting
            try:
                effect: Any = ask(answer)
            except StopIteration:
                break
            kind = type(effect)
            if kind is ex.Wait:
                if not self._inbox:
                    self._is_asleep = True
                    yield max(effect.seconds, 0.01 + 0.05 * world.chance())
                    self._is_asleep = False
                answer, self._inbox = self._inbox, []
                self._hear(answer)
            elif kind is ex.Write:
                answer = yield from self._write_group(effect.group)
            elif kind is ex.Begin and effect.work.inline:
                self._look_on(effect.work)
                if (yield from self.pool.run_here(effect.work)):
                    ask = desk.work().send  # on another thread
                answer = None
            else:
                answer = carry_out[kind](effect) if kind in carry_out else ()
        if orders.deadline is not ex.NEVER:
            self.times.ends()
        self._end(5.0 + world.chance() * 2 * LEASE)

    def _hear(self, events: list[ex.Event]) -> None:
        """Let the oracles see the events that the run is about to get, in the current state."""
        if self.oracles:
            self._watch_deadline(self.world.clock.now)
        for oracle in self.oracles:
            oracle.hears(events)

    def _watch_deadline(self, moment: float) -> None:
        orders = self.desk.orders
        stops, at_once = orders.deadline.stops(moment, self.desk.slowest)
        if stops and not orders.stopping:
            self.world.say(self.name, "stops: deadline")
            self.world.counts["deadlines"] += 1
        orders.stopping, orders.at_once = orders.stopping or stops, orders.at_once or at_once

    def _begin(self, effect: ex.Begin) -> None:
        self._look_on(effect.work)
        self.pool.begin(effect)

    def _look_on(self, work: ex.Portion) -> None:
        for oracle in self.oracles:
            oracle.begins(work)

    def _stop(self, effect: ex.StopRun) -> None:
        if effect.error is not None:
            raise effect.error
        orders = self.desk.orders
        if not orders.stopping:
            self.world.say(self.name, "stops:", effect.reason)
            self.world.counts["stops"] += 1
            orders.stopping, orders.at_once = True, self.world.chance() < 0.2
            self.tell()

    def _tell_pause(self, effect: ex.TellPause) -> None:
        self.world.say(self.name, effect.message)
        self.pauses.tells(effect)
        try:
            note_pause(self.store, self.world.batch.id, effect, actor=self.name)
        except StoreError:
            self._stop(ex.StopRun("trouble"))
        self.world.warnings += effect.until is not None
        self.world.counts["stages paused"] += effect.until is not None

    # -- claim and load -----------------------------------------------------------------------------------------

    def _ask_for(self, effect: ex.AskFor) -> Claim | Idle | None:
        world, request = self.world, effect.request
        began = world.standing()
        try:
            answer = self.store.claim(request)
        except StoreError as error:
            self.unsure = True
            world.say(self.name, f"cannot claim: {error}")
            return None
        claims = (answer, *answer.more) if isinstance(answer, Claim) else ()
        world.check_held(self, claims)
        for claim in claims:
            self._check_claim(claim, request, began)
        return answer

    def _check_claim(self, claim: Claim, request: ClaimRequest, began: Any) -> None:
        world = self.world
        if any(claim.lease.chunk == hold.lease.chunk and not hold.lost for hold in self.desk.holds):
            raise Violation(f"{self.name} was granted chunk {claim.lease.chunk} again, although it still holds it")
        if world.trace is not None:
            given = f"chunk {claim.lease.chunk} fence {claim.lease.fence}, items {claim.lo} to {claim.hi - 1}"
            world.say(self.name, "claims", given, f"blame {claim.blame}")
        world.granted(claim, began)

    def _taken(self, effect: ex.Taken) -> None:
        self.effects[effect.hold] = []
        if not self.beating:
            self.beating = True
            self.world.begin(self.live(self._beat()), LEASE / BEATS)

    def _read(self, effect: ex.Read) -> Sequence[Item] | None:
        claim = effect.claim
        try:
            items = self.store.load(claim, effect.after, effect.most, 1 << 20)
            if self.world.plan.every:
                self._checkpoints = self.store.checkpoints(claim.batch, lo=claim.lo, hi=claim.hi)
        except StoreError as error:
            self.world.say(self.name, f"cannot load chunk {claim.lease.chunk}: {error}")
            self._stop(ex.StopRun("trouble"))
            return None
        return items

    def _look_at(self, effect: ex.LookAt) -> Any:
        batch = self.world.batch
        try:
            if effect.what is ex.Look.BATCH:
                return find_batch(self.store, batch.name)
            chunks = self.store.chunks(batch.id)
        except StoreError:
            return None if effect.what is not ex.Look.BLAME else self.desk.careful
        if effect.what is ex.Look.BLAME:
            return any(carries_blame(c, is_held=self.world.is_live(c, self.world.clock.now)) for c in chunks)
        return chunks

    def _inspect(self, question: ex.Question) -> Behavior:
        """Ask the verifiers how far an item must go back whose input does not hold."""
        yield self.world.chance()
        cleared: list[Item] = []
        outcomes: list[Outcome] = []
        for item in question.items:
            broken = self.world.outputs.broken_below(item.n, item.place.stage)
            if broken is None and item.n in question.known_lost:
                broken = item.place.stage - 1
            if broken is None:
                cleared.append(item)
            else:
                outcomes.append(Lost(item, broken, "its input is gone"))
        self.tell(ex.InputAnswer(question, cleared, outcomes))

    # -- settling and committing --------------------------------------------------------------------------------

    def _write_group(self, group: Sequence[ex.Written]) -> Generator[float, None, list[Receipt]]:
        """Write everything that is finished in one write; each chunk has its own guard."""
        for written in group:
            self._check_written(written)
        receipts = yield from self._write([self._lingering(written) for written in group])
        for written, receipt in zip(group, receipts, strict=True):
            late = self._late.pop(written.commit.id, None)
            if receipt.landed and late is not None:
                self._release_late(late)
            if receipt.landed and written.commit.kind != journal.STARTED:
                self._are_durable(written)
        return receipts

    def _lingering(self, written: ex.Written) -> Commit:
        """Return the commit; now and then one that does not release a finished chunk yet: the release comes later."""
        world, commit, hold = self.world, written.commit, written.hold
        if not commit.release or not written.settled.counts.settled or not world.goes_wrong(world.plan.lingers):
            return commit
        kept = settle.commit(hold.holder, written.settled, commit_id=commit.id, reached=hold.all_reached())
        after = msgspec.structs.replace(hold.holder, version=hold.version + 1)
        release = settle.commit(after, settle.NOTHING, commit_id=world.new_id(), release=True)
        self._late[kept.id] = release
        self.unsure = True
        return kept

    def _release_late(self, release: Commit) -> None:
        """Release a chunk after a while, even if the process is gone."""
        late = CommitConnection(self.world, self.world.store)
        self.world.begin(lambda: late.deliver("late", [release]), (0.5 + self.world.chance()) * LEASE)

    def _check_written(self, written: ex.Written) -> None:
        """Check that waits are kept, that a condemned item was tried often enough, and that the item on trial is
        known."""
        hold, now = written.hold, self.desk.now
        for oracle in self.oracles:
            oracle.writes(written)
        check_waits(hold.in_write, written.settled, self.world.plan.policies, now)
        if written.commit.kind == journal.STARTED:
            (item,) = [*hold.unasked, *(item for queue in hold.ready for item in queue.items())]
            self.world.trials[effect_of(item)].append(hold.lease.fence)
        for outcome in hold.in_write if written.settled.attempts else ():
            if isinstance(outcome, Failed) and outcome.code == "killed_process":
                check_condemned(self.world, outcome.item, hold.lease.fence)

    def _are_durable(self, written: ex.Written) -> None:
        """Note what was committed; no item of the chunk is on trial any more."""
        hold = written.hold
        told = {effect_of(outcome.item) for outcome in hold.in_write}
        self.effects[hold] = [effect for effect in self.effects[hold] if effect not in told]
        end_trials(self.world, hold.claim)

    def _write(self, commits: list[Any]) -> Generator[float, None, list[Receipt]]:
        """Write, and after a lost reply look up every commit; those that did not land are sent again unchanged."""
        sending = Sending(commits)
        while sending.left:
            receipts = yield from self.connection.send(self.name, sending.left)
            if receipts is None:
                self.shaken = True
                sending.unheard(self.connection.asked)
            else:
                sending.heard(receipts)
        receipts = sending.receipts()
        self.unsure = self.unsure or not all(receipt.landed for receipt in receipts)
        return receipts

    def _leave(self, effect: ex.Leave) -> None:
        """Note that a chunk was released, or is dropped because another process has or may have it: without a reason
        that must not happen."""
        hold = effect.hold
        if effect.why:
            self.world.say(self.name, f"drops chunk {hold.lease.chunk}: {effect.why}")
            self.world.counts["leases lost"] += 1
            if not self.is_shaken and not self.world.is_seized(hold.claim):
                raise Violation(
                    f"{self.name} lost chunk {hold.lease.chunk} ({effect.why}), although nothing had happened"
                )
        if effect.why or (self.desk.orders.at_once and self.world.plan.processes):
            self._excuse(hold)
            self.effects[hold] = []
