"""For tests of Holdfast, and of what is built on it: a clock, the suite every store passes, a simulator.

The names below need nothing but Holdfast. Two more modules need what tests are run with: `holdfast.testing.conformance`
(pytest) has the checks that every store passes, `holdfast.testing.comparison` (hypothesis) holds a store against the
memory store. How to prove a store of your own is told in docs/stores.md.
"""

from holdfast.stores import faults
from holdfast.stores.faults import POINTS, arm, parse
from holdfast.testing.clock import ManualClock
from holdfast.testing.replay import Violation, compare, replay
from holdfast.testing.simulator import Failure, in_folders, in_memory, on_a_bucket, search, simulate

__all__ = [
    "POINTS",
    "Failure",
    "ManualClock",
    "Violation",
    "arm",
    "compare",
    "in_folders",
    "in_memory",
    "on_a_bucket",
    "parse",
    "reach",
    "replay",
    "search",
    "simulate",
]


def reach(point: str) -> None:
    """Report that a store of your own has reached a fault point: the armed hook is called."""
    faults.reach(point)
