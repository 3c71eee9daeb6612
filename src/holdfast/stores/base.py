"""The Store contract: what durable state can do.

A store decides nothing. It reads facts, asks the core, and writes what the core answers, all inside one transaction.
Every verb names its guard, what it guarantees, and what it raises. A store that passes the suite in
`holdfast.testing.conformance` keeps every promise that rests on it.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Protocol, cast, runtime_checkable

import msgspec

from holdfast.core.canonical import key_hash
from holdfast.core.course import Amended, Barrier, Decide
from holdfast.core.errors import Damaged, UsageError
from holdfast.core.ingest import Known
from holdfast.core.journal import decode_header
from holdfast.core.model import (
    Act,
    Admitted,
    Batch,
    BatchId,
    Checkpoint,
    Chunk,
    ChunkId,
    Claim,
    ClaimRequest,
    Commit,
    Entry,
    Event,
    Item,
    ItemNo,
    Kind,
    Lease,
    NewItem,
    Output,
    Receipt,
    State,
    StoredEvent,
    StoredItem,
)  # fmt: skip
from holdfast.core.settle import Judged

ENTRIES_AT_A_TIME = 16
log = logging.getLogger("holdfast.store")


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a store can do beyond what every store can. What it cannot is refused before a run begins."""

    budget: bool = True
    """Money is set aside and counted over a whole batch in one write."""
    events: bool = True
    """Events are kept in the order in which they became durable."""
    one_clock: bool = True
    """Every process judges leases by the same clock. Where not, what is told of a lease is told by its owner's."""
    items: int | None = None
    """The most items a batch may have, where that is less than `limits.ITEMS`."""


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """There is nothing to claim now. Where one item was wanted, all numbers are of its chunk alone."""

    pending: int
    """Items that are not settled, in whatever hands."""
    next_due: float | None = None
    """When something may become claimable: a wait ends or a lease expires."""
    held: int = 0
    """Chunks that somebody holds now."""
    why: Barrier | None = None
    """Why nothing is handed out, where that is not for want of free chunks."""
    mark: int | None = None
    """As `Store.mark` was when that was found: nothing that others write since is missed."""


def unwritten(judged: Judged) -> Receipt:
    """Return the answer to a commit of which nothing is written now, and log it where it had landed before."""
    if judged.receipt.landed:
        commit = judged.commit
        log.info("commit %s of chunk %d had landed before: nothing is written", commit.id.hex(), commit.chunk)
    return judged.receipt


