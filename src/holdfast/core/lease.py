"""Leases: which process may hold a chunk, for how long, how much of it, and how blame is assigned.

The fence grows by one with every grant and never decreases, whatever happens to the chunk. A commit is judged by the
fence and by the random id of its grant, never by the time: the lease only decides when another process may be granted
the chunk. The id is there for copies: a store that was restored, or a standby that lacks the last writes, may hand out
a fence a second time, but never an id.

Blame: if a grant ended without a commit and without a release, its process died. After that, no more items of the chunk
are granted than can be started at once, so that the next death blames only items that were started. After
`limits.SUSPECT` deaths the chunk is a suspect: each further death halves the number of items granted, and a grant gets
a process to itself, in which it runs with full concurrency. Only when one item is left is that item on trial: before
its handler starts, a commit of the kind `started` is made durable, and only that commit counts a strike. After
`limits.BLAME` strikes in a row the item is buried. So only deaths while the item was handled alone count against it:
not deaths among others, and not deaths before its turn. In a grant of n items, an item that always kills its process
is isolated after at most SUSPECT + log2(n) + BLAME deaths, rounded up. Any commit, a release or an operator
(`Act.lifts`) clears the blame.

A request for one particular item of a suspect grants it alone, so that it can be on trial even if its neighbours are
never requested. A grant is the head of a chunk, so this takes two grants if other items precede it: the first is of
those.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto

import msgspec

from holdfast.core import journal, retry, sections
from holdfast.core.commitments import Draw
from holdfast.core.errors import UsageError
from holdfast.core.limits import BLAME, CHAIN_ENTRIES, CHAIN_ITEMS, SUSPECT
from holdfast.core.model import (
    Chunk,
    ChunkId,
    Claim,
    ClaimRequest,
    Counts,
    Entry,
    ItemNo,
    ItemState,
    Kind,
    Lease,
    State,
)

NUMBERLESS = ChunkId(0)
"""The number of a child before the store has assigned one."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """The place where a chunk is cut in two: the child begins at `at`, and `tail` counts its settled items."""

    at: ItemNo
    tail: Counts = Counts()


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a claim: the granted chunk, and the child that was cut off it. `entry` and `claim` are available
    once the child has its number."""

    chunk: Chunk
    child: Chunk | None
    taken_from: str

    def with_child(self, id_: ChunkId, number: int) -> "Grant":
        """Return the same grant, with the numbers that the store assigned to its child: its own, and that within the
        batch."""
        assert self.child is not None, f"nothing was cut off chunk {self.chunk.id}"
        return msgspec.structs.replace(self, child=msgspec.structs.replace(self.child, id=id_, number=number))

    def entry(self, uid: bytes, snapshots: Sequence[journal.Snapshot], now: float, draw: Draw) -> Entry:
        """Return the entry that records the grant, with the attempts that may be repeated."""
        granted, child = self.chunk, self.child
        told = journal.Claimed(
            lo=granted.lo, hi=granted.hi, expires=granted.expires, blame=granted.blame, taken_from=self.taken_from,
            child=(child.number, child.lo, child.hi) if child is not None else None, snapshots=list(snapshots),
        )  # fmt: skip
        return journal.link(
            granted.head, journal.Chain(uid, granted.number, granted.id), seq=granted.seq + 1, kind="claimed", at=now,
            actor=granted.owner or "", fence=granted.fence, grant=granted.grant,
            encoded=sections.encode(told, uid, granted.number, b"", draw),
        )  # fmt: skip

    def claim(self, uid: bytes) -> Claim:
        """Return the claim for the claimer."""
        granted = self.chunk
        held = Lease(chunk=granted.id, fence=granted.fence, owner=granted.owner or "", expires=granted.expires,
                     grant=granted.grant)  # fmt: skip
        return Claim(
            lease=held, batch=granted.batch, uid=uid, number=granted.number, lo=granted.lo, hi=granted.hi, version=0,
            pending=granted.pending, blame=granted.blame, kind=granted.kind, first=granted.first, end=granted.end,
            origin=granted.origin,
        )  # fmt: skip


