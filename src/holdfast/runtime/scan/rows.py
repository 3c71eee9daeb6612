"""Rows on their way to a handler: the feed with its cursors, the signatures a handler may have, and when to
checkpoint."""

import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, NamedTuple, NoReturn, get_origin

from pydantic import TypeAdapter, ValidationError

from holdfast.core import canonical
from holdfast.core.cursor import Cursor
from holdfast.core.errors import Transient, UsageError
from holdfast.core.limits import ACC_BYTES
from holdfast.core.model import Checkpoint
from holdfast.runtime.define.context import Context
from holdfast.runtime.define.resource import by_name, is_bare
from holdfast.runtime.define.schema import Invalid, annotations_of, explain
from holdfast.runtime.engine.resources import Handed
from holdfast.runtime.sources.base import Malformed, Page, Readable
from holdfast.runtime.text import Duration, seconds

MISTAKES = (NameError, ImportError, SyntaxError)
"""Errors that no row can cause: the program code, or the installation, is wrong."""


class Misuse(UsageError):
    """A source that cannot be read as it was defined, or a handler that does not return what its signature requires."""


def mistaken(what: str, error: BaseException, place: str) -> Misuse:
    """Return the refusal of a handler that cannot work with any row."""
    return Misuse(
        f"{what} cannot work: {type(error).__name__}: {place}; correct it, then run again: nothing was buried, and it "
        "continues at its checkpoint"
    )


class Passed(NamedTuple):
    """A malformed row between two cursors."""

    row: Malformed
    before: Cursor | None
    at: Cursor


class _Taken(NamedTuple):
    """Rows taken from a page: for each, how many rows of the page there are up to and including it."""

    page: Page
    before: Cursor | None
    counts: Sequence[int]
    rows: int
    """How many rows were taken before the page."""

    def cursor(self, count: int) -> Cursor | None:
        return self.page.after(count) if count else self.before


