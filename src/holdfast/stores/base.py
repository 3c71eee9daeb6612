"""The Store contract.

A store decides nothing. It reads facts, asks the core, and writes what the core returns, all in one transaction. Every
verb names its guard, its guarantee and what it raises. A store that passes the suite in `holdfast.testing.conformance`
keeps every promise that depends on it.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol, cast, runtime_checkable

import msgspec

from holdfast.core.commitments import UID_BYTES, KeyIndex
from holdfast.core.course import Amended, Barrier, Decide, stage_count
from holdfast.core.errors import Damaged, Refused, UsageError
from holdfast.core.ingest import Known
from holdfast.core.journal import Acted, Body, decode_header, encode_content
from holdfast.core.limits import BATCH_NAME_CHARS, ITEMS, STAGES
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
    ItemOrigin,
    Kind,
    Lease,
    NewItem,
    Output,
    Receipt,
    State,
    StoredEvent,
    StoredItem,
)  # fmt: skip
from holdfast.core.sections import decode
from holdfast.core.settle import Judged
from holdfast.stores import owners

ENTRIES_AT_A_TIME = 16
NOWHERE = ItemOrigin()
"""The origin of items of which nothing is known."""
log = logging.getLogger("holdfast.store")


def random_bytes(count: int) -> bytes:
    """Return random bytes from the system, for ids and salts."""
    return os.urandom(count)


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Optional features of a store. A run that needs a missing one is refused before it begins."""

    budget: bool = True
    """Money is reserved and counted over a whole batch in one write."""
    events: bool = True
    """Events are kept in the order in which they became durable."""
    one_clock: bool = True
    """Every process judges leases by the same clock. If False, the times of a lease are by its owner's clock."""
    items: int | None = None
    """The most items a batch may have, if that is less than `limits.ITEMS`."""


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """There is nothing to claim now. If one item was requested, all numbers are of its chunk alone."""

    pending: int
    """Items that are not settled, whether claimed or not."""
    next_due: float | None = None
    """When something may become claimable: a wait ends or a lease expires."""
    held: int = 0
    """Chunks that have a live owner now."""
    why: Barrier | None = None
    """Why nothing is granted, if the reason is not a lack of free chunks."""
    mark: int | None = None
    """The value of `Store.mark` at that time, so that no later write by another process is missed."""


class CopiedItem(NamedTuple):
    """One item of a copy: with each of its payloads, the admitted one first, and its outputs."""

    revisions: Sequence[StoredItem]
    outputs: Sequence[Output]


class BatchCopy(Protocol):
    """Everything that a store held of one batch. Each part can be read once or more, in order."""

    batch: Batch
    chunks: Sequence[Chunk]

    def items(self) -> Iterator[CopiedItem]: ...

    def checkpoints(self) -> Iterator[Checkpoint]: ...

    def entries(self) -> Iterator[tuple[int, Entry]]:
        """Yield every entry with the number of its chain within the batch: the batch's own first, each in order."""
        ...


