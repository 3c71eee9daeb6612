"""A batch out of the store: its results, or its items in another state, as JSON lines, CSV or Parquet.

A file is written beside its name and renamed when it is complete, so that a reader never sees half of it. Memory
stays flat: what needs to know all columns first reads the batch twice.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

import msgspec

from holdfast.core.errors import Refused, SinkError, UsageError
from holdfast.core.model import Batch, Key, Output, State, StoredItem
from holdfast.runtime import lookup
from holdfast.runtime.commands import command
from holdfast.runtime.records import tables
from holdfast.runtime.records.outputs import OutputReader
from holdfast.runtime.sinks import disk
from holdfast.stores.base import Store, each_item, each_output

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
    reader = OutputReader(batch)
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
        tables.pyarrow()
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
        "jsonl": _write_lines, "csv": partial(tables.write_csv, raw=raw), "parquet": tables.write_parquet,
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
