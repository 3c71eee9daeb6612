"""Rows as tables, CSV or Parquet: one column per field, found by a first reading of all rows.

The fields of an output or payload become columns; what is nested in them stands as JSON text. A column whose values
are of different kinds is text, too.
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from importlib import import_module
from itertools import islice
from typing import IO, Any

import msgspec

from holdfast.core import canonical, extras
from holdfast.core.errors import Conflict, UsageError
from holdfast.runtime.words import printable

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
    columns = kinds(again())
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
    columns = kinds(again())
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
        raise extras.missing("Parquet needs", "pyarrow") from None


def kinds(rows: Iterable[dict[str, Any]]) -> dict[str, Kind]:
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
