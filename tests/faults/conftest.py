"""Fixtures of the layer that kills processes at named points."""

from tests.faults.scene import scene, scenes

__all__ = ["scene", "scenes"]
