"""Bringing a file up to date: killed at every statement, it is whole or not there."""

import signal
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from holdfast.core.errors import HoldfastError
from holdfast.stores import faults
from holdfast.stores.sqlite import SqliteStore, upgrade
from holdfast.stores.sqlite import file as sqlite_file
from holdfast.testing.conformance.kit import DEFINITION, new_item
from tests.forkserver import ForkServer


def statements_of_a_new_file() -> int:
    """Every statement of every script, and the steps that are no SQL."""
    hits: list[str] = []
    faults.arm(hits.append)
    try:
        sqlite_file.migrate(apsw.Connection(":memory:"))
    finally:
        faults.arm(None)
    return hits.count("migrate.statement")


STATEMENTS = statements_of_a_new_file()


def test_every_statement_and_every_step_can_be_the_last() -> None:
    steps = sum(1 for number in upgrade.COMPLETED_BY if number <= len(sqlite_file._migrations()))
    assert steps >= 1
    assert sum(len(statements) for statements in sqlite_file._migrations()) + steps <= STATEMENTS


def status_after(forkserver: ForkServer, path: Path, fault: str) -> int:
    """How a process ended that opened the store and may have been killed on the way."""
    process = forkserver.start("tests.stores.elsewhere", ["open_it", str(path)], cwd=path.parent, fault=fault)
    return process.wait()


def works(path: Path) -> bool:
    store = SqliteStore(path)
    batch = store.open_batch("book", "pages", DEFINITION, actor="ann")
    added = store.add_items(batch.id, [new_item("a")]).added
    store.close()
    return added == 1


@pytest.mark.promise("A8", "B7", "P6")
def test_a_migration_killed_at_every_statement_is_done_again(
    forkserver: ForkServer, tmp_path: Path, tally: Callable[..., None]
) -> None:
    for hit in range(1, STATEMENTS + 1):
        path = tmp_path / f"{hit}.db"
        assert status_after(forkserver, path, f"migrate.statement:{hit}:kill") == -signal.SIGKILL
        assert format_of(path) == (0, 0)
        assert works(path)
    assert status_after(forkserver, tmp_path / "none.db", f"migrate.statement:{STATEMENTS + 1}:kill") == 0
    tally(kills=STATEMENTS)
    forkserver.clear()


@pytest.mark.promise("B7", "C10")
def test_a_migration_that_is_done_stays_done_though_nobody_heard_of_it(forkserver: ForkServer, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    assert status_after(forkserver, path, "migrate.after:1:kill") == -signal.SIGKILL
    version, objects = format_of(path)
    assert version >= 1
    assert objects
    assert works(path)
    forkserver.clear()


def format_of(path: Path) -> tuple[int, int]:
    """The number of the format, and how many tables and indexes there are."""
    db = apsw.Connection(str(path))
    found = db.pragma("user_version"), db.execute("SELECT count(*) FROM sqlite_schema").get
    db.close()
    return found


@pytest.mark.parametrize("point", range(1, STATEMENTS + 1))
def test_a_migration_that_fails_leaves_nothing_behind(point: int, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    faults.arm(faults.parse(f"migrate.statement:{point}:raise"))
    try:
        with pytest.raises((OSError, HoldfastError)):
            SqliteStore(path)
    finally:
        faults.arm(None)
    assert format_of(path) == (0, 0)
    assert works(path)


def test_a_trigger_is_one_statement() -> None:
    script = "CREATE TABLE a (b); -- one; two\nCREATE TRIGGER t BEFORE UPDATE ON a\nBEGIN SELECT 1; SELECT 2; END;"
    assert [s.split()[1] for s in sqlite_file._split(script)] == ["TABLE", "TRIGGER"]
