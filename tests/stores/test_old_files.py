"""A file that an earlier version wrote: opened by this one it goes on, keeps everything, and audits clean."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.core import canonical, journal
from holdfast.core.model import BatchMode, State
from holdfast.runtime.operate import audit
from holdfast.stores import faults
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite import file as sqlite_file
from tests.forkserver import ForkServer
from tests.operations.world import Clock, World, done, failed, skipped

NEWER = {
    "batches": ("course", "ends_at", "expected", "closed_at"),
    "places": ("requeues", "deferred", "used", "wait"),
    "chunks": ("kind",),
}
"""Columns that files of the first format do not have, by table."""
TABLES = ("events", "receivers")


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of the first format, with a batch that is half-way through."""
    with monkeypatch.context() as patched:
        patched.setattr(
            journal, "Attempted", lambda **facts: ATTEMPTED(**{k: facts[k] for k in facts if k not in LATER})
        )
        return _old(tmp_path)


ATTEMPTED = journal.Attempted
LATER = ("deferred", "used", "wait", "excused")
"""Facts about an attempt that its journal does not have."""


def attempted(**facts: Any) -> journal.Attempted:
    return ATTEMPTED(**{name: fact for name, fact in facts.items() if name not in LATER})


def _old(tmp_path: Path) -> Path:
    made, clock = tmp_path / "new.db", Clock()
    store = SqliteStore(made, clock=clock)
    world = World(store, clock)
    world.add(*(f"page-{n}" for n in range(12)))
    world.add_invalid("bad")
    world.work(done, limit=5)
    world.work(lambda item: failed(item) if item.n % 2 else skipped(item), limit=4)
    world.claim(2)
    store.close()
    path = tmp_path / "old.db"
    _copy(made, path)
    return path


def _copy(made: Path, path: Path) -> None:
    """What stands in a file, as the first format has it: written by its own script, with the columns it knows."""
    db = apsw.Connection(str(path))
    db.execute("PRAGMA journal_mode = wal")
    for statement in sqlite_file._migrations()[0]:
        db.execute(statement)
    db.execute(f"PRAGMA application_id = {sqlite_file.APPLICATION_ID}")
    db.execute("PRAGMA user_version = 1")
    db.execute("ATTACH ? AS made", (str(made),))
    tables = [name for (name,) in db.execute("SELECT name FROM main.sqlite_schema WHERE type = 'table'")]
    for table in [name for name in tables if not name.startswith("sqlite_")]:
        columns = ", ".join(row[1] for row in db.execute(f"PRAGMA main.table_info({table})"))
        db.execute(f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM made.{table}")
    db.close()


def shape(path: Path) -> tuple[int, set[str]]:
    """The number of the format, and everything that has a name in it."""
    db = apsw.Connection(str(path))
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_schema")}
    for table in NEWER:
        names |= {f"{table}.{row[1]}" for row in db.execute(f"PRAGMA table_info({table})")}
    found = int(db.pragma("user_version")), names
    db.close()
    return found


def content(path: Path) -> dict[str, list[object]]:
    """Every row, with the columns that the first format has."""
    db = apsw.Connection(str(path))
    found: dict[str, list[object]] = {}
    for table in ("batches", "chunks", "items", "keys", "places", "outputs", "journal"):
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        kept = [name for name in columns if name not in NEWER.get(table, ())]
        found[table] = list(db.execute(f"SELECT {', '.join(kept)} FROM {table}"))
    db.close()
    return found


def test_the_old_file_is_of_the_first_format(old: Path) -> None:
    version, names = shape(old)
    assert version == 1
    assert not names & {*TABLES, *(f"{table}.{column}" for table, columns in NEWER.items() for column in columns)}


@pytest.mark.promise("A4", "A7", "C10", "C18", "P3")
def test_a_file_of_the_first_format_goes_on_and_keeps_everything(old: Path) -> None:
    before = content(old)
    clock = Clock()
    store = SqliteStore(old, clock=clock)
    (batch,) = store.batches("moby-dick")
    assert (batch.course, batch.ends_at, batch.sealed_at) == (BatchMode.OPEN, None, None)
    assert content(old) == before
    assert audit.verify(store, batch).findings == ()
    go_on(store, clock)
    store.close()
    assert shape(old)[0] == len(sqlite_file._migrations())


def go_on(store: SqliteStore, clock: Clock) -> None:
    """To its end, and sealed: what only the new format can hold."""
    clock.advance(3600.0)
    world = World(store, clock)
    for _ in range(2):
        world.finish()
        clock.advance(3600.0)
    states = {item.place.state for item in store.items(world.id)}
    assert states == {State.DONE, State.SKIPPED, State.DEAD}
    sealed = store.seal(world.id, actor="ada", reconciliation=canonical.encode({}))
    assert sealed.sealed_at == clock()
    assert audit.verify(store, world.batch).findings == ()


@pytest.fixture
def statements() -> int:
    """How many statements bring a file of the first format up to date."""
    return sum(len(script) for script in sqlite_file._migrations()[1:])


@pytest.mark.promise("A8", "B7", "P6")
def test_killed_at_every_statement_of_its_migration_the_file_is_whole(
    old: Path, statements: int, forkserver: ForkServer, tally: Callable[..., None]
) -> None:
    rows, old_shape, whole = content(old), shape(old), old.read_bytes()
    for hit in range(1, statements + 1):
        path = old.parent / f"{hit}.db"
        path.write_bytes(whole)
        fault = f"migrate.statement:{hit}:kill"
        process = forkserver.start("tests.stores.elsewhere", ["open_it", str(path)], cwd=old.parent, fault=fault)
        assert process.wait() == -signal.SIGKILL, process.err
        assert (content(path), shape(path)) == (rows, old_shape), "half of a migration"
        store = SqliteStore(path, clock=(clock := Clock()))
        assert content(path) == rows
        go_on(store, clock)
        store.close()
    tally(kills=statements)
    forkserver.clear()


def test_a_migration_that_fails_leaves_an_old_file_as_it_was(old: Path, statements: int) -> None:
    rows, old_shape = content(old), shape(old)
    for hit in range(1, statements + 1):
        faults.arm(faults.parse(f"migrate.statement:{hit}:raise"))
        try:
            with pytest.raises(OSError, match="injected"):
                SqliteStore(old)
        finally:
            faults.arm(None)
        assert (content(old), shape(old)) == (rows, old_shape)
