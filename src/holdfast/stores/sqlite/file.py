"""The file behind the SQLite store: opened safely, checked, migrated, written in short transactions.

WAL with `synchronous=FULL`: a commit that returned survives a power cut. The file is private to its user. A write that
fails while it is made durable poisons the connection: it is unknown what reached the disk, so this process stops using
the file, and the next one opens it again.
"""

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import apsw
import msgspec

from holdfast.core.commitments import Draw
from holdfast.core.errors import (
    CommitUnknown,
    Damaged,
    NotOurs,
    Refused,
    SchemaTooNew,
    StoreError,
    StoreUnavailable,
    StoreUnusable,
    UsageError,
)
from holdfast.stores import faults, filesystem
from holdfast.stores.base import random_bytes
from holdfast.stores.sqlite import safety, upgrade
from holdfast.stores.sqlite.rows import UnreadableRow
from holdfast.stores.sqlite.safety import Presence, disk_trouble

T = TypeVar("T")
APPLICATION_ID = 0x484F4C44
SAFE_SQLITE = (3, 51, 3)
"""Older versions can corrupt a WAL that is reset while another connection reads."""
BUSY_MS = 60_000
CHECKPOINT_PAGES = 4_000
CACHE_KIB = 16_384
CHECK_DISK = "check the disk, then run again"
UNREADABLE = (ValueError, TypeError, LookupError, msgspec.DecodeError)
"""Exceptions from reading a row whose bytes are not what was written."""


