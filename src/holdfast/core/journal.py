"""The journal: entries and their bodies, packed columns of numbers, links, and the check of a chain."""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.canonical import fingerprint
from holdfast.core.errors import ChainBroken
from holdfast.core.model import Batch, BatchId, Chunk, Entry, Kind, chain_of_batch

FLOAT32, UINT16, UINT32 = "f", "H", "I"


def pack(kind: str, values: Sequence[float]) -> bytes:
    """Return the bytes of a column."""
    return struct.pack(f"<{len(values)}{kind}", *values)


def unpack(kind: str, data: bytes) -> tuple[Any, ...]:
    """Return the numbers of a column."""
    return struct.unpack(f"<{len(data) // struct.calcsize(kind)}{kind}", data)


GENESIS = bytes(32)
"""The hash that the first entry of a batch links to."""
STARTED = "started"
"""The kind of an entry with which an owner starts an item on trial (see `lease`); its body is empty."""
LIFTED = "blame_lifted"
"""The kind of an entry with which an operator clears the blame of a chunk; it moves no item."""


class Header(msgspec.Struct, frozen=True, array_like=True):
    """The header of an entry; array-like, so that its bytes are canonical."""

    chain: int
    batch: int
    seq: int
    kind: str
    at: float
    actor: str
    fence: int
    commit_id: bytes
    body_digest: bytes


class Numbers(msgspec.Struct, frozen=True, omit_defaults=True):
    """Item numbers, compact: a half-open range, or picks as offsets from its start."""

    lo: int
    hi: int
    picks: bytes = b""

    def __iter__(self) -> Iterator[int]:
        if not self.picks:
            return iter(range(self.lo, self.hi))
        return (self.lo + offset for offset in unpack(UINT32, self.picks))

    def __len__(self) -> int:
        return len(self.picks) // 4 if self.picks else self.hi - self.lo

    def __contains__(self, n: object) -> bool:
        if not isinstance(n, int) or not self.lo <= n < self.hi:
            return False
        return not self.picks or n - self.lo in unpack(UINT32, self.picks)


def numbers(ns: Sequence[int]) -> Numbers:
    """Return the compact form of ascending or mixed item numbers."""
    if not ns:
        return Numbers(0, 0)
    lo, hi = min(ns), max(ns) + 1
    if hi - lo == len(ns) and ns[0] == lo and ns[-1] == hi - 1 and all(map(int.__eq__, ns, range(lo, hi))):
        return Numbers(lo, hi)
    return Numbers(lo, hi, pack(UINT32, [n - lo for n in ns]))


class Spend(msgspec.Struct, frozen=True, omit_defaults=True):
    """The cost and metrics of one attempt, as its handler reported them."""

    n: int
    usd: int = 0
    tokens: int = 0
    model: str = ""
    usage: dict[str, Any] = {}
    metrics: dict[str, Any] = {}


class Advanced(msgspec.Struct, frozen=True, omit_defaults=True):
    """Items whose stage succeeded, in columns: one value per item in the order of `items`."""

    stage: int
    items: Numbers
    digests: bytes
    """SHA-256 over salt and output, 32 bytes each."""
    queued: bytes
    """Seconds between ready and started, float32 each."""
    seconds: bytes
    """Seconds of execution, float32 each."""
    attempts: bytes = b""
    """The number of the attempt that succeeded, uint16 each; empty when all were the first."""
    epochs: bytes = b""
    """uint16 each; empty when all are 0."""
    finished: bool = False
    """True if this was the last stage."""
    adopted: bool = False
    """True if the output already existed, valid and ours: nothing was run."""


