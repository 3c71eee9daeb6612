"""Files as streams of bytes: plain, unpacked, or recoded to the encoding that the parsers read."""

import codecs
import hashlib
import io
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from holdfast.core.errors import SourceChanged, UsageError
from holdfast.runtime.sources.base import opened

SORTS = {
    b"\x1f\x8b\x08": "it is packed with gzip: rename it to end in .gz, or unpack it",
    **{b"BZh%d1AY&SY" % n: "it is packed with bzip2: unpack it, or pack it with gzip" for n in range(1, 10)},
    b"\xfd7zXZ\0": "it is packed with xz: unpack it, or pack it with gzip",
    b"\x28\xb5\x2f\xfd": "it is packed with zstd: unpack it, or pack it with gzip",
    b"PK\3\4": "it is a zip archive or a spreadsheet: unpack it, or save it as text",
    b"PAR1": "it is a Parquet file: use Parquet",
    codecs.BOM_UTF32_LE: "it is UTF-32: save it as UTF-8, or pass encoding= if the source has that option",
    codecs.BOM_UTF16_LE: "the file is UTF-16: save it as UTF-8, or pass encoding= if the source has that option",
    codecs.BOM_UTF16_BE: "the file is UTF-16: save it as UTF-8, or pass encoding= if the source has that option",
}
"""A file that begins like this is not text whose lines end as in ASCII."""
LONGEST = max(map(len, SORTS))
STATEFUL = ("utf-7", "utf_7", "hz", "iso2022")
"""Encodings in which the meaning of a byte depends on earlier bytes."""


def is_packed(path: Path) -> bool:
    """Return whether the file is unpacked while it is read, so that it cannot be sought."""
    return path.suffix.lower() == ".gz"


def is_pipe(path: Path) -> bool:
    """Return whether it can be read only once, from its start: a pipe, a terminal, the standard input."""
    try:
        return not stat.S_ISREG(path.stat().st_mode) and not path.is_dir()
    except OSError:
        return False  # opening it reports the error


def has_byte_lines(encoding: str) -> bool:
    """Return whether a line ends with the bytes of ASCII, and the text after it can be read by itself."""
    name = codecs.lookup(encoding).name.removesuffix("-sig")
    if name.startswith(STATEFUL):
        return False
    try:
        return "a\r\n".encode(name) == b"a\r\n"
    except (UnicodeError, LookupError):
        return False


@contextmanager
def lines_of(path: Path, encoding: str, what: str) -> Iterator[IO[bytes]]:
    """Yield the file as bytes whose lines end with the bytes of ASCII: unchanged, or recoded to UTF-8."""
    with opened(path, what) as stream:
        if has_byte_lines(encoding):
            _refuse_other_sorts(stream, what)
        yield stream if has_byte_lines(encoding) else cast("IO[bytes]", _Recoded(stream, encoding, what))


def _refuse_other_sorts(stream: IO[bytes], what: str) -> None:
    """Refuse a file of another sort, whose every line would be malformed; by its first bytes, not by its name."""
    begins: bytes = stream.peek(LONGEST)[:LONGEST] if hasattr(stream, "peek") else b""
    for mark, kind in SORTS.items():
        if begins.startswith(mark):
            raise UsageError(f"{what}: {kind}")


class _Recoded:
    """A stream in UTF-8, recoded from another encoding."""

    def __init__(self, stream: IO[bytes], encoding: str, what: str) -> None:
        self._text = io.TextIOWrapper(stream, encoding=encoding, errors="surrogateescape", newline="")
        self._what = what
        self._over = b""

    def read(self, count: int) -> bytes:
        """Return at most so many bytes; none at the end."""
        if not self._over:
            try:
                self._over = self._text.read(count).encode("utf-8", "surrogateescape")
            except UnicodeError as error:
                raise UsageError(f"{self._what}: {error}; pass the right encoding=") from None
        piece, self._over = self._over[:count], self._over[count:]
        return piece


BLOCK_BYTES = 32 * 1024
"""Small enough that the rows of a block stay in the processor's cache: with 256 KiB, rows cost a third more."""


class Block(NamedTuple):
    """Some whole lines."""

    data: bytes
    at_end: bool
    """Whether nothing follows."""


class LineTooLongError(Exception):
    """A line is longer than the limit; `head` is its beginning."""

    def __init__(self, head: bytes) -> None:
        super().__init__()
        self.head = head


