"""What the threads of a run tell each other: stop, and why; whose turn it is; when time is up."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.core.limits import FLIGHT_SECONDS

if TYPE_CHECKING:
    from holdfast.runtime.working.assignment import Assignment

ENDED_FOR_GOOD = ("cancelled", "until")
"""Reasons after which what is left of the batch is cancelled."""
TURN_SECONDS = 1.0
"""The longest the reading of a source waits for handlers to come to a pause."""
LOOK_SECONDS = 0.05
"""And how often it looks whether the run is told to stop meanwhile."""
SHARE_OF_TIME = 0.25
"""At most this share of a run's time is given up to end it cleanly before its deadline."""


class Control:
    """The state of a run that all of its threads may look at."""

    def __init__(self, workers: int, deadline: float | None = None) -> None:
        self.workers = workers
        self.deadline = deadline
        self.ingested = False
        self.comparing = False
        """Stored payloads may be replaced by those of the source: the worker gives back what it holds, and claims
        nothing."""
        self.reading = False
        """The calling thread is inside the user's source, where an interrupt may break in."""
        self.reason = ""
        """Why the run stops: interrupted, deadline, budget, paused, cancelled, until, tolerance, breaker, away,
        trouble."""
        self.trouble: BaseException | None = None
        self.signalled = False
        """A signal told the run to stop: what fails from now on may have got the same signal."""
        self.at_once = False
        self.stopping = False
        self.crowded = True
        """Handlers on other threads need the interpreter all the time; taken for granted until they are known."""
        self.inline: Assignment | None = None
        """Items that the committing thread runs itself: it cannot see meanwhile that the run stops."""
        self._began = time.monotonic()
        self._stopped_at = 0.0
        self._room = threading.Event()
        self._room.set()
        self._still = threading.Event()

    def stop(self, reason: str, *, at_once: bool = False) -> None:
        """Start nothing new; with `at_once`, do not wait for what is in flight either. A signal may call this in the
        middle of anything, so it takes no lock: plain values only."""
        if not self.reason:
            self._stopped_at = time.monotonic()
            self.reason = reason
        self.at_once = self.at_once or at_once
        self._cut_inline()  # before a handler sees that the run stops, and once more: a slice may just have begun
        self.stopping = True
        self._cut_inline()

    def _cut_inline(self) -> None:
        work = self.inline
        if work is not None:
            work.cut = True

    def fail(self, error: BaseException) -> None:
        """Stop because of an error that the caller shall see."""
        if self.trouble is None:
            self.trouble = error
        self.stop("trouble")

    def watch_deadline(self, slowest: float) -> None:
        """Stop early enough for what is in flight; at the deadline itself, at once. A batch that is over does not wait
        for ever either."""
        now = time.monotonic()
        if self.reason in ENDED_FOR_GOOD and now >= self._stopped_at + FLIGHT_SECONDS:
            self.at_once = True
        if self.deadline is None:
            return
        early = min(SHARE_OF_TIME * (self.deadline - self._began), 0.05 + 1.5 * slowest)
        if now >= self.deadline:
            self.stop("deadline", at_once=True)
        elif now >= self.deadline - early:
            self.stop("deadline")

    def ends_within(self, seconds: float) -> bool:
        """Return whether the deadline comes before something that takes so long could end."""
        return self.deadline is not None and time.monotonic() + seconds > self.deadline

    def patience(self, longest: float) -> float:
        """How long a thread may wait without missing the deadline."""
        if self.deadline is None:
            return longest
        return min(longest, max(0.0, self.deadline - time.monotonic()))

    @contextmanager
    def stilled(self, wake: Callable[[], None], is_over: Callable[[], bool]) -> Iterator[None]:
        """Around what replaces stored payloads: the worker comes to a rest first, so that no attempt of this run is
        under way whose result and cost could not be recorded. `is_over`: there is no worker to wait for."""
        self._still.clear()
        before, self.comparing = self.comparing, True
        wake()
        while not (is_over() or self.at_once) and not self._still.wait(LOOK_SECONDS):
            pass
        try:
            yield
        finally:
            self.comparing = before

    def rest(self) -> None:
        """The worker holds nothing, and claims nothing while payloads are compared."""
        self._still.set()

    def pace_ingest(self, busy: bool) -> None:
        """Handlers that run on the committing thread and the reading of the source share one interpreter: they take
        turns instead of getting in each other's way."""
        if busy and not self.stopping:
            self._room.clear()
        else:
            self._room.set()

    def give_way(self, seconds: float) -> None:
        """Called by the ingester after it worked for so long: where handlers on other threads settle thousands of
        items a second, or may do so, it leaves them half of the time."""
        if self.crowded and not self.stopping:
            time.sleep(min(seconds, LOOK_SECONDS))

    def wait_for_turn(self) -> None:
        """Called by the ingester before it admits a group."""
        patience = time.monotonic() + TURN_SECONDS
        while not self.stopping and not self._room.wait(LOOK_SECONDS) and time.monotonic() < patience:
            pass
