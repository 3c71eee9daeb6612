"""Presence of an open store: whether its three names still belong to the files that were opened.

Bytes written into a file without a name are lost with the process. Nobody but the last to close a database removes its
log and its index, so while one is open they stay: a name that is gone or belongs to another file now was somebody's
hand. A log may become shorter, but never shorter than the frames that the index counts.
"""

import errno
import os
from pathlib import Path

import apsw

from holdfast.core.errors import StoreUnavailable
from holdfast.stores.sqlite.log import FRAME, HEADER

Identity = tuple[int, int]


class Presence:
    """The files of an open database: itself, its log and its index."""

    def __init__(self, path: Path, real: Path, db: apsw.Connection) -> None:
        """`path` may be a link to the file, `real`: the log and the index are beside the file, not beside the link."""
        self._path = path
        self._real = real
        self._db = db
        self._database = os.path.abspath(path)
        self._log = f"{os.path.abspath(real)}-wal"
        self._index = f"{os.path.abspath(real)}-shm"
        self._frame = FRAME.size + int(db.pragma("page_size"))
        self._known = [_identity(name) for name in (self._database, self._log, self._index)]

    def trouble(self, *, writing: bool) -> str | None:
        """Return what happened to the files and what to do about it, or None if they are where they were. A
        reader needs only the database. Where somebody else may write now, closing it copies nothing back any more."""
        if (found := _identity(self._database)) is None or found != self._known[0]:
            return self._leave(self._path, _fate(found), PUT_BACK)
        return self._beside() if writing else None

    def _beside(self) -> str | None:
        frames = self._frames()
        info = _look(self._log)
        if info is None:
            return self._removed_log()
        if (info.st_dev, info.st_ino) != self._known[1]:
            return self._leave(f"{self._real}-wal", "was replaced by another file", PUT_BACK)
        if frames and info.st_size < HEADER.size + frames * self._frame and frames == self._frames():
            return self._leave(f"{self._real}-wal", "was cut off", PUT_BACK)
        if (found := _identity(self._index)) is None or found != self._known[2]:
            return self._leave(f"{self._real}-shm", _fate(found), STOP)
        return None

    def has_log(self) -> bool:
        """Return whether the log that was written has its name still: all that a commit needs to be found again."""
        return _identity(self._log) == self._known[1]

    def _removed_log(self) -> str:
        """Copy back what is in the log that has no name any more: this process can still read it."""
        rest = SAVED.format(self._path) if self._is_copied_back() else PUT_BACK
        return f"{self._real}-wal was removed or moved away while it was in use{rest}"

    def _is_copied_back(self) -> bool:
        try:
            frames, copied = self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.Error:
            return False
        return frames == copied

    def _leave(self, name: Path | str, fate: str, rest: str) -> str:
        self._db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        return f"{name} {fate} while it was in use{rest}"

    def _frames(self) -> int:
        """Return how many frames the log has, or 0 where that cannot be told."""
        try:
            return self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0]
        except apsw.Error:
            return 0


PUT_BACK = (
    ", and what was done since is not in it: stop every process that works with it, put it back together with its "
    "-wal, or a backup without an older -wal beside it; then run again"
)
SAVED = ": what it held was copied into {}. Stop every process that works with it, do not put the log back, run again"
STOP = ", and processes cannot see each other's writes any more: stop every process that works with it, then run again"


def _fate(found: Identity | None) -> str:
    return "was removed or moved away" if found is None else "was replaced by another file"


def _identity(name: str) -> Identity | None:
    info = _look(name)
    return None if info is None else (info.st_dev, info.st_ino)


def _look(name: str) -> os.stat_result | None:
    """Return what has a name now; None if nothing has."""
    try:
        return os.stat(name)  # noqa: PTH116 - making a Path takes longer than the call
    except FileNotFoundError:
        return None
    except OSError as error:
        raise disk_trouble(Path(name), error) from error


def disk_trouble(path: Path, error: OSError) -> StoreUnavailable:
    """Return an error with what the system answered about a file of the store, and what to do about it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreUnavailable(f"{path}: the disk is full; nothing was lost: free some space and run again")
    return StoreUnavailable(f"{path}: {error.strerror}; check the disk, then run again")
