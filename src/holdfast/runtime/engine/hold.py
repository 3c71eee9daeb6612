"""A claimed chunk, sans-IO: its ready, waiting, running and finished items, and the commits that follow.

Nothing here reads a clock, waits, draws random numbers or calls a store. `now` is the time by the clock of the store,
`moment` the time by the monotonic clock of this process; both are passed in, as are the ids of commits.
"""

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from holdfast.core import lease as leases
from holdfast.core import settle as settling
from holdfast.core.errors import StoreError
from holdfast.core.lease import Trial
from holdfast.core.limits import SUSPECT
from holdfast.core.model import START, Checkpoint, Claim, Commit, Item, ItemNo, Lease
from holdfast.core.outcome import Deferred, Failed, Outcome
from holdfast.core.retry import Policy, wait_is_over
from holdfast.core.settle import NOTHING, Holder, Reached, Settled

GRID = 0.1
"""Releases wait on a grid of this share of the wait, so that items due at about the same time are claimed together."""

NONE: frozenset[int] = frozenset()
_get_n = attrgetter("n")


class ReadyQueue:
    """Items that are ready for a stage, in groups that became ready at the same moment."""

    __slots__ = ("_lots", "count")

    def __init__(self) -> None:
        self._lots: deque[tuple[float, deque[Item]]] = deque()
        self.count = 0

    def add(self, item: Item, at: float) -> None:
        if not self._lots or self._lots[-1][0] != at:
            self._lots.append((at, deque()))
        self._lots[-1][1].append(item)
        self.count += 1

    def extend(self, items: Sequence[Item], at: float) -> None:
        """Add a group of its own."""
        self._lots.append((at, deque(items)))
        self.count += len(items)

    def put_back(self, items: Sequence[Item], at: float) -> None:
        """Put items that were taken and not run back at the front."""
        self._lots.appendleft((at, deque(items)))
        self.count += len(items)

    def items(self) -> list[Item]:
        """Return all items, in the order in which they are taken."""
        return [item for _, lot in self._lots for item in lot]

    def take(self, most: int) -> tuple[float, list[Item]]:
        """Return up to so many items, and the moment at which the first became ready."""
        taken: list[Item] = []
        at = self._lots[0][0]
        while self._lots and len(taken) < most:
            lot = self._lots[0][1]
            if len(lot) <= most - len(taken):
                taken.extend(lot)
                self._lots.popleft()
            else:
                taken.extend(lot.popleft() for _ in range(most - len(taken)))
        self.count -= len(taken)
        return at, taken


class Saving(NamedTuple):
    """A checkpoint of a partition for which its handler waits; only the driver of the handler knows the waiter."""

    reached: Reached
    waiter: Any


