"""Rows of a Parquet file as dictionaries; the cursor is a row group and a row in it."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

from holdfast.core import errors
from holdfast.core.cursor import Cursor
from holdfast.core.errors import SourceChanged, UsageError
from holdfast.runtime.sources import streams
from holdfast.runtime.sources.base import Page, Span, logical_name, told
from holdfast.runtime.sources.text_rows import check_names

BATCH_ROWS = 1_000


class GroupPage:
    """Some rows of a row group, and the number of the first in it."""

    flawed = False

    def __init__(self, rows: Sequence[Any], group: int, first: int) -> None:
        self.rows, self._group, self._first = rows, group, first

    def after(self, count: int) -> Cursor:
        return Cursor("group", self._group, self._first + count)


class Parquet:
    """The rows of a Parquet file as dictionaries, streamed: `Parquet("events.parquet", columns=["id", "amount"])`."""

    at_hand = True

    def __init__(self, path: str | PathLike[str], *, columns: Sequence[str] | None = None) -> None:
        self.path = Path(path)
        self.columns = None if columns is None else tuple(columns)
        self._what = f"Parquet({str(path)!r})"

    def __repr__(self) -> str:
        return self._what

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """One dictionary for each row, with the values of Python that its types have."""
        with closing(self._rows((0, 0), None)) as found:
            for page in found:
                yield from page.rows

    def describe(self) -> dict[str, Any]:
        """Return the file's name and the columns that are read."""
        return {
            "kind": "parquet",
            "name": logical_name(self.path),
            "columns": None if self.columns is None else list(self.columns),
        }

    def natural_key(self, value: Any) -> None:
        """A row has no key of its own: name a column."""
        return

    def read(self, after: Cursor | None, until: Cursor | None) -> Iterator[Page]:
        """Yield the rows after a cursor, up to another and with it: a group is read from its start, and only from
        there."""
        return self._rows(self._place(after), None if until is None else self._place(until))

    def split(self, parts: int) -> Sequence[Span]:
        """Whole row groups, about as many rows in each range."""
        with self._file() as file:
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        cuts: list[Cursor] = []
        total, seen = sum(sizes), 0
        for group, size in enumerate(sizes):
            if len(cuts) + 1 < parts and seen and seen * parts >= total * (len(cuts) + 1):
                cuts.append(Cursor("group", group, 0))
            seen += size
        known = self.identity()
        ends = [None, *cuts, Cursor("group", len(sizes), 0)]
        return [Span(after=after, until=until, identity=known) for after, until in pairwise(ends)]

    def identity(self) -> dict[str, Any]:
        """Return its size, and digests of a few places."""
        with self._told():
            return streams.identity_of(self.path)

    def changed(self, before: dict[str, Any]) -> str | None:
        """Return what is another than before. A Parquet file does not grow: another size is another file."""
        with self._told():
            found = streams.identity_difference(self.path, before)
            size = self.path.stat().st_size
        return found if found or size == before["size"] else f"it has {size:,} bytes, but had {before['size']:,}"

    def _rows(self, start: tuple[int, int], stop: tuple[int, int] | None) -> Generator[GroupPage, None, None]:
        with self._file() as file:
            groups = file.num_row_groups
            if start[0] > groups or (stop is not None and stop[0] > groups):
                raise SourceChanged(f"{self._what}: it has {groups} row groups, but the scan has more: put it back")
            for group in range(start[0], groups if stop is None else min(groups, stop[0] + 1)):
                lo = start[1] if group == start[0] else 0
                hi = stop[1] if stop is not None and group == stop[0] else None
                yield from self._group(file, group, lo, hi)

    def _group(self, file: Any, group: int, lo: int, hi: int | None) -> Iterator[GroupPage]:
        if hi == 0:
            return
        at = 0
        columns = None if self.columns is None else list(self.columns)
        for batch in self._batches(file, group, columns):
            end = at + batch.num_rows if hi is None else min(hi, at + batch.num_rows)
            skip = max(0, lo - at)
            if at + skip < end:
                yield GroupPage(self._values(batch.slice(skip, end - at - skip)), group, at + skip)
            at += batch.num_rows
            if hi is not None and at >= hi:
                return

    def _batches(self, file: Any, group: int, columns: list[str] | None) -> Iterator[Any]:
        from pyarrow import ArrowException

        try:
            yield from file.iter_batches(batch_size=BATCH_ROWS, row_groups=[group], columns=columns)
        except (ArrowException, OSError) as error:
            raise UsageError(f"{self._what}: row group {group} is damaged, create it again: {_first(error)}") from None

    def _values(self, batch: Any) -> list[Any]:
        from pyarrow import ArrowException

        try:
            found: list[Any] = _coarser(batch).to_pylist()
        except (ValueError, ArrowException) as error:
            raise UsageError(
                f"{self._what}: a value cannot be represented in Python: leave its column out with columns=, or write "
                f"the file with coarser times: {_first(error)}"
            ) from None
        return found

    def _place(self, at: Cursor | None) -> tuple[int, int]:
        if at is None:
            return 0, 0
        if at.kind != "group" or not all(type(part) is int and part >= 0 for part in (at.value, at.tiebreaker)):
            raise UsageError(f"{self._what}: it is read by row group and row; the cursor {at} is another source's")
        return at.value, at.tiebreaker

    def _file(self) -> Any:
        try:
            from pyarrow import ArrowInvalid
            from pyarrow.parquet import ParquetFile
        except ImportError:
            raise errors.missing_extra("Parquet needs", "pyarrow") from None
        with self._told():
            if self.path.is_dir():
                raise IsADirectoryError
            try:
                file = ParquetFile(self.path)
            except ArrowInvalid as error:
                raise UsageError(f"{self._what}: it is not a Parquet file, or it is cut off: {error}") from None
        check_names(list(file.schema_arrow.names), self._what)
        unknown = set(self.columns if self.columns is not None else ()) - set(file.schema_arrow.names)
        if unknown:
            raise UsageError(f"{self._what}: it has no column {', '.join(map(repr, sorted(unknown)))}")
        return file

    def _told(self) -> Any:
        return told(self._what)


