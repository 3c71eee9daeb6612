"""The world: virtual time, and everything that acts in it.

Actors are generators. Each yields the number of seconds until it continues, and nothing else happens between two
yields: so everything that can happen between two calls to the store does happen in some world. A world is determined by
its plan: the same seed gives the same events.
"""

import heapq
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from collections.abc import Set as AbstractSet
from random import Random
from typing import Any, TypeVar

from holdfast.core import canonical
from holdfast.core.course import to_reopen, to_steer
from holdfast.core.errors import Refused, UsageError
from holdfast.core.journal import Spend
from holdfast.core.model import (
    Act,
    Batch,
    BatchId,
    BatchMode,
    Change,
    Checkpoint,
    Chunk,
    Claim,
    Commit,
    Event,
    Item,
    ItemNo,
    NewItem,
    Output,
    State,
    StoredItem,
)
from holdfast.stores.base import Store, is_settled
from holdfast.testing.clock import START, ManualClock
from holdfast.testing.replay import Violation
from holdfast.testing.simulator.handlers import output_of
from holdfast.testing.simulator.oracles import RangeOracle, SealedState, check_sums, is_over
from holdfast.testing.simulator.plan import LEASE, WorldPlan, most_per_item

EVENTS = 20_000
"""More than any world needs: one that has not ended by then makes no progress."""

A = TypeVar("A")
Behavior = Generator[float, None, None]
Happening = Callable[[], object]
MakeStore = Callable[[Callable[[], float], Callable[[str], bool]], Store]


Effect = tuple[int, int, int]
"""An item at a stage in an epoch."""
RESTING = (State.DONE, State.PENDING)
"""States of items that depend on the outputs of the stages they have passed; those of other items are no longer
read."""


class MadeOutputs:
    """The outputs that exist in the outside world."""

    def __init__(self, store: Store, batch: BatchId) -> None:
        self._store, self._batch = store, batch
        self.made: dict[Effect, Spend | None] = {}
        """The existing outputs, with the cost of each."""
        self.broken: set[Effect] = set()
        """Outputs that existed and no longer hold."""

    def make(self, effect: Effect, spend: Spend | None) -> None:
        """Make an output. An existing one stays: a second attempt changes nothing."""
        self.made.setdefault(effect, spend)

    def has(self, effect: Effect) -> bool:
        """Return whether a worker that looks finds the output it is about to make."""
        return effect in self.made and effect not in self.broken

    def broken_below(self, n: int, stage: int) -> int | None:
        """Return the first stage before that one whose recorded output does not hold."""
        outputs = self._store.outputs(self._batch, lo=n, hi=n + 1) if self.broken else ()
        return next((each.stage for each in outputs if each.stage < stage and self.is_broken(each)), None)

    def rests_on_broken(self, n: int, stage: int) -> bool:
        """Return whether the input of a stage is gone, whether or not that was noticed."""
        inputs = self._store.outputs(self._batch, lo=n, hi=n + 1, stage=stage - 1) if self.broken and stage else ()
        return any(self.is_broken(each) for each in inputs)

    def is_broken(self, output: Output) -> bool:
        return (int(output.n), output.stage, output.epoch) in self.broken

    def does_not_hold(self, item: StoredItem) -> int | None:
        """Return the first stage of an item whose recorded output does not hold, if the item depends on it."""
        return self.broken_below(item.n, item.place.stage) if item.place.state in RESTING else None

    def all_that_do_not_hold(self) -> list[tuple[StoredItem, int]]:
        """Return every item that depends on an output that does not hold, with the stage to which it must go back."""
        if not self.broken:
            return []
        items = self._store.items(self._batch)
        return [(item, stage) for item in items if (stage := self.does_not_hold(item)) is not None]


class Died(Exception):
    """A process has died."""


def world_pause(chance: float) -> float:
    """Return a pause shorter than a lease, or much longer."""
    return LEASE * (0.3 + 3 * chance)


