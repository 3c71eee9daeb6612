"""Documents of chunks and notes of batches that an earlier version wrote: what the format of that time did not store,
and how the same is written now. Nothing is written here; documents before format 3 are read by `documents.decode`."""

import hashlib
from collections.abc import Callable

import msgspec

from holdfast.core import canonical, journal
from holdfast.core.model import Key, Kind
from holdfast.stores.bucket import names
from holdfast.stores.bucket.documents import FORMAT, BatchDocument, ChunkDocument

replace = msgspec.structs.replace
ROW = "row "
"""The prefix of the keys of buried rows of a scan, in a store whose chunks do not store their kind."""


def is_scan(batch: BatchDocument) -> bool:
    """Return whether a batch was a scan by the rule of the first format: its only stage has a source."""
    stages = canonical.decode(batch.batch.definition)["stages"]
    return len(stages) == 1 and isinstance(stages[0], dict) and "source" in stages[0]


def with_kind(document: ChunkDocument, key: Key | None) -> ChunkDocument:
    """Return the document of a chunk of a scan with its kind, which the first format did not store: the key of its
    first item distinguishes rows from partitions. `key` is None for a chunk that the batch does not name yet: then only
    rows begin as dead letters."""
    chunk = document.chunk
    is_row = chunk.counts.dead == chunk.size if key is None else isinstance(key, str) and key.startswith(ROW)
    return replace(document, chunk=replace(chunk, kind=Kind.ROWS if is_row else Kind.PARTITIONS))


def upgraded(document: ChunkDocument, stages: int, salt_of: Callable[[int], bytes]) -> ChunkDocument:
    """Return the document of a chunk that was written before format 3 as it is written now: `stages` is their number in
    its batch, and `salt_of` returns the salt of an item."""
    chunk = document.chunk
    return replace(
        document,
        format=FORMAT,
        chunk=replace(chunk, number=names.number_of(chunk.id), first=0, end=stages),
        checkpoints={
            n: at if at.acc is None else replace(at, acc=salt_of(n) + at.acc) for n, at in document.checkpoints.items()
        },
    )


def digest_of(kind: str, body: journal.Body) -> bytes:
    """Return the digest by which a batch remembered before format 3 that a note was written."""
    return hashlib.sha256(kind.encode() + b"\0" + journal.encode_content(body)).digest()[:16]
