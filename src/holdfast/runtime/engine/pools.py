"""The places where handlers run: the base of all pools, and pools of threads, of the event loop, and of the user's
executors."""

import asyncio
import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from holdfast.core.errors import UsageError
from holdfast.core.model import Item
from holdfast.core.outcome import Outcome
from holdfast.runtime import event_loop
from holdfast.runtime.define.calls import current_batch
from holdfast.runtime.engine import remote
from holdfast.runtime.engine.assignment import Assignment, clock
from holdfast.runtime.engine.exchange import Answer, Broken
from holdfast.runtime.engine.runner import Runner, StageRunner
from holdfast.runtime.event_loop import EventLoop

Finished = queue.SimpleQueue[Any]
"""The queue of events for the desk, of `Tried`, `Unable` and `Refusal`, or None (wake up)."""

Todo = tuple[Runner, Assignment]


class Unable(NamedTuple):
    """Nothing can be run: no process starts, or none finds the pipeline, or the pool itself failed."""

    error: str | BaseException
    answer: Answer | None = None
    """The result of the assignment that met the error, if known: then the run ends once the others have ended."""

    def trouble(self) -> BaseException:
        """Return the error that ends the run."""
        if isinstance(self.error, BaseException):
            return self.error
        return UsageError(
            f"worker processes cannot start, or cannot find the pipeline ({self.error}): put "
            '`if __name__ == "__main__":` around run(), and define the pipeline at the top of an importable file'
        )


class Refusal(NamedTuple):
    """No partition can be run, because of the definition or installation of the scan: the run ends with that error."""

    work: Assignment
    error: BaseException


class Pool(Protocol):
    """Runs assignments of one kind of stage."""

    def submit(self, runner: Any, work: Assignment) -> None: ...

    def abandon(self, work: Assignment) -> None: ...

    def give_back(self) -> None: ...

    def close(self) -> None: ...


class Hands(ABC):
    """Threads that take assignments, started as they are needed."""

    def __init__(self, size: int, finished: Finished) -> None:
        self._size = size
        self._finished = finished
        self._todo: queue.SimpleQueue[Todo | None] = queue.SimpleQueue()
        self._open: set[Assignment] = set()
        """Assignments handed over, and neither finished nor given up."""
        self._count = 0
        """The number of threads that do not hang."""
        self._threads: list[threading.Thread] = []
        """Threads that were started; those that have ended are removed when the next one starts."""
        self._lock = threading.Lock()

    def submit(self, runner: Runner, work: Assignment) -> None:
        with self._lock:
            self._open.add(work)
            self._start_one()
        self._todo.put((runner, work))

    def _start_one(self) -> None:
        """Start one more thread, unless there are enough, or as many as allowed."""
        if self._count >= min(self._size, len(self._open)):
            return
        try:
            thread = threading.Thread(target=self._work, name=f"holdfast-{self._count + 1}", daemon=True)
            thread.start()
            self._threads = [*[each for each in self._threads if each.is_alive()], thread]
            self._count += 1
        except RuntimeError:  # the system cannot start more: the running threads take the work
            if not self._count:
                raise

    def abandon(self, work: Assignment) -> None:
        """Leave a hanging thread alone; another thread takes its place, and the work behind it."""
        with self._lock:
            if work in self._open:
                self._open.remove(work)
                self._count -= 1
                self._start_one()

    def lend(self) -> None:
        """Reduce the number of threads by one, because a handler runs on another thread instead."""
        with self._lock:
            self._size -= 1

    def take_back(self) -> None:
        """Add that thread again, because the handler has ended."""
        with self._lock:
            self._size += 1
            self._start_one()

    def _is_one_too_many(self) -> bool:
        """Return whether this thread must end, because its place was lent."""
        with self._lock:
            if self._count <= self._size:
                return False
            self._count -= 1
            return True

    @property
    def is_idle(self) -> bool:
        return not self._open

    def give_back(self) -> None:
        """Hand back assignments that no thread has begun."""
        with suppress(queue.Empty):
            while (todo := self._todo.get_nowait()) is not None:
                self._answer(todo[1])

    def close(self) -> None:
        for _ in range(self._count):
            self._todo.put(None)

    def _work(self) -> None:
        try:
            self._loop()
        except BaseException as error:  # noqa: BLE001 - any error: without this thread, it would not be reported
            self._finished.put(Unable(error))

    @abstractmethod
    def _loop(self) -> None:
        """Take assignments until there is a None."""

    def _answer(self, work: Assignment) -> bool:
        """Hand back the result; return False if the assignment was given up, and another thread has replaced this
        one."""
        if not self._strike_off(work):
            return False
        if (answer := work.answer()) is not None:
            self._finished.put(answer)
        return True

    def _strike_off(self, work: Assignment) -> bool:
        """Note that an assignment is over; return False if it was given up."""
        with self._lock:
            if work not in self._open:
                return False
            self._open.remove(work)
            return True


