"""Functions of the user's that are asked on threads of their own, for a limited time.

One that hangs keeps its thread and is left alone: nobody waits for it any longer. Threads are daemons, so that it
cannot keep the process from ending either.
"""

import os
import queue
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from holdfast.core.limits import HUNG_CHECKS


class _Here:
    """Of which pipeline and batch something of the user's is run here, on this thread or in this coroutine: the event
    loop has coroutines of several runs on one thread."""

    _batch: ContextVar[tuple[str, str] | None] = ContextVar("holdfast-batch", default=None)

    @property
    def batch(self) -> tuple[str, str] | None:
        return self._batch.get()

    @batch.setter
    def batch(self, batch: tuple[str, str] | None) -> None:
        self._batch.set(batch)


here = _Here()


class Silence(TimeoutError):
    """It did not answer in time."""


class Asker:
    """Asks, and waits for the answer no longer than it may take. Threads are started as they are needed."""

    def __init__(self) -> None:
        self._idle: list[_Voice] = []
        self._hung: list[_Voice] = []
        self._lock = threading.Lock()

    def ask(self, function: Callable[..., Any], *args: Any, seconds: float) -> Any:
        """What the function answers; what it raises is raised here, and Silence when it takes too long."""
        if self._hung:
            self._refuse_if_too_many_hang()
        voice = self._take()
        voice.todo.put((function, args, here.batch))
        try:
            answer, error = voice.answers.get(timeout=seconds)
        except queue.Empty:
            voice.todo.put(None)
            with self._lock:
                self._hung.append(voice)
            raise Silence(f"it did not answer within {seconds:g} s") from None
        self._idle.append(voice)
        if error is not None:
            raise error
        return answer

    def close(self) -> None:
        """Let the threads end that nobody needs."""
        while self._idle:
            self._take().todo.put(None)

    def _refuse_if_too_many_hang(self) -> None:
        with self._lock:
            self._hung = [voice for voice in self._hung if voice.is_alive()]
            if len(self._hung) >= HUNG_CHECKS:
                raise Silence(f"{HUNG_CHECKS} checks hang already, so it was not asked")

    def _take(self) -> "_Voice":
        try:
            return self._idle.pop()
        except IndexError:
            voice = _Voice()
            voice.start()
            return voice


class _Voice(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="holdfast-asked", daemon=True)
        self.todo: queue.SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...], Any] | None] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run(self) -> None:
        process = os.getpid()
        while (todo := self.todo.get()) is not None:
            function, args, here.batch = todo
            answer, error = None, None
            try:
                answer = function(*args)
            except BaseException as raised:  # noqa: BLE001 - whoever asked gets it, whatever it is
                error = raised
            if os.getpid() != process:  # it forked and its child came back: it must not go on with its parent's work
                os._exit(70)
            self.answers.put((answer, error))
            del todo, function, args, answer, error
