"""Bringing a file up to date: killed at every statement, started by several at once, it is whole or not there."""

import multiprocessing
import os
import signal
import subprocess
import sys
from multiprocessing.synchronize import Barrier
from pathlib import Path

import apsw
import pytest

from holdfast.core.errors import HoldfastError
from holdfast.stores import faults, sqlite_file
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.conformance.kit import DEFINITION, new_item

STATEMENTS = sum(len(statements) for statements in sqlite_file._migrations())
FILES = len(sqlite_file._migrations())
OPEN = "import sys; from holdfast.stores.sqlite import SqliteStore; SqliteStore(sys.argv[1])"


def open_and_die(path: Path, fault: str) -> None:
    """Open the store in a process that is killed on the way."""
    killed = subprocess.run(
        [sys.executable, "-c", OPEN, path], env={**os.environ, "HOLDFAST_FAULT": fault}, check=False
    )
    assert killed.returncode == -signal.SIGKILL, f"{fault} was never reached"


def works(path: Path) -> bool:
    store = SqliteStore(path)
    batch = store.open_batch("book", "pages", DEFINITION, actor="ann")
    added = store.add_items(batch.id, [new_item("a")]).added
    store.close()
    return added == 1


@pytest.mark.promise("A8", "B7", "P6")
@pytest.mark.parametrize("point", [*(f"migrate.statement:{n}" for n in range(1, STATEMENTS + 1)), "migrate.after:1"])
def test_a_migration_killed_at_every_statement_is_done_again(point: str, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    open_and_die(path, f"{point}:kill")
    whole = point.startswith("migrate.after")
    db = apsw.Connection(str(path))
    assert db.pragma("user_version") == (FILES if whole else 0)
    assert bool(db.execute("SELECT count(*) FROM sqlite_schema").get) == whole
    db.close()
    assert works(path)


@pytest.mark.parametrize("point", range(1, STATEMENTS + 1))
def test_a_migration_that_fails_leaves_nothing_behind(point: int, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    faults.arm(faults.parse(f"migrate.statement:{point}:raise"))
    try:
        with pytest.raises((OSError, HoldfastError)):
            SqliteStore(path)
    finally:
        faults.arm(None)
    db = apsw.Connection(str(path))
    assert db.execute("SELECT count(*) FROM sqlite_schema").get == 0
    db.close()
    assert works(path)


def test_a_trigger_is_one_statement() -> None:
    script = "CREATE TABLE a (b); -- one; two\nCREATE TRIGGER t BEFORE UPDATE ON a\nBEGIN SELECT 1; SELECT 2; END;"
    assert [s.split()[1] for s in sqlite_file._split(script)] == ["TABLE", "TRIGGER"]


ROUNDS = 20


def open_all(folder: str, barrier: Barrier, number: int) -> None:
    """Open one fresh file after the other, each at the same moment as the other processes, and admit an item."""
    for turn in range(ROUNDS):
        barrier.wait()
        store = SqliteStore(Path(folder) / f"{turn}.db")
        batch = store.open_batch("book", "pages", DEFINITION, actor=f"p{number}")
        store.add_items(batch.id, [new_item(f"{number}"), new_item("shared")])
        store.close()


@pytest.mark.promise("C1", "P7")
def test_processes_that_open_a_fresh_file_at_once_share_it(tmp_path: Path) -> None:
    processes = 3
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(processes)
    racers = [spawn.Process(target=open_all, args=(str(tmp_path), barrier, number)) for number in range(processes)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0] * processes
    for turn in range(ROUNDS):
        store = SqliteStore(tmp_path / f"{turn}.db")
        (batch,) = store.batches()
        assert {row.key for row in store.records(batch.id)} == {"0", "1", "2", "shared"}
        assert batch.admitted == 4
        store.close()
