"""From blocks of CSV and JSON text to rows: a quick way for valid text, a careful way for the rest.

Only the state machine of Python's csv module decides whether a block ends where a row ends: in its strict mode it
reports that the text ends within quotes.
"""

import codecs
import csv
import io
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, repeat
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.errors import UsageError
from holdfast.core.limits import PAYLOAD_BYTES, PREVIEW_BYTES
from holdfast.runtime.sources import text_file
from holdfast.runtime.sources.base import Malformed
from holdfast.runtime.sources.streams import Blocks, LineTooLongError, count_lines, has_byte_lines
from holdfast.runtime.sources.text_file import LineFile, RowPlace

Rows = list[dict[str, str] | Malformed]

WITHIN_QUOTES = "unexpected end"
MOST_NAMES = 200
"""With more columns, rows are made in the general way."""


class RowParser:
    """The parser for the blocks of one CSV file."""

    def __init__(self, dialect: dict[str, Any], encoding: str, what: str, name: str) -> None:
        self._dialect, self._encoding, self._what, self._name = dialect, encoding, what, name
        self._quote: str | None = dialect.get("quotechar")
        self._delimiter: str = dialect["delimiter"]
        self.trouble: UsageError | None = None
        self.first_line = 1
        self.flawed = False
        self.taken = 0
        """How many bytes of the block were parsed."""
        # The limit belongs to the process; it is only raised, so that other users of the module lose nothing.
        csv.field_size_limit(max(csv.field_size_limit(), PAYLOAD_BYTES))

    def name_columns(self, names: Iterable[str]) -> None:
        self._names = list(names)
        self._make = _maker(self._names)

    def overlong(self, head: bytes, place: RowPlace) -> UsageError:
        """Return the refusal of a line without end: the file is not a CSV file."""
        raise self.too_long(head, place.line)

    def too_long(self, head: bytes, line: int) -> UsageError:
        return UsageError(f"{self._what}, line {line}: the line has more than {len(head):,} bytes: is this a CSV file?")

    def header(self, data: bytes, at_end: bool, line: int) -> list[str] | None:
        """Return the first row that is not blank, checked; None if there is none yet; `taken` is how far it was
        searched."""
        careful = _Careful(data, self._dialect, self._encoding)
        for row in careful:
            at = f"{self._what}, line {line + careful.first}"
            self.taken = careful.taken
            if isinstance(row, csv.Error):
                if WITHIN_QUOTES in str(row) and not at_end:
                    self.taken = 0
                    return None
                if self._never_closed(careful):
                    raise self._swallowed(careful, line)
                raise UsageError(f"{at}: the header is not valid CSV: {row}")
            fault = careful.fault()
            if fault is not None:
                raise UsageError(f"{at}: the header {fault}")
            if row:
                check_names(row, at)
                return row
        self.taken = len(data)
        return None

    def parse(self, data: bytes, at_end: bool, place: RowPlace) -> Rows | None:
        """Return the rows of a block; None if it ends within one, and there is more to come."""
        self.taken, self.flawed = len(data), False
        try:
            text = data.decode(self._encoding)
        except UnicodeDecodeError:
            return self._carefully(data, at_end, place)
        if "\0" not in text:
            try:
                rows: Rows = self._make(self._lists(text))
                return rows
            except ValueError:
                pass  # a row does not have as many fields as the header
            except csv.Error as error:
                if WITHIN_QUOTES in str(error) and not at_end:
                    return None
        return self._carefully(data, at_end, place)

    def ends(self, data: bytes) -> list[int]:
        """Return where each row ends; a row that continues beyond the block is left out."""
        careful = _Careful(data, self._dialect, self._encoding)
        return [careful.taken for row in careful if not careful.is_open and (row or careful.fault() is not None)]

    def is_whole(self, data: bytes, at_end: bool) -> bool:
        """Return whether a block ends where a row ends."""
        if at_end or self._quote is None:
            return True
        text = data.decode(self._encoding, "surrogateescape")
        if self._quote not in text:
            return True
        reader = csv.reader(io.StringIO(text, newline=""), **self._dialect)
        while True:
            try:
                deque(reader, maxlen=0)
                return True
            except csv.Error as error:
                if WITHIN_QUOTES in str(error):
                    return False

    def _lists(self, text: str) -> Iterator[list[str]]:
        """Yield the rows as lists. Without a quote in the text, a row is a line and a field is the text between
        delimiters: then `split` takes a third of the time of the csv module."""
        plain = len(text) <= PAYLOAD_BYTES and (self._quote is None or self._quote not in text)
        if plain and "\r" in text:
            plain = text.count("\r") == text.count("\r\n")
            text = text.replace("\r\n", "\n") if plain else text
        if plain:
            return map(str.split, filter(None, text.split("\n")), repeat(self._delimiter))
        return filter(None, csv.reader(io.StringIO(text, newline=""), **self._dialect))

    def _carefully(self, data: bytes, at_end: bool, place: RowPlace) -> Rows | None:
        """Return the rows, parsed one by one; a malformed row has its position."""
        self.flawed = True
        rows: Rows = []
        careful = _Careful(data, self._dialect, self._encoding)
        for row in careful:
            if isinstance(row, csv.Error):
                if WITHIN_QUOTES in str(row) and not at_end:
                    return None
                if self._never_closed(careful):
                    self.trouble = self._swallowed(careful, place.line)
                    self.taken = careful.began
                    break
                rows.append(self._malformed(careful, f"is not valid CSV: {row}", place))
                continue
            fault = careful.fault()
            if fault is None and row and len(row) != len(self._names):
                fault = f"has {len(row)} fields, the header has {len(self._names)}"
            if fault is not None:
                rows.append(self._malformed(careful, fault, place))
            elif row:
                rows.append(dict(zip(self._names, row, strict=True)))
        return rows

    def _never_closed(self, careful: "_Careful") -> bool:
        """Return whether a quote was never closed: a row that ran to the end or to the limit has swallowed others, and
        it is not known which lines were rows."""
        return careful.ran_on and len(careful.of_row) > 1

    def _swallowed(self, careful: "_Careful", line: int) -> UsageError:
        return UsageError(
            f"{self._what}, line {line + careful.first}: a quote is opened and not closed in {len(careful.of_row):,} "
            "lines: close it, or pass quotechar=None if quotes are ordinary characters"
        )

    def _malformed(self, careful: "_Careful", why: str, place: RowPlace) -> Malformed:
        where = f"{self._name}:{place.line + careful.first}"
        return Malformed(raw=b"".join(careful.of_row), why=why, where=where, byte=place.byte(careful.began))


