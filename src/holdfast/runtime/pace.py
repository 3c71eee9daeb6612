"""How fast a stage is, measured: it decides how many items travel together and where they run."""

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
