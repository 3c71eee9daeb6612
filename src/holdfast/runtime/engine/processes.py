"""A process that we start, the line to it, and how it settles in.

It is started afresh, never forked: a fork would share the open database.
"""

import atexit
import ctypes
import multiprocessing
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from holdfast.core.errors import ResourceError
from holdfast.core.limits import CLOSE_SECONDS
from holdfast.runtime.engine import remote
from holdfast.runtime.engine.assignment import Assignment, clock
from holdfast.runtime.engine.exchange import Broken
from holdfast.runtime.engine.pools import Finished, Hands, Todo, Unable
from holdfast.runtime.engine.resources import Resources
from holdfast.runtime.engine.runner import StageRunner

FAREWELL_SECONDS = 5.0
"""What a process may take to end by itself, with what the program does at its exit."""
CHILD_LOOK_SECONDS = 0.5
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
        while not self.has_news(CHILD_LOOK_SECONDS):
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


FALSE_STARTS = 3
"""How often in a row a process may die before it is ready, once others were: a system short of memory picks any."""


class Processes(Hands):
    """So many processes, started as they are needed; one that dies costs nothing but the item it was at."""

    def __init__(self, size: int, target: str, finished: Finished, stages: Sequence[int] = ()) -> None:
        super().__init__(size, finished)
        self.start_seconds = 0.0
        """How long the last process took to be ready."""
        self._target = target
        self._stages = stages
        """Those that are handed resources: each process opens those of all of them, and closes them when it ends."""
        self._farewell = FAREWELL_SECONDS + (CLOSE_SECONDS if stages else 0.0)
        self._stop = stop_sign()
        self._first = threading.Lock()
        """Held until one process has found the pipeline: if none can, that is said once."""
        self._is_found = False
        self._is_closed = False
        self._busy: dict[Assignment, WorkerProcess] = {}
        self._starting: set[WorkerProcess] = set()
        atexit.register(self.close)  # before the processes are waited for, where a run is left alone on its thread

    def abandon(self, work: Assignment) -> None:
        """End its process: there is no other way to stop a handler that hangs in one."""
        super().abandon(work)
        with self._lock:
            if work in self._busy:
                self._busy[work].kill()

    def give_back(self) -> None:
        """Hand back what no process has begun; who is not ready is not waited for."""
        self._stop.value = True
        super().give_back()
        with self._lock:
            for process in self._starting:
                process.kill()

    def close(self) -> None:
        """Idle processes end by themselves, others at once; nothing of them is left."""
        atexit.unregister(self.close)
        with self._lock:
            self._is_closed = True
            for process in self._busy.values():
                process.kill()
        super().close()
        ends = clock() + self._farewell + 1.0
        for thread in self._threads:
            thread.join(max(0.0, ends - clock()))

    def _loop(self) -> None:
        process: WorkerProcess | None = None
        try:
            while (todo := self._todo.get()) is not None:
                runner, work = todo
                if process is not None and work.fresh:
                    # A suspect gets a new process, so that it is not blamed for what others left behind in an old one.
                    process.end()
                    process = None
                if process is None:
                    process = self._new(todo)
                if process is None or not self._run(process, runner, work):
                    break
                if process.is_dead:
                    process = None
        finally:
            if process is not None:
                process.end()

    def _run(self, process: "WorkerProcess", runner: StageRunner, work: Assignment) -> bool:
        """Have items run by a process; False if they were given up, and another thread has the place of this one."""
        is_alive = True
        with self._attending(process, work):
            if not (work.cut or runner.may_not_begin(work)):
                is_alive = process.run(remote.pack(runner, work), work)
                runner.learn(work.outcomes)
        how = "" if is_alive else process.end()
        if is_alive or len(work.outcomes) == len(work.items):
            return self._answer(work)
        if not self._strike_off(work):
            return False
        self._finished.put(Broken(work, how, work.items[len(work.outcomes)]))
        return True

    @contextmanager
    def _attending(
        self, process: "WorkerProcess", work: Assignment, among: "set[WorkerProcess] | None" = None
    ) -> Iterator[None]:
        """While a process is at something that may be given up, in which case it dies."""
        among = set() if among is None else among
        with self._lock:
            self._busy[work] = process
            among.add(process)
            if self._is_closed or work not in self._open:
                process.kill()
        try:
            yield
        finally:
            with self._lock:
                del self._busy[work]
                among.remove(process)

    def _new(self, todo: Todo) -> "WorkerProcess | None":
        """A process that is ready; None if there is none, which is told unless nobody waits for it."""
        if self._is_found:
            return self._opened(self._start(todo, FALSE_STARTS), todo)
        with self._first:
            process = self._start(todo, FALSE_STARTS if self._is_found else 1)
        return self._opened(process, todo)

    def _opened(self, process: "WorkerProcess | None", todo: Todo) -> "WorkerProcess | None":
        """The process, once it has its resources; None if it cannot open them, which ends the run, or died at it."""
        if process is None:
            return None
        with self._attending(process, todo[1], self._starting):
            error = process.wait_until_open()
        if not error:
            return process
        process.end()
        if self._is_wanted(todo):
            answer = todo[1].answer() if self._strike_off(todo[1]) else None
            self._finished.put(Unable(ResourceError(error), answer))
        return None

    def _start(self, todo: Todo, tries: int) -> "WorkerProcess | None":
        work, error = todo[1], ""
        for _ in range(tries):
            if not self._is_wanted(todo):
                return None
            began = clock()
            try:
                process = WorkerProcess(self._target, self._stop, self._stages, self._farewell)
            except OSError as trouble:
                if self._can_do_with_less(todo):
                    return None
                error = str(trouble)
                break
            with self._attending(process, work, self._starting):
                error = process.wait_until_ready()
            if not error:
                self.start_seconds, self._is_found = clock() - began, True
                return process
            error = f"{error}; it ended with {process.end()}"
        if self._is_wanted(todo):
            self._finished.put(Unable(error))
        return None

    def _is_wanted(self, todo: Todo) -> bool:
        """Whether there is a use for a new process; when the run stops, what it was meant for is handed back."""
        runner, work = todo
        if runner.stopping():
            self._answer(work)
        return work in self._open and not self._is_closed

    def _can_do_with_less(self, todo: Todo) -> bool:
        """The system gives no more processes: whether another one takes what was to do."""
        with self._lock:
            if self._count > 1:
                self._count -= 1
                self._todo.put(todo)
                return True
            return False


