"""What a worker keeps an eye on beside its items: whether the batch was paused or cancelled, whether its end has come,
whether it has more dead letters than is tolerated. It looks now and then, never for each item."""

import time

from holdfast.core import course
from holdfast.core.course import Barrier
from holdfast.core.model import Want
from holdfast.runtime.working.control import Control
from holdfast.runtime.working.lane import Slots
from holdfast.stores.base import Idle, Store

LOOK_SECONDS = 0.5
"""How often the batch is looked at."""
TOGETHER = 8
"""Items that may travel together however few of them may still die."""


class Watch:
    """Tells the run to stop when the batch shall not continue."""

    def __init__(self, store: Store, name: str, control: Control, want: Want, slots: Slots) -> None:
        self._store, self._name, self._control, self._want, self._slots = store, name, control, want, slots
        self._looked_at = 0.0
        self.after_burial()

    def look(self) -> None:
        """Now and then, see whether the batch may continue."""
        if time.monotonic() - self._looked_at >= LOOK_SECONDS:
            self.look_now()

    def look_now(self) -> None:
        self._looked_at = time.monotonic()
        batch = self._store.batch(self._name)
        if batch is not None and (why := course.barrier(batch, self._store.now())):
            self._control.stop(why)

    def refused(self, idle: Idle) -> None:
        """A claim was answered with nothing: perhaps for good."""
        if idle.why is not None and (idle.why is not Barrier.BUDGET or not idle.held):
            self._control.stop(idle.why)

    def would_exceed(self, more: int) -> bool:
        """Whether so many more dead letters would be too many."""
        tolerance = self._want.tolerance
        batch = self._store.batch(self._name) if tolerance is not None else None
        if tolerance is None or batch is None:
            return False
        dead = sum(chunk.counts.dead for chunk in self._store.chunks(self._want.batch))
        return course.is_exceeded(tolerance, dead + more, batch)

    def after_burial(self) -> None:
        """Items were buried: count all that are dead, whoever buried them, before anything else is begun."""
        tolerance = self._want.tolerance
        batch = self._store.batch(self._name) if tolerance is not None else None
        if tolerance is None or batch is None:
            return
        dead = sum(chunk.counts.dead for chunk in self._store.chunks(self._want.batch))
        if course.is_exceeded(tolerance, dead, batch):
            self._control.stop("tolerance")
        self._slots.most = max(TOGETHER, course.spare(tolerance, dead, batch))
