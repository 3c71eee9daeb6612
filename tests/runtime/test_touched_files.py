"""Files that were touched, or moved with their folder, are the same items: nothing is paid for again."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.ingest import sort_out
from holdfast.runtime.engine.ingester import Ingester
from tests.runtime.support import run, run_until_all_wait


def made(folder: Path, source: Any, paid: list[str], fails: frozenset[str] = frozenset()) -> hf.Pipeline:
    book = hf.Pipeline("book", store=folder / "state.db", source=source)

    @book.stage(retry=hf.Retry(attempts=1))
    def read(file: hf.File) -> str:
        if file.name in fails:
            raise hf.Defer(3600)
        paid.append(file.name)
        return file.read_text()

    return book


def fill(folder: Path) -> None:
    folder.mkdir()
    for name in "abc":
        (folder / name).write_text(name)


@pytest.mark.promise("P3")
@pytest.mark.parametrize("changed", ["refuse", "keep", "rerun"])
def test_a_touch_pays_nothing_again(folder: Path, changed: Any) -> None:
    fill(folder / "in")
    paid: list[str] = []
    run(made(folder, hf.Folder("in"), paid))
    os.utime(folder / "in" / "a", ns=(1, 1))
    report = run(made(folder, hf.Folder("in"), paid), changed=changed)
    assert (report.exit_code, sorted(paid)) == (0, ["a", "b", "c"])
    assert not made(folder, hf.Folder("in"), paid).plan().obstacles


def test_another_size_is_another_payload(folder: Path) -> None:
    fill(folder / "in")
    paid: list[str] = []
    run(made(folder, hf.Folder("in"), paid))
    (folder / "in" / "a").write_text("longer")
    os.utime(folder / "in" / "a", ns=(0, 1_700_000_000_123_456_789))
    with pytest.raises(hf.PayloadChanged, match="size: 1 byte became 6 bytes") as refused:
        run(made(folder, hf.Folder("in"), paid))
    assert "became 2023-11-14 22:13:20.123Z" in str(refused.value)
    assert "_ns" not in str(refused.value)
    run(made(folder, hf.Folder("in"), paid), changed="rerun")
    assert sorted(paid) == ["a", "a", "b", "c"]


def test_a_folder_that_was_moved_is_gone_on_with_where_it_is_now(folder: Path) -> None:
    (folder / "one").mkdir()
    fill(folder / "one" / "in")
    paid: list[str] = []
    first = run(made(folder, hf.Folder(folder / "one" / "in"), paid, frozenset("c")), deadline="300ms")
    assert (first.counts.done, first.counts.pending) == (2, 1)
    shutil.move(folder / "one", folder / "two")
    book = made(folder, hf.Folder(folder / "two" / "in"), paid)
    report = run(book)
    assert (report.exit_code, sorted(paid)) == (0, ["a", "b", "c"])
    assert sorted(result.output for result in book.results()) == ["a", "b", "c"]


def test_objects_of_a_folder_are_known_by_name_and_size(folder: Path) -> None:
    fill(folder / "in")
    paid: list[str] = []

    def book() -> hf.Pipeline:
        found = hf.Pipeline("book", store=folder / "state.db", source=hf.Objects((folder / "in").as_uri()))

        @found.stage
        def read(each: hf.Object) -> str:
            paid.append(each.name)
            return each.read_bytes().decode()

        return found

    run(book())
    os.utime(folder / "in" / "a", ns=(1, 1))
    assert run(book()).exit_code == 0
    assert sorted(paid) == ["a", "b", "c"]


@pytest.mark.promise("P11")
@pytest.mark.parametrize("begun", [False, True])
def test_only_what_nobody_has_begun_is_looked_for_where_its_folder_was_moved_to(folder: Path, begun: bool) -> None:
    """What came past its first stage does not begin again."""
    paid: list[str] = []
    fill(folder / "one")
    book = made(folder, hf.Folder(folder / "one"), paid, frozenset() if begun else frozenset("c"))

    @book.stage
    def write(text: str) -> str:
        if text == "c":
            raise hf.Defer(3600)
        return text

    run_until_all_wait(book)
    shutil.move(folder / "one", folder / "two")
    renewed: list[int] = []
    batch = book.store.batches()[0]
    reading = Ingester(book.store, batch, book.stages[0].input, key=None, identity="key", changed="refuse",
                       owner="ann", rerun=lambda n, *_: renewed.append(n))  # fmt: skip
    (group,) = reading.groups(hf.Folder(folder / "two"), 10)
    reading.settle_changed(group, sort_out(group, book.store.known(batch.id, group), 0)[1])
    assert renewed == ([] if begun else [2])
