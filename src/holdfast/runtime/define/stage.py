"""A stage: a handler, the digest of its code, its hooks and its options."""

import ast
import functools
import inspect
import linecache
import textwrap
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Literal, overload

import msgspec
from pydantic import BaseModel
from typing_extensions import ParamSpec, TypeVar

from holdfast.core import canonical, journal
from holdfast.core.errors import UsageError
from holdfast.core.model import Kind
from holdfast.core.retry import Policy, Rule
from holdfast.runtime import event_loop
from holdfast.runtime.define.calls import Adopter, Verifier
from holdfast.runtime.define.context import Context
from holdfast.runtime.define.decorators import (
    AdopterOf,
    AfterHook,
    AnyFunction,
    BeforeHook,
    FailureHook,
    Given,
    Out,
    Verdict,
    VerifierOf,
)
from holdfast.runtime.define.policy import Breaker, Retry
from holdfast.runtime.define.resource import of_handler
from holdfast.runtime.define.schema import Schema
from holdfast.runtime.event_loop import Loan
from holdfast.runtime.sinks.base import Sink
from holdfast.runtime.text import Duration, seconds


def code_of(function: Callable[..., Any]) -> str:
    """Return the digest of a handler's code; of its text if that cannot be parsed, of its name if there is no text.
    Functions that the handler calls are not part of it."""
    if isinstance(function, functools.partial):
        return canonical.fingerprint([code_of(function.func), _bound(function)])
    named = function if inspect.isroutine(function) or inspect.isclass(function) else type(function)
    try:
        text = _text_of(named) or inspect.getsource(named)
    except (OSError, TypeError):
        return canonical.fingerprint(getattr(function, "__qualname__", repr(type(function))))
    try:
        tree = ast.parse(textwrap.dedent(text))
    except SyntaxError:  # a lambda in the middle of a call, for example
        return canonical.fingerprint(text)
    return canonical.fingerprint(_bare(tree))


def _text_of(function: Any) -> str:
    """Return the lines of a plain function in its file, found by a parser, because the tokenizer of `inspect` takes as
    long to load as a run takes to begin. Empty if they cannot be found this way."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or code.co_name == "<lambda>":
        return ""
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename, getattr(function, "__globals__", None))
    last = _last_lines("".join(lines)).get((code.co_name, code.co_firstlineno))
    return "".join(lines[code.co_firstlineno - 1 : last]) if last is not None else ""


@functools.lru_cache(maxsize=4)
def _last_lines(text: str) -> dict[tuple[str, int], int]:
    """Return the last line of every function in a file, by its name and its first line."""
    try:
        nodes = ast.walk(ast.parse(text))
    except (SyntaxError, ValueError):
        return {}
    found = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {
        (node.name, min([node.lineno, *(each.lineno for each in node.decorator_list)])): node.end_lineno or node.lineno
        for node in found
    }


def _bare(node: Any) -> Any:
    """Return a tree as plain values, without parts that do not affect what it does. Empty fields are left out, so that
    another version of Python, which may add fields, gives the same result."""
    if isinstance(node, list):
        return [_bare(each) for each in node]
    if isinstance(node, ast.Constant):
        return [type(node.value).__name__, repr(node.value)]
    if not isinstance(node, ast.AST):
        return node if isinstance(node, str | int) else repr(node)
    fields = {name: value for name, value in ast.iter_fields(node) if name not in _SAYS_NOTHING}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
        fields["body"] = node.body[1:] if _begins_with_text(node) else node.body
        fields.pop("decorator_list", None)
    kept = {name: _bare(value) for name, value in fields.items() if value is not None and value != []}
    return [type(node).__name__, kept] if kept else type(node).__name__


_SAYS_NOTHING = frozenset({"ctx", "kind", "type_comment", "type_ignores"})


def _begins_with_text(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module) -> bool:
    first = node.body[0] if node.body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)


def _bound(function: "functools.partial[Any]") -> Any:
    """Return the arguments that a partial binds, if they are plain; others would print differently in every run."""
    try:
        return canonical.decode(canonical.encode([function.args, function.keywords]))
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError):
        return None


class HookList:
    """Functions to call at one moment, in the order they were added. Each may take the facts, or no argument."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.functions: list[Callable[..., Any]] = []

    def add(self, function: AnyFunction) -> AnyFunction:
        self.functions = [
            f for f in self.functions if getattr(f, "__qualname__", f) != getattr(function, "__qualname__", function)
        ]
        self.functions.append(function)
        return function

    def call(self, facts: Any, loan: Loan | None = None) -> list[Any]:
        """Call all functions, coroutines on the event loop (of a run, if its loan is passed), and let their exceptions
        through."""
        return [event_loop.call(function, *[facts] * _takes_one(function), loan=loan) for function in self.functions]

    def __bool__(self) -> bool:
        return bool(self.functions)


