"""A wait ends when somebody writes: here, through another handle, or in another process."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.core.course import to_note
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.file import SqliteFile
from holdfast.testing.conformance.kit import DEFINITION

LONG = 600.0


def memory(_folder: Path) -> tuple[Store, Store]:
    store = MemoryStore()
    return store, store


def one_handle(folder: Path) -> tuple[Store, Store]:
    store = SqliteStore(folder / "state.db")
    return store, store


def two_handles(folder: Path) -> tuple[Store, Store]:
    return SqliteStore(folder / "state.db"), SqliteStore(folder / "state.db")


@pytest.mark.parametrize("stores", [memory, one_handle, two_handles])
def test_a_wait_ends_when_somebody_writes(stores: Callable[[Path], tuple[Store, Store]], tmp_path: Path) -> None:
    idle, busy = stores(tmp_path)
    batch = idle.open_batch("book", "pages", DEFINITION, actor="ann").id
    waiting = threading.Thread(target=idle.wait, args=(batch, LONG), daemon=True)
    waiting.start()
    for number in range(1000):  # the first may come before the wait has begun
        busy.amend(batch, to_note("warned", b"%d" % number), actor="bob")
        waiting.join(timeout=0.3)
        if not waiting.is_alive():
            break
    assert not waiting.is_alive()
    for store in {idle, busy}:
        store.close()


def test_a_wait_reads_nothing_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(tmp_path / "state.db")
    batch = store.open_batch("book", "pages", DEFINITION, actor="ann").id
    read: list[str] = []
    monkeypatch.setattr(SqliteFile, "execute", lambda _self, sql, *_: read.append(sql))
    store.wait(batch, 0.001)
    for _ in range(100):
        store.now()
    assert read == []
    monkeypatch.undo()
    store.close()
