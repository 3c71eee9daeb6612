"""The role of the worker: one thread has it at any time, and it moves on when a handler keeps that thread.

Handlers that were quick run on the thread that commits. Should one of them turn out slow, a spare thread takes the role
over: it commits what is finished, gives back what was not begun, and continues the loop. The slow handler ends on the
thread it began on, as an ordinary assignment; that thread hands in the outcome and leaves.

Who wins is decided by the assignment: either its slice is answered, or it is split, never both.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.limits import SLOW_SECONDS, WATCH_SECONDS
from holdfast.runtime.engine.assignment import Assignment, clock

if TYPE_CHECKING:
    from holdfast.runtime.engine.stages import StageDriver


class HandedOn(BaseException):
    """Leaves the loop on a thread that lost the role: another one does whatever there is to be done."""


class Slice(NamedTuple):
    """Items that the driver runs itself, and since when."""

    driver: "StageDriver"
    work: Assignment
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
        """Whether the loop came to its end, on whichever thread."""
        return self._ended.wait(seconds)

    @property
    def is_over(self) -> bool:
        return self._ended.is_set() or not self.is_begun

    # -- for the driver -----------------------------------------------------------------------------------------------

    @property
    def is_mine(self) -> bool:
        return self._driver == threading.get_ident()

    def lend(self, driver: "StageDriver", work: Assignment) -> None:
        """The driver begins a slice: from now on the spare thread may take the role."""
        self._slice = Slice(driver, work, clock())
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
            if found is None or clock() - found.began < SLOW_SECONDS:
                continue
            answer = found.work.split()
            if answer is not None:
                self._slice = self._spare = None
                driver, work = found.driver, found.work
                return lambda: driver.handed_on(work, answer)
        return None
