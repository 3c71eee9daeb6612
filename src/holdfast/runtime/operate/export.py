"""Rows as tables, CSV or Parquet: one column per field, found by a first reading of all rows.

The fields of an output or payload become columns; what is nested in them stands as JSON text. A column whose values
are of different kinds is text, too.
"""

import csv
import io
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

import msgspec

from holdfast.core import canonical, errors
from holdfast.core.errors import Conflict, Refused, SinkError, UsageError
from holdfast.core.model import Batch, Key, Output, State, StoredItem
from holdfast.runtime import lookup
from holdfast.runtime.sinks import disk
from holdfast.runtime.text import command, printable
from holdfast.runtime.verify.inspector import OutputReader, sinks_of
from holdfast.stores.base import Store, each_item, each_output

Again = Callable[[], Iterable[dict[str, Any]]]
COLUMNS = 16_384
FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")
"""What begins like this is a formula to some spreadsheet, or has the mark that we put before one."""
GROUP = 5_000


class Kind(IntEnum):
    """What a column holds."""

    NOTHING = 0
    TRUTH = 1
    WHOLE = 2
    NUMBER = 3
    TEXT = 4


def write_csv(stream: IO[bytes], again: Again, *, raw: bool = False) -> int:
    """Rows with a header line, UTF-8. Unless `raw`, no text is a formula to a spreadsheet or an order to a terminal."""
    columns = table_kinds(again())
    said = _as_it_is if raw else harmless
    text = io.TextIOWrapper(stream, "utf-8", newline="", write_through=True)
    writer = csv.writer(text)
    writer.writerow(map(said, columns))
    count = 0
    for row in map(flat, again()):
        _check_known(row, columns)
        writer.writerow([_cell(row.get(name), said) for name in columns])
        count += 1
    text.flush()
    text.detach()
    return count


def write_parquet(stream: IO[bytes], again: Again) -> int:
    """A Parquet file, in groups of rows."""
    pa, parquet = pyarrow()
    types = {Kind.TRUTH: pa.bool_(), Kind.WHOLE: pa.int64(), Kind.NUMBER: pa.float64()}
    columns = table_kinds(again())
    schema = pa.schema([(name, types.get(kind, pa.string())) for name, kind in columns.items()])
    count = 0
    with parquet.ParquetWriter(stream, schema) as writer:
        for group in _groups(map(flat, again())):
            for row in group:
                _check_known(row, columns)
            data = {name: [_typed(row.get(name), kind) for row in group] for name, kind in columns.items()}
            writer.write_table(pa.table(data, schema=schema))
            count += len(group)
    return count


def pyarrow() -> tuple[Any, Any]:
    """The library that writes Parquet, loaded when it is needed: it is an extra."""
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise errors.missing_extra("Parquet needs", "pyarrow") from None


def table_kinds(rows: Iterable[dict[str, Any]]) -> dict[str, Kind]:
    """Every column of some rows with what it holds, in the order in which they first occur."""
    found: dict[str, Kind] = {}
    for row in map(flat, rows):
        for name, value in row.items():
            found[name] = _both(found.get(name, Kind.NOTHING), _kind(value))
        if len(found) > COLUMNS:
            raise UsageError(f"the results have more than {COLUMNS:,} different fields: export them as JSON lines")
    return found if found else {"key": Kind.TEXT, "n": Kind.WHOLE}


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row with the fields of its output or payload beside its own; a name that is taken gets a prefix."""
    plain: dict[str, Any] = {}
    for name, value in row.items():
        if not isinstance(value, msgspec.Raw):
            plain[name] = value
            continue
        try:
            inner = canonical.decode(bytes(value))
        except msgspec.DecodeError:
            inner = bytes(value).decode("utf-8", "replace")
        if not isinstance(inner, dict):
            plain[name] = inner
            continue
        for field, part in inner.items():
            plain[field if field not in row else f"{name}.{field}"] = part
    return plain


def _kind(value: Any) -> Kind:
    if value is None:
        return Kind.NOTHING
    if isinstance(value, bool):
        return Kind.TRUTH
    if isinstance(value, int):
        return Kind.WHOLE if -(1 << 63) <= value < 1 << 63 else Kind.TEXT
    return Kind.NUMBER if isinstance(value, float) else Kind.TEXT


def _both(one: Kind, other: Kind) -> Kind:
    """What a column holds that holds both."""
    if one is other or Kind.NOTHING in (one, other):
        return max(one, other)
    return Kind.NUMBER if {one, other} == {Kind.WHOLE, Kind.NUMBER} else Kind.TEXT


def _typed(value: Any, kind: Kind) -> Any:
    if value is None:
        return None
    if kind is Kind.NUMBER:
        return float(value)
    return _text(value) if kind is Kind.TEXT else value


def harmless(text: str) -> str:
    """A text as a cell that no spreadsheet takes for a formula and that gives no order to a terminal: an apostrophe
    before what begins like a formula, or with an apostrophe; control characters as escapes."""
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


def _check_known(row: dict[str, Any], columns: dict[str, Kind]) -> None:
    if not row.keys() <= columns.keys():
        new = ", ".join(sorted(row.keys() - columns.keys()))
        raise Conflict(f"the batch continued while it was exported, and brought a new column ({new}): export it again")


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
    """One finished item as it is exported; the output as the JSON bytes that are stored."""

    key: Key
    number: int
    output: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What was exported."""

    rows: int
    format: str
    path: str | None

    def as_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "format": self.format, "path": self.path}