class Threads(Hands):
    """Threads that run handlers themselves."""

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
                except BaseException as error:  # noqa: BLE001 - not caused by an item: work in flight elsewhere is kept
                    if self._strike_off(work):
                        self._finished.put(Unable(error, work.answer()))
                    return
                if not self._answer(work):
                    return
        finally:
            self._leave()


log = logging.getLogger("holdfast.loop")

CANCEL_SECONDS = 2.0
"""How long a run waits at its end for cancelled coroutines."""
LOOK_LONGEST = 1.0
"""The longest time between two checks of a blocked loop that counts."""


class Loop:
    """The async stages of a run on the event loop. Answers are handed over once per turn of the loop."""

    def __init__(self, size: int, finished: Finished, home: EventLoop) -> None:
        self._free = size
        self._finished = finished
        self._home = home
        self._loop = self._home.loop
        self._waiting: deque[tuple[StageRunner, Assignment, Item]] = deque()
        self._answers: dict[int, _Gathering] = {}
        self._running: dict[int, dict[int, tuple[asyncio.Task[None], Item]]] = {}
        self._cancelled: set[asyncio.Task[None]] = set()
        """Coroutines that were given up, and may still be running."""
        self._has_turned = True
        """Whether the loop has turned since it was last asked to."""
        self._at_hand: asyncio.Task[Any] | None = None
        """The coroutine that was running at the last check, if the loop has not turned since."""
        self._held = self._looked = 0.0
        """How long it was seen running that, and when it was last checked."""
        self._is_blocked = False
        """A handler of this run blocks the loop; it was named in an error."""
        self._has_warned = False

    def submit(self, runner: StageRunner, work: Assignment) -> None:
        self._loop.call_soon_threadsafe(self._start, runner, work)

    def abandon(self, work: Assignment) -> None:
        self._loop.call_soon_threadsafe(self._cancel, work)

    def give_back(self) -> None:
        """Hand back items that the loop has not begun."""
        self._loop.call_soon_threadsafe(self._empty)

    def close(self) -> None:
        """Cancel what this run has on the loop, and nothing else. A loop blocked by one of its handlers is abandoned;
        the next user gets a new one."""
        ended = threading.Event()
        self._home.soon(self._wind_up, ended)
        if not self._is_blocked and ended.wait(CANCEL_SECONDS):
            return
        if self._is_blocked or asyncio.current_task(self._loop) in self._all_running():
            event_loop.abandon(self._home)

    def _wind_up(self, ended: threading.Event) -> None:
        self._waiting.clear()
        left = self._all_running()
        for each in left:
            each.cancel()
        waiting = self._loop.create_task(_end_of(left, ended))
        self._cancelled.add(waiting)  # the loop itself holds no strong reference to it

    def _all_running(self) -> "set[asyncio.Task[None]]":
        ours = {each for running in [*self._running.values()] for each, _ in [*running.values()]}
        return ours | {each for each in [*self._cancelled] if not each.done()}

    def _start(self, runner: StageRunner, work: Assignment) -> None:
        # for every coroutine that begins here, or when one ends
        current_batch.set((runner.pipeline, runner.batch))
        self._waiting.extend([(runner, work, item) for item in work.items])
        self._fill()

    def _fill(self) -> None:
        """Begin as many items as may run together."""
        while self._free and self._waiting:
            runner, work, item = self._waiting.popleft()
            if runner.may_not_begin(work):
                self._answer(work).unrun.append(item)
                continue
            self._free -= 1
            running = self._running.setdefault(id(work), {})
            running[item.n] = self._loop.create_task(self._one(runner, work, item)), item

    def _empty(self) -> None:
        for _, work, item in self._waiting:
            self._answer(work).unrun.append(item)
        self._waiting.clear()

    async def _one(self, runner: StageRunner, work: Assignment, item: Item) -> None:
        try:
            if runner.is_short(work):
                outcome = await runner.attempt_plain(item, work, clock())
            else:
                outcome = await runner.attempt_async(item, work, clock())
        except BaseException as error:  # noqa: BLE001 - a resource cannot be opened: not caused by an item
            self._finished.put(Unable(error, Answer(work, [], [item])))
            return
        running = self._running.get(id(work))
        if running is not None:
            running.pop(item.n, None)
            if not running:
                del self._running[id(work)]
        if not work.abandoned:
            self._answer(work).outcomes.append(outcome)
        runner.learn((outcome,))
        self._free += 1
        self._fill()

    def _answer(self, work: Assignment) -> "_Gathering":
        if not self._answers:
            self._loop.call_soon(self._flush)
        found = self._answers.get(id(work))
        if found is None:
            found = self._answers[id(work)] = _Gathering(work, [], [])
        return found

    def _flush(self) -> None:
        answers, self._answers = self._answers, {}
        for work, outcomes, unrun in answers.values():
            self._finished.put(Answer(work, outcomes, unrun))

    def at_work(self, work: Assignment) -> list[Item]:
        """Return the items of an assignment whose handlers are running; other threads may call this."""
        return [item for _, item in [*self._running.get(id(work), {}).values()]]

    def _cancel(self, work: Assignment) -> None:
        work.abandoned = True
        for running, _ in self._running.pop(id(work), {}).values():
            running.cancel()
            self._cancelled.add(running)
            running.add_done_callback(self._cancelled.discard)

    def blocked_by(self, seconds: float) -> Item | None:
        """Return the item whose handler has blocked the loop for that long; called repeatedly. Only a handler that was
        running at every check counts, and of a long time between two checks only a part: the process may have been
        suspended."""
        if self._has_turned:
            self._has_turned, self._at_hand = False, None
            self._loop.call_soon_threadsafe(self.turned)
            return None
        at_hand, now = asyncio.current_task(self._loop), clock()
        if at_hand is None or at_hand is not self._at_hand:
            self._at_hand, self._held, self._looked = at_hand, 0.0, now
            return None
        self._held += min(now - self._looked, LOOK_LONGEST)
        self._looked = now
        if self._held <= seconds or self._has_turned:
            return None
        found = self._item_of(at_hand)
        if found is not None:
            self._is_blocked = True
        elif not self._has_warned:
            self._has_warned = True
            log.warning("the event loop is blocked by code that is not a handler of this run: %r", at_hand)
        return found

    def _item_of(self, at_hand: "asyncio.Task[Any]") -> Item | None:
        all_running = [pair for running in [*self._running.values()] for pair in [*running.values()]]
        return next((item for running, item in all_running if running is at_hand), None)

    def turned(self) -> None:
        """Note that the loop turned; called by the loop."""
        self._has_turned = True


async def _end_of(left: "set[asyncio.Task[None]]", ended: threading.Event) -> None:
    if left:
        await asyncio.wait(left, timeout=CANCEL_SECONDS)
    ended.set()


class _Gathering(NamedTuple):
    """The results of an assignment in one turn of the loop."""

    work: Assignment
    outcomes: list[Outcome]
    unrun: list[Item]


class Borrowed:
    """The base of the pools over a user's executor: it belongs to the user, and gets no more work than it can begin."""

    def __init__(self, executor: Executor, finished: Finished) -> None:
        self._executor = executor
        self._finished = finished

    def abandon(self, work: Assignment) -> None:
        """Leave a hanging handler alone."""

    def give_back(self) -> None:
        """Do nothing: no work waits here."""

    def close(self) -> None:
        """Do nothing: the owner closes the executor."""


class BorrowedThreads(Borrowed):
    """Threads of the user's executor, which run handlers."""

    def submit(self, runner: Runner, work: Assignment) -> None:
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
    """Processes of the user's executor. The work travels as bytes, in both directions. Nothing is handed over before
    the pipeline was found there, so that a process that dies later was killed by its work."""

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
        """Hand over the work that was held back: the pipeline was found."""
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
