"""The control of a run, through which its threads tell each other to stop, and why, whose turn it is, and when time is
up; the signals that reach it; and the role of the worker, which one thread has at any time."""

import asyncio
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.core.errors import Interrupted
from holdfast.core.limits import FLIGHT_SECONDS, SIGNAL_SECONDS, SLOW_SECONDS, WATCH_SECONDS
from holdfast.core.retry import died_of_a_signal
from holdfast.runtime.define.options import Signals
from holdfast.runtime.engine.exchange import Deadline, Orders

if TYPE_CHECKING:
    from holdfast.runtime.engine.assignment import Assignment
    from holdfast.runtime.engine.stages import StageDriver


ENDED_FOR_GOOD = ("cancelled", "until")
"""Reasons after which what is left of the batch is cancelled."""
TURN_SECONDS = 1.0
"""The longest the reading of a source waits for handlers to come to a pause."""
LOOK_SECONDS = 0.05
"""And how often it looks whether the run is told to stop meanwhile."""


class Control(Orders):
    """The state of a run, or of a tick, that all of its threads may look at."""

    def __init__(self, workers: int, deadline: float | None = None) -> None:
        super().__init__(workers, Deadline.of(deadline, time.monotonic()))
        self.reading = False
        """The calling thread is inside the user's source, where an interrupt may break in."""
        self.reason = ""
        """Why the run stops: interrupted, deadline, budget, paused, cancelled, until, tolerance, breaker, away,
        trouble."""
        self.trouble: BaseException | None = None
        self.admit_early: Callable[[], bool] = lambda: False
        """Admits what a source has given that keeps the calling thread waiting for more."""
        self.inline: Assignment | None = None
        """Items that the committing thread runs itself: it cannot see meanwhile that the run stops."""
        self._stopped_at = 0.0
        self._room = threading.Event()
        self._room.set()
        self._still = threading.Event()
        self._told: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Wakes whoever waits; a signal may put something into it in the middle of anything."""

    def stop(self, reason: str, *, at_once: bool = False) -> None:
        """Start nothing new; with `at_once`, do not wait for what is in flight either. A signal may call this in the
        middle of anything, so it takes no lock: plain values only."""
        is_first = not self.reason
        if is_first:
            self._stopped_at = time.monotonic()
            self.reason = reason
        self.at_once = self.at_once or at_once
        self._cut_inline()  # before a handler sees that the run stops, and once more: a slice may just have begun
        self.stopping = True
        self._cut_inline()
        if is_first:
            self._told.put(None)

    def _cut_inline(self) -> None:
        work = self.inline
        if work is not None:
            work.cut = True

    def fail(self, error: BaseException) -> None:
        """Stop because of an error that the caller shall see."""
        if self.trouble is None:
            self.trouble = error
        self.stop("trouble")

    def watch_deadline(self, slowest: float | None = None) -> None:
        """Stop early enough for what is in flight; at the deadline itself, at once. A batch that is over does not wait
        for ever either."""
        now = time.monotonic()
        if self.reason in ENDED_FOR_GOOD and now >= self._stopped_at + FLIGHT_SECONDS:
            self.at_once = True
        stops, at_once = self.deadline.stops(now, slowest)
        if stops:
            self.stop("deadline", at_once=at_once)

    def drains(self) -> bool:
        """Return whether to go no further than the next checkpoint: it was told to stop, or its time is nearly up."""
        if not self.stopping:
            self.watch_deadline()
        return self.stopping

    def ends_within(self, seconds: float) -> bool:
        """Return whether the deadline comes before something that takes so long could end."""
        return not self.deadline.has_time(time.monotonic(), seconds)

    def wait(self, seconds: float) -> bool:
        """Wait for so long; return False where it is told to stop, or there is no time for that."""
        if self.stopping or self.ends_within(seconds):
            return False
        with suppress(queue.Empty):
            self._told.get(timeout=seconds)
        return not self.stopping

    @contextmanager
    def stilled(self, wake: Callable[[], None], is_over: Callable[[], bool]) -> Iterator[None]:
        """Around what replaces stored payloads: the worker comes to a rest first, so that no attempt of this run is
        under way whose result and cost could not be recorded. `is_over`: there is no worker to wait for."""
        before, self.comparing = self.comparing, True
        self._still.clear()  # after that: a rest from before is noted late only by a worker that begins nothing now
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


HEEDED = (signal.SIGINT, signal.SIGTERM)
CTRL_C = 130
"""How a program ends that Ctrl-C ended, as shells tell it."""
SIGNAL_LOOK_SECONDS = 0.005


class BrokenOff(BaseException):
    """Breaks out of the user's source; never leaves the run."""


