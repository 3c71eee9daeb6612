"""The event loop of the process: one, on its own thread, for all runs; it lasts as long as the process.

An async client belongs to the loop on which it was first used, so with a loop for each run it would be useless after
the first. A loop that a handler blocks for good is abandoned, and the next run gets a new one.
"""

import asyncio
import atexit
import inspect
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger("holdfast.loop")

LAST_SECONDS = 1.0
"""How long the coroutines that are left when the process ends may take to finish."""


class _Thread(threading.local):
    """The state of each thread."""

    is_below = False
    """A coroutine on a loop of Holdfast waits for this thread: if this thread waited for that loop, it would wait
    forever."""


this_thread = _Thread()


class EventLoop:
    """An event loop on its own thread."""

    def __init__(self, *, is_private: bool = False) -> None:
        self.loop = asyncio.new_event_loop()
        self.is_private = is_private
        """Made for one run; otherwise it is, or was, that of the process."""
        self.users = 0
        """The number of runs and calls that have borrowed it."""
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="holdfast-loop", daemon=True)
        self._thread.start()

    def soon(self, function: Callable[..., object], *args: Any) -> None:
        """Have the loop call a function."""
        self.loop.call_soon_threadsafe(function, *args)

    def run(self, coroutine: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        """Return the result of a coroutine, run on the loop. After so many seconds, or when the wait is interrupted, it
        is cancelled."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result(seconds)
        except BaseException:
            future.cancel()
            raise

    def turns(self, seconds: float) -> bool:
        """Return whether it turns within that time: a coroutine that blocks prevents that."""
        turned = threading.Event()
        self.soon(turned.set)
        return turned.wait(seconds)

    def close(self) -> None:
        """Cancel everything that is left on it, and end its thread; a blocked loop does not end."""
        if not self.turns(LAST_SECONDS):
            return
        with suppress(TimeoutError):
            self.run(_wind_up(), LAST_SECONDS)
        self._is_ending = True
        self.soon(self.loop.stop)
        self._thread.join(LAST_SECONDS)

    def _run(self) -> None:
        this_thread.is_below = True
        asyncio.set_event_loop(self.loop)
        while not self._is_ending:
            try:
                self.loop.run_forever()
            except (KeyboardInterrupt, SystemExit) as error:  # from a coroutine: the others are not affected
                log.warning("a coroutine raised %s on the event loop, which continues", type(error).__name__)
        self.loop.close()


async def _wind_up() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for each in left:
        each.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


class _SharedLoop:
    """The loop of this process, once there is one."""

    lock = threading.Lock()
    home: EventLoop | None = None


def shared() -> EventLoop:
    """Return the loop of this process."""
    with _SharedLoop.lock:
        if _SharedLoop.home is None:
            _SharedLoop.home = EventLoop()
        return _SharedLoop.home


def borrow(*, private: bool = False) -> EventLoop:
    """Return the loop for a run: that of the process, or a new one if the run was begun by a coroutine on a loop of
    Holdfast that waits for it. Call `give_back` at the end."""
    home = EventLoop(is_private=True) if private or this_thread.is_below else shared()
    with _SharedLoop.lock:
        home.users += 1
    return home


def give_back(home: EventLoop) -> None:
    """Close a loop that was made for one run; that of the process stays."""
    with _SharedLoop.lock:
        home.users -= 1
    if home.is_private:
        home.close()


def abandon(home: EventLoop) -> None:
    """Abandon a blocked loop: the next user gets a new one."""
    with _SharedLoop.lock:
        if _SharedLoop.home is home:
            _SharedLoop.home = None


class Loan:
    """The loop of one run, for all its threads: borrowed when first needed, but chosen where the run began."""

    def __init__(self) -> None:
        self.is_below = this_thread.is_below
        self.used: EventLoop | None = None
        """The loop, if it was needed."""
        self._lock = threading.Lock()

    @property
    def home(self) -> EventLoop:
        with self._lock:
            if self.used is None:
                self.used = borrow(private=self.is_below)
            return self.used

    def lose(self) -> EventLoop:
        """Abandon a blocked loop, and return it."""
        home, self.used = self.home, None
        abandon(home)
        return home

    def give_back(self) -> None:
        home, self.used = self.used, None
        if home is not None:
            give_back(home)


def call(function: Callable[..., Any], *args: Any, loan: Loan | None = None) -> Any:
    """Call a function of the user; a coroutine function is awaited on the loop, which may be that of a run."""
    if not (inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)):
        return function(*args)
    if loan is not None:
        return loan.home.run(function(*args))
    home = borrow()
    try:
        return home.run(function(*args))
    finally:
        give_back(home)


def _forget() -> None:
    """Forget the loop in a forked child, which does not have its thread."""
    _SharedLoop.lock = threading.Lock()
    _SharedLoop.home = None
    this_thread.is_below = False


def _end() -> None:
    """End the loop with the process. A run that was abandoned on its thread ends with it: if its handlers were
    cancelled, that would look as if they had failed."""
    if _SharedLoop.home is not None and not _SharedLoop.home.users:
        _SharedLoop.home.close()


os.register_at_fork(after_in_child=_forget)
atexit.register(_end)
