"""A resource as it is defined: the function that makes it, and for how long one of them lasts."""

import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from holdfast.core.errors import UsageError
from holdfast.runtime.resources.parameters import by_name

Scope = Literal["run", "process", "thread"]
Function = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Resource:
    """A named function that opens something for handlers; where it yields, the rest of it closes that again."""

    name: str
    function: Function
    scope: Scope
    is_async: bool
    yields: bool
    needed: tuple[str, ...]
    """Resources that it is handed itself."""
    optional: tuple[str, ...]
    opening: threading.Lock = field(default_factory=threading.Lock)
    """Held while the one of this process is opened."""

    @property
    def what(self) -> str:
        return f"resource {self.name!r}"


def define(function: Function, name: str | None, scope: Scope) -> Resource:
    """Return a resource; refuse one that could never be handed to anybody."""
    named = name if name is not None else getattr(function, "__name__", type(function).__name__)
    what = f"resource {named!r}"
    if not callable(function):
        raise UsageError(f"{what}: use @….resource on a function, or give options by name")
    if not isinstance(named, str) or not named.isidentifier() or named == "ctx":
        raise UsageError(f"{what}: handlers are handed it by the name of a parameter: give it such a name, and not ctx")
    if scope not in get_args(Scope):
        raise UsageError(f"{what}: scope={scope!r}: use 'run', 'process' or 'thread'")
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    if is_async and scope == "thread":
        raise UsageError(f"{what} is async, and lives on the event loop: that is one thread. Use scope='run'")
    _refuse_wrapped(function, what)
    needed, optional = by_name(list(inspect.signature(function).parameters.values()), what)
    yields = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    return Resource(named, function, scope, is_async, yields, needed, optional)


def _refuse_wrapped(function: Function, what: str) -> None:
    """A context manager would be handed over unopened."""
    inner = getattr(function, "__wrapped__", None)
    if inner is None or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise UsageError(f"{what} is a context manager: leave out @contextmanager, a resource is the generator itself")
