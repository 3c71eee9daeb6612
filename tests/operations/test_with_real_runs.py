"""The operator's side on batches that the runtime really worked on, some of them while it works."""

import json
import threading
import time
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.core.errors import HoldfastError
from holdfast.runtime import lookup
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate import audit, export, operations
from holdfast.runtime.report import statistics, status, why
from holdfast.stores.base import find_batch
from holdfast.stores.sqlite import SqliteStore

BY = Actor(name="ada", reason="a test")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def pages(folder: Path, *, pause: float = 0.0) -> hf.Pipeline:
    """Two stages, the second into files."""
    made = hf.Pipeline("pages", store=folder / "state.db")

    @made.stage
    def read(row: dict) -> dict:
        time.sleep(pause)
        return row

    @made.stage(sink=hf.Files("out/{key}.json"))
    def write(row: dict, ctx: hf.Context) -> dict:
        ctx.spend(usd="0.01", tokens=3, model="m")
        ctx.measure(size=row["id"])
        return {**row, "double": 2 * row["id"]}

    return made


def rows(count: int, **more: object) -> list[dict]:
    return [{"id": n, **more} for n in range(count)]


def run(pipeline: hf.Pipeline, items: list[dict], **options: object) -> hf.Report:
    return pipeline.run(items, batch="b", key="id", progress=False, **options)  # type: ignore[arg-type]


@pytest.mark.promise("E12", "P1")
def test_a_run_verifies_with_its_files(tmp_path: Path) -> None:
    pipeline = pages(tmp_path)
    run(pipeline, rows(50))
    batch = lookup.batch_named(pipeline.store, "b")
    found = audit.verify(pipeline.store, batch, full=True)
    assert (found.findings, found.items, found.outputs) == ((), 50, 100)
    assert audit.verify(pipeline.store, batch).files_unread == 50
    assert [json.loads(each.output)["double"] for each in export.results(pipeline.store, batch)] == [
        2 * n for n in range(50)
    ]


@pytest.mark.promise("P4")
def test_a_damaged_file_is_found_by_name_and_put_right_by_a_run(tmp_path: Path) -> None:
    pipeline = pages(tmp_path)
    run(pipeline, rows(10))
    (tmp_path / "out" / "3.json").write_text("{}")
    batch = lookup.batch_named(pipeline.store, "b")
    (finding,) = audit.verify(pipeline.store, batch, full=True).findings
    assert finding.where == "item 3 (3)"
    assert "out/3.json" in finding.message
    with pytest.raises(HoldfastError, match=r"item 3: out/3\.json"):
        list(export.results(pipeline.store, batch))
    run(pipeline, rows(10))
    assert audit.verify(pipeline.store, lookup.batch_named(pipeline.store, "b"), full=True).holds
    told = why.tell(pipeline.store, batch, "3")
    assert [event.what for event in told.events].count("rewound") == 1
    assert told.now == "done: its output is in out/3.json."
    assert statistics.collect(pipeline.store, batch).stages[1].runs == 11


def test_items_that_came_again_with_another_payload_verify(tmp_path: Path) -> None:
    pipeline = pages(tmp_path)
    run(pipeline, rows(5))
    run(pipeline, [*rows(4), {"id": 4, "new": True}], changed="rerun")
    batch = lookup.batch_named(pipeline.store, "b")
    assert audit.verify(pipeline.store, batch, full=True).findings == ()
    assert lookup.item_named(pipeline.store, batch, 4).place.epoch == 1
    assert any(event.what == "renewed" for event in why.tell(pipeline.store, batch, "4").events)


def test_a_reset_batch_is_done_again_and_verifies(tmp_path: Path) -> None:
    pipeline = pages(tmp_path)
    run(pipeline, rows(20))
    batch = lookup.batch_named(pipeline.store, "b")
    shown = operations.preview_reset(pipeline.store, batch, to_stage="write")
    assert (shown["done"], str(shown.usd)) == (20, "0.20")
    assert operations.reset(pipeline.store, batch, BY, to_stage="write").changed == 20
    report = run(pipeline, rows(20))
    assert (report.counts.done, str(report.totals.usd)) == (20, "0.40")
    found = statistics.collect(pipeline.store, batch)
    assert (found.stages[0].runs, found.stages[1].runs) == (20, 40)
    assert audit.verify(pipeline.store, batch, full=True).findings == ()


@pytest.mark.promise("C3", "C13", "E12")
def test_audit_status_and_reset_beside_a_run_that_is_at_work(tmp_path: Path) -> None:
    pipeline = pages(tmp_path, pause=0.01)
    worker = threading.Thread(target=run, args=(pipeline, rows(300)), kwargs={"workers": 4})
    worker.start()
    beside = SqliteStore(tmp_path / "state.db")
    was_reset, looks = 0, 0
    while worker.is_alive():
        batch = find_batch(beside, "b")
        if batch is None:
            continue
        looks += 1
        assert audit.verify(beside, batch).findings == ()
        seen = status.snapshot(beside, batch)
        statistics.collect(beside, batch)
        if not was_reset and 50 < seen.counts.done < 200:
            was_reset = operations.reset(beside, batch, BY).changed
    worker.join()
    batch = lookup.batch_named(beside, "b")
    assert was_reset >= 50
    assert looks > 3
    run(pipeline, rows(300))
    assert status.snapshot(beside, batch).counts.done == 300
    assert audit.verify(beside, batch, full=True).findings == ()
    beside.close()


def test_a_reset_changes_as_many_items_as_was_shown_before(tmp_path: Path) -> None:
    book = hf.Pipeline("book", store=tmp_path / "state.db")

    @book.stage
    def read(number: int) -> int:
        if number % 3 == 0:
            raise hf.Permanent("no_page")
        return number

    @book.stage
    def write(number: int) -> int:
        return number

    book.run(range(30), progress=False, tolerate=30)
    batch = lookup.batch_named(book.store, "book")
    for stage in ("write", "read"):
        shown = operations.preview_reset(book.store, batch, to_stage=stage)
        done = operations.reset(book.store, batch, BY, to_stage=stage)
        assert (shown.items, shown.counts["done"]) == (done.changed, {"write": 20, "read": 0}[stage])