class _Careful:
    """The rows of a block one by one: each a list, or the error of the csv module."""

    def __init__(self, data: bytes, dialect: dict[str, Any], encoding: str) -> None:
        self._lines = data.splitlines(keepends=True)
        self._encoding = encoding
        self._reader = csv.reader(self._texts(), **dialect)
        self._at = 0
        self.first = 0
        """The line at which the current row begins, from 0."""
        self.taken = 0
        """The bytes up to the end of the current row."""
        self.ran_on = False
        """Whether the current row continued to the end of the data, or to the limit of a field."""
        self.is_open = False
        """Whether it ends within quotes, because the data does."""

    @property
    def began(self) -> int:
        """The byte at which the current row begins."""
        return self.taken - sum(map(len, self.of_row))

    @property
    def of_row(self) -> list[bytes]:
        """The lines of the current row."""
        return self._lines[self.first : self._at]

    def __iter__(self) -> Iterator[list[str] | csv.Error]:
        while True:
            self.first, self.ran_on, self.is_open = self._at, False, False
            try:
                row: list[str] | csv.Error = next(self._reader)
            except StopIteration:
                return
            except csv.Error as error:
                row = error
                self.is_open = WITHIN_QUOTES in str(error)
                self.ran_on = self.is_open or "field limit" in str(error)
            self.taken += sum(map(len, self.of_row))
            yield row

    def fault(self) -> str | None:
        """Return what is wrong with the characters of the current row. NUL is legal text, but in a file it is a sign of
        lost data."""
        for line in self.of_row:
            if b"\0" in line:
                return "contains a NUL byte"
            try:
                line.decode(self._encoding)
            except UnicodeDecodeError:
                return "contains bytes that are not valid in the file's encoding"
        return None

    def _texts(self) -> Iterator[str]:
        for line in self._lines:
            self._at += 1
            yield line.decode(self._encoding, "surrogateescape")