class Feed:
    """The rows of a partition from a checkpoint on."""

    def __init__(self, pages: Iterator[Page], rows: int, after: Cursor | None = None,
                 again: Callable[[Cursor | None], Iterator[Page]] | None = None) -> None:  # fmt: skip
        self._pages, self._again = pages, again
        self._trouble: Exception | None = None
        """Why no further page could be read: raised once the rows before it were taken."""
        self._last = after
        self._page: Page | None = None
        self._next: Page | None = None
        self._flawed = False
        """Whether the page has malformed rows."""
        self.malformed: list[Passed] = []
        """Malformed rows that were skipped; the code that buries them removes them."""
        self._at = 0
        """How many rows of the page were taken."""
        self._before = rows
        """How many rows were taken before the page."""
        self._next = self._read()

    @property
    def rows(self) -> int:
        """How many rows were taken in all, including those before the checkpoint."""
        return self._before + self._at

    @property
    def at_end(self) -> bool:
        """Whether there is no further row; known as soon as the last one was taken."""
        return self._is_used_up and self._next is None and self._trouble is None

    @property
    def trouble(self) -> Exception | None:
        """The error that prevents further reading, once all rows before it were taken; None while there is a row, or at
        the end."""
        return self._trouble if self._is_used_up and self._next is None else None

    @property
    def _is_used_up(self) -> bool:
        return self._page is None or self._at == len(self._page.rows)

    def retry(self) -> bool:
        """Read again after the last row that was taken, after an error; return whether that succeeded."""
        assert self._again is not None
        self._last, self._before = self.cursor, self.rows
        self._page, self._at, self._trouble = None, 0, None
        try:
            self._pages = iter(self._again(self._last))
        except Exception as error:  # noqa: BLE001 - a user's source may raise anything
            self._trouble = error
        else:
            self._fetch()
        return self._trouble is None

    @property
    def cursor(self) -> Cursor | None:
        """The cursor after the last row that was taken; before the first, the cursor it began with."""
        return self._page.after(self._at) if self._page is not None and self._at else self._last

    @property
    def before_last(self) -> Cursor | None:
        """The cursor before the row that was taken last."""
        return self._page.after(self._at - 1) if self._page is not None and self._at > 1 else self._last

    def take(self, most: int) -> list[Any]:
        """Return up to so many rows; malformed ones are counted and left out. There are fewer only at the end, and
        before an error."""
        taken: list[Any] = []
        self._parts = []
        while most and self._turn():
            assert self._page is not None
            some = self._page.rows[self._at : self._at + most]
            most -= len(some)
            counts: Sequence[int] = range(self._at + 1, self._at + len(some) + 1)
            self._at += len(some)
            if self._flawed:
                counts = [count for count, row in zip(counts, some, strict=True) if not self._passes(row, count)]
                some = [self._page.rows[count - 1] for count in counts]
            self._parts.append(_Taken(self._page, self._last, counts, self._before))
            taken += some
        return taken

    def cursors(self) -> list[Cursor]:
        """Return the cursor after each of the rows that were taken last."""
        return [part.page.after(count) for part in self._parts for count in part.counts]

    def befores(self) -> list[Cursor | None]:
        """Return the cursor before each of the rows that were taken last."""
        return [part.cursor(count - 1) for part in self._parts for count in part.counts]

    def numbers(self) -> list[int]:
        """Return the number of each of the rows that were taken last; the first row of the partition is 1."""
        return [part.rows + count for part in self._parts for count in part.counts]

    _parts: list[_Taken]

    def _passes(self, row: Any, count: int) -> bool:
        """Return whether a row is skipped because it is malformed."""
        if not isinstance(row, Malformed):
            return False
        assert self._page is not None
        before = self._page.after(count - 1) if count > 1 else self._last
        self.malformed.append(Passed(row, before, self._page.after(count)))
        return True

    def __iter__(self) -> Iterator[Any]:
        """Yield one row after the other; a yielded row counts as taken."""
        while self._turn():
            assert self._page is not None
            rows = self._page.rows
            while self._at < len(rows):
                self._at += 1
                if not (self._flawed and self._passes(rows[self._at - 1], self._at)):
                    yield rows[self._at - 1]

    def _turn(self) -> bool:
        """Return whether there is a row to take; turns to the next page if the current one is used up."""
        if self._page is not None and self._at < len(self._page.rows):
            return True
        if self._next is None:
            return False
        if self._page is not None:
            self._last = self._page.after(self._at) if self._at else self._last
            self._before += self._at
        self._page, self._at = self._next, 0
        self._flawed = getattr(self._page, "flawed", True) and Malformed in map(type, self._page.rows)
        self._fetch()
        return True

    def _fetch(self) -> None:
        """Read the next page that has rows; an error is kept until the rows before it were taken."""
        self._next = None
        try:
            self._next = self._read()
        except Exception as error:  # noqa: BLE001 - a user's source may raise anything
            self._trouble = error

    def _read(self) -> Page | None:
        try:
            return next((page for page in self._pages if len(page.rows)), None)
        except UsageError as error:  # raised by the source, while a handler asks it for rows
            raise Misuse(str(error)) from error

    def fail(self) -> NoReturn:
        """Raise the error. The one kept here holds no frames: a cycle would keep connections from being closed."""
        assert self._trouble is not None
        trouble, self._trouble = self._trouble, Transient("the source could not be read further: run again")
        try:
            raise trouble
        finally:
            del trouble


def feed_of(source: Readable, after: Cursor | None, until: Cursor | None, at: Checkpoint | None) -> Feed:
    """Return the rows of a source after one cursor, up to another; counted from a checkpoint on."""

    def again(start: Cursor | None) -> Iterator[Page]:
        try:
            return iter(source.read(start, until))
        except UsageError as error:
            raise Misuse(str(error)) from error

    return Feed(again(after), 0 if at is None else at.rows, after, again)


log = logging.getLogger("holdfast.scan")
NOTHING = object()
RIGHT = "; correct it, then run again: the scan resumes at its checkpoint"
"""Advice for an accumulator that cannot be stored: every partition would fail with it, so none is buried."""


class Shape(StrEnum):
    ROWS = "rows"
    FOLD = "fold"
    GENERATOR = "generator"


