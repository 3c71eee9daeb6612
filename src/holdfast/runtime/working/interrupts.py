"""Signals of a run: the first SIGINT or SIGTERM drains it to its next checkpoint, another ends it at once.

After the drain Ctrl-C becomes an exception of the caller, so that a script does not continue behind a run that was
broken off; SIGTERM only ends the run.
"""

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from holdfast.core.errors import Interrupted
from holdfast.core.limits import SIGNAL_SECONDS
from holdfast.core.retry import died_of_a_signal
from holdfast.runtime.define.options import Signals
from holdfast.runtime.working.control import Control

HEEDED = (signal.SIGINT, signal.SIGTERM)
CTRL_C = 130
"""How a program ends that Ctrl-C ended, as shells tell it."""
LOOK_SECONDS = 0.005


class BrokenOff(BaseException):
    """Breaks out of the user's source; never leaves the run."""


class Interrupts:
    """The signals of one run, as long as it listens to them."""

    def __init__(self, control: Control, wake: Callable[[], None], signals: Signals = "raise") -> None:
        self._control, self._wake, self._signals = control, wake, signals
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
        with handled(self.on_signal):
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
        if self._control.reading:
            self._control.reading = False
            raise BrokenOff

    def break_in(self) -> None:
        """The worker is at its end while the calling thread may still wait inside the user's source."""
        main = threading.main_thread()
        if self._control.reading and threading.current_thread() is not main and self._listens:
            self._breaks_in = True
            signal.pthread_kill(main.ident or 0, signal.SIGINT)

    def pass_on(self, report: Any) -> None:
        """Once the run has ended: Ctrl-C was meant for the caller, too."""
        if self.ctrl_c and self._signals == "raise":
            raise interrupted(f"batch {report.batch!r} was interrupted: {report.why}", report)


@contextmanager
def handled(on_signal: Callable[[int, Any], None]) -> Iterator[Mapping[int, Any]]:
    """Have both signals handled, and give them back to whoever had them before, who is told."""
    before: dict[int, Any] = {number: signal.signal(number, on_signal) for number in HEEDED}
    try:
        yield before
    finally:
        give_back(before)


def give_back(before: Mapping[int, Any]) -> None:
    """Let signals do what they did before."""
    for number, handler in before.items():
        signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def interrupted(message: str, report: Any) -> Interrupted:
    """What Ctrl-C raises after the drain. Uncaught, it ends the program with 130: Python does that for its own
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
            time.sleep(LOOK_SECONDS)


async def await_stop_async(error: BaseException, stopping: Callable[[], bool]) -> None:
    """The same on the event loop, which stays free."""
    if died_of_a_signal(error):
        end = time.monotonic() + SIGNAL_SECONDS
        while not stopping() and time.monotonic() < end:  # noqa: ASYNC110 - a flag that another thread sets
            await asyncio.sleep(LOOK_SECONDS)