class SqliteFile:
    """One connection to one database file, for all threads of this process."""

    def __init__(self, path: Path, draw: Draw = random_bytes) -> None:
        check_library()
        self.path = path
        self.real = filesystem.behind(path)
        """The file itself, if the path is a link to it: its log, index and note are beside this file."""
        self.waited = 0.0
        """How long the current transaction waited for the write lock."""
        self.point = ""
        """The prefix of the fault points of the current transaction."""
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._poison: str | None = None
        self._trouble: str | None = None
        new = _prepare(path, self.real)
        self._db = _connect(self.real)
        try:
            self._settle_identity(new)
            if patiently(lambda: safety.is_log_damaged(self._db)):
                raise Damaged(_damaged(path, "its log is damaged, and acknowledged work behind that cannot be read"))
            self._db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
            migrate(self._db, draw)
            self._presence = Presence(path, self.real, self._db)
        except apsw.NotADBError:
            raise Damaged(_damaged(path, "it is not a database, or its first page is damaged")) from None
        except apsw.CorruptError as error:
            raise Damaged(_damaged(path, f"it is damaged ({error})")) from None
        except apsw.BusyError:
            raise StoreUnavailable(f"{path} is held for too long by {safety.advice_about_writers(path)}") from None
        except apsw.Error as error:
            self._give_up()
            raise self._translate(error) from None

    def execute(self, sql: str, bindings: Any = ()) -> list[Any]:
        """Run one statement and fetch all of its rows. Only inside `reading` or `writing`."""
        return self._db.execute(sql, bindings).fetchall()

    def cursor(self, sql: str, bindings: Any = ()) -> Any:
        """Run one statement and return its rows one by one."""
        return self._db.execute(sql, bindings)

    def changes(self) -> int:
        """Return how many rows all statements of this connection have changed."""
        return self._db.total_changes()

    def mark(self) -> int:
        """Return a mark that changes once another connection, in this process or another, has written."""
        self._check_process()
        with self._lock:
            self._check()
            try:
                return int(self._db.pragma("data_version"))
            except apsw.Error as error:
                raise self._translate(error) from error

    def last_rowid(self) -> int:
        return self._db.last_insert_rowid()

    @contextmanager
    def reading(self) -> Iterator["SqliteFile"]:
        """Run several statements that see one state of the database."""
        self._check_process()
        with self._lock:
            self._check()
            self._check_presence(writing=False)
            try:
                self._db.execute("BEGIN")
                yield self
            except apsw.Error as error:
                raise self._translate(error) from error
            except UNREADABLE as error:
                raise self._unreadable(error) from error
            finally:
                self._rollback()

    @contextmanager
    def writing(self, name: str) -> Iterator["SqliteFile"]:
        """Run one transaction: durable when the block ends, rolled back when it raises. The write lock is taken at the
        start. `name` is the prefix of its fault points; the block may set another as `point`. Ctrl-C may interrupt
        anywhere, most often while waiting for the lock: the transaction must never stay open, or no other process could
        write."""
        self._check_process()
        with self._lock:
            self._check()
            self._check_presence()
            asked = time.monotonic()
            try:  # an interrupt right after the first statement must not lock out all others
                self._db.execute("BEGIN IMMEDIATE")
                self.waited, self.point = time.monotonic() - asked, name
                yield self
                name = self.point
                faults.reach(f"{name}.written")
                self._commit()
            except BaseException as error:
                self._rollback()
                if isinstance(error, apsw.Error):
                    raise self._translate(error) from error
                if isinstance(error, UnreadableRow | msgspec.DecodeError):
                    raise self._unreadable(error) from error
                raise
            if not self._presence.has_log():
                self._check_presence()
        faults.reach(f"{name}.after")

    def settings(self) -> dict[str, Any]:
        """Return the settings of this connection, for checks."""
        with self.reading():
            return {name: self._db.pragma(name) for name in ("journal_mode", *SETTINGS)}

    def close(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._db.close()
            self._poison = self._poison or f"{self.path} was closed"

    def _commit(self) -> None:
        try:
            self._db.execute("COMMIT")
        except apsw.BusyError as error:
            self._rollback()
            raise self._translate(error) from error
        except apsw.FullError as error:
            self._rollback()
            raise self._translate(error) from error
        except apsw.Error as error:
            self._poison = f"{self.path}: a commit failed while it was made durable ({error})"
            self._give_up()
            raise CommitUnknown(f"{self._poison}; {CHECK_DISK}") from error

    def _give_up(self) -> None:
        """Close at once. That keeps what was synced and drops the log with what was not: the system might show it to
        the next process, which would take it for durable and build on it."""
        with suppress(apsw.Error):
            self._db.close()

    def _rollback(self) -> None:
        if self._poison is not None:
            return
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except apsw.ConnectionClosedError:
            return  # it was closed by _give_up, whose caller raises the reason
        except apsw.Error as error:
            self._poison = f"{self.path}: a rollback failed ({error})"

    def _check_process(self) -> None:
        """Refuse a forked child. Checked before taking the lock, which a thread that the child lacks might hold
        forever."""
        if os.getpid() != self._pid:
            raise UsageError(
                f"{self.path} was opened by process {self._pid}: a forked child must not use it; start workers "
                "with `spawn`, or open the store again in the child"
            )

    def _check(self) -> None:
        if self._trouble is not None:
            raise Damaged(self._trouble)
        if self._poison is not None:
            raise StoreError(f"{self._poison}; nothing more is written by this process: {CHECK_DISK}")

    def _check_presence(self, *, writing: bool = True) -> None:
        """Refuse to continue in files that no longer have their names: anything written to them would be lost."""
        self._trouble = self._presence.trouble(writing=writing)
        if self._trouble is not None:
            self._give_up()
            raise Damaged(self._trouble)

    def _unreadable(self, error: Exception) -> Damaged:
        return Damaged(_damaged(self.path, f"it is damaged: a row cannot be read ({error})"))

    def _translate(self, error: apsw.Error) -> StoreError | NotOurs:
        if isinstance(error, apsw.BusyError | apsw.LockedError):
            return StoreUnavailable(
                f"{self.path} is held for more than {BUSY_MS / 1000:g} s by {safety.advice_about_writers(self.path)}"
            )
        if isinstance(error, apsw.FullError):
            return StoreUnavailable(
                f"{self.path}: the disk is full ({error}); nothing was lost: free some space and run again"
            )
        if isinstance(error, apsw.CorruptError | apsw.NotADBError):
            self._poison = f"{self.path} is damaged ({error})"
            return Damaged(_damaged(self.path, f"it is damaged ({error})"))
        if isinstance(error, apsw.ReadOnlyError):
            return StoreUnusable(f"{self.path} cannot be written: check its permissions")
        if isinstance(error, apsw.IOError):
            self._poison = f"{self.path}: reading or writing failed ({error})"
            return StoreUnavailable(f"{self._poison}; {CHECK_DISK}")
        if isinstance(error, apsw.CantOpenError):
            return StoreUnavailable(f"{self.path} cannot be opened ({error}); {CHECK_DISK}")
        return StoreError(f"{self.path}: {error}; check it with `holdfast doctor`, then run again")

    def _settle_identity(self, new: bool) -> None:
        """Refuse files that are not ours before anything is written to them."""
        self._db.execute("BEGIN")  # one consistent read: another process may be creating the file
        application = self._db.pragma("application_id")
        version = self._db.pragma("user_version")
        objects = self._db.execute("SELECT count(*) FROM sqlite_schema").get
        self._db.execute("ROLLBACK")
        if application not in (0, APPLICATION_ID) or (application == 0 and objects):
            raise NotOurs(_not_ours(self.path, "another program wrote it"))
        if version > len(_migrations()):
            raise SchemaTooNew(
                f"{self.path} was written by a newer Holdfast (format {version}, this one knows "
                f"{len(_migrations())}): upgrade it: `git pull` in its clone, then `pip install .`"
            )
        patiently(lambda: self._db.pragma("journal_mode", "wal"))
        for name, value in SETTINGS.items():
            self._db.pragma(name, value)


SETTINGS: dict[str, Any] = {
    "synchronous": "full",
    "fullfsync": 1,
    "checkpoint_fullfsync": 1,
    "foreign_keys": 0,
    "wal_autocheckpoint": CHECKPOINT_PAGES,
    "cache_size": -CACHE_KIB,
    "temp_store": "memory",
    "trusted_schema": 0,
}


def check_library() -> None:
    """Refuse a SQLite that can corrupt a database in WAL mode."""
    version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    if version < SAFE_SQLITE:
        raise Refused(
            f"SQLite {apsw.sqlite_lib_version()} can corrupt a write-ahead log; install apsw from its wheel, "
            f"which includes {'.'.join(map(str, SAFE_SQLITE))} or newer"
        )


def migrate(db: apsw.Connection, draw: Draw = random_bytes) -> None:
    """Bring the file to the newest format: all numbered scripts that it lacks, in one transaction."""
    newest = len(_migrations())
    if db.pragma("user_version") >= newest:
        return
    try:
        db.execute("BEGIN IMMEDIATE")
        for number, statements in list(enumerate(_migrations(), start=1))[db.pragma("user_version") :]:
            for statement in statements:
                db.execute(statement)
                faults.reach("migrate.statement")
            for _ in upgrade.COMPLETED_BY[number](db, draw) if number in upgrade.COMPLETED_BY else ():
                faults.reach("migrate.statement")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {newest}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    faults.reach("migrate.after")


@cache
def _migrations() -> list[list[str]]:
    folder = resources.files("holdfast.stores.sqlite").joinpath("migrations")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return [_split(file.read_text("utf-8")) for file in files]


def _split(script: str) -> list[str]:
    """Return the statements of a script; the body of a trigger keeps its semicolons."""
    plain = re.sub(r"--[^\n]*", "", script)
    statements, part = [], ""
    for piece in plain.split(";"):
        part += piece + ";"
        if apsw.complete(part):
            if part.strip(" \n;"):
                statements.append(part.strip())
            part = ""
    return statements


def _prepare(path: Path, real: Path) -> bool:
    """Create the file as private before SQLite opens it; return True if it is new. `real` is the target of the path."""
    if kind := filesystem.network_of(path):
        raise Refused(
            f"{path} is on a network file system ({kind}), where a write-ahead log is not safe: put the store on "
            "a local disk (--store or $HOLDFAST_STORE), or use a database server"
        )
    new, folders = True, {real.parent}
    try:
        folders |= _make_folder(path.parent)
        if _size_of(Path(f"{real}-wal")) and not _size_of(real):  # SQLite would discard that log
            raise Damaged(_damaged(path, f"it is empty or missing, but its log {real}-wal is not"))
        os.close(os.open(real, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        filesystem.check_is_no_folder(path)
        if not os.access(real, os.R_OK | os.W_OK):
            raise UsageError(f"{path} cannot be read and written by this user: check its permissions") from None
        new = False
    except PermissionError:
        raise UsageError(
            f"{path.parent} cannot be written by this user: choose another place with --store or $HOLDFAST_STORE"
        ) from None
    except OSError as error:
        if error.errno in filesystem.NO_PLACE:
            raise UsageError(
                f"no file can be created at {path} ({error.strerror}): choose another place with --store or "
                "$HOLDFAST_STORE"
            ) from None
        raise disk_trouble(path, error) from error
    try:
        if not _size_of(path):  # even if not new: the process that created it may have died before syncing
            for folder in folders:
                _sync_directory(folder)
    except OSError as error:
        raise disk_trouble(path, error) from error
    return new


def _size_of(path: Path) -> int:
    """Return the size of a file, or 0. One call, because a log disappears when another process closes the file."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _make_folder(folder: Path) -> set[Path]:
    """Create the folder and its missing parents; return the folders that have new entries."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return {each.parent for each in missing}
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"{folder} is not a directory: the store needs one") from None


def _sync_directory(folder: Path) -> None:
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _connect(path: Path) -> apsw.Connection:
    try:
        db = apsw.Connection(str(path), statementcachesize=200)
    except apsw.Error as error:
        raise StoreUnavailable(f"{path} cannot be opened ({error}); check the disk, then run again") from None
    db.set_busy_timeout(BUSY_MS)
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # a refused file keeps its log
    return db


def patiently(ask: Callable[[], T]) -> T:
    """Repeat a question until SQLite answers it: it fails at once on some while other processes open, close or write
    the file."""
    patience = time.monotonic() + BUSY_MS / 1000
    while True:
        try:
            return ask()
        except apsw.BusyError:
            if time.monotonic() > patience:
                raise
            time.sleep(0.005)


def _not_ours(path: Path, why: str) -> str:
    return (
        f"{path} is not a Holdfast store: {why}. It was left untouched; put back a backup of it, or name another file "
        "with --store or $HOLDFAST_STORE"
    )


def _damaged(path: Path, why: str) -> str:
    return f"{_not_ours(path, why)}; `holdfast import … --from-outputs` rebuilds it from output files"
