"""Cursors into files: a byte and how many rows after it, or the number of a row where a file cannot be sought."""

import re
from collections.abc import Sequence
from typing import IO, Any

from holdfast.core.cursor import Cursor
from holdfast.core.errors import SourceChanged, UsageError

CHECK = re.compile(r"[0-9a-f]{16}|")
"""What stands beside the byte in a file that grows (see `growth`); nothing where a person wrote the cursor."""


class BytePage:
    """The rows of a block of a file."""

    def __init__(self, rows: Sequence[Any], start: int, end: int | None, first: int, flawed: bool) -> None:
        self.rows, self.flawed = rows, flawed
        self._start, self._end, self._first, self._count = start, end, first, len(rows)

    def after(self, count: int) -> Cursor:
        """Where the block begins, and how many of its rows were passed; after the last, where the next begins."""
        if count == self._count and self._end is not None:
            return Cursor("byte", self._end, 0)
        return Cursor("byte", self._start, self._first + count)


class RowPage:
    """Some rows of a stream, and the number of the first."""

    def __init__(self, rows: Sequence[Any], first: int, flawed: bool) -> None:
        self.rows, self.flawed, self._first = rows, flawed, first

    def after(self, count: int) -> Cursor:
        return Cursor("row", self._first + count)


def place_of(at: Cursor | None, kind: str, what: str) -> tuple[int, int]:
    """The byte and the rows after it, or the row and 0."""
    if at is None:
        return 0, 0
    checked = isinstance(at.tiebreaker, str) and CHECK.fullmatch(at.tiebreaker)
    value, rows = at.value, 0 if at.tiebreaker is None or checked else at.tiebreaker
    if at.kind != kind or not _is_count(value) or not _is_count(rows):
        raise UsageError(
            f"{what}: it is read by {'a byte and rows after it' if kind == 'byte' else 'the number of the row'}; "
            f"the cursor {at} is of another source, or damaged"
        )
    return value, rows


def seek_row(stream: IO[bytes], offset: int, first: int, what: str) -> None:
    """Go to where a row begins; refuse a place that is not the first row's, and that no line ends before."""
    size = stream.seek(0, 2)
    if offset > size:
        raise SourceChanged(
            f"{what}: it has {size:,} bytes, and the scan was at byte {offset:,}: it was shortened; put the file back, "
            "or scan it under a new batch name"
        )
    stream.seek(max(0, offset - 1))
    if first < offset < size and stream.read(1) not in b"\r\n":
        raise SourceChanged(
            f"{what}: no line ends before byte {offset:,}, where the scan was: its cursor was set into the middle "
            "of a line, or the file was rewritten, or its last line was written on. Reset it to a cursor that "
            "`holdfast cursor show NAME --history` tells, put the file back, or scan it under a new batch name"
        )
    stream.seek(offset)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0