class Store(Protocol):
    """Durable state for batches, chunks, items, outputs and the journal. Safe to call from several threads."""

    url: str
    capabilities: Capabilities

    def now(self) -> float:
        """Return the time by which leases are judged, in seconds since 1970 UTC.

        Guarantee: it is free. No server, file or bucket is asked, and nothing is waited for: it is called for every
            item. A store whose server judges leases keeps an offset to that clock, measured with its own writes, on a
            local clock that runs on while the machine sleeps.
        """
        ...

    def mark(self, batch: BatchId) -> int | None:
        """Return a mark that is another one once somebody has written something of a batch through another handle; None
        from a store that cannot tell.

        Guarantee: it is free: no server is asked, so that whoever waits for what others leave can look at it often
            instead of asking for that. It may change for less. `Idle` says what it was.
        """
        ...

    def open_batch(self, name: str, pipeline: str, definition: bytes, *, actor: str) -> Batch:
        """Return the batch of that name, made if it is missing.

        Guard: the name is unique.
        Guarantee: two callers at once get the same batch; a new definition of a known batch is journalled. The event
            that it was opened is written with it.
        Raises: UsageError if the batch belongs to another pipeline, DefinitionChanged if it has items and the number
            of stages differs: where its items stand could not be told any more.
        """
        ...

    def batches(self, name: str | None = None) -> list[Batch]:
        """Return all batches, oldest first; or the one of a name, if there is one. See `find_batch`."""
        ...

    def add_items(
        self, batch: BatchId, items: Sequence[NewItem], *, kind: Kind = Kind.ITEMS, ended: bool = False, actor: str = ""
    ) -> Admitted:
        """Admit the items whose keys are new, in order, as one new chunk; with `ended`, record the source's end.

        Guard: no two items of a batch share a key.
        Guarantee: items, keys, chunk and entry are written together; the chunk, and all that is ever cut off it, is of
            the kind that was given, and no other kind is in it; known keys change nothing and are reported,
            with those whose payload differs. Of those that are dead letters at once, events are written.
            The one that reaches the expected number records that all are there, as the source's end does.
        Raises: UsageError if the batch is unknown, Refused if it is sealed or cancelled, or was closed and a key is
            new.
        """
        ...

    def known(self, batch: BatchId, items: Sequence[NewItem]) -> Known:
        """Return which of some items the batch has, by their keys: index -> (number, whether the payload is the same).

        Guarantee: nothing is changed; what `add_items` would say about keys that are in the store already.
        Raises: UsageError if the batch is unknown.
        """
        ...

    def claim(self, want: ClaimRequest) -> Claim | Idle:
        """Lease a chunk that is due and free, cutting off what is more than wanted.

        Guard: the batch is open, its end has not come, its dead letters are within the tolerance, its budget allows
            for an item, and nobody holds the chunk: released, expired by the store's clock, or its process is known
            to be dead. What the claimer keeps is not granted to it, however long it slept.
            With `only` it is the chunk of that item, or of what stands before it in a suspect: give that back, and
            claim again. With `chunks` a store may grant further ones in the same write, which are in `more`; one
            that never does is right, too.
        Guarantee: the fence is one higher than ever before; the entry with the snapshot of attempts is durable.
        Raises: StoreUnavailable.
        """
        ...

    def load(self, claim: Claim, after: ItemNo | None, limit: int, max_bytes: int) -> list[Item]:
        """Return the pending items of a claim with the input of their stage, in order, from `after` on. Where `claim`
        grants several chunks at once, its range may be that of some that stand one behind the other."""
        ...

    def renew(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        """Extend leases; returns those that are still held, extended.

        Guard: owner and fence are unchanged. The version does not matter: an own commit is no conflict.
        """
        ...

    def commit(self, commits: Sequence[Commit]) -> list[Receipt]:
        """Write each commit wholly or not at all, and answer for each.

        Guard: (chunk, fence, version), and the batch is not sealed. A commit whose id is in the chain of its chunk has
            landed, whatever the guard says now: so sending the same commit again is how one learns what became of it.
            All guards of a group are judged before anything of it is written (`core.settle.judge`); where each chunk
            is a document of its own, those of one chunk.
        Guarantee: what is answered as landed is durable; one refusal rolls back nobody else. A commit is progress and
            clears the blame of its chunk, but for one of the kind `started`, which adds a strike.
        Raises: StoreUnavailable (nothing landed), CommitUnknown (send the same commits again, or ask `has_landed`).
        """
        ...

    def act(self, act: Act) -> list[ItemNo]:
        """Change items outside of a lease, with actor and reason; returns the numbers that changed.

        Guard: (item, state, epoch) of every change, and within the epoch its stage. Those that moved on since are left
            alone. An act whose id is in the chains already was done: repeated, it changes nothing, whatever has
            become of its items since.
        Guarantee: one entry per chunk concerned, in the same transaction as its items. With `seize` the fence rises of
            every chunk that is in flight, and where a checkpoint is set of any: above `beyond`, too.
        Raises: UsageError, Refused if the batch is sealed.
        """
        ...

    def amend(self, batch: BatchId, decide: Decide, *, actor: str) -> Amended:
        """Change a batch as a pure decision says: note something, pause or cancel it, give it an end, lift its seal.

        The decisions are made by the functions `to_…` in `core.course`. One may be made several times before its
        answer is written, and reads chunks and chain only if it needs them.
        Guard: the facts that were asked for are those of the transaction that writes. Where each chunk is a document
            of its own, chunks were as they were told at a moment after the call began.
        Guarantee: the batch, one entry in its own chain and the events are written together; nothing, where the
            decision is None.
        Raises: UsageError if the batch is unknown, and whatever the decision raises; then nothing is written.
        """
        ...

    def seal(
        self, batch: BatchId, *, actor: str, reconciliation: bytes, reason: str = "", events: Sequence[Event] = ()
    ) -> Batch:
        """Finish a batch for good: what comes later is refused.

        Guard: its source was read to its end, or it was cancelled or its own end has come; nothing is pending; and no
            chain has grown and no other number of items is expected since the reconciliation, where that names the
            heads it saw.
        Guarantee: the entry covers the heads of all chains, keeps the reason, and is written together with the events.
        Raises: UsageError if the batch is unknown, Refused with what is in the way.
        """
        ...

    def chunks(
        self, batch: BatchId, *, of: ItemNo | None = None, pending: bool = False, limit: int | None = None
    ) -> list[Chunk]:
        """Return the chunks of a batch with lease and totals, in the order of their items: all of them, with `of` the
        one that has that item, with `pending` those that have pending items. With `limit` no more than that, whichever
        they are.

        Guarantee: none for an unknown batch or item. In a database, whether any chunk has pending items (`is_settled`)
            and which one has an item (`chunk_of`) is one probe of an index, however many chunks there are.
        """
        ...

    def items(
        self, batch: BatchId, *, lo: int = 0, hi: int | None = None, state: State | None = None, limit: int = 1000
    ) -> list[StoredItem]:
        """Return items with their place and payload, in order, from `lo` up to `hi`."""
        ...

    def outputs(
        self, batch: BatchId, *, lo: int = 0, hi: int | None = None, stage: int | None = None, limit: int = 1000
    ) -> list[Output]:
        """Stored outputs in the order of items and stages."""
        ...

    def checkpoints(self, batch: BatchId, *, lo: int = 0, hi: int | None = None, limit: int = 1000) -> list[Checkpoint]:
        """Return how far the items have been read that are ranges of a source, in order; those that have begun."""
        ...

    def entries(self, chain: int, *, after: int = 0, limit: int = 1000) -> list[Entry]:
        """Entries of one chain, in order, after the one of that number: fewer than `limit` only at its end."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


class Outbox(Protocol):
    """Events, kept in the order in which they became durable: what a store has beside the verbs above that says so in
    `capabilities.events`. See `outbox_of`."""

    def events(self, after: int = 0, *, limit: int = 1000) -> list[StoredEvent]:
        """Return events in the order in which they became durable, after the one of that number."""
        ...

    def delivered(self, receiver: str, up_to: int = 0) -> int:
        """Remember that a receiver has every event up to that number; return how far it is. It never goes back."""
        ...


class EmptyOutbox:
    """The outbox of a store that keeps no events."""

    def events(self, after: int = 0, *, limit: int = 1000) -> list[StoredEvent]:
        return []

    def delivered(self, receiver: str, up_to: int = 0) -> int:
        return 0


class SetBack(msgspec.Struct, frozen=True):
    """A store that came back with less than it had: an older file was put in its place, or its log was lost."""

    had: int
    """Entries of the journal."""
    has: int
    at: float
    """When that was seen, in seconds since 1970."""


@runtime_checkable
class TellsHistory(Protocol):
    """What a store can tell about itself that can be set back, or lose rows, behind its own back."""

    def set_back(self) -> SetBack | None:
        """Return when it was seen that it had been set back; None if it never was."""
        ...

    def flaws(self) -> list[tuple[int, str]]:
        """Return what is wrong with the rows of batches, by the number of the batch, where no chain tells."""
        ...


def has_landed(store: Store, commit: Commit) -> bool:
    """Return whether a commit is in the chain of its chunk: for whoever must not write any more. Whoever may, sends it
    again instead."""
    return any(decode_header(entry.head).commit_id == commit.id for entry in each_entry(store, commit.chunk))


def find_batch(store: Store, name: str) -> Batch | None:
    """Return the batch of that name as it is now, if there is one."""
    found = store.batches(name)
    return found[0] if found else None


def chunk_of(store: Store, batch: BatchId, n: ItemNo) -> Chunk:
    """Return the chunk that has an item. Raises UsageError if there is no such item."""
    found = store.chunks(batch, of=n)
    if not found:
        raise UsageError(f"batch number {batch} has no item number {n}")
    return found[0]


def is_settled(store: Store, batch: BatchId) -> bool:
    """Return whether no item of a batch is pending."""
    return not store.chunks(batch, pending=True, limit=1)


def outbox_of(store: Store) -> Outbox:
    """Return the events of a store; an outbox without any where it keeps none."""
    return cast("Outbox", store) if store.capabilities.events else EmptyOutbox()


def find_item(store: Store, batch: BatchId, key: str) -> ItemNo | None:
    """Return the number of the item with that key, if there is one."""
    return find_items(store, batch, [key])[0]


def find_items(store: Store, batch: BatchId, keys: Sequence[str]) -> list[ItemNo | None]:
    """Return the number of the item with each key, or None, in one reading."""
    found = store.known(batch, [NewItem(key, key_hash(key), b"", b"") for key in keys])
    return [found[index][0] if index in found else None for index in range(len(keys))]


OUTPUT_PAGE = 1000
"""More than an item can have outputs, so that every page holds a whole item."""


def each_item(
    store: Store, batch: BatchId, *, state: State | None = None, kind: Kind | None = None, lo: int = 0,
    hi: int | None = None,
) -> Iterable[StoredItem]:  # fmt: skip
    """Return every item, or those of one kind, read in pages: memory stays flat."""
    if kind is not None:
        for first, last in _runs_of(store.chunks(batch), kind):
            yield from each_item(store, batch, state=state, lo=max(lo, first), hi=last if hi is None else min(hi, last))
        return
    while True:
        page = store.items(batch, lo=lo, hi=hi, state=state)
        yield from page
        if not page:
            return
        lo = further(store.url, page[-1].n, lo) + 1


def _runs_of(chunks: Sequence[Chunk], kind: Kind) -> Iterator[tuple[ItemNo, ItemNo]]:
    """Return where chunks of one kind stand one behind the other: from item to item."""
    for is_wanted, run in groupby(chunks, key=lambda chunk: chunk.kind is kind):
        if is_wanted:
            first, *_, last = [*(some := list(run)), some[-1]]
            yield first.lo, last.hi


def each_output(
    store: Store, batch: BatchId, *, stage: int | None = None, lo: int = 0, hi: int | None = None
) -> Iterable[Output]:
    """Yield every output, read in pages. A page may end between two stages of an item: that item is read again."""
    while True:
        page = store.outputs(batch, lo=lo, hi=hi, stage=stage, limit=OUTPUT_PAGE)
        if len(page) < OUTPUT_PAGE:
            yield from page
            return
        lo = further(store.url, page[-1].n, lo + 1)
        yield from (output for output in page if output.n < lo)


def each_checkpoint(store: Store, batch: BatchId, *, lo: int = 0, hi: int | None = None) -> Iterable[Checkpoint]:
    """Yield every checkpoint, read in pages."""
    while True:
        page = store.checkpoints(batch, lo=lo, hi=hi)
        yield from page
        if not page:
            return
        lo = further(store.url, page[-1].n, lo) + 1


def each_entry(store: Store, chain: int, *, after: int = 0, upto: int | None = None) -> Iterator[Entry]:
    """Yield every entry of a chain after one number and up to another, read in small pages: the entry of one large
    group of items has half a megabyte."""
    while upto is None or after < upto:
        limit = ENTRIES_AT_A_TIME if upto is None else min(ENTRIES_AT_A_TIME, upto - after)
        page = store.entries(chain, after=after, limit=limit)
        yield from page if upto is None else (entry for entry in page if entry.seq <= upto)
        if page:
            after = further(store.url, page[-1].seq, after + 1)
        if len(page) < limit:
            return


def newest_entries(store: Store, chain: int, upto: int, *, least: int = 0) -> Iterator[Entry]:
    """Yield the entries of a chain from that number back to its first, or to the one after `least`: the last one alone
    and then in small pages, and no more of them than are asked for: a bucket reads each. `upto`: the number of its last
    entry, which its batch or chunk knows."""
    size = 1
    while upto > least:
        after = max(least, upto - size)
        yield from reversed(store.entries(chain, after=after, limit=upto - after))
        upto, size = after, ENTRIES_AT_A_TIME


def further(url: str, last: int, least: int) -> int:
    """Return where a page ended. Rows out of order, in a file that was damaged, would otherwise be read round and
    round."""
    if last < least:
        raise Damaged(f"{url}: its rows are out of order, so it is damaged: put back a backup of it")
    return last


def lineage(chunks: Sequence[Chunk], n: int) -> list[Chunk]:
    """Return the chunk that holds the item, after the chunks it was cut from, oldest first."""
    by_id: dict[ChunkId, Chunk] = {chunk.id: chunk for chunk in chunks}
    chunk = next((c for c in chunks if c.lo <= n < c.hi), None)
    found: list[Chunk] = []
    while chunk is not None and chunk not in found:
        found.append(chunk)
        chunk = by_id.get(chunk.parent) if chunk.parent is not None else None
    return found[::-1]
