"""A stage: one function with its schemas, its policy, its sink, its verifier, its adopter and its hooks."""

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal, overload

from pydantic import BaseModel

from holdfast.core import changes
from holdfast.core.errors import UsageError
from holdfast.core.retry import Policy
from holdfast.runtime.checking.checks import Adopter, Verifier
from holdfast.runtime.durations import Duration, seconds
from holdfast.runtime.hooks import Hooks
from holdfast.runtime.plans.code import code_of
from holdfast.runtime.policy import Breaker, Retry
from holdfast.runtime.resources.parameters import of_handler
from holdfast.runtime.schema import Schema
from holdfast.runtime.sinks.base import Sink

Where = Literal["threads", "processes"]
Function = Callable[..., Any]


class Stage:
    """A handler and everything that is said about it. Calling it calls the handler, so that it can be tested alone."""

    def __init__(self, function: Callable[..., Any], *, name: str | None = None, retry: Retry | None = None,
                 sink: Sink | None = None, timeout: Duration | None = None, concurrency: int | None = None,
                 executor: Where | None = None, metrics: type[BaseModel] | None = None,
                 breaker: Breaker | bool | None = None) -> None:  # fmt: skip
        self.function = function
        self.name: str = name if name is not None else getattr(function, "__name__", type(function).__name__)
        what = self.what = f"stage {self.name!r}"
        self.parameters = of_handler(function, what)
        self.input = Schema(self.parameters.given, f"{what}, input")
        self.output = Schema(self.parameters.made, f"{what}, output", "invalid_output")
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
        self.awaits = self.is_async
        """It runs on the event loop of the process, where async resources live."""
        self.retry = retry if retry is not None else Retry()
        self.sink = sink
        self.timeout = None if timeout is None else seconds(timeout, f"{what}: timeout")
        self.concurrency = concurrency
        self.executor = executor
        self.metrics = metrics
        self.breaker = Breaker() if breaker in (None, True) else breaker
        """What makes it pause; False where nothing does."""
        self.hooks = Hooks(what)
        self.takes_ranges = False
        """Its items are ranges of a source: each is claimed by itself, and comes to its end in many checkpoints."""
        self.verifier: Verifier | None = None
        self.adopter: Adopter | None = None
        self.__name__ = self.name
        self.__doc__ = getattr(function, "__doc__", None)
        self._check(what)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @overload
    def verify(self, function: Function, /) -> Function: ...

    @overload
    def verify(self, *, timeout: Duration | None = None) -> Callable[[Function], Function]: ...

    def verify(
        self, function: Function | None = None, *, timeout: Duration | None = None
    ) -> Function | Callable[[Function], Function]:
        """Register a verifier, `(out)` or `(out, item, ctx)`: it must say True before an output counts."""

        def register(given: Function) -> Function:
            self.verifier = Verifier(given, self.name, timeout, self.timeout)
            return given

        return register if function is None else register(function)

    @overload
    def adopt(self, function: Function, /) -> Function: ...

    @overload
    def adopt(self, *, timeout: Duration | None = None) -> Callable[[Function], Function]: ...

    def adopt(
        self, function: Function | None = None, *, timeout: Duration | None = None
    ) -> Function | Callable[[Function], Function]:
        """Register an adopter, `(item, ctx) -> out | None`: before an item is tried again, it looks for what an earlier
        attempt made and could not record."""

        def register(given: Function) -> Function:
            self.adopter = Adopter(given, self.name, timeout, self.timeout)
            return given

        return register if function is None else register(function)

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Call a function before the first item of this stage is run, in every run."""
        return self.hooks.before.add(function)

    def after(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Call a function with the stage's statistics once it is complete; what it returns is kept."""
        return self.hooks.after.add(function)

    def on_failure(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Call a function with every item that this stage buries."""
        return self.hooks.on_failure.add(function)

    @property
    def policy(self) -> Policy:
        return self.retry.policy()

    def describe(self) -> dict[str, Any]:
        """The stage as it is remembered with the batch; the code as a digest only."""
        return {**self._described, "sink": self.sink.describe() if self.sink is not None else None}

    @cached_property
    def maker(self) -> str:
        """What the journal calls the stage as it is defined now."""
        return changes.maker(self.describe())

    @cached_property
    def _described(self) -> dict[str, Any]:
        """Asked for once: the file of a handler may be edited while it runs."""
        return {
            "name": self.name,
            "input": self.input.describe(),
            "output": self.output.describe(),
            "code": code_of(self.function),
            "shapes": [self.input.shape(), self.output.shape()],
        }

    def _check(self, what: str) -> None:
        if self.name == "<lambda>":
            raise UsageError("a lambda has no name to be remembered by: write stage(name=…), or define a function")
        if not isinstance(self.retry, Retry):
            raise UsageError(f"{what}: retry={self.retry!r}: write hf.Retry(attempts=…)")
        if self.sink is not None and not isinstance(self.sink, Sink):
            raise UsageError(f'{what}: sink={self.sink!r}: write hf.Files("out/{{key}}.json")')
        if self.concurrency is not None and (type(self.concurrency) is not int or self.concurrency < 1):
            raise UsageError(f"{what}: concurrency={self.concurrency!r}: a whole number, 1 or more")
        if not (self.breaker is False or isinstance(self.breaker, Breaker)):
            raise UsageError(
                f"{what}: breaker={self.breaker!r}: write hf.Breaker(failures=…, pause=…), or False for none"
            )
        if self.timeout is not None and self.timeout <= 0:
            raise UsageError(f"{what}: timeout={self.timeout:g} must be more than 0 s")
        if self.executor not in (None, "threads", "processes"):
            raise UsageError(
                f"{what}: executor={self.executor!r} must be 'threads' or 'processes'; pass an Executor to run()"
            )
        if self.executor == "processes" and self.is_async:
            raise UsageError(f"{what} is async: it runs on the event loop, not on processes")
        if self.metrics is not None and not (inspect.isclass(self.metrics) and issubclass(self.metrics, BaseModel)):
            raise UsageError(f"{what}: metrics={self.metrics!r} must be a pydantic model")
