"""Safety of a SQLite file: a damaged log, files that vanish while they are open, copies that were put back, and a
writer that does not let go.

A damaged log: SQLite takes a log up to the first frame that is not whole and ignores the rest, which after a power cut
is right: the rest never became durable. But a transaction is begun only after the one before was synced. So where a
whole one ends behind the place at which SQLite stopped, and another begins after it, acknowledged work stands in the
log and cannot be read: that is told, not forgotten. Damage to the last transaction of a log looks like a power cut, and
cannot be told.

Presence: bytes written into a file without a name are lost with the process. Nobody but the last to close a database
removes its log and its index, so while one is open they stay: a name that is gone or belongs to another file now was
somebody's hand. A log may become shorter, but never shorter than the frames that the index counts.

The epoch: fences grow in the file, and a file can be set back. So beside it stands a note of the last grant, and the
file knows that note: which one it is, and when it last changed, a time that the system keeps and no copy brings along.
When the two do not know each other, or the file is older than its note, an epoch begins: its fences start with the time
in microseconds, which is higher than any fence before, even one that nobody remembers. The note is written inside the
transaction that grants, without waiting for the disk: a note that was lost, or a grant that was, costs an epoch, and
that costs nothing.

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
"""Of a log whose checksums are sums of little-endian numbers; with one more, of big-endian ones."""
HEADER = struct.Struct(">4I8s2I")
"""Magic, format, size of a page, number of the checkpoint; salts; checksum of all that."""
FRAME = struct.Struct(">2I8s2I")
"""Number of the page, size of the database where a transaction ends here (else 0); salts; checksum up to here."""
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
    """Return whether the log holds acknowledged work that SQLite did not take. Others may write meanwhile."""
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
    """Return all frames behind one, whatever they are worth."""
    found: list[Frame] = []
    at = HEADER.size + after * (FRAME.size + page_size)
    while (read := db.read("main", LOG, at, FRAME.size))[0]:
        page, end, salts, *sums = FRAME.unpack(read[1])
        found.append(Frame(at, page, end, salts, (sums[0], sums[1])))
        at += FRAME.size + page_size
    return found


def _begins_after(db: apsw.Connection, one: Frame, other: Frame, salts: bytes, magic: int, page_size: int) -> bool:
    """Return whether a transaction of this log ends with one frame, and the next begins with the other: its checksum
    goes on from there. What earlier power cuts left behind has the salts of this log, too, but does not go on."""
    if not (one.end and one.salts == other.salts == salts and _is_one_piece(one)):
        return False
    raw = db.read("main", LOG, other.at, FRAME.size + page_size)[1]
    return _add(one.sums, raw[:8] + raw[FRAME.size :], magic) == other.sums


def _is_one_piece(frame: Frame) -> bool:
    """Return whether size and salts stand in one sector. Where they do not, a power cut may leave new salts beside the
    size that was there before, which says nothing."""
    return (frame.at + 4) // SECTOR == (frame.at + 15) // SECTOR


def _is_copied_back(db: apsw.Connection, page_size: int) -> bool:
    """Return whether the database has what a log without a readable header says. A power cut can take the header only
    while a log is begun again, when all of the old one was copied back."""
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
    """SQLite's checksum of a log, carried on over some more bytes."""
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
        trouble = self._of_database() or (self._beside() if writing else None)
        return trouble and (self._of_database() or trouble)  # whoever removes all three begins somewhere

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

    def __init__(self, file: "SqliteFile") -> None:
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

    def granted(self, db: "SqliteFile") -> None:
        """Note that a grant was written, inside its transaction. Others may have begun a newer epoch since."""
        with _in_words(self._path):
            self._write(max(self.floor, self._read()[0]), db.last_rowid())
            db.execute(SQL["put_meta"], ("identity", self._identity()))

    def close(self) -> None:
        self._closing()
        self._note = -1

    def _settle(self, file: "SqliteFile") -> int:
        """Return the epoch to go on with: the one that is written, or where that is in doubt a new one."""
        with file.reading() as db:
            floor, known, entries = _facts(db)
        if self._is_doubtful(floor, known, entries):
            with file.writing("open_batch") as db:
                floor, known, entries = _facts(db)
                if self._is_doubtful(floor, known, entries):
                    floor = self._begin(db, floor, known, entries)
        return floor

    def _is_doubtful(self, floor: int, known: str | None, entries: int) -> bool:
        """Return whether fences may have been given out that the file knows nothing of."""
        return self._identity() != known or (floor, entries) < self._read()

    def _begin(self, db: "SqliteFile", floor: int, known: str | None, entries: int) -> int:
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
        """Return which file and which note belong together."""
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
    """Return a least fence that is higher than all fences of an epoch. No chunk is granted as often as microseconds
    pass."""
    now = time.time_ns() // 1000 - BEGINNING
    return now if now > floor else floor + LEAP


def _facts(db: "SqliteFile") -> tuple[int, str | None, int]:
    """Return the epoch, the identity the file thinks it has, and the number of the last entry."""
    meta = dict(db.execute("SELECT name, value FROM meta"))
    entries = db.execute("SELECT coalesce(max(rowid), 0) FROM journal")[0][0]
    return int(meta.get("epoch", 0)), meta.get("identity"), int(entries)


LOCKS = Path("/proc/locks")
WRITE_BYTE = 120
"""SQLite's writer locks this byte of the `-shm` file."""


def advice_about_writers(path: Path) -> str:
    """Return who it is and what to do about it, for a message that says the file is held."""
    pid = next(_writers(path), None)
    if pid is None:
        return f"another process; find it with `fuser {path}` (a stopped process blocks all writers), then run again"
    if _is_stopped(pid):
        return f"process {pid}, which is stopped: let it continue (`kill -CONT {pid}`) or end it, then run again"
    return f"process {pid}: wait until it has ended, or end it, then run again"


def _writers(path: Path) -> Iterator[int]:
    """Other processes that hold the write lock: lines such as `1: POSIX ADVISORY WRITE 4711 fe:01:2309 120 120`."""
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
