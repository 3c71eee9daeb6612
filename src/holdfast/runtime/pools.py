"""Where handlers run: threads of our own, one event loop, worker processes, or an executor of the user's.

Each pool takes an assignment and puts it on the queue of finished ones. Threads are daemons: a handler that hangs
cannot keep the process from ending.
"""

import asyncio
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from typing import Any, NamedTuple, Protocol

from holdfast.core.model import Item
from holdfast.core.outcome import Outcome
from holdfast.runtime import remote
from holdfast.runtime.executor import Answer, Assignment, StageRunner, clock

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


class Tried(NamedTuple):
    """The first process of a pool is ready, or could not be."""

    pool: "Remote"
    error: BaseException | None
    seconds: float


class Pool(Protocol):
    """Runs assignments of one kind of stage."""

    def submit(self, runner: StageRunner, work: Assignment) -> None: ...

    def abandon(self, work: Assignment) -> None: ...

    def close(self) -> None: ...


class Threads:
    """Plain threads, started as they are needed."""

    def __init__(self, size: int, finished: Finished) -> None:
        self._size = size
        self._finished = finished
        self._todo: queue.SimpleQueue[tuple[StageRunner, Assignment] | None] = queue.SimpleQueue()
        self._count = 0
        self._idle = 0
        self._lock = threading.Lock()

    def submit(self, runner: StageRunner, work: Assignment) -> None:
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            elif self._count < self._size:
                self._start_one()
        self._todo.put((runner, work))

    def _start_one(self) -> None:
        try:
            threading.Thread(target=self._loop, name=f"holdfast-{self._count + 1}", daemon=True).start()
            self._count += 1
        except RuntimeError:  # the system gives no more of them: those that run take what is to do
            if not self._count:
                raise

    def abandon(self, work: Assignment) -> None:
        """Leave a hanging thread alone and make room for another."""
        with self._lock:
            self._size += 1

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
            if work.abandoned:
                return
            with self._lock:
                self._idle += 1
            self._finished.put(Answer(work, work.outcomes))