class WorkerProcess(Child):
    """A process that runs items of any stage, as they come."""

    def __init__(self, target: str, stop: Any, stages: Sequence[int], farewell: float) -> None:
        super().__init__(_serve, stop, target, tuple(stages))
        self._farewell = farewell

    def wait_until_ready(self) -> str:
        """Why it cannot find the pipeline; empty if it did."""
        try:
            return self.hear().decode()
        except GONE:
            return "it was not ready yet"

    def wait_until_open(self) -> str:
        """Why it cannot open its resources; empty if it did."""
        try:
            return self.hear().decode()
        except GONE:
            return "a worker process died while it opened its resources: run again"

    def run(self, parcel: bytes, work: Assignment) -> bool:
        """Items go there together; outcomes come back one by one, so that those are kept if it dies: then, False."""
        work.started = clock()
        try:
            self.tell(parcel)
            while message := self.hear():
                work.outcomes.append(remote.unpack(message))
                work.started = clock()
        except GONE:
            return False
        finally:
            work.started = 0.0
        return True

    def end(self, seconds: float | None = None) -> str:
        """It is told that nothing more comes: one that was forked here may keep the line open."""
        with suppress(OSError):
            self.tell(b"")
        return super().end(self._farewell if seconds is None else seconds)


def _serve(line: Connection, stop: Any, target: str, stages: Sequence[int]) -> None:
    """In the process: find the pipeline, open its resources, then run what comes until nothing comes any more."""
    try:
        resources = Resources(remote.find(target))
    except BaseException as error:  # noqa: BLE001 - whatever a program does when it is imported: the parent tells it
        line.send_bytes(f"{type(error).__name__}: {error}".encode(errors="replace"))
        return
    line.send_bytes(b"")

    def stopping() -> bool:
        return bool(stop.value)

    with suppress(*GONE), remote.holding(resources, stages) as trouble:
        line.send_bytes(trouble.encode(errors="replace"))
        while not trouble and (parcel := line.recv_bytes()):
            remote.run_and_tell(target, parcel, line.send_bytes, stopping)
