"""Batches, chunks, items, claims and commits, as frozen values.

A user starts and resumes a batch. Its items get numbers when they are admitted. A chunk is a half-open range of those
numbers: the unit of claim, lease, fence and commit. The item is the unit of success, retry and dead letter.
"""

from enum import StrEnum
from typing import TYPE_CHECKING, NewType

import msgspec

from holdfast.core.errors import UsageError

if TYPE_CHECKING:
    from holdfast.core.journal import Checkpointed

BatchId = NewType("BatchId", int)
ChunkId = NewType("ChunkId", int)
ItemNo = NewType("ItemNo", int)
Key = str | int


class State(StrEnum):
    """The state of an item. Its position is separate: see `ItemHandle.stage`."""

    PENDING = "pending"
    DONE = "done"
    SKIPPED = "skipped"
    DEAD = "dead"
    CANCELLED = "cancelled"


class Kind(StrEnum):
    """How the items of a chunk are worked on. All items of a chunk are admitted together and have one kind for good: a
    chunk that is cut off another has the same kind. Neither an item nor its key stores it."""

    ITEMS = "items"
    """The items pass through the stages of a pipeline."""
    PARTITIONS = "partitions"
    """Partitions of the source of a scan: each is read row by row and has a checkpoint."""
    ROWS = "rows"
    """Rows of the source of a scan that were buried one by one: each is handled alone."""


class BatchMode(StrEnum):
    """The course of a batch: whether it may be worked on. Its completion is derived separately."""

    OPEN = "open"
    PAUSED = "paused"
    CANCELLED = "cancelled"


