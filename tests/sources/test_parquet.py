"""Rows of Parquet files by row group and row."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.core.cursor import Cursor
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
    with pytest.raises(hf.UsageError, match="no Parquet file, or it is cut off"):
        list(source)
    assert "shortened" in str(source.changed(before))
    file.unlink()
    with pytest.raises(hf.UsageError, match="no such file"):
        list(source)


def test_a_cursor_of_another_source_or_of_a_longer_file_is_refused(file: Path) -> None:
    with pytest.raises(hf.UsageError, match="of another source"):
        told(hf.Parquet(file), Cursor("byte", 3))
    with pytest.raises(hf.SourceChanged, match="5 row groups"):
        told(hf.Parquet(file), Cursor("group", 9, 0))
