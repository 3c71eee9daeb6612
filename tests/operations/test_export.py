"""Results leave the store complete, in order, and whole or not at all."""

import csv
import errno
import io
import json
import math
import os
import sys
import threading
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyarrow import parquet

from holdfast.core import canonical
from holdfast.core.errors import Conflict, StoreError, UsageError
from holdfast.core.model import State
from holdfast.runtime.operate import export
from tests.operations.world import World, done, failed

OUTPUTS = {
    "a": {"text": "one", "score": 1, "tags": ["x", "y"]},
    "b": {"text": "two, with \"quotes\"\nand lines", "score": 2.5, "key": "inner"},
    "c": {"score": None, "extra": True},
}  # fmt: skip


@pytest.fixture
def finished(world: World) -> World:
    world.add("a", "dead", "b", "c")
    world.work(lambda item: failed(item, transient=False, code="gone") if item.key == "dead" else done(item))
    world.work(lambda item: done(item, output=OUTPUTS[item.key]))
    return world


def test_results_come_in_order_with_their_keys(finished: World) -> None:
    found = list(export.results(finished.store, finished.batch))
    assert [(each.key, each.number, json.loads(each.output)) for each in found] == [
        ("a", 0, OUTPUTS["a"]), ("b", 2, OUTPUTS["b"]), ("c", 3, OUTPUTS["c"]),
    ]  # fmt: skip