class Value(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The base of the frozen values below. They cannot form cycles, so the garbage collector does not track them."""


class Batch(Value, frozen=True, kw_only=True):
    """A named set of items that a user starts, resumes, reconciles and seals."""

    id: BatchId
    """Its number in this store; in another store it has another one."""
    uid: bytes = b""
    """A random id that it keeps wherever it is: the journal and all commitments name it."""
    name: str
    pipeline: str
    definition: bytes
    """Canonical JSON of the stages as they were when the batch was opened."""
    opened_at: float
    admitted: int
    """The number of admitted items, which is the number of the next item."""
    ingested_at: float | None = None
    """When the batch was known to have all its items: its source was read to the end, the expected number was reached,
    or it was closed. None while more items may come."""
    course: BatchMode = BatchMode.OPEN
    ends_at: float | None = None
    """When the batch ends, complete or not; None for a batch without a time limit."""
    sealed_at: float | None = None
    expected: int | None = None
    """The expected number of items, if one was given: see `expect` in the glossary."""
    closed_at: float | None = None
    """When the batch stopped taking new items; items it already has may come again."""
    seq: int = 0
    head: bytes = b""


class Counts(Value, frozen=True, kw_only=True):
    """The number of items of a chunk in each state except pending, and the cost of its attempts."""

    done: int = 0
    skipped: int = 0
    dead: int = 0
    cancelled: int = 0
    attempts: int = 0
    spent: int = 0
    """Money, in units (see `money`)."""
    tokens: int = 0
    seconds: float = 0.0

    @property
    def settled(self) -> int:
        return self.done + self.skipped + self.dead + self.cancelled

    def plus(self, other: "Counts") -> "Counts":
        return Counts(
            done=self.done + other.done, skipped=self.skipped + other.skipped, dead=self.dead + other.dead,
            cancelled=self.cancelled + other.cancelled, attempts=self.attempts + other.attempts,
            spent=self.spent + other.spent, tokens=self.tokens + other.tokens, seconds=self.seconds + other.seconds,
        )  # fmt: skip

    def minus(self, other: "Counts") -> "Counts":
        return Counts(
            done=self.done - other.done, skipped=self.skipped - other.skipped, dead=self.dead - other.dead,
            cancelled=self.cancelled - other.cancelled, attempts=self.attempts - other.attempts,
            spent=self.spent - other.spent, tokens=self.tokens - other.tokens, seconds=self.seconds - other.seconds,
        )  # fmt: skip


class Chunk(Value, frozen=True, kw_only=True):
    """A half-open range of item numbers, with its lease and the totals of its items."""

    id: ChunkId
    """Its number in this store."""
    batch: BatchId
    number: int = 0
    """Its number within the batch, from 1: the journal names its chain by it, and it is the same in every store."""
    lo: ItemNo
    hi: ItemNo
    """Equal to `lo` if the chain of the chunk has ended: its items are in its successor then."""
    parent: ChunkId | None = None
    """The chunk that it was cut off or that it succeeds."""
    fence: int = 0
    version: int = 0
    grant: bytes = b""
    """The random id of the current grant. A copy of the store may grant the same fence again, but never the same
    id."""
    owner: str | None = None
    expires: float = 0.0
    due: float = 0.0
    blame: int = 0
    progressed: bool = True
    """True once the current grant has committed something."""
    reserved: int = 0
    """Money that the current grant may still spend, in units."""
    counts: Counts = Counts()
    seq: int = 0
    head: bytes = b""
    touched_at: float = 0.0
    """When one of its items last made progress."""
    kind: Kind = Kind.ITEMS
    leg: int = 0
    """The part of the pipeline that its items pass through, counted from 0."""
    first: int = 0
    """The stage at which its items begin."""
    end: int = 0
    """The stage before which they are done: its items pass through the stages from `first` up to `end`."""
    origin: int = 0
    """The number of the batch's entry that admitted its items; 0 if an older version did not store it."""

    @property
    def size(self) -> int:
        return self.hi - self.lo

    @property
    def is_ended(self) -> bool:
        """True if its chain has ended; the chain of its successor continues it."""
        return self.hi == self.lo

    @property
    def pending(self) -> int:
        c = self.counts
        return self.hi - self.lo - c.done - c.skipped - c.dead - c.cancelled


class ItemState(Value, frozen=True, kw_only=True):
    """The stage and state of an item: the part of an item that changes."""

    stage: int = 0
    state: State = State.PENDING
    epoch: int = 0
    attempt: int = 0
    """Attempts counted at this stage in this epoch."""
    due: float = 0.0
    used: float = 0.0
    """Seconds of the item's time budget used by attempts at this stage and by the back-offs between them."""
    wait: float = 0.0
    """The planned length of the wait until `due`. If the clock is set back, the wait takes at most twice as long."""
    spent: int = 0
    """Money spent on this stage in this epoch, in units."""
    rewinds: int = 0
    requeues: int = 0
    """How often an operator has requeued the item since it last made progress."""
    deferred: float = 0.0
    """Total seconds for which the item was deferred at this stage in this epoch."""
    code: str = ""
    reason: str = ""


START = ItemState()
"""The initial place of every item; stores keep a place only for items that have left the plain way."""


class Item(msgspec.Struct, frozen=True, gc=False):
    """A pending item that a worker holds, with the input of its stage."""

    n: ItemNo
    key: Key
    input: bytes
    place: ItemState
    plain: bool
    """True if the store holds no place for the item: it never failed, waited or went back."""
    source_file: bytes | None = None
    """Evidence of the file that holds the input, if a sink keeps the previous output."""
    revision: int = 0
    """How often its payload was replaced before it was loaded."""


class NewItem(msgspec.Struct, frozen=True, gc=False):
    """An item to be admitted: validated, keyed and frozen."""

    key: Key
    payload: bytes
    place: ItemState = START
    """START, except for an item that could not be admitted: that one is a dead letter from the beginning."""
    raw: bytes | None = None
    """The item as its source gave it, if validation changed it: a commitment to it is kept, not the bytes."""
    parent: ItemNo | None = None
    """The item that it was made of, if any."""


class ItemOrigin(Value, frozen=True, kw_only=True):
    """Where items that are admitted together come from."""

    source: str = ""
    """The source, in words."""
    schema: str = ""
    """The fingerprint of the schema that validated them."""
    leg: int = 0
    first: int = 0
    """The stage at which they begin."""
    end: int | None = None
    """The stage before which they are done; None for the end of the pipeline."""


class Admitted(Value, frozen=True, kw_only=True):
    """The result of `add_items` for one group of items."""

    added: int
    lo: ItemNo
    known: int = 0
    dead: tuple[ItemNo, ...] = ()
    """Numbers of the added items that are dead letters from the beginning."""
    changed: tuple[tuple[int, ItemNo], ...] = ()
    """(index in the group, number of the stored item) of each key that came with a different payload."""


class Lease(Value, frozen=True, kw_only=True):
    """One grant of one chunk: the owner needs it to renew or to commit."""

    chunk: ChunkId
    fence: int
    owner: str
    expires: float
    grant: bytes = b""
    """The random id of the grant."""


class Claim(Value, frozen=True, kw_only=True):
    """A granted lease, with the range of items it covers."""

    lease: Lease
    batch: BatchId
    uid: bytes
    """The uid of the batch."""
    number: int
    """The number of the chunk within the batch."""
    lo: ItemNo
    hi: ItemNo
    version: int
    pending: int
    blame: int
    kind: Kind = Kind.ITEMS
    first: int = 0
    """The stage at which its items begin."""
    end: int = 0
    """The stage before which they are done."""
    origin: int = 0
    """The number of the batch's entry that admitted its items."""
    more: tuple["Claim", ...] = ()
    """Further chunks granted in the same write, each as if it had been claimed after this one."""


class ClaimRequest(Value, frozen=True, kw_only=True):
    """The request of a worker that claims."""

    batch: BatchId
    owner: str
    limit: int
    seconds: float
    """The length of the lease."""
    at_once: int | None = None
    """How many items the claimer can start at once: of a chunk that carries blame, no more than these are granted. None
    if the claimer does not give a number."""
    chunks: int = 1
    """How many chunks may be granted in one write if each is small; all their items count towards the limit."""
    reserve: int = 0
    """Money to set aside for each item, in units."""
    cap: int | None = None
    """The most that the batch may spend in total, in units."""
    tolerance: "DeadLimit | None" = None
    """How many dead letters the batch may have before claims are refused."""
    only: ItemNo | None = None
    """The only item wanted; its chunk is granted whole. If the chunk is suspect, the item is granted alone, or, while
    items before it are pending, those are granted first: the claimer must give them back."""
    keeps: frozenset[ChunkId] = frozenset()
    """Chunks that the claimer still holds and continues with. They are not granted to it again, even if their leases
    ended while the whole process was stopped. Other processes may claim them then."""


class DeadLimit(Value, frozen=True, kw_only=True):
    """How many of a batch's items may be dead: a number, a share of all items, or both."""

    count: int | None = None
    share: float | None = None


class Output(msgspec.Struct, frozen=True, gc=False):
    """The output of a stage for an item, as stored: the bytes, or evidence of the file that holds them."""

    n: ItemNo
    stage: int
    epoch: int
    data: bytes | None
    file: bytes | None = None
    salt: bytes = b""
    """The salt of its commitment, once it is stored."""


class Checkpoint(msgspec.Struct, frozen=True, gc=False):
    """How far a partition of a source has been read: a resumed handler begins there."""

    n: ItemNo
    rows: int
    """The number of rows handled so far."""
    cursor: bytes
    """The last handled row (see `cursor`); empty before the first."""
    acc: bytes | None = None
    """The accumulator, as typed JSON; None if there is none."""
    at: float = 0.0
    """When it became durable, according to the store."""
    salt: bytes = b""
    """The salt of the commitment to the accumulator, once it is stored."""


class Move(msgspec.Struct, frozen=True, gc=False):
    """An item's new place."""

    n: ItemNo
    place: ItemState


class Commit(Value, frozen=True, kw_only=True):
    """Everything that one write changes, together or not at all; guarded by (chunk, fence, grant, version), once per
    id."""

    id: bytes
    batch: BatchId
    uid: bytes
    chunk: ChunkId
    number: int
    """The number of the chunk within the batch."""
    fence: int
    grant: bytes
    version: int
    kind: str
    body: "Checkpointed"
    """The body of the journal entry, without commitments: the store makes them when it writes the content."""
    outputs: tuple[Output, ...] = ()
    moves: tuple[Move, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    counts: Counts = Counts()
    """The numbers to add to the totals of the chunk."""
    release: bool = False
    due: float = 0.0
    """When the released chunk may be claimed again."""
    reserved: int = 0
    """Money that the grant still sets aside after this commit."""
    extend: float = 0.0
    """The lease lasts at least this many seconds from now: a commit counts as a heartbeat."""
    events: tuple["Event", ...] = ()

    def check_range(self, lo: int, hi: int) -> None:
        """Refuse items that are not in the chunk."""
        for some in (self.outputs, self.moves, self.checkpoints):
            ns = [each.n for each in some]
            if ns and not lo <= min(ns) <= max(ns) < hi:
                raise UsageError(
                    f"a commit for chunk {self.chunk} names items {min(ns)} to {max(ns)}, but the chunk has items {lo} "
                    f"to {hi - 1}"
                )


class CommitRefusal(StrEnum):
    """Why a commit was refused."""

    LOST = "lost"
    """The chunk has another fence or grant, or no owner; or the store does not have it, because it was set back."""
    STALE = "stale"
    """Another commit of the same grant came first."""
    SEALED = "sealed"
    UNKNOWN = "unknown"
    """The result stayed unknown after every retry. Stores never return this: the sender sets it."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one commit."""

    landed: bool
    reason: CommitRefusal | None = None
    """Why the commit was refused; None if it landed."""


LANDED = Receipt(landed=True)


class Act(Value, frozen=True, kw_only=True):
    """A change by an operator, or by the runtime on its behalf, outside of a lease, with the reason."""

    id: bytes
    batch: BatchId
    kind: str
    actor: str
    reason: str
    at_items: tuple["Change", ...] = ()
    body: bytes = b""
    seize: bool = False
    """Raise the fence of the affected chunks, so that an owner cannot commit its work. If checkpoints are set, raise it
    even if there is no owner."""
    lifts: bool = False
    """Clear the blame of the affected chunks and change nothing else; one item names each chunk."""
    beyond: int = 0
    """A fence that rises must become greater than this one as well: state brought from elsewhere has its own fence."""
    events: tuple["Event", ...] = ()
    """Events of changed items are written if the items change; an event without an item, if anything changes."""


class Change(Value, frozen=True, kw_only=True):
    """One item of an act, guarded by the state and epoch it was decided for; within the epoch also by its stage."""

    n: ItemNo
    state: State
    epoch: int
    place: ItemState
    output: Output | None = None
    """The output that an operator supplies, if any."""
    checkpoint: Checkpoint | None = None
    """The checkpoint from which the item resumes instead; one with zero rows begins at the start."""
    renewed: NewItem | None = None
    """The next revision of its payload, if the item came again with a different one."""
    origin: ItemOrigin = ItemOrigin()
    """Where that revision comes from."""


class Event(Value, frozen=True, kw_only=True):
    """A fact for receivers: written in the same commit as the change it describes, delivered later."""

    kind: str
    body: bytes
    """Canonical JSON: the facts."""
    n: ItemNo | None = None


class StoredEvent(Value, frozen=True, kw_only=True):
    """An event in the outbox."""

    id: int
    """Grows with every event, in the order in which events became durable."""
    batch: BatchId
    at: float
    kind: str
    body: bytes
    n: ItemNo | None = None


class TextFrame(Value, frozen=True):
    """Words of one item in an entry, stored apart from the entry: removing them leaves the chain intact."""

    n: int
    """The number of the item; -1 for words of the entry as a whole."""
    boundary: int
    frame: bytes | None
    """Salt and words; None once they were removed."""


class Entry(Value, frozen=True, kw_only=True):
    """One link of the journal, as stored."""

    chain: int
    """The chunk's id, or minus the batch's id for the batch's own chain: where this store keeps it."""
    seq: int
    head: bytes
    """The header: batch, chain, number, kind, time, actor, fence, grant, and a commitment to every section."""
    body: bytes
    """The sections."""
    hash: bytes
    texts: tuple[TextFrame, ...] = ()
    """The words that its sections commit to, in their order."""


class StoredItem(Value, frozen=True, kw_only=True):
    """One item as the store holds it."""

    n: ItemNo
    key: Key
    place: ItemState
    payload: bytes
    salt: bytes
    """The salt of the commitment to its payload."""
    revision: int = 0
    """How often its payload was replaced."""
    raw_salt: bytes = b""
    """The salt of the commitment to the item as its source gave it; empty if that was the payload."""
    parent: ItemNo | None = None
    """The item that it was made of, if any."""


def chain_of_batch(batch: BatchId) -> int:
    """Return the chain of the batch itself."""
    return -int(batch)
