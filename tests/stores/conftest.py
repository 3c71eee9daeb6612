"""Fixtures of the tests that start processes."""

from tests.faults.scene import nursery

__all__ = ["nursery"]
