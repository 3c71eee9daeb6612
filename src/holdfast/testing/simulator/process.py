"""A worker process as the runtime has it: claim, load, run, settle, commit together, go on, wait or let go.

It keeps everything in memory and loses all of it when it crashes. A paused process knows nothing of the time that
passed: it goes on where it stood, with leases that others may have taken over.
"""

from collections.abc import Generator
from typing import NoReturn

from holdfast.core import canonical, lease, settle
from holdfast.core.errors import StoreError
from holdfast.core.limits import BLAME
from holdfast.core.model import Commit, Course, Item, Want
from holdfast.core.outcome import Done, Failed, Lost, Outcome
from holdfast.core.settle import Holder, Settled
from holdfast.runtime.working.writing import Sending
from holdfast.stores.base import Idle, Receipt
from holdfast.testing.replay import Violation
from holdfast.testing.simulator.hand import Hand
from holdfast.testing.simulator.handling import handle, seconds_of
from holdfast.testing.simulator.plan import LEASE, most_per_item
from holdfast.testing.simulator.ranges import Walk, length_of
from holdfast.testing.simulator.watch import check_waits
from holdfast.testing.simulator.wire import Wire
from holdfast.testing.simulator.world import Actor, Died, World, output_of

BEATS = 3
MISSED_BEATS = 3
GRID = 0.1


