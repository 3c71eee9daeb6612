"""Reading and writing the documents of a bucket store, with every answer of a bucket brought to a clear end.

A write that lost the race, or of which nothing was heard, is judged by reading back: the document carries the id of the
write that made it. Where somebody else has written since, the chain of the document tells whether our entry is in it.
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import msgspec

from holdfast.core.errors import CommitUnknown, Damaged, StoreUnavailable
from holdfast.stores.bucket import names
from holdfast.stores.bucket.documents import Document, decode, encode
from holdfast.stores.buckets.base import Away, Bucket, Listed, Mark, WriteLost, WriteUnknown

D = TypeVar("D", bound=Document)
PAUSES = (0.2, 1.0, 4.0, 0.0)
"""Seconds before it is found out what became of a write of which nothing was heard, each time it was sent."""
TRIES = len(PAUSES)
"""How often the same bytes are sent before it stays unknown what became of them."""
log = logging.getLogger("holdfast.store")


class Held(msgspec.Struct, Generic[D], frozen=True):
    """A document as it was read or written, and its mark."""

    name: str
    document: D
    mark: Mark


class Raced(Exception):
    """Someone else wrote the document; ours is not in it. Look again."""


class StillUnknown(CommitUnknown):
    """However often it was tried, nobody said whether the write landed."""


class Shelf:
    """The documents and objects of one store."""

    def __init__(self, bucket: Bucket, pause: Callable[[float], None] = time.sleep) -> None:
        self.bucket = bucket
        self._pause = pause
        self.epoch = 0

    def rest(self, seconds: float) -> None:
        """Give a bucket that does not answer time."""
        self._pause(seconds)

    def where(self, name: str) -> str:
        return f"{self.bucket.url}/{name}"

    # -- documents ----------------------------------------------------------------------------------------------

    def read(self, kind: type[D], name: str) -> Held[D] | None:
        found = self.bucket.get(name)
        return None if found is None else Held(name, decode(kind, found.data, self.where(name)), found.mark)

    def need(self, kind: type[D], name: str) -> Held[D]:
        """A document that must be there: another says so."""
        found = self.read(kind, name)
        if found is None:
            raise self.missing(name)
        return found

    def create(self, name: str, document: D) -> Held[D] | None:
        """A new document, or None where the name is taken."""
        made = self._written(document, None)
        data = encode(made)
        for seconds in PAUSES:
            try:
                return Held(name, made, self.bucket.create(name, data))
            except (WriteLost, WriteUnknown) as error:
                self._wait(error, seconds)
                there = self.bucket.get(name)
                if there is not None:
                    return Held(name, made, there.mark) if there.data == data else None
                log.info("%s: %s; it is not there: sent again", self.where(name), error)
        raise StillUnknown(f"{self.where(name)}: nothing was heard of it, {TRIES} times: try again later")

    def swap(self, held: Held[D], document: D, landed: Callable[[D], bool] = lambda _: False) -> Held[D]:
        """Replace a document that nobody else has replaced. `landed` tells from a later version whether ours came
        before it. Raises Raced, StillUnknown, StoreUnavailable."""
        made = self._written(document, held.document)
        data, is_unknown = encode(made), False
        for seconds in PAUSES:
            try:
                return Held(held.name, made, self.bucket.replace(held.name, data, held.mark))
            except StoreUnavailable as error:
                if is_unknown:  # what was sent before may have landed, or may land yet
                    raise StillUnknown(f"{error}, so nobody knows whether it was written") from error
                raise
            except (WriteLost, WriteUnknown) as error:
                is_unknown = True
                self._wait(error, seconds)
                there = self._read_back(held)
                if there is None:
                    continue
                if there.document.write == made.write:
                    return there
                if there.document.revision != held.document.revision:
                    if self._asked(landed, there.document):
                        return there
                    raise Raced from None
                log.info("%s: %s; it is as it was: sent again", self.where(held.name), error)
        raise StillUnknown(f"{self.where(held.name)}: nothing was heard of a write, {TRIES} times: try again later")

    def _read_back(self, held: Held[D]) -> Held[D] | None:
        try:
            return self.need(type(held.document), held.name)
        except StoreUnavailable as error:
            log.info("%s: %s; nobody knows whether it was written", self.where(held.name), error)
            return None

    def _wait(self, error: WriteLost | WriteUnknown, seconds: float) -> None:
        """Who lost a race need not wait; a bucket that is in trouble is given time."""
        if seconds and isinstance(error, WriteUnknown):
            self._pause(seconds)

    def _asked(self, landed: Callable[[D], bool], later: D) -> bool:
        try:
            return landed(later)
        except StoreUnavailable as error:
            raise StillUnknown(f"{error}, so nobody knows whether it was written") from error

    def _written(self, document: D, before: D | None) -> D:
        revision = 1 if before is None else before.revision + 1
        epoch = self.epoch if before is None else max(self.epoch, before.epoch)
        return msgspec.structs.replace(document, revision=revision, write=secrets.token_hex(12), epoch=epoch)

    # -- what never changes -------------------------------------------------------------------------------------

    def put(self, name: str, data: bytes) -> None:
        """An object whose name tells its content: who finds it there finds the same."""
        for seconds in PAUSES:
            try:
                self.bucket.create(name, data)
            except WriteLost:
                return
            except WriteUnknown as error:
                self._wait(error, seconds)
                log.info("%s: %s; sent again", self.where(name), error)
            else:
                return
        raise Away(f"{self.where(name)}: nothing was heard of it, {TRIES} times: try again later")

    def missing(self, name: str) -> Damaged:
        """What to say of something that must be there and is not: it alone is gone, or everything is."""
        if self.bucket.get(names.ROOT) is not None:
            return Damaged(
                f"{self.where(name)} is missing or cut short, and a document names it: put back a backup of it"
            )
        return Damaged(
            f"{self.bucket.url} was emptied or moved away while it was in use: {name} is gone, and so is {names.ROOT}; "
            "stop every process that works there, then put back a backup, or run again to begin with an empty store"
        )

    def fetch(self, name: str) -> bytes:
        found = self.bucket.get(name)
        if found is None:
            raise self.missing(name)
        return found.data

    def fetch_part(self, name: str, start: int, length: int) -> bytes:
        found = self.bucket.part(name, start, length) if length else b""
        if found is None or len(found) != length:
            raise self.missing(name)
        return found

    def names(self, prefix: str, after: str = "", *, etags: bool = False) -> Iterator[Listed]:
        return self.bucket.list(prefix, after, etags=etags)
