"""Rows on their way to a handler: the feed with its cursors, the shapes a handler may have, and when to checkpoint."""

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
"""Errors that no row can be to blame for: the code, or what is installed, is."""


class Misuse(UsageError):
    """A source that cannot be read as it was given, or a handler that does not answer as its shape must."""


def mistaken(what: str, error: BaseException, place: str) -> Misuse:
    """Return the refusal of a handler that cannot work, whatever the row."""
    return Misuse(
        f"{what} cannot work: {type(error).__name__}: {place}; correct it, then run again: nothing was buried, and it "
        "continues at its checkpoint"
    )


class Passed(NamedTuple):
    """What stood in the place of a row, between two cursors."""

    row: Malformed
    before: Cursor | None
    at: Cursor


class _Taken(NamedTuple):
    """Rows of a page that were taken: how many of its rows come up to and with each of them."""

    page: Page
    before: Cursor | None
    counts: Sequence[int]
    rows: int
    """How many rows were taken before the page."""

    def cursor(self, count: int) -> Cursor | None:
        return self.page.after(count) if count else self.before


class Feed:
    """The rows of a range from a checkpoint on."""

    def __init__(self, pages: Iterator[Page], rows: int, after: Cursor | None = None,
                 again: Callable[[Cursor | None], Iterator[Page]] | None = None) -> None:  # fmt: skip
        self._pages, self._again = pages, again
        self._trouble: Exception | None = None
        """Why no further page could be read: met once the rows before it were taken."""
        self._last = after
        self._page: Page | None = None
        self._next: Page | None = None
        self._flawed = False
        """Whether there are malformed rows in the page."""
        self.malformed: list[Passed] = []
        """Those that were passed over; whoever buries them takes them out."""
        self._at = 0
        """How many rows of the page were taken."""
        self._before = rows
        """How many rows were taken before the page."""
        self._next = self._read()

    @property
    def rows(self) -> int:
        """How many rows were taken in all, those before the checkpoint included."""
        return self._before + self._at

    @property
    def at_end(self) -> bool:
        """Whether there is no further row; known as soon as the last one was taken."""
        return self._is_used_up and self._next is None and self._trouble is None

    @property
    def trouble(self) -> Exception | None:
        """What keeps us from reading on, once all rows before it were taken; None while there is a row, or the end."""
        return self._trouble if self._is_used_up and self._next is None else None

    @property
    def _is_used_up(self) -> bool:
        return self._page is None or self._at == len(self._page.rows)

    def retry(self) -> bool:
        """Read on after the last row that was taken, after trouble; whether that is over."""
        assert self._again is not None
        self._last, self._before = self.cursor, self.rows
        self._page, self._at, self._trouble = None, 0, None
        try:
            self._pages = iter(self._again(self._last))
        except Exception as error:  # noqa: BLE001 - a source of the user's may raise anything
            self._trouble = error
        else:
            self._fetch()
        return self._trouble is None

    @property
    def cursor(self) -> Cursor | None:
        """The cursor after the last row that was taken; before the first, the one it was begun with."""
        return self._page.after(self._at) if self._page is not None and self._at else self._last

    @property
    def before_last(self) -> Cursor | None:
        """The cursor before the row that was taken last."""
        return self._page.after(self._at - 1) if self._page is not None and self._at > 1 else self._last

    def take(self, most: int) -> list[Any]:
        """Up to so many rows, malformed ones counted and left out; fewer only at the end, and before trouble."""
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
        """Return the cursor before each of them."""
        return [part.cursor(count - 1) for part in self._parts for count in part.counts]

    def numbers(self) -> list[int]:
        """Return the number of each of them, the first row of the range being 1."""
        return [part.rows + count for part in self._parts for count in part.counts]

    _parts: list[_Taken]

    def _passes(self, row: Any, count: int) -> bool:
        """Return whether a row is passed over: what is no row is nobody's to handle."""
        if not isinstance(row, Malformed):
            return False
        assert self._page is not None
        before = self._page.after(count - 1) if count > 1 else self._last
        self.malformed.append(Passed(row, before, self._page.after(count)))
        return True

    def __iter__(self) -> Iterator[Any]:
        """One row after the other; what was handed out counts as taken."""
        while self._turn():
            assert self._page is not None
            rows = self._page.rows
            while self._at < len(rows):
                self._at += 1
                if not (self._flawed and self._passes(rows[self._at - 1], self._at)):
                    yield rows[self._at - 1]

    def _turn(self) -> bool:
        """Return whether there is a row to take: turns to the next page where the one at hand is used up."""
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
        """Read the next page that has rows; trouble is for who comes to it."""
        self._next = None
        try:
            self._next = self._read()
        except Exception as error:  # noqa: BLE001 - a source of the user's may raise anything
            self._trouble = error

    def _read(self) -> Page | None:
        try:
            return next((page for page in self._pages if len(page.rows)), None)
        except UsageError as error:  # of the source, in whatever frame of a handler's it is asked for rows
            raise Misuse(str(error)) from error

    def fail(self) -> NoReturn:
        """Raise the trouble. What stays here holds no frames: a cycle would keep connections from being closed."""
        assert self._trouble is not None
        trouble, self._trouble = self._trouble, Transient("the source could not be read on: run again")
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
        """Return one call with some rows; a coroutine where the handler is async."""
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
        """Return the generator over a part."""
        return self.function(part, **{self._context: ctx} if self._context else {})

    def encode(self, acc: Any) -> bytes | None:
        """Return the accumulator as it is stored; None where there is none."""
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
        """Return the accumulator that was stored; the first one where none was."""
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
        """Return what a fold begins with: what was said, else the default of its parameter, else an empty one of its
        type."""
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
    """Return the shape, the name of the parameter for the context, and the one for the accumulator."""
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
    """Return what checks an accumulator, where its type says more than that it is one."""
    if annotation in (None, Any, inspect.Parameter.empty):
        return None
    try:
        return TypeAdapter(annotation)
    except Exception as error:  # noqa: BLE001 - pydantic raises several kinds for what it cannot make a schema of
        raise UsageError(f"{what}: {annotation!r} cannot be the type of an accumulator ({error})") from None


