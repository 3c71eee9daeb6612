"""A source of rows in memory, for tests of scans."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from holdfast.core.cursor import Cursor
from holdfast.runtime.sources.base import Span


class ListPage:
    """Some rows, and the number of the first."""

    def __init__(self, rows: Sequence[Any], first: int) -> None:
        self.rows, self._first = rows, first

    def after(self, count: int) -> Cursor:
        return Cursor("row", self._first + count)


class Rows:
    """A list of rows; the cursor is the number of rows read."""

    def __init__(self, rows: Sequence[Any], *, page: int = 100) -> None:
        self.rows, self.page = rows, page

    def describe(self) -> dict[str, Any]:
        return {"kind": "rows"}

    def read(self, after: Cursor | None, until: Cursor | None) -> Iterator[ListPage]:
        at, end = (0 if after is None else after.value), (len(self.rows) if until is None else until.value)
        while rows := self.rows[at : min(end, at + self.page)]:
            yield ListPage(rows, at)
            at += len(rows)

    def split(self, parts: int) -> list[Span]:
        size = len(self.rows)
        borders = [size * part // parts for part in range(parts + 1)]
        return [Span(after=Cursor("row", lo), until=Cursor("row", hi), rows=hi - lo) for lo, hi in pairwise(borders)]
