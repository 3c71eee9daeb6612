"""The journal: entries and their bodies, packed columns of numbers, links, and the check of a chain.

An entry has a header and a body. The header names the batch by its uid and the chain by its number within the batch, so
an entry means the same in every store. The hash of an entry covers the hash of the one before and its header; the
header has a commitment to every section of the body (see `sections`). Entries of format 1 named both by the numbers
that one store gave them, and had one digest of the whole body: they are read and checked, and no longer written.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.core import commitments
from holdfast.core.canonical import fingerprint
from holdfast.core.errors import ChainBroken
from holdfast.core.model import Batch, BatchId, Chunk, Entry, Kind, TextFrame, chain_of_batch

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


FORMAT = 2
"""The format of the entries that are written."""


class Header(msgspec.Struct, frozen=True, array_like=True):
    """The header of an entry; array-like, so that its bytes are canonical."""

    format: int
    uid: bytes
    """The uid of the batch; empty in format 1."""
    chain: int
    """The number of the chain within the batch: 0 for the batch's own, else that of the chunk. In format 1, the number
    that the store gave it: that of the chunk, or minus that of the batch."""
    seq: int
    kind: str
    at: float
    actor: str
    fence: int
    grant: bytes
    """The id of the grant under which it was written; empty for acts and for the batch's own chain."""
    commit_id: bytes
    sections: list[tuple[int, bytes]]
    """(boundary, commitment) of every section of the body; in format 1, one digest of all of it."""
    batch: int = 0
    """The number that the store gave the batch; only in format 1."""


class FirstHeader(msgspec.Struct, frozen=True, array_like=True):
    """The header of an entry of format 1."""

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

    def index(self, n: int) -> int | None:
        """Return the position of an item among ascending numbers, without unpacking them; None if it is not one."""
        if not self.lo <= n < self.hi or not self.picks:
            return n - self.lo if self.lo <= n < self.hi else None
        lo, hi = 0, len(self)
        while lo < hi:
            middle = (lo + hi) // 2
            if int.from_bytes(self.picks[4 * middle : 4 * middle + 4], "little") < n - self.lo:
                lo = middle + 1
            else:
                hi = middle
        return lo if self.picks[4 * lo : 4 * lo + 4] == (n - self.lo).to_bytes(4, "little") else None


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
    said: bytes = b""
    """The commitment to usage and metrics, in a stored section: see `sections`. So in the other bodies."""


class Advanced(msgspec.Struct, frozen=True, omit_defaults=True):
    """Items whose stage succeeded, in columns: one value per item in the order of `items`."""

    stage: int
    items: Numbers
    digests: bytes
    """Commitments to the outputs, 32 bytes each; the store fills them in."""
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
    said: bytes = b""


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a partition of a source has been read."""

    n: int
    rows: int
    cursor: bytes = b""
    digest: bytes = b""
    """The commitment to the accumulator; empty if there is none. The store fills it in."""
    seconds: float = 0.0
    """The duration of an attempt that ends with this checkpoint because its run or tick ends; an attempt that reaches
    the end of its partition records its duration itself."""
    mark: bytes = b""
    """A keyed mark by which the store recognises the same accumulator: every commitment to it has another salt. Empty
    in format 1, whose digests can be compared."""
    said: bytes = b""


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
    """(number, lo, hi) of the chunk that was cut off; in format 1, with the number that the store gave it."""
    taken_from: str = ""
    """The owner whose grant ended without a release."""
    snapshots: list[Snapshot] = []


class TriedItems(msgspec.Struct, frozen=True, omit_defaults=True, tag="tried"):
    """The part of a grant that belongs to one stage; readers get it as part of `Claimed`."""

    snapshots: list[Snapshot] = []


class Carried(msgspec.Struct, frozen=True, omit_defaults=True):
    """One item of a chunk whose chain ends, as its successor takes it over."""

    n: int
    state: str
    stage: int
    epoch: int
    payload: bytes
    """The commitment to the newest revision of its payload."""
    revision: int = 0
    outputs: list[tuple[int, int, bytes]] = []
    """(stage, epoch, commitment) of every output."""
    position: Position | None = None


class ChainEnded(msgspec.Struct, frozen=True, omit_defaults=True, tag="ended"):
    """The chain of a chunk ends here: its items are in a successor from now on."""

    successor: int
    """The number of the chunk that continues it."""
    state: bytes
    """The digest of what the successor takes over."""


class Continued(msgspec.Struct, frozen=True, omit_defaults=True, tag="continued"):
    """The first entry of a successor: with what it takes over, it can be checked even if the chain before it was
    archived."""

    predecessor: int
    seq: int
    """The number of the last entry of the predecessor."""
    head: bytes
    """The hash of that entry."""
    state: bytes
    lo: int
    hi: int
    counts: list[int] = []
    """Its totals: done, skipped, dead, cancelled, attempts, money, tokens."""
    seconds: float = 0.0
    items: list[Carried] = []


class Opened(msgspec.Struct, frozen=True, omit_defaults=True, tag="opened"):
    """A batch was opened, or its definition changed."""

    name: str
    pipeline: str
    definition: bytes


class RefusalReason(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why an item was refused, in words."""

    n: int
    reason: str = ""
    said: bytes = b""


