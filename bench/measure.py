"""Runs a case: every probe once a round, in a fresh process and folder, in an order that turns with the rounds."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench.case import Case, Probe, Reading

ROOT = Path(__file__).parents[1]
PATIENCE = 3_600.0  # seconds for one process
STRACE = ("strace", "-f", "--seccomp-bpf", "-c", "-e", "trace=fsync,fdatasync")

Readings = dict[str, list[Reading]]
Say = Callable[[str], None]


class ProbeFailedError(Exception):
    """The process of a probe did not give a reading; the message is its last line."""


def measure(case: Case, rounds: int, say: Say) -> tuple[Readings, dict[str, str]]:
    """Readings by probe, and why the missing ones are missing. A probe that failed once is not tried again."""
    readings: Readings = {probe.name: [] for probe in case.probes}
    failures: dict[str, str] = {}
    with ExitStack() as end:
        for turn, probe in plan(case, rounds):
            if probe.name in failures:
                continue
            say(f"{case.name}: round {turn + 1} of {rounds}: {probe.label}")
            try:
                readings[probe.name].append(take(probe, turn + 1, end if case.many_files else None))
            except ProbeFailedError as failure:
                failures[probe.name] = str(failure)
    return readings, failures


def plan(case: Case, rounds: int) -> Iterator[tuple[int, Probe]]:
    for turn in range(rounds):
        yield from ((turn, probe) for probe in turned(case.probes, turn))


def turned(probes: tuple[Probe, ...], turn: int) -> tuple[Probe, ...]:
    """Nobody is always first: the first process after a pause finds a quieter disk."""
    at = turn % len(probes)
    return probes[at:] + probes[:at]


def take(probe: Probe, seed: int, keep_until: ExitStack | None = None) -> Reading:
    if probe.traced and not shutil.which("strace"):
        raise ProbeFailedError("strace is not installed")
    with ExitStack() as now:
        place, desk = ((keep_until or now).enter_context(folder()) for _ in range(2))
        if probe.prepare:
            start(probe.prepare, probe, place, desk, seed)
        os.sync()  # what the last process left in the page cache is not this one's to write
        start(probe.run, probe, place, desk, seed, traced=probe.traced)
        reading = msgspec.json.decode((desk / "reading.json").read_bytes(), type=Reading)
        reading.disk_bytes = size_of(place)
        reading.syncs = syncs_in(desk / "strace.txt") if probe.traced else None
        return reading


def start(
    function: Callable[..., Any], probe: Probe, place: Path, desk: Path, seed: int, *, traced: bool = False
) -> None:
    name = f"{function.__module__}:{function.__qualname__}"
    arguments = json.dumps({"seed": seed, "count": probe.items, **probe.params})
    command = [sys.executable, "-m", "bench.child", name, str(place), str(desk / "reading.json"), arguments]
    if traced:
        command = [*STRACE, "-o", str(desk / "strace.txt"), *command]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired as late:
        raise ProbeFailedError(f"no answer within {PATIENCE:g} s") from late
    if done.returncode:
        raise ProbeFailedError(last_line(done.stderr) or f"exit code {done.returncode}")


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


@contextmanager
def folder() -> Iterator[Path]:
    """A fresh folder on the file system that is measured: BENCH_DIR, or build/bench below the repository."""
    parent = bench_dir()
    parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(dir=parent))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def bench_dir() -> Path:
    return Path(os.environ.get("BENCH_DIR") or ROOT / "build" / "bench")


def size_of(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


def syncs_in(summary: Path) -> int:
    """The calls in strace's table, whose columns are: % time, seconds, usecs/call, calls, [errors,] syscall."""
    lines = (line.split() for line in summary.read_text().splitlines())
    return sum(int(words[3]) for words in lines if words and words[-1] in {"fsync", "fdatasync"})