class Interrupts:
    """The signals of one run or tick, as long as it listens to them."""

    def __init__(
        self, control: Control, wake: Callable[[], None] = lambda: None, signals: Signals = "raise", *,
        once: bool = False,
    ) -> None:  # fmt: skip
        self._control, self._wake, self._signals = control, wake, signals
        self._once = once
        """After the first one, they do again what they did before."""
        self._before: Mapping[int, Any] = {}
        self._listens = False
        self._breaks_in = False
        """The next SIGINT is ours."""
        self.any_came = False
        self.ctrl_c = False
        """One of them was SIGINT."""

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Listen, where that is wanted. Only the main thread of a process hears signals: a run on another one is
        stopped by other means."""
        if self._signals == "ignore" or threading.current_thread() is not threading.main_thread():
            yield
            return
        with handled(self.on_signal) as self._before:
            self._listens = True
            try:
                yield
            finally:
                self._listens = False

    def on_signal(self, number: int, frame: Any) -> None:
        """Stop; it comes in the middle of anything, so it takes no lock."""
        if self._breaks_in:
            self._breaks_in = False
        else:
            self._control.stop("interrupted", at_once=self.any_came)
            self._control.signalled = self.any_came = True
            self.ctrl_c = self.ctrl_c or number == signal.SIGINT
            self._wake()
            if self._once:
                _restore(self._before)
        if self._control.reading:
            self._control.reading = False
            raise BrokenOff

    def break_in(self) -> None:
        """The worker is at its end while the calling thread may still wait inside the user's source."""
        main = threading.main_thread()
        if self._control.reading and threading.current_thread() is not main and self._listens:
            self._breaks_in = True
            signal.pthread_kill(main.ident or 0, signal.SIGINT)

    def pass_on(self, batch: str, why: str, report: Any) -> None:
        """Once all has ended: Ctrl-C was meant for the caller, too."""
        if self.ctrl_c and self._signals == "raise":
            raise interrupted(f"batch {batch!r} was interrupted: {why}", report)


@contextmanager
def handled(on_signal: Callable[[int, Any], None]) -> Iterator[Mapping[int, Any]]:
    """Have both signals handled, and give them back to whoever had them before."""
    before: dict[int, Any] = {number: signal.signal(number, on_signal) for number in HEEDED}
    try:
        yield before
    finally:
        _restore(before)


def _restore(before: Mapping[int, Any]) -> None:
    """Let signals do what they did before."""
    for number, handler in before.items():
        signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def interrupted(message: str, report: Any) -> Interrupted:
    """Return what Ctrl-C raises after the drain. Uncaught, it ends the program with 130: Python does that for its own
    KeyboardInterrupt only, so the hook for uncaught exceptions is extended."""
    if not isinstance(sys.excepthook, _Uncaught):
        sys.excepthook = _Uncaught(sys.excepthook)
    return Interrupted(message, report)


class _Uncaught:
    """Shows an uncaught exception as before, and ends an interrupted program with the code of Ctrl-C."""

    def __init__(self, before: Callable[..., Any]) -> None:
        self._before = before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        self._before(kind, error, trace)
        if isinstance(error, Interrupted):
            raise SystemExit(CTRL_C)


# -- failures that come with a signal -------------------------------------------------------------------------------


def await_stop(error: BaseException, stopping: Callable[[], bool]) -> None:
    """Where a program that the handler ran died of a signal that terminals and service managers send to every process
    at once, ours is on its way: wait a moment for it, so that the failure is seen for what it is."""
    if died_of_a_signal(error):
        end = time.monotonic() + SIGNAL_SECONDS
        while not stopping() and time.monotonic() < end:
            time.sleep(SIGNAL_LOOK_SECONDS)


