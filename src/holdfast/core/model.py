"""The nouns: batches, chunks, items, claims and commits, as frozen values.

A batch is what a user starts and resumes. Its items get numbers when they are admitted. A chunk is a half-open range
of those numbers: the unit of claim, lease, fence and commit. The item is the unit of success, retry and dead letter.
"""

from enum import StrEnum
from typing import NewType

import msgspec

from holdfast.core.canonical import item_digest, key_text
from holdfast.core.errors import UsageError

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
    """How the items of a chunk are worked on. They are admitted together, so they are all of one kind for good: what is
    cut off a chunk has the kind of the rest, and neither an item nor its key says it."""

    ITEMS = "items"
    """They pass through the stages of a pipeline."""
    PARTITIONS = "partitions"
    """Parts of the source of a scan: each is read row by row, and has a checkpoint."""
    ROWS = "rows"
    """Rows of the source of a scan that were buried one by one: each is handled alone."""


class BatchMode(StrEnum):
    """Whether a batch may be worked on. Whether it is finished is another matter: that is derived."""

    OPEN = "open"
    PAUSED = "paused"
    CANCELLED = "cancelled"


class Value(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The base of the frozen values below. None can be part of a cycle, so the collector need not look at them."""


class Batch(Value, frozen=True, kw_only=True):
    """What a user starts, resumes, reconciles and seals."""

    id: BatchId
    name: str
    pipeline: str
    definition: bytes
    """Canonical JSON of the stages as they were when the batch was opened."""
    opened_at: float
    admitted: int
    """How many items were admitted: the next item gets this number."""
    ingested_at: float | None = None
    """When it was known that all of its items are there: its source was read to its end, the expected number was
    reached, or it was closed. None while more may come."""
    course: BatchMode = BatchMode.OPEN
    ends_at: float | None = None
    """When it ends, be it complete or not; None for a batch that may take as long as it likes."""
    sealed_at: float | None = None
    expected: int | None = None
    """How many items it is said to have in all, where somebody did: see `expect` in the glossary."""
    closed_at: float | None = None
    """Since when it takes no new items; those it has may come again."""
    seq: int = 0
    head: bytes = b""


class Counts(Value, frozen=True, kw_only=True):
    """How many items of a chunk are in each state but pending, and what its attempts cost."""

    done: int = 0
    skipped: int = 0
    dead: int = 0
    cancelled: int = 0
    attempts: int = 0
    spent: int = 0
    """Money in units (see `money`)."""
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
    batch: BatchId
    lo: ItemNo
    hi: ItemNo
    parent: ChunkId | None = None
    fence: int = 0
    version: int = 0
    owner: str | None = None
    expires: float = 0.0
    due: float = 0.0
    blame: int = 0
    progressed: bool = True
    """Whether the current grant has committed anything."""
    reserved: int = 0
    """Money the current grant may still spend, in units."""
    counts: Counts = Counts()
    seq: int = 0
    head: bytes = b""
    touched_at: float = 0.0
    """When an item of it last made progress."""
    kind: Kind = Kind.ITEMS

    @property
    def size(self) -> int:
        return self.hi - self.lo

    @property
    def pending(self) -> int:
        c = self.counts
        return self.hi - self.lo - c.done - c.skipped - c.dead - c.cancelled


class ItemState(Value, frozen=True, kw_only=True):
    """Where an item stands and what has become of it: the part of an item that changes."""

    stage: int = 0
    state: State = State.PENDING
    epoch: int = 0
    attempt: int = 0
    """Attempts that counted at this stage in this epoch."""
    due: float = 0.0
    used: float = 0.0
    """Seconds of its time budget that attempts at this stage and the back-offs between them have used."""
    wait: float = 0.0
    """How long the wait until `due` was planned to be: a clock that is set back does not make it longer than twice."""
    spent: int = 0
    """Money spent on this stage in this epoch, in units."""
    rewinds: int = 0
    requeues: int = 0
    """How often an operator has sent it on its way again since it last made progress."""
    deferred: float = 0.0
    """Seconds that it was deferred at this stage in this epoch, in all."""
    code: str = ""
    reason: str = ""


START = ItemState()
"""Where every item begins; stores keep a place only for items that left the plain way."""


class Item(msgspec.Struct, frozen=True, gc=False):
    """A pending item in the hands of a worker, with the input of its stage."""

    n: ItemNo
    key: Key
    salt: bytes
    input: bytes
    place: ItemState
    plain: bool
    """The store holds no place for it: it never failed, waited or went back."""
    source_file: bytes | None = None
    """The record of the file that holds the input, when a sink keeps the previous output."""


class NewItem(msgspec.Struct, frozen=True, gc=False):
    """An item on its way in: validated, keyed and frozen."""

    key: Key
    key_number: int
    salt: bytes
    payload: bytes
    place: ItemState = START
    """Other than START for what could not be admitted: a dead letter from the first moment."""

    @property
    def digest(self) -> bytes:
        """What the journal keeps of it. Made when asked for: an item that is known already does without."""
        return item_digest(self.salt, key_text(self.key), self.payload)


class Admitted(Value, frozen=True, kw_only=True):
    """What `add_items` did with a group."""

    added: int
    lo: ItemNo
    known: int = 0
    dead: tuple[ItemNo, ...] = ()
    """Numbers of those added that are dead letters from the first moment."""
    changed: tuple[tuple[int, ItemNo], ...] = ()
    """(index in the group, number of the stored item) of keys that came with another payload."""


class Lease(Value, frozen=True, kw_only=True):
    """One grant of one chunk: what an owner must show to renew or to commit."""

    chunk: ChunkId
    fence: int
    owner: str
    expires: float


class Claim(Value, frozen=True, kw_only=True):
    """A granted lease with the range it covers."""

    lease: Lease
    batch: BatchId
    lo: ItemNo
    hi: ItemNo
    version: int
    pending: int
    blame: int
    kind: Kind = Kind.ITEMS
    more: tuple["Claim", ...] = ()
    """Further chunks that were granted in the same write, each as if it had been claimed after this one."""


class ClaimRequest(Value, frozen=True, kw_only=True):
    """What a worker asks for when it claims."""

    batch: BatchId
    owner: str
    limit: int
    seconds: float
    """How long the lease shall last."""
    at_once: int | None = None
    """How many items the claimer can start at once: of a chunk that carries blame no more are granted; None where the
    claimer does not tell."""
    chunks: int = 1
    """How many chunks may be granted in one write, where each of them is small; their items count towards the limit."""
    reserve: int = 0
    """Money to set aside for each item, in units."""
    cap: int | None = None
    """What the batch may spend in all, in units."""
    tolerance: "DeadLimit | None" = None
    """How many dead letters the batch may have before nothing more is handed out."""
    only: ItemNo | None = None
    """The one item that is wanted; its chunk is granted whole. Of a suspect the item alone is granted, or, while others
    are pending before it, first those: they are to be given back."""
    keeps: frozenset[ChunkId] = frozenset()
    """What the claimer has in its hands and continues with: it is not granted to it again, though its lease may have
    ended while the whole process stood still. Anybody else may have it then."""


class DeadLimit(Value, frozen=True, kw_only=True):
    """How many of a batch's items may be dead: a number, a share of all items, or both."""

    count: int | None = None
    share: float | None = None


class Output(msgspec.Struct, frozen=True, gc=False):
    """What a stage made of an item, as it is stored: the bytes, or the record of the file that holds them."""

    n: ItemNo
    stage: int
    epoch: int
    data: bytes | None
    file: bytes | None = None


class Checkpoint(msgspec.Struct, frozen=True, gc=False):
    """How far an item has been read that is a range of a source: what a resumed handler begins with."""

    n: ItemNo
    rows: int
    """How many rows were handled up to here, in all."""
    cursor: bytes
    """The last row that was handled (see `cursor`); empty before the first."""
    acc: bytes | None = None
    """What was accumulated, as typed JSON; None where nothing is."""
    at: float = 0.0
    """When it became durable: the store says."""


class Move(msgspec.Struct, frozen=True, gc=False):
    """An item's new place."""

    n: ItemNo
    place: ItemState


class Commit(Value, frozen=True, kw_only=True):
    """Everything one write changes, together or not at all; guarded by (chunk, fence, version), once by its id."""

    id: bytes
    chunk: ChunkId
    batch: BatchId
    fence: int
    version: int
    kind: str
    body: bytes
    """The body of the journal entry."""
    outputs: tuple[Output, ...] = ()
    moves: tuple[Move, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    counts: Counts = Counts()
    """What is added to the totals of the chunk."""
    release: bool = False
    due: float = 0.0
    """When a released chunk may be claimed again."""
    reserved: int = 0
    """Money the grant still sets aside after this commit."""
    extend: float = 0.0
    """A commit counts as a heartbeat: the lease lasts at least this many seconds from now."""
    events: tuple["Event", ...] = ()

    def check_range(self, lo: int, hi: int) -> None:
        """Refuse to speak of items that are not the chunk's."""
        for some in (self.outputs, self.moves, self.checkpoints):
            ns = [each.n for each in some]
            if ns and not lo <= min(ns) <= max(ns) < hi:
                raise UsageError(
                    f"a commit for chunk {self.chunk} speaks of items {min(ns)} to {max(ns)}, the chunk has items {lo} "
                    f"to {hi - 1}"
                )


class CommitRefusal(StrEnum):
    """Why a commit did not land."""

    LOST = "lost"
    """The chunk is under another fence, or nobody holds it."""
    STALE = "stale"
    """Another commit of the same grant came first."""
    SEALED = "sealed"
    UNKNOWN = "unknown"
    """Nobody could tell, however often it was sent. No store says so: whoever sends does."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one commit."""

    landed: bool
    reason: CommitRefusal | None = None
    """Why not."""


LANDED = Receipt(landed=True)


class Act(Value, frozen=True, kw_only=True):
    """What an operator, or the runtime in his place, changes outside of a lease, with the reason."""

    id: bytes
    batch: BatchId
    kind: str
    actor: str
    reason: str
    at_items: tuple["Change", ...] = ()
    body: bytes = b""
    seize: bool = False
    """Raise the fence of the chunks concerned, so that an owner at work cannot commit what it holds; where checkpoints
    are set, whether or not somebody is at work."""
    lifts: bool = False
    """Take the blame from the chunks concerned, and change nothing else about them: each is named by one item."""
    beyond: int = 0
    """A fence that rises is higher than this one, too: a state that comes from elsewhere brings its own."""
    events: tuple["Event", ...] = ()
    """Of items that are changed, written if they are; without an item, written if anything is."""


class Change(Value, frozen=True, kw_only=True):
    """One item of an act, guarded by the state and epoch it was decided for; within the epoch also by its stage."""

    n: ItemNo
    state: State
    epoch: int
    place: ItemState
    output: Output | None = None
    output_digest: bytes = b""
    """Over salt and output, where a person gives one."""
    checkpoint: Checkpoint | None = None
    """Where the item resumes from instead; one without a row begins at the start."""
    acc_digest: bytes = b""
    """Over salt and accumulator, where the checkpoint has one."""
    renewed: NewItem | None = None
    """The payload that replaces the stored one, where the item came again with another."""


class Event(Value, frozen=True, kw_only=True):
    """Something that others want to hear of: written with what it tells, delivered later."""

    kind: str
    body: bytes
    """Canonical JSON: the facts."""
    n: ItemNo | None = None


class StoredEvent(Value, frozen=True, kw_only=True):
    """An event in the outbox."""

    id: int
    """Grows with every event; in the order in which they became durable."""
    batch: BatchId
    at: float
    kind: str
    body: bytes
    n: ItemNo | None = None


class Entry(Value, frozen=True, kw_only=True):
    """One link of the journal, as stored."""

    chain: int
    """The chunk's id, or minus the batch's id for the batch's own chain."""
    seq: int
    head: bytes
    """The header, canonical: what, when, who, the digest of the body."""
    body: bytes
    hash: bytes


class StoredItem(Value, frozen=True, kw_only=True):
    """What the store tells about one item."""

    n: ItemNo
    key: Key
    place: ItemState
    payload: bytes
    salt: bytes


def chain_of_batch(batch: BatchId) -> int:
    """Return the chain that tells the story of a batch as a whole."""
    return -int(batch)
