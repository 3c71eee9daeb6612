"""Whole batches in one file: written from one store, opened in another.

A copy has everything that the store holds of a batch: items with all revisions, outputs, checkpoints, and every entry
with its words. Its uid, its chunk numbers and all commitments are independent of the store, so it verifies wherever it
is opened. Files that a sink wrote are not part of it.

The file is a first line, then records, each with its length; the last one has the SHA-256 of everything before it.
"""

import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from holdfast.core import canonical, course, journal
from holdfast.core.errors import Conflict, Refused, UsageError
from holdfast.core.model import Batch, BatchMode, Checkpoint, Chunk, Entry, Output, StoredItem, chain_of_batch
from holdfast.core.plain import Plain
from holdfast.runtime.acts import Actor, ActResult, Preview
from holdfast.runtime.operate.target import whole_or_absent
from holdfast.runtime.text import many
from holdfast.stores.base import (
    CopiedItem,
    Store,
    check_installable,
    each_checkpoint,
    each_entry,
    each_item,
    each_output,
    find_batch,
)

SUFFIX = ".batch"
MAGIC = b"Holdfast batch 1\n"
LENGTH = struct.Struct(">I")
LONGEST = 1 << 30
ARRIVED = "arrived"


class Opening(msgspec.Struct, frozen=True, tag=True):
    """The first record: the batch, and its chunks."""

    batch: Batch
    chunks: list[Chunk]
    store: str


class ItemRecord(msgspec.Struct, frozen=True, tag=True):
    """One item."""

    revisions: list[StoredItem]
    outputs: list[Output]


class CheckpointRecord(msgspec.Struct, frozen=True, tag=True):
    """The checkpoint of a partition."""

    at: Checkpoint


class EntryRecord(msgspec.Struct, frozen=True, tag=True):
    """One entry; `chain` is the number of its chain within the batch."""

    chain: int
    entry: Entry


class Closing(msgspec.Struct, frozen=True, tag=True):
    """The last record."""

    digest: bytes


Record = Opening | ItemRecord | CheckpointRecord | EntryRecord | Closing
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySummary(Plain):
    """The copy that was written."""

    path: str
    batch: str
    items: int
    entries: int
    head: str
    """The hash of the last entry of the batch: it is the same wherever the copy is opened, until something changes."""


def write(store: Store, batch: Batch, path: Path) -> CopySummary:
    """Write a copy of a batch, whole or not at all. Nothing is changed in the store."""
    chunks = store.chunks(batch.id)
    if held := [chunk.number for chunk in chunks if chunk.owner is not None]:
        raise Refused(f"batch {batch.name!r} is being worked on (chunk {held[0]}): stop its runs, or wait for them")
    if any(entry_is_old(entry) for entry in store.entries(chain_of_batch(batch.id), limit=1)):
        raise Refused(
            f"batch {batch.name!r} was begun in an older format, whose entries name it by its number in this store: it "
            "stays here; items that are left can be run as a new batch elsewhere"
        )
    counts = {"items": 0, "entries": 0}
    with whole_or_absent(path) as stream:
        if path.exists() is False:
            with suppress(OSError):
                os.fchmod(stream.fileno(), 0o600)  # it has every payload
        out = _Writer(stream)
        out.put(Opening(batch, chunks, store.url))
        for item in _items(store, batch):
            out.put(item)
            counts["items"] += 1
        for at in each_checkpoint(store, batch.id):
            out.put(CheckpointRecord(at))
        for number, chain in [(0, chain_of_batch(batch.id)), *((chunk.number, int(chunk.id)) for chunk in chunks)]:
            for entry in each_entry(store, chain):
                out.put(EntryRecord(number, entry))
                counts["entries"] += 1
        out.close()
        now = find_batch(store, batch.name)
        if now is None or (now.seq, course.cover(store.chunks(batch.id))) != (batch.seq, course.cover(chunks)):
            raise Conflict(f"batch {batch.name!r} changed while it was copied: try again; nothing was written")
    return CopySummary(path=str(path), batch=batch.name, head=batch.head.hex(), **counts)


def entry_is_old(entry: Entry) -> bool:
    """Return whether an entry has the first format, which names a batch by its number in one store."""
    return journal.decode_header(entry.head).format == 1


def _items(store: Store, batch: Batch) -> Iterator[ItemRecord]:
    outputs = iter(each_output(store, batch.id))
    waiting = next(outputs, None)
    for item in each_item(store, batch.id):
        mine: list[Output] = []
        while waiting is not None and waiting.n <= item.n:
            mine += [waiting] if waiting.n == item.n else []
            waiting = next(outputs, None)
        yield ItemRecord(store.revisions(batch.id, item.n) if item.revision else [item], mine)


