"""The names of all objects in a bucket store, below its prefix.

    root.json                                    the names of the batches
    b/0000001/batch.json                         a batch
    b/0000001/c/00000003.json                    a chunk
    b/0000001/g/00000000000-3f….keys, .data      a group of items: keys, marks, sizes; payloads with their salts
    b/0000001/j/00000003/00000007-…-…-…          an entry, with its words: number, previous hash, its own hash, commit
    b/0000001/d/00000003/00000007-…-…-…          the outputs of the commit of that entry
    b/0000001/d/00000003/copy-00000001           outputs of a chunk that came with a copy of its batch

Names of entries contain both hashes, so that a listing alone shows which of them are in the chain: the remains of a
lost race are not linked by anything.
"""

from typing import NamedTuple

from holdfast.core.model import BatchId, ChunkId

CHUNK_BITS = 24
"""A chunk's id combines its batch and its number in the batch; in the first batch, ids are plain numbers."""
HASH_CHARS = 32
NOBODY = "0"

ROOT = "root.json"


class EntryName(NamedTuple):
    """The parts of the name of an entry."""

    seq: int
    before: str
    hash: str
    commit: str

    def __str__(self) -> str:
        return f"{self.seq:08}-{self.before}-{self.hash}-{self.commit}"


def probe(word: str) -> str:
    """Return the name of the object that tests whether the bucket supports compare-and-swap."""
    return f"probe/{word}.json"


def chunk_id(batch: BatchId, number: int) -> ChunkId:
    return ChunkId((batch - 1) << CHUNK_BITS | number)


def batch_of(chunk: int) -> BatchId:
    return BatchId((chunk >> CHUNK_BITS) + 1)


def number_of(chunk: int) -> int:
    """Return the number of a chunk in its batch."""
    return chunk & ((1 << CHUNK_BITS) - 1)


def batch(batch: BatchId) -> str:
    return f"b/{batch:07}/batch.json"


def chunk(batch: BatchId, number: int) -> str:
    return f"b/{batch:07}/c/{number:08}.json"


def chunks(batch: BatchId) -> str:
    return f"b/{batch:07}/c/"


def number_in(name: str) -> int:
    """Return the number of the chunk whose document has that name."""
    return int(name.rpartition("/")[2].partition(".")[0])


def group(batch: BatchId, lo: int, digest: bytes) -> str:
    return f"b/{batch:07}/g/{lo:011}-{digest.hex()[:HASH_CHARS]}"


def entries(batch: BatchId, number: int) -> str:
    """Return the prefix of the chain of a chunk; number 0 is the chain of the batch."""
    return f"b/{batch:07}/j/{number:08}/"


def data(batch: BatchId, number: int, name: EntryName | str) -> str:
    return f"b/{batch:07}/d/{number:08}/{name}"


def copied(batch: BatchId, number: int, part: int) -> str:
    """Return the name of a part of the outputs that a chunk had when its batch came from another store."""
    return f"b/{batch:07}/d/{number:08}/copy-{part:08}"


def entry(seq: int, before: bytes, hash_: bytes, commit_id: bytes) -> EntryName:
    return EntryName(seq, before.hex()[:HASH_CHARS], hash_.hex()[:HASH_CHARS], commit(commit_id))


def commit(commit_id: bytes) -> str:
    return commit_id.hex() or NOBODY


def parse_entry(name: str) -> EntryName:
    seq, before, hash_, said = name.rpartition("/")[2].split("-")
    return EntryName(int(seq), before, hash_, said)
