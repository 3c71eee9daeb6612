"""Random stories for one batch, drawn from a seed: kills and errors at points, signals, lost replies, zombies."""

import random
import signal
import time
from collections import Counter
from collections.abc import Iterable

from holdfast.stores.faults import POINTS
from tests.faults import app
from tests.faults.scene import Scene
from tests.faults.world import KILLED, read_effects
from tests.forkserver import PATIENCE, Process

SHORT = ("--lease", "0.3s")
HOT = [point for point in POINTS if point.startswith(("stage.", "sink.", "commit.", "claim."))]
COLD = [point for point in POINTS if point not in HOT and not point.startswith(("act.", "bucket."))]
SEVERE = [point for point in POINTS if not point.startswith(("act.", "stage.", "sink.published", "bucket."))]
"""Where an error ends the run: not in a handler, and not after everything is done."""


class Story:
    """What happens to one batch before it may come to its end."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self.scene = scene
        self.chance = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.cut_short = 0
        """Runs that gave back what they had in flight: each may have repeated an item."""

    def tell(self) -> list[str]:
        """Let it all happen, and return the complaints of the oracle."""
        events = (
            [self.kill] * 6 + [self.fail] * 2 + [self.interrupt, self.interrupt_twice, self.lose_replies, self.pause]
        )
        for _ in range(self.chance.randint(1, 10)):
            self.chance.choice(events)()
        self.chance.choice([self.kill, self.pause])()
        self.scene.finish()
        redriven = self.scene.start("--code", KILLED, what="redrive")
        assert redriven.wait() == 0, redriven.err
        if redriven.report["changed"]:
            self.scene.finish()
        self.counts["stories"] += 1
        return self.scene.complaints(spared=self.cut_short)

    def kill(self) -> None:
        self.counts["kills"] += self.scene.crash(f"{self._where(POINTS)}:kill", *self._manner())

    def fail(self) -> None:
        met = self.scene.crash(f"{self._where(SEVERE)}:raise", *self._manner())
        self.counts["errors"] += met
        self.cut_short += met

    def interrupt(self) -> None:
        process = self._caught_in_the_middle()
        process.signal(self.chance.choice([signal.SIGINT, signal.SIGTERM]))
        self._ended_well(process)
        self.counts["signals"] += 1

    def interrupt_twice(self) -> None:
        process = self._caught_in_the_middle()
        process.signal(signal.SIGINT)
        process.signal(signal.SIGTERM)
        self._ended_well(process)
        self.counts["signals"] += 2
        self.cut_short += 1

    def lose_replies(self) -> None:
        process = self._caught_in_the_middle("--lose-replies", str(self._hit()))
        process.signal(signal.SIGINT)
        self._ended_well(process)
        self.counts["lost replies"] += 1

    def pause(self) -> None:
        """Stopped past its lease; perhaps somebody else finishes meanwhile."""
        point = self.chance.choice([p for p in POINTS if p.endswith((".before", ".after"))])
        sleeper = self.scene.stop(f"{point}:{self._hit()}", *SHORT)
        if sleeper is None:
            return
        heir = self.scene.start(*SHORT)
        self.scene.crashed.add(heir.pid)
        if self.chance.random() < 0.5:
            self._ended_well(heir)
        sleeper.signal(signal.SIGCONT)
        self._ended_well(sleeper)
        self._ended_well(heir)
        self.counts["zombies"] += 1

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _where(self, points: Iterable[str]) -> str:
        """A point and a hit of it that is likely to be reached."""
        if self.chance.random() < 0.8:
            return f"{self.chance.choice([point for point in HOT if point in points])}:{self._hit()}"
        return f"{self.chance.choice([point for point in COLD if point in points])}:{self.chance.choice([1, 1, 2])}"

    def _hit(self) -> int:
        return int(self.chance.expovariate(1 / 4)) + 1

    def _manner(self) -> tuple[str, ...]:
        pace = self.chance.choice(["0", "0", "0.002", "0.02"])
        return ("--pace", pace, "--workers", str(self.chance.choice([1, 2, 4, 16])))

    def _caught_in_the_middle(self, *argv: str) -> Process:
        """A process that has called some handlers, or has just ended."""
        before = len(read_effects(self.scene.folder / app.EFFECTS))
        wanted = before + self.chance.randrange(25)
        process = self.scene.start(*self._manner(), *argv)
        limit = time.monotonic() + PATIENCE
        while process.is_running and len(read_effects(self.scene.folder / app.EFFECTS)) < wanted:
            assert time.monotonic() < limit, process.err
        return process

    def _ended_well(self, process: Process) -> None:
        status = process.wait()
        is_too_early = status in (-signal.SIGINT, -signal.SIGTERM, 1) and not process.out
        if is_too_early:  # it had not come to `run()` yet, where signals are awaited
            self.scene.crashed.add(process.pid)
            self.cut_short += 1
            return
        assert status in (0, 75), f"{process.command} ended with {status}\n{process.err}"
