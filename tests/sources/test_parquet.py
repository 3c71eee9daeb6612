"""Rows of Parquet files by row group and row."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.cursor import Cursor
from holdfast.runtime.sources import parquet
from tests.sources.reference import cursors, told

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    table = pa.table({"n": list(range(2_500)), "price": [Decimal("1.10")] * 2_500})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=600)
    return tmp_path / "a.parquet"


@pytest.mark.promise("B7")
def test_any_split_and_any_resume_give_the_rows_of_the_whole(file: Path) -> None:
    source = hf.Parquet(file)
    whole = list(source)
    assert whole[7] == {"n": 7, "price": Decimal("1.10")}
    for parts in range(1, 8):
        spans = source.split(parts)
        assert len(spans) == min(parts, 5)
        assert [row for span in spans for row in told(source, span.after, span.until)] == whole
    places = cursors(source)
    for passed in (0, 1, 599, 600, 601, 1_000, 2_400, 2_499, 2_500):
        assert told(source, places[passed]) == whole[passed:]
        if passed:
            assert told(source, None, places[passed]) == whole[:passed]
    assert told(source, places[590], places[610]) == whole[590:610]


def test_only_the_columns_that_are_asked_for_are_read(file: Path) -> None:
    assert next(iter(hf.Parquet(file, columns=["n"]))) == {"n": 0}
    with pytest.raises(hf.UsageError, match="no column 'x'"):
        list(hf.Parquet(file, columns=["x"]))


def test_a_file_without_rows_is_one_empty_range(tmp_path: Path) -> None:
    pq.write_table(pa.table({"at": pa.array([], pa.timestamp("us", "UTC"))}), tmp_path / "a.parquet")
    source = hf.Parquet(tmp_path / "a.parquet")
    assert [told(source, span.after, span.until) for span in source.split(4)] == [[]]
    pq.write_table(pa.table({"at": [datetime(2026, 1, 1, tzinfo=UTC)]}), tmp_path / "a.parquet")
    assert list(source) == [{"at": datetime(2026, 1, 1, tzinfo=UTC)}]


def test_a_file_that_is_cut_off_missing_or_another_is_told(file: Path) -> None:
    source = hf.Parquet(file)
    before = source.split(2)[0].identity
    assert before is not None
    assert source.changed(before) is None
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(hf.UsageError, match="not a Parquet file, or it is cut off"):
        list(source)
    assert "shortened" in str(source.changed(before))
    file.unlink()
    with pytest.raises(hf.UsageError, match="no such file"):
        list(source)


def test_a_cursor_of_another_source_or_of_a_longer_file_is_refused(file: Path) -> None:
    with pytest.raises(hf.UsageError, match="another source"):
        told(hf.Parquet(file), Cursor("byte", 3))
    with pytest.raises(hf.SourceChanged, match="5 row groups"):
        told(hf.Parquet(file), Cursor("group", 9, 0))


def test_nested_values_moments_and_numbers_of_every_kind_come_as_python_has_them(tmp_path: Path) -> None:
    row = {
        "nested": {"list": [1, 2], "inner": {"text": "x"}}, "day": date(2026, 1, 1), "bytes": b"\xff", "none": None,
        "price": Decimal("1.10"), "at": datetime(2026, 1, 1, tzinfo=UTC), "large": 2**63 + 5,
    }  # fmt: skip
    kinds = {"large": pa.uint64()}
    table = pa.table({name: pa.array([value] * 10, kinds.get(name)) for name, value in row.items()})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    scan = hf.Scan("a", hf.Parquet(tmp_path / "a.parquet"), partitions=50, every=1, store="memory:")
    seen: list[dict[str, Any]] = []
    scan.handler(seen.extend)
    assert scan.run(progress=False).rows == 10
    assert seen == [row] * 10


def test_what_python_has_no_value_for_is_told_with_what_to_do(tmp_path: Path) -> None:
    exact = pa.array([1_700_000_000_123_456_789], pa.timestamp("ns"))
    pq.write_table(pa.table({"id": [1], "at": exact}), tmp_path / "a.parquet")
    with pytest.raises(hf.UsageError, match="leave its column out with columns="):
        list(hf.Parquet(tmp_path / "a.parquet"))
    assert list(hf.Parquet(tmp_path / "a.parquet", columns=["id"])) == [{"id": 1}]


NANO = 1_700_000_000_123_456_000


KINDS, WAYS = ("timestamp", "zoned", "time", "duration"), ("plain", "list", "struct", "map", "dictionary")
DEPTHS = [(kind, way) for kind in KINDS for way in WAYS if (kind, way) != ("duration", "dictionary")]
"""A dictionary of durations is written as whole numbers: the file does not tell that they are times."""


@pytest.mark.parametrize(("kind", "depth"), DEPTHS)
def test_nanoseconds_are_exact_or_refused_and_never_cut(tmp_path: Path, kind: str, depth: str) -> None:
    """The same with pandas and without it: what Arrow gives to Python has no nanoseconds left."""
    types = {"timestamp": pa.timestamp("ns"), "zoned": pa.timestamp("ns", "UTC"), "time": pa.time64("ns"),
             "duration": pa.duration("ns")}  # fmt: skip
    one, value = types[kind], NANO if kind != "time" else 5_000

    def column(value: int) -> Any:
        plain = pa.array([value], one)
        if depth == "list":
            return pa.array([[value]], pa.list_(one))
        if depth == "struct":
            return pa.StructArray.from_arrays([plain], names=["at"])
        if depth == "map":
            return pa.array([[("k", value)]], pa.map_(pa.string(), one))
        return plain.dictionary_encode() if depth == "dictionary" else plain

    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1], "at": column(value)}), path)
    (row,) = hf.Parquet(path)
    text = repr(row["at"])
    assert "Timestamp" not in text
    assert "nanosecond" not in text
    assert "microsecond" in text or "123456" in text or "0, 0, 0, 5" in text, text
    pq.write_table(pa.table({"id": [1], "at": column(value + 1)}), path)
    with pytest.raises(hf.UsageError, match="a value cannot be represented in Python"):
        list(hf.Parquet(path))
    assert list(hf.Parquet(path, columns=["id"])) == [{"id": 1}]


def test_what_is_handed_to_python_has_no_nanoseconds() -> None:
    """With pandas, Arrow would make values of pandas of them, and cut times of day."""
    table = pa.table({"at": pa.array([5_000], pa.time64("ns")), "n": [1]})
    made = parquet._coarser(table.to_batches()[0])
    assert [str(field.type) for field in made.schema] == ["time64[us]", "int64"]
    plain = pa.table({"n": [[1]], "s": [{"a": 1}]}).to_batches()[0]
    assert parquet._coarser(plain) is plain


def test_two_columns_of_one_name_a_folder_and_a_damaged_group_are_told(file: Path, tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"]), tmp_path / "twice.parquet")
    with pytest.raises(hf.UsageError, match="'x' occur twice"):
        list(hf.Parquet(tmp_path / "twice.parquet"))
    with pytest.raises(hf.UsageError, match="this is a folder"):
        list(hf.Parquet(tmp_path))
    data = bytearray(file.read_bytes())
    data[4:60] = b"\xff" * 56
    file.write_bytes(data)
    with pytest.raises(hf.UsageError, match="row group 0 is damaged"):
        list(hf.Parquet(file))
