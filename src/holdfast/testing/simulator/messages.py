"""Messages: processes that get one item at a time, again and again, in parallel to the workers and to each other.

They make the calls of the runtime's handover, one after the other in virtual time. A process dies or sleeps between any
two of them, and while a handler is running.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from types import GeneratorType
from typing import Any, NoReturn

from holdfast.core import ingest, journal
from holdfast.core.errors import CommitUnknown, HoldfastError, Refused, StoreError
from holdfast.core.lease import Trial, trial_of
from holdfast.core.limits import ORPHAN_GRACE
from holdfast.core.model import (
    Claim,
    ClaimRequest,
    Commit,
    CommitRefusal,
    Item,
    ItemNo,
    Lease,
    Receipt,
    State,
    StoredItem,
)
from holdfast.core.outcome import Failed, Lost, Outcome
from holdfast.core.settle import Settled
from holdfast.runtime.engine.driver import HoldDriver, LoneHold
from holdfast.runtime.engine.exchange import LEAST_SECONDS, NEVER, Deadline
from holdfast.runtime.engine.handover import TIME_UP, BroughtOn, Handover
from holdfast.runtime.engine.hold import Hold
from holdfast.runtime.engine.leases import Heartbeat
from holdfast.stores.base import Idle, Store
from holdfast.testing.replay import Violation
from holdfast.testing.simulator.handlers import cut_off, effect_of, handle, look_first, seconds_of
from holdfast.testing.simulator.network import CommitConnection
from holdfast.testing.simulator.oracles import check_condemned, end_trials
from holdfast.testing.simulator.plan import LEASE
from holdfast.testing.simulator.world import Behavior, Died, Effect, World, world_pause


def receivers(world: World) -> list[Behavior]:
    """Return the processes that get messages."""
    return [actor for number in range(world.plan.messages) for actor in MessageProcess(world, number, 1).actors()]


class LossyStore:
    """The store as such a process sees it: replies to its commits get lost, and a dead process writes nothing."""

    def __init__(self, process: "MessageProcess", store: Store) -> None:
        self._process, self._store, self._world = process, store, process.world
        self._connection = CommitConnection(process.world, store)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def claim(self, request: ClaimRequest) -> Claim | Idle:
        began = self._world.standing()
        answer = self._store.claim(request)
        if isinstance(answer, Claim):
            if self._world.trace is not None:
                self._world.say(self._process.name, f"claims chunk {answer.lease.chunk} fence {answer.lease.fence}")
            self._world.granted(answer, began)
        return answer

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Lease]:
        """Renew leases; a missing reply proves nothing."""
        try:
            return self._store.renew(leases, seconds)
        except StoreError:
            return leases

    def commit(self, commits: Sequence[Commit]) -> list[Receipt]:
        world, plan = self._world, self._world.plan
        if not self._process.alive or world.stopped:
            raise StoreError("the process is gone")
        self._process.writes(commits[0])
        if world.loses_commits and world.goes_wrong(plan.unsent):
            world.begin(lambda: self._connection.deliver("late", commits), world.chance() * 3 * LEASE)
            world.counts["commits late or lost"] += 1
            self._silence()
        receipts = self._deliver(commits)
        if world.loses_commits and world.goes_wrong(plan.doubled):
            world.begin(lambda: self._connection.deliver("twice", commits), world.chance() * 2 * LEASE)
        if world.loses_commits and world.goes_wrong(plan.unheard):
            world.counts["replies lost"] += 1
            self._silence()
        return receipts

    def _deliver(self, commits: Sequence[Commit]) -> list[Receipt]:
        try:
            receipts = self._connection.deliver(self._process.name, commits)
        except StoreError:
            self._process.unsure = True
            raise
        if receipts[0].landed:
            self._process.landed(commits[0])
        else:
            self._process.is_refused(receipts[0])
        return receipts

    def _silence(self) -> NoReturn:
        self._process.unsure = True
        raise CommitUnknown("no reply came")


class MessageDriver(HoldDriver):
    """A driver that holds single items, with a heartbeat on request."""

    def __init__(self, process: "MessageProcess", store: Any) -> None:
        world = process.world
        super().__init__(store, world.batch, owner=process.name, seconds=LEASE, stages=world.stages,
                         new_id=world.new_id)  # fmt: skip
        self.heartbeat = Heartbeat(store, LEASE, grace=ORPHAN_GRACE, on_trouble=self._in_trouble)
        self._process = process

    @contextmanager
    def held(self, claim: Claim) -> Iterator[LoneHold]:
        with super().held(claim) as lone:
            self._process.hold = lone.hold
            yield lone

    def _beating(self) -> Heartbeat:
        return self.heartbeat


class SimulatedHandover(Handover):
    """A delivery to one process."""

    def __init__(self, process: "MessageProcess", deadline: Deadline) -> None:
        self.process, self.world, self.deadline = process, process.world, deadline
        self.driver, self.policies, self.makers = process.driver, process.world.plan.policies, ()
        self._slowest: dict[int, float] = {}

    def now(self) -> float:
        return float(self.process.store.now())

    def has_time(self, stage: int) -> bool:
        return self.deadline.has_time(self.world.clock.now, max(LEAST_SECONDS, self._slowest.get(stage, 0.0)))

    def stored(self, n: ItemNo) -> StoredItem:
        found: Sequence[StoredItem] = self.process.store.items(self.world.batch.id, lo=n, hi=n + 1, limit=1)
        return found[0]

    def verified(self, n: ItemNo) -> StoredItem:
        return self.stored(n)

    def look_again(self) -> None:
        """Do nothing: there are no files."""

    def ask(self, item: Item, hold: LoneHold) -> Outcome | None:
        broken = self.world.outputs.broken_below(item.n, item.place.stage)
        return None if broken is None else Lost(item, broken, "its input is gone")

    def run(self, item: Item, hold: LoneHold, resumed: bool) -> Generator[float, None, Outcome | None]:
        """Run the handler; at the deadline it is cut off."""
        if (found := look_first(self.world, item)) is not None:
            return found
        self._check_trial(item, hold)
        self.process.effects.append(self.world.about_to_run(item, self.process.now()))
        seconds, left = seconds_of(self.world, item.place.stage), self.deadline.left(self.world.clock.now)
        yield from self.process.wait(min(seconds, max(left, 0.0)))
        if left < seconds:
            return cut_off(self.world, item)
        self._slowest[item.place.stage] = seconds
        outcome = handle(self.process, item, seconds)
        self.world.note_maker(item, hold.claim.lease.fence)
        return outcome

    def _check_trial(self, item: Item, hold: LoneHold) -> None:
        claim = hold.claim
        is_on_trial = trial_of(claim.pending, claim.blame) is Trial.ON_TRIAL and not hold.hold.in_write
        if is_on_trial and claim.lease.fence not in self.world.trials[effect_of(item)]:
            raise Violation(f"item {item.n} is on trial, but runs before that is durable")

    def check(self, receipt: Receipt | None) -> None:
        if receipt is not None and receipt.reason is CommitRefusal.SEALED:
            raise Refused("the batch was sealed meanwhile")

    def sync(self, settled: Settled) -> None:
        """Do nothing: there are no files."""

    def publish(self, settled: Settled, outcome: Outcome) -> None:
        """Do nothing: there are no files."""


class MessageProcess:
    """One process that gets messages, until it dies."""

    def __init__(self, world: World, number: int, life: int) -> None:
        self.world, self.number, self.life = world, number, life
        self.name = f"m{number}.{life}"
        self.alive = True
        self.asleep_until = 0.0
        self.shaken = self.unsure = False
        self.waits_since: list[float] = []
        self.effects: list[Effect] = []
        """Handlers that were started and whose outcome is not committed."""
        self.store: Any = LossyStore(self, world.connect(self))
        self.driver = MessageDriver(self, self.store)
        self.hold: Hold | None = None
        """Its current hold, or the last one."""
        self._n = ItemNo(0)
        """The item of the current message."""
        self.is_over = False
        """True once no more messages come; until then it renews, even if nothing is held at the moment."""
        self._seen: set[bytes] = set()
        """Commits that were checked."""

    def now(self) -> float:
        return self.world.clock.now

    @property
    def is_shaken(self) -> bool:
        return self.shaken

    def leases(self) -> list[Lease]:
        return [self.hold.lease] if self.hold is not None else []

    def actors(self) -> list[Behavior]:
        return [self._live(), self._beat()]

    # -- living and dying ---------------------------------------------------------------------------------------

    def die(self, how: str) -> NoReturn:
        world = self.world
        world.say(self.name, how)
        world.counts["crashes"] += 1
        self.alive = False
        self._excuse()
        if world.plan.same_host:
            world.dead.add(self.name)
        later = 0.5 + world.chance() * LEASE
        for actor in MessageProcess(world, self.number, self.life + 1).actors():
            world.begin(actor, later)  # together: a live process has a heartbeat
        raise Died

    def sleep(self) -> None:
        seconds = world_pause(self.world.chance())
        self.world.say(self.name, f"is paused for {seconds:.0f} s")
        self.world.counts["pauses"] += 1
        self.asleep_until, self.shaken = self.world.clock.now + seconds, True

    def wait(self, seconds: float) -> Behavior:
        """Let time pass, in which the process may die or sleep."""
        world, plan = self.world, self.world.plan
        yield seconds
        if world.faulty and plan.crash and world.chance() < plan.crash:
            self.die("crashes")
        if world.faulty and plan.pause and world.chance() < plan.pause:
            self.sleep()
        while self.asleep_until > world.clock.now:
            yield self.asleep_until - world.clock.now

    def _beat(self) -> Behavior:
        world = self.world
        while self.alive and not self.is_over:
            yield LEASE / 3
            if self.asleep_until > world.clock.now:
                continue
            if world.goes_wrong(world.plan.missed_beat):
                self.shaken = True
            else:
                try:
                    self.driver.heartbeat.beat()
                except Died:
                    return

    def _excuse(self) -> None:
        self.world.excused.update(self.effects)
        self.effects = []

    # -- messages -----------------------------------------------------------------------------------------------

    def _live(self) -> Behavior:
        world = self.world
        rows = [row for group in world.plan.groups for row in group if row[0] is not None]
        try:
            while world.faulty:
                yield from self.wait(world.plan.message_gap * (0.5 + world.chance()))
                n = self._find(*rows[int(world.chance() * len(rows))])
                if n is not None:
                    yield from self._deliver(n)
        except Died:
            return
        finally:
            self.is_over = True

    def _find(self, key: object, payload: bytes) -> ItemNo | None:
        """Return the number of an item; an unknown one is admitted first."""
        world = self.world
        item = ingest.admit(key, payload)
        if world.ingesting and not world.admit("messages", [item]):
            return None
        known = world.store.known(world.batch.id, [item])
        return known[0][0] if known else None

    def _deliver(self, n: ItemNo) -> Behavior:
        world, self.shaken, self._n = self.world, False, n
        world.counts["messages"] += 1
        now, has_deadline = world.clock.now, world.chance() < 0.3
        deadline = Deadline(now + 1 + 6 * world.chance(), now) if has_deadline else NEVER
        calls = SimulatedHandover(self, deadline).bring_on(n)
        answer: Any = None
        try:
            while True:
                call = calls.send(answer)
                yield from self.wait(0.002 + 0.05 * world.chance())
                answer = call()
                if isinstance(answer, GeneratorType):
                    answer = yield from answer
        except StopIteration as end:
            self._check_end(n, end.value, deadline)
        except HoldfastError as error:
            world.say(self.name, f"gives item {n} up: {error}")
            self.unsure = True
            self._excuse()
        finally:
            calls.close()
            self.hold = None

    # -- what must be true --------------------------------------------------------------------------------------

    def writes(self, commit: Commit) -> None:
        """Check what is about to be written, when it is first sent: the item on trial is known, and a condemned one was
        tried often enough."""
        hold = self.hold
        if commit.id in self._seen or hold is None:
            return
        self._seen.add(commit.id)
        if commit.kind == journal.STARTED:
            place = self.world.row_of(self._n).place
            self.world.trials[int(self._n), place.stage, place.epoch].append(commit.fence)
        for outcome in hold.in_write if commit.moves else ():
            if isinstance(outcome, Failed) and outcome.code == "killed_process":
                check_condemned(self.world, outcome.item, commit.fence)

    def landed(self, commit: Commit) -> None:
        """Note that a commit is durable: no item of the chunk is on trial any more."""
        if commit.kind != journal.STARTED and self.hold is not None:
            told = {effect_of(outcome.item) for outcome in self.hold.in_write}
            self.effects = [effect for effect in self.effects if effect not in told]
            end_trials(self.world, self.hold.claim)

    def is_refused(self, receipt: Receipt) -> None:
        """Note that a commit was refused: without a reason that must not happen."""
        is_known = self.hold is None or self.world.is_seized(self.hold.claim) or receipt.reason is CommitRefusal.SEALED
        if not (is_known or self.shaken or self.unsure) and self.world.loses_commits:
            raise Violation(f"{self.name} lost item {self._n} ({receipt.reason}), although nothing had happened")
        self.unsure = True

    def _check_end(self, n: ItemNo, brought: BroughtOn, deadline: Deadline) -> None:
        """Check that a settled answer is true, that a message makes progress while it can, and that the process holds
        nothing afterwards."""
        world, plan, state = self.world, self.world.plan, brought.stored.place.state
        if self.hold is not None and self.hold.lost:
            self._excuse()
        says_why = brought.why or brought.due is not None or brought.idle is not None
        if state is State.PENDING and not says_why:
            raise Violation(f"{self.name} reports item {n} as settled, but it is not")
        others = plan.acts or plan.stuck or plan.checks or plan.lost or plan.cancel or self.shaken or self.unsure
        if brought.why == TIME_UP and deadline is NEVER and not others and world.loses_commits:
            raise Violation(f"{self.name} leaves item {n}, although it had no deadline")
        if world.chunk_of(n).owner == self.name and not self.unsure:
            raise Violation(f"{self.name} leaves item {n}, but still holds it")
        world.counts["messages settled"] += state is not State.PENDING