def check_names(names: list[str], at: str) -> None:
    """Refuse missing column names, and names that two columns share."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UsageError(f"{at}: the column names {', '.join(map(repr, twice))} occur twice: give each column its own")
    if not names:
        raise UsageError(f"{at}: there are no column names")


def _maker(names: list[str]) -> Callable[[Iterator[list[str]]], Any]:
    """Return the function that makes dictionaries of lists, all at once; it raises ValueError for a list that is not as
    long as the names.

    A comprehension that unpacks each list is twice as fast as `dict(zip(…))`. Its program code is generated, as the
    standard library does for named tuples: it depends only on the number of columns, and the names are passed as
    values.
    """
    if len(names) > MOST_NAMES:
        return lambda rows: [dict(zip(names, row, strict=True)) for row in rows]
    keys, values = ([f"{letter}{n}" for n in range(len(names))] for letter in "kv")
    pairs = ", ".join(f"{key}: {value}" for key, value in zip(keys, values, strict=True))
    code = f"def made({', '.join(keys)}):\n return lambda rows: [{{{pairs}}} for {', '.join(values)}, in rows]"
    space: dict[str, Any] = {}
    exec(code, space)  # noqa: S102 - only a number comes from outside
    made: Callable[[Iterator[list[str]]], Any] = space["made"](*names)
    return made


class Csv(LineFile):
    """The rows of a CSV file as dictionaries of texts, streamed: `Csv("inventory.csv")`.

    Args:
        path: The file. A name that ends in `.gz` is unpacked.
        delimiter: The character between two fields.
        encoding: The encoding of the text.
        fields: The names of the columns, if the file has no header.
        quotechar: The quote character; None if quotes are ordinary characters.
    """

    def __init__(self, path: str | PathLike[str], *, delimiter: str = ",", encoding: str = "utf-8-sig",
                 fields: Sequence[str] | None = None, quotechar: str | None = '"') -> None:  # fmt: skip
        super().__init__(Path(path), f"Csv({str(path)!r})", encoding)
        self.delimiter = delimiter
        self.fields = None if fields is None else tuple(fields)
        self.quotechar = quotechar
        self._check()

    def describe(self) -> dict[str, Any]:
        """Return the file's name and how it is read."""
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
                raise UsageError(
                    f"{self._what}: the file is empty: begin it with a row of column names, or pass fields="
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
            raise UsageError(f"{self._what}: delimiter={self.delimiter!r} ends a line: pass another character")
        if self.fields is not None:
            check_names(list(self.fields), f"{self._what}: fields={list(self.fields)!r}")


class JsonLines(LineFile):
    """The values of a file with one JSON value per line, streamed: `JsonLines("pages.jsonl")`. A name that ends in
    `.gz` is unpacked."""

    lone_cr = False

    def __init__(self, path: str | PathLike[str]) -> None:
        super().__init__(Path(path), f"JsonLines({str(path)!r})", "utf-8")

    def describe(self) -> dict[str, Any]:
        """Return the file's name."""
        return {"kind": "jsonlines", "name": self._name}

    def _begin(self, blocks: Blocks) -> "ValueParser":
        blocks.skip(codecs.BOM_UTF8)
        return ValueParser(self._name)


class ValueParser:
    """The parser for blocks of lines; a line that is not valid JSON has its position."""

    trouble: UsageError | None = None
    first_line = 1
    taken = 0
    flawed = False

    def __init__(self, name: str) -> None:
        self._name = name
        self._decode = msgspec.json.Decoder().decode

    def parse(self, data: bytes, at_end: bool, place: RowPlace) -> list[Any]:
        """Return the values of a block: all at once if all are valid."""
        self.taken, self.flawed = len(data), False
        lines = data.split(b"\n")
        if len(data) <= text_file.LINE_BYTES:
            try:
                return list(map(self._decode, filter(None, lines)))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass  # a line is blank, or invalid
        self.flawed = True
        starts = accumulate((len(line) + 1 for line in lines), initial=0)
        each = enumerate(zip(lines, starts, strict=False))
        return [value for number, (line, start) in each for value in self._value(line, number, start, place)]

    def ends(self, data: bytes) -> list[int]:
        """Return where each value ends."""
        lines = data.split(b"\n")[:-1]
        ends = accumulate(len(line) + 1 for line in lines)
        return [end for line, end in zip(lines, ends, strict=True) if line.strip()]

    def is_whole(self, data: bytes, at_end: bool) -> bool:
        """Return whether rows end at the end of a line: here every line is a value."""
        return True

    def overlong(self, head: bytes, place: RowPlace, number: int = 0, start: int = 0) -> Malformed:
        """Return the beginning of the line."""
        self.flawed = True
        why = f"has more than {text_file.LINE_BYTES:,} bytes; this is its beginning"
        return self._malformed(head[:PREVIEW_BYTES], why, place.line + number, place.byte(start))

    def _value(self, line: bytes, number: int, start: int, place: RowPlace) -> list[Any]:
        if not line or line.isspace():
            return []
        if len(line) >= text_file.LINE_BYTES:
            return [self.overlong(line, place, number, start)]
        try:
            return [self._decode(line)]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return [self._malformed(line, f"is not valid JSON: {error}", place.line + number, place.byte(start))]

    def _malformed(self, raw: bytes, why: str, number: int, byte: int | None) -> Malformed:
        return Malformed(raw=raw.rstrip(b"\r\n"), why=why, where=f"{self._name}:{number}", byte=byte)
