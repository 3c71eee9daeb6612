"""Rows of a CSV file as dictionaries, by the names in its first row.

A row that does not fit the header, or has broken characters, is `Malformed`. A quote that is never closed takes the
rows after it with it: then reading stops, because nobody can tell which of those lines were rows.
"""

import codecs
import csv
import io
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from holdfast.core.errors import UsageError
from holdfast.runtime.sources.blocks import Blocks, LineTooLongError, count_lines
from holdfast.runtime.sources.csv_rows import RowParser, check_names
from holdfast.runtime.sources.growth import NotYetError
from holdfast.runtime.sources.line_file import LineFile
from holdfast.runtime.sources.streams import has_byte_lines


class Csv(LineFile):
    """The rows of a CSV file, streamed: `Csv("inventory.csv")`; `.gz` is unpacked.

    `fields` names the columns of a file without a header; `quotechar=None` takes quotes for ordinary characters;
    `growing=True` leaves a last line that has no end yet for later.
    """

    def __init__(self, path: str | PathLike[str], *, delimiter: str = ",", encoding: str = "utf-8-sig",
                 fields: Sequence[str] | None = None, quotechar: str | None = '"',
                 growing: bool = False) -> None:  # fmt: skip
        super().__init__(Path(path), f"Csv({str(path)!r})", encoding, growing)
        self.delimiter = delimiter
        self.fields = None if fields is None else tuple(fields)
        self.quotechar = quotechar
        self._check()

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

    def _begin(self, blocks: Blocks) -> RowParser:
        codec = codecs.lookup(self.encoding).name
        if codec == "utf-8-sig":
            blocks.skip(codecs.BOM_UTF8)
        read_as = "utf-8" if codec == "utf-8-sig" or not has_byte_lines(codec) else codec
        parser = RowParser(self._dialect(), read_as, self._what, self._name)
        parser.name_columns(self._header(blocks, parser) if self.fields is None else self.fields)
        return parser

    def _header(self, blocks: Blocks, parser: RowParser) -> list[str]:
        beyond, line = 0, 1
        while True:
            try:
                block = blocks.peek(beyond)
            except LineTooLongError as long:
                raise parser.too_long(long.head, line) from None
            if block is None:
                raise NotYetError(
                    f"{self._what}: the file is empty: begin it with a row of column names, or give fields="
                )
            names = parser.header(block.data, block.at_end, line)
            beyond = 0 if parser.taken else len(block.data)
            line += count_lines(block.data[: parser.taken])
            blocks.take(parser.taken)
            if names is not None:
                parser.first_line = line
                return names

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
        if self.delimiter in "\r\n":
            raise UsageError(f"{self._what}: delimiter={self.delimiter!r} is where a line ends")
        if self.fields is not None:
            check_names(list(self.fields), f"{self._what}: fields={list(self.fields)!r}")
