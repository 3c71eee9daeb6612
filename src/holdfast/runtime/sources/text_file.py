"""Cursors into files: a byte and the number of rows after it, or the number of a row if the file cannot be sought."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from holdfast.core.cursor import Cursor
from holdfast.core.errors import HoldfastError, SourceChanged, UsageError
from holdfast.core.limits import PAYLOAD_BYTES
from holdfast.runtime.sources import streams
from holdfast.runtime.sources.base import Page, Span, logical_name, one_range, told
from holdfast.runtime.sources.streams import (
    Blocks,
    LineTooLongError,
    count_lines,
    has_byte_lines,
    is_packed,
    is_pipe,
    lines_of,
)


class BytePage:
    """The rows of a block of a file."""

    def __init__(self, rows: Sequence[Any], start: int, end: int | None, first: int, flawed: bool) -> None:
        self.rows, self.flawed = rows, flawed
        self._start, self._end, self._first, self._count = start, end, first, len(rows)

    def after(self, count: int) -> Cursor:
        """Return the beginning of the block and how many of its rows were passed; after the last row, the beginning of
        the next block."""
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
    """Return the byte and the rows after it, or the row and 0."""
    if at is None:
        return 0, 0
    value, rows = at.value, 0 if at.tiebreaker is None else at.tiebreaker
    if at.kind != kind or not _is_count(value) or not _is_count(rows):
        raise UsageError(
            f"{what}: it is read by {'a byte and rows after it' if kind == 'byte' else 'the number of the row'}; "
            f"the cursor {at} belongs to another source, or is damaged"
        )
    return value, rows


def seek_row(stream: IO[bytes], offset: int, first: int, what: str) -> None:
    """Seek to the beginning of a row; refuse a position that is neither the first row nor after the end of a line."""
    size = stream.seek(0, 2)
    if offset > size:
        raise SourceChanged(
            f"{what}: it has {size:,} bytes, but the scan was at byte {offset:,}: it was shortened; put the file back, "
            "or scan it under a new batch name"
        )
    stream.seek(max(0, offset - 1))
    if first < offset < size and stream.read(1) not in b"\r\n":
        raise SourceChanged(
            f"{what}: no line ends before byte {offset:,}, where the scan was: its cursor was set into the middle "
            "of a line, or the file was rewritten, or its last line was continued. Reset it to a cursor that "
            "`holdfast cursor show NAME --history` lists, put the file back, or scan it under a new batch name"
        )
    stream.seek(offset)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


PASS_BYTES = 1 << 20
SHARE = 16
"""How many blocks of the pass a partition has at least, if it is long enough."""


class Search(NamedTuple):
    """How far a pass has come."""

    at: int
    """The byte: a row ends before it."""
    done: int = 0
    """How many of the wanted positions are behind it."""
    found: tuple[int, ...] = ()


def borders_between(stream: IO[bytes], is_whole: Callable[[bytes, bool], bool], first: int, size: int, parts: int,
            *, longest: int, lone_cr: bool, so_far: Search | None = None,
            tell: Callable[[Search], None] | None = None) -> list[int]:  # fmt: skip
    """Return up to so many borders less one, in order, each where a row ends and another begins. A pass that was
    interrupted resumes where it was."""
    wanted = [first + (size - first) * part // parts for part in range(1, parts)]
    if not wanted:
        return []
    begin = so_far if so_far is not None else Search(first)
    found = list(begin.found)
    stream.seek(begin.at)
    block_bytes = max(1, min(PASS_BYTES, (size - first) // (parts * SHARE)))
    blocks = Blocks(stream, "the file", offset=begin.at, until=size, longest=longest, size=block_bytes, lone_cr=lone_cr)
    for done, want in enumerate(wanted[begin.done :], begin.done):
        while blocks.offset < want:
            _pass_over(blocks, is_whole)
            if tell is not None:
                tell(Search(blocks.offset, done, tuple(found)))
        if first < blocks.offset < size and blocks.offset not in found[-1:]:
            found.append(blocks.offset)
    return found


def _pass_over(blocks: Blocks, is_whole: Callable[[bytes, bool], bool]) -> None:
    """Move past a block that ends where a row ends."""
    beyond = 0
    try:
        while block := blocks.peek(beyond):
            if is_whole(block.data, block.at_end):
                blocks.take(len(block.data))
                return
            beyond = len(block.data)
    except LineTooLongError:
        blocks.pass_over_line()  # the reader reports what is wrong with it


LINE_BYTES = 2 * PAYLOAD_BYTES
"""A line longer than this cannot become a payload."""


class Parser(Protocol):
    """A parser that makes rows of blocks."""

    trouble: UsageError | None
    """Why the rest cannot be read; raised once the rows before it were delivered."""

    taken: int
    """How many bytes of the last block were parsed: all, except after an error."""
    first_line: int
    """The number of the line at which the first row begins."""
    flawed: bool
    """Whether there may be malformed rows in the last block."""

    def parse(self, data: bytes, at_end: bool, place: "RowPlace") -> list[Any] | None:
        """Return the rows of a block; None if it ends within one."""
        ...

    def is_whole(self, data: bytes, at_end: bool) -> bool:
        """Return whether a block ends where a row ends."""
        ...

    def ends(self, data: bytes) -> list[int]:
        """Return where each row of a block ends; a row that continues beyond it is left out."""
        ...

    def overlong(self, head: bytes, place: "RowPlace") -> Any:
        """Return the value for a line beyond the limit, of which this is the beginning; or raise."""
        ...


class LineFile:
    """A file whose rows are lines, or several lines each."""

    at_hand = True
    lone_cr = True
    """Whether a CR alone ends a line."""

    def __init__(self, path: Path, what: str, encoding: str) -> None:
        self.path = path
        self.encoding = encoding
        self._what = what
        self._name = logical_name(path)

    def __repr__(self) -> str:
        return self._what

    def __iter__(self) -> Iterator[Any]:
        """The rows from the first to the last, `Malformed` ones among them; blank lines are left out."""
        with closing(self.read(None, None)) as pages:  # type: ignore[type-var]  # it is a generator
            for page in pages:
                yield from page.rows

    @property
    def can_be_sought(self) -> bool:
        """Whether its cursor is a byte, and it can be read in partitions."""
        return not is_packed(self.path) and has_byte_lines(self.encoding) and not is_pipe(self.path)

    def read(self, after: Cursor | None, until: Cursor | None) -> Iterator[Page]:
        """Yield the rows after a cursor, up to another and with it."""
        kind = "byte" if self.can_be_sought else "row"
        start = place_of(after, kind, self._what)
        stop = None if until is None else place_of(until, kind, self._what)
        with self._opened() as (stream, parser, blocks):
            if kind == "row":
                yield from self._by_row(parser, blocks, start[0], None if stop is None else stop[0])
            else:
                yield from self._by_byte(stream, parser, blocks.offset, start, stop)

    def split(self, parts: int) -> Sequence[Span]:
        """Return ranges of about as many bytes each; their borders are between rows, and the last ends where the file
        ends now."""
        return self.split_on(parts, None, lambda _: None)

    def split_on(
        self, parts: int, before: dict[str, Any] | None, tell: Callable[[dict[str, Any]], None]
    ) -> Sequence[Span]:
        """Return the same, from where another pass over the same file was interrupted; `tell` is called with its
        progress."""
        if not self.can_be_sought:
            why = "it cannot be read from the middle; unpack it, or save it as UTF-8"
            return one_range(self, parts, why, None if is_pipe(self.path) else self.identity())
        resumes = before is not None and before["parts"] == parts and self.changed(before["identity"]) is None
        known = before["identity"] if before is not None and resumes else self.identity()
        so_far = Search(before["at"], before["done"], tuple(before["found"])) if before and resumes else None

        def told(search: Search) -> None:
            tell({"parts": parts, "identity": known, **search._asdict()})

        with self._opened() as (stream, parser, blocks):
            cuts = borders_between(stream, parser.is_whole, blocks.offset, known["size"], parts, longest=LINE_BYTES,
                                   lone_cr=self.lone_cr, so_far=so_far, tell=told)  # fmt: skip
        ends: list[Cursor | None] = [None, *(Cursor("byte", cut, 0) for cut in cuts)]
        ends.append(Cursor("byte", known["size"], 0))
        return [Span(after=after, until=until, identity=known) for after, until in pairwise(ends)]

    def identity(self) -> dict[str, Any]:
        """Return its size, and digests of a few places."""
        with told(self._what):
            return streams.identity_of(self.path)

    def changed(self, before: dict[str, Any]) -> str | None:
        """Return what is another than before; a file that only grew is not."""
        with told(self._what):
            return streams.identity_difference(self.path, before)

    def lines_after(self, after: Cursor | None, count: int) -> str:
        """Return the lines of the next rows after a cursor, in words; only the file if that is not known."""
        found: tuple[int, int] | None = None
        if self.can_be_sought:
            with suppress(HoldfastError, OSError, ValueError):
                found = self._lines_after(place_of(after, "byte", self._what), count)
        if found is None:
            return f"in {self.path}"
        first, last = found
        return f"line {first:,} of {self.path}" if first == last else f"lines {first:,} to {last:,} of {self.path}"

    def _lines_after(self, start: tuple[int, int], count: int) -> tuple[int, int] | None:
        """Return the first and the last line of some rows; None if there are fewer."""
        found = self._stretch(start, count)
        if found is None:
            return None
        lines, (begin, end, has_end) = LineNumbers(self.path, self.lone_cr), found
        first = lines.at(begin)
        return first, max(first, lines.at(end) - has_end)

    def byte_after(self, after: Cursor | None) -> int:
        """Return the byte at which the next row after a cursor begins in the present file; if that is not known, a byte
        before it."""
        return self.bytes_of(after)[0]

    def bytes_of(self, after: Cursor | None) -> tuple[int, int | None]:
        """Return the first byte of the row after a cursor, and the byte behind it; None if there is no such row."""
        start = place_of(after, "byte", self._what)
        with suppress(HoldfastError, OSError, ValueError):
            if (found := self._stretch(start, 1)) is not None:
                return found[0], found[1]
        return start[0], None

    def _stretch(self, start: tuple[int, int], count: int) -> tuple[int, int, bool] | None:
        """Return where some rows begin, where they end, and whether the last has a line end; None if there are
        fewer."""
        begin = None
        with self._opened() as (stream, parser, blocks):
            first = blocks.offset
            offset, passed = max(start, (first, 0))
            lines = LineNumbers(self.path, self.lone_cr)
            for rows, at, behind, data in self._between(stream, parser, lines, first, offset, None):
                ends = [at, *(at + end for end in parser.ends(data))]
                ends += [behind] * (len(rows) + 1 - len(ends))  # the last line of a file may have no end
                begin = ends[passed] if begin is None and passed < len(rows) else begin
                if begin is not None and passed + count <= len(rows):
                    last = ends[passed + count]
                    return begin, last, data[last - at - 1 : last - at] in (b"\n", b"\r", b"")
                passed -= len(rows)
                if begin is not None:
                    passed, count = 0, count + passed
        return None

    def changed_beside(self, before: dict[str, Any], open_bytes: Sequence[tuple[int, int | None]]) -> str | None:
        """Return what has changed outside of some stretches of bytes, as far as it was sampled; None if nothing has."""
        with told(self._what):
            return streams.identity_difference_beside(self.path, before, open_bytes)

    def natural_key(self, value: Any) -> None:
        """A row has no key of its own: name a column."""
        return

    def _begin(self, blocks: Blocks) -> Parser:
        """Skip everything before the first row, and return the parser for the rest."""
        raise NotImplementedError

    # -- reading ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _opened(self) -> Iterator[tuple[IO[bytes], Parser, Blocks]]:
        """Yield the file, its parser, and the blocks from the first row on."""
        with lines_of(self.path, self.encoding, self._what) as stream:
            blocks = self._blocks(stream, 0, None)
            yield stream, self._begin(blocks), blocks

    def _blocks(self, stream: IO[bytes], offset: int, until: int | None) -> Blocks:
        return Blocks(stream, self._what, offset=offset, until=until, longest=LINE_BYTES, lone_cr=self.lone_cr)

    def _by_byte(self, stream: IO[bytes], parser: Parser, first: int, start: tuple[int, int],
                 stop: tuple[int, int] | None) -> Iterator[Page]:  # fmt: skip
        """Yield the rows up to a byte, and then the rows after it that belong to the cursor."""
        lines = LineNumbers(self.path, self.lone_cr)
        (offset, passed), (end, more) = max(start, (first, 0)), (None, 0) if stop is None else stop
        if end is None or offset < end:
            for found, at, behind, _ in self._between(stream, parser, lines, first, offset, end):
                skip = min(passed, len(found))
                passed -= skip
                yield BytePage(found[skip:] if skip else found, at, behind, skip, parser.flawed)
            if end is None and passed:
                raise SourceChanged(
                    f"{self._what}: it has {passed:,} rows less after byte {offset:,} than the scan has read there: it "
                    "was shortened; put the file back, or scan it under a new batch name"
                )
            offset = 0 if end is None else end
        elif more and offset > end:  # the two cursors come from readers with other blocks: count the rows between
            more -= sum(len(found) for found, *_ in self._between(stream, parser, lines, first, end, offset))
        if more <= passed:
            return
        for found, at, *_ in self._between(stream, parser, lines, first, offset, None):
            yield BytePage(found[passed:more], at, None, passed, parser.flawed)
            if more <= len(found):
                return
            passed, more = max(0, passed - len(found)), more - len(found)

    def _between(self, stream: IO[bytes], parser: Parser, lines: "LineNumbers", first: int, offset: int,
                 end: int | None) -> Iterator[tuple[list[Any], int, int, bytes]]:  # fmt: skip
        seek_row(stream, offset, first, self._what)
        return self._parsed(self._blocks(stream, offset, end), parser, lines)

    def _by_row(self, parser: Parser, blocks: Blocks, start: int, stop: int | None) -> Iterator[Page]:
        first = 0
        for found, *_ in self._parsed(blocks, parser, LineNumbers(None, self.lone_cr, parser.first_line)):
            kept = found[max(0, start - first) : None if stop is None else max(0, stop - first)]
            if kept:
                yield RowPage(kept, max(first, start), parser.flawed)
            first += len(found)
            if stop is not None and first >= stop:
                return
        if first < start:
            raise SourceChanged(f"{self._what}: it has {first:,} rows, but the scan was at row {start:,}: put it back")

    def _parsed(
        self, blocks: Blocks, parser: Parser, lines: "LineNumbers"
    ) -> Iterator[tuple[list[Any], int, int, bytes]]:
        """Yield rows, their first and last byte, and those bytes; no bytes for a line that is too long to be kept."""
        beyond = 0
        while True:
            at = blocks.offset
            try:
                block = blocks.peek(beyond)
            except LineTooLongError as long:
                head = long.head
                blocks.pass_over_line()
                yield [parser.overlong(head, RowPlace(lines, at))], at, blocks.offset, b""
                continue
            if block is None:
                return
            rows = parser.parse(block.data, block.at_end, RowPlace(lines, at))
            if rows is None:
                beyond = len(block.data)
                continue
            blocks.take(parser.taken)
            lines.passed(block.data)
            beyond = 0
            yield rows, at, blocks.offset, block.data
            if parser.trouble is not None:
                raise parser.trouble


class RowPlace(NamedTuple):
    """The beginning of a block."""

    lines: "LineNumbers"
    offset: int

    @property
    def line(self) -> int:
        """The number of its first line; counted when needed."""
        return self.lines.at(self.offset)

    def byte(self, within: int) -> int | None:
        """Return where something in it begins in the file; None if the file cannot be sought."""
        return self.offset + within if self.lines.can_be_sought else None


class LineNumbers:
    """The number of the line at a byte. If the file can be read twice, lines are counted when needed."""

    def __init__(self, path: Path | None, lone_cr: bool, line: int = 1) -> None:
        self._path, self._lone_cr = path, lone_cr
        self._offset, self._line = 0, line

    def at(self, offset: int) -> int:
        if self._path is not None and offset != self._offset:
            if offset < self._offset:
                self._offset, self._line = 0, 1
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                self._count(stream, offset - self._offset)
            self._offset = offset
        return self._line

    @property
    def can_be_sought(self) -> bool:
        return self._path is not None

    def passed(self, data: bytes) -> None:
        """Count the lines of bytes that were read in sequence and cannot be read again."""
        if self._path is None:
            self._line += count_lines(data) if self._lone_cr else data.count(b"\n")

    def _count(self, stream: IO[bytes], left: int) -> None:
        while left and (piece := stream.read(min(left, 1 << 20))):
            if piece.endswith(b"\r") and len(piece) < left:
                piece += stream.read(1)  # a line may end with both
            left -= len(piece)
            self._line += count_lines(piece) if self._lone_cr else piece.count(b"\n")
