"""Functions of the user's that are asked on threads of their own, for a limited time.

One that hangs keeps its thread and is left alone: nobody waits for it any longer. Threads are daemons, so that it
cannot keep the process from ending either.
"""

import inspect
import os
import queue
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ClassVar

from holdfast.core import canonical
from holdfast.core.errors import Bad, HoldfastError, UsageError
from holdfast.core.limits import CHECK_SECONDS, HUNG_CHECKS
from holdfast.runtime.text import Duration, seconds

current_batch: ContextVar[tuple[str, str] | None] = ContextVar("holdfast-batch", default=None)
"""Of which pipeline and batch something of the user's is run here, on this thread or in this coroutine: the event loop
has coroutines of several runs on one thread."""


class Silence(TimeoutError):
    """It did not answer in time."""


class Asker:
    """Asks, and waits for the answer no longer than it may take. Threads are started as they are needed."""

    def __init__(self) -> None:
        self._idle: list[_Voice] = []
        self._hung: list[_Voice] = []
        self._lock = threading.Lock()

    def ask(self, function: Callable[..., Any], *args: Any, seconds: float) -> Any:
        """Return what the function answers; what it raises is raised here, and Silence when it takes too long."""
        if self._hung:
            self._refuse_if_too_many_hang()
        voice = self._take()
        voice.todo.put((function, args, current_batch.get()))
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
            function, args, batch = todo
            current_batch.set(batch)
            answer, error = None, None
            try:
                answer = function(*args)
            except BaseException as raised:  # noqa: BLE001 - whoever asked gets it, whatever it is
                error = raised
            if os.getpid() != process:  # it forked and its child came back: it must not go on with its parent's work
                os._exit(70)
            self.answers.put((answer, error))
            del todo, function, args, answer, error


Function = Callable[..., Any]
UNSAID = "its verifier does not accept it"
"""What is said of an output where the verifier gave no reason."""


class CheckFailed(HoldfastError):
    """A verifier or an adopter raised or hung: that says nothing about the output."""

    def __init__(self, what: str, code: str, error: BaseException) -> None:
        super().__init__(what)
        self.what = what
        self.code = code
        self.error = error


class Check:
    """A function of the user's that looks at the outside world, and how long it may take."""

    word = ""
    code = ""
    shapes: ClassVar[dict[int, str]] = {}

    def __init__(self, function: Function, stage: str, timeout: Duration | None, stage_timeout: float | None) -> None:
        self.what = f"the {self.word} of stage {stage!r}"
        self.count = _count(function, self.what)
        if self.count not in self.shapes:
            shapes = " or ".join(self.shapes.values())
            raise UsageError(f"{self.what} takes {self.count} arguments: write {shapes}")
        if inspect.iscoroutinefunction(function):
            raise UsageError(f"{self.what} is async: write a plain function")
        self.function = function
        default = stage_timeout if stage_timeout is not None else CHECK_SECONDS
        self.seconds = default if timeout is None else seconds(timeout, f"{self.what}: timeout")
        if self.seconds <= 0:
            raise UsageError(f"{self.what}: timeout={self.seconds:g} must be more than 0 s")

    def failed(self, error: BaseException) -> CheckFailed:
        return CheckFailed(self.what, self.code, error)


class Verifier(Check):
    """A user's check of an output, `(out)` or `(out, item, ctx)`."""

    word = "verifier"
    code = "verifier_failed"
    shapes: ClassVar = {1: "(out)", 3: "(out, item, ctx)"}

    @property
    def wants_item(self) -> bool:
        return self.count == 3

    def objection(self, out: Any, item: Any, ctx: Any) -> str | None:
        """Return what it has against the output; None where it accepts it."""
        try:
            answer = self.function(out, item, ctx) if self.wants_item else self.function(out)
        except Bad as bad:
            answer = bad
        if isinstance(answer, Bad):
            return str(answer) or UNSAID
        if type(answer).__name__ not in ("bool", "bool_"):  # numpy has bools of its own
            raise UsageError(f"it returned {_a(answer)}: a verifier returns True, False, or hf.Bad(why)")
        return None if answer else UNSAID


class Adopter(Check):
    """A user's search for what an earlier attempt made and could not record, `(item, ctx)`."""

    word = "adopter"
    code = "adopter_failed"
    shapes: ClassVar = {2: "(item, ctx)"}

    def find(self, item: Any, ctx: Any) -> Any:
        return self.function(item, ctx)


def _a(answer: object) -> str:
    return "nothing" if answer is None else f"a value of type {type(answer).__name__}"


def _count(function: Function, what: str) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise UsageError(f"{what} cannot be called: write a function") from None
    return len([p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD])


def no_answer(error: BaseException) -> str:
    """Return how a check gave no answer, and what to do."""
    how = text_of(error) if isinstance(error, Silence) else f"it raised {type(error).__name__}: {text_of(error)}"
    return f"{how}; the item itself may be fine: put right what it looks at, or the function"


def text_of(error: BaseException) -> str:
    try:
        text = ". ".join([str(error), *map(str, getattr(error, "__notes__", ()))])
        return canonical.storable(text) or type(error).__name__
    except Exception as worse:  # noqa: BLE001 - a __str__ of the user's may raise anything
        return f"{type(error).__name__} (its text cannot be had: {type(worse).__name__})"
