"""Safety of a SQLite file: a damaged log, files that vanish while they are open, restored copies, and a writer that
keeps its lock.

A damaged log: SQLite reads a log up to the first incomplete frame and ignores the rest. After a power cut that is
right, because the rest never became durable. But a transaction begins only after the previous one was synced. So if a
complete transaction ends beyond the point at which SQLite stopped, and another begins after it, the log contains
acknowledged work that cannot be read: that is reported. Damage to the last transaction of a log looks like a power cut
and cannot be detected.

Presence: bytes written to a file without a name are lost with the process. Only the last process to close a database
removes its log and its index, so they exist while one has it open: if a name is gone or belongs to another file, it was
changed from outside. A log may become shorter, but never shorter than the frames that the index counts.

The epoch: fences grow in the file, and a file can be set back. So a note of the last grant is kept beside it, and the
file stores the identity of that note and when it last changed, a time that the system keeps and no copy preserves. If
the two do not match, or the file is older than its note, a new epoch begins: its fences start at the time in
microseconds, which is higher than any fence before, even an unrecorded one. The note is written inside the transaction
that grants, without waiting for the disk: a lost note or a lost grant only begins a new epoch, which does no harm.

Writers are found without opening the file: closing it again would drop the locks of this process.
"""

import errno
import os
import struct
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import apsw

from holdfast.core.errors import StoreUnavailable
from holdfast.stores import filesystem
from holdfast.stores.sqlite.rows import load

if TYPE_CHECKING:
    from holdfast.stores.sqlite.file import SqliteFile


MAGIC = 0x377F0682
"""The first bytes of a log with little-endian checksums; plus one, of a log with big-endian ones."""
HEADER = struct.Struct(">4I8s2I")
"""Magic, format, page size, number of the checkpoint; salts; checksum of these."""
FRAME = struct.Struct(">2I8s2I")
"""Page number, database size if a transaction ends here (else 0); salts; checksum so far."""
SECTOR = 512
DATABASE, LOG = 0, 1
Sums = tuple[int, int]


class Frame(NamedTuple):
    """One page in a log."""

    at: int
    page: int
    end: int
    salts: bytes
    sums: Sums


def is_log_damaged(db: apsw.Connection) -> bool:
    """Return whether the log contains acknowledged work that SQLite did not read. Other processes may write
    meanwhile."""
    while True:
        taken, _ = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        if not _has_more(db, taken):
            return False
        if db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0] == taken:
            return True


def _has_more(db: apsw.Connection, taken: int) -> bool:
    is_there, raw = db.read("main", LOG, 0, HEADER.size)
    if not is_there:
        return False
    page_size = db.pragma("page_size")
    magic, _, _, _, salts, *sums = HEADER.unpack(raw)
    if magic in (MAGIC, MAGIC | 1) and _add((0, 0), raw[:24], magic) == tuple(sums):
        frames = _frames(db, taken, page_size)
        return any(_begins_after(db, one, other, salts, magic, page_size) for one, other in pairwise(frames))
    return taken == 0 and not _is_copied_back(db, page_size)


def _frames(db: apsw.Connection, after: int, page_size: int) -> list[Frame]:
    """Return all frames after one, valid or not."""
    found: list[Frame] = []
    at = HEADER.size + after * (FRAME.size + page_size)
    while (read := db.read("main", LOG, at, FRAME.size))[0]:
        page, end, salts, *sums = FRAME.unpack(read[1])
        found.append(Frame(at, page, end, salts, (sums[0], sums[1])))
        at += FRAME.size + page_size
    return found


def _begins_after(db: apsw.Connection, one: Frame, other: Frame, salts: bytes, magic: int, page_size: int) -> bool:
    """Return whether a transaction of this log ends with one frame and the next begins with the other: its checksum
    continues from there. Remains of earlier power cuts have the salts of this log as well, but do not continue."""
    if not (one.end and one.salts == other.salts == salts and _is_one_piece(one)):
        return False
    raw = db.read("main", LOG, other.at, FRAME.size + page_size)[1]
    return _add(one.sums, raw[:8] + raw[FRAME.size :], magic) == other.sums


def _is_one_piece(frame: Frame) -> bool:
    """Return whether size and salts are in one sector. If not, a power cut may leave new salts beside the old size,
    which proves nothing."""
    return (frame.at + 4) // SECTOR == (frame.at + 15) // SECTOR


