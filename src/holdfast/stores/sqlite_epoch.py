"""The epoch of a file, so that no fence is ever given out twice: not by a copy, not by a backup that was put back.

Fences grow in the file, and a file can be set back. So the file knows which one it is (device and inode), and beside it
stands a note of the last grant: when the file is another one, or is older than the note, its epoch is raised, and every
fence from then on is higher than any before. The note is written inside the transaction that grants, without waiting
for the disk: a note that is too high costs an epoch, one that was lost costs nothing.
"""

import os
import struct

from holdfast.stores.sqlite_file import SqliteFile
from holdfast.stores.statements import load

SQL = load("sqlite.sql")
SHIFT = 40
"""The fences of an epoch: 2**40 of them, more grants than a chunk can have."""
EPOCHS = 1 << 22
"""More than a file will see: a note that says so is damaged."""
NOTE = struct.Struct(">QQ")
"""The epoch, and how many entries the journal had at the last grant."""
NOTHING = (0, 0)


class Epoch:
    """The epoch of an open file."""

    def __init__(self, file: SqliteFile) -> None:
        self._note = os.open(f"{file.path}-fence", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        status = file.path.stat()
        identity = f"{status.st_dev}:{status.st_ino}"
        with file.reading() as db:
            epoch, known, entries = _facts(db)
        if identity != known or self._is_older(epoch, entries):
            with file.writing("open_batch") as db:
                epoch, known, entries = _facts(db)
                if identity != known or self._is_older(epoch, entries):
                    epoch = max(epoch, self._read()[0]) + 1 if known or self._read() != NOTHING else 0
                    db.execute(SQL["put_meta"], ("identity", identity))
                    db.execute(SQL["put_meta"], ("epoch", epoch))
                    self._write(epoch, entries)
        self._number = epoch
        self.floor = epoch << SHIFT
        """The least fence there is in this epoch."""

    def granted(self, db: SqliteFile) -> None:
        """Note that a grant was written, inside its transaction."""
        self._write(self._number, db.last_rowid())

    def close(self) -> None:
        if self._note >= 0:
            os.close(self._note)
            self._note = -1

    def _is_older(self, epoch: int, entries: int) -> bool:
        return (epoch, entries) < self._read()

    def _read(self) -> tuple[int, int]:
        note = os.pread(self._note, NOTE.size, 0)
        if len(note) < NOTE.size:
            return NOTHING
        epoch, entries = NOTE.unpack(note)
        return (epoch, entries) if epoch < EPOCHS else NOTHING

    def _write(self, epoch: int, entries: int) -> None:
        os.pwrite(self._note, NOTE.pack(epoch, entries), 0)


def _facts(db: SqliteFile) -> tuple[int, str | None, int]:
    """The epoch, the identity the file thinks it has, and the number of the last entry."""
    meta = dict(db.execute("SELECT name, value FROM meta"))
    entries = db.execute("SELECT coalesce(max(rowid), 0) FROM journal")[0][0]
    return int(meta.get("epoch", 0)), meta.get("identity"), int(entries)
