"""The user's program, loaded from its file as a run loads it."""

from holdfast.runtime.engine.remote import load_file

__all__ = ["load_file"]
