"""Who holds the write lock of a database that stays busy, as far as the system tells without touching the file.

The file is not opened for it: closing it again would drop the locks of this process.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from holdfast.stores import filesystem

LOCKS = Path("/proc/locks")
WRITE_BYTE = 120
"""SQLite's writer locks this byte of the `-shm` file."""


def advice(path: Path) -> str:
    """Who it is and what to do about it, for a message that says the file is held."""
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
