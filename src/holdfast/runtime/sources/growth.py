"""Files that others write on: each row's cursor is the byte at which it ends, with a check of what stands before.

So a file that was cut, or replaced by another one, is refused where the scan stands, however long the new one is.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import IO, Any, Protocol, Self, runtime_checkable

from holdfast.core.cursor import Cursor
from holdfast.core.errors import SourceChanged, UsageError

CHECKED_BYTES = 1024
DIGITS = 16


@runtime_checkable
class Growing(Protocol):
    """A source that can be read while others write on."""

    def followed(self) -> Self:
        """The same source, read so that what is half written is left for later."""
        ...


class NotYetError(UsageError):
    """What has to stand at the beginning is not there; in a file that is written to, not yet."""


class GrowingPage:
    """The rows of a block, each known by where it ends."""

    def __init__(self, rows: Sequence[Any], start: int, ends: Callable[[], list[int]], before: bytes, data: bytes,
                 skip: int, flawed: bool) -> None:  # fmt: skip
        self.rows, self.flawed = rows, flawed
        self._start, self._ends_of, self._skip = start, ends, skip
        self._before, self._data = before, data
        self._ends: list[int] = []

    def after(self, count: int) -> Cursor:
        """Where the row ends. Nobody asks after most of them: where rows end is looked up by the first who does."""
        if not self._ends:
            self._ends = self._ends_of()
        end = self._ends[self._skip + count - 1]
        return Cursor("byte", self._start + end, digest(self._before + self._data[:end]))


def digest(text: bytes) -> str:
    """What stands before a place in a file, in short."""
    return hashlib.sha256(text[-CHECKED_BYTES:]).hexdigest()[:DIGITS]


def read_before(stream: IO[bytes], offset: int) -> bytes:
    """What stands before a place, as much of it as is checked; the stream stays where it is."""
    here, start = stream.tell(), max(0, offset - CHECKED_BYTES)
    stream.seek(start)
    found = stream.read(offset - start)
    stream.seek(here)
    return found


def refuse_replaced(stream: IO[bytes], at: Cursor | None, what: str) -> None:
    """Raise SourceChanged if not that stands before a cursor what stood there when it was made."""
    if at is None or not isinstance(at.tiebreaker, str) or not at.tiebreaker:
        return
    size = stream.seek(0, 2)
    if size < at.value:
        raise SourceChanged(
            f"{what}: it has {size:,} bytes, and the scan was at byte {at.value:,}: it was shortened, or a new file "
            f"took its place. {WHAT_TO_DO}"
        )
    found = digest(read_before(stream, at.value))
    if found != at.tiebreaker:
        count = min(CHECKED_BYTES, at.value)
        raise SourceChanged(
            f"{what}: the {count:,} bytes before byte {at.value:,}, where the scan was, are not what they were "
            f"({found}, not {at.tiebreaker}): it was rewritten, or a new file took its place. {WHAT_TO_DO}"
        )


WHAT_TO_DO = (
    "Put the old file back until it is read to its end, or read the new one: under a batch name of its own, or after "
    "`holdfast cursor reset`"
)
