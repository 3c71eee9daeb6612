"""A claimed chunk in the hands of a worker: its lease, its items in memory, and what is finished but not committed."""

import heapq
import os
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from holdfast.core import lease as leases
from holdfast.core import retry
from holdfast.core.model import START, Checkpoint, Claim, Item, ItemNo, Lease
from holdfast.core.outcome import Outcome
from holdfast.core.settle import Holder, Reached
from holdfast.runtime.working.assignment import Assignment
from holdfast.runtime.working.saving import Saving

GRID = 0.1
"""Releases wait on a grid of this share of the wait, so that items due at about the same time are claimed together."""


NONE: frozenset[int] = frozenset()
_get_n = attrgetter("n")


class Lots:
    """Items that are ready for a stage, in lots that became ready at the same moment."""

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
        """A lot of its own."""
        self._lots.append((at, deque(items)))
        self.count += len(items)

    def put_back(self, items: Sequence[Item], at: float) -> None:
        """Items that were taken and not run come first again."""
        self._lots.appendleft((at, deque(items)))
        self.count += len(items)

    def take(self, most: int) -> tuple[float, list[Item]]:
        """Up to so many items, and the moment the first of them became ready."""
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


class Holding:
    """One claim, from grant to release."""

    def __init__(self, claim: Claim, stages: int, seconds: float, reserve: int, *,
                 guarded: frozenset[int] = NONE, adopting: frozenset[int] = NONE) -> None:  # fmt: skip
        self.claim = claim
        self.lease: Lease = claim.lease
        self.seconds = seconds
        self.version = claim.version
        self.reserve = reserve
        self.left = claim.pending
        """Items of the claim that are not settled, loaded or not."""
        self.unread = claim.pending
        """Of them, those that were not read into memory."""
        self.loaded_to: ItemNo | None = None
        self.loaded_all = False
        self.ready: list[Lots] = [Lots() for _ in range(stages)]
        self.resumed: set[int] = set()
        """Numbers of items that another grant may have tried, where their stage has an adopter."""
        self.unasked: deque[Item] = deque()
        """Items that the gate has to pass first."""
        self.known_lost: dict[int, str] = {}
        """Why the input of some of them is known to be gone."""
        self._guarded = guarded
        self._adopting = adopting if claim.lease.fence > 1 else NONE
        self._to_ask: set[int] = set()
        self.waiting: list[tuple[float, int, Item]] = []
        self._woken_at = 0.0
        self.running = 0
        self.outcomes: list[Outcome] = []
        self.in_write: list[Outcome] = []
        """Those that the commit under way speaks of."""
        self.withheld = 0
        """Deaths that are not among the outcomes yet."""
        self.checkpoints: dict[int, Checkpoint] = {}
        """How far its items had been read when they were loaded, where they are ranges of a source."""
        self.savings: list[Saving] = []
        """Checkpoints that are not written yet, and whose handlers wait for that."""
        self.reached: list[Reached] = []
        """How far items had come that are among the outcomes."""
        self.progressed_at = time.monotonic()
        self.lost = False
        self.exclusive = leases.is_suspect(claim.blame)
        """A suspect, of which nothing was committed yet: nothing else is held beside it."""
        self.alone = self.exclusive and claim.pending == 1
        """The last item of a suspect: nothing else is run beside it."""
        self.on_trial = leases.on_trial(claim.pending, claim.blame)
        """A lone suspect that was not started yet."""
        self.suspects: dict[int, int] = {}
        """Numbers of items under which worker processes died, and how many: while there are any, items travel alone."""

    @property
    def holder(self) -> Holder:
        claim = self.claim
        return Holder(
            batch=claim.batch,
            chunk=self.lease.chunk,
            fence=self.lease.fence,
            version=self.version,
            seconds=self.seconds,
        )

    @property
    def is_accused(self) -> bool:
        """Whether a process that was new died under one of its items: it is tried with nothing beside it, because
        processes may also die of each other, where memory is short."""
        return bool(self.suspects) and max(self.suspects.values()) > 1

    def suspect(self, numbers: Iterable[int]) -> None:
        """A process died under one of these."""
        for n in numbers:
            self.suspects[n] = self.suspects.get(n, 0) + 1

    def acquit(self, numbers: Iterable[int]) -> None:
        """These came back."""
        for n in numbers:
            self.suspects.pop(n, None)

    @property
    def ready_count(self) -> int:
        count = 0
        for lots in self.ready:  # asked of every holding in every round: a generator would take twice as long
            count += lots.count
        return count

    @property
    def is_idle(self) -> bool:
        """Nothing is ready, running or finished: only waiting items, if any."""
        return not (self.is_busy or self.outcomes or self.withheld)

    @property
    def is_busy(self) -> bool:
        """Something is running, ready, or not read yet."""
        return bool(self.running or self.unasked or self.ready_count) or not self.loaded_all

    def read(self, items: Sequence[Item]) -> None:
        """A page came from the store."""
        self.unread -= len(items)
        if items:
            self.loaded_to = items[-1].n
        self.loaded_all = not items or self.unread <= 0

    @property
    def is_ripe(self) -> bool:
        """Whether something is to be committed."""
        return bool(self.outcomes or self.savings)

    def take_in(self, items: Sequence[Item], now: float, *, from_store: bool) -> None:
        """Sort items into ready and waiting."""
        at = time.perf_counter()
        if from_store and 0 in self._adopting:
            self.resumed.update(item.n for item in items if item.place.stage == 0)
        if items and from_store and all(item.place is START for item in items):
            self.ready[0].extend(items, at)
            return
        for item in items:
            if from_store:
                self._mark(item)
            if not retry.wait_is_over(item.place.due, item.place.wait, now):
                heapq.heappush(self.waiting, (item.place.due, item.n, item))
                continue
            self._sort_in(item, at)

    def _mark(self, item: Item) -> None:
        """What has to be known of an item that others may have worked on."""
        if item.place.stage in self._guarded:
            self._to_ask.add(item.n)
        if item.place.stage in self._adopting:
            self.resumed.add(item.n)

    def _sort_in(self, item: Item, at: float) -> None:
        if item.n in self._to_ask:
            self.unasked.append(item)
        else:
            self.ready[item.place.stage].add(item, at)

    def clear_for_stage(self, items: Sequence[Item]) -> None:
        """What these rest on holds."""
        at = time.perf_counter()
        for item in items:
            self._to_ask.discard(item.n)
            self.ready[item.place.stage].add(item, at)

    def put_back(self, work: Assignment, items: Sequence[Item]) -> None:
        """Items that were handed over and not begun come first again."""
        if items:
            self.ready[work.stage].put_back(items, work.ready_at)
            if work.resumed:
                self.resumed.update(item.n for item in items)

    def wake(self, now: float) -> None:
        """Move items whose wait is over to the ready ones."""
        while self.waiting and self.waiting[0][0] <= now:
            self._sort_in(heapq.heappop(self.waiting)[2], time.perf_counter())
        if now < self._woken_at:  # the clock was set back
            over = [each for each in self.waiting if retry.wait_is_over(each[0], each[2].place.wait, now)]
            self.waiting = [each for each in self.waiting if each not in over]
            heapq.heapify(self.waiting)
            for _, _, item in over:
                self._sort_in(item, time.perf_counter())
        self._woken_at = now

    def park(self, stage: int, until: float) -> None:
        """What is ready for a stage that pauses waits like what is not due yet."""
        while self.ready[stage].count:
            for item in self.ready[stage].take(self.ready[stage].count)[1]:
                heapq.heappush(self.waiting, (until, item.n, item))

    def next_due(self) -> float | None:
        return self.waiting[0][0] if self.waiting else None

    def release_due(self, now: float) -> float:
        """When the chunk may be claimed again: on a grid, so that waiting items come back in groups."""
        due = self.next_due()
        if due is None or self.left > len(self.waiting):
            return 0.0
        grid = max(1.0, (due - now) * GRID)
        return now + -(-(due - now) // grid) * grid

    def clear(self) -> None:
        """Something of it was committed: it is not a suspect any more."""
        self.exclusive = self.alone = False
        self.in_write = []

    def all_reached(self) -> list[Reached]:
        """How far its items have come that are ranges, to be written down."""
        return [*(saving.reached for saving in self.savings), *self.reached]

    def came_further(self) -> int:
        """What its items reached is durable. Returns how many rows that is beyond what was durable before."""
        rows = 0
        for each in self.all_reached():
            before = self.checkpoints.get(each.item.n)
            rows += each.rows - (before.rows if before is not None else 0)
            self.checkpoints[each.item.n] = each.checkpoint
        self.reached.clear()
        self.answer_savings(landed=True)
        return rows

    def drop_ready(self) -> None:
        """Forget what was not started: it is pending in the store."""
        self.unasked.clear()
        for lots in self.ready:
            if lots.count:
                lots.take(lots.count)

    def reserved(self) -> int:
        return self.reserve * self.left

    def lose(self) -> None:
        """Somebody else has the chunk now: nothing of it may be committed."""
        self.lost = True

    def answer_savings(self, *, landed: bool) -> None:
        """Tell the handlers that wait what became of their checkpoints."""
        savings, self.savings = self.savings, []
        for saving in savings:
            saving.answer(landed)

    @staticmethod
    def new_commit_id() -> bytes:
        return os.urandom(16)


def adjoining(holdings: Iterable[Holding], most: int) -> Iterator[list[Holding]]:
    """Group those of which something was not read: where chunks stand one behind the other, their first pages can be
    read as one, of up to so many items."""
    some: list[Holding] = []
    room = 0
    for holding in holdings:
        if holding.loaded_all:
            continue
        if some and not (some[-1].claim.hi == holding.claim.lo and some[-1].loaded_to is holding.loaded_to is None
                         and holding.unread <= room):  # fmt: skip
            yield some
            some = []
        room = (room if some else most) - holding.unread
        some.append(holding)
    if some:
        yield some


def by_holding(items: Sequence[Item], holdings: Sequence[Holding]) -> Iterator[Sequence[Item]]:
    """Split a page among the holdings it was read for: each gets what was pending at its grant. One that was redriven
    since is for the next grant."""
    start = 0
    for holding in holdings:
        end = bisect_left(items, holding.claim.hi, lo=start, key=_get_n)
        yield items[start : min(end, start + holding.unread)]
        start = end
