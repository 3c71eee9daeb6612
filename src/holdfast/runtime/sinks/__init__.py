"""Where outputs go, and how they are found again and checked."""

from holdfast.runtime.sinks.base import Evidence, Leftover, Provenance, Sink, SinkError
from holdfast.runtime.sinks.files import Files

__all__ = ["Evidence", "Files", "Leftover", "Provenance", "Sink", "SinkError"]
