"""Compare-and-swap of the documents of a bucket store; every answer of a bucket leads to a definite result.

A write that lost the race, or without a reply, is judged by reading back: the document contains the id of the write
that made it. If another process has written since, the chain of the document shows whether our entry is in it.

A bucket that ignores conditions would let two owners overwrite each other, so a probe is written before the first
document: created twice, and replaced under an old mark. Both must be refused. That happens once for each store. The
probe, some 30 bytes, is not removed: credentials need no permission to delete.

A verb is retried for about half a minute if the bucket cannot be reached. Refusals (credentials, a missing bucket, a
full disk) would be repeated, and are raised at once. Renewals are not retried: the heartbeat counts its own failures.
"""

import functools
import logging
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Concatenate, Generic, ParamSpec, Protocol, TypeVar

import msgspec

from holdfast.core.commitments import INDEX_KEY_BYTES, Draw, KeyIndex
from holdfast.core.errors import CommitUnknown, Damaged, StoreUnavailable, StoreUnusable
from holdfast.stores.base import random_bytes
from holdfast.stores.bucket import names
from holdfast.stores.bucket.documents import FORMAT, Document, Root, decode, encode
from holdfast.stores.buckets.base import Away, Bucket, ListedObject, ObjectMark, WriteLost, WriteUnknown

D = TypeVar("D", bound=Document)
PAUSES = (0.2, 1.0, 4.0, 0.0)
"""Seconds to wait, after each send without a reply, before checking whether the write landed."""
TRIES = len(PAUSES)
"""How often the same bytes are sent before their result stays unknown."""
log = logging.getLogger("holdfast.store")


class HeldDocument(msgspec.Struct, Generic[D], frozen=True):
    """A document as it was read or written, and its mark."""

    name: str
    document: D
    mark: ObjectMark


class Raced(Exception):
    """Another process wrote the document, and our write is not in it. Read it again."""


class StillUnknown(CommitUnknown):
    """The result of the write stayed unknown after every retry."""