class Hooks:
    """The hooks of a stage or pipeline: before, after and on failure."""

    def __init__(self, what: str) -> None:
        self.before = HookList(f"{what}, before")
        self.after = HookList(f"{what}, after")
        self.on_failure = HookList(f"{what}, on_failure")


def _takes_one(function: Callable[..., Any]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL) for p in parameters)


Where = Literal["threads", "processes"]
Function = Callable[..., Any]
Params = ParamSpec("Params", default=...)
Made_co = TypeVar("Made_co", covariant=True, default=Any)
"""The types that a stage takes and returns; `Stage` alone is any stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkFacts:
    """Facts about the work of a stage that the engine needs."""

    kind: Kind = Kind.ITEMS
    """The kind of the chunks that its batch begins with."""
    travels_alone: bool = False
    """True if each item is claimed separately, when it can be begun, so that other workers can claim the next one."""
    has_checkpoints: bool = False
    """True if an item takes many checkpoints, and its handler waits for each."""
    spares: frozenset[Kind] = frozenset()
    """Kinds of chunks whose last item is run again although its process died too often: the row that killed it is found
    and buried instead."""


ORDINARY = WorkFacts()


class Stage(Generic[Params, Made_co]):
    """A handler with its options. Calling it calls the handler, so that a stage can be tested alone.

    To a type checker it is `hf.Stage[P, R]`, with the parameters and the return type of its function, such as
    `hf.Stage[[str], int]`. `hf.Stage` alone is any stage.
    """

    def __init__(self, function: Callable[Params, Made_co], *, name: str | None = None, retry: Retry | None = None,
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
        self.work = ORDINARY
        self.runners: Callable[..., Any] | None = None
        """Makes what runs each kind of chunk of its, where its items are not run one after the other."""
        self.runs_there: Callable[..., Any] | None = None
        """The same for a parcel in a worker process."""
        self.accumulated: Callable[[Any], bytes | None] | None = None
        """Writes what its handler accumulates as it is stored, where an annotation says what that is."""
        self.verifier: Verifier | None = None
        self.adopter: Adopter | None = None
        self.__name__ = self.name
        self.__doc__ = getattr(function, "__doc__", None)
        self._check(what)
        self.policy: Policy = self.retry.policy()
        self.rule: Rule | None = self.breaker.rule() if isinstance(self.breaker, Breaker) else None
        """When its breaker opens; None where it has none."""

    def __call__(self, *args: Params.args, **kwargs: Params.kwargs) -> Made_co:
        return self.function(*args, **kwargs)

    @overload
    def verify(
        self: "Stage[..., Awaitable[Out]]", function: Callable[[Out], Verdict], /
    ) -> Callable[[Out], Verdict]: ...
    @overload
    def verify(
        self: "Stage[..., Awaitable[Out]]", function: Callable[[Out, Given, Context], Verdict], /
    ) -> Callable[[Out, Given, Context], Verdict]: ...
    @overload
    def verify(self: "Stage[..., Out]", function: Callable[[Out], Verdict], /) -> Callable[[Out], Verdict]: ...
    @overload
    def verify(
        self: "Stage[..., Out]", function: Callable[[Out, Given, Context], Verdict], /
    ) -> Callable[[Out, Given, Context], Verdict]: ...
    @overload
    def verify(self: "Stage[..., Awaitable[Out]]", *, timeout: Duration | None = None) -> VerifierOf[Out]: ...
    @overload
    def verify(self: "Stage[..., Out]", *, timeout: Duration | None = None) -> VerifierOf[Out]: ...

    def verify(self, function: Function | None = None, *, timeout: Duration | None = None) -> Any:
        """Register a verifier, `(out)` or `(out, item, ctx)`. It returns True if the output holds, else False or
        `hf.Bad(why)`, which it may also raise. The timeout is by default that of the stage, else 60 s."""

        def register(given: Function) -> Function:
            self.verifier = Verifier(given, self.name, timeout, self.timeout)
            return given

        return register if function is None else register(function)

    @overload
    def adopt(
        self: "Stage[..., Awaitable[Out]]", function: Callable[[Given, Context], Out], /
    ) -> Callable[[Given, Context], Out]: ...
    @overload
    def adopt(
        self: "Stage[..., Awaitable[Out]]", function: Callable[[Given, Context], Out | None], /
    ) -> Callable[[Given, Context], Out | None]: ...
    @overload
    def adopt(
        self: "Stage[..., Out]", function: Callable[[Given, Context], Out], /
    ) -> Callable[[Given, Context], Out]: ...
    @overload
    def adopt(
        self: "Stage[..., Out]", function: Callable[[Given, Context], Out | None], /
    ) -> Callable[[Given, Context], Out | None]: ...
    @overload
    def adopt(self: "Stage[..., Awaitable[Out]]", *, timeout: Duration | None = None) -> AdopterOf[Out]: ...
    @overload
    def adopt(self: "Stage[..., Out]", *, timeout: Duration | None = None) -> AdopterOf[Out]: ...

    def adopt(self, function: Function | None = None, *, timeout: Duration | None = None) -> Any:
        """Register an adopter, `(item, ctx) -> out | None`. Before an item is tried again, it looks for the output of
        an earlier attempt that was never recorded. The timeout is by default that of the stage, else 60 s."""

        def register(given: Function) -> Function:
            self.adopter = Adopter(given, self.name, timeout, self.timeout)
            return given

        return register if function is None else register(function)

    def before(self, function: BeforeHook) -> BeforeHook:
        """Register a function to be called with the name of the batch before the first item of this stage, in every
        run."""
        return self.hooks.before.add(function)

    def after(self, function: AfterHook) -> AfterHook:
        """Register a function to be called with the stage's statistics once the stage is complete. Its return value is
        kept in `report.stages`."""
        return self.hooks.after.add(function)

    def on_failure(self, function: FailureHook) -> FailureHook:
        """Register a function to be called with the `hf.DeadLetter` of each item that this stage buries."""
        return self.hooks.on_failure.add(function)

    def __repr__(self) -> str:
        return f"<Stage {self.name!r}>"

    def describe(self) -> dict[str, Any]:
        """Return the stage as it is remembered with the batch; the code as a digest only."""
        return {**self._described, "sink": self.sink.describe() if self.sink is not None else None}

    @cached_property
    def maker(self) -> str:
        """What the journal calls the stage as it is defined now."""
        return journal.maker(self.describe())

    @cached_property
    def _described(self) -> dict[str, Any]:
        """The description, computed once, because the file of a handler may be edited while it runs."""
        return {
            "name": self.name,
            "input": self.input.describe(),
            "output": self.output.describe(),
            "code": code_of(self.function),
            "shapes": [self.input.shape(), self.output.shape()],
        }

    def _check(self, what: str) -> None:
        if self.name == "<lambda>":
            raise UsageError("a lambda has no name: pass stage(name=…), or define a function")
        if not isinstance(self.retry, Retry):
            raise UsageError(f"{what}: retry={self.retry!r}: pass hf.Retry(attempts=…)")
        if self.sink is not None and not isinstance(self.sink, Sink):
            raise UsageError(f'{what}: sink={self.sink!r}: pass hf.Files("out/{{key}}.json")')
        if self.concurrency is not None and (type(self.concurrency) is not int or self.concurrency < 1):
            raise UsageError(f"{what}: concurrency={self.concurrency!r}: pass a whole number, 1 or more")
        if not (self.breaker is False or isinstance(self.breaker, Breaker)):
            raise UsageError(
                f"{what}: breaker={self.breaker!r}: pass hf.Breaker(failures=…, pause=…), or False for none"
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


def sinks_among(stages: Sequence[Stage]) -> dict[int, Sink]:
    """Return the sinks of a pipeline, by stage."""
    return {index: stage.sink for index, stage in enumerate(stages) if stage.sink is not None}
