"""Stores that are not there, not ours, too new, damaged, or not to be written."""

import os
from contextlib import suppress
from pathlib import Path

import apsw
import pytest

import holdfast as hf
from holdfast.stores.sqlite import SqliteStore
from tests.rights import as_an_ordinary_user
from tests.runtime.support import run


def keeping(store: object) -> hf.Pipeline:
    book = hf.Pipeline("book", store=store)  # type: ignore[arg-type]
    book.stage(name="keep")(lambda value: value)
    return book


@pytest.mark.promise("P12")
@pytest.mark.parametrize("content", [b"hello, world\n" * 100, b"\x00" * 5000, b"%PDF-1.4"], ids=len)
def test_a_file_that_is_not_ours_is_refused_and_left_as_it_is(folder: Path, content: bytes) -> None:
    path = folder / "state.db"
    path.write_bytes(content)
    with pytest.raises(hf.NotOurs, match=r"state\.db is not a Holdfast store"):
        run(keeping(path), [1])
    assert path.read_bytes() == content


def test_a_database_of_another_program_is_refused_and_left_as_it_is(folder: Path) -> None:
    path = folder / "state.db"
    with apsw.Connection(str(path)) as db:
        db.execute("CREATE TABLE batches (mine TEXT); INSERT INTO batches VALUES ('precious')")
    db.close()
    before = path.read_bytes()
    with pytest.raises(hf.NotOurs, match="another program wrote it"):
        run(keeping(path), [1])
    assert path.read_bytes() == before


@pytest.mark.promise("C18")
def test_a_store_from_the_future_is_refused_and_left_as_it_is(folder: Path) -> None:
    path = folder / "state.db"
    run(keeping(path), range(5))
    SqliteStore(path).close()
    with apsw.Connection(str(path)) as db:
        db.pragma("user_version", 999)
    db.close()
    with pytest.raises(hf.SchemaTooNew, match="newer Holdfast"):
        run(keeping(path), range(5))
    with apsw.Connection(str(path)) as db:
        assert db.pragma("user_version") == 999
    db.close()


def test_a_folder_is_no_store(folder: Path) -> None:
    with pytest.raises(hf.UsageError, match="is a directory: name the file"):
        run(keeping(folder), [1])


def test_a_file_in_the_place_of_the_folder_is_told(folder: Path) -> None:
    (folder / "in the way").write_text("x")
    with pytest.raises(hf.UsageError, match="is not a directory"):
        run(keeping(folder / "in the way" / "state.db"), [1])


def test_a_place_that_may_not_be_written_is_told(folder: Path) -> None:
    place = folder / "locked"
    place.mkdir(mode=0o500)
    with as_an_ordinary_user(), pytest.raises(hf.UsageError, match="cannot be written"):
        run(keeping(place / "state.db"), [1])


@pytest.mark.parametrize("url", ["postgresql://host/db", "redis://host/0"])
def test_a_store_of_a_later_version_is_told(url: str) -> None:
    with pytest.raises(hf.UsageError, match="not known to this version"):
        run(keeping(url), [1])


def test_a_store_is_private_to_its_user(folder: Path) -> None:
    path = folder / "deep" / "er" / "state.db"
    run(keeping(path), [1])
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_store_in_memory_is_gone_with_its_pipeline() -> None:
    book = keeping("memory:")
    assert run(book, range(10)).counts.done == 10
    assert run(book, range(10)).this_run.done == 0
    assert run(keeping("memory:"), range(3)).counts.expected == 3


@pytest.mark.promise("P12")
@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
def test_a_damaged_store_is_never_taken_for_an_empty_one(folder: Path, where: float) -> None:
    path = folder / "state.db"
    run(keeping(path), range(3000))
    SqliteStore(path).close()
    data = bytearray(path.read_bytes())
    at = int(len(data) * where)
    data[at : at + 8192] = os.urandom(8192)
    path.write_bytes(data)
    for left in ("state.db-wal", "state.db-shm"):
        (folder / left).unlink(missing_ok=True)
    report = None
    with suppress(hf.Refused, hf.StoreError):
        report = run(keeping(path), range(3000), verify="full")
    assert report is None or report.counts.done == report.counts.expected == 3000