class World:
    """The whole state of one simulation, with its invariants."""

    loses_commits = True
    """True if commits can get lost between a worker and the store, rather than inside the store."""
    stopped = False
    """True once the world has ended: actors in the middle of something write nothing any more."""

    def __init__(self, plan: WorldPlan, make_store: MakeStore, trace: list[str] | None = None) -> None:
        self.plan = plan
        self.clock = ManualClock()
        self.chance = Random(plan.seed + 1).random  # noqa: S311 - a schedule, not a secret
        self.dead: set[str] = set()
        self.store = make_store(self.clock, self.dead.__contains__)
        """The store for checking the truth. Actors in the world get theirs through `connect`."""
        self.stages = len(plan.policies)
        definition = canonical.encode({"stages": [{"name": f"s{s}"} for s in range(self.stages)]})
        self.batch: Batch = self.store.open_batch(f"seed {plan.seed}", "simulated", definition, actor="simulator")
        self.trace = trace
        self.faulty = True
        self.cap = plan.cap
        self.tolerance = plan.tolerance
        self.course = BatchMode.OPEN
        self.ended = self.ending = False
        """True once the source was read to the end."""
        self.sealed: SealedState | None = None
        self.outputs = MadeOutputs(self.store, self.batch.id)
        self.ranges = RangeOracle(self)
        self.heard: list[int] = []
        """The events that the receiver got, in order."""
        self.acknowledged = 0
        self.ingesting = plan.ingesters
        self.runs: Counter[Effect] = Counter()
        """How often a handler was run."""
        self.condemned: Counter[Effect] = Counter()
        """How often an item was buried without being run."""
        self.trials: defaultdict[Effect, list[int]] = defaultdict(list)
        """The fences under which an item was started alone, on trial."""
        self.progressed: defaultdict[int, list[int]] = defaultdict(list)
        """The fences under which something of the chunk of an item was committed."""
        self.excused: Counter[Effect] = Counter()
        """Runs whose outcome was lost for a known reason."""
        self.seized: set[int] = set()
        """Chunks that an operator seized from their owner."""
        self.underway: list[tuple[bool, frozenset[int]]] = []
        """Acts in progress: whether they seize, and their items. On a bucket, an act takes time."""
        self.landed: set[bytes] = set()
        self.late_makers: set[Effect] = set()
        self.warnings = 0
        """How often an event reported that a stage pauses."""
        self.counts: Counter[str] = Counter()
        self.heads: list[bytes] = []
        """The end of the chain of each chunk: the whole history in a few bytes."""
        self._fences: dict[int, int] = {}
        self._inputs: dict[tuple[int, int], bytes] = {}
        self._queue: list[tuple[float, int, Behavior | Happening]] = []
        self._left = EVENTS
        self._order = itertools.count()
        self._ids = itertools.count(1)

    def connect(self, process: Any) -> Store:
        """Return the store as a process sees it."""
        return self.store

    def others(self) -> Iterable[Behavior]:
        """Yield the other actors of this world."""
        return ()

    def on_behalf(self, who: str, do: Callable[[Store], A]) -> A:
        """Return the result of a call to the store by an operator."""
        return do(self.store)

    def run(self) -> None:
        """Let everything happen until no actor has anything left to do."""
        self.go_on()
        if self._queue:
            raise Violation(f"no end after {EVENTS} events: the batch makes no progress")

    def go_on(self, until: float = math.inf, most: int = EVENTS) -> None:
        """Run all events until that time, one after the other."""
        end = START + self.plan.faults_until
        queue, clock = self._queue, self.clock
        for _ in range(min(most, self._left)):
            if not queue or queue[0][0] > until:
                return
            self._left -= 1
            at, _, actor = heapq.heappop(queue)
            if at > clock.now:
                clock.now = at
                if self.faulty and at > end:
                    self._calm()
            if callable(actor):
                actor()
                continue
            delay = next(actor, None)
            if delay is not None:
                heapq.heappush(queue, (clock.now + delay, next(self._order), actor))

    def _calm(self) -> None:
        self.faulty, self.cap, self.tolerance = False, None, None
        self.say("world", "from here on nothing goes wrong")

    def begin(self, actor: Behavior | Happening, after: float = 0.0) -> None:
        """Start an actor, or let something happen once, after some seconds."""
        heapq.heappush(self._queue, (self.clock.now + after, next(self._order), actor))

    def goes_wrong(self, rate: float) -> bool:
        return rate > 0 and self.faulty and self.chance() < rate

    def is_away(self, stage: int) -> bool:
        """Return whether the service of a stage is unavailable."""
        now = self.clock.now - START
        return self.faulty and any(at == stage and begin <= now < end for at, begin, end in self.plan.outages)

    def new_id(self) -> bytes:
        return next(self._ids).to_bytes(16, "big")

    def say(self, who: str, what: str, *facts: object) -> None:
        """Add a line to the trace. Facts are formatted only if there is a trace."""
        if self.trace is not None:
            told = " ".join(str(fact) for fact in facts)
            self.trace.append(f"{self.clock.now - START:8.2f}  {who:<8} {what} {told}".rstrip())

    # -- what people do -----------------------------------------------------------------------------------------

    def steer(self, course: BatchMode) -> bool:
        """Give the batch another course; return False if it has ended before."""
        may_not = self.sealed is not None or (self.course is BatchMode.CANCELLED and course is not BatchMode.CANCELLED)
        try:
            self.on_behalf(
                "operator",
                lambda store: store.amend(self.batch.id, to_steer(course, reason="because"), actor="operator"),
            )
        except (Refused, UsageError):
            if not may_not and not self.is_closed():
                raise
            return False
        if may_not and self.is_closed():
            raise Violation(f"a batch that is {'sealed' if self.sealed else self.course} is {course} now")
        self.course = course
        self.counts[f"batches {course}"] += 1
        self.say("operator", f"the batch is {course}")
        return True

    def act(
        self, who: str, kind: str, changes: Sequence[Change], *, seize: bool = False, events: tuple[Event, ...] = (),
        act_id: bytes | None = None,
    ) -> list[ItemNo]:  # fmt: skip
        """Change items as an operator does; nothing happens once the batch is sealed."""
        sealed = self.sealed
        items = frozenset(int(change.n) for change in changes)
        if seize:
            self._seize(items)
        act = Act(id=self.new_id() if act_id is None else act_id, batch=self.batch.id, kind=kind, actor=who,
                  reason="because", at_items=tuple(changes), seize=seize, events=events)  # fmt: skip
        self.underway.append((seize, items))
        try:
            changed = self.on_behalf(who, lambda store: store.act(act))
        except Refused:
            if sealed is None and self.sealed is None and not self.is_closed():
                raise
            self.counts["acts refused"] += 1
            return []
        finally:
            self.underway.remove((seize, items))
        if self.sealed is not None and changed and sealed is self.sealed:
            raise Violation(f"items {changed} of a sealed batch were {kind}")
        if seize:
            self._seize(set(changed))  # also of chunks that were cut meanwhile
        self.counts["acts"] += bool(changed)
        self.say(who, kind, "items", [c.n for c in changes], "seizing" if seize else "", "→", changed)
        self.changed()
        return changed

    def is_seized(self, claim: Claim) -> bool:
        """Return whether an operator has seized the chunk of a process, or is about to: it may have been cut since."""
        return claim.lease.chunk in self.seized or any(
            seizes and any(claim.lo <= n < claim.hi for n in items) for seizes, items in self.underway
        )

    def _seize(self, touched: AbstractSet[int]) -> None:
        chunks = self.store.chunks(self.batch.id) if touched else ()
        self.seized.update(chunk.id for chunk in chunks if any(chunk.lo <= n < chunk.hi for n in touched))

    def admit(self, who: str, items: list[NewItem], *, ended: bool = False) -> bool:
        """Admit items; return False if the batch takes no more."""
        is_closed = self.sealed is not None or self.course is BatchMode.CANCELLED
        self.ending = self.ending or ended
        try:
            answer = self.on_behalf(who, lambda store: store.add_items(self.batch.id, items, ended=ended, actor=who))
        except Refused:
            if not is_closed and not self.is_closed():
                raise
            self.say(who, "is refused")
            return False
        if is_closed and answer.added and self.is_closed():
            raise Violation(f"{answer.added} items were admitted to a batch that takes no more")
        self.ended = self.ended or ended
        self.say(who, f"admits {answer.added} items, {answer.known} were known")
        return True

    def seal(self) -> None:
        """Note that the batch was sealed."""
        self.sealed = SealedState(self.store, self.batch.id)
        self.counts["seals"] += 1
        self.say("sealer", "the batch is sealed")

    def unseal(self) -> None:
        self.check_seal()
        self.sealed = None
        asked = 0

        def reopen(store: Store) -> None:
            nonlocal asked
            asked += 1
            try:
                store.amend(self.batch.id, to_reopen("because"), actor="sealer")
            except UsageError:  # already open: a retry, because the first call got no answer
                if asked == 1:
                    raise

        self.on_behalf("sealer", reopen)
        self.counts["seals lifted"] += 1
        self.say("sealer", "the batch is open again")

    def check_seal(self) -> None:
        if self.sealed is not None:
            self.sealed.check(self.store)

    def standing(self) -> tuple[BatchMode, SealedState | None]:
        """Return the course of the batch, and its seal."""
        return self.course_there(), self.sealed

    def course_there(self) -> BatchMode:
        """Return the course of the batch in the store."""
        return self.course

    def is_closed(self) -> bool:
        """Return whether the batch is sealed or cancelled in the store: on a bucket that is the case before the caller
        gets the answer."""
        return self.sealed is not None or self.course is BatchMode.CANCELLED

    def is_over(self) -> bool:
        """Return whether nothing is left to do, and nothing can come any more."""
        if self.faulty or self.underway or self.ingesting or self.is_pending():
            return False
        return self.course is BatchMode.CANCELLED or not self.outputs.all_that_do_not_hold()

    def is_pending(self) -> bool:
        return not is_settled(self.store, self.batch.id)

    # -- what must stay true while it happens ------------------------------------------------------------------

    def granted(self, claim: Claim, began: tuple[BatchMode, SealedState | None]) -> None:
        """Check that fences grow for every item, whatever chunk it is in, and that the budget holds. `began` is the
        state of the batch when the claim was made: on a bucket, a claim in transit may still land."""
        fence, (course, sealed) = claim.lease.fence, began
        is_stopped = course is not BatchMode.OPEN and self.course_there() is not BatchMode.OPEN
        if is_stopped or (sealed is not None and sealed is self.sealed):
            raise Violation(f"chunk {claim.lease.chunk} is granted, but the batch is {self.course}")
        if self.tolerance is not None and is_over(self.tolerance, self.store, self.batch.id, self.ended):
            raise Violation(f"chunk {claim.lease.chunk} is granted, though there are more dead letters than tolerated")
        self._check_fences(claim, fence)
        self.check_budget(with_reservations=True)

    def _check_fences(self, claim: Claim, fence: int) -> None:
        for n in range(claim.lo, claim.hi):
            if fence <= self._fences.get(n, 0):
                raise Violation(f"item {n} is granted under fence {fence} after fence {self._fences[n]}")
            self._fences[n] = fence

    def note_maker(self, item: Item, fence: int) -> None:
        """Note that an overtaken owner may have made an output, which no other process could know."""
        if self.plan.adopts and self.chunk_of(item.n).fence != fence:
            self.late_makers.add((int(item.n), item.place.stage, item.place.epoch))

    def changed(self) -> None:
        """Note that something was written: in a watched world, everything is counted."""
        if self.plan.watched:
            check_sums(self.store, self.batch.id)

    def check_budget(self, *, with_reservations: bool) -> None:
        """Check that spending, and at every grant also the reservations of live owners, stays within the budget of the
        batch. An owner that outlived its lease may spend its reservation: that much is in flight, and not more."""
        if self.cap is None:
            return
        plan, now, chunks = self.plan, self.clock.now, self.store.chunks(self.batch.id)
        used = sum(chunk.counts.spent for chunk in chunks)
        if with_reservations:
            used += sum(chunk.reserved for chunk in chunks if chunk.pending and self.is_live(chunk, now))
        in_flight = most_per_item(plan) * self.store.batches()[0].admitted
        most = self.cap + (in_flight if plan.pause or plan.missed_beat or plan.unsent else 0)
        if used > most:
            raise Violation(f"{used} units are spent or reserved, but the budget is {self.cap}")

    def check_told(self, commit: Commit, *, landed: bool) -> None:
        """Check that the store remembers its answer."""
        if landed != (commit.id in self.landed):
            raise Violation(
                f"the store says that commit {commit.id.hex()} {'landed' if landed else 'did not land'}, which is false"
            )

    def check_denied(self, who: str, commit: Commit) -> None:
        """Check that nothing landed if the store says so."""
        self.check_told(commit, landed=False)

    def check_held(self, process: Any, granted: Sequence[Claim]) -> None:
        """Check that a process holds the chunks that it was granted."""

    def chunk_of(self, n: int) -> Chunk:
        """Return the only chunk that has an item."""
        found = [chunk for chunk in self.store.chunks(self.batch.id) if chunk.lo <= n < chunk.hi]
        if len(found) != 1:
            raise Violation(f"item {n} is in {len(found)} chunks")
        return found[0]

    def row_of(self, n: int) -> StoredItem:
        """Return the only item of that number in the store."""
        found = self.store.items(self.batch.id, lo=n, hi=n + 1)
        if len(found) != 1:
            raise Violation(f"there are {len(found)} items of number {n}")
        return found[0]

    def checkpoint_of(self, n: ItemNo) -> Checkpoint:
        """Return the durable checkpoint of a partition."""
        there = self.store.checkpoints(self.batch.id, lo=n, hi=n + 1)
        return there[0] if there else Checkpoint(n, 0, b"")

    def is_live(self, chunk: Chunk, now: float) -> bool:
        """Return whether a chunk has an owner that may be at work."""
        return chunk.owner is not None and chunk.expires >= now and chunk.owner not in self.dead

    def about_to_run(self, item: Item, now: float) -> Effect:
        """Check that an item is due, that its checkpoint is durable, and that its input is the output of the stage
        before."""
        n, place = int(item.n), item.place
        early, is_due = place.due - now, place.due <= max(now, self.clock.now)
        if not is_due and (early <= place.wait or not place.wait):  # longer than planned: a clock was set back
            raise Violation(f"item {n} is run {early:.3f} s before it is due")
        row = self.row_of(n)
        if (row.place.epoch, row.place.stage) < (place.epoch, place.stage):
            raise Violation(
                f"item {n} is run at stage {place.stage} of epoch {place.epoch}, its checkpoint is at {row.place.stage}"
            )
        if self.outputs.broken and self.outputs.rests_on_broken(n, place.stage):
            raise Violation(f"item {n} is run at stage {place.stage}, but an output it depends on does not hold")
        expected = self._inputs.setdefault((n, place.stage), row.payload if not place.stage else item.input)
        if item.input != expected:
            raise Violation(f"item {n} gets {item.input!r} at stage {place.stage}, but should get {expected!r}")
        self._inputs[n, place.stage + 1] = output_of(item)
        effect = (n, place.stage, place.epoch)
        self.runs[effect] += 1
        return effect
