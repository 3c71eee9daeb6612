"""A log or index that is removed, replaced or cut off under an open store is noticed."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from holdfast.core.errors import Damaged
from holdfast.stores import faults
from holdfast.stores.sqlite import SqliteStore, file
from holdfast.testing.conformance.kit import DEFINITION, new_item

Harm = Callable[[Path], None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def remove_log(path: Path) -> None:
    beside(path, "-wal").unlink()


def move_log(path: Path) -> None:
    beside(path, "-wal").rename(path.with_name("elsewhere"))


def replace_log(path: Path) -> None:
    shutil.copyfile(beside(path, "-wal"), beside(path, "-copy"))
    beside(path, "-copy").replace(beside(path, "-wal"))


def cut_log(path: Path) -> None:
    os.truncate(beside(path, "-wal"), beside(path, "-wal").stat().st_size - 1)


def empty_log(path: Path) -> None:
    os.truncate(beside(path, "-wal"), 0)


def remove_index(path: Path) -> None:
    beside(path, "-shm").unlink()


def replace_index(path: Path) -> None:
    shutil.copyfile(beside(path, "-shm"), beside(path, "-copy"))
    beside(path, "-copy").replace(beside(path, "-shm"))


HARMS: list[tuple[Harm, str]] = [
    (remove_log, r"state\.db-wal was removed or moved away while it was in use"),
    (move_log, r"state\.db-wal was removed or moved away while it was in use"),
    (replace_log, r"state\.db-wal was replaced by another file while it was in use"),
    (cut_log, r"state\.db-wal was cut off while it was in use"),
    (empty_log, r"state\.db-wal was cut off while it was in use"),
    (remove_index, r"state\.db-shm was removed or moved away while it was in use"),
    (replace_index, r"state\.db-shm was replaced by another file while it was in use"),
]
harms = pytest.mark.parametrize(("harm", "told"), HARMS, ids=[harm.__name__ for harm, _ in HARMS])


@harms
def test_nothing_is_written_beside_what_is_gone(harm: Harm, told: str, path: Path) -> None:
    store = SqliteStore(path)
    batch = store.open_batch("book", "pages", DEFINITION, actor="ann")
    harm(path)
    with pytest.raises(Damaged, match=told + r".*run again"):
        store.add_items(batch.id, [new_item("a")])
    for verb in (store.batches, lambda: store.add_items(batch.id, [new_item("a")])):
        with pytest.raises(Damaged, match=told):
            verb()
    store.close()


@pytest.mark.parametrize(("harm", "told"), HARMS[:3], ids=[harm.__name__ for harm, _ in HARMS[:3]])
def test_nothing_is_acknowledged_that_was_written_into_a_log_without_a_name(
    harm: Harm, told: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(path)
    batch = store.open_batch("book", "pages", DEFINITION, actor="ann")
    monkeypatch.setattr(faults, "reach", lambda point: harm(path) if point == "add_items.written" else None)
    with pytest.raises(Damaged, match=told):
        store.add_items(batch.id, [new_item("a")])
    store.close()


@pytest.mark.promise("A8")
@pytest.mark.parametrize("harm", [remove_log, move_log, remove_index])
def test_acknowledged_work_outlives_what_was_removed(harm: Harm, path: Path) -> None:
    store = SqliteStore(path)
    batch = store.open_batch("book", "pages", DEFINITION, actor="ann")
    store.add_items(batch.id, [new_item(n) for n in range(10)])
    harm(path)
    with pytest.raises(Damaged):
        store.add_items(batch.id, [new_item("a")])
    again = SqliteStore(path)  # whether the first was closed or not
    assert len(again.items(batch.id)) == 10
    again.close()
    store.close()


@pytest.mark.promise("A8")
def test_work_of_two_stores_outlives_their_log(path: Path) -> None:
    one, other = SqliteStore(path), SqliteStore(path)
    batch = one.open_batch("book", "pages", DEFINITION, actor="ann")
    other.add_items(batch.id, [new_item(n) for n in range(10)])
    remove_log(path)
    for store in (one, other):
        with pytest.raises(Damaged, match="its content was copied into"):
            store.add_items(batch.id, [new_item("a")])
    one.close()
    other.close()
    assert len(SqliteStore(path).items(batch.id)) == 10


def test_the_log_of_another_process_is_left_alone(path: Path) -> None:
    store = SqliteStore(path)
    batch = store.open_batch("book", "pages", DEFINITION, actor="ann")
    replace_log(path)
    before = path.read_bytes(), beside(path, "-wal").read_bytes()
    with pytest.raises(Damaged):
        store.add_items(batch.id, [new_item("a")])
    store.close()
    assert (path.read_bytes(), beside(path, "-wal").read_bytes()) == before


@pytest.mark.parametrize("mode", [apsw.SQLITE_CHECKPOINT_TRUNCATE, apsw.SQLITE_CHECKPOINT_RESTART])
def test_a_log_that_another_program_copied_back_and_emptied_is_as_it_should_be(mode: int, path: Path) -> None:
    store = SqliteStore(path)
    batch = store.open_batch("book", "pages", DEFINITION, actor="ann")
    for n in range(3):
        store.add_items(batch.id, [new_item(n)])
        other = apsw.Connection(str(path))
        other.wal_checkpoint(mode=mode)
        other.close()
    assert len(store.items(batch.id)) == 3
    store.close()


def test_stores_that_come_and_go_disturb_nobody(path: Path) -> None:
    store = SqliteStore(path)
    batch = store.open_batch("book", "pages", DEFINITION, actor="ann")
    for n in range(3):
        other = SqliteStore(path)
        other.add_items(batch.id, [new_item(n)])
        other.close()
    assert store.add_items(batch.id, [new_item("a")]).added == 1
    store.close()


def test_a_log_of_many_checkpoints_is_as_it_should_be(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(file.SETTINGS, "wal_autocheckpoint", 5)
    store = SqliteStore(path)
    batch = store.open_batch("book", "pages", DEFINITION, actor="ann")
    for n in range(50):
        store.add_items(batch.id, [new_item(n, b"x" * 9_000)])
    assert len(store.items(batch.id)) == 50
    store.close()
