"""Tools for tests of Holdfast and of software built on it: a clock, the suite for stores, a simulator.

The names below need nothing but Holdfast. Two more modules need test libraries: `holdfast.testing.conformance` (pytest)
has the checks that every store must pass, `holdfast.testing.comparison` (hypothesis) compares a store with the memory
store. docs/stores.md describes how to test your own store.
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
    """Call the armed hook, if any, at a fault point of your own store."""
    faults.reach(point)