class Handler:
    """The user's function, its signature, and how its accumulator is stored."""

    def __init__(self, function: Callable[..., Any], *, initial: Any = NOTHING) -> None:
        self.function = function
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self.what = f"handler {self.name!r}"
        self.is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        self.shape, self._context, acc = _shape_of(function, self.what)
        self.accumulator = acc.name if acc is not None else ""
        """The name of the parameter for the accumulator; empty if there is none."""
        self.needed, self.optional = _resources_of(function, self.what, self._context)
        """The names of the resources that it takes."""
        annotation = annotations_of(function).get(acc.name) if acc is not None else None
        self._adapter = _adapter(annotation, self.what)
        self._initial = self._first(initial, acc, annotation)
        self._warned = False

    def handed(self, to: Handed) -> "Handler":
        """Return the handler with its resources bound, for this thread. Raises ResourceError."""
        function = to.to(self.function)
        if function is self.function:
            return self
        other = copy(self)
        other.function = function
        other._context = "" if self._context in to.names else self._context
        return other

    def call(self, rows: Any, acc: Any, ctx: Context) -> Any:
        """Call the function with some rows; returns a coroutine if the handler is async."""
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
        """Add a hint if a fold without an initial value has tried to add to None."""
        if self.shape is Shape.FOLD and acc is None and "NoneType" in str(error):
            error.add_note(f"{self.what} starts with None: write acc: int = 0, or handler(initial=0)")

    @property
    def is_typed(self) -> bool:
        """Whether the annotation of the accumulator has a type."""
        return self._adapter is not None

    @property
    def wants_context(self) -> bool:
        return bool(self._context)

    def generate(self, part: Any, ctx: Context) -> Any:
        """Return the generator over a partition."""
        return self.function(part, **{self._context: ctx} if self._context else {})

    def encode(self, acc: Any) -> bytes | None:
        """Return the accumulator as it is stored; None if there is none."""
        if acc is None:
            return None
        if self._adapter is not None:
            try:
                acc = self._adapter.dump_python(self._adapter.validate_python(acc))
            except ValidationError as error:
                raise Misuse(f"{self.what}: the accumulator is not valid: {explain(error)}{RIGHT}") from None
        try:
            data = canonical.encode_typed(acc, "the accumulator")
        except UsageError as error:
            raise Misuse(f"{self.what}: {error}{RIGHT}") from None
        self._check_size(len(data))
        return data

    def decode(self, data: bytes | None) -> Any:
        """Return the accumulator that was stored; the initial one if none was."""
        if data is None:
            data = self._initial
        acc = None if data is None else canonical.decode_typed(data, "the accumulator")
        if acc is None or self._adapter is None:
            return acc
        try:
            return self._adapter.validate_python(acc)
        except ValidationError as error:
            raise Misuse(
                f"{self.what}: the stored accumulator does not fit its type: {explain(error)}; let it accept both, "
                "reset the partition to its start, or scan under a new batch name"
            ) from None

    def _first(self, initial: Any, acc: inspect.Parameter | None, annotation: Any) -> bytes | None:
        """Return the initial value of a fold: the one that was passed, else the default of its parameter, else an empty
        value of its type."""
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
                f"{self.what}: the accumulator has {size:,} bytes, and the limit is {ACC_BYTES:,} per checkpoint: "
                "keep totals in it, not rows; write the rows to a file or a table of your own, or use more partitions",
                "acc_too_large",
            )
        if size > ACC_BYTES // 2 and not self._warned:
            self._warned = True
            log.warning("%s: the accumulator has %s bytes; the limit is %s", self.what, f"{size:,}", f"{ACC_BYTES:,}")


def _shape_of(function: Callable[..., Any], what: str) -> tuple[Shape, str, inspect.Parameter | None]:
    """Return the signature, the name of the parameter for the context, and the parameter for the accumulator."""
    if not callable(function):
        raise UsageError(f"{what}: pass a function of (rows), of (rows, acc), or a generator of (part)")
    found = annotations_of(function)
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind not in _COLLECTING]
    context = next((p for p in parameters if _is_context(p, found)), None)
    given = [p for p in parameters if p is not context and p.kind is not p.KEYWORD_ONLY]
    if any(p.kind is p.KEYWORD_ONLY and p.name == "acc" for p in parameters):
        raise UsageError(f"{what} takes 'acc' by name only: write (rows), (rows, acc), or (part)")
    name = context.name if context is not None else ""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        if len(given) != 1:
            raise UsageError(f"{what} is a generator: it takes (part) or (part, ctx), not {len(given)} values")
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
    """Return whether only its name makes it the context: a resource of that name takes precedence."""
    return parameter.name == "context" and is_bare(parameter, found)


