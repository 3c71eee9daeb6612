"""Items of one stage on their way through a pool and back."""

import math
import threading
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from holdfast.core.envelope import Envelope
from holdfast.core.model import Item
from holdfast.runtime.define.context import Context
from holdfast.runtime.engine.exchange import Answer, Portion
from holdfast.runtime.engine.leases import HeldLease
from holdfast.runtime.sinks.base import Identity

clock = time.monotonic

NOTHING: Mapping[int, Identity] = MappingProxyType({})
NO_ENVELOPES: Mapping[int, Envelope] = MappingProxyType({})

PATIENCE = 0.05
"""Items travel together if they take a few milliseconds. After this time they are slower than measured, and those that
were not begun are left."""
LATCH_SECONDS = 1.0
"""How often a waiting thread checks whether its work was given up."""


class Assignment(Portion):
    """A portion that the threads of a run work on: items on their way through an executor and back."""

    __slots__ = (
        "_answered",
        "_lock",
        "_told",
        "abandoned",
        "came_back",
        "contexts",
        "ctx",
        "cut",
        "envelopes",
        "lease",
        "patience",
        "replaces",
        "staging",
        "started",
        "told",
        "valid",
    )

    def __init__(
        self, stage: int, items: list[Item], fence: int, ready_at: float, hold: Any, resumed: bool = False
    ) -> None:
        super().__init__(stage, items, fence, ready_at, hold, resumed)
        self.lease: HeldLease | None = None
        """The lease it runs under, as all threads see it; None in a worker process, which has none."""
        self.started = 0.0
        """When the current item was begun; 0 while there is none."""
        self.ctx: Context | None = None
        """The context of the current item, if its stage takes one: its cost is known even if the handler hangs."""
        self.contexts: dict[int, Context] = {}
        """The same for coroutines, by the number of their item."""
        self.staging: set[int] = set()
        """Items whose output is being written to a file, or has been."""
        self.told: set[int] = set()
        """Items that were given up and whose cost is recorded without an output."""
        self.came_back = 0
        """Items that the worker has received back."""
        self.abandoned = False
        """Given up by the worker: any later result is ignored."""
        self.replaces: Mapping[int, Identity] = NOTHING
        """Number -> the older file of an item that was sent back, for a worker process, which has no records to ask."""
        self.envelopes: Mapping[int, Envelope] = NO_ENVELOPES
        """Number -> the envelope of an item, for a worker process."""
        self.patience = PATIENCE
        self.valid = math.inf
        """When its lease expires unless it is renewed. Ignored if it had expired when this was handed over: leases may
        be shorter than the store takes to renew them."""
        self.cut = False
        """No further item is begun: the run stops, or the assignment was split."""
        self._told: int | None = None
        """How many outcomes had been handed in when it was split."""
        self._answered = False
        self._lock = threading.Lock()

    @property
    def is_vain(self) -> bool:
        """Whether no later result can be committed: it was given up, or its lease was lost."""
        return self.abandoned or (self.lease is not None and self.lease.lost)

    def may_stage(self, item: Item) -> bool:
        """Return whether the output of an item may become a file, which carries its cost. It may not once the cost was
        recorded without the output: the cost would be recorded twice."""
        with self._lock:
            if item.n not in self.told:
                self.staging.add(item.n)
            return item.n in self.staging

    def context_of(self, item: Item) -> Context | None:
        """Return the context of an item that is given up, for its cost; None once a file carries that cost. While an
        item is being prepared, the context of the previous one may still be here."""
        ctx = self.contexts.get(item.n, self.ctx)
        with self._lock:
            if ctx is None or ctx.key != item.key or item.n in self.staging:
                return None
            self.told.add(item.n)
        return ctx

    @property
    def is_split(self) -> bool:
        return self._told is not None

    @property
    def is_answered(self) -> bool:
        """Whether everything it owes was handed in, or is on its way."""
        return self._answered

    def split(self) -> Answer | None:
        """Take the finished outcomes and the items that were not begun away from a slow handler; return None if it has
        answered or was split before. The running thread checks `cut` before each item: at most the item after the
        finished ones is running."""
        with self._lock:
            if self._answered or self.is_split:
                return None
            self.cut = True
            self._told = told = len(self.outcomes)
        return Answer(self, self.outcomes[:told], self.items[told + 1 :])

    def answer(self) -> Answer | None:
        """Return everything that came of it, or after a split the rest; None if nothing is left."""
        with self._lock:
            self._answered = True
        first, last = self.owed
        if first == last:
            return None
        return Answer(self, self.outcomes[first:], self.items[len(self.outcomes) : last])

    @property
    def owed(self) -> tuple[int, int]:
        """Return the first item that was not handed in, and the end of its items."""
        return (0, len(self.items)) if self._told is None else (self._told, min(self._told + 1, len(self.items)))

    def is_slow(self, since: float) -> bool:
        """Return whether other items wait behind an item that was begun before `since`."""
        return len(self.items) > 1 and 0.0 < self.started < since and not (self.is_split or self.abandoned)

    def is_late(self, now: float) -> bool:
        """Return whether its lease expired before it was begun: another process may have its items by now."""
        return self.lease is not None and now > max(self.valid, self.lease.lease.expires)


class Latch:
    """A place where the thread of a handler waits until its checkpoint is durable; the committing thread answers."""

    __slots__ = ("_landed", "_lock", "_work")

    def __init__(self, work: Assignment) -> None:
        self._work = work
        self._landed = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self) -> bool:
        """Return whether the checkpoint is durable; False if the lease was lost or the run ends without it."""
        while not self._lock.acquire(timeout=LATCH_SECONDS):
            if self._work.is_vain:
                return False
        return self._landed

    def answer(self, landed: bool) -> None:
        """Let the thread of the handler continue."""
        self._landed = landed
        self._lock.release()
