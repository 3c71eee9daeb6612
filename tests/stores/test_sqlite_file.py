"""The file of the SQLite store: private, safe, ours, or refused and left as it was."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from holdfast.core.errors import (
    CommitUnknown,
    HoldfastError,
    NotOurs,
    Refused,
    SchemaTooNew,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from holdfast.stores import filesystem
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite import file as sqlite_file
from holdfast.testing.conformance.kit import DEFINITION, Kit, new_item, skipped

BASE = apsw.vfs_names()[0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def fill(path: Path) -> None:
    """A store with a batch of ten items."""
    store = SqliteStore(path)
    batch = store.open_batch("book", "pages", DEFINITION, actor="ann")
    store.add_items(batch.id, [new_item(n) for n in range(10)])
    store.close()


# -- private and safe -----------------------------------------------------------------------------------------------


def test_nobody_else_may_read_the_store(path: Path) -> None:
    before = os.umask(0o000)
    try:
        store = SqliteStore(path.parent / "new" / "state.db")
    finally:
        os.umask(before)
    files = sorted(store.path.parent.iterdir())
    assert {file.name for file in files} >= {"state.db", "state.db-shm", "state.db-wal"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700
    store.close()


@pytest.mark.promise("B7", "P6")
def test_a_commit_waits_for_the_disk(path: Path) -> None:
    store = SqliteStore(path)
    settings = store._file.settings()
    assert settings["journal_mode"] == "wal"
    assert settings["synchronous"] == 2
    assert (settings["fullfsync"], settings["checkpoint_fullfsync"], settings["trusted_schema"]) == (1, 1, 0)
    store.close()


def test_the_file_says_what_it_is(path: Path) -> None:
    fill(path)
    db = apsw.Connection(str(path))
    assert db.pragma("application_id") == sqlite_file.APPLICATION_ID
    assert db.pragma("user_version") == len(sqlite_file._migrations())
    db.close()


def test_a_library_that_can_corrupt_the_log_is_refused(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")
    with pytest.raises(Refused, match="write-ahead log"):
        SqliteStore(path)
    assert not path.exists()


@pytest.mark.promise("C1", "P1")
def test_what_is_read_together_is_one_view_of_the_file(path: Path) -> None:
    fill(path)
    reader, writer = SqliteStore(path), SqliteStore(path)
    batch = reader.batches()[0].id
    with reader._file.reading() as db:
        before = db.execute("SELECT count(*) FROM items")[0][0]
        assert writer.add_items(batch, [new_item("another")]).added == 1
        assert db.execute("SELECT count(*) FROM items")[0][0] == before
    assert len(reader.items(batch)) == before + 1
    reader.close()
    writer.close()


@pytest.mark.promise("B11", "E12", "E13")
@pytest.mark.parametrize("sql", ["UPDATE journal SET body = x'00'", "DELETE FROM journal WHERE seq = 1"])
def test_the_journal_can_be_appended_to_and_not_changed(sql: str, path: Path) -> None:
    fill(path)
    db = apsw.Connection(str(path))
    before = db.execute("SELECT * FROM journal").fetchall()
    with pytest.raises(apsw.ConstraintError, match="append-only"):
        db.execute(sql)
    assert db.execute("SELECT * FROM journal").fetchall() == before
    db.close()


def test_a_network_file_system_is_refused(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr(filesystem, "kind_of", lambda _path: "nfs4")
    with pytest.raises(Refused, match=r"network file system \(nfs4\)"):
        SqliteStore(path)
    assert not path.exists()


# -- not ours -------------------------------------------------------------------------------------------------------


def another_database(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE songs (name TEXT)")
    db.close()


def another_application(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.execute("PRAGMA application_id = 252006674; CREATE TABLE songs (name TEXT)")
    db.close()


def damaged_first_page(path: Path) -> None:
    fill(path)
    with path.open("r+b") as file:
        file.write(b"\xff" * 64)


def cut_short(path: Path) -> None:
    fill(path)
    os.truncate(path, 5000)


STRANGERS: dict[str, Callable[[Path], object]] = {
    "five bytes of text": lambda path: path.write_bytes(b"hello"),
    "a long text": lambda path: path.write_bytes(b"To be, or not to be, that is the question\n" * 1000),
    "zeros": lambda path: path.write_bytes(bytes(8192)),
    "the database of another program": another_database,
    "a database that says whose it is": another_application,
    "a damaged first page": damaged_first_page,
    "a file that was cut short": cut_short,
}


@pytest.mark.promise("A8", "C18")
@pytest.mark.parametrize("stranger", STRANGERS)
def test_what_is_not_ours_is_refused_and_left_as_it_was(stranger: str, path: Path) -> None:
    STRANGERS[stranger](path)
    before = path.read_bytes()
    with pytest.raises(NotOurs, match="is not a Holdfast store"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    fill(path)


@pytest.mark.promise("C18")
def test_a_newer_format_is_refused_not_guessed_at(path: Path) -> None:
    fill(path)
    db = apsw.Connection(str(path))
    db.pragma("user_version", 99)
    db.close()
    before = path.read_bytes()
    with pytest.raises(SchemaTooNew, match="format 99"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_a_directory_is_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory"):
        SqliteStore(tmp_path)


def test_a_file_is_not_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is not a directory"):
        SqliteStore(tmp_path / "file" / "state.db")


# -- ends and broken disks -------------------------------------------------------------------------------------


def test_a_closed_store_says_so(path: Path) -> None:
    store = SqliteStore(path)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="was closed"):
        store.batches()


class Disk(apsw.VFS):
    """The file system, with a switch that makes it fail."""

    def __init__(self) -> None:
        self.failing: type[apsw.Error] | None = None
        self.unreadable = False
        super().__init__("disk", base=BASE, makedefault=True)

    def xOpen(self, name: "str | apsw.URIFilename | None", flags: list[int]) -> "File":  # noqa: N802 - apsw's name
        return File(self, name, flags)


class File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: "str | apsw.URIFilename | None", flags: list[int]) -> None:
        self.disk = disk
        super().__init__(BASE, name, flags)

    def xSync(self, flags: int) -> None:  # noqa: N802 - apsw's name
        if self.disk.failing is not None:
            raise self.disk.failing("the disk says no")
        super().xSync(flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802 - apsw's name
        if self.disk.unreadable:
            raise apsw.IOError("the disk says nothing")
        return super().xRead(amount, offset)


@pytest.fixture
def disk() -> Iterator[Disk]:
    made = Disk()
    yield made
    made.unregister()


@pytest.mark.promise("C9", "A8")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_commit_that_failed_on_its_way_to_the_disk_poisons_the_connection(disk: Disk, path: Path) -> None:
    store = SqliteStore(path)
    batch = store.open_batch("book", "pages", DEFINITION, actor="ann")
    disk.failing = apsw.IOError
    with pytest.raises(CommitUnknown, match="check the disk, then run again"):
        store.add_items(batch.id, [new_item("a")])
    disk.failing = None
    for call in (store.batches, lambda: store.add_items(batch.id, [new_item("b")])):
        with pytest.raises(StoreError, match="nothing more is written by this process"):
            call()


@pytest.mark.promise("C9")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_poisoned_connection_stands_in_nobodys_way(disk: Disk, path: Path) -> None:
    store = SqliteStore(path)
    batch = store.open_batch("book", "pages", DEFINITION, actor="ann")
    disk.failing = apsw.IOError
    with pytest.raises(CommitUnknown):
        store.add_items(batch.id, [new_item("a")])
    disk.failing = None
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE; ROLLBACK")
    other.close()


@pytest.mark.promise("C9", "B4")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_full_disk_loses_nothing_and_can_be_tried_again(disk: Disk, path: Path) -> None:
    store = SqliteStore(path)
    batch = store.open_batch("book", "pages", DEFINITION, actor="ann")
    disk.failing = apsw.FullError
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        store.add_items(batch.id, [new_item("a")])
    disk.failing = None
    assert store.items(batch.id) == []
    assert store.add_items(batch.id, [new_item("a")]).added == 1
    store.close()


@pytest.mark.promise("A8")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_disk_that_cannot_be_read_is_told_and_nothing_is_made_up(disk: Disk, path: Path) -> None:
    store = SqliteStore(path)
    batch = store.open_batch("book", "pages", DEFINITION, actor="ann")
    store.add_items(batch.id, [new_item(n, b"x" * 50_000) for n in range(10)])
    store.close()
    again = SqliteStore(path)
    disk.unreadable = True
    with pytest.raises(StoreUnavailable, match="check the disk, then run again"):
        again.items(batch.id)
    disk.unreadable = False
    with pytest.raises(StoreError, match="run again"):
        again.items(batch.id)
    assert len(SqliteStore(path).items(batch.id)) == 10


@pytest.mark.promise("C9")
def test_who_waits_too_long_for_another_process_is_told_how_to_find_it(path: Path) -> None:
    store = SqliteStore(path)
    store._file._db.set_busy_timeout(1)
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="fuser"):
        store.open_batch("book", "pages", DEFINITION, actor="ann")
    assert store.batches() == []
    other.execute("ROLLBACK")
    other.close()
    assert store.open_batch("book", "pages", DEFINITION, actor="ann").id == 1
    store.close()


@pytest.mark.promise("C1", "A8")
@pytest.mark.parametrize("trouble", [ValueError("a bug"), KeyboardInterrupt(), apsw.ConstraintError("a rule")])
def test_what_goes_wrong_inside_a_transaction_leaves_nothing_of_it(trouble: BaseException, path: Path) -> None:
    store = SqliteStore(path)

    def break_it() -> None:
        with store._file.writing("note") as db:
            db.execute("INSERT INTO meta (name, value) VALUES ('half', 'done')")
            raise trouble

    with pytest.raises((type(trouble), StoreError)):
        break_it()
    with store._file.reading() as db:
        assert db.execute("SELECT * FROM meta WHERE name = 'half'") == []
    store.open_batch("book", "pages", DEFINITION, actor="ann")
    store.close()


def test_a_file_that_is_damaged_later_is_told(path: Path) -> None:
    fill(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xaa" * (len(whole) - 4096))
    with pytest.raises(HoldfastError, match="is not a Holdfast store: it is damaged"):
        SqliteStore(path).items(SqliteStore(path).batches()[0].id)


@pytest.mark.promise("A8")
@pytest.mark.parametrize("spoil", ["UPDATE chunks SET done = 1", "UPDATE places SET state = 'lost'"])
def test_a_claim_is_not_made_from_counts_that_do_not_hold(spoil: str, path: Path) -> None:
    kit = Kit(lambda place, **given: SqliteStore(place / "state.db", **given), path.parent)
    kit.admit(*range(10))
    claim = kit.claim()
    kit.land(claim, [skipped(item) for item in kit.load(claim)[:5]], release=True)
    other = apsw.Connection(str(path))
    other.execute(spoil)
    other.close()
    with pytest.raises(NotOurs, match="a row cannot be read"):
        kit.claim(limit=1)


@pytest.mark.promise("C9")
def test_who_finds_the_file_busy_for_a_moment_waits(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """A process that is stopped while it writes makes SQLite give up at once on looking at the log."""
    fill(path)
    answers: list[bool | Exception] = [apsw.BusyError("locked"), apsw.BusyError("locked"), False]

    def is_damaged(_db: apsw.Connection) -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(sqlite_file.safety, "is_log_damaged", is_damaged)
    assert len(SqliteStore(path).batches()) == 1
    assert not answers


# -- interrupted ------------------------------------------------------------------------------------------------------


class Interrupted:
    """A connection at which Ctrl-C comes right after one statement, or right before it."""

    def __init__(self, db: apsw.Connection, statement: str, *, after: bool) -> None:
        self._db, self._statement, self._after = db, statement, after

    def __getattr__(self, name: str) -> object:
        return getattr(self._db, name)

    def execute(self, sql: str, *bindings: object) -> object:
        comes, self._statement = sql == self._statement, "" if sql == self._statement else self._statement
        if comes and not self._after:
            raise KeyboardInterrupt
        answer = self._db.execute(sql, *bindings)
        if comes:
            raise KeyboardInterrupt
        return answer


@pytest.mark.promise("A7", "P7")
@pytest.mark.parametrize(
    ("statement", "after", "lands"),
    [
        ("BEGIN IMMEDIATE", False, False),
        ("BEGIN IMMEDIATE", True, False),
        ("COMMIT", False, False),
        ("COMMIT", True, True),
    ],
)
def test_an_interrupt_leaves_no_transaction_open_wherever_it_comes(
    path: Path, statement: str, after: bool, lands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody could write before this process ends, which may be a notebook."""
    fill(path)
    store = SqliteStore(path)
    (batch,) = store.batches()
    monkeypatch.setattr(store._file, "_db", Interrupted(store._file._db, statement, after=after))
    with pytest.raises(KeyboardInterrupt):
        store.add_items(batch.id, [new_item(10)])
    other = apsw.Connection(str(path))
    other.set_busy_timeout(0)
    other.execute("BEGIN IMMEDIATE")
    other.execute("ROLLBACK")
    other.close()
    assert store.batches()[0].admitted == 10 + lands
    store.add_items(batch.id, [new_item(11)])
    assert store.batches()[0].admitted == 11 + lands
    store.close()
