"""The run of a case: every probe once a round, in a fresh process and folder, in an order that rotates with the
rounds."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench import strace
from bench.case import Case, Probe, Reading
from bench.environment import ROOT, PeerMissingError, python_of

PATIENCE = 3_600.0  # seconds for one process
PREPARED_SEED = 1
REPORT = "strace.txt"

Readings = dict[str, list[Reading]]
Say = Callable[[str], None]
Act = tuple[str, Probe, Callable[[], None]]


class ProbeFailedError(Exception):
    """The process of a probe did not give a reading; the message is its last line."""


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that do not depend on the machine: the number of syncs, and whether a second run skips finished
    items."""

    syncs: float | None = None  # per item; None if tracing is impossible
    skips: bool | None = None  # None if a second run was not tried: it stores nothing, or cannot tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Readings and proofs by probe, and why missing ones are missing."""

    readings: Readings
    proofs: dict[str, Proof] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def measure(case: Case, rounds: int, say: Say) -> Measured:
    """Measure a case. A probe that failed once is not tried again."""
    found = Measured(readings={probe.name: [] for probe in case.probes})
    with ExitStack() as end:
        prepared = Prepared(end)
        for doing, probe, act in plan(case, rounds, found, prepared, end if case.many_files else None):
            if probe.name in found.failures:
                continue
            say(f"{case.name}: {doing}: {probe.label}")
            try:
                act()
            except ProbeFailedError as failure:
                found.failures[probe.name] = str(failure)
                say(f"{case.name}: NOT MEASURED: {probe.label}: {failure}")
    return found


def plan(case: Case, rounds: int, found: Measured, prepared: "Prepared", keep: ExitStack | None) -> Iterator[Act]:
    """Yield everything that is done for a case, in order: nothing is installed or prepared between two readings."""
    for probe in case.probes:
        yield "getting ready", probe, partial(prepared.make_ready, probe)
    for turn in range(rounds):
        for probe in turned(case.probes, turn):
            yield f"round {turn + 1} of {rounds}", probe, partial(read, probe, turn + 1, found, prepared, keep)
    for probe in case.probes if case.proved else ():
        yield "counting syncs, running again", probe, partial(prove, probe, found)


def turned(probes: tuple[Probe, ...], turn: int) -> tuple[Probe, ...]:
    """Return the probes rotated, so that none is always first: the first process after a pause finds a quieter disk."""
    at = turn % len(probes)
    return probes[at:] + probes[:at]


class Prepared:
    """The folders that probes find when they start. Each is made once, which can take a minute, and is used in all
    rounds.

    A copy would not do: a store notices that its file is a different one, and takes precautions.
    """

    def __init__(self, until: ExitStack) -> None:
        self.until = until
        self.made: dict[str, Path] = {}

    def make_ready(self, probe: Probe) -> None:
        interpreter_of(probe)
        if probe.prepare and name_of(probe) not in self.made:
            place, desk = (self.until.enter_context(folder()) for _ in range(2))
            start(probe.prepare, probe, place, desk, PREPARED_SEED)
            self.made[name_of(probe)] = place

    def folder_of(self, probe: Probe) -> Path | None:
        return self.made[name_of(probe)] if probe.prepare else None


def name_of(probe: Probe) -> str:
    """Return the name of a preparation; probes with the same preparation share it."""
    return f"{probe.prepare} {probe.items} {sorted(probe.params.items())}"


def read(probe: Probe, turn: int, found: Measured, prepared: Prepared, keep: ExitStack | None) -> None:
    if probe.traced and (reason := strace.why_not()):
        raise ProbeFailedError(reason)
    with ExitStack() as now:
        place = prepared.folder_of(probe) or (keep or now).enter_context(folder())
        desk = now.enter_context(folder())
        os.sync()  # this process must not write the page cache of the last one
        seed = PREPARED_SEED if probe.prepare else turn
        reading = start(probe.run, probe, place, desk, seed, traced=probe.traced)
        assert reading, probe
        reading.disk_bytes = size_of(place)
        reading.syncs = strace.syncs_in(desk / REPORT) if probe.traced else None
        found.readings[probe.name].append(reading)


def prove(probe: Probe, found: Measured) -> None:
    """Run once under strace, then run the same job a second time in the same place."""
    with folder() as place, folder() as desk:
        traced = strace.why_not() is None
        start(probe.run, probe, place, desk, PREPARED_SEED, traced=traced)
        syncs = strace.syncs_in(desk / REPORT) / probe.items if traced else None
        second = start(probe.again, probe, place, desk, PREPARED_SEED) if probe.again else None
        found.proofs[probe.name] = Proof(syncs=syncs, skips=second.worked == 0 if second else None)


def start(
    function: Callable[..., Any] | str, probe: Probe, place: Path, desk: Path, seed: int, *, traced: bool = False
) -> Reading | None:
    """Call the function in a separate process; a preparation has no reading."""
    answer = desk / "reading.json"
    name = function if isinstance(function, str) else f"{function.__module__}:{function.__qualname__}"
    arguments = json.dumps({"seed": seed, "count": probe.items, **probe.params})
    command = [str(interpreter_of(probe)), "-m", "bench.child", name, str(place), str(answer), arguments]
    if traced:
        command = strace.traced(command, desk / REPORT)
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired as late:
        raise ProbeFailedError(f"no answer within {PATIENCE:g} s") from late
    if done.returncode:
        raise ProbeFailedError(last_line(done.stderr) or f"exit code {done.returncode}")
    return msgspec.json.decode(answer.read_bytes(), type=Reading) if answer.exists() else None


def interpreter_of(probe: Probe) -> Path:
    if probe.peer is None:
        return Path(sys.executable)
    try:
        return python_of(probe.peer)
    except PeerMissingError as missing:
        raise ProbeFailedError(str(missing)) from missing


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


@contextmanager
def folder() -> Iterator[Path]:
    """Provide a fresh folder on the measured file system: BENCH_DIR, or build/bench below the repository."""
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
