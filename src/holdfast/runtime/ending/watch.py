"""What a worker keeps an eye on beside its items: whether the batch was paused or cancelled, whether its end has come,
whether it has more dead letters than is tolerated. It looks now and then, never for each item."""

import time
from collections.abc import Iterator, Sequence

from holdfast.core import course, journal, window
from holdfast.core.model import Chunk, Course, Want
from holdfast.runtime.working.control import Control
from holdfast.runtime.working.lane import Slots
from holdfast.stores.base import Idle, Store, newest_entries

LOOK_SECONDS = 0.5
"""How often the batch is looked at."""
TOGETHER = 8
"""Items that may travel together however few of them may still die."""
WINDOW_SECONDS = 0.25
"""The least time between two looks at the last items."""


class Watch:
    """Tells the run to stop when the batch shall not continue."""

    def __init__(self, store: Store, name: str, control: Control, want: Want, slots: Slots) -> None:
        self._store, self._name, self._control, self._want, self._slots = store, name, control, want, slots
        self._looked_at = self._window_at = 0.0
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
        if idle.course is Course.CANCELLED:
            self._control.stop("cancelled")
        elif idle.ended:
            self._control.stop("until")
        elif idle.course is Course.PAUSED:
            self._control.stop("paused")
        elif idle.exceeded:
            self._control.stop("tolerance")

    def before_claim(self) -> None:
        """The share of dead letters among the last items, where that is limited, is judged before more is begun."""
        tolerance = self._want.tolerance
        if tolerance is None or tolerance.window is None or tolerance.share is None:
            return
        if time.monotonic() - self._window_at < WINDOW_SECONDS:
            return
        self._window_at = time.monotonic()
        found = window.tally(_last_fates(self._store, self._store.chunks(self._want.batch), tolerance.window),
                             tolerance.window)  # fmt: skip
        if window.is_exceeded(found, tolerance.share, tolerance.window):
            self._control.stop("tolerance")

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
        self.before_claim()


def _last_fates(store: Store, chunks: Sequence[Chunk], size: int) -> list[window.Fate]:
    """Enough of the newest entries to know what became of the last items, over all chunks. A chunk that was last
    touched before the oldest of them cannot matter, nor can one that comes after it."""
    found: list[window.Fate] = []
    for chunk in sorted(chunks, key=lambda chunk: -chunk.touched_at):
        if len(found) >= size and sorted(found, reverse=True)[size - 1].at > chunk.touched_at:
            break
        found += window.fates(_back(store, chunk, size))
    return found


def _back(store: Store, chunk: Chunk, size: int) -> Iterator[tuple[float, journal.Body]]:
    """The newest entries of a chunk, newest first, until they have settled so many items."""
    settled = 0
    for entry in newest_entries(store, chunk.id, chunk.seq):
        body = journal.decode_body(entry.body)
        if isinstance(body, journal.Checkpointed):
            settled += sum(len(group.items) for group in body.advanced if group.finished) + len(body.attempts)
        yield journal.decode_header(entry.head).at, body
        if settled >= size:
            return
