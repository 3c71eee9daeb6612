"""The process of one reading: calls one function, adds its own peak memory, writes the reading as JSON.

Only the standard library is imported: this module also runs in the environments of the peers.
"""

import importlib
import json
import resource
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.case import Reading


def main(function: str, place: str, answer: str, arguments: str) -> None:
    reading = call(function, Path(place), **json.loads(arguments))
    if reading is None:  # a preparation has no reading
        return
    reading.peak_mb = peak_mb()
    Path(answer).write_text(json.dumps(asdict(reading)), encoding="utf-8")


def call(function: str, place: Path, **arguments: Any) -> Reading | None:
    module, _, name = function.partition(":")
    reading: Reading | None = getattr(importlib.import_module(module), name)(place, **arguments)
    return reading


def peak_mb() -> float:
    """Return the peak memory from VmHWM: the kernel's ru_maxrss also counts the parent's memory before exec."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    main(*sys.argv[1:])