class _Writer:
    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._found = stream, hashlib.sha256()
        self._write(MAGIC)

    def put(self, record: Record) -> None:
        data = _encode(record)
        if len(data) > LONGEST:
            raise UsageError(f"a record of {len(data):,} bytes is too large for a copy")
        self._write(LENGTH.pack(len(data)) + data)

    def close(self) -> None:
        data = _encode(Closing(self._found.digest()))
        self._stream.write(LENGTH.pack(len(data)) + data)

    def _write(self, data: bytes) -> None:
        self._found.update(data)
        self._stream.write(data)


# -- opening ----------------------------------------------------------------------------------------------------------


class CopyFile:
    """A copy in a file: the batch and its chunks, and everything else record by record, as often as needed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._check()
        first = next(self._records())
        assert isinstance(first, Opening)
        self.batch, self.store = first.batch, first.store
        self.chunks: Sequence[Chunk] = first.chunks

    def items(self) -> Iterator[CopiedItem]:
        return (CopiedItem(each.revisions, each.outputs) for each in self._records() if isinstance(each, ItemRecord))

    def checkpoints(self) -> Iterator[Checkpoint]:
        return (each.at for each in self._records() if isinstance(each, CheckpointRecord))

    def entries(self) -> Iterator[tuple[int, Entry]]:
        return ((each.chain, each.entry) for each in self._records() if isinstance(each, EntryRecord))

    def _check(self) -> None:
        """Refuse a file that is not a copy, or not whole."""
        found, last = hashlib.sha256(MAGIC), None
        for data, record in self._parts():
            last = record
            if isinstance(record, Closing):
                break
            found.update(LENGTH.pack(len(data)) + data)
        if not isinstance(last, Closing) or last.digest != found.digest():
            raise self._damaged()

    def _records(self) -> Iterator[Record]:
        return (record for _, record in self._parts())

    def _parts(self) -> Iterator[tuple[bytes, Record]]:
        try:
            with self._path.open("rb") as stream:
                if stream.read(len(MAGIC)) != MAGIC:
                    raise UsageError(f"{self._path} is not a copy of a batch: make one with `holdfast export --copy`")
                while head := stream.read(LENGTH.size):
                    if len(head) < LENGTH.size or (size := LENGTH.unpack(head)[0]) > LONGEST:
                        raise self._damaged()
                    data = stream.read(size)
                    if len(data) < size:
                        raise self._damaged()
                    yield data, _decode(data)
        except OSError as error:
            raise UsageError(f"{self._path} cannot be read: {error.strerror or error}") from None
        except (msgspec.DecodeError, msgspec.ValidationError):
            raise self._damaged() from None

    def _damaged(self) -> UsageError:
        return UsageError(f"{self._path} is not whole, or was changed after it was written: copy the batch again")


def open_copy(store: Store, copy: CopyFile, by: Actor) -> Batch:
    """Open a copy in a store. The batch is paused there, so that it is not worked on in two places by accident."""
    installed = store.install(copy)
    note = {"from": copy.store, "head": copy.batch.head.hex(), "entries": copy.batch.seq}
    body = journal.Acted(reason=by.reason, note=canonical.encode(note))
    batch = store.amend(installed.id, course.to_note(ARRIVED, body), actor=by.name).batch
    if batch.sealed_at is None and batch.course is BatchMode.OPEN:
        batch = store.amend(batch.id, course.to_course(BatchMode.PAUSED, reason=by.reason), actor=by.name).batch
    return batch


def preview(store: Store, copy: CopyFile) -> Preview:
    """Return what opening a copy would do."""
    check_installable(store, copy)
    name, items = copy.batch.name, copy.batch.admitted
    settled = sum(chunk.counts.settled for chunk in copy.chunks)
    title = (
        f"Batch {name} would be opened here, paused: {many(items, 'item')}, {settled:,} of them settled, copied from "
        f"{copy.store}."
    )
    facts = {"act": "open copy", "items": items, "settled": settled, "from": copy.store, "head": copy.batch.head.hex()}
    return Preview(
        batch=name, keys="act batch items settled from head", items=items, counts={}, facts=facts,
        question=f"Open batch {name} here", titles=(title,), nothing_to_do=False,
        perform=lambda by, _: _opened(store, copy, by),
    )  # fmt: skip


def _opened(store: Store, copy: CopyFile, by: Actor) -> ActResult:
    batch = open_copy(store, copy, by)
    return ActResult(kind=ARRIVED, batch=batch.name, changed=batch.admitted)
