"""How fast a stage is, and how fast a whole run, measured: it decides how many items travel together and where they
run, and how many are claimed."""

import time
from collections.abc import Sequence

from holdfast.core.limits import SLICE_ITEMS
from holdfast.core.outcome import Lost, Outcome

ENOUGH = 8
"""Outcomes before a measurement is believed."""
QUICK = 200e-6
"""Handlers faster than this are bound by Python, not by waiting: they run on the committing thread."""
SLICE_SECONDS = 0.01
INLINE_SECONDS = 0.04
SAMPLE = 100
"""Outcomes of a group that are looked at: its mean is known well enough from these."""
RATE_SECONDS = 0.2
"""How often the rate of a run is measured."""
MEMORY = 0.2
"""Weight of the newest group of outcomes against the older ones."""


class Pace:
    """The measured seconds of one stage."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        some = outcomes[:: len(outcomes) // SAMPLE + 1]
        measured = [o.seconds for o in some if not isinstance(o, Lost) and o.seconds > 0]
        if not measured:
            return
        mean = sum(measured) / len(measured)
        self.mean = mean if not self.count else self.mean + (mean - self.mean) * max(MEMORY, 1 / (self.count + 1))
        self.count += len(measured)

    @property
    def known(self) -> bool:
        return self.count >= ENOUGH

    @property
    def quick(self) -> bool:
        return self.known and self.mean < QUICK

    def slice(self, inline: bool) -> int:
        """How many items to hand over at once."""
        if not self.known:
            return 1
        budget = INLINE_SECONDS if inline else SLICE_SECONDS
        return max(1, min(SLICE_ITEMS, int(budget / max(self.mean, 1e-6))))


class Rate:
    """How many items a run settles in a second."""

    def __init__(self) -> None:
        self.value = 0.0
        self._since = time.monotonic()
        self._count = 0

    def learn(self, count: int) -> bool:
        """So many more were settled; says whether the rate was measured again."""
        self._count += count
        elapsed = time.monotonic() - self._since
        if elapsed < RATE_SECONDS:
            return False
        rate = self._count / elapsed
        self.value = rate if not self.value else self.value + 0.5 * (rate - self.value)
        self._since, self._count = time.monotonic(), 0
        return True
