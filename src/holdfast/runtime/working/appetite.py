"""How much work a worker wants to have at hand: as much as it does in a moment, by what it was seen to do."""

from collections.abc import Sequence

from holdfast.core.limits import CLAIM_ITEMS
from holdfast.runtime.working.control import Control
from holdfast.runtime.working.holding import Holding
from holdfast.runtime.working.lane import Lane
from holdfast.runtime.working.pace import Rate

AHEAD_SECONDS = 2.0
"""A claim covers about as much work as the worker does in this time."""
CROWDED = 2_000
"""Items a second from which on handlers and the reading of the source get in each other's way."""


class Appetite:
    """How many items a worker claims, and when it wants more."""

    def __init__(self, lanes: Sequence[Lane], control: Control) -> None:
        self._lanes, self._control = lanes, control
        self._takes_ranges = lanes[0].stage.takes_ranges
        self._rate = Rate()

    def learn(self, settled: int) -> None:
        """So many more items were settled."""
        if self._rate.learn(settled):
            self._control.crowded = self._rate.value > CROWDED

    def wants(self, holdings: Sequence[Holding]) -> float:
        """How many more items should be ready than there are. Ranges are taken as they can be begun: others may want
        the next one."""
        if self._takes_ranges:
            return self._control.workers - len(holdings)
        ready = sum(h.ready_count + len(h.unasked) for h in holdings)
        return max(self._control.workers, self._speed() * AHEAD_SECONDS / 8) - ready

    def portion(self) -> int:
        """How many items to claim at once."""
        if self._takes_ranges:
            return 1
        return max(self._control.workers, min(CLAIM_ITEMS, int(self._speed() * AHEAD_SECONDS)))

    def _speed(self) -> float:
        """Items per second: measured, or for handlers that take next to no time, what they could do."""
        if all(lane.pace.quick for lane in self._lanes):
            return max(self._rate.value, 1 / sum(lane.pace.mean for lane in self._lanes) / 4)
        return self._rate.value
