"""Every state of the store that was met, one of each kind, on which the real memory store goes on.

Two stores are of one kind when nothing that can be asked of them later tells them apart. So the numbers of fences do
not matter, only whether a fence is the current one; nor does the journal, but for the commits that somebody may still
ask for. Everybody knows the id of the current grant here, so it is the fence alone that keeps owners apart. Of each
kind the first is kept, with its whole journal, and checked once by the same replay that checks the worlds of the
simulator.
"""

import itertools
from operator import itemgetter
from typing import Any

import msgspec

from holdfast.core import canonical, ingest
from holdfast.core.commitments import GRANT_BYTES
from holdfast.core.course import batch_finished, to_reopen, to_steer
from holdfast.core.errors import Refused, UsageError
from holdfast.core.limits import BLAME, SUSPECT
from holdfast.core.model import (
    Act,
    Batch,
    BatchMode,
    Chunk,
    ChunkId,
    Claim,
    ClaimRequest,
    Commit,
    Entry,
    Item,
    ItemNo,
    Lease,
    Receipt,
    State,
    StoredEvent,
    StoredItem,
)
from holdfast.stores.base import has_landed
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import START
from holdfast.testing.replay import Violation, compare, replay
from holdfast.testing.simulator.oracles import SealedState
from tests.model.exhaustive.scope import Scope

LEASE = 30.0
OWNER = "worker"
"""All workers have the same name: nothing but the fence tells them apart."""

