"""The definition of a resource: the function that opens it, and its scope."""

import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from holdfast.core.errors import UsageError
from holdfast.runtime.define.context import Context
from holdfast.runtime.define.schema import annotations_of

Scope = Literal["run", "process", "thread"]
Function = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Resource:
    """A named function that opens something for handlers; if it yields, the code after the yield closes it."""

    name: str
    function: Function
    scope: Scope
    is_async: bool
    yields: bool
    needed: tuple[str, ...]
    """Resources that it takes itself."""
    optional: tuple[str, ...]
    opening: threading.Lock = field(default_factory=threading.Lock)
    """Held while the resource of this process is opened."""

    @property
    def what(self) -> str:
        return f"resource {self.name!r}"


def define(function: Function, name: str | None, scope: Scope) -> Resource:
    """Return a resource; refuse one that could never be passed to a handler."""
    named = name if name is not None else getattr(function, "__name__", type(function).__name__)
    what = f"resource {named!r}"
    if not callable(function):
        raise UsageError(f"{what}: use @….resource on a function, or pass options by name")
    if not isinstance(named, str) or not named.isidentifier() or named == "ctx":
        raise UsageError(
            f"{what}: handlers take it as a parameter of that name: use a valid parameter name other than ctx"
        )
    if scope not in get_args(Scope):
        raise UsageError(f"{what}: scope={scope!r}: use 'run', 'process' or 'thread'")
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    if is_async and scope == "thread":
        raise UsageError(f"{what} is async and lives on the event loop, which is one thread: use scope='run'")
    _refuse_wrapped(function, what)
    needed, optional = by_name(list(inspect.signature(function).parameters.values()), what)
    yields = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    return Resource(named, function, scope, is_async, yields, needed, optional)


def _refuse_wrapped(function: Function, what: str) -> None:
    """Refuse a context manager: handlers would get it unopened."""
    inner = getattr(function, "__wrapped__", None)
    if inner is None or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise UsageError(f"{what} is a context manager: remove @contextmanager, a resource is the generator itself")


COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Parameters(NamedTuple):
    """The parameters of a stage's function, as far as they are known from its definition."""

    given: Any
    """The annotation of its input."""
    made: Any
    """The annotation of its result."""
    context: str
    """The parameter for the context; empty if there is none."""
    is_guess: bool
    """True if the second parameter is taken for the context by its name only; a resource of that name has
    precedence."""
    by_name: bool
    """True if the context is passed by name, because it is not the second parameter."""
    needed: tuple[str, ...]
    """Parameters that must be resources."""
    optional: tuple[str, ...]
    """Parameters with a default, which get the resource of their name if there is one."""
    accumulator: str = ""
    """The accumulator parameter of a scan's handler, which cannot be a resource."""


def of_handler(function: Callable[..., Any], what: str) -> Parameters:
    """Return the parameters of a stage's function."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise UsageError(f"{what} cannot be called as a stage: write a function (value) or (value, ctx)") from None
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
    """Return whether a parameter has neither a default nor an annotation."""
    return parameter.default is parameter.empty and hints.get(parameter.name, Any) in (Any, object)


def by_name(parameters: list[inspect.Parameter], what: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names that must be resources, and those that may be."""
    for each in parameters:
        if each.kind is each.POSITIONAL_ONLY and each.default is each.empty:
            raise UsageError(f"{what} takes {each.name!r} by position only: a resource is passed by name")
    passed = [p for p in parameters if p.kind not in (*COLLECTING, inspect.Parameter.POSITIONAL_ONLY)]
    needed = tuple(p.name for p in passed if p.default is p.empty)
    return needed, tuple(p.name for p in passed if p.name not in needed)


Defined = Mapping[str, Resource]

LASTS = {"thread": 0, "run": 1, "process": 2}


class Binding(NamedTuple):
    """The parameters of a handler, resolved."""

    context: str
    by_name: bool
    names: tuple[str, ...]


def unbound(found: Parameters) -> Binding:
    """Return the parameters of a handler without resources."""
    return Binding(found.context, found.by_name, ())


def bind(found: Parameters, defined: Defined, *, what: str, pipeline: str, awaits: bool) -> Binding:
    """Return which parameters are resources. Refuse an undefined name, and an async resource in a function that does
    not run on the event loop."""
    if found.accumulator in defined:
        raise UsageError(
            f"{what} takes {found.accumulator!r} as its accumulator, but that is the name of a resource: write it "
            "after a *, as in (rows, *, client) or (rows, acc, *, client)"
        )
    is_resource = found.is_guess and found.context in defined
    needed = (*found.needed, found.context) if is_resource else found.needed
    names = (*needed, *(name for name in found.optional if name in defined))
    _check(names, defined, what=what, pipeline=pipeline, awaits=awaits)
    return Binding("" if is_resource else found.context, found.by_name, names)


def _check(names: Iterable[str], defined: Defined, *, what: str, pipeline: str, awaits: bool) -> None:
    for name in names:
        if name not in defined:
            raise UsageError(
                f"{what} takes {name!r}, but {pipeline!r} has no resource of that name: define one with "
                f"@{pipeline}.resource, or give the parameter a default; if it is the context, name it ctx, or "
                "annotate it hf.Context"
            )
        if defined[name].is_async and not awaits:
            raise UsageError(
                f"{what} takes {name!r}, an async resource, but does not run on the event loop: make it an `async def` "
                "that is not a generator, or make the resource synchronous"
            )


def in_order(names: Iterable[str], defined: Defined, pipeline: str) -> list[Resource]:
    """Return resources and their dependencies, in the order in which they are opened."""
    found: dict[str, Resource] = {}
    for name in names:
        _add(defined[name], defined, pipeline, found, ())
    return list(found.values())


def _add(each: Resource, defined: Defined, pipeline: str, found: dict[str, Resource], above: tuple[str, ...]) -> None:
    if each.name in above:
        circle = " → ".join([*above[above.index(each.name) :], each.name])
        raise UsageError(f"resources of {pipeline!r} depend on each other in a circle: {circle}")
    if each.name in found:
        return
    for name in rests_on(each, defined, pipeline):
        if LASTS[defined[name].scope] < LASTS[each.scope]:
            raise UsageError(
                f"{each.what} has the scope {each.scope} and takes {name!r}, which has the shorter scope "
                f"{defined[name].scope}: give both the same scope"
            )
        _add(defined[name], defined, pipeline, found, (*above, each.name))
    found[each.name] = each


def rests_on(each: Resource, defined: Defined, pipeline: str) -> tuple[str, ...]:
    """Return the resources that another one takes."""
    names = (*each.needed, *(name for name in each.optional if name in defined))
    _check(names, defined, what=each.what, pipeline=pipeline, awaits=each.is_async)
    return names