def results(store: Store, batch: Batch) -> Iterator[Exported]:
    """Every item that is done, in order, with what the last stage made of it."""
    last = len(lookup.stage_names(batch)) - 1
    reader = OutputReader(sinks_of(batch))
    outputs = iter(each_output(store, batch.id, stage=last))
    output = next(outputs, None)
    for item in each_item(store, batch.id, state=State.DONE):
        while output is not None and output.n < item.n:
            output = next(outputs, None)
        if output is None or output.n != item.n:
            raise Refused(
                f"item {item.key!r} is done and its output is gone: see `{command('audit verify', batch.name)}`"
            )
        yield Exported(item.key, item.n, _read(reader, item, output))


def rows(store: Store, batch: Batch, state: State) -> Iterator[dict[str, Any]]:
    """One row per item in that state: results with their output, others with their place and payload."""
    if state is State.DONE:
        for each in results(store, batch):
            yield {"key": each.key, "n": each.number, "output": msgspec.Raw(each.output)}
        return
    names = lookup.stage_names(batch)
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
) -> Summary:  # fmt: skip
    """Write a batch to a file, atomically, or to an open stream. With `raw`, text in CSV is written as it is, be it a
    formula to a spreadsheet or an order to a terminal."""
    chosen = form if form is not None else _format_of(target)
    if chosen == "parquet":
        pyarrow()
    if not isinstance(target, Path):
        if chosen == "parquet":
            raise UsageError("a Parquet file cannot be written to a stream: name a file with --out")
        return Summary(rows=_write(store, batch, target, chosen, state, raw), format=chosen, path=None)
    with whole_or_absent(target) as stream:
        count = _write(store, batch, stream, chosen, state, raw)
    return Summary(rows=count, format=chosen, path=str(target))


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
    except SinkError as error:
        raise SinkError(f"item {item.key!r}: {error}") from None


def _format_of(target: Path | IO[bytes]) -> Format:
    if not isinstance(target, Path):
        return "jsonl"
    found = FORMATS.get(target.suffix.lower())
    if found is None:
        raise UsageError(f"{target}: pass its format with --format, or name it .jsonl, .csv or .parquet")
    return found


@contextmanager
def whole_or_absent(path: Path) -> Iterator[IO[bytes]]:
    """A stream into a file that gets its name only when all of it is on the disk."""
    if path.is_dir():
        raise UsageError(f"{path} is a directory: name a file")
    temp = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        stream = temp.open("xb")
    except FileNotFoundError:
        raise UsageError(f"{path.parent} does not exist: make it first") from None
    except PermissionError:
        raise UsageError(f"{path.parent} may not be written by this user") from None
    try:
        with stream:
            yield stream
            stream.flush()
            disk.sync_handle(stream.fileno())
        temp.replace(path)
        disk.sync_folders([path.parent])
    finally:
        temp.unlink(missing_ok=True)