class DocumentStore:
    """The documents and objects of one store."""

    def __init__(self, bucket: Bucket, pause: Callable[[float], None] = time.sleep) -> None:
        self.bucket = bucket
        self._pause = pause
        self.epoch = 0

    def rest(self, seconds: float) -> None:
        """Give an unresponsive bucket time."""
        self._pause(seconds)

    def where(self, name: str) -> str:
        return f"{self.bucket.url}/{name}"

    # -- documents ----------------------------------------------------------------------------------------------

    def read(self, kind: type[D], name: str) -> HeldDocument[D] | None:
        found = self.bucket.get(name)
        return None if found is None else HeldDocument(name, decode(kind, found.data, self.where(name)), found.mark)

    def need(self, kind: type[D], name: str) -> HeldDocument[D]:
        """Return a document that must exist, because another one refers to it."""
        found = self.read(kind, name)
        if found is None:
            raise self.missing(name)
        return found

    def create(self, name: str, document: D) -> HeldDocument[D] | None:
        """Return a new document, or None if the name is taken."""
        made = self._written(document, None)
        data = encode(made)
        for seconds in PAUSES:
            try:
                return HeldDocument(name, made, self.bucket.create(name, data))
            except (WriteLost, WriteUnknown) as error:
                self._wait(error, seconds)
                there = self.bucket.get(name)
                if there is not None:
                    return HeldDocument(name, made, there.mark) if there.data == data else None
                log.info("%s: %s; it does not exist: sending it again", self.where(name), error)
        raise StillUnknown(f"{self.where(name)}: no reply to {TRIES} attempts: try again later")

    def swap(
        self, held: HeldDocument[D], document: D, landed: Callable[[D], bool] = lambda _: False
    ) -> HeldDocument[D]:
        """Replace a document unless another process has replaced it. `landed` decides from a later version whether our
        write came before it. Raise Raced, StillUnknown or StoreUnavailable."""
        made = self._written(document, held.document)
        data, is_unknown = encode(made), False
        for seconds in PAUSES:
            try:
                return HeldDocument(held.name, made, self.bucket.replace(held.name, data, held.mark))
            except StoreUnavailable as error:
                if is_unknown:  # an earlier send may have landed, or may still land
                    raise StillUnknown(f"{error}, so it is unknown whether it was written") from error
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
                log.info("%s: %s; it is unchanged: sending it again", self.where(held.name), error)
        raise StillUnknown(f"{self.where(held.name)}: no reply to {TRIES} attempts to write it: try again later")

    def _read_back(self, held: HeldDocument[D]) -> HeldDocument[D] | None:
        try:
            return self.need(type(held.document), held.name)
        except StoreUnavailable as error:
            log.info("%s: %s; it is unknown whether it was written", self.where(held.name), error)
            return None

    def _wait(self, error: WriteLost | WriteUnknown, seconds: float) -> None:
        """Wait, if the bucket is in trouble; after a lost race, do not wait."""
        if seconds and isinstance(error, WriteUnknown):
            self._pause(seconds)

    def _asked(self, landed: Callable[[D], bool], later: D) -> bool:
        try:
            return landed(later)
        except StoreUnavailable as error:
            raise StillUnknown(f"{error}, so it is unknown whether it was written") from error

    def _written(self, document: D, before: D | None) -> D:
        revision = 1 if before is None else before.revision + 1
        epoch = self.epoch if before is None else max(self.epoch, before.epoch)
        return msgspec.structs.replace(
            document, format=FORMAT, revision=revision, write=secrets.token_hex(12), epoch=epoch
        )

    # -- immutable objects --------------------------------------------------------------------------------------

    def put(self, name: str, data: bytes) -> None:
        """Write an object whose name identifies its content: an existing one has the same content."""
        for seconds in PAUSES:
            try:
                self.bucket.create(name, data)
            except WriteLost:
                return
            except WriteUnknown as error:
                self._wait(error, seconds)
                log.info("%s: %s; sending it again", self.where(name), error)
            else:
                return
        raise Away(f"{self.where(name)}: no reply to {TRIES} attempts: try again later")

    def missing(self, name: str) -> Damaged:
        """Return the error for an object that must exist but does not: it alone is gone, or everything is."""
        if self.bucket.get(names.ROOT) is not None:
            return Damaged(
                f"{self.where(name)} is missing or incomplete, but a document refers to it: restore it from a backup"
            )
        return Damaged(
            f"{self.bucket.url} was emptied or moved away while it was in use: {name} is gone, and so is {names.ROOT}; "
            "stop every process that uses it, then restore a backup, or run again to begin with an empty store"
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

    def names(self, prefix: str, after: str = "", *, etags: bool = False) -> Iterator[ListedObject]:
        return self.bucket.list(prefix, after, etags=etags)


BEGINNING = 1_704_067_200_000_000
"""The start of our time: 2024, in microseconds."""
LEAP = 1 << 40
"""If the clock was set back, an epoch starts this much higher than the last."""
ROOT_TURNS = 8


def open_root(documents: DocumentStore, draw: Draw = random_bytes) -> HeldDocument[Root]:
    """Return the root; create it if it is missing. A store that was copied from elsewhere begins a new epoch: the
    fences of its chunks could otherwise be granted twice."""
    for _ in range(ROOT_TURNS):
        held = documents.read(Root, names.ROOT)
        if held is None:
            probe(documents.bucket)
            held = documents.create(names.ROOT, Root(url=documents.bucket.url, index_key=draw(INDEX_KEY_BYTES)))
        if held is None:
            continue
        if held.document.url == documents.bucket.url:
            documents.epoch = held.document.epoch
            return held
        documents.epoch = _after(held.document.epoch)
        try:
            return documents.swap(held, msgspec.structs.replace(held.document, url=documents.bucket.url))
        except Raced:
            continue
    raise StoreUnavailable(f"{documents.bucket.url}: other processes keep changing it; try again later")


class StoreIndex:
    """The index of a store, whose key is in the root. A store of an earlier format gets its key with the first write
    that needs it; before that there are no marks to compare with."""

    def __init__(self, documents: DocumentStore, key: bytes, draw: Draw) -> None:
        self._documents, self._draw = documents, draw
        self._index = KeyIndex(key) if key else None

    def __call__(self) -> KeyIndex:
        """Return the index; give the store its key first, if it has none."""
        for _ in range(ROOT_TURNS):
            if self._index is not None:
                return self._index
            held = self._documents.need(Root, names.ROOT)
            if not held.document.index_key:
                made = msgspec.structs.replace(held.document, index_key=self._draw(INDEX_KEY_BYTES))
                try:
                    held = self._documents.swap(held, made)
                except Raced:
                    continue
            self._index = KeyIndex(held.document.index_key)
            return self._index
        raise StoreUnavailable(f"{self._documents.bucket.url}: other processes keep changing it; try again later")


def is_store_there(bucket: Bucket) -> bool:
    """Return whether the bucket contains a store; nothing is created."""
    return DocumentStore(bucket).read(Root, names.ROOT) is not None


def probe(bucket: Bucket) -> None:
    """Refuse a bucket that accepts a write which it should have refused."""
    name = names.probe(secrets.token_hex(8))
    try:
        first = bucket.create(name, b'{"holdfast": "probe", "number": 1}')
        is_exclusive = _is_refused(lambda: bucket.create(name, b'{"holdfast": "probe", "number": 2}'))
        found = bucket.get(name)
        bucket.replace(name, b'{"holdfast": "probe", "number": 3}', found.mark if found is not None else first)
        is_compared = _is_refused(lambda: bucket.replace(name, b'{"holdfast": "probe", "number": 4}', first))
    except (WriteLost, WriteUnknown) as error:
        raise StoreUnavailable(f"{bucket.url} does not answer the first writes: {error}") from None
    if not (is_exclusive and is_compared):
        raise StoreUnusable(
            f"{bucket.url} cannot hold a store: it ignores the condition of conditional writes, so two owners could "
            "overwrite each other; use another bucket, or a database"
        )


def _is_refused(write: Callable[[], object]) -> bool:
    try:
        write()
    except WriteLost:
        return True
    return False


def _after(epoch: int) -> int:
    """Return a floor above all fences of an epoch."""
    now = time.time_ns() // 1000 - BEGINNING
    return now if now > epoch else epoch + LEAP


VERB_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds before a verb is retried."""


class KeepsDocuments(Protocol):
    """An object with a document store."""

    _documents: DocumentStore


S = TypeVar("S", bound=KeepsDocuments)
P = ParamSpec("P")
R = TypeVar("R")


def patient(verb: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Return a verb that is retried if the bucket did not answer: it writes nothing, or is recognised by its own
    ids."""

    @functools.wraps(verb)
    def patiently(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        for seconds in VERB_PAUSES:
            try:
                return verb(self, *args, **kwargs)
            except Away as error:
                log.info("%s; retrying in %g s", error, seconds)
                self._documents.rest(seconds)
        try:
            return verb(self, *args, **kwargs)
        except Away as error:
            raise Away(f"{error}; no answer for {sum(VERB_PAUSES):g} s and {len(VERB_PAUSES) + 1} tries") from error

    return patiently
