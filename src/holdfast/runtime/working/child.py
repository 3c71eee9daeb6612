"""A process that we start, the line to it, and how it settles in.

It is started afresh, never forked: a fork would share the open database.
"""

import ctypes
import multiprocessing
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

FAREWELL_SECONDS = 5.0
"""What a process may take to end by itself, with what the program does at its exit."""
LOOK_SECONDS = 0.5
"""How often it is looked whether a process that says nothing lives."""
GONE = (EOFError, OSError)
"""What is raised on the line to a process that has died."""

FOR_THE_PARENT = {signal.SIGINT, signal.SIGTERM}
"""What asks a program to end, which its parent hears too."""

_spawning = multiprocessing.get_context("spawn")


def stop_sign() -> Any:
    """Tells processes that the run stops. It has no lock, which would stay locked for ever if its holder died."""
    return _spawning.RawValue(ctypes.c_bool, False)


# -- here ---------------------------------------------------------------------------------------------------------


class Child:
    """One process and the line to it, in the hands of one thread."""

    def __init__(self, serve: Callable[..., None], *args: Any) -> None:
        """`serve` gets its end of the line and the rest. It is not a daemon, which could have no children itself."""
        self._line, theirs = _spawning.Pipe()
        self._news = select.poll()
        self._news.register(self._line, select.POLLIN)
        self._process = _spawning.Process(target=_live, args=(serve, theirs, *args), name="holdfast worker")
        self._how = ""
        """How it ended, once it has."""
        try:
            self._start()
        except BaseException:
            self._line.close()
            raise
        finally:
            theirs.close()

    def _start(self) -> None:
        """Ctrl-C at a terminal goes to every process there is, and so does SIGTERM of a supervisor that ends a whole
        group: one that has not settled in is spared."""
        resource_tracker.ensure_running()  # which lets both through when it starts
        before = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_PARENT)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def is_dead(self) -> bool:
        return bool(self._how)

    def tell(self, message: bytes) -> None:
        self._line.send_bytes(message)

    def has_news(self, seconds: float) -> bool:
        """Whether it says something in that time. Its death is looked at, too: something may keep the line open."""
        if self._news.poll(seconds * 1000):
            return True
        if self._process.is_alive():
            return False
        if self._news.poll(0):
            return True
        raise EOFError

    def hear(self) -> bytes:
        """What it says next."""
        while not self.has_news(LOOK_SECONDS):
            pass
        return self._line.recv_bytes()

    def kill(self) -> None:
        """At once; from any thread."""
        with suppress(ValueError, AttributeError):  # it was ended in this moment
            self._process.kill()

    def end(self, seconds: float | None = None) -> str:
        """Let it come to its end, in that time; say how that was."""
        if not self._how:
            self._line.close()
            if self._process.is_alive():
                self._process.join(FAREWELL_SECONDS if seconds is None else seconds)
                self._process.kill()
                self._process.join()
            self._how = _in_words(self._process.exitcode)
            with suppress(ValueError):  # somebody else has waited for it, and its end is not known
                self._process.close()
        return self._how


def _in_words(code: int | None) -> str:
    """How a process ended."""
    if code is None:
        return "nobody knows what"
    if code >= 0:
        return f"exit status {code}"
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


# -- there --------------------------------------------------------------------------------------------------------


def _live(serve: Callable[..., None], line: Connection, *args: Any) -> None:
    _settle_in(line)
    try:
        serve(line, *args)
    finally:
        for stream in (sys.stdout, sys.stderr):  # a thread of the user's may keep the process from ending by itself
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()


def _settle_in(line: Connection) -> None:
    """Ctrl-C and a request to end are for its parent, which lets it finish; when its parent dies, so does it. What it
    forks has no part in that, and does not keep the line open after its death."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave_to_parent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_PARENT)

    def part() -> None:
        line.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    os.register_at_fork(after_in_child=part)
    threading.Thread(target=_end_with_parent, name="holdfast-orphan", daemon=True).start()


def _leave_to_parent(*_: object) -> None:
    """A handler, because what is ignored would be ignored by the programs that handlers start, too."""


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        while os.getppid() == parent.pid:  # one that it forked may outlive it, and hide its end
            parent.join(1.0)
        os._exit(1)