class Loop:
    """One event loop on one thread for all async stages. Answers are handed over once per turn of the loop."""

    def __init__(self, finished: Finished) -> None:
        self._finished = finished
        self._loop = asyncio.new_event_loop()
        self._answers: dict[int, Answer] = {}
        self._running: dict[int, dict[asyncio.Task[None], Item]] = {}
        self._asked = 0.0
        """When the loop was asked to turn, and has not yet."""
        threading.Thread(target=self._run, name="holdfast-loop", daemon=True).start()

    def submit(self, runner: StageRunner, work: Assignment) -> None:
        self._loop.call_soon_threadsafe(self._start, runner, work)

    def abandon(self, work: Assignment) -> None:
        self._loop.call_soon_threadsafe(self._cancel, work)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._wind_up())
        finally:
            self._loop.close()

    async def _wind_up(self) -> None:
        """Cancel what handlers left running, and let it end."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for running in left:
            running.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._loop.shutdown_asyncgens()

    def _start(self, runner: StageRunner, work: Assignment) -> None:
        running = self._running.setdefault(id(work), {})
        for item in work.items:
            running[self._loop.create_task(self._one(runner, work, item))] = item

    async def _one(self, runner: StageRunner, work: Assignment, item: Item) -> None:
        outcome = await runner.attempt_async(item, work, clock())
        running = self._running.get(id(work))
        if running is not None:
            running.pop(asyncio.current_task(), None)  # type: ignore[arg-type]
            if not running:
                del self._running[id(work)]
        if not work.abandoned:
            self._answer(work, outcome)

    def _answer(self, work: Assignment, outcome: Outcome) -> None:
        if not self._answers:
            self._loop.call_soon(self._flush)
        answer = self._answers.get(id(work))
        if answer is None:
            answer = self._answers[id(work)] = Answer(work, [])
        answer.outcomes.append(outcome)

    def _flush(self) -> None:
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            self._finished.put(answer)

    def _cancel(self, work: Assignment) -> None:
        work.abandoned = True
        for running in self._running.pop(id(work), {}):
            running.cancel()

    def blocked_by(self, seconds: float) -> Item | None:
        """The item whose handler has kept the loop from turning for that long; asked again and again."""
        if not self._asked:
            self._asked = clock()
            self._loop.call_soon_threadsafe(self._turned)
        if clock() - self._asked <= seconds:
            return None
        at_hand = asyncio.current_task(self._loop)
        return next((running[at_hand] for running in [*self._running.values()] if at_hand in running), None)

    def _turned(self) -> None:
        self._asked = 0.0


class Remote:
    """Worker processes, or an executor of the user's: the work travels as bytes, and comes back as bytes.

    Nothing is handed over before one process has found the pipeline, so that a process that dies later was killed by
    what it was given.
    """

    def __init__(self, make: Callable[[], Executor], target: str, finished: Finished, owned: bool) -> None:
        self.suspects: set[int] = set()
        """Numbers of items one of which has killed its process: while there are any, items run alone."""
        self.in_flight = 0
        self.start_seconds: float | None = None
        """How long the first process took to be ready."""
        self._make = make
        self._target = target
        self._finished = finished
        self._owned = owned
        self._executor: Executor | None = None
        self._killed: Executor | None = None
        self._early: list[tuple[StageRunner, Assignment]] = []

    def submit(self, runner: StageRunner, work: Assignment) -> None:
        self.in_flight += 1
        if self._executor is None:
            self._executor = self._make()
        if self.start_seconds is not None:
            self._hand_over(runner, work)
            return
        self._early.append((runner, work))
        if len(self._early) == 1:
            self._try_out(self._executor, clock())

    def abandon(self, work: Assignment) -> None:
        """End the worker processes: there is no other way to stop a handler that hangs in one of them."""
        if self._executor is not None and self._owned:
            self._killed = self._executor
            remote.kill(self._executor)
            self._executor = None

    def close(self) -> None:
        if self._executor is not None and self._owned:
            remote.kill(self._executor)
            self._executor.shutdown(wait=False, cancel_futures=True)

    def _try_out(self, executor: Executor, began: float) -> None:
        def tried(future: Future[None]) -> None:
            error = None if future.cancelled() else future.exception()
            self._finished.put(Tried(self, error, clock() - began))

        try:
            executor.submit(remote.ready, self._target).add_done_callback(tried)
        except RuntimeError as error:
            self._finished.put(Tried(self, error, 0.0))

    def begin(self, seconds: float) -> None:
        """The first process is ready: hand over what was held back."""
        self.start_seconds = seconds
        early, self._early = self._early, []
        for runner, work in early:
            self._hand_over(runner, work)

    def _hand_over(self, runner: StageRunner, work: Assignment) -> None:
        if work.lone and self._owned and self._executor is not None:
            # A suspect gets a new process, so that it is not blamed for what others left behind in an old one.
            self._executor.shutdown(wait=False)
            self._executor = None
        if self._executor is None:
            self._executor = self._make()
        executor = self._executor
        work.started = clock()
        try:
            future = executor.submit(remote.run, self._target, remote.pack(runner, work))
        except RuntimeError as error:  # broken, or shut down by its owner
            self._broke(executor, work, error, final=not self._owned)
            return
        future.add_done_callback(lambda done: self._done(executor, work, done))

    def _done(self, executor: Executor, work: Assignment, future: Future[bytes]) -> None:
        error = future.exception() if not future.cancelled() else BrokenExecutor("cancelled")
        if error is not None:
            self._broke(executor, work, error, final=not self._owned and isinstance(error, BrokenExecutor))
        else:
            self._finished.put(Answer(work, remote.unpack(future.result())))

    def _broke(self, executor: Executor, work: Assignment, error: BaseException, *, final: bool) -> None:
        if self._executor is executor and self._owned:
            self._executor = None
        self._finished.put(Broken(work, error, final=final, by_us=executor is self._killed))


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

    def close(self) -> None:
        """It stays its owner's."""

    def _done(self, work: Assignment, future: Future[None]) -> None:
        if future.cancelled():
            self._finished.put(Broken(work, BrokenExecutor("it was shut down"), final=True))
        else:
            self._finished.put(Answer(work, work.outcomes))


def processes(size: int) -> Executor:
    """Fresh worker processes; never forked, because a fork would share the open database."""
    return ProcessPoolExecutor(size, mp_context=multiprocessing.get_context("spawn"), initializer=_settle_in)


def _settle_in() -> None:
    """In a worker process: Ctrl-C is for its parent, which lets it finish; when its parent dies, so does it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="holdfast-orphan", daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
