"""Worker processes: one process and the line to it, the host that starts, attends and ends them, and a pool.

Each process is spawned, never forked: a fork would share the open database. Slices of items and partitions of a scan
travel to processes as parcels over the same line.
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

from holdfast.core.errors import HoldfastError, ResourceError
from holdfast.core.limits import CLOSE_SECONDS
from holdfast.runtime.engine import remote
from holdfast.runtime.engine.assignment import Assignment, clock
from holdfast.runtime.engine.exchange import Broken
from holdfast.runtime.engine.pools import Finished, Hands, Todo, Unable
from holdfast.runtime.engine.resources import Resources
from holdfast.runtime.engine.runner import Runner

FAREWELL_SECONDS = 5.0
"""How long a process may take to end by itself, including the program's exit handlers."""
LOOK_SECONDS = 0.1
"""How often to check whether a silent process is alive, and whether it is still wanted."""
FALSE_STARTS = 3
"""How often in a row a process may die before it is ready, once others were ready: a system short of memory kills any
process."""
GONE = (EOFError, OSError)
"""Exceptions on the line to a process that has died."""

FOR_THE_PARENT = {signal.SIGINT, signal.SIGTERM}
"""Signals that ask a program to end; the parent receives them too."""

_spawning = multiprocessing.get_context("spawn")


def stop_sign() -> Any:
    """Return the flag that tells processes that the run stops. It has no lock, which would stay locked forever if its
    holder died."""
    return _spawning.RawValue(ctypes.c_bool, False)


# -- here ---------------------------------------------------------------------------------------------------------


class Child:
    """One process and the line to it, used by one thread."""

    def __init__(self, *args: Any) -> None:
        """Start the process with the arguments of `_serve` after the line. It is not a daemon, because a daemon could
        not have children."""
        self._line, theirs = _spawning.Pipe()
        self._news = select.poll()
        self._news.register(self._line, select.POLLIN)
        self._process = _spawning.Process(target=_live, args=(theirs, *args), name="holdfast worker")
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
        """Start the process with signals blocked: Ctrl-C at a terminal reaches every process, and so does SIGTERM from
        a supervisor that ends a whole group. A process that is still starting must not die from them."""
        resource_tracker.ensure_running()  # it unblocks both signals when it starts
        before = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_PARENT)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def tell(self, message: bytes) -> None:
        self._line.send_bytes(message)

    def has_news(self, seconds: float) -> bool:
        """Return whether it sends something in that time. Checks whether it is alive as well, because another process
        may keep the line open."""
        if self._news.poll(seconds * 1000):
            return True
        if self._process.is_alive():
            return False
        if self._news.poll(0):
            return True
        raise EOFError

    def hear(self, look: Callable[[], None]) -> bytes:
        """Return its next message; while there is none, `look` is called now and then, and may kill it."""
        while not self.has_news(LOOK_SECONDS):
            look()
        return self._line.recv_bytes()

    def kill(self) -> None:
        """Kill it at once; from any thread."""
        with suppress(ValueError, AttributeError):  # it ended at this moment
            self._process.kill()

    def end(self, seconds: float) -> str:
        """Let it end within that time; return how it ended. It gets an explicit last message, because a process forked
        here may keep the line open."""
        if not self._how:
            with suppress(OSError):
                self.tell(b"")
            self._line.close()
            if self._process.is_alive():
                self._process.join(seconds)
                self._process.kill()
                self._process.join()
            self._how = _in_words(self._process.exitcode)
            with suppress(ValueError):  # other code has waited for it, and its end is not known
                self._process.close()
        return self._how


def _in_words(code: int | None) -> str:
    """Return how a process ended."""
    if code is None:
        return "an unknown exit status"
    if code >= 0:
        return f"exit status {code}"
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


class NotReady(HoldfastError):
    """No process finds the pipeline, or none lives long enough to find it."""


