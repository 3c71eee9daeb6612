"""The user's program, loaded from its file in the same way as for a run."""

from holdfast.runtime.engine.remote import load_file

__all__ = ["load_file"]