def _is_copied_back(db: apsw.Connection, page_size: int) -> bool:
    """Return whether the database contains what is in a log without a readable header. A power cut can destroy the
    header only while a log is begun again, after all of the old one was copied back."""
    frames = _frames(db, 0, page_size)
    of_one_log = [frame for frame in frames if frame.salts == frames[0].salts]
    while of_one_log and not of_one_log[-1].end:
        of_one_log.pop()
    newest = {frame.page: frame.at + FRAME.size for frame in of_one_log if frame.page}
    return all(
        db.read("main", LOG, at, page_size)[1] == db.read("main", DATABASE, (page - 1) * page_size, page_size)[1]
        for page, at in newest.items()
    )


def _add(sums: Sums, data: bytes, magic: int) -> Sums:
    """Return SQLite's checksum of a log, continued over more bytes."""
    words = struct.unpack(f"{'>' if magic & 1 else '<'}{len(data) // 4}I", data)
    one, two = sums
    for even, odd in zip(words[::2], words[1::2], strict=True):
        one = (one + even + two) & 0xFFFFFFFF
        two = (two + odd + one) & 0xFFFFFFFF
    return one, two


Identity = tuple[int, int]


class Presence:
    """The files of an open database: itself, its log and its index."""

    def __init__(self, path: Path, real: Path, db: apsw.Connection) -> None:
        """Remember the files. `path` may be a link to `real`: the log and the index are beside the file, not the
        link."""
        self._path = path
        self._real = real
        self._db = db
        self._database = os.path.abspath(path)
        self._log = f"{os.path.abspath(real)}-wal"
        self._index = f"{os.path.abspath(real)}-shm"
        self._frame = FRAME.size + int(db.pragma("page_size"))
        self._known = [_identity(name) for name in (self._database, self._log, self._index)]

    def trouble(self, *, writing: bool) -> str | None:
        """Return what happened to the files and what to do, or None if they are unchanged. A reader needs only the
        database. If another process may write now, closing the database copies nothing back."""
        trouble = self._of_database() or (self._beside() if writing else None)
        return trouble and (self._of_database() or trouble)  # all three may be removed, one after the other

    def _of_database(self) -> str | None:
        if (found := _identity(self._database)) is None or found != self._known[0]:
            return self._leave(self._path, _fate(found), PUT_BACK)
        return None

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
        """Return whether the log still has its name: without it, a commit cannot be found again."""
        return _identity(self._log) == self._known[1]

    def _removed_log(self) -> str:
        """Copy back the content of the log that no longer has a name: this process can still read it."""
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
        """Return the number of frames in the log, or 0 if it is unknown."""
        try:
            return self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0]
        except apsw.Error:
            return 0


PUT_BACK = (
    ", and later work is not in it: stop every process that uses it, put it back together with its -wal, or a backup "
    "without an older -wal beside it; then run again"
)
SAVED = ": its content was copied into {}. Stop every process that uses it, do not put the log back, then run again"
STOP = ", and processes can no longer see each other's writes: stop every process that uses it, then run again"


def _fate(found: Identity | None) -> str:
    return "was removed or moved away" if found is None else "was replaced by another file"


def _identity(name: str) -> Identity | None:
    info = _look(name)
    return None if info is None else (info.st_dev, info.st_ino)


def _look(name: str) -> os.stat_result | None:
    """Return the status of a file; None if it does not exist."""
    try:
        return os.stat(name)  # noqa: PTH116 - making a Path takes longer than the call
    except FileNotFoundError:
        return None
    except OSError as error:
        raise disk_trouble(Path(name), error) from error


