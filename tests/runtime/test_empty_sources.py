"""A source that gives nothing is most often a mistake: the run says so and ends with 1, unless that is fine."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.testing.rows import Rows
from tests.runtime.support import run, walk_of


def define(book: hf.Pipeline) -> hf.Pipeline:
    @book.stage
    def same(value: Any) -> Any:
        return value

    return book


@pytest.mark.parametrize(
    "items", [[], (n for n in ()), hf.Folder(".", "*.nothing")], ids=["list", "generator", "pattern"]
)
def test_a_pipeline_without_any_item_ends_with_1_and_says_why(book: hf.Pipeline, items: Iterable[Any]) -> None:
    called: list[Any] = []
    book.after(called.append)
    report = run(define(book), items, seal=True)
    assert (report.state, report.exit_code, report.is_complete) == ("empty", 1, False)
    assert "The source gave no item" in report.why
    assert "pass allow_empty=True." in report.why
    assert report.sealed_at is None
    assert not called, "nothing is complete"
    with pytest.raises(hf.Incomplete, match="is empty"):
        report.raise_unless_complete()


def test_it_may_be_fine(book: hf.Pipeline, folder: Path) -> None:
    assert run(define(book), [], allow_empty=True).exit_code == 0
    assert run(define(hf.Pipeline("fine", store=folder / "b.db", allow_empty=True)), []).exit_code == 0
    quiet = hf.Pipeline("fine", store=folder / "b.db", allow_empty=True)
    assert run(define(quiet), [], batch="other", allow_empty=False).exit_code == 1
    with pytest.raises(hf.UsageError, match="allow_empty"):
        run(define(book), [], allow_empty="yes")


def test_a_batch_that_has_items_may_be_given_none(book: hf.Pipeline) -> None:
    assert run(define(book), [1, 2]).exit_code == 0
    assert run(define(book), []).exit_code == 0


def test_a_plan_says_so(book: hf.Pipeline) -> None:
    define(book)
    assert any("a run would end with 1" in note for note in book.plan([]).notes)
    assert not book.plan([1]).notes


def scan(source: Any, **options: Any) -> hf.Scan:
    made = walk_of("orders", source, store=Path("state.db"), **options)
    made.handler(lambda rows, acc=0: acc + len(rows))
    made.converge(sum)
    return made


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_scan_without_any_row_ends_with_1_every_time(partitions: int) -> None:
    Path("orders.csv").write_text("id,name\n")
    for _ in range(2):
        report = scan(hf.Csv("orders.csv"), partitions=partitions).run(progress=False)
        assert (report.state, report.exit_code) == ("empty", 1)
        assert "The source gave no row" in report.why
    assert scan(hf.Csv("orders.csv"), partitions=partitions).run(progress=False, allow_empty=True).exit_code == 0
    assert scan(hf.Csv("orders.csv"), partitions=partitions, allow_empty=True).run(progress=False).exit_code == 0


def test_a_scan_that_died_at_its_first_row_is_not_empty() -> None:
    made = hf.Scan("orders", Rows([1, 2]), store=Path("state.db"))

    @made.handler
    def broken(rows: Any) -> None:
        raise ValueError("not that one")

    report = made.run(progress=False)
    assert (report.state, report.counts.dead) == ("complete with dead letters", 1)
    assert "no row" not in report.why


def test_an_empty_partition_is_fine_and_so_is_a_row_that_is_none() -> None:
    report = scan(Rows([1]), partitions=3).run(progress=False)
    assert (report.exit_code, report.rows) == (0, 1)
    Path("orders.jsonl").write_text("{\n")
    assert scan(hf.JsonLines("orders.jsonl")).run("other", progress=False).state == "complete with dead letters"


def test_what_follows_may_wait_for_its_first_row() -> None:
    assert scan(Rows([]), follow=True).tick().exit_code == 0


def test_a_source_that_is_empty_now_is_named_beside_what_was_admitted(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in "ab":
        (folder / name).write_text(name)
    book = hf.Pipeline("book", store=tmp_path / "state.db", source=hf.Folder(folder))

    @book.stage
    def read(file: hf.File) -> str:
        return file.read_text()

    assert not run(book).warnings
    assert not run(book).warnings
    for name in "ab":
        (folder / name).unlink()
    plan = book.plan()
    report = run(book)
    assert plan.notes == report.warnings
    assert (report.exit_code, report.counts.done) == (0, 2)
    assert "the source gave no items; 2 were admitted before" in report.warnings[0]
    assert report.warnings[0] in str(report)
    assert not run(book, allow_empty=True).warnings
