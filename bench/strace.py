"""The number of waits for the disk: fsync and fdatasync calls of a process and its threads, counted by strace."""

import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

SYNCS = frozenset({"fsync", "fdatasync"})


def traced(command: Sequence[str], report: Path) -> list[str]:
    """Return the same command under strace, which writes its table to the report."""
    return ["strace", "-f", "-c", "-e", f"trace={','.join(sorted(SYNCS))}", "-o", str(report), *command]


def syncs_in(report: Path) -> int:
    """Return the calls in strace's table, whose columns are: % time, seconds, usecs/call, calls, [errors,] syscall."""
    lines = (line.split() for line in report.read_text(encoding="utf-8").splitlines())
    return sum(int(words[3]) for words in lines if words and words[-1] in SYNCS)


@cache
def why_not() -> str | None:
    """Return why tracing is impossible here, or None: strace may be missing, or ptrace forbidden as in some
    containers."""
    try:
        done = subprocess.run(
            traced([sys.executable, "-c", ""], Path("/dev/null")), capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return "strace is not installed"
    lines = done.stderr.strip().splitlines()
    return f"strace does not work here: {lines[-1] if lines else done.returncode}" if done.returncode else None
