"""The parameters of a handler: its value, perhaps a context, and the names of resources."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.core.errors import UsageError
from holdfast.runtime.context import Context
from holdfast.runtime.schema import annotations_of

COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Parameters(NamedTuple):
    """The parameters of a stage's function, as far as its definition tells."""

    given: Any
    """The annotation of its value."""
    made: Any
    """The annotation of its answer."""
    context: str
    """The parameter for the context; empty where there is none."""
    is_guess: bool
    """It is the second parameter, and its name makes it the context: a resource of that name goes before."""
    by_name: bool
    """The context is passed by name, because it is not the second parameter."""
    needed: tuple[str, ...]
    """Parameters that must be resources."""
    optional: tuple[str, ...]
    """Parameters with a default, which are handed a resource of their name where there is one."""
    accumulator: str = ""
    """The parameter of a scan's handler for what it accumulates: it cannot be a resource."""


def of_handler(function: Callable[..., Any], what: str) -> Parameters:
    """Return the parameters of a stage's function."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise UsageError(f"{what} cannot be called like a stage: write a function (value) or (value, ctx)") from None
    positional = [p for p in parameters if p.kind in BY_POSITION]
    if not positional:
        raise UsageError(f"{what} takes {len(parameters)} arguments: a stage takes (value) or (value, ctx)")
    hints = annotations_of(function)
    rest = [p for p in parameters if p is not positional[0] and p.kind not in COLLECTING]
    named = next((p for p in rest if p.name == "ctx" or hints.get(p.name) is Context), None)
    second = positional[1] if len(positional) > 1 else None
    guess = second if named is None and second is not None and _may_be_context(second, hints) else None
    context = named if named is not None else guess
    others = [p for p in rest if p is not context]
    needed, optional = by_name(others, what)
    return Parameters(
        hints.get(positional[0].name, Any), hints.get("return", Any), context.name if context is not None else "",
        is_guess=guess is not None, by_name=context is not None and context is not second, needed=needed,
        optional=optional,
    )  # fmt: skip


def _may_be_context(second: inspect.Parameter, hints: dict[str, Any]) -> bool:
    return (second.name == "context" or second.name.startswith("_")) and is_bare(second, hints)


def is_bare(parameter: inspect.Parameter, hints: dict[str, Any]) -> bool:
    """Return whether nothing but its name tells about a parameter."""
    return parameter.default is parameter.empty and hints.get(parameter.name, Any) in (Any, object)


def by_name(parameters: list[inspect.Parameter], what: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names that must be resources, and those that may be."""
    for each in parameters:
        if each.kind is each.POSITIONAL_ONLY and each.default is each.empty:
            raise UsageError(f"{what} takes {each.name!r} by position only: a resource is handed over by name")
    passed = [p for p in parameters if p.kind not in (*COLLECTING, inspect.Parameter.POSITIONAL_ONLY)]
    needed = tuple(p.name for p in passed if p.default is p.empty)
    return needed, tuple(p.name for p in passed if p.name not in needed)
