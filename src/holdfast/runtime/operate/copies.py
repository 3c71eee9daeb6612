"""Whole batches in one file: written from one store, opened in another.

A copy has everything that the store holds of a batch: items with all revisions, outputs, checkpoints, and every entry
with its words. Its uid, its chunk numbers and all commitments are independent of the store, so it verifies wherever it
is opened. Files that a sink wrote are not part of it.

The file is a first line, then parts, each with its length; the last one has the SHA-256 of everything before it.
"""

import hashlib
import os
import struct
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from holdfast.core import canonical, course, journal, record, sections
from holdfast.core.errors import ChainBroken, Conflict, Refused, UsageError
from holdfast.core.model import Batch, BatchMode, Checkpoint, Chunk, Entry, Output, StoredItem, chain_of_batch
from holdfast.core.plain import Plain
from holdfast.runtime.acts import Actor, ActResult, Preview
from holdfast.runtime.operate.target import whole_or_absent
from holdfast.runtime.text import many
from holdfast.stores import owners
from holdfast.stores.base import (
    CopiedItem,
    Store,
    check_installable,
    each_checkpoint,
    each_entry,
    each_item,
    each_output,
    find_batch,
    random_bytes,
)

SUFFIX = ".batch"
MAGIC = b"Holdfast batch 1\n"
LENGTH = struct.Struct(">I")
LONGEST = 1 << 30
ARRIVED = "arrived"


class CopyStart(msgspec.Struct, frozen=True, tag=True):
    """The first part: the batch, and its chunks."""

    batch: Batch
    chunks: list[Chunk]
    store: str


class CopyItem(msgspec.Struct, frozen=True, tag=True):
    """One item."""

    revisions: list[StoredItem]
    outputs: list[Output]


class CopyCheckpoint(msgspec.Struct, frozen=True, tag=True):
    """The checkpoint of a partition."""

    at: Checkpoint


class CopyEntry(msgspec.Struct, frozen=True, tag=True):
    """One entry; `chain` is the number of its chain within the batch."""

    chain: int
    entry: Entry


class CopyEnd(msgspec.Struct, frozen=True, tag=True):
    """The last part."""

    digest: bytes


Part = CopyStart | CopyItem | CopyCheckpoint | CopyEntry | CopyEnd
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Part).decode


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
    if held := [chunk for chunk in chunks if owners.is_live(chunk, store.now())]:
        raise Refused(
            f"batch {batch.name!r} is being worked on by {owners.short(held[0].owner or '')}: stop its runs, or wait "
            "until they have ended"
        )
    if any(entry_is_old(entry) for entry in store.entries(chain_of_batch(batch.id), limit=1)):
        raise Refused(
            f"batch {batch.name!r} was begun in an older format, whose entries name it by its number in this store: it "
            "stays here; items that are left can be run as a new batch elsewhere"
        )
    counts = {"items": 0, "entries": 0}
    with whole_or_absent(path) as stream:
        if not path.exists():
            with suppress(OSError):
                os.fchmod(stream.fileno(), 0o600)  # it has every payload
        out = _Writer(stream)
        out.put(CopyStart(batch, chunks, store.url))
        for item in _items(store, batch):
            out.put(item)
            counts["items"] += 1
        for at in each_checkpoint(store, batch.id):
            out.put(CopyCheckpoint(at))
        for number, chain in [(0, chain_of_batch(batch.id)), *((chunk.number, int(chunk.id)) for chunk in chunks)]:
            for entry in each_entry(store, chain):
                out.put(CopyEntry(number, entry))
                counts["entries"] += 1
        out.close()
        now = find_batch(store, batch.name)
        if now is None or (now.seq, course.cover(store.chunks(batch.id))) != (batch.seq, course.cover(chunks)):
            raise Conflict(f"batch {batch.name!r} changed while it was copied: try again; nothing was written")
    return CopySummary(path=str(path), batch=batch.name, head=batch.head.hex(), **counts)


def entry_is_old(entry: Entry) -> bool:
    """Return whether an entry has the first format, which names a batch by its number in one store."""
    return journal.decode_header(entry.head).format == 1


