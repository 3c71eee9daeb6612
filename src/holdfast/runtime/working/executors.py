"""Pools over an executor that the user gave to a run: its threads, or whatever else runs what it is handed as bytes."""

from concurrent.futures import BrokenExecutor, Executor, Future
from typing import NamedTuple

from holdfast.runtime.working import remote
from holdfast.runtime.working.assignment import Answer, Assignment, clock
from holdfast.runtime.working.pools import Broken, Finished, Unable
from holdfast.runtime.working.runner import StageRunner


class Borrowed:
    """What the pools over a user's executor share: it stays its owner's, and is not given more than it can begin."""

    def __init__(self, executor: Executor, finished: Finished) -> None:
        self._executor = executor
        self._finished = finished

    def abandon(self, work: Assignment) -> None:
        """A handler that hangs there is left alone."""

    def give_back(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """That is for its owner."""


class BorrowedThreads(Borrowed):
    """Handlers run on its threads."""

    def submit(self, runner: StageRunner, work: Assignment) -> None:
        try:
            future = self._executor.submit(runner.run, work)
        except RuntimeError as error:  # it was shut down
            self._finished.put(Broken(work, error, final=True))
            return
        future.add_done_callback(lambda done: self._done(work, done))

    def _done(self, work: Assignment, future: Future[None]) -> None:
        if future.cancelled():
            self._finished.put(Broken(work, BrokenExecutor("it was shut down"), final=True))
        elif (error := future.exception()) is not None:
            self._finished.put(Unable(error))
        elif (answer := work.answer()) is not None:
            self._finished.put(answer)


class Tried(NamedTuple):
    """The executor has found the pipeline."""

    pool: "BorrowedProcesses"


class BorrowedProcesses(Borrowed):
    """The work travels as bytes, and comes back as bytes. Nothing is handed over before the pipeline was found there,
    so that a process that dies later was killed by what it was given."""

    def __init__(self, executor: Executor, target: str, finished: Finished) -> None:
        super().__init__(executor, finished)
        self._target = target
        self._early: list[tuple[StageRunner, Assignment]] = []
        self._is_found = False

    def submit(self, runner: StageRunner, work: Assignment) -> None:
        if self._is_found:
            self._hand_over(runner, work)
            return
        self._early.append((runner, work))
        if len(self._early) == 1:
            self._try_out()

    def begin(self) -> None:
        """The pipeline was found: hand over what was held back."""
        self._is_found = True
        early, self._early = self._early, []
        for runner, work in early:
            self._hand_over(runner, work)

    def _try_out(self) -> None:
        def tried(future: Future[None]) -> None:
            error = BrokenExecutor("it was shut down") if future.cancelled() else future.exception()
            self._finished.put(Tried(self) if error is None else Unable(str(error)))

        try:
            self._executor.submit(remote.ready, self._target).add_done_callback(tried)
        except RuntimeError as error:
            self._finished.put(Unable(str(error)))

    def _hand_over(self, runner: StageRunner, work: Assignment) -> None:
        work.started = clock()
        try:
            future = self._executor.submit(remote.run, self._target, remote.pack(runner, work))
        except (RuntimeError, OSError) as error:  # broken, shut down, or unable to start its processes
            self._finished.put(Broken(work, error, final=True))
            return
        future.add_done_callback(lambda done: self._done(work, done))

    def _done(self, work: Assignment, future: Future[bytes]) -> None:
        error = future.exception() if not future.cancelled() else BrokenExecutor("cancelled")
        if error is not None:
            self._finished.put(Broken(work, error, final=isinstance(error, BrokenExecutor)))
            return
        outcomes = remote.unpack_all(future.result())
        self._finished.put(Answer(work, outcomes, work.items[len(outcomes) :]))
