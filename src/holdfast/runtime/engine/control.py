"""The control of a run, through which its threads ask each other to stop, and why, take turns, and learn when time is
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
"""Reasons after which the pending items of the batch are cancelled."""
TURN_SECONDS = 1.0
"""The longest time the reading of a source waits for handlers to pause."""
LOOK_SECONDS = 0.05
"""How often it checks meanwhile whether the run is asked to stop."""


class Control(Orders):
    """The state of a run or a tick that all of its threads can read."""

    def __init__(self, workers: int, deadline: float | None = None) -> None:
        super().__init__(workers, Deadline.of(deadline, time.monotonic()))
        self.reading = False
        """The calling thread is inside the user's source, where an interrupt may break in."""
        self.reason = ""
        """Why the run stops: interrupted, deadline, budget, paused, cancelled, until, tolerance, breaker, away,
        trouble."""
        self.trouble: BaseException | None = None
        self.admit_early: Callable[[], bool] = lambda: False
        """Admits the items that a source has given while it keeps the calling thread waiting for more."""
        self.inline: Assignment | None = None
        """Items that the committing thread runs itself: it cannot see meanwhile that the run stops."""
        self._stopped_at = 0.0
        self._room = threading.Event()
        self._room.set()
        self._still = threading.Event()
        self._told: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Wakes a waiting thread; a signal handler may put something into it at any point."""

    def stop(self, reason: str, *, at_once: bool = False) -> None:
        """Start nothing new; with `at_once`, do not wait for items in flight either. A signal handler may call this at
        any point, so it takes no lock: plain values only."""
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
        """Stop because of an error that is raised to the caller."""
        if self.trouble is None:
            self.trouble = error
        self.stop("trouble")

    def watch_deadline(self, slowest: float | None = None) -> None:
        """Stop early enough for items in flight; at the deadline itself, at once. A batch whose end has come does not
        wait forever either."""
        now = time.monotonic()
        if self.reason in ENDED_FOR_GOOD and now >= self._stopped_at + FLIGHT_SECONDS:
            self.at_once = True
        stops, at_once = self.deadline.stops(now, slowest)
        if stops:
            self.stop("deadline", at_once=at_once)

    def drains(self) -> bool:
        """Return whether to stop at the next checkpoint: the run was asked to stop, or its time is nearly up."""
        if not self.stopping:
            self.watch_deadline()
        return self.stopping

    def ends_within(self, seconds: float) -> bool:
        """Return whether the deadline comes before something that takes so long could end."""
        return not self.deadline.has_time(time.monotonic(), seconds)

    def wait(self, seconds: float) -> bool:
        """Wait for so long; return False if the run is asked to stop, or there is not enough time."""
        if self.stopping or self.ends_within(seconds):
            return False
        with suppress(queue.Empty):
            self._told.get(timeout=seconds)
        return not self.stopping

    @contextmanager
    def stilled(self, wake: Callable[[], None], is_over: Callable[[], bool]) -> Iterator[None]:
        """Wrap code that replaces stored payloads: the worker rests first, so that no attempt of this run is under way
        whose result and cost could not be recorded. `is_over`: there is no worker to wait for."""
        before, self.comparing = self.comparing, True
        self._still.clear()  # after `comparing`: a late rest() comes from a worker that begins nothing
        wake()
        while not (is_over() or self.at_once) and not self._still.wait(LOOK_SECONDS):
            pass
        try:
            yield
        finally:
            self.comparing = before

    def rest(self) -> None:
        """Note that the worker holds nothing, and claims nothing while payloads are compared."""
        self._still.set()

    def pace_ingest(self, busy: bool) -> None:
        """Let handlers on the committing thread and the reading of the source take turns: they share one interpreter,
        and would slow each other down."""
        if busy and not self.stopping:
            self._room.clear()
        else:
            self._room.set()

    def give_way(self, seconds: float) -> None:
        """Pause after the ingester worked for so long: if handlers on other threads settle thousands of items a second,
        or may do so, it leaves them half of the time."""
        if self.crowded and not self.stopping:
            time.sleep(min(seconds, LOOK_SECONDS))

    def wait_for_turn(self) -> None:
        """Wait before the ingester admits a group."""
        patience = time.monotonic() + TURN_SECONDS
        while not self.stopping and not self._room.wait(LOOK_SECONDS) and time.monotonic() < patience:
            pass


HEEDED = (signal.SIGINT, signal.SIGTERM)
CTRL_C = 130
"""The exit code of a program ended by Ctrl-C, as in a shell."""
SIGNAL_LOOK_SECONDS = 0.005


class BrokenOff(BaseException):
    """Breaks out of the user's source; never leaves the run."""


