"""Lines of JSON, one value each."""

import codecs
from itertools import accumulate
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.errors import UsageError
from holdfast.core.limits import PREVIEW_BYTES
from holdfast.runtime.sources import line_file
from holdfast.runtime.sources.base import Malformed
from holdfast.runtime.sources.blocks import Blocks
from holdfast.runtime.sources.line_file import LineFile, Place


class JsonLines(LineFile):
    """The values of a file with one JSON value a line, streamed: `JsonLines("pages.jsonl")`; `.gz` is unpacked.

    `growing=True` leaves a last line that has no end yet for later.
    """

    lone_cr = False

    def __init__(self, path: str | PathLike[str], *, growing: bool = False) -> None:
        super().__init__(Path(path), f"JsonLines({str(path)!r})", "utf-8", growing)

    def describe(self) -> dict[str, Any]:
        """The file's name."""
        return {"kind": "jsonlines", "name": self._name}

    def _begin(self, blocks: Blocks) -> "ValueParser":
        blocks.skip(codecs.BOM_UTF8)
        return ValueParser(self._name)


class ValueParser:
    """Reads blocks of lines; a line that is no JSON is told with its place."""

    trouble: UsageError | None = None
    first_line = 1
    taken = 0
    flawed = False

    def __init__(self, name: str) -> None:
        self._name = name
        self._decode = msgspec.json.Decoder().decode

    def parse(self, data: bytes, at_end: bool, place: Place) -> list[Any]:
        """The values of a block: all at once where nothing is wrong with any."""
        self.taken, self.flawed = len(data), False
        lines = data.split(b"\n")
        if len(data) <= line_file.LINE_BYTES:
            try:
                return list(map(self._decode, filter(None, lines)))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass  # a line that is blank, or wrong
        self.flawed = True
        starts = accumulate((len(line) + 1 for line in lines), initial=0)
        each = enumerate(zip(lines, starts, strict=False))
        return [value for number, (line, start) in each for value in self._value(line, number, start, place)]

    def ends(self, data: bytes) -> list[int]:
        """Where each value ends."""
        lines = data.split(b"\n")[:-1]
        ends = accumulate(len(line) + 1 for line in lines)
        return [end for line, end in zip(lines, ends, strict=True) if line.strip()]

    def is_whole(self, data: bytes, at_end: bool) -> bool:
        """A line is a value: every line's end is a border."""
        return True

    def overlong(self, head: bytes, place: Place, number: int = 0, start: int = 0) -> Malformed:
        """Its beginning."""
        self.flawed = True
        why = f"has more than {line_file.LINE_BYTES:,} bytes; this is its beginning"
        return self._malformed(head[:PREVIEW_BYTES], why, place.line + number, place.byte(start))

    def _value(self, line: bytes, number: int, start: int, place: Place) -> list[Any]:
        if not line or line.isspace():
            return []
        if len(line) >= line_file.LINE_BYTES:
            return [self.overlong(line, place, number, start)]
        try:
            return [self._decode(line)]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return [self._malformed(line, f"is not valid JSON: {error}", place.line + number, place.byte(start))]

    def _malformed(self, raw: bytes, why: str, number: int, byte: int | None) -> Malformed:
        return Malformed(raw=raw.rstrip(b"\r\n"), why=why, where=f"{self._name}:{number}", byte=byte)