def _items(store: Store, batch: Batch) -> Iterator[CopyItem]:
    outputs = iter(each_output(store, batch.id))
    waiting = next(outputs, None)
    for item in each_item(store, batch.id):
        mine: list[Output] = []
        while waiting is not None and waiting.n <= item.n:
            mine += [waiting] if waiting.n == item.n else []
            waiting = next(outputs, None)
        yield CopyItem(store.revisions(batch.id, item.n) if item.revision else [item], mine)


class _Writer:
    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._found = stream, hashlib.sha256()
        self._write(MAGIC)

    def put(self, part: Part) -> None:
        data = _encode(part)
        if len(data) > LONGEST:
            raise UsageError(f"a part of {len(data):,} bytes is too large for a copy")
        self._write(LENGTH.pack(len(data)) + data)

    def close(self) -> None:
        data = _encode(CopyEnd(self._found.digest()))
        self._stream.write(LENGTH.pack(len(data)) + data)

    def _write(self, data: bytes) -> None:
        self._found.update(data)
        self._stream.write(data)


# -- opening ----------------------------------------------------------------------------------------------------------


class CopyFile:
    """A copy in a file: the batch and its chunks, and everything else part by part, as often as needed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._unreadable(error) from None
        weakref.finalize(self, os.close, self._fd)
        self._check()
        first = next(self._all_parts())
        if not isinstance(first, CopyStart):
            raise self._damaged()
        self.batch, self.store = first.batch, first.store
        self.chunks: Sequence[Chunk] = first.chunks

    def items(self) -> Iterator[CopiedItem]:
        return (CopiedItem(each.revisions, each.outputs) for each in self._all_parts() if isinstance(each, CopyItem))

    def checkpoints(self) -> Iterator[Checkpoint]:
        return (each.at for each in self._all_parts() if isinstance(each, CopyCheckpoint))

    def entries(self) -> Iterator[tuple[int, Entry]]:
        return ((each.chain, each.entry) for each in self._all_parts() if isinstance(each, CopyEntry))

    def _check(self) -> None:
        """Refuse a file that is not a copy, or not whole."""
        found, last = hashlib.sha256(MAGIC), None
        for data, part in self._parts():
            if isinstance(last, CopyEnd):
                raise self._damaged()
            last = part
            if not isinstance(part, CopyEnd):
                found.update(LENGTH.pack(len(data)) + data)
        if not isinstance(last, CopyEnd) or last.digest != found.digest():
            raise self._damaged()

    def _all_parts(self) -> Iterator[Part]:
        return (part for _, part in self._parts())

    def _parts(self) -> Iterator[tuple[bytes, Part]]:
        """Yield all parts of the file that was opened first, whatever is at its path by now."""
        at = len(MAGIC)
        try:
            if os.pread(self._fd, at, 0) != MAGIC:
                raise UsageError(f"{self._path} is not a copy of a batch, which export --copy writes")
            while head := os.pread(self._fd, LENGTH.size, at):
                if len(head) < LENGTH.size or (size := LENGTH.unpack(head)[0]) > LONGEST:
                    raise self._damaged()
                data = os.pread(self._fd, size, at + LENGTH.size)
                if len(data) < size:
                    raise self._damaged()
                at += LENGTH.size + size
                yield data, _decode(data)
        except OSError as error:
            raise self._unreadable(error) from None
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
            raise self._damaged() from None

    def _unreadable(self, error: OSError) -> UsageError:
        return UsageError(f"{self._path} cannot be read: {error.strerror or error}")

    def _damaged(self) -> UsageError:
        return UsageError(f"{self._path} is not whole, or was changed after it was written: copy the batch again")


def open_copy(store: Store, copy: CopyFile, by: Actor) -> Batch:
    """Open a copy in a store. The batch is paused there, so that it is not worked on in two places by accident: it
    arrives with the entries that say so, in one write."""
    check_chains(copy)
    return store.install(ArrivingCopy(copy, by, store.now()))


def check_chains(copy: CopyFile) -> None:
    """Refuse a copy whose journal is not whole: every chain must begin where another one says, and end at its head."""
    starts, ends = {0: journal.GENESIS}, dict[int, tuple[bytes, int]]()
    try:
        for number, entry in copy.entries():
            prev, seq = ends[number] if number in ends else (starts[number], 0)
            header = journal.check(entry, prev, journal.Chain(copy.batch.uid, number, entry.chain), copy.batch.id)
            if header.seq != seq + 1:
                raise ChainBroken(f"entry {header.seq} of chunk {number} follows entry {seq}")
            starts |= _starts(sections.decode(entry, header), prev, entry)
            ends[number] = (entry.hash, entry.seq)
    except (ChainBroken, LookupError, msgspec.DecodeError, TypeError, ValueError) as error:
        raise Refused(f"its journal is not whole ({error}): copy the batch again; nothing was changed") from None
    wanted = {0: (copy.batch.head, copy.batch.seq)} | {c.number: (c.head, c.seq) for c in copy.chunks}
    if {
        number: ends.get(number, (starts.get(number), 0)) for number in wanted
    } != wanted or ends.keys() - wanted.keys():
        raise Refused("its journal does not end where its batch and chunks say: copy it again; nothing was changed")


def _starts(body: journal.Body, prev: bytes, entry: Entry) -> dict[int, bytes]:
    """Return the chains that begin at an entry, with the hash that each begins at."""
    if isinstance(body, journal.Ingested) and body.hi > body.lo:
        return {body.chunk: entry.hash}
    if isinstance(body, journal.Claimed) and body.child is not None:
        return {body.child[0]: prev}
    return {body.successor: entry.hash} if isinstance(body, journal.ChainEnded) else {}


def is_to_continue(copy: CopyFile) -> bool:
    """Return whether work is left in a copied batch, so that it must be paused where it arrives."""
    batch, pending = copy.batch, sum(chunk.pending for chunk in copy.chunks)
    is_left = pending > 0 or batch.ingested_at is None
    return is_left and batch.sealed_at is None and batch.course is BatchMode.OPEN


class ArrivingCopy:
    """A copy with the entries that it gets where it is opened."""

    def __init__(self, copy: CopyFile, by: Actor, now: float) -> None:
        self._copy, self._by, self._now = copy, by, now
        self.batch, self.chunks = copy.batch, copy.chunks
        self._added: list[Entry] = []
        note = {"from": copy.store, "head": copy.batch.head.hex(), "entries": copy.batch.seq}
        self._add(ARRIVED, journal.Acted(reason=by.reason, note=canonical.encode(note)))
        if is_to_continue(copy):
            body = course.steer(self.batch, BatchMode.PAUSED, reason=by.reason, ends_at=self.batch.ends_at)
            assert body is not None
            self.batch = course.steered(self.batch, body, now)
            self._add("steered", body)

    def _add(self, kind: str, body: journal.Body) -> None:
        entry = record.link_batch(self.batch, kind, body, self._by.name, self._now, random_bytes)
        self.batch = msgspec.structs.replace(self.batch, seq=entry.seq, head=entry.hash)
        self._added.append(entry)

    def items(self) -> Iterator[CopiedItem]:
        return self._copy.items()

    def checkpoints(self) -> Iterator[Checkpoint]:
        return self._copy.checkpoints()

    def entries(self) -> Iterator[tuple[int, Entry]]:
        """Yield all entries: the batch's own first, then those that were added to it, then those of its chunks."""
        is_added = False
        for number, entry in self._copy.entries():
            if number and not is_added:
                yield from ((0, each) for each in self._added)
                is_added = True
            yield number, entry
        if not is_added:
            yield from ((0, each) for each in self._added)


def preview(store: Store, copy: CopyFile) -> Preview:
    """Return what opening a copy would do."""
    check_installable(store, copy)
    name, items = copy.batch.name, copy.batch.admitted
    settled = sum(chunk.counts.settled for chunk in copy.chunks)
    title = (
        f"Batch {name} would be opened here{', paused' if is_to_continue(copy) else ''}: {many(items, 'item')}, "
        f"{settled:,} of them settled, copied from {copy.store}."
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
