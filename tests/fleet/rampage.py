"""A fleet under fire: processes on one file, killed and stopped at random moments and started anew, to the end."""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable

from tests.faults.nursery import Process
from tests.faults.scene import Scene
from tests.faults.world import KILLED

FLEET = 3
LIVES = 0.15
"""The longest life of a process, in seconds; the start of one takes a good part of it."""
NAPS = 0.5
"""The longest a process is stopped. Leases are shorter."""


class Rampage:
    """Random faults for one batch, drawn from a seed. What a machine makes of them differs from run to run."""

    def __init__(self, scene: Scene, seed: int, *, stops: bool = True) -> None:
        self.scene = scene
        self.chance = random.Random(seed)
        self.stops = stops
        self.counts: Counter[str] = Counter()
        self.asleep: list[tuple[float, Process]] = []

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
            if self.stops and victim.is_running and self.chance.random() < 0.2:
                self._stop(victim)
            else:
                self._kill(victim)
            fleet[place] = self._start()
        for process in [*fleet, *(sleeper for _, sleeper in self.asleep)]:
            if process.is_running:
                self._kill(process)

    def finish(self) -> list[str]:
        """A clean run; who died alone too often is tried again; then every complaint of the oracle."""
        self.scene.finish()
        redriven = self.scene.start("--code", KILLED, what="redrive")
        assert redriven.wait() == 0, redriven.err
        if redriven.report["changed"]:
            self.counts["buried with their process"] += redriven.report["changed"]
            self.scene.finish()
        return self.scene.complaints()

    def _start(self) -> Process:
        self.counts["processes"] += 1
        process = self.scene.start("--lease", "0.3s" if self.stops else "30s", "--pace", "0.002")
        if self.stops:
            self.scene.crashed.add(process.pid)  # with a short lease even a slow moment is a reason to take over
        return process

    def _kill(self, victim: Process) -> None:
        was_running = victim.is_running
        self.scene.crashed.add(victim.pid)
        status = victim.kill()
        self.counts["kills"] += was_running and status == -signal.SIGKILL
        assert status in (0, -signal.SIGKILL), f"it ended by itself with {status}\n{victim.err}"

    def _stop(self, victim: Process) -> None:
        victim.signal(signal.SIGSTOP)
        self.counts["stops"] += 1
        self.asleep.append((time.monotonic() + self.chance.uniform(0.0, NAPS), victim))

    def _wake(self) -> None:
        now = time.monotonic()
        for until, sleeper in list(self.asleep):
            if until <= now:
                sleeper.signal(signal.SIGCONT)
                self.asleep.remove((until, sleeper))
                self.counts["woken"] += 1
