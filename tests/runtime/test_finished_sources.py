"""A finished scan whose source is another one, or has grown: it says so, in a run, a plan and an audit."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import holdfast as hf
from holdfast.core import canonical
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate.cursor_audit import audit
from holdfast.runtime.operate.operations import redrive
from holdfast.runtime.partitions import payload_of
from holdfast.runtime.sources.base import Span

Make = Callable[[], Any]


def scan(source: Any, partitions: int = 1) -> hf.Scan:
    made = hf.Scan("daily", source, store=Path("state.db"), partitions=partitions)
    made.handler(lambda rows, acc=0: acc + len(rows))
    made.converge(sum)
    return made


def rows_of(count: int, first: int = 0) -> str:
    return "id,name\n" + "".join(f"{n:06d},rope\n" for n in range(first, first + count))


def refused(made: hf.Scan, says: str) -> None:
    """In a run, in a plan and in an audit."""
    with pytest.raises(hf.SourceChanged, match=says):
        made.run(progress=False)
    (obstacle,) = made.plan().obstacles
    assert "is finished, and" in obstacle
    store = made.pipeline.store
    with pytest.raises(hf.SourceChanged, match=says):
        audit(store, store.batches()[0], made.source)


@pytest.mark.promise("C14")
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize(
    ("after", "says"),
    [
        (rows_of(1000, first=5), "it was rewritten"),
        (rows_of(1500, first=5), "it was rewritten"),
        (rows_of(1000).replace("000500,rope", "000500,pore"), "it was rewritten"),
        (rows_of(3), "it was shortened"),
        (None, "there is no such file"),
    ],
    ids=["same size", "longer", "one row", "shorter", "gone"],
)
def test_a_finished_scan_of_another_file_is_refused(after: str | None, says: str, partitions: int) -> None:
    path = Path("orders.csv")
    path.write_text(rows_of(1000))
    made = scan(hf.Csv(path), partitions)
    assert made.run(progress=False).result == 1000
    if after is None:
        path.unlink()
    else:
        path.write_text(after)
    refused(scan(hf.Csv(path), partitions), says)
    assert made.report().result == 1000, "what was made of the old one can still be looked at"


def test_another_folder_is_another_file_and_a_copy_is_not() -> None:
    for day, first in (("monday", 0), ("tuesday", 7)):
        Path(day).mkdir()
        Path(day, "orders.csv").write_text(rows_of(1000, first))
    assert scan(hf.Csv("monday/orders.csv")).run(progress=False).result == 1000
    refused(scan(hf.Csv("tuesday/orders.csv")), "it was rewritten")
    shutil.copy("monday/orders.csv", "tuesday/orders.csv")
    assert scan(hf.Csv("tuesday/orders.csv")).run(progress=False).exit_code == 0


def test_a_file_that_was_touched_or_written_on_is_the_same() -> None:
    path = Path("orders.csv")
    path.write_text(rows_of(1000))
    scan(hf.Csv(path)).run(progress=False)
    path.touch()
    assert not scan(hf.Csv(path)).run(progress=False).warnings
    with path.open("a") as file:
        file.write("001000,rope\n")
    report = scan(hf.Csv(path)).run(progress=False)
    (note,) = report.warnings
    assert "has grown by 12 bytes" in note
    assert "follow" not in note, "a file cannot be followed"
    assert (report.exit_code, report.result) == (0, 1000)


def test_one_changed_byte_of_a_mebibyte_is_found() -> None:
    path = Path("orders.csv")
    data = bytearray(rows_of(87_000).encode())
    assert len(data) < 1 << 20
    path.write_bytes(data)
    scan(hf.Csv(path)).run(progress=False)
    data[777_777] ^= 1
    path.write_bytes(data)
    with pytest.raises(hf.SourceChanged, match="somewhere in its first"):
        scan(hf.Csv(path)).run(progress=False)


def test_a_row_that_was_corrected_in_place_and_redriven_is_no_other_file() -> None:
    path = Path("orders.jsonl")
    path.write_text('{"n": 1}\n{"n" 2}\n{"n": 3}\n')
    made = scan(hf.JsonLines(path))
    assert made.run(progress=False).exit_code == 1
    path.write_text('{"n": 1}\n{"n":2}\n{"n": 3}\n')
    with pytest.raises(hf.SourceChanged, match="holdfast dead redrive daily"):
        made.run(progress=False)
    store = made.pipeline.store
    redrive(store, store.batches()[0], Actor(name="ann", reason="corrected"))
    assert made.run(progress=False).exit_code == 0
    assert made.run(progress=False).result == 3, "and it stays so"


def test_parquet_that_was_written_again_is_another_file() -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"a": [1, 2, 3]}), "z.parquet")
    scan(hf.Parquet("z.parquet")).run(progress=False)
    pq.write_table(pa.table({"a": [1, 2, 3, 4, 5, 6]}), "z.parquet")
    refused(scan(hf.Parquet("z.parquet")), "bytes")
    assert not scan(hf.Parquet("z.parquet")).report().warnings, "it has not grown: it is another one"


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("source", [lambda: hf.Folder("in"), lambda: hf.Objects(Path("in").absolute().as_uri())])
def test_a_folder_that_grew_is_told_and_one_that_shrank_is_refused(source: Make, partitions: int) -> None:
    folder = Path("in")
    folder.mkdir()
    for n in range(100, 140):
        (folder / f"{n}").write_text(f"{n}")
    assert scan(source(), partitions).run(progress=False).result == 40
    (folder / "105").touch()
    assert not scan(source(), partitions).run(progress=False).warnings
    (folder / "200").write_text("later")
    (folder / "000").write_text("before")
    report = scan(source(), partitions).run(progress=False)
    assert (report.exit_code, report.result) == (0, 40)
    (note,) = report.warnings
    assert "has grown by 2 " in note
    assert "hf.Follow" in note
    assert "new batch name" in note
    assert any("has grown by 2 " in each for each in scan(source(), partitions).plan().notes)
    for name in ("000", "200", "105"):
        (folder / name).unlink()
    refused(scan(source(), partitions), "it has 39 (files|objects), but had 40")
    (folder / "105").write_text("another content")
    refused(scan(source(), partitions), "not every (file|object) that it had is still the same")
    shutil.rmtree(folder)
    refused(scan(source(), partitions), "no such folder")


def test_another_folder_with_more_files_is_no_growth() -> None:
    for day, size, count in (("monday", 3, 40), ("tuesday", 5, 60)):
        Path(day, "in").mkdir(parents=True)
        for n in range(count):
            Path(day, "in", f"{n:03}").write_text("x" * size)
    scan(hf.Folder("monday/in")).run(progress=False)
    refused(scan(hf.Folder("tuesday/in")), "not every file that it had is still the same")


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_table_that_grew_is_told_and_one_that_shrank_or_was_filled_again_is_refused(partitions: int) -> None:
    engine = sa.create_engine("sqlite:///shop.db")
    with engine.begin() as db:
        db.execute(sa.text("CREATE TABLE orders (id INTEGER PRIMARY KEY, v INTEGER)"))
    fill(engine, 1, 1001)
    made = scan(hf.Table("sqlite:///shop.db", "orders", cursor="id"), partitions)
    assert made.run(progress=False).result == 1000
    assert not made.run(progress=False).warnings
    fill(engine, 1001, 1501)
    report = made.run(progress=False)
    (note,) = report.warnings
    assert "has grown by 500 rows" in note
    assert (report.exit_code, report.result) == (0, 1000)
    with engine.begin() as db:
        db.execute(sa.text("DELETE FROM orders WHERE id = 77"))
    with pytest.raises(hf.SourceChanged, match="it has 999 rows among those it had, but had 1,000"):
        made.run(progress=False)
    with engine.begin() as db:
        db.execute(sa.text("DELETE FROM orders"))
    fill(engine, 5001, 7001)
    refused(made, "it has 0 rows among those it had")
    engine.dispose()


def test_rows_that_were_updated_are_neither_gone_nor_another_table() -> None:
    engine = sa.create_engine("sqlite:///shop.db")
    with engine.begin() as db:
        db.execute(sa.text("CREATE TABLE orders (id INTEGER PRIMARY KEY, changed INTEGER)"))
        db.execute(sa.text("INSERT INTO orders VALUES (1, 10), (2, 20), (3, 30)"))
    made = scan(hf.Table("sqlite:///shop.db", "orders", cursor="changed", key="id"))
    assert made.run(progress=False).result == 3
    with engine.begin() as db:
        db.execute(sa.text("UPDATE orders SET changed = changed + 100"))
    assert made.run(progress=False).exit_code == 0
    engine.dispose()


def fill(engine: sa.Engine, first: int, last: int) -> None:
    with engine.begin() as db:
        db.execute(sa.text("INSERT INTO orders VALUES (:id, 1)"), [{"id": n} for n in range(first, last)])


def test_a_batch_that_an_older_version_finished_still_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """It kept no identity of a folder, and fewer digests of a file."""
    Path("in").mkdir()
    Path("in", "a").write_text("a")
    with monkeypatch.context() as older:
        older.setattr(hf.Folder, "split", lambda *_: [Span()])
        assert scan(hf.Folder("in")).run(progress=False).result == 1
    Path("in", "b").write_text("b")
    assert scan(hf.Folder("in")).run(progress=False).result == 1
    path = Path("orders.csv")
    path.write_text(rows_of(10))
    known = hf.Csv(path).identity()
    del known["places"]
    assert hf.Csv(path).changed(known) is None
    assert b"places" not in canonical.encode(payload_of(Span(identity=known)))
