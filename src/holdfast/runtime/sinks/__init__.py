"""Sinks for outputs: how they are written, found again and checked."""

from holdfast.core.errors import SinkError
from holdfast.runtime.sinks.base import Evidence, Leftover, Provenance, Sink
from holdfast.runtime.sinks.files import Files

__all__ = ["Evidence", "Files", "Leftover", "Provenance", "Sink", "SinkError"]
