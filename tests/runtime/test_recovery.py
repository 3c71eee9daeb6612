"""A lost record is made again from what its outputs show: what is there is not paid for again."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import holdfast as hf
from holdfast.core.errors import Damaged, NotOurs, Refused, UsageError
from holdfast.runtime import recover
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate import audit
from tests.runtime.support import Calls, outputs, run

BY = Actor(name="ann", reason="the disk died")
ITEMS = [{"number": n} for n in range(12)]


class Page(BaseModel):
    number: int


class Text(BaseModel):
    number: int
    text: str


def define(book: hf.Pipeline, calls: Calls, *, dead: int = -1) -> hf.Pipeline:
    @book.stage
    def ocr(page: Page) -> Text:
        calls(("ocr", page.number))
        return Text(number=page.number, text=f"page {page.number}")

    @book.stage(sink=hf.Files("mid/{key}.json"))
    def correct(text: Text) -> Text:
        calls(("correct", text.number))
        return text

    @book.stage(sink=hf.Files("out/{key}.txt"))
    def print_(text: Text) -> str:
        calls(("print", text.number))
        if text.number == dead:
            raise hf.Permanent("blank")
        return text.text

    @print_.verify
    def is_text(out: str) -> bool:
        return out.startswith("page")

    return book


def spoil(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"\xaa" * (len(whole) - 100))


def rebuilt(folder: Path, calls: Calls) -> tuple[hf.Pipeline, recover.Recovery]:
    path = folder / "state.db"
    assert recover.is_damaged(path) is not None
    book = define(hf.Pipeline("book", store=path), calls)
    found = book.recover(ITEMS, by=BY, key="number", damaged=path)
    assert recover.is_damaged(path) is None
    return book, found


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    found = [file for name in ("mid", "out") for file in (folder / name).iterdir() if file.is_file()]
    return {str(file): (file.read_bytes(), file.stat().st_mtime_ns) for file in found}


@pytest.mark.promise("P12", "P15")
def test_a_damaged_store_is_set_aside_and_rebuilt_from_the_outputs(folder: Path, book: hf.Pipeline) -> None:
    calls = Calls()
    first = run(define(book, calls, dead=7), ITEMS, key="number")
    assert (first.counts.done, first.counts.dead) == (11, 1)
    book.store.close()
    before, lost = files(folder), (folder / "state.db").read_bytes()
    spoil(folder / "state.db")
    spoilt = (folder / "state.db").read_bytes()
    with pytest.raises(Damaged, match="--from-outputs"):
        run(define(hf.Pipeline("book", store=folder / "state.db"), calls), ITEMS, key="number")
    assert (folder / "state.db").read_bytes() == spoilt != lost, "it is refused, not started again"
    calls.clear()
    again, found = rebuilt(folder, calls)
    assert (found.items, found.recovered, found.pending) == (12, {"print_": 11, "correct": 1}, 0)
    assert Path(found.set_aside[0]).read_bytes() == spoilt
    assert any("money" in what for what in found.unknown)
    assert files(folder) == before, "outputs are never changed"
    report = run(again, ITEMS, key="number")
    assert report.is_complete
    assert calls.seen == [("print", 7)], "what is there is not made again"
    assert outputs(again) == {n: f"page {n}" for n in range(12)}
    (batch,) = again.store.batches("book")
    assert audit.verify(again.store, batch, full=True).findings == ()


@pytest.mark.promise("P12", "P5")
def test_only_outputs_that_are_whole_and_valid_count(folder: Path, book: hf.Pipeline) -> None:
    calls = Calls()
    run(define(book, calls), ITEMS, key="number")
    book.store.close()
    spoil(folder / "state.db")
    (folder / "out" / "1.txt").write_text("nothing of ours")
    (folder / "out" / "2.txt").unlink()
    (folder / "mid" / "2.json").write_text('{"number": "?"}')
    (folder / "out" / "3.txt").unlink()
    (folder / "out" / "3.txt").mkdir()
    (folder / "out" / "4.txt").write_bytes(b"\xff\xfe")
    calls.clear()
    again, found = rebuilt(folder, calls)
    assert (found.recovered, found.pending, found.invalid_count) == ({"print_": 8, "correct": 3}, 1, 1)
    ((key, why),) = found.invalid
    assert (key, "number" in why) == ("2", True)
    (folder / "out" / "3.txt").rmdir()
    assert run(again, ITEMS, key="number").is_complete
    assert sorted(calls.seen) == [("correct", 2), ("ocr", 2), ("print", 1), ("print", 2), ("print", 3), ("print", 4)]
    assert outputs(again) == {n: f"page {n}" for n in range(12)}


@pytest.mark.promise("P12", "P4")
def test_an_output_that_is_lost_after_it_was_recovered_is_made_again(folder: Path, book: hf.Pipeline) -> None:
    """What it rests on was never recorded, so the item begins where its input is: at the start."""
    calls = Calls()
    run(define(book, calls), ITEMS, key="number")
    book.store.close()
    spoil(folder / "state.db")
    again, _ = rebuilt(folder, calls)
    (folder / "out" / "5.txt").unlink()
    calls.clear()
    assert run(again, ITEMS, key="number").is_complete
    assert calls.seen == [("ocr", 5), ("correct", 5), ("print", 5)]


def test_a_batch_that_can_be_read_is_not_rebuilt(folder: Path, book: hf.Pipeline) -> None:
    run(define(book, Calls()), ITEMS, key="number")
    with pytest.raises(Refused, match="run it to continue"):
        book.recover(ITEMS, by=BY, key="number")


def test_there_must_be_something_to_rebuild_from(folder: Path) -> None:
    book = hf.Pipeline("book", store=folder / "state.db")
    book.stage(name="read")(lambda value: value)
    with pytest.raises(UsageError, match="nothing to rebuild from"):
        book.recover([1], by=BY)
    with pytest.raises(UsageError, match="has no source"):
        book.recover(by=BY)


def test_no_fence_is_given_out_twice_after_a_store_was_set_aside(folder: Path, book: hf.Pipeline) -> None:
    run(define(book, Calls(), dead=3), ITEMS, key="number")
    highest = max(chunk.fence for chunk in book.store.chunks(book.store.batches()[0].id))
    book.store.close()
    spoil(folder / "state.db")
    again, _ = rebuilt(folder, Calls())
    run(again, ITEMS, key="number")
    fences = [chunk.fence for chunk in again.store.chunks(again.store.batches()[0].id)]
    assert min(fence for fence in fences if fence) > highest


@pytest.mark.promise("P15")
def test_a_batch_whose_items_were_known_by_their_content_goes_on_so(folder: Path, book: hf.Pipeline) -> None:
    calls = Calls()
    run(define(book, calls), ITEMS, identity="content")
    calls.clear()
    anew = define(hf.Pipeline("book", store=folder / "anew.db"), calls)
    assert anew.recover(ITEMS, by=BY, identity="content").pending == 0
    report = run(anew, ITEMS, identity="content")
    assert (report.state, report.counts.expected, len(calls)) == ("complete", 12, 0)
    with pytest.raises(UsageError, match="identity="):
        anew.recover(ITEMS, by=BY, batch="other", identity="contents")


@pytest.mark.promise("P12")
def test_a_verifier_that_hangs_or_raises_costs_nothing_but_a_word(folder: Path) -> None:
    """It is asked for a limited time, as everywhere; and it says nothing about the output, which counts."""
    hangs, calls = threading.Event(), Calls()

    def define_odd(store: str) -> hf.Pipeline:
        book = hf.Pipeline("book", store=store)

        @book.stage(sink=hf.Files("out/{key}.json"))
        def read(n: int) -> int:
            calls(n)
            return n

        @read.verify(timeout="100ms")
        def holds(out: int) -> bool:
            if store == "new.db" and out == 1:
                hangs.wait(60)
            if store == "new.db" and out == 2:
                raise ConnectionError("the database is down")
            return True

        return book

    run(define_odd("old.db"), range(4))
    calls.clear()
    book = define_odd("new.db")
    dry = book.recover(range(4), by=BY, dry_run=True)
    assert not (folder / "new.db").exists()
    found = book.recover(range(4), by=BY)
    hangs.set()
    assert dry == found
    assert (found.recovered, found.pending, found.invalid_count, found.unverified_count) == ({"read": 4}, 0, 0, 2)
    (hung, why_hung), (raised, why_raised) = found.unverified
    assert (hung, raised) == ("1", "2")
    assert "did not answer within 0.1 s" in why_hung
    assert "ConnectionError: the database is down" in why_raised
    assert run(book, range(4)).is_complete
    assert not calls.seen, "nothing is paid for again"


@pytest.mark.promise("P12")
def test_nothing_of_a_store_that_was_set_aside_stands_beside_the_new_one(tmp_path: Path) -> None:
    """Its log would be read into the new file; only the note of its fences stays."""
    path = tmp_path / "state.db"
    for suffix in ("", "-wal", "-shm", "-fence"):
        Path(f"{path}{suffix}").write_text(suffix)
    with recover.set_aside(path) as moved:
        pass
    assert [Path(name).read_text() for name in moved] == ["", "-wal", "-shm"]
    assert {file.name for file in tmp_path.iterdir()} - {Path(name).name for name in moved} == {"state.db-fence"}


def _broken_source() -> list[dict[str, int]]:
    raise OSError("the mount is gone")


def _half_a_source() -> Iterator[dict[str, int]]:
    yield from ITEMS[:6]
    raise OSError("the mount is gone")


@pytest.mark.promise("P12")
@pytest.mark.parametrize(
    ("source", "key", "why"),
    [
        (None, "number", "has no source"),
        (_broken_source, "number", "the mount"),
        (_half_a_source, "number", "the mount"),
        (lambda: ITEMS, 5, "key=5"),
    ],
)
def test_a_rebuild_that_fails_puts_the_damaged_store_back(
    folder: Path, book: hf.Pipeline, source: Any, key: Any, why: str
) -> None:
    path = folder / "state.db"
    run(define(book, Calls()), ITEMS, key="number")
    book.store.close()
    spoil(path)
    spoilt, there = path.read_bytes(), {file.name for file in folder.iterdir()}
    broken = define(hf.Pipeline("book", source=source, store=path), Calls())
    with pytest.raises((hf.HoldfastError, OSError), match=why):
        hf.import_outputs(broken, key=key, reason="the disk died")
    left = {file.name for file in folder.iterdir()} - {"state.db-wal", "state.db-shm"}
    assert (path.read_bytes(), left) == (spoilt, there), "nothing is moved away, nothing is left behind"
    again = define(hf.Pipeline("book", source=lambda: ITEMS, store=path), Calls())
    assert hf.import_outputs(again, key="number", reason="the disk died").recovered == {"print_": 12}
    assert run(again, key="number").is_complete


def test_a_store_without_outputs_in_files_is_not_moved(folder: Path) -> None:
    path = folder / "state.db"
    book = hf.Pipeline("book", source=[1], store=path)
    book.stage(name="read")(lambda value: value)
    run(book)
    book.store.close()
    spoil(path)
    with pytest.raises(UsageError, match="nothing to rebuild from"):
        hf.import_outputs(book, reason="the disk died")
    assert not list(folder.glob("*.damaged-*"))


def test_a_file_that_was_never_a_store_is_not_moved(folder: Path) -> None:
    path = folder / "report.csv"
    path.write_text("n,total\n" * 200)
    book = define(hf.Pipeline("book", source=lambda: ITEMS, store=path), Calls())
    for dry_run in (True, False):
        with pytest.raises(NotOurs, match=r"report\.csv does not begin like a store"):
            hf.import_outputs(book, key="number", reason="the disk died", dry_run=dry_run)
    assert path.read_text().startswith("n,total")
    assert not list(folder.glob("*.damaged-*"))


def test_a_first_page_that_is_lost_does_not_keep_a_store_from_being_rebuilt(folder: Path) -> None:
    path = folder / "state.db"
    book = define(hf.Pipeline("book", source=lambda: ITEMS, store=path), Calls())
    run(book, key="number")
    book.store.close()
    path.write_bytes(bytes(len(path.read_bytes())))
    assert hf.import_outputs(book, key="number", reason="the disk died").recovered == {"print_": 12}
    assert run(book, key="number").is_complete
