"""The types of decorators: a function that is registered keeps its own, and is refused where it cannot be called.

These say nothing at run time. What a verifier or an adopter is registered for depends on its stage, and a type variable
cannot be bound by another one: of theirs the types of parameters and answer are kept, the names of parameters are not.
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
    """A truth value of numpy, which is no bool."""

    def item(self) -> bool: ...


Given = TypeVar("Given")
"""What a verifier or an adopter calls the item: as it says itself."""
Out = TypeVar("Out")
Verdict = TypeVar("Verdict", bound=bool | Bad | NumpyBool)


class VerifierOf(Protocol[Out]):
    """Registers a verifier of such outputs."""

    @overload
    def __call__(self, function: Callable[[Out], Verdict], /) -> Callable[[Out], Verdict]: ...
    @overload
    def __call__(
        self, function: Callable[[Out, Given, Context], Verdict], /
    ) -> Callable[[Out, Given, Context], Verdict]: ...


class AdopterOf(Protocol[Out]):
    """Registers an adopter of such outputs."""

    @overload
    def __call__(self, function: Callable[[Given, Context], Out], /) -> Callable[[Given, Context], Out]: ...
    @overload
    def __call__(
        self, function: Callable[[Given, Context], Out | None], /
    ) -> Callable[[Given, Context], Out | None]: ...