replace = msgspec.structs.replace
Raised = tuple[ChunkId, int]
"""A chunk that was granted or seized, and by how much that raised its fence."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """One store as it stands."""

    chunks: dict[Any, Chunk]
    places: dict[Any, Any]
    outputs: dict[Any, Any]
    entries: dict[int, list[Entry]]
    batches: dict[Any, Batch]
    events: list[StoredEvent]
    landed: dict[int, tuple[ChunkId, bytes]]
    """Letter -> chunk and id of its commit: those that are in the journal and that somebody may still ask for."""
    reached: list[tuple[int, int]]
    """Of every item: its epoch, and its stage in it."""


class Shelf:
    """The states of the store, by number."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.states: list[Kept] = []
        self.finished: list[bool] = []
        self._numbers: dict[Any, int] = {}
        self._ids = itertools.count(1)
        self._store = MemoryStore(clock=lambda: START, draw=self._draw)
        self._landed: dict[int, tuple[ChunkId, bytes]] = {}
        definition = canonical.encode({"stages": [{"name": f"s{n}"} for n in range(scope.stages)]})
        self._batch: Batch = self._store.open_batch("small", "world", definition, actor="search")
        items = [ingest.admit(f"k{n}", b"%d" % n) for n in range(scope.items)]
        self._store.add_items(self._batch.id, items, ended=True, actor="search")
        self._put()

    # -- what can be done to a store: each gives the number of the state after it --------------------------------

    def claim(self, number: int) -> tuple[int, Claim, Raised] | None:
        """What a worker that asks for work is granted, if anything is free."""
        kept = self._take(number)
        want = ClaimRequest(batch=self._batch.id, owner=OWNER, limit=self.scope.limit, seconds=LEASE)
        claim = self._store.claim(want)
        if not isinstance(claim, Claim):
            return None
        if self._row(kept).course is not BatchMode.OPEN or self.is_sealed(number):
            raise Violation(f"a chunk is granted, the batch is {self._row(kept).course}")
        after = self._moved(kept)
        return after, claim, self._raised(kept, claim.lease.chunk)

    def load(self, number: int, lo: ItemNo, hi: ItemNo, pending: int) -> tuple[Item, ...]:
        """The items of a grant that are pending now, not more than it was given."""
        self._take(number)
        return tuple(self._store.load(self._claim(lo, hi, pending), None, pending, 1 << 20)) if pending else ()

    def _claim(self, lo: ItemNo, hi: ItemNo, pending: int) -> Claim:
        lease = Lease(chunk=ChunkId(0), fence=0, owner=OWNER, expires=0.0)
        return Claim(lease=lease, batch=self._batch.id, uid=self._batch.uid, number=0, lo=lo, hi=hi, version=0,
                     pending=pending, blame=0, end=self.scope.stages)  # fmt: skip

    def renew(self, number: int, chunk: ChunkId, behind: int) -> int | None:
        """The state after a heartbeat; None when the lease is lost."""
        kept = self._take(number)
        now = kept.chunks[chunk]
        lease = Lease(chunk=chunk, fence=now.fence - behind, owner=OWNER, expires=0.0, grant=now.grant)
        return self._moved(kept) if self._store.renew([lease], LEASE) else None

    def commit(self, number: int, letter: int, commit: Commit, behind: int, *, overtaken: bool) -> tuple[int, Receipt]:
        """Deliver a letter: what the store answers, and how it stands then."""
        kept = self._take(number)
        known = letter in kept.landed
        written = self._concrete(kept, letter, commit, behind)
        (receipt,) = self._store.commit([written])
        grown = len(self._store._entries[commit.chunk]) - len(kept.entries[commit.chunk])
        if grown and overtaken:
            raise Violation("a commit was taken from an owner whose chunk was granted to somebody else")
        if grown and self.is_sealed(number):
            raise Violation("a commit was taken after the batch was sealed")
        if grown and known:
            raise Violation("a commit was written a second time")
        if known and not receipt.landed:
            raise Violation(f"a commit that had landed is sent again and answered as {receipt.reason}")
        if receipt.landed and not grown and not known:
            raise Violation("a commit was answered as landed and not written")
        if grown:
            self._landed = {**kept.landed, letter: (commit.chunk, written.id)}
        return self._moved(kept), receipt

    def has_landed(self, number: int, letter: int, commit: Commit, behind: int) -> bool:
        """What the store says of a commit whose reply never came: its chain, and where it landed also the answer to the
        same commit when it is sent again."""
        kept = self._take(number)
        written = self._concrete(kept, letter, commit, behind)
        landed = has_landed(self._store, written)
        if landed != (letter in kept.landed):
            raise Violation(f"the store says that a commit {'landed' if landed else 'did not land'}, which is not true")
        if landed and not self._store.commit([written])[0].landed:
            raise Violation("a commit that had landed is sent again and answered as one that did not")
        return landed

    def act(self, number: int, act: Act) -> tuple[int, tuple[ItemNo, ...], Raised | None]:
        kept = self._take(number)
        try:
            changed = self._store.act(replace(act, id=self._new_id(), batch=self._batch.id))
        except Refused:
            if not self.is_sealed(number):
                raise
            return number, (), None
        if self.is_sealed(number):
            raise Violation("an item of a sealed batch was changed")
        after = self._moved(kept)
        seized = (chunk for chunk in kept.chunks.values() if self._store._chunks[chunk.id].fence != chunk.fence)
        chunk = next(seized, None)
        return after, tuple(changed), None if chunk is None else self._raised(kept, chunk.id)

    def steer(self, number: int, course: BatchMode) -> int:
        """The state after somebody gave the batch another course; the same where nobody can."""
        kept = self._take(number)
        try:
            self._store.amend(self._batch.id, to_steer(course, reason="because"), actor="operator")
        except (Refused, UsageError):
            return number
        is_over = self.course(number) is BatchMode.CANCELLED and course is not BatchMode.CANCELLED
        if self.is_sealed(number) or is_over:
            raise Violation(f"a batch that had come to its end is {course}")
        return self._moved(kept)

    def seal(self, number: int) -> int:
        """The state after somebody tried to seal the batch."""
        kept = self._take(number)
        try:
            self._store.seal(
                self._batch.id, actor="operator", reconciliation=b"", events=[batch_finished("complete", {})]
            )
        except Refused:
            if self.finished[number] and not self.is_sealed(number):
                raise
            return number
        SealedState(self._store, self._batch.id)
        return self._moved(kept)

    def reopen(self, number: int) -> int:
        kept = self._take(number)
        self._store.amend(self._batch.id, to_reopen("because"), actor="operator")
        return self._moved(kept)

    def is_sealed(self, number: int) -> bool:
        return self._row(self.states[number]).sealed_at is not None

    def course(self, number: int) -> BatchMode:
        return self._row(self.states[number]).course

    def is_free(self, number: int, n: ItemNo) -> bool:
        """Whether nobody holds the item, or its owner has lost its lease."""
        chunks = self.states[number].chunks.values()
        return any(chunk.lo <= n < chunk.hi and (chunk.owner is None or chunk.expires < START) for chunk in chunks)

    def _row(self, kept: Kept) -> Batch:
        return kept.batches[self._batch.id]

    def expiries(self, number: int) -> list[tuple[int, ChunkId]]:
        """The states in which one more lease has expired."""
        found = []
        for chunk in self.states[number].chunks.values():
            if chunk.owner is not None and chunk.expires > START:
                kept = self._take(number)
                self._store._chunks[chunk.id] = replace(chunk, expires=START - 1)
                found.append((self._moved(kept), chunk.id))
        return found

    def forget(self, number: int, letter: int) -> int:
        """The state in which nobody can ask for a letter any more."""
        kept = self._take(number)
        self._landed = {name: commit for name, commit in kept.landed.items() if name != letter}
        return self._put()

    # -- reading -------------------------------------------------------------------------------------------------

    def items(self, number: int) -> tuple[StoredItem, ...]:
        """Every item as the store has it."""
        self._take(number)
        return tuple(self._store.items(self._batch.id))

    # -- keeping and taking --------------------------------------------------------------------------------------

    def _take(self, number: int) -> Kept:
        kept, store = self.states[number], self._store
        store._chunks, store._places, store._outputs = dict(kept.chunks), dict(kept.places), dict(kept.outputs)
        store._batches, store._events = dict(kept.batches), kept.events.copy()
        store._entries = {chain: entries.copy() for chain, entries in kept.entries.items()}
        self._landed = kept.landed
        return kept

    def _concrete(self, kept: Kept, letter: int, commit: Commit, behind: int) -> Commit:
        chunk = kept.chunks[commit.chunk]
        known = kept.landed.get(letter)
        return replace(commit, fence=chunk.fence - behind, grant=chunk.grant, batch=self._batch.id, uid=self._batch.uid,
                       number=chunk.number, id=known[1] if known else self._new_id())  # fmt: skip

    def _draw(self, count: int) -> bytes:
        """Every grant has an id of its own; salts are all the same, because nothing depends on them."""
        return next(self._ids).to_bytes(count, "big") if count == GRANT_BYTES else bytes(count)

    def _new_id(self) -> bytes:
        return next(self._ids).to_bytes(16, "big")

    def _raised(self, kept: Kept, chunk: ChunkId) -> Raised:
        by = self._store._chunks[chunk].fence - kept.chunks[chunk].fence
        if by <= 0:
            raise Violation(f"chunk {chunk} changed hands and its fence did not rise")
        return chunk, by

    def _moved(self, before: Kept) -> int:
        """Keep the store as it stands, after a look at what it came from."""
        store, told = self._store, False
        for chain, entries in store._entries.items():
            known = before.entries.get(chain, [])
            if entries[: len(known)] != known:
                raise Violation(f"the journal of chunk {chain} was not appended to, but changed")
            told = told or len(entries) > len(known)
        if told:
            compare(store, self._batch.id, replay(store, self._batch.id, self.scope.policies))
        number = self._put()
        for n, (was, now) in enumerate(zip(before.reached, self.states[number].reached, strict=True)):
            if now < was:
                raise Violation(f"item {n} went back from (epoch, stage) {was} to {now}")
        return number

    def _put(self) -> int:
        store = self._store
        row = store._batches[self._batch.id]
        key = (
            (row.course, row.sealed_at is not None),
            tuple(_kind(chunk) for chunk in store._chunks.values()),
            tuple(sorted(store._places.items(), key=itemgetter(0))),
            tuple(store._outputs[at] for at in sorted(store._outputs)),
            frozenset((letter, chunk) for letter, (chunk, _) in self._landed.items()),
        )
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.states)
            window = self._claim(ItemNo(0), ItemNo(self.scope.items), 0)
            places = [store._place(window, ItemNo(n)) for n in range(self.scope.items)]
            self.finished.append(all(place.state is not State.PENDING for place in places))
            self.states.append(
                Kept(
                    chunks=store._chunks,
                    places=store._places,
                    outputs=store._outputs,
                    entries=store._entries,
                    batches=store._batches,
                    events=store._events,
                    landed=self._landed,
                    reached=[(place.epoch, place.stage) for place in places],
                )
            )
        return number


def _kind(chunk: Chunk) -> Chunk:
    """All of a chunk that its future depends on."""
    return replace(
        chunk,
        fence=0,
        grant=b"",
        head=b"",
        seq=0,
        blame=min(chunk.blame, SUSPECT + BLAME),
        counts=replace(chunk.counts, attempts=0, seconds=0.0),
    )