class Attempted(msgspec.Struct, frozen=True, omit_defaults=True):
    """One attempt that did not end in an output, and its consequence."""

    n: int
    stage: int
    attempt: int
    epoch: int
    outcome: str
    """skip, defer, retry, bury, rewind"""
    code: str = ""
    message: str = ""
    due: float = 0.0
    deadline: float = 0.0
    """When its time budget would end if the next attempt began when due and took all of it."""
    queued: float = 0.0
    seconds: float = 0.0
    trace: str = ""
    to_stage: int = 0
    """The target stage of a rewind."""
    deferred: float = 0.0
    """Total seconds for which the item was deferred at its stage; 0 if an older version wrote the entry."""
    used: float = 0.0
    """Seconds used of its time budget, including the back-off that follows."""
    excused: bool = False
    """True if it failed for a reason unrelated to the item: statistics ignore it."""
    wait: float = 0.0
    """Planned seconds until `due`; 0 if an older version wrote the entry."""


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a partition of a source has been read."""

    n: int
    rows: int
    cursor: bytes = b""
    digest: bytes = b""
    """SHA-256 over salt and accumulator; empty if there is none."""
    seconds: float = 0.0
    """The duration of an attempt that ends with this checkpoint because its run or tick ends; an attempt that reaches
    the end of its partition records its duration itself."""


class Checkpointed(msgspec.Struct, frozen=True, omit_defaults=True, tag="checkpoint"):
    """The body of a worker's commit."""

    advanced: list[Advanced] = []
    attempts: list[Attempted] = []
    spends: list[tuple[int, Spend]] = []
    """(stage, spend) of every attempt that reported any."""
    positions: list[Position] = []
    released: bool = False
    due: float = 0.0
    made_by: list[tuple[int, str]] = []
    """(stage, maker) of every stage named here: the definition of the stage that was used (see `changes`); empty if an
    older version wrote the entry."""


class Snapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """An item past its first attempt, at the time of a claim."""

    n: int
    stage: int
    epoch: int
    attempt: int
    code: str = ""
    since: float = 0.0
    """When its first attempt ended; only in entries of the first formats, whose time budgets ran by the clock."""
    used: float = 0.0
    """Seconds used of its time budget."""


class Claimed(msgspec.Struct, frozen=True, omit_defaults=True, tag="claimed"):
    """A grant: the attempts that it may start. Items not listed are at the start or at a clean checkpoint."""

    lo: int
    hi: int
    expires: float
    blame: int = 0
    child: tuple[int, int, int] | None = None
    """(chunk, lo, hi) of the chunk that was cut off."""
    taken_from: str = ""
    """The owner whose grant ended without a release."""
    snapshots: list[Snapshot] = []


class Opened(msgspec.Struct, frozen=True, omit_defaults=True, tag="opened"):
    """A batch was opened, or its definition changed."""

    name: str
    pipeline: str
    definition: bytes


class Ingested(msgspec.Struct, frozen=True, omit_defaults=True, tag="ingested"):
    """A group of items was admitted, or the source was read to the end."""

    lo: int
    hi: int
    digests: bytes = b""
    """SHA-256 over salt and payload, 32 bytes each."""
    invalid: list[tuple[int, str]] = []
    chunk: int = 0
    ended: bool = False
    cursor: bytes = b""
    kind: Kind | None = None
    """The kind of their chunk; None if there is no chunk, or if an older version wrote the entry."""


class Moved(msgspec.Struct, frozen=True, omit_defaults=True):
    """One item of an operator's act, before and after."""

    n: int
    before: str
    after: str
    stage_before: int
    stage_after: int
    epoch: int
    digest: bytes = b""
    """The digest of the payload that replaced the stored one, if any."""
    output_digest: bytes = b""
    """The digest of the output that an operator supplied, if any."""
    position: Position | None = None
    """The position from which the item resumes, if that was changed."""


class Acted(msgspec.Struct, frozen=True, omit_defaults=True, tag="acted"):
    """An operator's act: redriven, resolved, discarded, reset, rewound."""

    reason: str
    items: list[Moved] = []
    seized: bool = False
    note: bytes = b""


class Steered(msgspec.Struct, frozen=True, omit_defaults=True, tag="steered"):
    """An operator, or the clock, changed how a batch continues."""

    course: str
    reason: str
    ends_at: float | None = None
    expected: int | None = None
    """The expected number of items."""
    closed: bool = False
    """True if it takes no new items from now on."""


class Sealed(msgspec.Struct, frozen=True, omit_defaults=True, tag="sealed"):
    """A batch is finished: nothing is pending, everything is accounted for, and no more work is accepted."""

    chunks: int
    heads: bytes
    """SHA-256 over number, length and head of every chunk's chain, in the order of the chunks."""
    expected: int
    done: int
    skipped: int
    dead: int
    cancelled: int
    reconciliation: bytes = b""
    """The comparison and its findings, as canonical JSON."""
    reason: str = ""
    """The reason given for the seal; empty in entries of versions that did not store it."""


