"""Whether the write-ahead log of a file was damaged after it had been written.

SQLite takes a log up to the first frame that is not whole and ignores the rest, which after a power cut is right: the
rest never became durable. But a transaction is begun only after the one before was synced. So where a whole one ends
behind the place at which SQLite stopped, and another begins after it, acknowledged work stands in the log and cannot be
read: that is told, not forgotten. Damage to the last transaction of a log looks like a power cut, and cannot be told.
"""

import struct
from itertools import pairwise
from typing import NamedTuple

import apsw

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


def is_damaged(db: apsw.Connection) -> bool:
    """Whether the log holds acknowledged work that SQLite did not take. Others may write meanwhile."""
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
    """All frames behind one, whatever they are worth."""
    found: list[Frame] = []
    at = HEADER.size + after * (FRAME.size + page_size)
    while (read := db.read("main", LOG, at, FRAME.size))[0]:
        page, end, salts, *sums = FRAME.unpack(read[1])
        found.append(Frame(at, page, end, salts, (sums[0], sums[1])))
        at += FRAME.size + page_size
    return found


def _begins_after(db: apsw.Connection, one: Frame, other: Frame, salts: bytes, magic: int, page_size: int) -> bool:
    """Whether a transaction of this log ends with one frame, and the next begins with the other: its checksum goes on
    from there. What earlier power cuts left behind has the salts of this log, too, but does not go on."""
    if not (one.end and one.salts == other.salts == salts and _is_one_piece(one)):
        return False
    raw = db.read("main", LOG, other.at, FRAME.size + page_size)[1]
    return _add(one.sums, raw[:8] + raw[FRAME.size :], magic) == other.sums


def _is_one_piece(frame: Frame) -> bool:
    """Whether size and salts stand in one sector. Where they do not, a power cut may leave new salts beside the size
    that was there before, which says nothing."""
    return (frame.at + 4) // SECTOR == (frame.at + 15) // SECTOR


def _is_copied_back(db: apsw.Connection, page_size: int) -> bool:
    """Whether the database has what a log without a readable header says. A power cut can take the header only while
    a log is begun again, when all of the old one was copied back."""
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