Said = int | Duration | Literal["auto"]

SAY = "pass after how many rows to checkpoint, 1 or more; after which time, such as '5s' or '1m30s'; or 'auto'"
SLICE = 1_000
"""The most rows a handler is given at once where the interval is a time."""
FIRST_SLICE = 16
"""The first of them: nobody knows yet how long a row takes."""
CAREFUL_ROWS = 1_000
"""After so many rows that were handled one at a time, whatever killed the process is not among them."""
SHARE = 0.01
"""What `auto` lets checkpoints cost, as a share of the time."""
SHORTEST, LONGEST = 0.05, 5.0
"""Seconds of work that `auto` lets a crash lose, at least and at most."""


@dataclass(frozen=True, slots=True)
class Every:
    """What a user said about checkpoints."""

    rows: int | None = None
    seconds: float | None = None

    @property
    def said(self) -> int | str:
        """The interval as a handler is told it."""
        if self.rows is not None:
            return self.rows
        return "auto" if self.seconds is None else f"{self.seconds:g}s"

    @staticmethod
    def of(said: Said) -> "Every":
        """`every=1000` rows, `every="5s"`, or `every="auto"`."""
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
    """Decides for one range, from what rows and checkpoints take."""

    def __init__(self, every: Every) -> None:
        self.every = self._every = every
        self._cost = 0.0
        """Seconds that a checkpoint takes, about."""
        self._row = 0.0
        """Seconds that a row takes, about; 0 while nobody knows."""

    def rows_at_once(self, fresh: int, most: int | None) -> int:
        """Return how many rows to hand over, so many after the last checkpoint, before looking at the time again."""
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
        """The time between two checkpoints."""
        if self._every.seconds is not None:
            return self._every.seconds
        return max(SHORTEST, min(LONGEST, self._cost / SHARE))

    def learn(self, rows: int, elapsed: float) -> None:
        """Some rows took so long."""
        if rows:
            self._row = _smooth(self._row, elapsed / rows)

    def paid(self, elapsed: float) -> None:
        """A checkpoint took so long."""
        self._cost = _smooth(self._cost, elapsed)


class Careful(Interval):
    """Few rows at a time, each few with a checkpoint of their own: whichever kills the process is known then."""

    def __init__(self, every: Every, size: int = 1, rows: int = CAREFUL_ROWS) -> None:
        super().__init__(every)
        self._size = size
        self._left = rows
        """How many rows are handled like this; whatever killed the process is not among those after them."""

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
