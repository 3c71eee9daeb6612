"""Fixtures of the layer that kills processes at named points."""

from tests.faults.scene import nursery, scene, scenes

__all__ = ["nursery", "scene", "scenes"]
