"""What the thread of a handler posts to whoever commits: a checkpoint, after which it goes on once that is durable."""

import threading
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.settle import Reached

if TYPE_CHECKING:
    from holdfast.runtime.working.assignment import Assignment

LOOK_SECONDS = 1.0
"""How often whoever waits looks whether its work was given up."""


class Saving:
    """Made by the thread of a handler, answered by the worker."""

    __slots__ = ("_latch", "landed", "reached", "work")

    def __init__(self, work: "Assignment", reached: Reached) -> None:
        self.work = work
        self.reached = reached
        self.landed = False
        self._latch = threading.Lock()
        self._latch.acquire()

    def wait(self) -> bool:
        """Whether it is durable; not, where the lease was lost or the run ends without it."""
        while not self._latch.acquire(timeout=LOOK_SECONDS):
            if self.work.is_vain:
                return False
        return self.landed

    def answer(self, landed: bool) -> None:
        """Let the handler's thread go on."""
        self.landed = landed
        self._latch.release()


class Refusal(NamedTuple):
    """What is posted instead where no range can be run, as the scan is written or installed: the run ends with that."""

    work: "Assignment"
    error: BaseException
