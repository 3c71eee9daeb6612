"""Columns of numbers in journal bodies: one after the other, little-endian on every machine."""

import struct
from collections.abc import Sequence
from typing import Any

FLOAT32, UINT16, UINT32 = "f", "H", "I"


def pack(kind: str, values: Sequence[float]) -> bytes:
    """The bytes of a column."""
    return struct.pack(f"<{len(values)}{kind}", *values)


def unpack(kind: str, data: bytes) -> tuple[Any, ...]:
    """The numbers of a column."""
    return struct.unpack(f"<{len(data) // struct.calcsize(kind)}{kind}", data)