def _coarser(batch: Any) -> Any:
    """Return the values with times in microseconds, which Python has. Raises if a time would be cut. Otherwise pandas,
    if it is installed, would convert some values to its own types, and times of day would be cut."""
    types = [_exact(field.type) for field in batch.schema]
    if all(made == field.type for made, field in zip(types, batch.schema, strict=True)):
        return batch
    from pyarrow import RecordBatch

    return RecordBatch.from_arrays(
        [_plain(column).cast(made, safe=True) for column, made in zip(batch.columns, types, strict=True)],
        names=batch.schema.names,
    )


def _plain(column: Any) -> Any:
    """Return a column without dictionary encoding: a cast of an encoded column would cut some values silently."""
    return column.dictionary_decode() if hasattr(column, "dictionary_decode") else column


def _exact(kind: Any) -> Any:
    """Return the type with microseconds in place of nanoseconds, at any depth; unchanged if it has none."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_time64(kind) and kind.unit == "ns":
        return pa.time64("us")
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if pa.types.is_dictionary(kind):
        inner = _exact(kind.value_type)
        return kind if inner == kind.value_type else inner
    made = [_exact(field.type) for field in _fields(kind)]
    if all(new == field.type for new, field in zip(made, _fields(kind), strict=True)):
        return kind
    return _rebuilt(kind, [field.with_type(new) for new, field in zip(made, _fields(kind), strict=True)])


def _fields(kind: Any) -> list[Any]:
    return [kind.field(at) for at in range(kind.num_fields)]


def _rebuilt(kind: Any, fields: list[Any]) -> Any:
    """Return a nested type with other fields."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct(fields)
    if pa.types.is_map(kind):
        return pa.map_(fields[0].type.field(0).type, fields[0].type.field(1).type)
    if pa.types.is_large_list(kind):
        return pa.large_list(fields[0])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(fields[0], kind.list_size)
    return pa.list_(fields[0])


def _first(error: BaseException) -> str:
    """Return the first line of an error of the library."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
