"""Files as streams of bytes: plain, unpacked, or in another encoding than the parsers read."""

import codecs
import io
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from holdfast.core.errors import UsageError
from holdfast.runtime.sources.base import opened

SORTS = {
    b"\x1f\x8b\x08": "it is packed with gzip: give it a name that ends in .gz, or unpack it",
    **{b"BZh%d1AY&SY" % n: "it is packed with bzip2: unpack it, or pack it with gzip" for n in range(1, 10)},
    b"\xfd7zXZ\0": "it is packed with xz: unpack it, or pack it with gzip",
    b"\x28\xb5\x2f\xfd": "it is packed with zstd: unpack it, or pack it with gzip",
    b"PK\3\4": "it is a zip archive or a spreadsheet: unpack it, or save it as text",
    b"PAR1": "it is a Parquet file: use Parquet",
    codecs.BOM_UTF32_LE: "it is UTF-32: save it as UTF-8, or give the encoding where there is one to give",
    codecs.BOM_UTF16_LE: "the file is UTF-16: save it as UTF-8, or give the encoding where there is one to give",
    codecs.BOM_UTF16_BE: "the file is UTF-16: save it as UTF-8, or give the encoding where there is one to give",
}
"""What begins so is no text whose lines end as in ASCII."""
LONGEST = max(map(len, SORTS))
STATEFUL = ("utf-7", "utf_7", "hz", "iso2022")
"""Encodings in which a byte means different things, depending on what stands before."""


def is_packed(path: Path) -> bool:
    """Whether the file is unpacked while it is read, so that no place in it can be gone to."""
    return path.suffix.lower() == ".gz"


def is_pipe(path: Path) -> bool:
    """Whether it can be read once, from its start: a pipe, a terminal, the standard input."""
    try:
        return not stat.S_ISREG(path.stat().st_mode) and not path.is_dir()
    except OSError:
        return False  # opening it says what is wrong


def has_byte_lines(encoding: str) -> bool:
    """Whether a line ends with the bytes of ASCII, and what follows can be read by itself."""
    name = codecs.lookup(encoding).name.removesuffix("-sig")
    if name.startswith(STATEFUL):
        return False
    try:
        return "a\r\n".encode(name) == b"a\r\n"
    except (UnicodeError, LookupError):
        return False


@contextmanager
def lines_of(path: Path, encoding: str, what: str) -> Iterator[IO[bytes]]:
    """The file as bytes whose lines end with the bytes of ASCII: as it is, or turned into UTF-8."""
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
    """A stream in UTF-8, whatever it was in."""

    def __init__(self, stream: IO[bytes], encoding: str, what: str) -> None:
        self._text = io.TextIOWrapper(stream, encoding=encoding, errors="surrogateescape", newline="")
        self._what = what
        self._over = b""

    def read(self, count: int) -> bytes:
        """Some bytes, at most so many; none at the end."""
        if not self._over:
            try:
                self._over = self._text.read(count).encode("utf-8", "surrogateescape")
            except UnicodeError as error:
                raise UsageError(f"{self._what}: {error}; give the right encoding=") from None
        piece, self._over = self._over[:count], self._over[count:]
        return piece
