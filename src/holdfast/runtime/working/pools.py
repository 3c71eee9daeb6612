"""Where handlers run: what every pool does, and the pools of threads: our own, or those of an executor of the user's.

Each pool takes an assignment and puts it on the queue of finished ones. Threads are daemons: a handler that hangs
cannot keep the process from ending.
"""

import queue
import threading
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import suppress
from typing import Any, Protocol

from holdfast.runtime.working.assignment import Answer, Assignment
from holdfast.runtime.working.runner import StageRunner

Finished = queue.SimpleQueue[Any]
"""Of `Answer`, `Broken`, `Tried`, or None (wake up)."""


class Broken:
    """The processes of a pool died under some assignments."""

    def __init__(self, work: Assignment, error: BaseException, *, final: bool = False, by_us: bool = False) -> None:
        self.work = work
        self.error = error
        self.final = final
        """The pool cannot be made anew: it was the user's."""
        self.by_us = by_us
        """We ended the processes, because of another assignment."""


class Pool(Protocol):
    """Runs assignments of one kind of stage."""

    def submit(self, runner: StageRunner, work: Assignment) -> None: ...

    def abandon(self, work: Assignment) -> None: ...

    def give_back(self) -> None: ...

    def close(self) -> None: ...


class Threads:
    """Plain threads, started as they are needed."""

    def __init__(self, size: int, finished: Finished) -> None:
        self._size = size
        self._finished = finished
        self._todo: queue.SimpleQueue[tuple[StageRunner, Assignment] | None] = queue.SimpleQueue()
        self._open: set[Assignment] = set()
        """Handed over, and neither finished nor given up."""
        self._count = 0
        """Threads that do not hang."""
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
            threading.Thread(target=self._loop, name=f"holdfast-{self._count + 1}", daemon=True).start()
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

    def give_back(self) -> None:
        """Hand back what no thread has begun."""
        with suppress(queue.Empty):
            while (todo := self._todo.get_nowait()) is not None:
                self._answer(todo[1])

    def close(self) -> None:
        for _ in range(self._count):
            self._todo.put(None)

    def _loop(self) -> None:
        while True:
            todo = self._todo.get()
            if todo is None:
                return
            runner, work = todo
            runner.run(work)
            if not self._answer(work):
                return

    def _answer(self, work: Assignment) -> bool:
        """Hand back what came of it; False if it was given up, and another thread has the place of this one."""
        with self._lock:
            if work not in self._open:
                return False
            self._open.remove(work)
        self._finished.put(Answer(work, work.outcomes, work.items[len(work.outcomes) :]))
        return True


class Borrowed:
    """Threads of an executor of the user's."""

    def __init__(self, executor: Executor, finished: Finished) -> None:
        self._executor = executor
        self._finished = finished

    def submit(self, runner: StageRunner, work: Assignment) -> None:
        try:
            future = self._executor.submit(runner.run, work)
        except RuntimeError as error:  # it was shut down
            self._finished.put(Broken(work, error, final=True))
            return
        future.add_done_callback(lambda done: self._done(work, done))

    def abandon(self, work: Assignment) -> None:
        """Leave a hanging thread alone."""

    def give_back(self) -> None:
        """The threads are not ours, and not given more than they can begin."""

    def close(self) -> None:
        """It stays its owner's."""

    def _done(self, work: Assignment, future: Future[None]) -> None:
        if future.cancelled():
            self._finished.put(Broken(work, BrokenExecutor("it was shut down"), final=True))
        else:
            self._finished.put(Answer(work, work.outcomes, work.items[len(work.outcomes) :]))
