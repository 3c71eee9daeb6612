"""Fixtures of the layer in which several processes work on one file."""

from tests.faults.scene import nursery, scene, scenes

__all__ = ["nursery", "scene", "scenes"]
