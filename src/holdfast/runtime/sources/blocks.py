"""A file in blocks of bytes that end where a line ends, read from any such place on."""

from typing import IO, NamedTuple

from holdfast.core.errors import SourceChanged

BLOCK_BYTES = 32 * 1024
"""Small enough that what is made of a block stays near the processor: with 256 KiB, rows cost a third more."""


class Block(NamedTuple):
    """Some whole lines."""

    data: bytes
    at_end: bool
    """Whether nothing follows."""


class LineTooLongError(Exception):
    """A line goes on beyond the limit; `head` is its beginning."""

    def __init__(self, head: bytes) -> None:
        super().__init__()
        self.head = head


class Blocks:
    """The lines of a stream from an offset on, up to another or to the end: `peek`, then `take` what was understood."""

    def __init__(self, stream: IO[bytes], what: str, *, offset: int = 0, until: int | None = None,
                 longest: int, size: int = 0, lone_cr: bool = True, growing: bool = False) -> None:  # fmt: skip
        self.offset = offset
        """Where the next block begins."""
        self._stream, self._what, self._until, self._longest = stream, what, until, longest
        self._size = size if size else BLOCK_BYTES
        self._lone_cr = lone_cr
        self._growing = growing
        self._held = b""
        self._ended = False
        self.goes_on = False
        """The line that was passed over last had no end yet."""

    def peek(self, beyond: int = 0) -> Block | None:
        """The lines that come next, in more than so many bytes; None at the end."""
        want = max(self._size, beyond + max(beyond // 2, self._size) if beyond else 0)
        while True:
            self._fill(want)
            if self._ended and len(self._held) <= want:
                return self._rest()
            cut = self._last_line_end(beyond, want)
            if cut > beyond:
                return Block(self._held[:cut], at_end=False)
            if want > self._longest:
                raise LineTooLongError(self._held[: self._longest])
            want *= 2

    def take(self, count: int) -> None:
        """So many bytes were understood: what follows them is next."""
        self._held = self._held[count:]
        self.offset += count

    def pass_over_line(self) -> None:
        """Read to the end of the line without keeping it."""
        while not (at := self._held.find(b"\n") + 1) and not self._ended:
            self.take(len(self._held))
            self._fill(1 << 20)
        self.goes_on = self._growing and not at
        self.take(at if at else len(self._held))

    def skip(self, mark: bytes) -> None:
        """Pass over a mark at the start of the file."""
        self._fill(len(mark))
        if self._held.startswith(mark):
            self.take(len(mark))

    def _rest(self) -> Block | None:
        if self._growing:  # a line that has no end yet is left for later
            cut = self._last_line_end(0, len(self._held))
            return Block(self._held[:cut], at_end=True) if cut else None
        return Block(self._held, at_end=True) if self._held else None

    def _fill(self, want: int) -> None:
        while len(self._held) < want and not self._ended:
            room = want - len(self._held)
            if self._until is not None:
                room = min(room, self._until - self.offset - len(self._held))
            piece = self._stream.read(room) if room else b""
            if not piece and room and self._until is not None:
                raise SourceChanged(
                    f"{self._what}: it ends at byte {self.offset + len(self._held):,}, and the scan began when it had "
                    f"{self._until:,} or more: it was shortened; put the file back, or scan it under a new batch name"
                )
            self._held += piece
            self._ended = not piece

    def _last_line_end(self, lo: int, hi: int) -> int:
        """Where the last line ends that ends between these; 0 for nowhere. A CR alone ends a line, too, but one that
        is the last byte that was read may have its LF to come."""
        at = self._held.rfind(b"\n", lo, hi) + 1
        if at or not self._lone_cr:
            return at
        known = len(self._held) if self._ended and not self._growing else len(self._held) - 1
        at = self._held.rfind(b"\r", lo, min(hi, known)) + 1
        return at + 1 if at and self._held[at : at + 1] == b"\n" else at


def count_lines(data: bytes) -> int:
    """How many lines end in these bytes."""
    count = data.count(b"\n")
    return count + data.count(b"\r") - data.count(b"\r\n") if b"\r" in data else count
