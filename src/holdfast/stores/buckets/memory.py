"""A bucket in memory, for tests and simulation: any write can lose its reply, arrive late, or arrive twice."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from enum import StrEnum

from holdfast.core.errors import StoreUnavailable
from holdfast.stores.buckets.base import (
    Found,
    ListedObject,
    ObjectMark,
    WriteLost,
    WriteUnknown,
    check_name,
    check_prefix,
)


class Fate(StrEnum):
    """The fate of one write."""

    PLAIN = "plain"
    LOST_REQUEST = "lost request"
    """It never arrives; the caller does not know."""
    LOST_REPLY = "lost reply"
    """It arrives; the caller does not know."""
    LATE = "late"
    """It arrives when `deliver` is called; until then the caller does not know."""
    TWICE = "twice"
    """It arrives a second time right away, and the caller gets the reply to the second."""
    REFUSED = "refused"
    """The bucket cannot be reached; it never arrives, and the caller knows."""


Choose = Callable[[str, str], Fate]
"""(verb, name) -> the fate of this write."""


class MemoryBucket:
    """Objects in a dictionary. `fate` decides the fate of each write; without it, all succeed."""

    def __init__(self, *, fate: Choose | None = None, url: str = "memory-bucket:") -> None:
        self.url = url
        self.fate = fate
        self.calls: list[tuple[str, str]] = []
        """(verb, name) of every request, in order."""
        self._objects: dict[str, bytes] = {}
        self._late: list[Callable[[], ObjectMark]] = []
        self._lock = threading.RLock()

    def get(self, name: str) -> Found | None:
        with self._lock:
            self.calls.append(("get", check_name(name)))
            data = self._objects.get(name)
            return None if data is None else Found(data, _mark(data))

    def part(self, name: str, start: int, length: int) -> bytes | None:
        with self._lock:
            self.calls.append(("part", check_name(name)))
            data = self._objects.get(name)
            return None if data is None else data[start : start + length]

    def create(self, name: str, data: bytes) -> ObjectMark:
        return self._write("create", name, data, None)

    def replace(self, name: str, data: bytes, mark: ObjectMark) -> ObjectMark:
        return self._write("replace", name, data, mark)

    def list(self, prefix: str, after: str = "", *, etags: bool = False) -> Iterator[ListedObject]:
        with self._lock:
            self.calls.append(("list", check_prefix(prefix)))
            names = sorted(name for name in self._objects if name.startswith(prefix) and name > after)
            return iter([ListedObject(name, _mark(self._objects[name]).etag) for name in names])

    def delete(self, name: str) -> None:
        with self._lock:
            self.calls.append(("delete", check_name(name)))
            self._objects.pop(name, None)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def deliver(self) -> int:
        """Let every late write arrive now, in the order in which they were sent; return how many landed."""
        landed = 0
        with self._lock:
            while self._late:
                try:
                    self._late.pop(0)()
                    landed += 1
                except WriteLost:
                    continue
        return landed

    def _write(self, verb: str, name: str, data: bytes, mark: ObjectMark | None) -> ObjectMark:
        with self._lock:
            self.calls.append((verb, check_name(name)))
            fate = self.fate(verb, name) if self.fate is not None else Fate.PLAIN
            unknown = WriteUnknown(f"{self.url}{name}: the reply was lost")
            if fate is Fate.REFUSED:
                raise StoreUnavailable(f"{self.url} cannot be reached")
            if fate is Fate.LOST_REQUEST:
                raise unknown
            if fate is Fate.LATE:
                self._late.append(lambda: self._put(name, data, mark))
                raise unknown
            try:
                landed = self._put(name, data, mark)
            except WriteLost:
                if fate is Fate.LOST_REPLY:
                    raise unknown from None
                raise
            if fate is Fate.LOST_REPLY:
                raise unknown
            return self._put(name, data, mark) if fate is Fate.TWICE else landed

    def _put(self, name: str, data: bytes, mark: ObjectMark | None) -> ObjectMark:
        there = self._objects.get(name)
        if (mark is None) != (there is None) or (there is not None and _mark(there) != mark):
            raise WriteLost(f"{self.url}{name}: another process was first")
        self._objects[name] = bytes(data)
        return _mark(data)


def _mark(data: bytes) -> ObjectMark:
    """Return the mark of the content, as S3 does: the same bytes have the same mark, so A, B, A is possible."""
    return ObjectMark(hashlib.md5(data, usedforsecurity=False).hexdigest())
