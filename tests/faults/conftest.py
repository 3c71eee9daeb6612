"""Fixtures of the layer that kills processes at named points."""

from tests.faults.scene import hits, scene, scenes

__all__ = ["hits", "scene", "scenes"]