class Interrupts:
    """The signals of one run or tick, while it handles them."""

    def __init__(
        self, control: Control, wake: Callable[[], None] = lambda: None, signals: Signals = "raise", *,
        once: bool = False,
    ) -> None:  # fmt: skip
        self._control, self._wake, self._signals = control, wake, signals
        self._once = once
        """After the first signal, the previous handlers are restored."""
        self._before: Mapping[int, Any] = {}
        self._listens = False
        self._breaks_in = False
        """The next SIGINT was raised by `break_in`."""
        self.any_came = False
        self.ctrl_c = False
        """One of the signals was SIGINT."""

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Handle signals, if that is wanted. Only the main thread of a process receives signals: a run on another
        thread is stopped by other means."""
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
        """Stop the run; called at any point, so it takes no lock."""
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
        """Interrupt the calling thread, which may still wait inside the user's source: the worker has ended."""
        main = threading.main_thread()
        if self._control.reading and threading.current_thread() is not main and self._listens:
            self._breaks_in = True
            signal.pthread_kill(main.ident or 0, signal.SIGINT)

    def pass_on(self, batch: str, why: str, report: Any) -> None:
        """Raise Ctrl-C once everything has ended: it was meant for the caller as well."""
        if self.ctrl_c and self._signals == "raise":
            raise interrupted(f"batch {batch!r} was interrupted: {why}", report)


@contextmanager
def handled(on_signal: Callable[[int, Any], None]) -> Iterator[Mapping[int, Any]]:
    """Handle both signals, and restore the previous handlers at the end."""
    before: dict[int, Any] = {number: signal.signal(number, on_signal) for number in HEEDED}
    try:
        yield before
    finally:
        _restore(before)


def _restore(before: Mapping[int, Any]) -> None:
    """Restore the previous handlers."""
    for number, handler in before.items():
        signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def interrupted(message: str, report: Any) -> Interrupted:
    """Return the exception that Ctrl-C raises after the drain. Uncaught, it ends the program with 130: Python does that
    for its own KeyboardInterrupt only, so the hook for uncaught exceptions is extended."""
    if not isinstance(sys.excepthook, _Uncaught):
        sys.excepthook = _Uncaught(sys.excepthook)
    return Interrupted(message, report)


class _Uncaught:
    """The hook for uncaught exceptions: shows them as before, and ends an interrupted program with the exit code of
    Ctrl-C."""

    def __init__(self, before: Callable[..., Any]) -> None:
        self._before = before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        self._before(kind, error, trace)
        if isinstance(error, Interrupted):
            raise SystemExit(CTRL_C)


# -- failures that come with a signal -------------------------------------------------------------------------------


def await_stop(error: BaseException, stopping: Callable[[], bool]) -> None:
    """Wait a moment for a signal, if a program that the handler ran died of one that terminals and service managers
    send to every process at once: the failure is then recognized as an interrupt."""
    if died_of_a_signal(error):
        end = time.monotonic() + SIGNAL_SECONDS
        while not stopping() and time.monotonic() < end:
            time.sleep(SIGNAL_LOOK_SECONDS)


async def await_stop_async(error: BaseException, stopping: Callable[[], bool]) -> None:
    """Do the same on the event loop, which stays free."""
    if died_of_a_signal(error):
        end = time.monotonic() + SIGNAL_SECONDS
        while not stopping() and time.monotonic() < end:  # noqa: ASYNC110 - a flag that another thread sets
            await asyncio.sleep(SIGNAL_LOOK_SECONDS)


# -- the role of the worker -----------------------------------------------------------------------------------------
#
# One thread has it at any time, and it moves to another when a handler blocks that thread. Handlers that were quick run
# on the committing thread. If one turns out to be slow, a spare thread takes the role over: it commits finished
# outcomes, gives back items that were not begun, and continues the loop. The slow handler ends on its thread as an
# ordinary assignment; that thread hands in the outcome and leaves. The assignment decides which thread wins: either its
# slice is answered, or it is split, never both.


class HandedOn(BaseException):
    """Leaves the loop on a thread that lost the role: another thread continues."""


class Slice(NamedTuple):
    """Items that the driver runs itself, and the moment they began."""

    driver: "StageDriver"
    work: "Assignment"
    began: float


class Role:
    """The role of the worker: runs its loop on one thread after another."""

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
        """Return whether the loop has ended, on any thread."""
        return self._ended.wait(seconds)

    @property
    def is_over(self) -> bool:
        return self._ended.is_set() or not self.is_begun

    # -- for the driver -----------------------------------------------------------------------------------------------

    @property
    def is_mine(self) -> bool:
        return self._driver == threading.get_ident()

    def lend(self, driver: "StageDriver", work: "Assignment") -> None:
        """Begin a slice: from now on the spare thread may take the role."""
        self._slice = Slice(driver, work, time.monotonic())
        if self._spare is None:
            self._spare = threading.Thread(target=self._stand_by, name="holdfast-spare", daemon=True)
            with suppress(RuntimeError):  # the system cannot start more threads: then none can take over
                self._spare.start()

    def keep(self) -> None:
        """End a slice; no thread took the role meanwhile."""
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
        """Watch the slices of the driver; at the first slow one, become the driver."""
        try:
            taken = self._watch()
        except BaseException as error:  # noqa: BLE001 - any error: without this thread, it would not be reported
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
