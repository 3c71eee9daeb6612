"""Lines of JSON, one value each."""

import codecs
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import IO, Any

import msgspec

from holdfast.core.errors import UsageError
from holdfast.core.limits import PAYLOAD_BYTES, PREVIEW_BYTES
from holdfast.runtime.sources.base import Malformed, logical_name, opened

LINE_BYTES = 2 * PAYLOAD_BYTES
"""A longer line is passed over and becomes a dead letter; no payload could be as long."""


class JsonLines:
    """The values of a file with one JSON value a line, streamed: `JsonLines("pages.jsonl")`; `.gz` is unpacked."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self._what = f"JsonLines({str(path)!r})"
        self._name = logical_name(self.path)

    def __repr__(self) -> str:
        return self._what

    def __iter__(self) -> Iterator[Any]:
        """One value for each line; blank lines are left out, broken ones are `Malformed`."""
        decode = msgspec.json.Decoder().decode
        with opened(self.path, self._what) as stream:
            number = 0
            while line := stream.readline(LINE_BYTES + 1):
                number += 1
                if number == 1:
                    line = self._without_mark(line)
                if len(line) > LINE_BYTES:
                    yield self._too_long(stream, line, number)
                elif line and not line.isspace():
                    try:
                        yield decode(line)
                    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                        yield self._malformed(line, f"is not valid JSON: {error}", number)

    def describe(self) -> dict[str, Any]:
        """The file's name."""
        return {"kind": "jsonlines", "name": self._name}

    def natural_key(self, value: Any) -> None:
        """A line has no key of its own: name a field."""
        return

    def _without_mark(self, line: bytes) -> bytes:
        """The first line without the mark that some editors write."""
        if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise UsageError(f"{self._what}: the file is UTF-16; save it as UTF-8")
        return line.removeprefix(codecs.BOM_UTF8)

    def _too_long(self, stream: IO[bytes], line: bytes, number: int) -> Malformed:
        """Read on to the end of the line without keeping it."""
        piece = line
        while piece and not piece.endswith(b"\n"):
            piece = stream.readline(1 << 20)
        why = f"has more than {LINE_BYTES:,} bytes; this is its beginning"
        return self._malformed(line[:PREVIEW_BYTES], why, number)

    def _malformed(self, raw: bytes, why: str, number: int) -> Malformed:
        return Malformed(raw=raw.rstrip(b"\r\n"), why=why, where=f"{self._name}:{number}")