class Process:
    """One life of a worker."""

    def __init__(self, world: World, number: int, life: int = 1) -> None:
        self.world, self.number, self.life = world, number, life
        self.name = f"w{number}.{life}"
        self.hands: list[Hand] = []
        self.asked_at_end = False
        """Whether it was told that there is nothing to claim when the source had been read: an answer may be old."""
        self.alive = True
        self.beating = False
        self.asleep_until = 0.0
        self.shaken = False
        """Something happened to it that may cost it its leases."""
        self.waits_since: list[float] = []
        """When its requests began that are on their way: of one that takes long its other half knows nothing yet."""
        self.unsure = False
        """It does not know what became of something that it wrote, and it may hold what it does not know of."""
        self.skew = (world.chance() * 2 - 1) * world.plan.skew
        self.store = world.connect(self)
        self.wire = Wire(world, self.store)

    def start(self) -> None:
        self.world.begin(self._live(self._work()))

    def now(self) -> float:
        """Its own clock, which is not the store's."""
        return self.world.clock.now + self.skew

    @property
    def is_shaken(self) -> bool:
        """Whether it was kept from renewing its leases in time, or is just now."""
        return self.shaken or any(self.world.clock.now - since > LEASE / 10 for since in self.waits_since)

    def is_gone(self) -> bool:
        return not self.alive

    # -- living and dying ---------------------------------------------------------------------------------------

    def _live(self, actor: Actor) -> Actor:
        """What an actor of this process does, until the process dies; with pauses."""
        world, plan = self.world, self.world.plan
        try:
            for delay in actor:
                yield delay
                while self.alive and self.asleep_until > world.clock.now:
                    yield self.asleep_until - world.clock.now
                if not self.alive:
                    return
                if world.faulty:
                    if plan.crash and world.chance() < plan.crash:
                        self.die("crashes")
                    if plan.pause and world.chance() < plan.pause:
                        self.sleep()
                        yield self.asleep_until - world.clock.now
                        if self.is_gone():
                            return
        except Died:
            return

    def die(self, how: str) -> NoReturn:
        world = self.world
        world.say(self.name, how)
        world.counts["crashes"] += 1
        self.alive = False
        for hand in self.hands:
            self._excuse(hand)
        if world.plan.same_host:
            world.dead.add(self.name)
        world.begin(Process(world, self.number, self.life + 1).start, 0.5 + world.chance() * LEASE)
        raise Died

    def sleep(self) -> None:
        seconds = world_pause(self.world.chance())
        self.world.say(self.name, f"is paused for {seconds:.0f} s")
        self.world.counts["pauses"] += 1
        self.asleep_until, self.shaken = self.world.clock.now + seconds, True

    def _excuse(self, hand: Hand) -> None:
        self.world.excused.update(hand.effects)

    def _drop(self, hand: Hand, why: str) -> None:
        """Somebody else has the chunk, or may have: forget all of it. Without a reason it must not happen."""
        self.world.say(self.name, f"drops chunk {hand.chunk}: {why}")
        self.world.counts["leases lost"] += 1
        if not self.is_shaken and not self.world.is_seized(hand.claim):
            raise Violation(f"{self.name} lost chunk {hand.chunk} ({why}), though nothing had happened to it")
        self._excuse(hand)
        self.hands.remove(hand)

    def _beat(self) -> Actor:
        """The heartbeat, while anything is held: renew all leases in one write; stop the process when that fails."""
        world, failures = self.world, 0
        while self.hands:
            live = [hand for hand in self.hands if not hand.lost]
            if world.goes_wrong(world.plan.missed_beat):
                failures += 1
                world.counts["beats missed"] += 1
            else:
                failures = 0 if self._renew(live) else failures + 1
            if failures:
                self.shaken = True
            if failures == MISSED_BEATS:
                self.die("stops: its heartbeat failed too often")
            yield LEASE / BEATS
        self.beating = False

    def _renew(self, live: list[Hand]) -> bool:
        """False where the store cannot say whether the leases are still held."""
        try:
            kept = {renewed.chunk for renewed in self.store.renew([hand.claim.lease for hand in live], LEASE)}
        except StoreError:
            return False
        for hand in live:
            hand.lost = hand.chunk not in kept
        return True

    # -- the round ----------------------------------------------------------------------------------------------

    def _work(self) -> Actor:
        world, hurry = self.world, 0.05
        while True:
            yield hurry * world.chance()
            if self.hands:
                yield from self._commit()
                now = self.now()
                for hand in self.hands:
                    hand.wake(now)
            idle = self._top_up()
            if self._something_ready():
                yield from self._run_some()
                continue
            if self.hands:
                yield from self._let_go()
                if any(hand.outcomes for hand in self.hands):
                    continue
            elif idle is not None and self._at_end(idle):
                self.alive = False
                return
            yield self._patience(idle)

    def _something_ready(self) -> bool:
        for hand in self.hands:  # noqa: SIM110 - this runs two hundred times in every world
            if hand.ready:
                return True
        return False

    def _at_end(self, idle: Idle) -> bool:
        world = self.world
        at_rest = not world.faulty and not world.underway and self.asked_at_end and idle.pending == 0
        return at_rest and (world.course is Course.CANCELLED or not world.outside.all_that_do_not_hold())

    def _patience(self, idle: Idle | None) -> float:
        """How long to wait: until an own item is due, or the store said that something may be claimable."""
        now, longest = self.now(), 20 + 30 * self.world.chance()
        waits = [due - now for hand in self.hands if (due := hand.next_due()) is not None]
        if idle is not None and idle.next_due is not None and idle.why is None:
            waits.append(idle.next_due - self.store.now() + 0.01)
        return max(0.05, min(longest, *waits)) if waits else longest

    def _top_up(self) -> Idle | None:
        """Load what is held, a page at a time; claim more while there is room, but nothing beside a suspect."""
        idle: Idle | None = None
        for hand in self.hands:
            if not hand.loaded_all and not hand.ready:
                self._load(hand)
            if hand.exclusive or hand.ready:
                return None
        try:
            while len(self.hands) < self.world.plan.hands:
                claimed = self._claim()
                if isinstance(claimed, Idle):
                    idle = claimed
                    break
                self._load(claimed)
                if claimed.exclusive:
                    break
        except StoreError as error:
            self.unsure = True
            self.world.say(self.name, f"cannot claim: {error}")
        return idle

    def _claim(self) -> Hand | Idle:
        world, plan = self.world, self.world.plan
        limit = 1 + int(world.chance() * plan.limit) if plan.every else plan.limit
        keeps = frozenset(hand.chunk for hand in self.hands if not hand.lost)
        want = Want(batch=world.batch.id, owner=self.name, limit=limit, seconds=LEASE, at_once=plan.slice,
                    cap=world.cap, reserve=self._reserve(), tolerance=world.tolerance, keeps=keeps)  # fmt: skip
        began, self.asked_at_end = world.standing(), not world.ingesting
        answer = self.store.claim(want)
        held = {int(hand.chunk) for hand in self.hands}
        world.check_held(self, held if isinstance(answer, Idle) else held | {int(answer.lease.chunk)})
        if isinstance(answer, Idle):
            return answer
        if answer.lease.chunk in keeps:
            raise Violation(f"{self.name} was granted chunk {answer.lease.chunk} again, which it had in its hands")
        if world.trace is not None:
            given = f"chunk {answer.lease.chunk} fence {answer.lease.fence}, items {answer.lo} to {answer.hi - 1}"
            world.say(self.name, "claims", given, f"blame {answer.blame}")
        world.granted(answer, began)
        hand = Hand(answer)
        self.hands.append(hand)
        if not self.beating:
            self.beating = True
            world.begin(self._live(self._beat()), LEASE / BEATS)
        return hand

    def _reserve(self) -> int:
        return most_per_item(self.world.plan) if self.world.cap is not None else 0

    def _load(self, hand: Hand) -> None:
        world = self.world
        claim = hand.claim
        try:
            items = self.store.load(claim, hand.loaded_to, min(world.plan.page, hand.unseen), 1 << 20)
            if world.plan.every:
                found = self.store.checkpoints(claim.batch, lo=claim.lo, hi=claim.hi)
                hand.checkpoints = {at.n: at for at in found}
        except StoreError as error:
            world.say(self.name, f"cannot load chunk {hand.chunk}: {error}")
            return
        if items:
            hand.loaded_to = items[-1].n
            hand.unseen -= len(items)
        if not items or not hand.unseen:
            hand.loaded_all = True
        if lease.condemned(hand.claim.pending, hand.claim.blame):
            for item in items:
                self._condemn(hand, item)
        else:
            hand.take_in(items, self.now())

    def _condemn(self, hand: Hand, item: Item) -> None:
        plan, n, place = self.world.plan, int(item.n), item.place
        if not (plan.crash or plan.pause or plan.missed_beat or plan.unsent) and plan.killer != (item.key, place.stage):
            raise Violation(f"item {n} is condemned, but it never killed a process")
        effect = (n, place.stage, place.epoch)
        if len(self.world.trials[effect]) < BLAME:
            raise Violation(f"item {n} is condemned, but it was not started {BLAME} times alone and in vain")
        self.world.condemned[effect] += 1
        hand.outcomes.append(Failed(item, False, "killed_process", "its process died too often", 0.0, 0.0, 0.0))

    # -- running ------------------------------------------------------------------------------------------------

    def _run_some(self) -> Actor:
        """A slice of what is ready; a suspect's items come first, and one at a time."""
        hand = next((hand for hand in self.hands if hand.alone and hand.ready), None)
        if hand is not None and hand.on_trial and not (yield from self._note_start(hand)):
            return
        for _ in range(1 if hand is not None else self.world.plan.slice):
            busy = hand if hand is not None else next((h for h in self.hands if h.ready), None)
            if busy is None:
                return
            item = busy.ready.pop(0)
            if self.world.plan.every:
                yield from self._walk(busy, item)
                continue
            found = self._look(item)
            if found is not None:
                busy.outcomes.append(found)
                continue
            busy.effects.append(self.world.about_to_run(item, self.now()))
            seconds = seconds_of(self.world)
            yield seconds
            busy.outcomes.append(handle(self, item, seconds))

    def _walk(self, hand: Hand, item: Item) -> Actor:
        """A range up to its next checkpoint, or to its end."""
        world, n = self.world, int(item.n)
        walk = hand.walks.get(n)
        if walk is None:
            walk = hand.walks[n] = Walk(item, hand.checkpoints.get(n), length_of(world, n), world.plan.every)
            hand.effects.append(world.about_to_run(item, self.now()))
            world.ranges.begins(walk)
        world.ranges.goes_on(walk, hand.claim.lease.fence)
        seconds = seconds_of(self.world)
        yield seconds
        world.ranges.handled(walk, walk.go_on())
        if not walk.at_end and not world.goes_wrong(world.plan.transient):
            hand.savings.append((walk, walk.reached()))
            return
        del hand.walks[n]
        if walk.at_end:
            outcome = handle(self, walk.item, seconds, walk.result())
        else:
            outcome = Failed(walk.item, True, "http_503", "no answer", world.chance(), 0.1, seconds)
        if isinstance(outcome, Done):
            hand.last.append(walk.reached())
        hand.outcomes.append(outcome)

    def _look(self, item: Item) -> Outcome | None:
        """Before anything is run: whether its input is still there, and whether its output is there already."""
        world, (n, place) = self.world, (int(item.n), item.place)
        broken = world.outside.broken_below(n, place.stage) if world.outside.broken else None
        if broken is None and place.stage and world.goes_wrong(world.plan.lost):
            broken = place.stage - 1
        if broken is not None:
            return Lost(item, broken, "its input is gone")
        effect = (n, place.stage, place.epoch)
        if not world.plan.adopts or not world.outside.has(effect):
            return None
        world.counts["adopted"] += 1
        output = output_of(item)
        spend = world.outside.made[effect]
        return Done(item, output, canonical.digest(item.salt, output), 0.0, 0.0, spend, adopted=True)

    def _note_start(self, hand: Hand) -> Generator[float, None, bool]:
        """An item on trial is run only after that is durable."""
        (item,) = hand.ready
        hand.on_trial = False
        self.world.trials[int(item.n), item.place.stage, item.place.epoch].append(hand.claim.lease.fence)
        receipts = yield from self._write([settle.start(self._holder(hand), commit_id=self.world.new_id())])
        if not receipts[0].landed:
            self._drop(hand, f"its start was refused ({receipts[0].reason})")
            return False
        hand.version += 1
        return True

    # -- settling and committing --------------------------------------------------------------------------------

    def _commit(self) -> Actor:
        """Everything that is finished, in one write; each chunk with its own guard."""
        for hand in [hand for hand in self.hands if hand.lost]:
            self._drop(hand, "the heartbeat found it lost")
        ripe = [hand for hand in self.hands if hand.outcomes or hand.savings]
        if not ripe:
            return
        settled = [self._settle(hand) for hand in ripe]
        commits = [self._commit_of(hand, what) for hand, what in zip(ripe, settled, strict=True)]
        receipts = yield from self._write(commits)
        for hand, what, commit, receipt in zip(ripe, settled, commits, receipts, strict=True):
            if receipt.landed:
                self._go_on(hand, what, commit.release)
            else:
                self._drop(hand, f"its commit was refused ({receipt.reason})")

    def _settle(self, hand: Hand) -> Settled:
        outcomes, hand.outcomes, now = hand.outcomes, [], self.now()
        settled = settle.settle(outcomes, stages=self.world.stages, policies=self.world.plan.policies, now=now)
        check_waits(outcomes, settled, self.world.plan.policies, now)
        return settled

    def _commit_of(self, hand: Hand, settled: Settled, *, release: bool = False, due: float = 0.0) -> Commit:
        left = hand.left + len(settled.onward)
        lingers = self.world.goes_wrong(self.world.plan.lingers)
        release = release or (hand.loaded_all and not left and not lingers)
        reserved = self._reserve() * max(0, hand.claim.pending)
        return settle.commit(
            self._holder(hand), settled, commit_id=self.world.new_id(), release=release, due=due, reserved=reserved,
            reached=hand.reached,
        )  # fmt: skip

    def _holder(self, hand: Hand) -> Holder:
        claim = hand.claim
        return Holder(batch=claim.batch, chunk=hand.chunk, fence=claim.lease.fence, version=hand.version, seconds=LEASE)

    def _write(self, commits: list[Commit]) -> Generator[float, None, list[Receipt]]:
        """Write, and after a lost reply look every commit up; what did not land is sent again as it is."""
        sending = Sending(commits)
        while sending.left:
            receipts = yield from self.wire.send(self.name, sending.left)
            if receipts is None:
                self.shaken = True
                sending.unheard(self.wire.asked)
            else:
                sending.heard(receipts)
        receipts = sending.receipts()
        self.unsure = self.unsure or not all(receipt.landed for receipt in receipts)
        return receipts

    def _go_on(self, hand: Hand, settled: Settled, released: bool) -> None:
        """What is durable may go on."""
        hand.version += 1
        for effect in hand.effects:
            trials = self.world.trials[effect]  # who slept hears of it late, and others may have begun since
            trials[:] = [fence for fence in trials if fence > hand.claim.lease.fence]
        hand.are_durable()
        if released:
            self.hands.remove(hand)
        else:
            hand.take_in(settled.onward, self.now())

    def _let_go(self) -> Actor:
        """Release what only waits for longer than half a lease; now and then later."""
        if self.world.goes_wrong(self.world.plan.lingers):
            return
        now = self.now()
        for hand in [h for h in self.hands if h.loaded_all and not h.ready and not h.outcomes and not h.lost]:
            due = hand.next_due()
            if due is None or due - now > LEASE / 2:
                commit = self._commit_of(hand, settle.NOTHING, release=True, due=_grid(due, now))
                self.hands.remove(hand)
                yield from self._write([commit])


def world_pause(chance: float) -> float:
    """Shorter than a lease, or much longer."""
    return LEASE * (0.3 + 3 * chance)


def _grid(due: float | None, now: float) -> float:
    """Releases wait on a grid, so that items due at about the same time are claimed together."""
    if due is None:
        return 0.0
    grid = max(1.0, (due - now) * GRID)
    return now + -(-(due - now) // grid) * grid