class Ingested(msgspec.Struct, frozen=True, omit_defaults=True, tag="ingested"):
    """A group of items was admitted, or the source was read to the end."""

    lo: int
    hi: int
    digests: bytes = b""
    """Commitments to keys and payloads, 32 bytes each."""
    invalid: list[tuple[int, str]] = []
    """(item, code) of those that were refused: dead letters from the beginning."""
    chunk: int = 0
    """The number of their chunk; in format 1, the one that the store gave it."""
    ended: bool = False
    cursor: bytes = b""
    """Always empty."""
    kind: Kind | None = None
    """The kind of their chunk; None if there is no chunk, or if an older version wrote the entry."""
    leg: int = 0
    first: int = 0
    end: int = 0
    """The window of stages that they pass through; 0 if an older version wrote the entry."""
    source: str = ""
    schema: str = ""
    raw_items: Numbers | None = None
    """The items that validation changed."""
    raws: bytes = b""
    """Commitments to those items as their source gave them, 32 bytes each."""
    parents: list[tuple[int, int]] = []
    """(item, parent) of items that were made of another."""
    refusals: list["RefusalReason"] = []


class Moved(msgspec.Struct, frozen=True, omit_defaults=True):
    """One item of an operator's act, before and after."""

    n: int
    before: str
    after: str
    stage_before: int
    stage_after: int
    epoch: int
    digest: bytes = b""
    """The commitment to the next revision of its payload, if it has one."""
    output_digest: bytes = b""
    """The commitment to the output that an operator supplied, if any."""
    position: Position | None = None
    """The position from which the item resumes, if that was changed."""
    revision: int = 0
    """The number of that revision."""
    raw_digest: bytes = b""
    """The commitment to that revision as its source gave it, if validation changed it."""
    source: str = ""
    """The source of that revision, in words."""
    schema: str = ""
    """The fingerprint of the schema that validated it."""
    refused: str = ""
    """The code with which it was refused, if it is not valid."""


class Acted(msgspec.Struct, frozen=True, omit_defaults=True, tag="acted"):
    """An operator's act: redriven, resolved, discarded, reset, rewound."""

    reason: str = ""
    items: list[Moved] = []
    seized: bool = False
    note: bytes = b""
    said: bytes = b""


class Steered(msgspec.Struct, frozen=True, omit_defaults=True, tag="steered"):
    """An operator, or the clock, changed how a batch continues."""

    course: str
    reason: str = ""
    ends_at: float | None = None
    expected: int | None = None
    """The expected number of items."""
    closed: bool = False
    """True if it takes no new items from now on."""
    said: bytes = b""


class Sealed(msgspec.Struct, frozen=True, omit_defaults=True, tag="sealed"):
    """A batch is finished: nothing is pending, everything is accounted for, and no more work is accepted."""

    chunks: int
    heads: bytes
    """SHA-256 over number, length and head of every chunk's chain, in the order of the chunks (see `course.cover`)."""
    expected: int
    done: int
    skipped: int
    dead: int
    cancelled: int
    reconciliation: bytes = b""
    """The comparison and its findings, as canonical JSON."""
    reason: str = ""
    """The reason given for the seal; empty in entries of versions that did not store it."""
    said: bytes = b""


class Reopened(msgspec.Struct, frozen=True, omit_defaults=True, tag="reopened"):
    """A seal was lifted; the entry that made it remains."""

    reason: str = ""
    said: bytes = b""


class Formatted(msgspec.Struct, frozen=True, omit_defaults=True, tag="formatted"):
    """A batch of format 1 continues in format 2: everything that is written from now on names it by its uid."""

    batch: int
    """The number that the store gave the batch."""
    chunks: list[tuple[int, int]] = []
    """(number that the store gave it, number within the batch) of every chunk that it has by then."""


Body = (
    Checkpointed | Claimed | TriedItems | ChainEnded | Continued | Opened | Ingested | Acted | Steered | Sealed
    | Reopened | Formatted
)  # fmt: skip

_encode = msgspec.msgpack.Encoder().encode
_decode_body = msgspec.msgpack.Decoder(Body).decode
_decode_header = msgspec.msgpack.Decoder(Header).decode
_decode_first = msgspec.msgpack.Decoder(FirstHeader).decode
_decode_sections = msgspec.msgpack.Decoder(list[tuple[int, bytes]]).decode
_FIRST = 0x90 + len(FirstHeader.__struct_fields__)
"""The first byte of a header of format 1."""

