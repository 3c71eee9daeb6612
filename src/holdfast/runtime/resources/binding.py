"""Who is handed which resources: names of parameters held against what the pipeline defines, when a run begins."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from holdfast.core.errors import UsageError
from holdfast.runtime.resources.definition import Resource
from holdfast.runtime.resources.parameters import Parameters

Defined = Mapping[str, Resource]

LASTS = {"thread": 0, "run": 1, "process": 2}


class Binding(NamedTuple):
    """The parameters of a handler, resolved."""

    context: str
    by_name: bool
    names: tuple[str, ...]


def unbound(found: Parameters) -> Binding:
    """Return the parameters of a handler where nothing is defined."""
    return Binding(found.context, found.by_name, ())


def bind(found: Parameters, defined: Defined, *, what: str, pipeline: str, awaits: bool) -> Binding:
    """Return which parameters are resources. Refuse a name that nobody defines, and an async one in a function that
    does not run where it lives."""
    if found.accumulator in defined:
        raise UsageError(
            f"{what} takes {found.accumulator!r} as its accumulator, and that is the name of a resource: write it "
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
                f"{what} takes {name!r}, and {pipeline!r} has no resource of that name: define one with "
                f"@{pipeline}.resource, or give the parameter a default; if it is the context, name it ctx, or "
                "annotate it hf.Context"
            )
        if defined[name].is_async and not awaits:
            raise UsageError(
                f"{what} takes {name!r}, an async resource, which lives on the event loop, and does not run there: "
                "write it as `async def`, and not as a generator, or the resource without async"
            )


def in_order(names: Iterable[str], defined: Defined, pipeline: str) -> list[Resource]:
    """Return resources and what they rest on, in the order in which they are opened."""
    found: dict[str, Resource] = {}
    for name in names:
        _add(defined[name], defined, pipeline, found, ())
    return list(found.values())


def _add(each: Resource, defined: Defined, pipeline: str, found: dict[str, Resource], above: tuple[str, ...]) -> None:
    if each.name in above:
        circle = " → ".join([*above[above.index(each.name) :], each.name])
        raise UsageError(f"resources of {pipeline!r} rest on each other in a circle: {circle}")
    if each.name in found:
        return
    for name in rests_on(each, defined, pipeline):
        if LASTS[defined[name].scope] < LASTS[each.scope]:
            raise UsageError(
                f"{each.what} lasts for a {each.scope} and takes {name!r}, which lasts for a {defined[name].scope}: "
                "it would outlive it. Give both the same scope"
            )
        _add(defined[name], defined, pipeline, found, (*above, each.name))
    found[each.name] = each


def rests_on(each: Resource, defined: Defined, pipeline: str) -> tuple[str, ...]:
    """Return the resources that another one is handed."""
    names = (*each.needed, *(name for name in each.optional if name in defined))
    _check(names, defined, what=each.what, pipeline=pipeline, awaits=each.is_async)
    return names