def _resources_of(function: Callable[..., Any], what: str, context: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the keyword-only parameters without the context, unless the context may be a resource."""
    parameters = inspect.signature(function).parameters
    needed, optional = by_name([p for p in parameters.values() if p.kind is p.KEYWORD_ONLY and p.name != context], what)
    is_guess = context in parameters and _is_guess(parameters[context], annotations_of(function))
    return needed, (*optional, context) if is_guess else optional


_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _adapter(annotation: Any, what: str) -> TypeAdapter[Any] | None:
    """Return the adapter that checks an accumulator, if its type is specific enough."""
    if annotation in (None, Any, inspect.Parameter.empty):
        return None
    try:
        return TypeAdapter(annotation)
    except Exception as error:  # noqa: BLE001 - pydantic raises several kinds of errors for types without a schema
        raise UsageError(f"{what}: {annotation!r} cannot be the type of an accumulator ({error})") from None


Said = int | Duration | Literal["auto"]

SAY = "pass after how many rows to checkpoint, 1 or more; after which time, such as '5s' or '1m30s'; or 'auto'"
SLICE = 1_000
"""The most rows a handler gets at once if the interval is a time."""
FIRST_SLICE = 16
"""The first slice: the time per row is not known yet."""
CAREFUL_ROWS = 1_000
"""After so many rows that were handled one at a time, the row that killed the process is not among them."""
SHARE = 0.01
"""The share of the time that `auto` allows for checkpoints."""
SHORTEST, LONGEST = 0.05, 5.0
"""The seconds of work that a crash may lose under `auto`, at least and at most."""


@dataclass(frozen=True, slots=True)
class Every:
    """The user's interval between checkpoints."""

    rows: int | None = None
    seconds: float | None = None

    @property
    def said(self) -> int | str:
        """The interval as a handler sees it."""
        if self.rows is not None:
            return self.rows
        return "auto" if self.seconds is None else f"{self.seconds:g}s"

    @staticmethod
    def of(said: Said) -> "Every":
        """Return the interval for `every=1000` rows, `every="5s"`, or `every="auto"`."""
        if said == "auto":
            return Every()
        if isinstance(said, int) and not isinstance(said, bool):
            if said < 1:
                raise UsageError(f"every={said}: {SAY}")
            return Every(rows=said)
        try:
            found = seconds(said, "every")
        except UsageError:
            found = 0.0
        if found <= 0:
            raise UsageError(f"every={said!r}: {SAY}")
        return Every(seconds=found)


class Interval:
    """The interval of one partition, decided by the measured time of rows and checkpoints."""

    def __init__(self, every: Every) -> None:
        self.every = self._every = every
        self._cost = 0.0
        """The approximate seconds per checkpoint."""
        self._row = 0.0
        """The approximate seconds per row; 0 while unknown."""

    def rows_at_once(self, fresh: int, most: int | None) -> int:
        """Return how many rows to pass before checking the time again, so many rows after the last checkpoint."""
        if self._every.rows is not None:
            left = self._every.rows - fresh
            return left if most is None else min(left, most)
        if self._row <= 0.0:
            return FIRST_SLICE
        return max(1, min(SLICE, int(self.seconds / 4 / self._row)))

    def is_due(self, rows: int, elapsed: float) -> bool:
        """Return whether to checkpoint after so many rows and seconds since the last one."""
        if self._every.rows is not None:
            return rows >= self._every.rows
        return rows > 0 and elapsed >= self.seconds

    @property
    def seconds(self) -> float:
        """The seconds between two checkpoints."""
        if self._every.seconds is not None:
            return self._every.seconds
        return max(SHORTEST, min(LONGEST, self._cost / SHARE))

    def learn(self, rows: int, elapsed: float) -> None:
        """Note how long some rows took."""
        if rows:
            self._row = _smooth(self._row, elapsed / rows)

    def paid(self, elapsed: float) -> None:
        """Note how long a checkpoint took."""
        self._cost = _smooth(self._cost, elapsed)


class Careful(Interval):
    """An interval of few rows at a time, each with its own checkpoint, so that a row that kills the process is
    known."""

    def __init__(self, every: Every, size: int = 1, rows: int = CAREFUL_ROWS) -> None:
        super().__init__(every)
        self._size = size
        self._left = rows
        """How many rows are handled like this; the row that killed the process is not among later ones."""

    def rows_at_once(self, fresh: int, most: int | None) -> int:
        if self._left <= 0:
            return super().rows_at_once(fresh, most)
        wanted = self._size - fresh
        return wanted if most is None else min(wanted, most)

    def is_due(self, rows: int, elapsed: float) -> bool:
        if self._left <= 0:
            return super().is_due(rows, elapsed)
        if rows < self._size:
            return False
        self._left -= rows
        return True


def _smooth(before: float, now: float) -> float:
    return now if before == 0.0 else before + (now - before) / 4