def disk_trouble(path: Path, error: OSError) -> StoreUnavailable:
    """Return an error with the system's answer about a file of the store, and what to do about it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreUnavailable(f"{path}: the disk is full; nothing was lost: free some space and run again")
    return StoreUnavailable(f"{path}: {error.strerror}; check the disk, then run again")


SQL = load("statements.sql")
BEGINNING = 1_704_067_200_000_000
"""The start of our time: 2024, in microseconds."""
LEAP = 1 << 40
"""More grants than a chunk can have: if the clock was set back, an epoch starts this much higher than the last."""
HIGHEST = 1 << 62
"""No fence is this high: a note that claims it is damaged."""
NOTE = struct.Struct(">QQ")
"""The lowest fence of the epoch, and the number of journal entries at the last grant."""
NOTHING = (0, 0)


class Epoch:
    """The epoch of an open file."""

    def __init__(self, file: "SqliteFile") -> None:
        self._path = Path(f"{file.real}-fence")
        self._older = Path(f"{file.path}-fence")
        """A note beside a link to the file, as older releases wrote it; else the same one."""
        with _in_words(self._path):
            self._note = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._closing = weakref.finalize(self, os.close, self._note)  # also of a store that is never closed
            status = file.path.stat()
            self._file = f"{status.st_dev}:{status.st_ino}"
            self.floor: int = self._settle(file)
            """Every fence of this epoch is higher."""

    def granted(self, db: "SqliteFile") -> None:
        """Note that a grant was written, inside its transaction. Another process may have begun a newer epoch since."""
        with _in_words(self._path):
            self._write(max(self.floor, self._read()[0]), db.last_rowid())
            db.execute(SQL["put_meta"], ("identity", self._identity()))

    def close(self) -> None:
        self._closing()
        self._note = -1

    def _settle(self, file: "SqliteFile") -> int:
        """Return the epoch to continue with: the recorded one, or a new one if that is in doubt."""
        with file.reading() as db:
            floor, known, entries = _facts(db)
        if self._is_doubtful(floor, known, entries):
            with file.writing("open_batch") as db:
                floor, known, entries = _facts(db)
                if self._is_doubtful(floor, known, entries):
                    floor = self._begin(db, floor, known, entries)
        return floor

    def _is_doubtful(self, floor: int, known: str | None, entries: int) -> bool:
        """Return whether fences may have been granted that the file does not know."""
        return self._identity() != known or (floor, entries) < self._read()

    def _begin(self, db: "SqliteFile", floor: int, known: str | None, entries: int) -> int:
        older = self._read_older()
        is_new = known is None and self._read() == older == NOTHING
        after = 0 if is_new else _after(max(floor, self._read()[0], older[0]))
        if entries + 1 < self._read()[1]:  # a power cut can lose one entry: that of the current grant
            db.execute(SQL["put_meta"], ("set_back", f"{self._read()[1]} {entries} {time.time():.6f}"))
        self._write(after, entries)
        db.execute(SQL["put_meta"], ("epoch", after))
        db.execute(SQL["put_meta"], ("identity", self._identity()))
        return after

    def _identity(self) -> str:
        """Return the identity of the file and the note that belong together."""
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
    """Report errors of the system about the note as trouble of the store."""
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
    """Return a floor above all fences of an epoch. No chunk is granted as often as microseconds pass."""
    now = time.time_ns() // 1000 - BEGINNING
    return now if now > floor else floor + LEAP


def _facts(db: "SqliteFile") -> tuple[int, str | None, int]:
    """Return the epoch, the identity that the file has stored, and the number of the last entry."""
    meta = dict(db.execute("SELECT name, value FROM meta"))
    entries = db.execute("SELECT coalesce(max(rowid), 0) FROM journal")[0][0]
    return int(meta.get("epoch", 0)), meta.get("identity"), int(entries)


LOCKS = Path("/proc/locks")
WRITE_BYTE = 120
"""SQLite's writer locks this byte of the `-shm` file."""


def advice_about_writers(path: Path) -> str:
    """Return the process that holds the write lock and what to do about it, to complete a message."""
    pid = next(_writers(path), None)
    if pid is None:
        return f"another process; find it with `fuser {path}` (a stopped process blocks all writers), then run again"
    if _is_stopped(pid):
        return f"process {pid}, which is stopped: let it continue (`kill -CONT {pid}`) or end it, then run again"
    return f"process {pid}: wait until it has ended, or end it, then run again"


def _writers(path: Path) -> Iterator[int]:
    """Yield other processes that hold the write lock, from lines such as `1: POSIX ADVISORY WRITE 4711 fe:01:2309 120
    120`."""
    try:
        inode = Path(f"{filesystem.behind(path)}-shm").stat().st_ino
        lines = LOCKS.read_text("ascii").splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        words = line.replace("->", "").split()
        if len(words) != 8 or words[3] != "WRITE" or words[5].rpartition(":")[2] != str(inode):
            continue
        pid, first, last = words[4], int(words[6]), words[7]
        if first <= WRITE_BYTE and (last == "EOF" or int(last) >= WRITE_BYTE) and int(pid) not in (0, os.getpid()):
            yield int(pid)


def _is_stopped(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return False
    return stat[stat.rfind(")") + 2 :][:1] in ("T", "t")
