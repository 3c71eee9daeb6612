"""The pool of stages that run in worker processes, or in an executor of the user's that is no pool of threads."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from typing import NamedTuple

from holdfast.runtime.working import remote
from holdfast.runtime.working.assignment import Answer, Assignment, clock
from holdfast.runtime.working.pools import Broken, Finished
from holdfast.runtime.working.runner import StageRunner


class Tried(NamedTuple):
    """The first process of a pool is ready, or could not be."""

    pool: "Remote"
    error: BaseException | None
    seconds: float


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
        self.owned = owned
        """Whether the processes are ours to start and to end."""
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
        if self._executor is not None and self.owned:
            self._killed = self._executor
            remote.kill(self._executor)
            self._executor = None

    def give_back(self) -> None:
        """Processes are not given more than they can begin."""

    def close(self) -> None:
        if self._executor is not None and self.owned:
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
        if work.lone and self.owned and self._executor is not None:
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
            self._broke(executor, work, error, final=not self.owned)
            return
        except OSError as error:
            if error.errno is not None:
                raise
            # One of its processes died while another was being started, on handles that were then closed.
            self._broke(executor, work, error, final=not self.owned)
            return
        future.add_done_callback(lambda done: self._done(executor, work, done))

    def _done(self, executor: Executor, work: Assignment, future: Future[bytes]) -> None:
        error = future.exception() if not future.cancelled() else BrokenExecutor("cancelled")
        if error is not None:
            self._broke(executor, work, error, final=not self.owned and isinstance(error, BrokenExecutor))
        else:
            outcomes = remote.unpack(future.result())
            self._finished.put(Answer(work, outcomes, work.items[len(outcomes) :]))

    def _broke(self, executor: Executor, work: Assignment, error: BaseException, *, final: bool) -> None:
        if self._executor is executor and self.owned:
            self._executor = None
        self._finished.put(Broken(work, error, final=final, by_us=executor is self._killed))


def processes(size: int) -> Executor:
    """Fresh worker processes; never forked, because a fork would share the open database."""
    return ProcessPoolExecutor(size, mp_context=multiprocessing.get_context("spawn"), initializer=settle_in)


def settle_in() -> None:
    """In a worker process: Ctrl-C is for its parent, which lets it finish; when its parent dies, so does it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="holdfast-orphan", daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
