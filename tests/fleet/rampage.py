"""A fleet under fire: processes on one file, killed and stopped at random moments and started again, to the end."""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from holdfast.stores.sqlite.file import CHECKPOINT_PAGES
from tests.faults import app
from tests.faults.scene import Scene
from tests.faults.world import KILLED
from tests.forkserver import Process

FLEET = 3
LIVES = 0.15
"""The longest life of a process, in seconds; the start of one takes a good part of it."""
LEASE = 0.2
"""Where processes are stopped, not only killed."""
NAPS = (0.1, 0.6)
"""How long a process is stopped: mostly past its lease."""
STOPS = 0.3
"""The share of stops among what happens to processes."""
HANDLES = 40
"""More open files than a process ever needs."""
LOG_BYTES = 2 * CHECKPOINT_PAGES * 4096
"""The log is folded into the database long before it is this large, whoever died over it."""


class Rampage:
    """Random faults for one batch, drawn from a seed. What a machine makes of them differs from run to run."""

    def __init__(self, scene: Scene, seed: int, *, stops: bool = True) -> None:
        self.scene = scene
        self.chance = random.Random(seed)
        self.stops = stops
        self.counts: Counter[str] = Counter()
        self.asleep: list[tuple[float, Process]] = []
        self.complaints: list[str] = []
        self.most: Counter[str] = Counter()

    def go_on_until(self, enough: Callable[[Counter[str]], bool]) -> None:
        """Keep the fleet at its size and strike at it, until that is enough or everything is done."""
        fleet = [self._start() for _ in range(FLEET)]
        while not enough(self.counts):
            time.sleep(self.chance.uniform(0.0, LIVES / FLEET))
            self._wake()
            if any(process.has_ended_within(0.0) and process.wait() == 0 for process in fleet):
                break  # the batch is complete
            place = self.chance.randrange(FLEET)
            victim = fleet[place]
            self._look_at(victim)
            if self.stops and victim.is_running and self.chance.random() < STOPS:
                self._stop(victim)
            else:
                self._kill(victim)
            fleet[place] = self._start()
        for process in [*fleet, *(sleeper for _, sleeper in self.asleep)]:
            if process.is_running:
                self._kill(process)

    def finish(self) -> list[str]:
        """A clean run; who died alone too often is tried again; then every complaint, the oracle's last."""
        self.scene.finish()
        redriven = self.scene.start("--code", KILLED, what="redrive")
        assert redriven.wait() == 0, redriven.err
        if redriven.report["changed"]:
            self.counts["buried with their process"] += redriven.report["changed"]
            self.scene.finish()
        return self.complaints + self.scene.complaints()

    def _start(self) -> Process:
        self.counts["processes"] += 1
        process = self.scene.start("--lease", f"{LEASE}s" if self.stops else "30s", "--pace", "0.002")
        if self.stops:
            self.scene.crashed.add(process.pid)  # with a short lease even a slow moment is a reason to take over
        return process

    def _look_at(self, process: Process) -> None:
        """Files are closed again, and the log does not grow for ever."""
        try:
            handles = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
        except OSError:
            handles = 0  # it has ended, or this system does not tell
        log = self.scene.folder / f"{app.STORE}-wal"
        size = log.stat().st_size if log.exists() else 0
        self.most["handles"], self.most["log bytes"] = (
            max(self.most["handles"], handles),
            max(self.most["log bytes"], size),
        )
        if handles > HANDLES or size > LOG_BYTES:
            self.complaints.append(f"process {process.pid} has {handles} files open, the log has {size} bytes")

    def _kill(self, victim: Process) -> None:
        was_running = victim.is_running
        self.scene.crashed.add(victim.pid)
        status = victim.kill()
        self.counts["kills"] += was_running and status == -signal.SIGKILL
        assert status in (0, -signal.SIGKILL), f"it ended by itself with {status}\n{victim.err}"

    def _stop(self, victim: Process) -> None:
        victim.signal(signal.SIGSTOP)
        self.counts["stops"] += 1
        self.asleep.append((time.monotonic() + self.chance.uniform(*NAPS), victim))

    def _wake(self) -> None:
        now = time.monotonic()
        for until, sleeper in list(self.asleep):
            if until <= now:
                sleeper.signal(signal.SIGCONT)
                self.asleep.remove((until, sleeper))
                self.counts["woken"] += 1
