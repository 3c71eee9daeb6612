"""The measured machine: cores, versions, file system, and the cost of a sync. No names of hosts or paths."""

import os
import platform
import sqlite3
import time
from pathlib import Path
from statistics import median

import apsw
import msgspec

from bench.measure import folder

SYNCS = 200
PAGE = 4096


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    cores: int
    cpu: str
    memory_gb: int
    system: str
    file_system: str
    python: str
    apsw: str
    sqlite: str
    python_sqlite: str  # the one included in Python, which the peers use
    sync_ms: float

    def __str__(self) -> str:
        return (
            f"{self.cores} cores ({self.cpu}), {self.memory_gb} GB, {self.system}, {self.file_system}; "
            f"Python {self.python}, apsw {self.apsw}, SQLite {self.sqlite} (peers: {self.python_sqlite}); "
            f"write and fdatasync of 4 kB: {self.sync_ms:.2f} ms"
        )


def look() -> Machine:
    return Machine(
        cores=cores(),
        cpu=cpu(),
        memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)),
        system=f"{platform.system()} {platform.machine()}",
        file_system=file_system(),
        python=platform.python_version(),
        apsw=apsw.apsw_version(),
        sqlite=apsw.sqlite_lib_version(),
        python_sqlite=sqlite3.sqlite_version,
        sync_ms=sync_ms(),
    )


def cores() -> int:
    """Return the cores that this process may use, if the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or "unknown")


def file_system() -> str:
    """Return the type of the mount that holds the folder: the longest mount point that is its parent."""
    mounts = Path("/proc/mounts")
    with folder() as place:
        here = place.resolve()
        rows = [line.split() for line in mounts.read_text().splitlines()] if mounts.exists() else []
        found = [(len(row[1]), row[2]) for row in rows if here.is_relative_to(row[1])]
    return max(found)[1] if found else "unknown"


def sync_ms() -> float:
    """Return the median time to append one page and sync it: the minimum cost of a commit."""
    with folder() as place:
        handle = os.open(place / "sync", os.O_CREAT | os.O_WRONLY)
        try:
            return median(timed_append(handle) for _ in range(SYNCS)) * 1e3
        finally:
            os.close(handle)


def timed_append(handle: int) -> float:
    start = time.perf_counter()
    os.write(handle, os.urandom(PAGE))
    getattr(os, "fdatasync", os.fsync)(handle)
    return time.perf_counter() - start
