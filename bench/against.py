"""The command that compares this tree with an earlier revision: every probe of Holdfast in both, in alternating rounds.

    python -m bench.against REVISION [--only CASE] [--rounds 9]

Each side runs its own harness in its own tree. A round runs both, and the next one in the other order; the result is
the ratio within a round, so that a slow minute of the machine slows both. The table shows the median of the ratios with
the interval that contains the true median in 96 of 100 cases (of nine rounds: from the second to the eighth).
"""

import argparse
import io
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from bench.case import Probe, Reading, Size
from bench.cases import CASES
from bench.environment import ROOT
from bench.measure import PREPARED_SEED, folder, last_line

ROUNDS = 9
TREES = ROOT / "build" / "against"
BY_HAND = ("bare", "floor", "hand-written", "script", "naive", "atomic", "by hand")
"""Prefixes of the labels of what Holdfast is compared with."""


@dataclass(slots=True)
class Ratios:
    """After ÷ before, round by round."""

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    peak: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one process."""

    seconds: float
    cpu: float
    peak: float


def main() -> int:
    options = arguments()
    before, console = tree_of(options.revision), Console(width=120)
    table = Table("case", "probe", "time", "CPU", "peak memory", title=f"this tree ÷ {options.revision}")
    failed = 0
    for case, probe in chosen(options.only or list(CASES), Size(quick=options.quick)):
        console.print(f"{case}: {probe.label}", style="dim", highlight=False)
        found = measured(probe, before, options.rounds)
        if isinstance(found, str):
            table.add_row(case, probe.label, f"not measured: {found}", "", "")
            failed += 1
            continue
        table.add_row(case, probe.label, *(told(each) for each in (found.seconds, found.cpu, found.peak)))
        console.print(f"  time {told(found.seconds)}, CPU {told(found.cpu)}", style="dim", highlight=False)
    console.print(table)
    return 1 if failed else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.against", description=__doc__)
    parser.add_argument("revision", help="what git calls the earlier state")
    parser.add_argument("--only", action="append", choices=CASES, metavar="CASE", help="one case; may be repeated")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    return parser.parse_args()


def tree_of(revision: str) -> Path:
    """Return a folder with the files of a revision."""
    place = TREES / git("rev-parse", "--short", revision).decode().strip()
    if not place.exists():
        with tarfile.open(fileobj=io.BytesIO(git("archive", revision))) as files:
            files.extractall(place, filter="data")
    return place


def git(*arguments: str) -> bytes:
    """Return the output of git."""
    command = [shutil.which("git") or "git", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout


def chosen(names: Sequence[str], size: Size) -> Iterator[tuple[str, Probe]]:
    """Yield the probes of Holdfast itself, except those under strace, which are counted, not timed."""
    for name in names:
        for probe in CASES[name](size).probes:
            if probe.peer is None and not probe.traced and callable(probe.run) and not probe.label.startswith(BY_HAND):
                yield name, probe


def measured(probe: Probe, before: Path, rounds: int) -> Ratios | str:
    """Return the ratios of all rounds, or why there are none."""
    found = Ratios()
    try:
        with folder() as old, folder() as new:
            places = {before: old, ROOT: new}
            if probe.prepare is not None:
                for tree, place in places.items():
                    run(tree, probe.prepare, probe, place, PREPARED_SEED)
            for turn in range(1, rounds + 1):
                costs = {}
                for tree in (before, ROOT) if turn % 2 else (ROOT, before):
                    costs[tree] = cost_of(tree, probe, places[tree], turn)
                found.seconds.append(costs[ROOT].seconds / costs[before].seconds)
                found.cpu.append(costs[ROOT].cpu / costs[before].cpu)
                found.peak.append(costs[ROOT].peak / costs[before].peak)
    except RuntimeError as error:
        return str(error)
    return found


def cost_of(tree: Path, probe: Probe, prepared: Path, turn: int) -> Cost:
    with folder() as fresh:
        os.sync()
        place, seed = (prepared, PREPARED_SEED) if probe.prepare is not None else (fresh, turn)
        used = _cpu()
        reading = run(tree, probe.run, probe, place, seed)
        assert reading is not None
        return Cost(reading.seconds, _cpu() - used, reading.peak_mb)


def run(tree: Path, function: object, probe: Probe, place: Path, seed: int) -> Reading | None:
    """Call a function of a tree's own harness in a separate process."""
    module, name = function.__module__, function.__qualname__  # type: ignore[attr-defined]
    with folder() as desk:
        answer = desk / "reading.json"
        arguments = json.dumps({"seed": seed, "count": probe.items, **probe.params})
        command = [sys.executable, "-m", "bench.child", f"{module}:{name}", str(place), str(answer), arguments]
        done = subprocess.run(command, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree / "src")},
                              capture_output=True, text=True, check=False)  # fmt: skip
        if done.returncode:
            raise RuntimeError(last_line(done.stderr) or f"exit code {done.returncode}")
        return msgspec.json.decode(answer.read_bytes(), type=Reading) if answer.exists() else None


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def told(ratios: Sequence[float]) -> str:
    """Return the median, and the interval without the lowest and the highest."""
    ordered = sorted(ratios)
    inner = ordered[1:-1] if len(ordered) > 4 else ordered
    return f"{statistics.median(ordered):.3f} ({inner[0]:.3f} to {inner[-1]:.3f})"


if __name__ == "__main__":
    sys.exit(main())