def test_json_lines(finished: World, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    summary = export.export(finished.store, finished.batch, target)
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert lines[0] == {"key": "a", "n": 0, "output": OUTPUTS["a"]}
    assert (summary.rows, summary.format, len(lines)) == (3, "jsonl", 3)


def test_csv_has_every_column_and_nested_values_as_json(finished: World, tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    export.export(finished.store, finished.batch, target)
    with target.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["key", "n", "score", "tags", "text", "output.key", "extra"]
    assert rows[0]["tags"] == '["x","y"]'
    assert rows[1]["text"] == OUTPUTS["b"]["text"]
    assert (rows[1]["output.key"], rows[2]["extra"], rows[2]["score"]) == ("inner", "true", "")


def test_parquet_has_types(finished: World, tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    export.export(finished.store, finished.batch, target)
    table = parquet.read_table(target)
    assert table.column("score").to_pylist() == [1.0, 2.5, None]
    assert table.column("extra").to_pylist() == [None, None, True]
    assert table.column("key").to_pylist() == ["a", "b", "c"]
    assert str(table.schema.field("n").type) == "int64"


def test_parquet_without_pyarrow_names_the_extra(
    finished: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install \"\.\[parquet\]\""):
        export.export(finished.store, finished.batch, tmp_path / "out.parquet")
    assert not list(tmp_path.glob("*out*"))


def test_dead_letters_with_payload_and_reason(finished: World) -> None:
    stream = io.BytesIO()
    export.export(finished.store, finished.batch, stream, state=State.DEAD)
    row = json.loads(stream.getvalue())
    assert (row["key"], row["code"], row["stage"], row["payload"]) == ("dead", "gone", "ocr", {"page": "dead"})


def test_an_export_that_fails_leaves_the_old_file(
    finished: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out.jsonl"
    target.write_text("old")

    def broken(*_: object) -> int:
        raise OSError("the disk is gone")

    monkeypatch.setattr(export, "_write_lines", broken)
    with pytest.raises(StoreError, match=r"out.jsonl could not be written: the disk is gone"):
        export.export(finished.store, finished.batch, target)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == ["out.jsonl"]


MIXED: list[tuple[list[Any], str, list[Any]]] = [
    ([True, None, False], "bool", [True, None, False]),
    ([1, None, -(1 << 63)], "int64", [1, None, -(1 << 63)]),
    ([1, 0.5], "double", [1.0, 0.5]),
    ([{"$float": "inf"}, 1.5], "double", [math.inf, 1.5]),
    (
        [{"$decimal": "1.50"}, {"$decimal": "-12.345"}, 7],
        "decimal128(22, 3)",
        [Decimal("1.500"), Decimal("-12.345"), Decimal("7.000")],
    ),
    ([{"$decimal": "1E+3"}, None], "decimal128(4, 0)", [Decimal(1000), None]),
    ([1 << 70, 1], "decimal128(22, 0)", [Decimal(1 << 70), Decimal(1)]),
    (
        ["2026-11-17T09:00:00Z", "2026-11-17T10:00:00.25+01:00"],
        "timestamp[us, tz=UTC]",
        [datetime(2026, 11, 17, 9, tzinfo=UTC), datetime(2026, 11, 17, 9, 0, 0, 250_000, tzinfo=UTC)],
    ),
    (
        [{"$datetime": "2026-11-17T09:00:00+00:00"}, "2026-11-17T09:00:00Z"],
        "timestamp[us, tz=UTC]",
        [datetime(2026, 11, 17, 9, tzinfo=UTC)] * 2,
    ),
    ([{"$datetime": "2026-11-17T09:00:00"}], "timestamp[us]", [datetime(2026, 11, 17, 9)]),  # noqa: DTZ001
    (["x", "2026-11-17T09:00:00Z"], "string", ["x", "2026-11-17T09:00:00Z"]),
    (["2026-02-30T09:00:00Z"], "string", ["2026-02-30T09:00:00Z"]),
    (["2026-11-17", "007"], "string", ["2026-11-17", "007"]),
    ([1, "x"], "string", ["1", "x"]),
    ([True, 1], "string", ["true", "1"]),
    ([0.5, {"$decimal": "0.5"}], "string", ["0.5", '{"$decimal":"0.5"}']),
    ([{"$decimal": "NaN"}], "string", ['{"$decimal":"NaN"}']),
    ([1 << 300], "string", [str(1 << 300)]),
    ([{"a": [1]}, [1, 2], {"$uuid": "no"}], "string", ['{"a":[1]}', "[1,2]", '{"$uuid":"no"}']),
    ([None, None], "string", [None, None]),
]


@pytest.mark.parametrize(("values", "kind", "read"), MIXED)
def test_a_parquet_column_has_the_type_of_its_values(
    values: list[Any], kind: str, read: list[Any], tmp_path: Path
) -> None:
    target = tmp_path / "out.parquet"
    with target.open("wb") as stream:
        rows = [{"key": n, "output": msgspec.Raw(canonical.encode({"it": value}))} for n, value in enumerate(values)]
        assert export.write_parquet(stream, lambda: rows) == len(values)
    table = parquet.read_table(target)
    assert str(table.schema.field("it").type) == kind
    assert table.column("it").to_pylist() == read


def test_a_result_that_is_a_decimal_is_one_column_and_a_key_stays_a_text(tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    moment = "2026-11-17T09:00:00Z"
    with target.open("wb") as stream:
        export.write_parquet(stream, lambda: [{"key": moment, "output": msgspec.Raw(b'{"$decimal":"2.50"}')}])
    assert parquet.read_table(target).to_pylist() == [{"key": moment, "output": Decimal("2.50")}]


def test_a_value_of_another_type_that_appears_between_the_two_readings_is_told(tmp_path: Path) -> None:
    readings = iter([[{"a": 1}], [{"a": "x"}]])
    with (tmp_path / "out").open("wb") as stream, pytest.raises(Conflict, match="changed while it was exported"):
        export.write_parquet(stream, lambda: next(readings))


def test_a_column_that_appears_between_the_two_readings_is_not_dropped_in_silence() -> None:
    readings = iter([[{"a": 1}], [{"a": 1, "b": 2}]])
    with pytest.raises(Conflict, match="new column"):
        export.write_csv(io.BytesIO(), lambda: next(readings))


def test_an_empty_batch_gives_an_empty_table(world: World, tmp_path: Path) -> None:
    world.add()
    for name in ("out.csv", "out.parquet", "out.jsonl"):
        assert export.export(world.store, world.batch, tmp_path / name).rows == 0
    assert (tmp_path / "out.csv").read_bytes() == b"key,n\r\n"


@pytest.mark.parametrize(
    ("name", "why"), [("out.xyz", "its format"), ("no/out.csv", "does not exist"), ("", "its format|directory")]
)
def test_targets_that_cannot_be_are_refused(finished: World, tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        export.export(finished.store, finished.batch, tmp_path / name)


class FullDisk(io.BytesIO):
    """A stream that takes a header line and no more."""

    def write(self, data: Any) -> int:
        if self.tell():
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_full_disk_is_told_and_the_stream_of_the_caller_stays_open(finished: World, form: export.Format) -> None:
    stream = FullDisk()
    with pytest.raises(StoreError, match=r"the stream could not be written: the disk is full.* free some space"):
        export.export(finished.store, finished.batch, stream, form=form)
    assert not stream.closed
    assert stream.getvalue()


def test_a_link_is_followed_and_the_permissions_of_its_file_stay(finished: World, tmp_path: Path) -> None:
    real, link, none = tmp_path / "real.jsonl", tmp_path / "link.jsonl", tmp_path / "none.jsonl"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to(real)
    none.symlink_to(tmp_path / "new.jsonl")
    for name in (link, none):
        export.export(finished.store, finished.batch, name)
        assert name.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o600
    assert len(real.read_text().splitlines()) == 3
    assert (tmp_path / "new.jsonl").read_text() == real.read_text()


def test_a_name_may_be_as_long_as_the_file_system_allows(finished: World, tmp_path: Path) -> None:
    target = tmp_path / ("x" * 249 + ".jsonl")
    assert export.export(finished.store, finished.batch, target).rows == 3
    assert [file.name for file in tmp_path.iterdir() if file.name.endswith(".jsonl")] == [target.name]


def test_a_fifo_is_written_to_and_stays_one(finished: World, tmp_path: Path) -> None:
    fifo, read = tmp_path / "out.csv", list[bytes]()
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()), daemon=True)
    reader.start()
    export.export(finished.store, finished.batch, fifo)
    reader.join(10)
    assert fifo.is_fifo()
    assert len(read[0].splitlines()) > 3
    with pytest.raises(UsageError, match="cannot be written to a stream"):
        export.export(finished.store, finished.batch, fifo, form="parquet")