async def await_stop_async(error: BaseException, stopping: Callable[[], bool]) -> None:
    """The same on the event loop, which stays free."""
    if died_of_a_signal(error):
        end = time.monotonic() + SIGNAL_SECONDS
        while not stopping() and time.monotonic() < end:  # noqa: ASYNC110 - a flag that another thread sets
            await asyncio.sleep(SIGNAL_LOOK_SECONDS)


# -- the role of the worker -----------------------------------------------------------------------------------------
#
# One thread has it at any time, and it moves on when a handler keeps that thread. Handlers that were quick run on the
# thread that commits. Should one of them turn out slow, a spare thread takes the role over: it commits what is
# finished, gives back what was not begun, and continues the loop. The slow handler ends on the thread it began on, as
# an ordinary assignment; that thread hands in the outcome and leaves. Who wins is decided by the assignment: either its
# slice is answered, or it is split, never both.


class HandedOn(BaseException):
    """Leaves the loop on a thread that lost the role: another one does whatever there is to be done."""


class Slice(NamedTuple):
    """Items that the driver runs itself, and since when."""

    driver: "StageDriver"
    work: "Assignment"
    began: float


class Role:
    """Runs the loop of a worker on one thread after another."""

    def __init__(self, loop: Callable[[Callable[[], None]], None], *, at_end: Callable[[], None],
                 on_trouble: Callable[[BaseException], None]) -> None:  # fmt: skip
        self._loop, self._at_end, self._on_trouble = loop, at_end, on_trouble
        self._driver = 0
        self._slice: Slice | None = None
        self._spare: threading.Thread | None = None
        self._ended = threading.Event()
        self.is_begun = False

    # -- for the run ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        threading.Thread(target=self._drive, name="holdfast-worker", daemon=True).start()
        self.is_begun = True

    def wait(self, seconds: float) -> bool:
        """Return whether the loop came to its end, on whichever thread."""
        return self._ended.wait(seconds)

    @property
    def is_over(self) -> bool:
        return self._ended.is_set() or not self.is_begun

    # -- for the driver -----------------------------------------------------------------------------------------------

    @property
    def is_mine(self) -> bool:
        return self._driver == threading.get_ident()

    def lend(self, driver: "StageDriver", work: "Assignment") -> None:
        """The driver begins a slice: from now on the spare thread may take the role."""
        self._slice = Slice(driver, work, time.monotonic())
        if self._spare is None:
            self._spare = threading.Thread(target=self._stand_by, name="holdfast-spare", daemon=True)
            with suppress(RuntimeError):  # the system gives no more threads: then nobody can take over
                self._spare.start()

    def keep(self) -> None:
        """The slice is over, and nobody took the role meanwhile."""
        self._slice = None

    # -- the threads --------------------------------------------------------------------------------------------------

    def _drive(self, first: Callable[[], None] = lambda: None) -> None:
        self._driver = threading.get_ident()
        try:
            self._loop(first)
        except HandedOn:
            return
        except BaseException:
            self._end()
            raise
        self._end()

    def _end(self) -> None:
        try:
            self._at_end()
        finally:
            self._ended.set()

    def _stand_by(self) -> None:
        """Watch the slices of the driver; with the first that is slow, be the driver."""
        try:
            taken = self._watch()
        except BaseException as error:  # noqa: BLE001 - whatever it is: with the thread gone, nobody would hear of it
            self._on_trouble(error)
            return
        if taken is not None:
            self._drive(taken)

    def _watch(self) -> Callable[[], None] | None:
        while not self._ended.wait(WATCH_SECONDS):
            found = self._slice
            if found is None or time.monotonic() - found.began < SLOW_SECONDS:
                continue
            answer = found.work.split()
            if answer is not None:
                self._slice = self._spare = None
                driver, work = found.driver, found.work
                return lambda: driver.handed_on(work, answer)
        return None
