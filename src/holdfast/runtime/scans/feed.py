"""Rows in cursor order, counted, with one page of foresight: so the last checkpoint and the end are one commit."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from holdfast.core.cursor import Cursor
from holdfast.core.errors import Transient, UsageError
from holdfast.core.model import Checkpoint
from holdfast.runtime.scans.misuse import Misuse
from holdfast.runtime.sources.base import Malformed, Page, Readable


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
        """The cursor after each of the rows that were taken last."""
        return [part.page.after(count) for part in self._parts for count in part.counts]

    def befores(self) -> list[Cursor | None]:
        """The cursor before each of them."""
        return [part.cursor(count - 1) for part in self._parts for count in part.counts]

    def numbers(self) -> list[int]:
        """The number of each of them, the first row of the range being 1."""
        return [part.rows + count for part in self._parts for count in part.counts]

    _parts: list[_Taken]

    def _passes(self, row: Any, count: int) -> bool:
        """Whether a row is passed over: what is no row is nobody's to handle."""
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
        """Whether there is a row to take: turns to the next page where the one at hand is used up."""
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
    """The rows of a source after one cursor, up to another; counted from a checkpoint on."""

    def again(start: Cursor | None) -> Iterator[Page]:
        try:
            return iter(source.read(start, until))
        except UsageError as error:
            raise Misuse(str(error)) from error

    return Feed(again(after), 0 if at is None else at.rows, after, again)
