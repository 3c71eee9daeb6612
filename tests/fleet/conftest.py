"""Fixtures of the layer in which several processes work on one file."""

from tests.faults.scene import scene, scenes

__all__ = ["scene", "scenes"]