class Host:
    """The processes that serve one pipeline: started, attended and ended in the same way; none is left after
    `close`."""

    def __init__(self, target: str, stages: Sequence[int] = (), release: Callable[[], None] = lambda: None) -> None:
        self.stop = stop_sign()
        self.start_seconds = 0.0
        """How long the last process took to become ready."""
        self._target = target
        self._stages = tuple(stages)
        """The stages that take resources: each process opens the resources of all these stages, and closes them when it
        ends."""
        self._release = release
        """Ends the processes that are idle."""
        self._farewell = FAREWELL_SECONDS + (CLOSE_SECONDS if stages else 0.0)
        self._is_closed = False
        self._count = 0
        """The number of processes, including those that are being started."""
        self._busy: dict[Assignment, Child] = {}
        self._changed = threading.Condition()
        atexit.register(self.close)  # before the processes are joined, if a run was abandoned on its thread

    def start(self, work: Assignment, wanted: Callable[[], bool], tries: int = FALSE_STARTS) -> Child | None:
        """Return a process that has found the pipeline; None if it is not wanted any more. Raises NotReady, and OSError
        if the system cannot start a process."""
        error = ""
        for _ in range(tries):
            began, child = clock(), self._born() if wanted() else None
            if child is None:
                return None
            error = self._first_words(child, work, wanted, "it was not ready yet")
            if not error:
                self.start_seconds = clock() - began
                return child
            error = f"{error}; it ended with {self.end(child)}"
        if self._is_closed or not wanted():
            return None
        raise NotReady(error)

    def opened(self, child: Child, work: Assignment, wanted: Callable[[], bool]) -> Child | None:
        """Return the process once it has its resources; None if it is not wanted any more. Raises ResourceError."""
        died = "a worker process died while opening its resources: run again"
        if not (error := self._first_words(child, work, wanted, died)):
            return child
        self.end(child)
        if self._is_closed or not wanted():
            return None
        raise ResourceError(error)

    def _born(self) -> Child | None:
        with self._changed:
            if self._is_closed:
                return None
            self._count += 1
        try:
            return Child(self.stop, self._target, self._stages)
        except BaseException:
            self._gone()
            raise

    def _first_words(self, child: Child, work: Assignment, wanted: Callable[[], bool], died: str) -> str:
        """Return the error of a process that has just begun; empty if there is none. A process that is not wanted any
        more is not waited for."""
        with self._attending(child, work):
            try:
                return child.hear(lambda: None if wanted() else child.kill()).decode()
            except GONE:
                return died

    def attend(self, child: Child, parcel: bytes, work: Assignment, answer: Callable[[bytes], bytes] | None = None,
               look: Callable[[], None] | None = None) -> bool:  # fmt: skip
        """Have a process run a parcel; return whether it survived. Outcomes come back one by one, so that they are kept
        if it dies; its questions are answered. With `look`, which is called now and then, it is killed if its lease is
        lost."""

        def wait() -> None:
            if look is not None:
                look()
                if work.is_vain:
                    child.kill()

        with self._attending(child, work):
            work.started = clock()
            try:
                child.tell(parcel)
                while message := child.hear(wait):
                    said = remote.unpack(message)
                    if isinstance(said, remote.Asked):
                        assert answer is not None
                        child.tell(answer(said.what))
                    elif isinstance(said, remote.CameTo):
                        work.reached = said.reached
                    else:
                        work.outcomes.append(said)
                        work.started = clock()
            except GONE:
                return False
            finally:
                work.started = 0.0
        return True

    @contextmanager
    def _attending(self, child: Child, work: Assignment) -> Iterator[None]:
        """Register a process with work that may be given up, in which case the process is killed."""
        with self._changed:
            self._busy[work] = child
            if self._is_closed or work.abandoned:
                child.kill()
        try:
            yield
        finally:
            with self._changed:
                del self._busy[work]

    def abandon(self, work: Assignment) -> None:
        """Kill the process that runs an assignment: a hanging handler in it cannot be stopped otherwise."""
        with self._changed:
            if work in self._busy:
                self._busy[work].kill()

    def end(self, child: Child) -> str:
        """Let a process end by itself, so that its output is not lost; return how it ended."""
        try:
            return child.end(self._farewell)
        finally:
            self._gone()

    def _gone(self) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Let idle processes end by themselves and kill the others; none is left."""
        atexit.unregister(self.close)
        with self._changed:
            self._is_closed = True
            for child in self._busy.values():
                child.kill()
        self._release()
        with self._changed:
            self._changed.wait_for(lambda: not self._count, self._farewell + 1.0)


# -- there --------------------------------------------------------------------------------------------------------


def _live(line: Connection, *args: Any) -> None:
    _settle_in(line)
    try:
        _serve(line, *args)
    finally:
        for stream in (sys.stdout, sys.stderr):  # a thread of the user may keep the process from ending by itself
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()


def _settle_in(line: Connection) -> None:
    """Leave Ctrl-C and requests to end to the parent, which lets this process finish; if the parent dies, this process
    ends as well. Its forks are excluded from that, and do not keep the line open after its death."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave_to_parent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_PARENT)

    def part() -> None:
        line.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    os.register_at_fork(after_in_child=part)
    threading.Thread(target=_end_with_parent, name="holdfast-orphan", daemon=True).start()


