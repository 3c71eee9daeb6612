"""Rows of a CSV file as dictionaries, by the names in its first row.

A row that does not fit the header, or has broken characters, is `Malformed`. A quote that is never closed takes the
rows after it with it: then reading stops, because nobody can tell which of those lines were rows.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import IO, Any

from holdfast.core.errors import UsageError
from holdfast.core.limits import PAYLOAD_BYTES
from holdfast.runtime.sources.base import Malformed, logical_name, opened

LINE_CHARS = 2 * PAYLOAD_BYTES
"""A longer line means that the file is not a CSV file; reading stops."""

# Bytes that the encoding does not know are decoded to these characters, so that the row can be told apart.
_BROKEN = re.compile("[\udc80-\udcff]")


class Csv:
    """The rows of a CSV file, streamed: `Csv("inventory.csv")`; `.gz` is unpacked.

    `fields` names the columns of a file without a header; `quotechar=None` takes quotes for ordinary characters.
    """

    def __init__(self, path: str | PathLike[str], *, delimiter: str = ",", encoding: str = "utf-8-sig",
                 fields: Sequence[str] | None = None, quotechar: str | None = '"') -> None:  # fmt: skip
        self.path = Path(path)
        self.delimiter = delimiter
        self.encoding = encoding
        self.fields = None if fields is None else tuple(fields)
        self.quotechar = quotechar
        self._what = f"Csv({str(path)!r})"
        self._name = logical_name(self.path)
        self._check()

    def __repr__(self) -> str:
        return self._what

    def __iter__(self) -> Iterator[dict[str, str] | Malformed]:
        """One dictionary of texts for each row; blank lines are left out."""
        with opened(self.path, self._what) as stream:
            lines = _Lines(stream, self.encoding, self._what)
            rows = _Rows(lines, csv.reader(lines, **self._dialect()), self._what, self._name)
            header = rows.header() if self.fields is None else list(self.fields)
            yield from rows.below(header)

    def describe(self) -> dict[str, Any]:
        """The file's name and how it is read."""
        return {
            "kind": "csv",
            "name": self._name,
            "delimiter": self.delimiter,
            "encoding": self.encoding,
            "quotechar": self.quotechar,
            "fields": None if self.fields is None else list(self.fields),
        }

    def natural_key(self, value: Any) -> None:
        """A row has no key of its own: name a column."""
        return

    def _dialect(self) -> dict[str, Any]:
        if self.quotechar is None:
            return {"delimiter": self.delimiter, "quoting": csv.QUOTE_NONE, "strict": True}
        return {"delimiter": self.delimiter, "quotechar": self.quotechar, "strict": True}

    def _check(self) -> None:
        try:
            csv.reader([], **self._dialect())
            io.TextIOWrapper(io.BytesIO(), encoding=self.encoding).close()
        except (TypeError, ValueError, LookupError) as error:
            raise UsageError(f"{self._what}: {error}") from None
        if self.fields is not None:
            _check_names(list(self.fields), f"{self._what}: fields={list(self.fields)!r}")


class _Lines:
    """The lines of a file as text, counted; those of the row at hand are kept to be shown."""

    def __init__(self, stream: IO[bytes], encoding: str, what: str) -> None:
        text = io.TextIOWrapper(stream, encoding=encoding, errors="surrogateescape", newline="")
        self._next = partial(text.readline, LINE_CHARS)
        self._what = what
        self.of_row: list[str] = []
        self.count = 0

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        try:
            line = self._next()
        except UnicodeError as error:
            raise UsageError(f"{self._what}, after line {self.count}: {error}; give the right encoding=") from None
        if not line:
            raise StopIteration
        self.count += 1
        if len(line) == LINE_CHARS:
            raise UsageError(f"{self._what}, line {self.count}: it has more than {LINE_CHARS:,} characters: "
                             "is this a CSV file?")  # fmt: skip
        self.of_row.append(line)
        return line


class _Rows:
    """The rows of a file, each good or malformed, and where they stand."""

    def __init__(self, lines: _Lines, reader: Any, what: str, name: str) -> None:
        self.lines = lines
        self.reader = reader
        self.what = what
        self.name = name
        # The limit is the process's; it is only ever raised, so that other users of the module lose nothing.
        csv.field_size_limit(max(csv.field_size_limit(), PAYLOAD_BYTES))

    def header(self) -> list[str]:
        """The first row that is not blank, checked."""
        for row in self._rows():
            at = f"{self.what}, line {self._first_line()}"
            if isinstance(row, Malformed):
                raise UsageError(f"{at}: the header {row.why}")
            _check_names(row, at)
            return row
        raise UsageError(f"{self.what}: the file is empty: begin it with a row of column names, or give fields=")

    def below(self, header: list[str]) -> Iterator[dict[str, str] | Malformed]:
        """The rows after the header."""
        width = len(header)
        for row in self._rows():
            if isinstance(row, Malformed):
                yield row
            elif len(row) == width:
                yield dict(zip(header, row, strict=True))
            else:
                yield self._malformed(f"has {len(row)} fields, the header has {width}")

    def _rows(self) -> Iterator[list[str] | Malformed]:
        of_row = self.lines.of_row
        while True:
            of_row.clear()
            try:
                row = next(self.reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield self._broken(str(error))
                continue
            fault = _fault(of_row)
            if fault is not None:
                yield self._malformed(fault)
            elif row:
                yield row

    def _broken(self, error: str) -> Malformed:
        """A row that the reader gave up on. If it ran to the end, or to the limit, it has swallowed others."""
        never_closed = "unexpected end" in error or "field limit" in error
        count = len(self.lines.of_row)
        if never_closed and count > 1:
            raise UsageError(
                f"{self.what}, line {self._first_line()}: a quote is opened and not closed in {count:,} lines: "
                "close it, or give quotechar=None if quotes are ordinary characters"
            )
        return self._malformed(f"is not valid CSV: {error}")

    def _malformed(self, why: str) -> Malformed:
        raw = "".join(self.lines.of_row).encode("utf-8", "surrogateescape")
        return Malformed(raw=raw, why=why, where=f"{self.name}:{self._first_line()}")

    def _first_line(self) -> int:
        return self.lines.count - len(self.lines.of_row) + 1


def _fault(lines: list[str]) -> str | None:
    """What is wrong with the characters of a row. NUL is legal text, but in a file it is a sign of lost data."""
    for line in lines:
        if "\0" in line:
            return "contains a NUL byte"
        if not line.isascii() and _BROKEN.search(line):
            return "contains bytes that are not valid in the file's encoding"
    return None


def _check_names(names: list[str], at: str) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UsageError(f"{at}: the column names {', '.join(map(repr, twice))} occur twice: give each column its own")
    if not names:
        raise UsageError(f"{at}: there are no column names")
