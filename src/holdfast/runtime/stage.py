"""A stage: one function with its schemas, its policy, its sink, its verifier and its hooks."""

import inspect
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel

from holdfast.core import canonical
from holdfast.core.errors import UsageError
from holdfast.core.retry import Policy
from holdfast.runtime.durations import Duration, seconds
from holdfast.runtime.hooks import Hooks
from holdfast.runtime.policy import Breaker, Retry
from holdfast.runtime.schema import Schema, of_parameters
from holdfast.runtime.sinks.base import Sink

Where = Literal["threads", "processes"]


class Stage:
    """A handler and everything that is said about it. Calling it calls the handler, so that it can be tested alone."""

    def __init__(self, function: Callable[..., Any], *, name: str | None = None, retry: Retry | None = None,
                 sink: Sink | None = None, timeout: Duration | None = None, concurrency: int | None = None,
                 executor: Where | None = None, metrics: type[BaseModel] | None = None,
                 breaker: Breaker | bool | None = None) -> None:  # fmt: skip
        self.function = function
        self.name: str = name if name is not None else getattr(function, "__name__", type(function).__name__)
        what = f"stage {self.name!r}"
        given, made, self.wants_context = of_parameters(function, what)
        self.input = Schema(given, f"{what}, input")
        self.output = Schema(made, f"{what}, output", "invalid_output")
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
        self.retry = retry if retry is not None else Retry()
        self.sink = sink
        self.timeout = None if timeout is None else seconds(timeout, f"{what}: timeout")
        self.concurrency = concurrency
        self.executor = executor
        self.metrics = metrics
        self.breaker = Breaker() if breaker in (None, True) else breaker
        """What makes it pause; False where nothing does."""
        self.hooks = Hooks(what)
        self.verifier: Verifier | None = None
        self.__name__ = self.name
        self.__doc__ = getattr(function, "__doc__", None)
        self._check(what)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def verify(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Register a verifier, `(out)` or `(out, item, ctx)`: it must say True before an output counts."""
        self.verifier = Verifier(function, self.name)
        return function

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
        return {
            "name": self.name,
            "input": self.input.describe(),
            "output": self.output.describe(),
            "code": _code_of(self.function),
            "sink": self.sink.describe() if self.sink is not None else None,
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


class Verifier:
    """A user's check of an output."""

    def __init__(self, function: Callable[..., Any], stage: str) -> None:
        count = len([p for p in inspect.signature(function).parameters.values() if p.default is p.empty])
        if count not in (1, 3):
            raise UsageError(
                f"the verifier of stage {stage!r} takes {count} arguments: write (out) or (out, item, ctx)"
            )
        if inspect.iscoroutinefunction(function):
            raise UsageError(f"the verifier of stage {stage!r} is async: write a plain function")
        self.function = function
        self.wants_item = count == 3

    def holds(self, out: Any, item: Any, ctx: Any) -> bool:
        return bool(self.function(out, item, ctx) if self.wants_item else self.function(out))


def _code_of(function: Callable[..., Any]) -> str:
    """A digest of the handler's source; of its name where the source cannot be had."""
    try:
        return canonical.fingerprint(inspect.getsource(function))
    except (OSError, TypeError):
        return canonical.fingerprint(getattr(function, "__qualname__", repr(type(function))))
