"""What signals do to a run: the first SIGINT or SIGTERM drains it to its next checkpoint, another ends it at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.runtime.working.control import Control


class Interrupted(BaseException):
    """Breaks out of the user's source; never leaves the run."""


class Interrupts:
    """The signals of one run, as long as it listens to them."""

    def __init__(self, control: Control, wake: Callable[[], None]) -> None:
        self._control, self._wake = control, wake
        self._listens = False
        self.any_came = False

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Only the main thread of a process hears signals: a run on another one is stopped by other means."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        self._listens = True
        try:
            yield
        finally:
            self._listens = False
            for number, handler in before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def on_signal(self, number: int, frame: Any) -> None:
        self._control.stop("interrupted", at_once=self.any_came)
        self.any_came = True
        self._wake()
        if self._control.reading:
            self._control.reading = False
            raise Interrupted

    def break_in(self) -> None:
        """The worker is at its end while the calling thread may still wait inside the user's source."""
        main = threading.main_thread()
        if self._control.reading and threading.current_thread() is not main and self._listens:
            signal.pthread_kill(main.ident or 0, signal.SIGINT)
