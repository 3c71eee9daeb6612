"""What a user's functions say about the outside world: verifiers and adopters, and how long they may take."""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from holdfast.core.errors import Bad, HoldfastError, UsageError
from holdfast.core.limits import CHECK_SECONDS
from holdfast.runtime.durations import Duration, seconds

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