def may_claim(chunk: Chunk, *, now: float, waited: float = 0.0, owner_is_dead: bool = False) -> bool:
    """Return whether the chunk can be granted. `waited` is how long the claimer's own write was delayed: owners may
    have been kept from renewing for as long, so they are given that time."""
    if chunk.pending <= 0 or retry.chunk_waits_until(chunk, now) > now:
        return False
    return chunk.owner is None or owner_is_dead or chunk.expires < now - waited


def ahead(chunk: Chunk, want: ClaimRequest, states: Callable[[], Sequence[State]]) -> int:
    """Return how many pending items precede the requested one, if it must run alone; else 0. `states` gives one per
    item of the chunk, in order."""
    if want.only is None or blamed(chunk) < SUSPECT:
        return 0
    index = want.only - chunk.lo
    return states()[:index].count(State.PENDING) if chunk.counts.settled else index


def share(chunk: Chunk, want: ClaimRequest, *, affordable: int | None = None, ahead: int = 0) -> int:
    """Return how many pending items to grant: as many as are requested, can be paid for, and may be trusted to one
    process. A request for one item grants its whole chunk, because the others are not run; of a suspect it grants the
    items `ahead` of it, and once there are none, the item alone. Of a chunk that carries blame, no more are granted
    than can be started at once, and after each death of a suspect's owner half as many as that owner had."""
    if want.only is not None:
        return chunk.pending if blamed(chunk) < SUSPECT else max(1, ahead)
    blame, limits = blamed(chunk), [want.limit]
    if affordable is not None:
        limits.append(affordable)
    if blame and want.at_once is not None:
        limits.append(want.at_once)
    if blame >= SUSPECT and chunk.owner is not None:  # its owner died; a child that was cut off was never granted
        limits.append(chunk.pending >> 1)
    return min(chunk.pending, max(1, min(limits)))


def is_further(chunk: Chunk, want: ClaimRequest, granted: int) -> bool:
    """Return whether a chunk may be granted in the same write as others with so many items: whole, within the limit,
    and never with blame or under a budget, because those depend on the result of the previous grant."""
    return want.cap is None and granted + chunk.pending <= want.limit and not blamed(chunk)


def find_cut(chunk: Chunk, size: int, states: Sequence[State]) -> Cut:
    """Return where to cut so that the head keeps `size` pending items; `states` has one per item of the chunk, in
    order."""
    pending = [index for index, state in enumerate(states) if state is State.PENDING]
    assert len(pending) == chunk.pending, (
        f"chunk {chunk.id} counts {chunk.pending} pending items, but has {len(pending)}"
    )
    at = pending[size]
    tail = Counter(states[at:])
    return Cut(
        at=ItemNo(chunk.lo + at),
        tail=Counts(
            done=tail[State.DONE], skipped=tail[State.SKIPPED], dead=tail[State.DEAD], cancelled=tail[State.CANCELLED]
        ),
    )


def is_held_by(chunk: Chunk, held: Lease) -> bool:
    """Return whether a lease is the current one of its chunk."""
    return (chunk.fence, chunk.owner, chunk.grant) == (held.fence, held.owner, held.grant)


def must_end(chunk: Chunk) -> bool:
    """Return whether the chain of a chunk is so long that a successor continues it, from its next grant on. Only
    partitions get there: they may be read for ever."""
    return chunk.kind is Kind.PARTITIONS and chunk.seq >= CHAIN_ENTRIES and chunk.size <= CHAIN_ITEMS


