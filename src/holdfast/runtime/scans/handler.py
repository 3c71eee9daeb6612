"""What a user wrote for the rows of a scan, in one of three shapes, and what it accumulates.

    (rows)                  something is done with each group of rows
    (rows, acc) -> acc      a fold
    (part) -> yields acc    a generator: it iterates the rows of its part, and every `yield` is a checkpoint

Each may be async, may ask for a `Context` by annotation or by the name `ctx` or `context`, and takes resources after
a `*`. A resource that is called `context` goes before.
"""

import inspect
import logging
from collections.abc import Callable
from copy import copy
from enum import StrEnum
from typing import Any, get_origin

from pydantic import TypeAdapter, ValidationError

from holdfast.core import canonical
from holdfast.core.errors import UsageError
from holdfast.core.limits import ACC_BYTES
from holdfast.runtime.define.context import Context
from holdfast.runtime.define.resource import by_name, is_bare
from holdfast.runtime.define.schema import Invalid, annotations_of, explain
from holdfast.runtime.engine.resources import Handed
from holdfast.runtime.scans.misuse import Misuse

log = logging.getLogger("holdfast.scan")
NOTHING = object()
RIGHT = "; put it right, then run again: the scan resumes at its checkpoint"
"""What to do about an accumulator that cannot be kept: every range would come to it, so none is buried."""


class Shape(StrEnum):
    ROWS = "rows"
    FOLD = "fold"
    GENERATOR = "generator"


class Handler:
    """The function, its shape, and how its accumulator is stored."""

    def __init__(self, function: Callable[..., Any], *, initial: Any = NOTHING) -> None:
        self.function = function
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self.what = f"handler {self.name!r}"
        self.is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        self.shape, self._context, acc = _shape_of(function, self.what)
        self.accumulator = acc.name if acc is not None else ""
        """The name of the parameter for what it accumulates; empty where there is none."""
        self.needed, self.optional = _resources_of(function, self.what, self._context)
        """The names of resources that it takes."""
        annotation = annotations_of(function).get(acc.name) if acc is not None else None
        self._adapter = _adapter(annotation, self.what)
        self._initial = self._first(initial, acc, annotation)
        self._warned = False

    def handed(self, to: Handed) -> "Handler":
        """Return the same with resources in place, for this thread. Raises ResourceError."""
        function = to.to(self.function)
        if function is self.function:
            return self
        other = copy(self)
        other.function = function
        other._context = "" if self._context in to.names else self._context
        return other

    def call(self, rows: Any, acc: Any, ctx: Context) -> Any:
        """One call with some rows; a coroutine where the handler is async."""
        given = (rows, acc) if self.shape is Shape.FOLD else (rows,)
        try:
            made = self.function(*given, **{self._context: ctx} if self._context else {})
        except TypeError as error:
            self._note(error, acc)
            raise
        return self._awaited(made, acc) if self.is_async else made

    async def _awaited(self, made: Any, acc: Any) -> Any:
        try:
            return await made
        except TypeError as error:
            self._note(error, acc)
            raise

    def _note(self, error: TypeError, acc: Any) -> None:
        """A fold that nobody told what to begin with has tried to add to None: say how to tell it."""
        if self.shape is Shape.FOLD and acc is None and "NoneType" in str(error):
            error.add_note(f"{self.what} begins with None: write acc: int = 0, or handler(initial=0)")

    @property
    def is_typed(self) -> bool:
        """Whether the annotation of what it accumulates says what that is."""
        return self._adapter is not None

    @property
    def wants_context(self) -> bool:
        return bool(self._context)

    def generate(self, part: Any, ctx: Context) -> Any:
        """The generator over a part."""
        return self.function(part, **{self._context: ctx} if self._context else {})

    def encode(self, acc: Any) -> bytes | None:
        """The accumulator as it is stored; None where there is none."""
        if acc is None:
            return None
        if self._adapter is not None:
            try:
                acc = self._adapter.dump_python(self._adapter.validate_python(acc))
            except ValidationError as error:
                raise Misuse(f"{self.what}: its accumulator is not valid: {explain(error)}{RIGHT}") from None
        try:
            data = canonical.encode_typed(acc, "the accumulator")
        except UsageError as error:
            raise Misuse(f"{self.what}: {error}{RIGHT}") from None
        self._check_size(len(data))
        return data

    def decode(self, data: bytes | None) -> Any:
        """The accumulator that was stored; the first one where none was."""
        if data is None:
            data = self._initial
        acc = None if data is None else canonical.decode_typed(data, "the accumulator")
        if acc is None or self._adapter is None:
            return acc
        try:
            return self._adapter.validate_python(acc)
        except ValidationError as error:
            raise Misuse(
                f"{self.what}: what was accumulated is not what it takes now: {explain(error)}; let it take both, "
                "reset the range to its start, or scan under a new batch name"
            ) from None

    def _first(self, initial: Any, acc: inspect.Parameter | None, annotation: Any) -> bytes | None:
        """What a fold begins with: what was said, else the default of its parameter, else an empty one of its type."""
        if initial is not NOTHING:
            return self.encode(initial() if callable(initial) else initial)
        if acc is not None and acc.default is not inspect.Parameter.empty:
            return self.encode(acc.default)
        kind = get_origin(annotation) if get_origin(annotation) is not None else annotation
        if inspect.isclass(kind):
            try:
                return self.encode(kind())
            except (TypeError, ValueError, Invalid, Misuse):
                return None
        return None

    def _check_size(self, size: int) -> None:
        if size > ACC_BYTES:
            raise Invalid(
                f"{self.what}: its accumulator has {size:,} bytes, at most {ACC_BYTES:,} are kept with a checkpoint: "
                "keep totals in it, not rows; write the rows to a file or a table of your own, or use more partitions",
                "acc_too_large",
            )
        if size > ACC_BYTES // 2 and not self._warned:
            self._warned = True
            log.warning("%s: its accumulator has %s bytes, %s are the most", self.what, f"{size:,}", f"{ACC_BYTES:,}")


