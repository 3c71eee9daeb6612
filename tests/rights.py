"""Root without the right to pass over permissions: what a folder's mode forbids is forbidden to root as well."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

VERSION_3 = 0x20080522
OVERRIDES = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@contextmanager
def as_an_ordinary_user() -> Iterator[None]:
    """For this thread and the threads it starts: root obeys permissions. Others do anyway."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, held = _Header(VERSION_3, 0), (_Data * 2)()
    _call(libc.capget, header, held)
    before = held[0].effective
    held[0].effective = before & ~OVERRIDES
    _call(libc.capset, header, held)
    try:
        yield
    finally:
        held[0].effective = before
        _call(libc.capset, header, held)


def _call(function: "ctypes._NamedFuncPointer", header: _Header, held: "ctypes.Array[_Data]") -> None:
    if function(ctypes.byref(header), held):
        raise OSError(ctypes.get_errno(), "capabilities cannot be read or set")