class Reopened(msgspec.Struct, frozen=True, omit_defaults=True, tag="reopened"):
    """A seal was lifted; the entry that made it remains."""

    reason: str


Body = Checkpointed | Claimed | Opened | Ingested | Acted | Steered | Sealed | Reopened

_body_encoder = msgspec.msgpack.Encoder()
_body_decoder = msgspec.msgpack.Decoder(Body)
_header_decoder = msgspec.msgpack.Decoder(Header)

encode_body = _body_encoder.encode
decode_body = _body_decoder.decode
decode_header = _header_decoder.decode


def maker(described: Mapping[str, Any]) -> str:
    """Return the name under which the journal lists a stage with this description."""
    return fingerprint([described.get(part) for part in ("code", "input", "output", "shapes", "sink")])[:16]


def link(
    prev: bytes,
    *,
    chain: int,
    batch: BatchId,
    seq: int,
    kind: str,
    at: float,
    actor: str,
    fence: int,
    commit_id: bytes,
    body: bytes,
) -> Entry:
    """Return the next entry of a chain, linked to the hash of the one before."""
    header = _body_encoder.encode(
        Header(chain, batch, seq, kind, at, actor, fence, commit_id, hashlib.sha256(body).digest())
    )
    return Entry(chain=chain, seq=seq, head=header, body=body, hash=_hash(prev, header))


def link_batch(batch: Batch, kind: str, body: bytes, actor: str, now: float) -> Entry:
    """Return the next entry in the chain of a batch."""
    return link(batch.head, chain=chain_of_batch(batch.id), batch=batch.id, seq=batch.seq + 1, kind=kind, at=now,
                actor=actor, fence=0, commit_id=b"", body=body)  # fmt: skip


def link_chunk(chunk: Chunk, kind: str, body: bytes, actor: str, fence: int, commit_id: bytes, now: float) -> Entry:
    """Return the next entry in the chain of a chunk."""
    return link(chunk.head, chain=chunk.id, batch=chunk.batch, seq=chunk.seq + 1, kind=kind, at=now, actor=actor,
                fence=fence, commit_id=commit_id, body=body)  # fmt: skip


def check(entry: Entry, prev: bytes | None) -> Header:
    """Return the entry's header, or raise ChainBroken with the reason."""
    where = name(entry.chain, entry.seq)
    if prev is not None and _hash(prev, entry.head) != entry.hash:
        raise ChainBroken(f"{where}: its hash does not follow from the entry before; it was changed, or one is missing")
    try:
        header = decode_header(entry.head)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ChainBroken(f"{where}: its header cannot be read ({error})") from None
    if (header.chain, header.seq) != (entry.chain, entry.seq):
        raise ChainBroken(f"{where}: its header says it is {name(header.chain, header.seq)}; it was moved or copied")
    if hashlib.sha256(entry.body).digest() != header.body_digest:
        raise ChainBroken(f"{where}: its body was changed")
    return header


def check_chain(entries: Iterable[Entry], *, start: bytes, head: bytes, seq: int) -> Iterator[tuple[Entry, Header]]:
    """Yield every entry of a chain with its header, checked from the start to the head that the store knows."""
    prev, expected = start, 1
    last: Entry | None = None
    for entry in entries:
        if entry.seq != expected:
            raise ChainBroken(
                f"{name(entry.chain, expected)} is missing: entry {entry.seq} follows entry {expected - 1}"
            )
        yield entry, check(entry, prev)
        prev, expected, last = entry.hash, expected + 1, entry
    if expected - 1 != seq or prev != head:
        where = name(last.chain, last.seq) if last else "the chain"
        raise ChainBroken(
            f"{where} ends at entry {expected - 1}, but the store's head is entry {seq}: the end was cut off or changed"
        )


def name(chain: int, seq: int) -> str:
    """Return the name of an entry for messages."""
    return f"entry {seq} of batch {-chain}" if chain < 0 else f"entry {seq} of chunk {chain}"


def _hash(prev: bytes, header: bytes) -> bytes:
    return hashlib.sha256(prev + header).digest()