def _shape_of(function: Callable[..., Any], what: str) -> tuple[Shape, str, inspect.Parameter | None]:
    """The shape, the name of the parameter for the context, and the one for the accumulator."""
    if not callable(function):
        raise UsageError(f"{what}: give a function of (rows), of (rows, acc), or a generator of (part)")
    found = annotations_of(function)
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind not in _COLLECTING]
    context = next((p for p in parameters if _is_context(p, found)), None)
    given = [p for p in parameters if p is not context and p.kind is not p.KEYWORD_ONLY]
    if any(p.kind is p.KEYWORD_ONLY and p.name == "acc" for p in parameters):
        raise UsageError(f"{what} takes 'acc' by name only: write (rows), (rows, acc), or (part)")
    name = context.name if context is not None else ""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        if len(given) != 1:
            raise UsageError(
                f"{what} is a generator: it takes its part, and a ctx if it likes; not {len(given)} values"
            )
        return Shape.GENERATOR, name, None
    if len(given) == 1:
        return Shape.ROWS, name, None
    if len(given) == 2:
        return Shape.FOLD, name, given[1]
    raise UsageError(
        f"{what} takes {len(given)} values: write (rows), (rows, acc), or a generator of (part); resources come after "
        "a *, as in (rows, acc, *, client)"
    )


def _is_context(parameter: inspect.Parameter, found: dict[str, Any]) -> bool:
    return found.get(parameter.name) is Context or parameter.name == "ctx" or _is_guess(parameter, found)


def _is_guess(parameter: inspect.Parameter, found: dict[str, Any]) -> bool:
    """Return whether only its name makes it the context: a resource of that name goes before."""
    return parameter.name == "context" and is_bare(parameter, found)


def _resources_of(function: Callable[..., Any], what: str, context: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the parameters that are passed by name only, but for the context, unless it may be a resource."""
    parameters = inspect.signature(function).parameters
    needed, optional = by_name([p for p in parameters.values() if p.kind is p.KEYWORD_ONLY and p.name != context], what)
    is_guess = context in parameters and _is_guess(parameters[context], annotations_of(function))
    return needed, (*optional, context) if is_guess else optional


_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _adapter(annotation: Any, what: str) -> TypeAdapter[Any] | None:
    """What checks an accumulator, where its type says more than that it is one."""
    if annotation in (None, Any, inspect.Parameter.empty):
        return None
    try:
        return TypeAdapter(annotation)
    except Exception as error:  # noqa: BLE001 - pydantic raises several kinds for what it cannot make a schema of
        raise UsageError(f"{what}: {annotation!r} cannot be the type of an accumulator ({error})") from None
