"""What a bucket store needs of a bucket: read, create, replace if unchanged, list, delete.

Every write has one of three ends. It landed, and its mark is returned. It lost the race, which is a `WriteLost`:
nothing was written, someone else was first. Or nobody knows, which is a `WriteUnknown`: it may have landed, may land
later, or never. What cannot be reached at all is a `StoreUnavailable`. No implementation sends a conditional write
twice: the second would meet the first and report a lost race.

A name is one or more words of letters, digits, `-`, `_` and `.`, with `/` between them.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from holdfast.core.errors import Conflict, StoreError, StoreUnavailable, UsageError

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


class Mark(NamedTuple):
    """Which version of an object this is, as the bucket tells versions apart."""

    etag: str
    version: str = ""
    """The generation, where a bucket compares that instead."""


class Found(NamedTuple):
    """An object as it was read."""

    data: bytes
    mark: Mark


class Listed(NamedTuple):
    """An object as a listing tells of it."""

    name: str
    etag: str
    """The same text as in the mark of a read, where the bucket says it in both places; empty where it says none."""


class WriteLost(Conflict):
    """Someone else was first; nothing was written."""


class Away(StoreUnavailable):
    """Nobody answered; somebody may in a while. What is refused is no `Away`: it would be refused again."""


class WriteUnknown(StoreError):
    """The reply was lost: read back and compare before judging."""


class Bucket(Protocol):
    """Named bytes, each replaced only by who has seen them last. Safe to call from several threads."""

    url: str
    """Where it is, for people; without credentials."""

    def get(self, name: str) -> Found | None:
        """The newest version of an object, or None. Raises StoreUnavailable."""
        ...

    def part(self, name: str, start: int, length: int) -> bytes | None:
        """Some bytes of an object that does not change any more. Raises StoreUnavailable."""
        ...

    def create(self, name: str, data: bytes) -> Mark:
        """Write an object that must not be there yet. Raises WriteLost, WriteUnknown, StoreUnavailable."""
        ...

    def replace(self, name: str, data: bytes, mark: Mark) -> Mark:
        """Write an object that must still be the one of that mark. Raises WriteLost, WriteUnknown, StoreUnavailable."""
        ...

    def list(self, prefix: str, after: str = "", *, etags: bool = False) -> Iterator[Listed]:
        """The objects whose names begin with the prefix, which ends in `/`, in order, from the one after `after` on.
        Their etags may be missing unless they are asked for."""
        ...

    def delete(self, name: str) -> None:
        """Take an object away; none there is fine. Raises StoreUnavailable."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


def check_name(name: str) -> str:
    """Refuse a name that means something else in one of the buckets."""
    if NAME.fullmatch(name) is None:
        raise UsageError(f"{name!r} names no object: use letters, digits, '-', '_' and '.', with '/' between them")
    return name


def check_prefix(prefix: str) -> str:
    """Refuse a prefix that ends within a word: buckets disagree about what that lists."""
    if prefix and not prefix.endswith("/"):
        raise UsageError(f"{prefix!r} cannot be listed: a prefix ends in '/'")
    return prefix