def unwritten(judged: Judged) -> Receipt:
    """Return the receipt of a commit that is not written now, and log it if it had landed before."""
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

        Guarantee: it costs nothing. It contacts no server, file or bucket and never waits, because it is called for
            every item. A store whose server judges leases keeps an offset to that clock, measured with its own writes,
            on a local clock that continues while the machine sleeps.
        """
        ...

    def mark(self, batch: BatchId) -> int | None:
        """Return a mark that changes once something of a batch was written through another handle; None from a store
        that cannot tell.

        Guarantee: it costs nothing: no server is contacted, so a process that waits for others can check it often
            instead of asking them. It may change for other reasons as well. `Idle` has its value.
        """
        ...

    def open_batch(self, name: str, pipeline: str, definition: bytes, *, actor: str) -> Batch:
        """Return the batch of that name; create it if it does not exist.

        Guard: the name is unique.
        Guarantee: two simultaneous callers get the same batch; a new definition of a known batch is journalled. The
            event that it was opened is written with it.
        Raises: UsageError if the batch belongs to another pipeline, DefinitionChanged if it has items and the number of
            stages differs: the positions of its items would lose their meaning.
        """
        ...

    def batches(self, name: str | None = None) -> list[Batch]:
        """Return all batches, oldest first; or the one with a name, if it exists. See `find_batch`."""
        ...

    def add_items(
        self, batch: BatchId, items: Sequence[NewItem], *, kind: Kind = Kind.ITEMS, ended: bool = False,
        actor: str = "", origin: ItemOrigin = NOWHERE,
    ) -> Admitted:  # fmt: skip
        """Admit the items whose keys are new, in order, as one new chunk; with `ended`, record the end of the source.

        Guard: no two items of a batch share a key.
        Guarantee: items, keys, chunk and entry are written together; the chunk, and every chunk that is ever cut off
            it, has the given kind and window of stages, and no other; the entry has a commitment to every item, and
            names their origin; known keys change nothing and are reported, together with those whose payload
            differs. Events are written for items that are dead letters at once. The item that reaches the
            expected number records that all are there, as the end of the source does.
        Raises: UsageError if the batch is unknown, Refused if it is sealed or cancelled, or was closed and a key is
            new.
        """
        ...

    def known(self, batch: BatchId, items: Sequence[NewItem]) -> Known:
        """Return which of some items the batch has, by key: index -> (number, whether the payload is the same).

        Guarantee: nothing is changed; the answer is what `add_items` would report about known keys.
        Raises: UsageError if the batch is unknown.
        """
        ...

    def claim(self, want: ClaimRequest) -> Claim | Idle:
        """Lease a chunk that is due and free, cutting off what exceeds the request.

        Guard: the batch is open, its end has not come, its dead letters are within the tolerance, its budget covers an
            item, and the chunk has no live owner: it was released, its lease expired by the store's clock, or its
            process is known to be dead. Chunks that the claimer keeps are not granted to it, however long it was
            suspended. With `only`, the chunk of that item is granted, or in a suspect the items before it: release
            those and claim again. With `chunks`, a store may grant further chunks in the same write, returned in
            `more`; a store that never does is correct as well.
        Guarantee: the fence is one higher than ever before, and the id of the grant is random: a copy of the store that
            hands out the same fence hands out another id. The entry with the snapshot of attempts is durable. A
            partition whose chain has become too long is continued by a successor, which is granted instead.
        Raises: StoreUnavailable.
        """
        ...

    def load(self, claim: Claim, after: ItemNo | None, limit: int, max_bytes: int) -> list[Item]:
        """Return the pending items of a claim with the input of their stage, in order, starting after `after`. At the
        first stage of the claim's window the input is the newest payload. If `claim` grants several chunks at once,
        its range may cover adjacent ones."""
        ...

    def renew(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        """Extend leases; return those that are still held, extended.

        Guard: owner, fence and grant are unchanged. The version does not matter: the owner's own commit is not a
            conflict.
        """
        ...

    def commit(self, commits: Sequence[Commit]) -> list[Receipt]:
        """Write each commit wholly or not at all, and return a receipt for each.

        Guard: (chunk, fence, grant, version), and the batch is not sealed. A commit whose id is in the chain of its
            chunk has landed, whatever the guard is now: so sending the same commit again reveals its result. All
            guards of a group are judged before any of it is written (`core.settle.judge`); if each chunk is a separate
            document, those of one chunk.
        Guarantee: the entry has a commitment, with a fresh salt, to every output and accumulator, and its words are
            stored apart from it (`core.record`). A commit reported as landed is durable; a refusal does not roll back
            other commits. A commit is progress and clears the blame of its chunk, except for one of the kind `started`,
            which adds a strike.
        Raises: StoreUnavailable (nothing landed), CommitUnknown (send the same commits again, or call `has_landed`).
        """
        ...

    def act(self, act: Act) -> list[ItemNo]:
        """Change items outside of a lease, with actor and reason; return the numbers of the changed items.

        Guard: (item, state, epoch) of every change, and within the epoch its stage. Items that have moved since are
            left alone. An act whose id is already in the chains was done: repeating it changes nothing, whatever has
            happened to its items since.
        Guarantee: one entry per affected chunk, in the same transaction as its items. A payload that came with an item
            is added as its next revision; earlier ones stay. With `seize`, the fence of every
            chunk in flight rises, and of any chunk for which a checkpoint is set: also above `beyond`.
        Raises: UsageError, Refused if the batch is sealed.
        """
        ...

    def amend(self, batch: BatchId, decide: Decide, *, actor: str) -> Amended:
        """Change a batch as a pure decision requires: note something, pause or cancel it, give it an end, lift its
        seal.

        The decisions are made by the functions `to_…` in `core.course`. A decision may be made several times before it
        is written, and reads chunks and chain only if it needs them.
        Guard: the facts it reads are those of the transaction that writes. If each chunk is a separate document, the
            chunks were in the returned state at some moment after the call began.
        Guarantee: the batch, one entry in its chain and the events are written together; nothing is written if the
            decision is None. A note is remembered, so that `BatchFacts.noted` can tell.
        Raises: UsageError if the batch is unknown, and anything the decision raises; then nothing is written.
        """
        ...

    def seal(
        self, batch: BatchId, *, actor: str, reconciliation: bytes, reason: str = "", events: Sequence[Event] = ()
    ) -> Batch:
        """Finish a batch for good: later work is refused.

        Guard: its source was read to the end, or it was cancelled or has ended; nothing is pending; and since the
            reconciliation, if that names the heads it saw, no chain has grown and the expected number of items is
            unchanged.
        Guarantee: the entry covers the heads of all chains, keeps the reason, and is written together with the events.
        Raises: UsageError if the batch is unknown, Refused with the obstacle.
        """
        ...

    def install(self, copy: BatchCopy) -> Batch:
        """Take over a batch that was copied from another store, with everything that belongs to it.

        Guard: neither its uid nor its name is in this store, and no chunk is held.
        Guarantee: it is there wholly or not at all, under numbers of this store. Entries, commitments and words are
            the same bytes, so they verify as before. No fence that was granted elsewhere is granted again.
        Raises: Refused with the obstacle.
        """
        ...

    def chunks(
        self, batch: BatchId, *, of: ItemNo | None = None, pending: bool = False, limit: int | None = None
    ) -> list[Chunk]:
        """Return the chunks of a batch with lease and totals, in the order of their items: all of them; with `of`, the
        one that has that item; with `pending`, those that have pending items. With `limit`, any of them up to that
        number. A chunk whose chain has ended has no items; it comes before its successor, older ones first.

        Guarantee: empty for an unknown batch or item. In a database, finding out whether any chunk has pending items
            (`is_settled`) and which one has an item (`chunk_of`) is one index lookup, however many chunks there are.
        """
        ...

    def items(
        self, batch: BatchId, *, lo: int = 0, hi: int | None = None, state: State | None = None, limit: int = 1000
    ) -> list[StoredItem]:
        """Return items with their place and payload, in order, from `lo` up to `hi`."""
        ...

    def revisions(self, batch: BatchId, n: ItemNo) -> list[StoredItem]:
        """Return an item with each of its payloads, the admitted one first; empty for an unknown item."""
        ...

    def outputs(
        self, batch: BatchId, *, lo: int = 0, hi: int | None = None, stage: int | None = None, limit: int = 1000
    ) -> list[Output]:
        """Return stored outputs in the order of items and stages."""
        ...

    def checkpoints(self, batch: BatchId, *, lo: int = 0, hi: int | None = None, limit: int = 1000) -> list[Checkpoint]:
        """Return the checkpoints of partitions that have begun, in order."""
        ...

    def entries(self, chain: int, *, after: int = 0, limit: int = 1000) -> list[Entry]:
        """Return the entries of one chain with their words, in order, after the one with that number: fewer than
        `limit` only at its end."""
        ...

    def close(self) -> None:
        """Close files and connections."""
        ...


class Outbox(Protocol):
    """Events, kept in the order in which they became durable: additional methods of a store with `capabilities.events`.
    See `outbox_of`."""

    def events(self, after: int = 0, *, limit: int = 1000) -> list[StoredEvent]:
        """Return events in the order in which they became durable, after the one with that number."""
        ...

    def delivered(self, receiver: str, up_to: int = 0) -> int:
        """Remember that a receiver has every event up to that number; return its position, which never decreases."""
        ...


class EmptyOutbox:
    """The outbox of a store that keeps no events."""

    def events(self, after: int = 0, *, limit: int = 1000) -> list[StoredEvent]:
        return []

    def delivered(self, receiver: str, up_to: int = 0) -> int:
        return 0


class SetBack(msgspec.Struct, frozen=True):
    """A store that has less than it had before: an older file was put in its place, or its log was lost."""

    had: int
    """Entries of the journal."""
    has: int
    at: float
    """When that was detected, in seconds since 1970."""


@runtime_checkable
class TellsHistory(Protocol):
    """A store that can be set back, or lose rows, from outside, and can report it."""

    def set_back(self) -> SetBack | None:
        """Return when the store was found to have been set back; None if it never was."""
        ...

    def flaws(self) -> list[tuple[int, str]]:
        """Return damage to the rows of batches that no chain reveals, by the number of the batch."""
        ...


def check_installable(store: Store, copy: BatchCopy) -> None:
    """Refuse a copy of a batch that the store has, that another one has the name of, or that was being worked on."""
    for known in store.batches():
        if known.uid == copy.batch.uid or known.name == copy.batch.name:
            what = "this batch" if known.uid == copy.batch.uid else "another batch of this name"
            raise Refused(f"{store.url} has {what} already, {known.name!r}: nothing was changed")
    if any(owners.is_live(chunk, store.now()) for chunk in copy.chunks):
        raise Refused(f"batch {copy.batch.name!r} was being worked on when it was copied: copy it again")
    if wrong := _wrong_batch(copy.batch) or _wrong_chunks(copy.batch, copy.chunks):
        raise _not_a_copy(wrong)


def _not_a_copy(wrong: str) -> Refused:
    return Refused(f"this is not a copy that Holdfast made: {wrong}; nothing was changed")


def _wrong_batch(batch: Batch) -> str:
    """Return what is wrong with the batch of a copy; empty if nothing is."""
    try:
        stages = stage_count(batch.definition)
    except (msgspec.DecodeError, TypeError, LookupError):
        return "its definition cannot be read"
    if not (0 < stages <= STAGES and 0 <= batch.admitted <= ITEMS and len(batch.uid) == UID_BYTES):
        return "its uid, or its number of stages or items, is not possible"
    return "" if 0 < len(batch.name) <= BATCH_NAME_CHARS and batch.name.isprintable() else "its name is not possible"


def _wrong_chunks(batch: Batch, chunks: Sequence[Chunk]) -> str:
    """Return what is wrong with the chunks of a copy: they cover every item once, and each is newer than its parent."""
    by_id, upto = {chunk.id: chunk for chunk in chunks}, 0
    if len(by_id) != len(chunks) or len({chunk.number for chunk in chunks}) != len(chunks):
        return "a chunk is in it twice"
    for chunk in chunks:
        parent = None if chunk.parent is None else by_id.get(chunk.parent)
        if chunk.parent is not None and (parent is None or parent.number >= chunk.number):
            return f"the parent of chunk {chunk.number} is missing or newer"
        if chunk.number < 1 or not (chunk.lo == upto <= chunk.hi) or not 0 <= chunk.counts.settled <= chunk.size:
            return f"chunk {chunk.number} has another range or other totals than those before it allow"
        if not (0 <= chunk.first <= chunk.end <= STAGES and 0 <= chunk.fence < HIGHEST_FENCE and chunk.seq >= 0):
            return f"the stages or the fence of chunk {chunk.number} are not possible"
        upto = chunk.hi
    return "" if upto == batch.admitted else f"its chunks have {upto:,} items, but {batch.admitted:,} were admitted"


def copied_items(copy: BatchCopy) -> Iterator[CopiedItem]:
    """Yield the items of a copy. Raise Refused for one that is out of order, or has something that no item has."""
    stages, expected = stage_count(copy.batch.definition), 0
    for item in copy.items():
        numbers = [row.revision for row in item.revisions]
        made = [output.stage for output in item.outputs]
        is_one = {row.n for row in item.revisions} | {output.n for output in item.outputs} == {expected}
        fits = numbers == list(range(len(numbers))) and made == sorted(set(made)) and all(0 <= s < stages for s in made)
        if not (numbers and is_one and fits and all(isinstance(row.key, str | int) for row in item.revisions)):
            raise _not_a_copy(f"item {expected} is missing, is in it twice, or has something that no item has")
        expected += 1
        yield item
    if expected != copy.batch.admitted:
        raise _not_a_copy(f"it has {expected:,} items, but {copy.batch.admitted:,} were admitted")


def copied_checkpoints(copy: BatchCopy) -> Iterator[Checkpoint]:
    """Yield the checkpoints of a copy. Raise Refused for one of an item that it does not have."""
    last = -1
    for at in copy.checkpoints():
        if not last < at.n < copy.batch.admitted:
            raise _not_a_copy(f"a checkpoint is of item {at.n}, which it does not have, or has one already")
        last = at.n
        yield at


HIGHEST_FENCE = 1 << 62
"""No fence is this high."""


def note_mark(index: KeyIndex, kind: str, body: Body) -> bytes:
    """Return the mark by which a store remembers a note."""
    return index.mark(f"note {kind}", encode_content(body))


def notes_in(entries: Iterable[tuple[int, Entry]]) -> Iterator[tuple[str, Body]]:
    """Yield kind and body of the notes among entries of a copy: a store remembers them."""
    for number, entry in entries:
        body = decode(entry) if number == 0 else None
        if isinstance(body, Acted):
            yield decode_header(entry.head).kind, body


def has_landed(store: Store, commit: Commit) -> bool:
    """Return whether a commit is in the chain of its chunk: for a caller that must not write any more. Other callers
    send the commit again instead."""
    return any(decode_header(entry.head).commit_id == commit.id for entry in each_entry(store, commit.chunk))


def find_batch(store: Store, name: str) -> Batch | None:
    """Return the current batch of that name, if there is one."""
    found = store.batches(name)
    return found[0] if found else None


def chunk_of(store: Store, batch: BatchId, n: ItemNo) -> Chunk:
    """Return the chunk that has an item. Raise UsageError if there is no such item."""
    found = store.chunks(batch, of=n)
    if not found:
        raise UsageError(f"batch number {batch} has no item number {n}")
    return found[0]


def is_settled(store: Store, batch: BatchId) -> bool:
    """Return whether no item of a batch is pending."""
    return not store.chunks(batch, pending=True, limit=1)


def outbox_of(store: Store) -> Outbox:
    """Return the events of a store; an empty outbox if it keeps none."""
    return cast("Outbox", store) if store.capabilities.events else EmptyOutbox()


def find_item(store: Store, batch: BatchId, key: str) -> ItemNo | None:
    """Return the number of the item with that key, if there is one."""
    return find_items(store, batch, [key])[0]


def find_items(store: Store, batch: BatchId, keys: Sequence[str]) -> list[ItemNo | None]:
    """Return the number of the item with each key, or None, in one read."""
    found = store.known(batch, [NewItem(key, b"") for key in keys])
    return [found[index][0] if index in found else None for index in range(len(keys))]


OUTPUT_PAGE = 1000
"""More outputs than an item can have, so that every page holds a whole item."""


def each_item(
    store: Store, batch: BatchId, *, state: State | None = None, kind: Kind | None = None, lo: int = 0,
    hi: int | None = None,
) -> Iterable[StoredItem]:  # fmt: skip
    """Yield every item, or those of one kind, read in pages: memory stays flat."""
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
    """Yield the ranges of items in adjacent chunks of one kind."""
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
    """Yield every entry of a chain after one number and up to another, read in small pages: the entry of a large group
    of items is half a megabyte."""
    while upto is None or after < upto:
        limit = ENTRIES_AT_A_TIME if upto is None else min(ENTRIES_AT_A_TIME, upto - after)
        page = store.entries(chain, after=after, limit=limit)
        yield from page if upto is None else (entry for entry in page if entry.seq <= upto)
        if page:
            after = further(store.url, page[-1].seq, after + 1)
        if len(page) < limit:
            return


def newest_entries(store: Store, chain: int, upto: int, *, least: int = 0) -> Iterator[Entry]:
    """Yield the entries of a chain from that number back to its first, or to the one after `least`: the last one alone,
    then in small pages, and no more than are consumed, because a bucket reads each. `upto`: the number of the last
    entry, which its batch or chunk knows."""
    size = 1
    while upto > least:
        after = max(least, upto - size)
        yield from reversed(store.entries(chain, after=after, limit=upto - after))
        upto, size = after, ENTRIES_AT_A_TIME


def further(url: str, last: int, least: int) -> int:
    """Return the end of a page. In a damaged file, rows out of order would otherwise be read in an endless loop."""
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
