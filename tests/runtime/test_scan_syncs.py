"""What scans ask of the state file, counted at the file itself: statements, transactions, and what stays untouched."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.runtime.engine.assignment import Latch
from holdfast.runtime.scan.tick import Ended
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.rows import Rows
from tests.runtime.support import wait_for
from tests.runtime.test_following import Counting

PARTS = 5


@contextmanager
def statements(store: SqliteStore) -> Iterator[list[str]]:
    """Everything that SQLite is told meanwhile."""
    told: list[str] = []
    connection = store._file._db

    def note(_: Any, sql: str, __: Any) -> bool:
        told.append(sql.strip())
        return True

    connection.exec_trace = note
    try:
        yield told
    finally:
        connection.exec_trace = None


def follow(store: Any, rows: list[int]) -> hf.Scan:
    scan = hf.Follow("orders", Rows(rows), store=store)

    @scan.handler
    def add(some: list[int], acc: int) -> int:
        return acc + len(some)

    return scan


def fingerprint(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of everything beside the state file; the shared memory of readers is not on any disk."""
    files = (file for file in folder.glob("state.db*") if not file.name.endswith("-shm"))
    return {file.name: (file.stat().st_size, file.stat().st_mtime_ns) for file in files}


def test_a_tick_with_nothing_new_is_one_read_of_one_statement_and_touches_no_file(folder: Path) -> None:
    store = SqliteStore(folder / "state.db")
    counting, rows = Counting(store), [1, 2, 3]
    scan = follow(counting, rows)
    assert scan.tick().rows == 3
    before, changes = fingerprint(folder), store._file._db.total_changes()
    for _ in range(3):
        counting.calls.clear()
        with statements(store) as told:
            assert scan.tick().ended is Ended.NOTHING_NEW
        assert counting.calls == ["checkpoints"]
        assert [sql.split()[0].upper() for sql in told] == ["BEGIN", "SELECT", "ROLLBACK"], told
    assert (fingerprint(folder), store._file._db.total_changes()) == (before, changes)
    rows.append(4)
    with statements(store) as told:
        assert scan.tick().rows == 1
    assert sum(sql.upper().startswith("COMMIT") for sql in told) == 2, "a claim, and the checkpoint with the release"
    assert fingerprint(folder) != before
    store.close()


class Gathering:
    """A store whose first write of checkpoints waits until every range has come to its own."""

    def __init__(self, store: SqliteStore, waiting: list[Latch]) -> None:
        self._store, self._waiting = store, waiting
        self.groups: list[int] = []
        self.transactions: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, commits: Any) -> Any:
        if not self.groups:
            wait_for(lambda: len(self._waiting) == PARTS)
        self.groups.append(len(commits))
        with statements(self._store) as told:
            answer = self._store.commit(commits)
        self.transactions.append(sum(sql.upper().startswith("COMMIT") for sql in told))
        return answer


def test_five_partitions_that_come_to_their_checkpoints_at_once_share_their_syncs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is first is written at once; what comes while that is on its way is one transaction more, not four."""
    waiting: list[Latch] = []
    real = Latch.wait

    def wait(self: Latch) -> bool:
        waiting.append(self)
        return real(self)

    monkeypatch.setattr(Latch, "wait", wait)
    store = SqliteStore(folder / "state.db")
    gathering = Gathering(store, waiting)
    scan = hf.Scan("totals", Rows(list(range(PARTS * 10)), page=10), store=gathering, every=5, partitions=PARTS)  # type: ignore[arg-type]
    together = threading.Barrier(PARTS)

    @scan.handler
    def add(rows: list[int], acc: int) -> int:
        if len(waiting) < PARTS:
            together.wait(20)
        return acc + len(rows)

    scan.converge(sum)
    assert scan.run(progress=False).result == PARTS * 10
    assert sum(gathering.groups[:2]) >= PARTS, gathering.groups
    assert set(gathering.transactions) == {1}, "however many ranges are written, it is one transaction, and one sync"
    assert len(gathering.groups) < 2 * PARTS, "five checkpoints and five completions"
    store.close()