encode_content = _encode
"""The bytes of one section of a body, or of the whole body in format 1."""
decode_content = _decode_body


class Encoded(NamedTuple):
    """A body as it is stored: its sections, each as a frame of salt and content, and the words they commit to."""

    body: bytes
    sections: list[tuple[int, bytes]]
    texts: tuple[TextFrame, ...] = ()


class Chain(NamedTuple):
    """The identity of a chain: in every store, and in this one."""

    uid: bytes
    number: int
    """0 for the batch's own."""
    id: int
    """The number of the chunk in this store, or minus that of the batch."""


def chain_of(batch: Batch, chunk: Chunk | None = None) -> Chain:
    """Return the identity of the chain of a batch, or of one of its chunks."""
    if chunk is None:
        return Chain(batch.uid, 0, chain_of_batch(batch.id))
    return Chain(batch.uid, chunk.number, chunk.id)


def decode_header(head: bytes) -> Header:
    """Return a header of any format."""
    if head[:1] != bytes([_FIRST]):
        found: Header = _decode_header(head)
        if found.format != FORMAT:
            raise msgspec.ValidationError(f"it has format {found.format}, which this version does not know")
        return found
    old = _decode_first(head)
    return Header(1, b"", old.chain, old.seq, old.kind, old.at, old.actor, old.fence, b"", old.commit_id,
                  [(0, old.body_digest)], old.batch)  # fmt: skip


def frames_of(body: bytes) -> list[tuple[int, bytes]]:
    """Return the sections of a stored body: (boundary, frame)."""
    return _decode_sections(body)


def maker(described: Mapping[str, Any]) -> str:
    """Return the name under which the journal lists a stage with this description."""
    return fingerprint([described.get(part) for part in ("code", "input", "output", "shapes", "sink")])[:16]


def link(
    prev: bytes,
    chain: Chain,
    *,
    seq: int,
    kind: str,
    at: float,
    actor: str,
    encoded: Encoded,
    fence: int = 0,
    grant: bytes = b"",
    commit_id: bytes = b"",
) -> Entry:
    """Return the next entry of a chain, linked to the hash of the one before."""
    header = _encode((FORMAT, chain.uid, chain.number, seq, kind, at, actor, fence, grant, commit_id, encoded.sections))
    return Entry(chain=chain.id, seq=seq, head=header, body=encoded.body, hash=_hash(prev, header), texts=encoded.texts)


def check(entry: Entry, prev: bytes | None, chain: Chain, batch: BatchId) -> Header:
    """Return the entry's header, or raise ChainBroken with the reason."""
    where = name(entry.chain, entry.seq)
    if prev is not None and _hash(prev, entry.head) != entry.hash:
        raise ChainBroken(f"{where}: its hash does not follow from the entry before; it was changed, or one is missing")
    try:
        header = decode_header(entry.head)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ChainBroken(f"{where}: its header cannot be read ({error})") from None
    _check_place(where, entry, header, chain, batch)
    _check_sections(where, entry, header)
    return header


def _check_place(where: str, entry: Entry, header: Header, chain: Chain, batch: BatchId) -> None:
    if header.format == 1:
        said, is_ours = name(header.chain, header.seq), (header.chain, header.batch) == (chain.id, batch)
    else:
        said = name(-1 if header.chain == 0 else header.chain, header.seq)
        is_ours = (header.uid, header.chain) == (chain.uid, chain.number)
    if not is_ours or header.seq != entry.seq:
        raise ChainBroken(f"{where}: its header says it is {said} of another batch or chain; it was moved or copied")


def _check_sections(where: str, entry: Entry, header: Header) -> None:
    changed = ChainBroken(f"{where}: its body was changed")
    if header.format == 1:
        if hashlib.sha256(entry.body).digest() != header.sections[0][1]:
            raise changed
        return
    try:
        frames = frames_of(entry.body)
    except (msgspec.DecodeError, msgspec.ValidationError):
        raise changed from None
    if [(boundary, _commit(header, boundary, frame)) for boundary, frame in frames] != header.sections:
        raise changed


def _commit(header: Header, boundary: int, frame: bytes) -> bytes:
    salt, content = commitments.unframe(frame)
    return commitments.section(header.uid, header.chain, boundary, header.commit_id, salt, content)


def check_chain(
    entries: Iterable[Entry], chain: Chain, batch: BatchId, *, start: bytes, head: bytes, seq: int
) -> Iterator[tuple[Entry, Header]]:
    """Yield every entry of a chain with its header, checked from the start to the head that the store knows."""
    prev, expected = start, 1
    last: Entry | None = None
    for entry in entries:
        if entry.seq != expected:
            raise ChainBroken(
                f"{name(entry.chain, expected)} is missing: entry {entry.seq} follows entry {expected - 1}"
            )
        yield entry, check(entry, prev, chain, batch)
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
