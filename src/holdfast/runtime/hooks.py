"""The hooks that users hang on the life of a pipeline or a stage: before, after, on failure."""

import inspect
from collections.abc import Callable
from typing import Any

from holdfast.runtime import event_loop
from holdfast.runtime.event_loop import Loan


class HookList:
    """Functions to call at one moment, in the order they were added. Each may take the facts, or nothing."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.functions: list[Callable[..., Any]] = []

    def add(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self.functions = [
            f for f in self.functions if getattr(f, "__qualname__", f) != getattr(function, "__qualname__", function)
        ]
        self.functions.append(function)
        return function

    def call(self, facts: Any, loan: Loan | None = None) -> list[Any]:
        """Call all of them, coroutines on the event loop (of a run, where its loan is passed); what they raise goes
        up."""
        return [event_loop.call(function, *[facts] * _takes_one(function), loan=loan) for function in self.functions]

    def __bool__(self) -> bool:
        return bool(self.functions)


class Hooks:
    """The three moments."""

    def __init__(self, what: str) -> None:
        self.before = HookList(f"{what}, before")
        self.after = HookList(f"{what}, after")
        self.on_failure = HookList(f"{what}, on_failure")


def _takes_one(function: Callable[..., Any]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL) for p in parameters)
