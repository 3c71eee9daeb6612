"""User functions (verifiers and adopters) that are called on separate threads, for a limited time.

A function that hangs keeps its thread, and the caller no longer waits for it. Threads are daemons, so that it cannot
keep the process from ending.
"""

import inspect
import os
import queue
import re
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ClassVar

from holdfast.core import canonical
from holdfast.core.errors import Bad, HoldfastError, UsageError
from holdfast.core.limits import CHECK_SECONDS, HUNG_CHECKS
from holdfast.runtime.text import Duration, seconds

current_batch: ContextVar[tuple[str, str] | None] = ContextVar("holdfast-batch", default=None)
"""The pipeline and batch for which user code is running on this thread, or in this coroutine: the event loop has
coroutines of several runs on one thread."""


class Silence(TimeoutError):
    """A check that did not answer in time."""


class Asker:
    """A caller of user functions that waits for a limited time. Threads are started as needed."""

    def __init__(self) -> None:
        self._idle: list[_Voice] = []
        self._hung: list[_Voice] = []
        self._lock = threading.Lock()

    def ask(self, function: Callable[..., Any], *args: Any, seconds: float) -> Any:
        """Call the function and return its result. Its exceptions are raised here, and Silence if it takes too long."""
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
        """End the idle threads."""
        while self._idle:
            self._take().todo.put(None)

    def _refuse_if_too_many_hang(self) -> None:
        with self._lock:
            self._hung = [voice for voice in self._hung if voice.is_alive()]
            if len(self._hung) >= HUNG_CHECKS:
                raise Silence(f"{HUNG_CHECKS} checks are already hanging, so it was not called")

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
            except BaseException as raised:  # noqa: BLE001 - it is raised in the caller
                error = raised
            if os.getpid() != process:  # the function forked: its child must not continue the parent's work
                os._exit(70)
            self.answers.put((answer, error))
            del todo, function, args, answer, error


Function = Callable[..., Any]
UNSAID = "its verifier does not accept it"
"""The reason why an output was refused, if the verifier gave none."""


class CheckFailed(HoldfastError):
    """A verifier or an adopter that raised or hung, so that nothing is known about the output."""

    def __init__(self, what: str, code: str, error: BaseException) -> None:
        super().__init__(what)
        self.what = what
        self.code = code
        self.error = error


class Check:
    """A user function that checks the outside world, with its time limit."""

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
        """Return its objection to the output; None if it accepts the output."""
        try:
            answer = self.function(out, item, ctx) if self.wants_item else self.function(out)
        except Bad as bad:
            answer = bad
        if isinstance(answer, Bad):
            return str(answer) or UNSAID
        if type(answer).__name__ not in ("bool", "bool_"):  # numpy has its own bools
            raise UsageError(f"it returned {_a(answer)}: a verifier returns True, False, or hf.Bad(why)")
        return None if answer else UNSAID


class Adopter(Check):
    """A user's search for an output that an earlier attempt made but could not record, `(item, ctx)`."""

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
        raise UsageError(f"{what} cannot be called: pass a function") from None
    return len([p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD])


def no_answer(error: BaseException) -> str:
    """Return why a check gave no answer, and what to do."""
    how = text_of(error) if isinstance(error, Silence) else f"it raised {type(error).__name__}: {text_of(error)}"
    return f"{how}; the item itself may be fine: fix the function, or the service that it checks"


HINT = re.compile(r"\nFor more information check: https?://\S+")
"""A line that httpx adds to every error of a server."""


def text_of(error: BaseException) -> str:
    try:
        text = ". ".join([HINT.sub("", str(error)), *map(str, getattr(error, "__notes__", ()))])
        return canonical.storable(text) or type(error).__name__
    except Exception as worse:  # noqa: BLE001 - a user's __str__ may raise anything
        return f"{type(error).__name__} (its text cannot be read: {type(worse).__name__})"
