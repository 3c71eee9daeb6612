"""Export of a batch as JSON lines, CSV or Parquet. The columns of a table are found in a first pass over all rows.

The fields of an output or payload become columns; nested values are JSON text. In Parquet a column has the type of its
values: booleans, integers, floats, decimals, timestamps or text. A column with values of different kinds is text.
"""

import csv
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import IntEnum
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import msgspec

from holdfast.core import canonical, errors
from holdfast.core.course import stage_names
from holdfast.core.errors import Conflict, Refused, SinkError, UsageError
from holdfast.core.model import Batch, Key, Output, State, StoredItem
from holdfast.core.plain import Plain
from holdfast.runtime import lookup
from holdfast.runtime.operate.target import given, is_stream, whole_or_absent
from holdfast.runtime.text import command, printable
from holdfast.runtime.verify.inspector import OutputReader, sinks_of
from holdfast.stores.base import Store, each_item, each_output

Again = Callable[[], Iterable[dict[str, Any]]]
COLUMNS = 16_384
FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")
"""Beginnings that some spreadsheet takes for a formula, and the apostrophe that `harmless` puts before one."""
GROUP = 5_000
COMMON_DIGITS, DECIMAL_DIGITS = 38, 76
"""The most digits of a Parquet decimal: for every reader, and for some."""
WHOLE_DIGITS = 19
"""The most digits of a 64-bit integer."""
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:\d\d)")
"""A timestamp as it is stored in an output: with its time zone, and to the microsecond at most."""
OWN = frozenset({"key", "state", "stage", "code", "reason"})
"""Columns of the item itself: text in them stays text, even if it looks like a number or a timestamp."""


class ColumnKind(IntEnum):
    """The kind of the values of a column."""

    NOTHING = 0
    TRUTH = 1
    WHOLE = 2
    NUMBER = 3
    DECIMAL = 4
    MOMENT = 5
    LOCAL = 6
    """A timestamp without a time zone."""
    TEXT = 7


class ColumnType(NamedTuple):
    """The type of a column, with the digits that a decimal needs before and after its point."""

    kind: ColumnKind
    digits: int = 0
    scale: int = 0

    def both(self, other: "ColumnType") -> "ColumnType":
        """Return the type of a column that holds both."""
        kinds = {self.kind, other.kind}
        wide = (max(self.digits, other.digits), max(self.scale, other.scale))
        if len(kinds) == 1 or ColumnKind.NOTHING in kinds:
            return ColumnType(max(kinds), *wide)
        if kinds == {ColumnKind.WHOLE, ColumnKind.NUMBER}:
            return ColumnType(ColumnKind.NUMBER)
        return (
            ColumnType(ColumnKind.DECIMAL, *wide)
            if kinds == {ColumnKind.WHOLE, ColumnKind.DECIMAL}
            else ColumnType(ColumnKind.TEXT)
        )

    def settled(self) -> "ColumnType":
        """Return this type, or text if no Parquet decimal has that many digits."""
        too_wide = self.kind is ColumnKind.DECIMAL and self.digits + self.scale > DECIMAL_DIGITS
        return ColumnType(ColumnKind.TEXT) if too_wide else self


def write_csv(stream: IO[bytes], again: Again, *, raw: bool = False) -> int:
    """Write rows with a header line, in UTF-8, and return how many. Unless `raw`, no text is a formula to a spreadsheet
    or a control sequence to a terminal."""
    columns = table_columns(again())
    said = _as_it_is if raw else harmless
    writer = csv.writer(_Utf8(stream))
    writer.writerow(map(said, columns))
    count = 0
    for row in map(flat, again()):
        _check_known(row, columns)
        writer.writerow([_cell(row.get(name), said) for name in columns])
        count += 1
    return count