def _leave_to_parent(*_: object) -> None:
    """Do nothing. It is a handler because an ignored signal would be ignored by programs that handlers start as
    well."""


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        while os.getppid() == parent.pid:  # a process that the parent forked may outlive it, and hide its end
            parent.join(1.0)
        os._exit(1)


def _serve(line: Connection, stop: Any, target: str, stages: Sequence[int]) -> None:
    """Find the pipeline, open its resources, then run parcels until the last; called in the worker process."""
    try:
        resources = Resources(remote.find(target))
    except BaseException as error:  # noqa: BLE001 - importing a program may raise anything: the parent reports it
        line.send_bytes(f"{type(error).__name__}: {error}".encode(errors="replace"))
        return
    line.send_bytes(b"")

    def stopping() -> bool:
        return bool(stop.value)

    with suppress(*GONE), remote.holding(resources, stages) as trouble:
        line.send_bytes(trouble.encode(errors="replace"))
        while not trouble and (parcel := line.recv_bytes()):
            remote.run_and_tell(target, parcel, line, stopping)


# -- a pool -------------------------------------------------------------------------------------------------------


class Processes(Hands):
    """A pool of processes, started as they are needed; a process that dies costs only its current item."""

    def __init__(self, size: int, target: str, finished: Finished, stages: Sequence[int] = ()) -> None:
        super().__init__(size, finished)
        self._host = Host(target, stages, super().close)
        self._first = threading.Lock()
        """Held until one process has found the pipeline: if none can, the error is reported once."""
        self._is_found = False

    @property
    def start_seconds(self) -> float:
        return self._host.start_seconds

    def abandon(self, work: Assignment) -> None:
        super().abandon(work)
        self._host.abandon(work)

    def give_back(self) -> None:
        """Hand back assignments that no process has begun, without waiting for processes that are not ready."""
        self._host.stop.value = True
        super().give_back()

    def close(self) -> None:
        self._host.close()

    def _loop(self) -> None:
        child: Child | None = None
        try:
            while (todo := self._todo.get()) is not None:
                runner, work = todo
                if child is not None and work.fresh:
                    # A suspect gets a new process, so that it is not blamed for what other items left behind in an old
                    # one.
                    self._host.end(child)
                    child = None
                if child is None:
                    child = self._new(todo)
                if child is None:
                    break
                how = self._run(child, runner, work)
                if how is not None:
                    child = None
                if not self._handed_in(work, how):
                    break
        finally:
            if child is not None:
                self._host.end(child)

    def _run(self, child: Child, runner: Runner, work: Assignment) -> str | None:
        """Have a process run items; return how it ended if it died."""
        if work.cut or runner.may_not_begin(work):
            return None
        is_alive = self._host.attend(child, remote.pack(runner, work), work)
        runner.learn(work.outcomes)
        return None if is_alive else self._host.end(child)

    def _handed_in(self, work: Assignment, how: str | None) -> bool:
        """Hand back the result; return False if the assignment was given up, and another thread has replaced this
        one."""
        if how is None or len(work.outcomes) == len(work.items):
            return self._answer(work)
        if not self._strike_off(work):
            return False
        self._finished.put(Broken(work, how, work.items[len(work.outcomes)]))
        return True

    def _new(self, todo: Todo) -> Child | None:
        """Return a process that is ready; None if there is none, which is reported if an assignment still waits for
        it."""
        work = todo[1]
        try:
            child = self._start(todo)
            return None if child is None else self._host.opened(child, work, lambda: self._is_wanted(todo))
        except OSError as error:
            if not self._can_do_with_less(todo) and self._is_wanted(todo):
                self._finished.put(Unable(str(error)))
        except NotReady as error:
            self._finished.put(Unable(str(error)))
        except ResourceError as error:
            answer = work.answer() if self._strike_off(work) else None
            self._finished.put(Unable(error, answer))
        return None

    def _start(self, todo: Todo) -> Child | None:
        if self._is_found:
            return self._host.start(todo[1], lambda: self._is_wanted(todo))
        with self._first:
            tries = FALSE_STARTS if self._is_found else 1
            child = self._host.start(todo[1], lambda: self._is_wanted(todo), tries)
            self._is_found = self._is_found or child is not None
        return child

    def _is_wanted(self, todo: Todo) -> bool:
        """Return whether a new process is still needed; when the run stops, its assignment is handed back."""
        runner, work = todo
        if runner.stopping():
            self._answer(work)
        return work in self._open

    def _can_do_with_less(self, todo: Todo) -> bool:
        """Return whether another process takes the assignment, if the system cannot start more processes."""
        with self._lock:
            if self._count > 1:
                self._count -= 1
                self._todo.put(todo)
                return True
            return False