def grant(
    chunk: Chunk, want: ClaimRequest, grant_id: bytes, *, now: float, states: Callable[[], Sequence[State]],
    affordable: int | None = None, floor: int = 0,
) -> Grant:  # fmt: skip
    """Grant a chunk under a new fence and a random id, cut to its `share`. `states` reads one state per item, in order,
    and is called only if items of the chunk are settled. Every fence is above `floor`."""
    in_front = ahead(chunk, want, states)
    size = share(chunk, want, affordable=affordable, ahead=in_front)
    cut = Cut(at=chunk.hi)
    if size < chunk.pending:
        cut = find_cut(chunk, size, states()) if chunk.counts.settled else Cut(at=ItemNo(chunk.lo + size))
    at, tail = cut.at, cut.tail
    blame = blamed(chunk)
    granted = msgspec.structs.replace(
        chunk,
        hi=at,
        fence=max(chunk.fence, floor) + 1,
        grant=grant_id,
        version=0,
        owner=want.owner,
        expires=now + want.seconds,
        due=0.0,
        blame=blame,
        progressed=False,
        reserved=want.reserve * size,
        counts=chunk.counts.minus(tail),
    )
    child = _child(chunk, at, tail, blame) if at < chunk.hi else None
    return Grant(chunk=granted, child=child, taken_from=chunk.owner or "")


def snapshots(places: Iterable[tuple[int, ItemState]]) -> list[journal.Snapshot]:
    """Return a snapshot of every pending item that was tried before."""
    return [
        journal.Snapshot(n, at.stage, at.epoch, at.attempt, at.code, used=at.used)
        for n, at in places
        if at.state is State.PENDING and (at.attempt or at.epoch)
    ]


def first(chunks: Iterable[Chunk]) -> Chunk | None:
    """Return the chunk to grant first: chunks that waited, by due time, then the others by item number."""
    return min(chunks, key=lambda chunk: (chunk.due == 0, chunk.due, chunk.lo), default=None)


def blamed(chunk: Chunk) -> int:
    """Return how many grants in a row ended in a dead process, the last one included, up to SUSPECT; beyond that only
    the strikes of a single item."""
    if chunk.progressed:
        return 0
    deaths = min(SUSPECT, chunk.blame + (chunk.owner is not None))
    return max(deaths, chunk.blame) if chunk.pending == 1 else deaths


def carries_blame(chunk: Chunk, *, is_held: bool) -> bool:
    """Return whether an owner of the chunk died and nothing of it was committed since. `is_held`: its owner is
    alive."""
    died = chunk.owner is not None and not is_held
    return chunk.pending > 0 and not chunk.progressed and (chunk.blame > 0 or died)


class Trial(Enum):
    """The consequence of deaths for a claim."""

    NONE = auto()
    SUSPECT = auto()
    """It must have its process to itself, so that a death counts against nothing else."""
    ON_TRIAL = auto()
    """A single suspect item: the start of its handler must be made durable first, and a death after that is a
    strike."""
    CONDEMNED = auto()
    """A single item that has killed its process too often to be run again."""


def trial_of(pending: int, blame: int) -> Trial:
    """Return the consequence of so many deaths for a claim with so many pending items."""
    if blame < SUSPECT:
        return Trial.NONE
    if pending != 1:
        return Trial.SUSPECT
    return Trial.ON_TRIAL if blame < SUSPECT + BLAME else Trial.CONDEMNED


def affordable(*, cap: int | None, reserve: int, spent: int, reserved: int) -> int | None:
    """Return how many items the budget still covers; None if there is no budget."""
    if cap is None:
        return None
    left = cap - spent - reserved
    if left <= 0:
        return 0
    return left // reserve if reserve > 0 else None


def check_times(lease: float, heartbeat: float) -> None:
    """Refuse a heartbeat that could miss a lease."""
    if lease <= 0:
        raise UsageError(f"lease={lease:g}: a lease must last longer than 0 s")
    if not 0 < heartbeat < lease / 2:
        raise UsageError(
            f"a heartbeat every {heartbeat:g} s is too slow for a lease of {lease:g} s: it must be under half of it"
        )


def _child(chunk: Chunk, at: ItemNo, tail: Counts, blame: int) -> Chunk:
    return Chunk(
        id=NUMBERLESS,
        batch=chunk.batch,
        parent=chunk.id,
        lo=at,
        hi=chunk.hi,
        fence=chunk.fence,
        due=chunk.due,
        blame=blame,
        progressed=not blame,
        head=chunk.head,
        counts=tail,
        touched_at=chunk.touched_at,
        kind=chunk.kind,
        leg=chunk.leg,
        first=chunk.first,
        end=chunk.end,
        origin=chunk.origin,
    )
