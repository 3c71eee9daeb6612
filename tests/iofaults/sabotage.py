"""Broken versions that only a failing disk brings to light. An oracle that passes any of them is worth nothing."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from holdfast.core.errors import StoreUnavailable
from holdfast.runtime.sinks import Evidence, Files, Provenance, disk
from holdfast.stores.sqlite.file import SqliteFile
from tests.faults.sabotage import acknowledge_before_commit


def failed_sync_ignored() -> None:
    """A commit that could not be made durable is answered like any other."""

    def commit(self: SqliteFile) -> None:
        try:
            self._db.execute("COMMIT")
        except apsw.IOError:
            self._rollback()

    SqliteFile._commit = commit  # type: ignore[method-assign]


def failed_sync_forgotten() -> None:
    """The error is told, and the connection is used again as if nothing had happened."""

    def commit(self: SqliteFile) -> None:
        try:
            self._db.execute("COMMIT")
        except apsw.Error as error:
            self._rollback()
            raise StoreUnavailable(f"{error}; run again") from error

    SqliteFile._commit = commit  # type: ignore[method-assign]


def log_left_unsynced() -> None:
    """What could not be synced stays in the log, for the next process to find."""

    def give_up(self: SqliteFile) -> None:
        return

    SqliteFile._give_up = give_up  # type: ignore[method-assign]


def outputs_in_place() -> None:
    """An output is written where the user reads it."""

    def stage(self: Files, place: Provenance, output: bytes, note: bytes = b"") -> Evidence:
        path = Path(self.template.path(place))
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        disk._write_all(handle, output + b"\n")
        os.fsync(handle)
        info = os.fstat(handle)
        os.close(handle)
        digest = disk.digest_of(path)
        return Evidence(str(path), str(path), info.st_size, info.st_mtime_ns, info.st_ino, digest, False)

    Files.stage = stage  # type: ignore[method-assign]


def short_writes_ignored() -> None:
    """What one call did not take of an output is forgotten."""

    def write_all(handle: int, data: bytes) -> None:
        os.write(handle, data)

    disk._write_all = write_all


def output_syncs_ignored() -> None:
    """An output counts as durable, whatever the disk said."""
    real = disk.sync_handle

    def sync_handle(handle: int) -> None:
        try:
            real(handle)
        except OSError:
            return

    disk.sync_handle = sync_handle


def full_disk_is_success() -> None:
    """A process that ran out of space ends as if it were done."""
    real = SqliteFile._translate

    def translate(self: SqliteFile, error: apsw.Error) -> Any:
        if isinstance(error, apsw.FullError):
            os._exit(0)
        return real(self, error)

    SqliteFile._translate = translate  # type: ignore[method-assign]


WAYS: dict[str, Callable[[], None]] = {
    way.__name__: way
    for way in (
        acknowledge_before_commit, failed_sync_ignored, failed_sync_forgotten, log_left_unsynced, outputs_in_place,
        short_writes_ignored, output_syncs_ignored, full_disk_is_success,
    )
}  # fmt: skip
