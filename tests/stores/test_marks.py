"""A mark is another one once somebody has written through another handle, here or in another process."""

from pathlib import Path

import pytest

from holdfast.core.course import to_note
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.file import SqliteFile
from holdfast.testing.conformance.kit import DEFINITION


def test_a_mark_changes_with_what_others_write_and_not_with_what_is_written_here(tmp_path: Path) -> None:
    idle, busy = SqliteStore(tmp_path / "state.db"), SqliteStore(tmp_path / "state.db")
    batch = idle.open_batch("book", "pages", DEFINITION, actor="ann").id
    busy.open_batch("book", "pages", DEFINITION, actor="bob")
    marks = [idle.mark(batch)]
    for number in range(3):
        idle.amend(batch, to_note("warned", b"mine %d" % number), actor="ann")
        assert idle.mark(batch) == marks[-1]
        busy.amend(batch, to_note("warned", b"theirs %d" % number), actor="bob")
        marks.append(idle.mark(batch))
        assert idle.mark(batch) == marks[-1]
    assert len({*marks}) == len(marks)
    idle.close()
    busy.close()


def test_a_mark_reads_nothing_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(tmp_path / "state.db")
    batch = store.open_batch("book", "pages", DEFINITION, actor="ann").id
    read: list[str] = []
    monkeypatch.setattr(SqliteFile, "execute", lambda _self, sql, *_: read.append(sql))
    for _ in range(100):
        store.mark(batch)
        store.now()
    assert read == []
    monkeypatch.undo()
    store.close()
