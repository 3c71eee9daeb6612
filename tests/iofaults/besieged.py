"""A batch of the kill tests whose store and outputs stand on a disk that fails."""

import signal
from pathlib import Path
from typing import Any

from tests.faults import app
from tests.faults.scene import Scene
from tests.forkserver import ForkServer, Process
from tests.iofaults import shim
from tests.iofaults.pipeline import DISK
from tests.iofaults.siege import ADVICE, DEADLY

ITEMS = 9
"""Enough for every fate of the script."""
ERROR = "holdfast."


class Besieged(Scene):
    """A scene whose effects are written elsewhere, so that they tell the truth."""

    def __init__(self, forkserver: ForkServer, outside: Path, *, items: int = ITEMS, sabotage: str = "") -> None:
        self.outside = outside
        disk = outside / DISK
        disk.mkdir(parents=True, exist_ok=True)
        (disk / app.EFFECTS).symlink_to(outside / app.EFFECTS)
        super().__init__(forkserver, disk, items=items, sabotage=sabotage)

    def start(
        self, *argv: str, fault: str = "", what: str = "run", sabotage: str | None = None, limit: int = 0
    ) -> Process:
        (self.outside / shim.LOG).unlink(missing_ok=True)
        ends = ["--limit", str(limit)] if limit else []
        items = ["--items", str(self.items)] if what == "run" else []
        way = self.sabotage if sabotage is None else sabotage
        broken = ["--sabotage", way] if way else []
        plan = shim.plan(self.outside, self.folder, fault)
        return self.forkserver.start(
            "tests.iofaults.pipeline", [*ends, what, *items, *broken, *argv], cwd=self.outside, env=plan
        )

    def fail(self, mode: str, **how: Any) -> tuple[int, list[str]]:
        """Run on the failing disk; returns how it ended, and whether that was wrong."""
        process = self.start(**how)
        status = process.wait()
        if status != 0:
            self.crashed.add(process.pid)
        return status, wrong_end(process, status, mode)


def wrong_end(process: Process, status: int, mode: str) -> list[str]:
    """A process ends well, by the kill it was dealt, or with an error of ours that says what to do."""
    if mode in DEADLY:
        return [] if status in (0, -signal.SIGKILL) else [f"it was to be killed and ended with {status}: {process.err}"]
    if status == 0:
        return []
    last = process.err.strip().splitlines()[-1] if process.err.strip() else ""
    if status != 1 or not last.startswith(ERROR):
        return [f"it ended with {status} and an error that is nobody's: {last}"]
    return [] if ADVICE.search(last) else [f"its error does not say what to do: {last}"]