class Blocks:
    """The lines of a stream from an offset on, up to another or to the end: `peek`, then `take` the bytes that were
    parsed."""

    def __init__(self, stream: IO[bytes], what: str, *, offset: int = 0, until: int | None = None,
                 longest: int, size: int = 0, lone_cr: bool = True) -> None:  # fmt: skip
        self.offset = offset
        """The byte at which the next block begins."""
        self._stream, self._what, self._until, self._longest = stream, what, until, longest
        self._size = size if size else BLOCK_BYTES
        self._lone_cr = lone_cr
        self._held = b""
        self._ended = False

    def peek(self, beyond: int = 0) -> Block | None:
        """Return the next lines, in more than so many bytes; None at the end."""
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
        """Move past bytes that were parsed."""
        self._held = self._held[count:]
        self.offset += count

    def pass_over_line(self) -> None:
        """Read to the end of the line without keeping it."""
        while not (at := self._held.find(b"\n") + 1) and not self._ended:
            self.take(len(self._held))
            self._fill(1 << 20)
        self.take(at if at else len(self._held))

    def skip(self, mark: bytes) -> None:
        """Skip a mark at the start of the file."""
        self._fill(len(mark))
        if self._held.startswith(mark):
            self.take(len(mark))

    def _rest(self) -> Block | None:
        return Block(self._held, at_end=True) if self._held else None

    def _fill(self, want: int) -> None:
        while len(self._held) < want and not self._ended:
            room = want - len(self._held)
            if self._until is not None:
                room = min(room, self._until - self.offset - len(self._held))
            piece = self._stream.read(room) if room else b""
            if not piece and room and self._until is not None:
                raise SourceChanged(
                    f"{self._what}: it ends at byte {self.offset + len(self._held):,}, but had {self._until:,} or more "
                    "when the scan began: it was shortened; put the file back, or scan it under a new batch name"
                )
            self._held += piece
            self._ended = not piece

    def _last_line_end(self, lo: int, hi: int) -> int:
        """Return the end of the last line that ends between these; 0 if there is none. A CR alone also ends a line, but
        if it is the last byte that was read, its LF may follow."""
        at = self._held.rfind(b"\n", lo, hi) + 1
        if at or not self._lone_cr:
            return at
        known = len(self._held) if self._ended else len(self._held) - 1
        at = self._held.rfind(b"\r", lo, min(hi, known)) + 1
        return at + 1 if at and self._held[at : at + 1] == b"\n" else at


def count_lines(data: bytes) -> int:
    """Return how many lines end in these bytes."""
    count = data.count(b"\n")
    return count + data.count(b"\r") - data.count(b"\r\n") if b"\r" in data else count


SAMPLES = 5
SAMPLE_BYTES = 4096
PLACES = 256
"""Positions, evenly over the file, that share one digest."""
HEADS, SMALL_BYTES = 16, 1 << 20
"""The number of beginnings of a small file that each have a digest, and the limit of a small file: they show in which
part it changed."""


def identity_of(path: Path) -> dict[str, Any]:
    """Return the size, and the stretches that were read, each with a digest."""
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        samples = [[at, *_digest(stream, at, min(SAMPLE_BYTES, size - at))] for at in _starts(size, SAMPLES)]
        return {"size": size, "samples": samples, "places": _overall(stream, size), "heads": _heads(stream, size)}


def identity_difference(path: Path, before: dict[str, Any]) -> str | None:
    """Return what has changed, in words; None if nothing has, or if bytes were only appended."""
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        if size < before["size"]:
            return f"it has {size:,} bytes, but had {before['size']:,}: it was shortened"
        for at, count, digest in before["samples"]:
            if _digest(stream, at, count) != [count, digest]:
                return f"its bytes {at:,} to {at + count:,} are not what they were: it was rewritten"
        if "places" in before and _overall(stream, before["size"]) != before["places"]:
            return f"somewhere in its first {before['size']:,} bytes it is not what it was: it was rewritten"
    return None


def identity_difference_beside(
    path: Path, before: dict[str, Any], open_bytes: Sequence[tuple[int, int | None]]
) -> str | None:
    """Return what has changed outside of some stretches of bytes, in words: found by samples that are entirely outside,
    and for a small file by the part before the first stretch."""
    least = min(lo for lo, _ in open_bytes)
    with path.open("rb") as stream:
        for upto, digest in before.get("heads", ()):
            if upto <= least and _digest(stream, 0, upto) != [upto, digest]:
                return f"its first {upto:,} bytes are not what they were"
        for at, count, digest in before["samples"]:
            beside = all(at + count <= lo or (hi is not None and hi <= at) for lo, hi in open_bytes)
            if beside and _digest(stream, at, count) != [count, digest]:
                return f"its bytes {at:,} to {at + count:,} are not what they were"
    return None


def _starts(size: int, count: int) -> list[int]:
    """Return so many positions, evenly over the file, or as many as it has."""
    most = max(0, size - SAMPLE_BYTES)
    count = min(count, max(2, -(-size // SAMPLE_BYTES)))
    return sorted({most * part // (count - 1) for part in range(count)})


def _heads(stream: IO[bytes], size: int) -> list[list[Any]]:
    """Return digests of beginnings of a small file, of different lengths; none for a large one."""
    lengths = sorted({size * part // HEADS for part in range(1, HEADS)} - {0}) if size <= SMALL_BYTES else []
    return [_digest(stream, 0, length) for length in lengths]


def _overall(stream: IO[bytes], size: int) -> str:
    """Return one digest over many positions of the first so many bytes."""
    found = hashlib.sha256()
    for at in _starts(size, PLACES):
        stream.seek(at)
        found.update(stream.read(min(SAMPLE_BYTES, size - at)))
    return found.hexdigest()[:32]


def _digest(stream: IO[bytes], at: int, count: int) -> list[Any]:
    stream.seek(at)
    data = stream.read(count)
    return [len(data), hashlib.sha256(data).hexdigest()[:32]]
