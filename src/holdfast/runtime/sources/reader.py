"""A source of your own in one function: it yields `(cursor, row)` pairs from a cursor on."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from holdfast.core import cursor
from holdfast.core.cursor import Cursor
from holdfast.core.errors import Permanent, UsageError
from holdfast.runtime.sources.base import Outage, Page, Span, one_range, rows_of

PAGE_ROWS = 500

Read = Callable[[Any], Iterable[tuple[Any, Any]]]


class PairPage:
    """Some rows, and the cursor after each."""

    def __init__(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        self.rows: Sequence[Any] = [row for _, row in pairs]
        self._cursors = [at for at, _ in pairs]

    def after(self, count: int) -> Cursor:
        return Cursor("own", self._cursors[count - 1])


class Reader:
    """A source made from a function: given the last cursor, it yields pairs of a cursor and a row, in order.

    >>> @Reader
    ... def numbers(after):
    ...     for n in range(0 if after is None else after + 1, 3):
    ...         yield n, {"n": n}
    >>> [page.rows for page in numbers.read(None, None)]
    [[{'n': 0}, {'n': 1}, {'n': 2}]]

    A cursor is a text, a number, a time or a tuple of these. Each row needs its own cursor: if two rows shared one, a
    crash between them would lose the second.

    Args:
        function: The function. It is given the cursor to continue after, None at the beginning.
        name: The name of the source; by default that of the function.
        page: How many rows are read at a time.
        said: Anything else that distinguishes this source from others, such as a date. It is part of the fingerprint.
    """

    def __init__(self, function: Read | None = None, *, name: str = "", page: int = PAGE_ROWS, **said: Any) -> None:
        if type(page) is not int or page < 1:
            raise UsageError(f"Reader(page={page!r}): pass a whole number, 1 or more")
        self._page, self._said = page, said
        self._name = name
        self._function: Read | None = None
        if function is not None:
            self(function)

    def __call__(self, function: Read) -> "Reader":
        """`@hf.Reader(name="orders")` above a function."""
        if not callable(function):
            raise UsageError(f"Reader({function!r}): pass a function of the last cursor that yields (cursor, row)")
        self._function = function
        self._name = self._name if self._name else getattr(function, "__name__", type(function).__name__)
        return self

    def __repr__(self) -> str:
        return f"Reader({self._name!r})"

    def __iter__(self) -> Iterator[Any]:
        return (row for _, row in self._pairs(None))

    def patiently(self, outage: Outage) -> Iterator[Any]:
        """Yield every item of a pipeline; after an outage it is read on where it was."""
        return rows_of(self, outage)

    def describe(self) -> dict[str, Any]:
        """Return its name, and what was said of it."""
        return {"kind": "own", "name": self._name, **self._said}

    def natural_key(self, value: Any) -> None:
        """A row has no key of its own: name a field."""
        return

    def read(self, after: Cursor | None, until: Cursor | None) -> Iterator[Page]:
        """Yield the pairs after a cursor in pages, up to another and with it."""
        pairs = iter(self._pairs(self._value(after)))
        end = None if until is None else self._value(until)
        while some := list(islice(pairs, self._page)):
            values = [at for at, _ in some]
            if until is not None and end in values:
                yield PairPage(some[: values.index(end) + 1])
                return
            yield PairPage(some)

    def split(self, parts: int) -> Sequence[Span]:
        """Return one range: nothing is known of its cursors but their order."""
        return one_range(self, parts, "a function reads it from its start; a source class may define split(parts)")

    def _pairs(self, after: Any) -> Iterator[tuple[Any, Any]]:
        if self._function is None:
            raise UsageError(f"{self!r} has no function yet: use it as a decorator of one")
        last = after
        first = after is None
        given: Any = self._function(after)
        if not isinstance(given, Iterable):
            kind = "an async generator" if hasattr(given, "__aiter__") else f"a {type(given).__name__}"
            raise UsageError(f"{self!r} returned {kind}: write a plain generator that yields (cursor, row)")
        for pair in given:
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise UsageError(f"{self!r} yielded {type(pair).__name__}: yield (cursor, row), one pair for each row")
            if pair[0] is None or pair[0] != pair[0]:
                raise Permanent("no_cursor", f"{self!r} yielded a row with the cursor {pair[0]!r}: None means the "
                                             "start, and nothing comes after NaN; yield another cursor")  # fmt: skip
            if not first and pair[0] == last:
                raise Permanent(
                    "cursor_repeats",
                    f"{self!r}: two rows in succession have the cursor {last!r}: a crash between them would lose the "
                    "second; make it unique, such as (time, id), and begin after the cursor that is passed",
                )
            if first:
                cursor.encode(
                    Cursor("own", pair[0])
                )  # a cursor that cannot be stored is reported at the first row, not at the thousandth
            last, first = pair[0], False
            yield pair

    def _value(self, at: Cursor | None) -> Any:
        if at is not None and at.kind != "own":
            raise UsageError(f"{self!r}: the cursor {at} belongs to another source")
        return None if at is None else at.value