class _Utf8:
    """A stream of bytes as `csv` writes to it. Unlike `io.TextIOWrapper`, it never closes the stream of a caller."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(text.encode())


def write_parquet(stream: IO[bytes], again: Again) -> int:
    """Write a Parquet file with typed columns, in groups of rows, and return how many rows."""
    pa, parquet = pyarrow()
    columns = table_columns(again())
    schema = pa.schema([(name, _arrow_type(pa, each)) for name, each in columns.items()])
    count = 0
    with parquet.ParquetWriter(stream, schema) as writer:
        for group in _groups(map(flat, again())):
            for row in group:
                _check_known(row, columns)
            try:
                data = {name: [_typed(row.get(name), each.kind) for row in group] for name, each in columns.items()}
                table = pa.table(data, schema=schema)
            except (ValueError, TypeError) as error:
                raise Conflict(f"the batch changed while it was exported ({error}): export it again") from None
            writer.write_table(table)
            count += len(group)
    return count


def _arrow_type(pa: Any, column: ColumnType) -> Any:
    if column.kind is ColumnKind.DECIMAL:
        width = column.digits + column.scale
        return (pa.decimal128 if width <= COMMON_DIGITS else pa.decimal256)(width, column.scale)
    types = {ColumnKind.TRUTH: pa.bool_(), ColumnKind.WHOLE: pa.int64(), ColumnKind.NUMBER: pa.float64(),
             ColumnKind.MOMENT: pa.timestamp("us", tz="UTC"), ColumnKind.LOCAL: pa.timestamp("us")}  # fmt: skip
    return types.get(column.kind, pa.string())


def pyarrow() -> tuple[Any, Any]:
    """Return pyarrow and its Parquet module, imported on use because they are an extra."""
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise errors.missing_extra("Parquet needs", "pyarrow") from None


def table_columns(rows: Iterable[dict[str, Any]]) -> dict[str, ColumnType]:
    """Return every column with its type, in the order of first occurrence."""
    found: dict[str, ColumnType] = {}
    for row in map(flat, rows):
        for name, value in row.items():
            found[name] = found.get(name, ColumnType(ColumnKind.NOTHING)).both(_type(name, value))
        if len(found) > COLUMNS:
            raise UsageError(f"the results have more than {COLUMNS:,} different fields: export them as JSON lines")
    if not found:
        return {"key": ColumnType(ColumnKind.TEXT), "n": ColumnType(ColumnKind.WHOLE)}
    return {name: each.settled() for name, each in found.items()}


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the fields of its output or payload next to its own; a field whose name is taken gets a
    prefix."""
    plain: dict[str, Any] = {}
    for name, value in row.items():
        if not isinstance(value, msgspec.Raw):
            plain[name] = value
            continue
        try:
            inner = canonical.decode(bytes(value))
        except msgspec.DecodeError:
            inner = bytes(value).decode("utf-8", "replace")
        if not isinstance(inner, dict) or _is_tagged(inner):
            plain[name] = inner
            continue
        for field, part in inner.items():
            plain[field if field not in row else f"{name}.{field}"] = part
    return plain


def _type(name: str, value: Any) -> ColumnType:
    exact = value if name in OWN else _exact(value)
    if isinstance(exact, bool):
        return ColumnType(ColumnKind.TRUTH)
    if isinstance(exact, int) and -(1 << 63) <= exact < 1 << 63:
        return ColumnType(ColumnKind.WHOLE, WHOLE_DIGITS)
    if isinstance(exact, int):
        return ColumnType(ColumnKind.DECIMAL, len(str(abs(exact))))
    if isinstance(exact, Decimal):
        _, digits, exponent = exact.as_tuple()
        return ColumnType(ColumnKind.DECIMAL, max(1, len(digits) + int(exponent)), max(0, -int(exponent)))
    if isinstance(exact, datetime):
        return ColumnType(ColumnKind.LOCAL if exact.tzinfo is None else ColumnKind.MOMENT)
    if isinstance(exact, float):
        return ColumnType(ColumnKind.NUMBER)
    return ColumnType(ColumnKind.NOTHING if value is None else ColumnKind.TEXT)


def _exact(value: Any) -> Any:
    """Return the number or the timestamp that a stored value encodes; any other value unchanged."""
    if isinstance(value, str):
        if not MOMENT.fullmatch(value):
            return value
        try:
            return datetime.fromisoformat(value)
        except ValueError:  # there is no such day
            return value
    if not _is_tagged(value):
        return value
    try:
        found = canonical.from_plain(value)
    except UsageError:
        return value
    if isinstance(found, Decimal):
        return found if found.is_finite() else value
    return found if isinstance(found, int | float | datetime) else value


