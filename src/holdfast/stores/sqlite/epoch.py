"""The epoch of a file, so that no fence is ever given out twice: not by a copy, not by a backup that was put back.

Fences grow in the file, and a file can be set back. So beside it stands a note of the last grant, and the file knows
that note: which one it is, and when it last changed, a time that the system keeps and no copy brings along. When the
two do not know each other, or the file is older than its note, an epoch begins: its fences start with the time in
microseconds, which is higher than any fence before, even one that nobody remembers. The note is written inside the
transaction that grants, without waiting for the disk: a note that was lost, or a grant that was, costs an epoch, and
that costs nothing.
"""

import os
import struct
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.stores.sqlite.file import SqliteFile
from holdfast.stores.sqlite.presence import disk_trouble
from holdfast.stores.sqlite.statements import load

SQL = load("statements.sql")
BEGINNING = 1_704_067_200_000_000
"""When time begins: 2024, in microseconds."""
LEAP = 1 << 40
"""More grants than a chunk can have: where the clock was set back, an epoch starts so much higher than the last."""
HIGHEST = 1 << 62
"""No fence is so high: a note that says so is damaged."""
NOTE = struct.Struct(">QQ")
"""The least fence of the epoch, and how many entries the journal had at the last grant."""
NOTHING = (0, 0)


class Epoch:
    """The epoch of an open file."""

    def __init__(self, file: SqliteFile) -> None:
        self._path = Path(f"{file.real}-fence")
        self._older = Path(f"{file.path}-fence")
        """A note beside a link to the file, where older releases had it; else the same one."""
        with _in_words(self._path):
            self._note = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._closing = weakref.finalize(self, os.close, self._note)  # of a store, too, that nobody closes
            status = file.path.stat()
            self._file = f"{status.st_dev}:{status.st_ino}"
            self.floor: int = self._settle(file)
            """Every fence of this epoch is higher."""

    def granted(self, db: SqliteFile) -> None:
        """Note that a grant was written, inside its transaction. Others may have begun a newer epoch since."""
        with _in_words(self._path):
            self._write(max(self.floor, self._read()[0]), db.last_rowid())
            db.execute(SQL["put_meta"], ("identity", self._identity()))

    def close(self) -> None:
        self._closing()
        self._note = -1

    def _settle(self, file: SqliteFile) -> int:
        """The epoch to go on with: the one that is written, or where that is in doubt a new one."""
        with file.reading() as db:
            floor, known, entries = _facts(db)
        if self._is_doubtful(floor, known, entries):
            with file.writing("open_batch") as db:
                floor, known, entries = _facts(db)
                if self._is_doubtful(floor, known, entries):
                    floor = self._begin(db, floor, known, entries)
        return floor

    def _is_doubtful(self, floor: int, known: str | None, entries: int) -> bool:
        """Whether fences may have been given out that the file knows nothing of."""
        return self._identity() != known or (floor, entries) < self._read()

    def _begin(self, db: SqliteFile, floor: int, known: str | None, entries: int) -> int:
        older = self._read_older()
        is_new = known is None and self._read() == older == NOTHING
        after = 0 if is_new else _after(max(floor, self._read()[0], older[0]))
        if entries + 1 < self._read()[1]:  # a power cut can take one entry: that of the grant at work
            db.execute(SQL["put_meta"], ("set_back", f"{self._read()[1]} {entries} {time.time():.6f}"))
        self._write(after, entries)
        db.execute(SQL["put_meta"], ("epoch", after))
        db.execute(SQL["put_meta"], ("identity", self._identity()))
        return after

    def _identity(self) -> str:
        """Which file and which note belong together."""
        note = os.fstat(self._note)
        return f"{self._file} {note.st_dev}:{note.st_ino}:{note.st_ctime_ns}"

    def _read(self) -> tuple[int, int]:
        return _unpack(os.pread(self._note, NOTE.size, 0))

    def _read_older(self) -> tuple[int, int]:
        try:
            return _unpack(self._older.read_bytes()[: NOTE.size])
        except FileNotFoundError:
            return NOTHING

    def _write(self, floor: int, entries: int) -> None:
        os.pwrite(self._note, NOTE.pack(floor, entries), 0)


@contextmanager
def _in_words(path: Path) -> Iterator[None]:
    """What the system says about the note is said as trouble of the store."""
    try:
        yield
    except OSError as error:
        raise disk_trouble(path, error) from error


def _unpack(note: bytes) -> tuple[int, int]:
    if len(note) < NOTE.size:
        return NOTHING
    floor, entries = NOTE.unpack(note)
    return (floor, entries) if floor < HIGHEST else NOTHING


def _after(floor: int) -> int:
    """A least fence that is higher than all fences of an epoch. No chunk is granted as often as microseconds pass."""
    now = time.time_ns() // 1000 - BEGINNING
    return now if now > floor else floor + LEAP


def _facts(db: SqliteFile) -> tuple[int, str | None, int]:
    """The epoch, the identity the file thinks it has, and the number of the last entry."""
    meta = dict(db.execute("SELECT name, value FROM meta"))
    entries = db.execute("SELECT coalesce(max(rowid), 0) FROM journal")[0][0]
    return int(meta.get("epoch", 0)), meta.get("identity"), int(entries)
