"""Where handlers run: what every pool does, and the pool of threads.

Each pool takes an assignment and puts it on the queue of finished ones. Threads are daemons: a handler that hangs
cannot keep the process from ending.
"""

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from holdfast.core.errors import UsageError
from holdfast.core.model import Item
from holdfast.runtime.working.assignment import Answer, Assignment
from holdfast.runtime.working.runner import StageRunner

Finished = queue.SimpleQueue[Any]
"""Of `Answer`, `Broken`, `Tried`, `Unable`, or None (wake up)."""

Todo = tuple[StageRunner, Assignment]


class Unable(NamedTuple):
    """Nothing can be run: no process can be had, or none finds the pipeline; or what went wrong in the pool itself."""

    error: str | BaseException
    answer: Answer | None = None
    """What came of the assignment that met it, where that is known: then the run ends once the others have ended."""

    def trouble(self) -> BaseException:
        """What ends the run."""
        if isinstance(self.error, BaseException):
            return self.error
        return UsageError(
            f"worker processes cannot start, or cannot find the pipeline ({self.error}): put "
            '`if __name__ == "__main__":` around run(), and define the pipeline at the top of an importable file'
        )


class Broken(NamedTuple):
    """A process died under an assignment, or an executor failed."""

    work: Assignment
    error: object
    suspect: Item | None = None
    """What it died of, as far as can be told; without one, each of its items may be it."""
    final: bool = False
    """The pool cannot be made again: it was the user's."""


class Pool(Protocol):
    """Runs assignments of one kind of stage."""

    def submit(self, runner: StageRunner, work: Assignment) -> None: ...

    def abandon(self, work: Assignment) -> None: ...

    def give_back(self) -> None: ...

    def close(self) -> None: ...


class Hands(ABC):
    """Threads of ours that take assignments, started as they are needed."""

    def __init__(self, size: int, finished: Finished) -> None:
        self._size = size
        self._finished = finished
        self._todo: queue.SimpleQueue[Todo | None] = queue.SimpleQueue()
        self._open: set[Assignment] = set()
        """Handed over, and neither finished nor given up."""
        self._count = 0
        """Threads that do not hang."""
        self._threads: list[threading.Thread] = []
        """Those that were started; those that have ended since are left out when the next one starts."""
        self._lock = threading.Lock()

    def submit(self, runner: StageRunner, work: Assignment) -> None:
        with self._lock:
            self._open.add(work)
            self._start_one()
        self._todo.put((runner, work))

    def _start_one(self) -> None:
        """One more thread, unless there are as many as may be, or are needed."""
        if self._count >= min(self._size, len(self._open)):
            return
        try:
            thread = threading.Thread(target=self._work, name=f"holdfast-{self._count + 1}", daemon=True)
            thread.start()
            self._threads = [*[each for each in self._threads if each.is_alive()], thread]
            self._count += 1
        except RuntimeError:  # the system gives no more of them: those that run take what is to do
            if not self._count:
                raise

    def abandon(self, work: Assignment) -> None:
        """Leave a hanging thread alone; another takes its place, and what waited behind it."""
        with self._lock:
            if work in self._open:
                self._open.remove(work)
                self._count -= 1
                self._start_one()

    def lend(self) -> None:
        """A handler runs on a thread that is not one of these, in the place of one of them."""
        with self._lock:
            self._size -= 1

    def take_back(self) -> None:
        """That handler has ended."""
        with self._lock:
            self._size += 1
            self._start_one()

    def _is_one_too_many(self) -> bool:
        """Whether this thread leaves, because the place of one was lent."""
        with self._lock:
            if self._count <= self._size:
                return False
            self._count -= 1
            return True

    @property
    def is_idle(self) -> bool:
        return not self._open

    def give_back(self) -> None:
        """Hand back what no thread has begun."""
        with suppress(queue.Empty):
            while (todo := self._todo.get_nowait()) is not None:
                self._answer(todo[1])

    def close(self) -> None:
        for _ in range(self._count):
            self._todo.put(None)

    def _work(self) -> None:
        try:
            self._loop()
        except BaseException as error:  # noqa: BLE001 - whatever it is: with the thread gone, nobody would hear of it
            self._finished.put(Unable(error))

    @abstractmethod
    def _loop(self) -> None:
        """What each of them does, until None is to do."""

    def _answer(self, work: Assignment) -> bool:
        """Hand back what came of it; False if it was given up, and another thread has the place of this one."""
        if not self._strike_off(work):
            return False
        if (answer := work.answer()) is not None:
            self._finished.put(answer)
        return True

    def _strike_off(self, work: Assignment) -> bool:
        """It is over; False if nobody waits for it any more."""
        with self._lock:
            if work not in self._open:
                return False
            self._open.remove(work)
            return True


class Threads(Hands):
    """Handlers run on the threads themselves."""

    def __init__(self, size: int, finished: Finished, leave: Callable[[], None]) -> None:
        super().__init__(size, finished)
        self._leave = leave
        """Closes the resources of the thread that calls it."""

    def _loop(self) -> None:
        try:
            while (todo := self._todo.get()) is not None:
                if self._is_one_too_many():
                    self._todo.put(todo)
                    return
                runner, work = todo
                try:
                    runner.run(work)
                except BaseException as error:  # noqa: BLE001 - no item's fault: what others have in flight is kept
                    if self._strike_off(work):
                        self._finished.put(Unable(error, work.answer()))
                    return
                if not self._answer(work):
                    return
        finally:
            self._leave()
