"""The types of decorators: a registered function keeps its own type, and a type checker refuses one that cannot be
called.

They have no effect at run time. The type of a verifier or an adopter depends on its stage, and a type variable cannot
be bound by another one: so the types of its parameters and its result are kept, but not the names of its parameters.
"""

from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from holdfast.core.errors import Bad
from holdfast.runtime.define.context import Context, DeadLetter

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")

BeforeHook = TypeVar("BeforeHook", bound=Callable[[str], Any] | Callable[[], Any])
"""Takes the name of the batch, or nothing."""
AfterHook = TypeVar("AfterHook", bound=Callable[[Any], Any] | Callable[[], Any])
"""Takes a report or statistics, or nothing."""
FailureHook = TypeVar("FailureHook", bound=Callable[[DeadLetter], Any] | Callable[[], Any])
Listener = TypeVar("Listener", bound=Callable[[Any], Any])
"""Takes an event."""
ItemSource = TypeVar("ItemSource", bound=Callable[[], Iterable[Any] | None])
Converging = TypeVar("Converging", bound=Callable[[Any], Any])


class NumpyBool(Protocol):
    """A boolean of numpy, which is not a `bool`."""

    def item(self) -> bool: ...


Given = TypeVar("Given")
"""The type of the item of a verifier or an adopter, as it is annotated there."""
Out = TypeVar("Out")
Verdict = TypeVar("Verdict", bound=bool | Bad | NumpyBool)


class VerifierOf(Protocol[Out]):
    """A decorator that registers a verifier of such outputs."""

    @overload
    def __call__(self, function: Callable[[Out], Verdict], /) -> Callable[[Out], Verdict]: ...
    @overload
    def __call__(
        self, function: Callable[[Out, Given, Context], Verdict], /
    ) -> Callable[[Out, Given, Context], Verdict]: ...


class AdopterOf(Protocol[Out]):
    """A decorator that registers an adopter of such outputs."""

    @overload
    def __call__(self, function: Callable[[Given, Context], Out], /) -> Callable[[Given, Context], Out]: ...
    @overload
    def __call__(
        self, function: Callable[[Given, Context], Out | None], /
    ) -> Callable[[Given, Context], Out | None]: ...