class Hold:
    """One claim, from grant to release."""

    def __init__(self, claim: Claim, stages: int, seconds: float, reserve: int = 0, *, moment: float,
                 guarded: frozenset[int] = NONE, adopting: frozenset[int] = NONE) -> None:  # fmt: skip
        self.claim = claim
        self.lease: Lease = claim.lease
        self.seconds = seconds
        self.stages = stages
        self.version = claim.version
        self.reserve = reserve
        self.left = claim.pending
        """Items of the claim that are not settled, loaded or not."""
        self.unread = claim.pending
        """Items of the claim that were not read into memory."""
        self.loaded_to: ItemNo | None = None
        self.loaded_all = False
        self.ready: list[ReadyQueue] = [ReadyQueue() for _ in range(stages)]
        self.resumed: set[int] = set()
        """Numbers of items whose stage has an adopter and which another grant may have tried, or this one without
        counting an attempt."""
        self.unasked: deque[Item] = deque()
        """Items whose inputs a verifier must check first."""
        self.known_lost: dict[int, str] = {}
        """Why the input of some items is known to be gone."""
        self._guarded = guarded
        self._adopters = adopting
        self._adopting = adopting if claim.lease.fence > 1 else NONE
        self._to_ask: set[int] = set()
        self.waiting: list[tuple[float, int, Item]] = []
        self._woken_at = 0.0
        self.running = 0
        self.outcomes: list[Outcome] = []
        self.in_write: list[Outcome] = []
        """The outcomes in the commit under way."""
        self.withheld = 0
        """Deaths that are not among the outcomes yet."""
        self.checkpoints: dict[int, Checkpoint] = {}
        """The checkpoints of partitions as they were when their items were loaded."""
        self.savings: list[Saving] = []
        """Checkpoints that are not written yet, for which their handlers wait."""
        self.reached: list[Reached] = []
        """The positions of partitions whose items are among the outcomes."""
        self.progressed_at = moment
        self.lost = False
        trial = leases.trial_of(claim.pending, claim.blame)
        self.exclusive = trial is not Trial.NONE
        """It is a suspect of which nothing was committed yet: nothing else is held beside it."""
        self.alone = self.exclusive and claim.pending == 1
        """It is the last item of a suspect: nothing else runs beside it."""
        self.on_trial = trial is Trial.ON_TRIAL
        """It is a lone suspect that was not started yet."""
        self.is_condemned = trial is Trial.CONDEMNED
        """Its last item has killed its process too often to be run again."""
        self.suspects: dict[int, int] = {}
        """Numbers of items under which worker processes died, and how many died: while there are any, items travel
        alone."""

    # -- its state ------------------------------------------------------------------------------------------------

    @property
    def holder(self) -> Holder:
        return Holder(
            batch=self.claim.batch,
            uid=self.claim.uid,
            chunk=self.lease.chunk,
            number=self.claim.number,
            fence=self.lease.fence,
            grant=self.lease.grant,
            version=self.version,
            seconds=self.seconds,
        )

    @property
    def is_accused(self) -> bool:
        """Whether a new process died under one of its items. The item is then tried with nothing beside it, because
        processes can also kill each other when memory is short."""
        return bool(self.suspects) and max(self.suspects.values()) > 1

    @property
    def ready_count(self) -> int:
        count = 0
        for queue in self.ready:  # called for every hold in every round: a generator would take twice as long
            count += queue.count
        return count

    @property
    def is_idle(self) -> bool:
        """Whether nothing is ready, running or finished: there are only waiting items, if any."""
        return not (self.is_busy or self.outcomes or self.withheld)

    @property
    def is_busy(self) -> bool:
        """Whether something is running, ready, or not read yet."""
        return not self.loaded_all or bool(self.running or self.unasked or self.ready_count)

    @property
    def is_ripe(self) -> bool:
        """Whether there is something to commit."""
        return bool(self.outcomes or self.savings)

    def is_kept(self, moment: float, grace: float) -> bool:
        """Return whether its lease is renewed: not if it is lost, nor if nothing was committed for the grace period."""
        return not self.lost and moment - self.progressed_at <= grace

    def reserved(self) -> int:
        return self.reserve * self.left

    # -- items come in --------------------------------------------------------------------------------------------

    def read(self, items: Sequence[Item]) -> None:
        """Note a page that was read from the store."""
        self.unread -= len(items)
        if items:
            self.loaded_to = items[-1].n
        self.loaded_all = not items or self.unread <= 0

    def take_in(self, items: Sequence[Item], now: float, moment: float, *, from_store: bool) -> None:
        """Sort items into ready and waiting."""
        if from_store and 0 in self._adopting:
            self.resumed.update(item.n for item in items if item.place.stage == 0)
        if items and from_store and all(item.place is START for item in items):
            self.ready[0].extend(items, moment)
            return
        for item in items:
            if from_store:
                self._mark(item)
            if not wait_is_over(item.place.due, item.place.wait, now):
                heapq.heappush(self.waiting, (item.place.due, item.n, item))
                continue
            self._sort_in(item, moment)

    def _mark(self, item: Item) -> None:
        """Note how an item must be treated that another grant may have tried."""
        if item.place.stage in self._guarded:
            self._to_ask.add(item.n)
        if item.place.stage in self._adopting:
            self.resumed.add(item.n)

    def _sort_in(self, item: Item, moment: float) -> None:
        if item.n in self._to_ask:
            self.unasked.append(item)
        else:
            self.ready[item.place.stage].add(item, moment)

    def clear_for_stage(self, items: Sequence[Item], moment: float) -> None:
        """Make items ready whose inputs were verified."""
        for item in items:
            self._to_ask.discard(item.n)
            self.ready[item.place.stage].add(item, moment)

    def condemn(self, items: Sequence[Item]) -> None:
        """Bury items without running them: their process died too often while they were handled alone."""
        self.outcomes += [self.condemned(item) for item in items]

    def condemned(self, item: Item) -> Failed:
        text = killed_text(self.claim.blame - SUSPECT)
        return Failed(item, False, "killed_process", text, 0.0, 0.0, 0.0)

    def wake(self, now: float, moment: float) -> None:
        """Move items whose wait is over to the ready ones."""
        while self.waiting and self.waiting[0][0] <= now:
            self._sort_in(heapq.heappop(self.waiting)[2], moment)
        if now < self._woken_at:  # the clock was set back
            over = [each for each in self.waiting if wait_is_over(each[0], each[2].place.wait, now)]
            self.waiting = [each for each in self.waiting if each not in over]
            heapq.heapify(self.waiting)
            for _, _, item in over:
                self._sort_in(item, moment)
        self._woken_at = now

    def park(self, stage: int, until: float) -> None:
        """Let items that are ready for a paused stage wait until it continues."""
        while self.ready[stage].count:
            for item in self.ready[stage].take(self.ready[stage].count)[1]:
                heapq.heappush(self.waiting, (until, item.n, item))

    def next_due(self) -> float | None:
        return self.waiting[0][0] if self.waiting else None

    # -- items are run --------------------------------------------------------------------------------------------

    def take(self, stage: int, most: int) -> tuple[float, list[Item], bool]:
        """Take up to so many ready items to run them. Return the moment at which the first became ready, the items, and
        whether another grant may have tried some of them."""
        at, items = self.ready[stage].take(most)
        resumed = False
        if self.resumed:
            resumed = any(item.n in self.resumed for item in items)
            self.resumed.difference_update(item.n for item in items)
        self.running += len(items)
        return at, items, resumed

    def put_back(self, stage: int, items: Sequence[Item], at: float, *, resumed: bool) -> None:
        """Put items that were handed over and not begun back at the front."""
        if items:
            self.ready[stage].put_back(items, at)
            if resumed:
                self.resumed.update(item.n for item in items)

    def suspect(self, numbers: Iterable[int]) -> None:
        """Note that a process died under one of these items."""
        for n in numbers:
            self.suspects[n] = self.suspects.get(n, 0) + 1

    def acquit(self, numbers: Iterable[int]) -> None:
        """Note that these items came back."""
        for n in numbers:
            self.suspects.pop(n, None)

    def drop_ready(self) -> None:
        """Forget items that were not started: they are pending in the store."""
        self.unasked.clear()
        for queue in self.ready:
            if queue.count:
                queue.take(queue.count)

    # -- commits ----------------------------------------------------------------------------------------------------

    def settle(self, policies: Sequence[Policy], now: float) -> Settled:
        """Return what follows from the finished outcomes; they go into the next write."""
        self.in_write, self.outcomes = self.outcomes, []
        return settling.settle(self.in_write, stages=self.claim.end, policies=policies, now=now)

    def commit(self, settled: Settled, commit_id: bytes, *, makers: Sequence[str] = (), release: bool = False,
               due: float = 0.0) -> Commit:  # fmt: skip
        """Return the commit of what was settled and reached. It gives the chunk back with its last item, or if
        `release` is set, to be claimed again from `due` on."""
        self.left -= settled.counts.settled
        return settling.commit(self.holder, settled, commit_id=commit_id, release=release or self.left == 0, due=due,
                               reserved=self.reserved(), reached=self.all_reached(), makers=makers)  # fmt: skip

    def start(self, commit_id: bytes) -> Commit:
        """Return the commit that must be durable before an item on trial runs."""
        self.on_trial = False
        return settling.start(self.holder, commit_id=commit_id)

    def release(self, commit_id: bytes, due: float = 0.0) -> Commit:
        """Return the commit that gives the chunk back, to be claimed from `due` on."""
        return settling.commit(self.holder, NOTHING, commit_id=commit_id, release=True, due=due)

    def release_due(self, now: float) -> float:
        """Return when the chunk may be claimed again: on a grid, so that waiting items return in groups."""
        due = self.next_due()
        if due is None or self.left > len(self.waiting):
            return 0.0
        grid = max(1.0, (due - now) * GRID)
        return now + -(-(due - now) // grid) * grid

    def written(self, moment: float) -> None:
        """Note that a commit landed."""
        self.version += 1
        self.progressed_at = moment

    def landed(self, settled: Settled, now: float, moment: float) -> int:
        """Continue with items that are durable; they are not suspects any more. Return how many rows its partitions
        advanced."""
        self.written(moment)
        self.exclusive = self.alone = False
        if self._adopters:
            self._note_deferred()
        self.in_write = []
        rows = self._came_further()
        if self.left:
            self.take_in(settled.onward, now, moment, from_store=False)
        return rows

    def _note_deferred(self) -> None:
        """Remember items that were tried without counting an attempt: the adopter is asked before the next try."""
        self.resumed.update(outcome.item.n for outcome in self.in_write if isinstance(outcome, Deferred)
                            and outcome.item.place.stage in self._adopters)  # fmt: skip

    def all_reached(self) -> list[Reached]:
        """Return how far the partitions have come, to be written."""
        return [*(saving.reached for saving in self.savings), *self.reached]

    def _came_further(self) -> int:
        rows = 0
        for each in self.all_reached():
            before = self.checkpoints.get(each.item.n)
            rows += each.rows - (before.rows if before is not None else 0)
            self.checkpoints[each.item.n] = each.checkpoint
        self.reached.clear()
        return rows

    def answered_savings(self) -> list[Saving]:
        """Return the savings whose handlers may be answered now, and forget them."""
        savings, self.savings = self.savings, []
        return savings

    # -- its lease --------------------------------------------------------------------------------------------------

    def renewed(self, lease: Lease) -> None:
        self.lease = lease

    def lose(self) -> None:
        """Note that another process has the chunk now: nothing of it may be committed."""
        self.lost = True


def killed_text(times: int, what: str = "its process") -> str:
    """Return why an item or row that never ended is buried."""
    return f"{what} died {times} times while it was handled alone"


def trouble_of(outcome: Outcome, then: str = "run again; nothing was buried for it") -> StoreError | None:
    """Return the error that ends the work if the machine is in trouble; the item stays where it is."""
    if isinstance(outcome, Deferred) and outcome.trouble:
        return StoreError(f"{outcome.why}, then {then}")
    return None


def adjoining(holds: Iterable[Hold], most: int) -> Iterator[list[Hold]]:
    """Group the holds that have unread items: if their chunks follow one another, their first pages can be read as one,
    of up to so many items."""
    some: list[Hold] = []
    room = 0
    for hold in holds:
        if hold.loaded_all:
            continue
        if some and not (some[-1].claim.hi == hold.claim.lo and some[-1].loaded_to is hold.loaded_to is None
                         and hold.unread <= room):  # fmt: skip
            yield some
            some = []
        room = (room if some else most) - hold.unread
        some.append(hold)
    if some:
        yield some


def by_hold(items: Sequence[Item], holds: Sequence[Hold]) -> Iterator[Sequence[Item]]:
    """Split a page among the holds it was read for: each gets the items that were pending at its grant. An item
    redriven since then is for the next grant."""
    start = 0
    for hold in holds:
        end = bisect_left(items, hold.claim.hi, lo=start, key=_get_n)
        yield items[start : min(end, start + hold.unread)]
        start = end
