"""The protocol as plain Python: for reading, for plans and for tests."""

from holdfast.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