def _is_tagged(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and next(iter(value)).startswith("$")


def _typed(value: Any, kind: ColumnKind) -> Any:
    if value is None:
        return None
    if kind is ColumnKind.TEXT or kind is ColumnKind.NOTHING:
        return _text(value)
    exact = _exact(value)
    if kind is ColumnKind.NUMBER:
        return float(exact)
    return Decimal(exact) if kind is ColumnKind.DECIMAL else exact


def harmless(text: str) -> str:
    """Return a text as a cell that is safe in spreadsheets and terminals: text that begins like a formula or with an
    apostrophe gets an apostrophe before it, and control characters are escaped."""
    safe = printable(text) if "\r" not in text else printable(text.replace("\r\n", "\n"))
    return f"'{safe}" if text.startswith(FORMULA) else safe


def _as_it_is(text: str) -> str:
    return text


def _cell(value: Any, said: Callable[[str], str]) -> Any:
    if value is None:
        return ""
    return said(value) if isinstance(value, str) else _text(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else canonical.encode(value).decode()


def _check_known(row: dict[str, Any], columns: dict[str, ColumnType]) -> None:
    if not row.keys() <= columns.keys():
        new = ", ".join(sorted(row.keys() - columns.keys()))
        raise Conflict(f"the batch changed while it was exported and has a new column ({new}): export it again")


def _groups(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    rest = iter(rows)
    while group := list(islice(rest, GROUP)):
        yield group


Format = Literal["jsonl", "csv", "parquet"]
FORMATS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}


@dataclass(frozen=True, slots=True)
class Exported:
    """One finished item as it is exported, with its output as the stored JSON bytes."""

    key: Key
    number: int
    output: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSummary(Plain):
    """The result of an export."""

    rows: int
    format: str
    path: str | None


def results(store: Store, batch: Batch) -> Iterator[Exported]:
    """Yield every item that is done, in order, with the output of the last stage."""
    last = len(stage_names(batch)) - 1
    reader = OutputReader(sinks_of(batch))
    outputs = iter(each_output(store, batch.id, stage=last))
    output = next(outputs, None)
    for item in each_item(store, batch.id, state=State.DONE):
        while output is not None and output.n < item.n:
            output = next(outputs, None)
        if output is None or output.n != item.n:
            raise Refused(
                f"item {item.key!r} is done, but its output is gone: run `{command('audit verify', batch.name)}`"
            )
        yield Exported(item.key, item.n, _read(reader, item, output))


def rows(store: Store, batch: Batch, state: State) -> Iterator[dict[str, Any]]:
    """Yield one row per item in that state: results with their output, others with their place and payload."""
    if state is State.DONE:
        for each in results(store, batch):
            yield {"key": each.key, "n": each.number, "output": msgspec.Raw(each.output)}
        return
    names = stage_names(batch)
    for item in each_item(store, batch.id, state=state):
        place = item.place
        yield {
            "key": item.key, "n": item.n, "state": place.state.value, "stage": lookup.stage_title(names, place.stage),
            "code": place.code, "reason": place.reason, "attempts": place.attempt, "epoch": place.epoch,
            "payload": msgspec.Raw(item.payload),
        }  # fmt: skip


def export(
    store: Store, batch: Batch, target: Path | IO[bytes], *, form: Format | None = None, state: State = State.DONE,
    raw: bool = False,
) -> ExportSummary:  # fmt: skip
    """Write a batch to a file, atomically, or to an open stream. With `raw`, text in CSV is written unchanged, even if
    a spreadsheet takes it for a formula."""
    if not isinstance(target, Path) and not hasattr(target, "write"):
        raise UsageError(f"{target!r} cannot be written to: pass a path, or a stream of bytes")
    chosen = form if form is not None else _format_of(target)
    if chosen not in FORMATS.values():
        raise UsageError(f"format={chosen!r}: pass {', '.join(dict.fromkeys(FORMATS.values()))}")
    if chosen == "parquet":
        pyarrow()
        if not isinstance(target, Path) or is_stream(target):
            raise UsageError("a Parquet file cannot be written to a stream: name a file with --out")
    with whole_or_absent(target) if isinstance(target, Path) else given(target) as stream:
        count = _write(store, batch, stream, chosen, state, raw)
    return ExportSummary(rows=count, format=chosen, path=str(target) if isinstance(target, Path) else None)


def _write(store: Store, batch: Batch, stream: IO[bytes], chosen: Format, state: State, raw: bool) -> int:
    def again() -> Iterator[dict[str, Any]]:
        return rows(store, batch, state)

    writers: dict[Format, Callable[[IO[bytes], Callable[[], Iterable[dict[str, Any]]]], int]] = {
        "jsonl": _write_lines, "csv": partial(write_csv, raw=raw), "parquet": write_parquet,
    }  # fmt: skip
    return writers[chosen](stream, again)


def _write_lines(stream: IO[bytes], again: Callable[[], Iterable[dict[str, Any]]]) -> int:
    count = 0
    encode = msgspec.json.Encoder().encode
    for row in again():
        stream.write(encode(row) + b"\n")
        count += 1
    return count


def _read(reader: OutputReader, item: StoredItem, output: Output) -> bytes:
    try:
        return reader.read(output)
    except (SinkError, OSError) as error:
        raise SinkError(f"item {item.key!r}: {error}") from None


def _format_of(target: Path | IO[bytes]) -> Format:
    if not isinstance(target, Path):
        return "jsonl"
    found = FORMATS.get(target.suffix.lower())
    if found is None:
        raise UsageError(f"{target}: pass its format with --format, or name it .jsonl, .csv or .parquet")
    return found
