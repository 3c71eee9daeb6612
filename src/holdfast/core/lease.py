"""Leases: who may have a chunk, for how long, how much of it, and who is to blame.

The fence grows by one with every grant and never goes back, whatever happens to the chunk. A commit is judged by the
fence, never by the time: the lease only decides when somebody else may be granted the chunk.

Blame: a grant that ended without a commit and without a release died with its process. Of a chunk to which that
happened no more is granted than can be started at once, so that the next death blames nothing that was not begun. After
`limits.SUSPECT` deaths the chunk is a suspect: each further death halves what is granted of it, and what is granted has
a process to itself, in which it is run with full concurrency. Only when one item is left is that one on trial: before
its handler starts, a commit of the kind `started` is durable, and only that commit counts a strike. After
`limits.BLAME` strikes in a row the item is buried. So nothing is held against an item but deaths that came while it,
and nothing else, was being handled: not deaths among others, and not deaths before it was its turn. A grant of n items
with one among them that always kills is narrowed down in SUSPECT + log2(n) + BLAME deaths at most, rounded up. Any
commit, a release and a person (`Act.lifts`) take the blame away.

Who asks for one certain item of a suspect gets it alone, so that it can be on trial whether or not its neighbours are
ever asked for. A grant is the head of a chunk, so that takes two where others stand before it: the first is of those.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto

import msgspec

from holdfast.core import journal, retry
from holdfast.core.errors import UsageError
from holdfast.core.limits import BLAME, SUSPECT
from holdfast.core.model import Chunk, ChunkId, Claim, ClaimRequest, Counts, Entry, ItemNo, ItemState, Lease, State

NUMBERLESS = ChunkId(0)
"""The number of a child before the store has given it one."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """Where a chunk is cut in two: the child begins at `at`, and `tail` counts what is settled from there on."""

    at: ItemNo
    tail: Counts = Counts()


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a claim: the granted chunk, and the child that was cut off it. `entry` and `claim` follow from it
    once the child has its number."""

    chunk: Chunk
    child: Chunk | None
    taken_from: str

    def with_child(self, number: ChunkId) -> "Grant":
        """Return the same grant, its child under the number that the store gave it."""
        assert self.child is not None, f"nothing was cut off chunk {self.chunk.id}"
        return msgspec.structs.replace(self, child=msgspec.structs.replace(self.child, id=number))

    def entry(self, snapshots: Sequence[journal.Snapshot], now: float) -> Entry:
        """Return the entry that makes the grant known, with the attempts that may be repeated."""
        granted, child = self.chunk, self.child
        told = journal.Claimed(
            lo=granted.lo, hi=granted.hi, expires=granted.expires, blame=granted.blame, taken_from=self.taken_from,
            child=(child.id, child.lo, child.hi) if child is not None else None, snapshots=list(snapshots),
        )  # fmt: skip
        body = journal.encode_body(told)
        return journal.link_chunk(granted, "claimed", body, granted.owner or "", granted.fence, b"", now)

    @property
    def claim(self) -> Claim:
        """The answer for the claimer."""
        granted = self.chunk
        held = Lease(chunk=granted.id, fence=granted.fence, owner=granted.owner or "", expires=granted.expires)
        return Claim(lease=held, batch=granted.batch, lo=granted.lo, hi=granted.hi, version=0, pending=granted.pending,
                     blame=granted.blame, kind=granted.kind)  # fmt: skip


def may_claim(chunk: Chunk, *, now: float, waited: float = 0.0, owner_is_dead: bool = False) -> bool:
    """Return whether the chunk can be granted. `waited` is how long the claimer's own write was kept waiting: others
    may have been kept from renewing just as long, so they are given that time."""
    if chunk.pending <= 0 or retry.chunk_waits_until(chunk, now) > now:
        return False
    return chunk.owner is None or owner_is_dead or chunk.expires < now - waited


def ahead(chunk: Chunk, want: ClaimRequest, states: Callable[[], Sequence[State]]) -> int:
    """Return how many pending items stand before the one that is wanted, where it has to stand alone; else 0. `states`
    gives one per item of the chunk, in order."""
    if want.only is None or blamed(chunk) < SUSPECT:
        return 0
    index = want.only - chunk.lo
    return states()[:index].count(State.PENDING) if chunk.counts.settled else index


def share(chunk: Chunk, want: ClaimRequest, *, affordable: int | None = None, ahead: int = 0) -> int:
    """Return how many pending items to grant: as many as are wanted, can be paid for, and may be trusted to one
    process. Who wants a certain item gets all that stand with it, because they are not run; but of a suspect what is
    `ahead` of it, and once nothing is, the item alone. Of what carries blame there is no more than can be started at
    once, and after each death of a suspect's owner half of what that one had."""
    if want.only is not None:
        return chunk.pending if blamed(chunk) < SUSPECT else max(1, ahead)
    blame, limits = blamed(chunk), [want.limit]
    if affordable is not None:
        limits.append(affordable)
    if blame and want.at_once is not None:
        limits.append(want.at_once)
    if blame >= SUSPECT and chunk.owner is not None:  # it was granted, and its owner died: what was cut off it was not
        limits.append(chunk.pending >> 1)
    return min(chunk.pending, max(1, min(limits)))


def is_further(chunk: Chunk, want: ClaimRequest, granted: int) -> bool:
    """Return whether a chunk may be granted in the same write as others with so many items: whole, as far as the limit
    goes, and never with blame or under a budget, which decide about each grant by what the last one left."""
    return want.cap is None and granted + chunk.pending <= want.limit and not blamed(chunk)


def find_cut(chunk: Chunk, size: int, states: Sequence[State]) -> Cut:
    """Return where to cut so that the head keeps `size` pending items; `states` has one per item of the chunk, in
    order."""
    pending = [index for index, state in enumerate(states) if state is State.PENDING]
    assert len(pending) == chunk.pending, (
        f"chunk {chunk.id} counts {chunk.pending} pending items, it has {len(pending)}"
    )
    at = pending[size]
    tail = Counter(states[at:])
    return Cut(
        at=ItemNo(chunk.lo + at),
        tail=Counts(
            done=tail[State.DONE], skipped=tail[State.SKIPPED], dead=tail[State.DEAD], cancelled=tail[State.CANCELLED]
        ),
    )


def grant(
    chunk: Chunk, want: ClaimRequest, *, now: float, states: Callable[[], Sequence[State]],
    child_id: ChunkId = NUMBERLESS, affordable: int | None = None, floor: int = 0,
) -> Grant:  # fmt: skip
    """Grant a chunk under a new fence, cut to its `share`. `states` reads one state per item, in order, and is asked
    only where items of the chunk are settled. Every fence is above `floor`."""
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
        version=0,
        owner=want.owner,
        expires=now + want.seconds,
        due=0.0,
        blame=blame,
        progressed=False,
        reserved=want.reserve * size,
        counts=chunk.counts.minus(tail),
    )
    child = _child(chunk, at, tail, child_id, blame) if at < chunk.hi else None
    return Grant(chunk=granted, child=child, taken_from=chunk.owner or "")


def snapshots(places: Iterable[tuple[int, ItemState]]) -> list[journal.Snapshot]:
    """Return a snapshot of every pending item that was tried before."""
    return [
        journal.Snapshot(n, at.stage, at.epoch, at.attempt, at.code, used=at.used)
        for n, at in places
        if at.state is State.PENDING and (at.attempt or at.epoch)
    ]


def first(chunks: Iterable[Chunk]) -> Chunk | None:
    """Return the chunk that is granted before others: those that waited come first, by their time, then by item."""
    return min(chunks, key=lambda chunk: (chunk.due == 0, chunk.due, chunk.lo), default=None)


def blamed(chunk: Chunk) -> int:
    """Return how many grants in a row ended in a dead process, the last one included, up to what makes suspects; beyond
    that only the strikes of a lone item."""
    if chunk.progressed:
        return 0
    deaths = min(SUSPECT, chunk.blame + (chunk.owner is not None))
    return max(deaths, chunk.blame) if chunk.pending == 1 else deaths


def carries_blame(chunk: Chunk, *, is_held: bool) -> bool:
    """Return whether an owner of the chunk died and nothing of it was committed since. `is_held`: its owner lives."""
    died = chunk.owner is not None and not is_held
    return chunk.pending > 0 and not chunk.progressed and (chunk.blame > 0 or died)


class Trial(Enum):
    """What the deaths under a claim mean for it."""

    NONE = auto()
    SUSPECT = auto()
    """It must have its process to itself: a death is then held against nothing else."""
    ON_TRIAL = auto()
    """A lone suspect: it must be durable that its handler starts before it does, and a death from then on is a
    strike."""
    CONDEMNED = auto()
    """A lone item that has killed its process too often to be run again."""


def trial_of(pending: int, blame: int) -> Trial:
    """Return what so many deaths mean for a claim with so many pending items."""
    if blame < SUSPECT:
        return Trial.NONE
    if pending != 1:
        return Trial.SUSPECT
    return Trial.ON_TRIAL if blame < SUSPECT + BLAME else Trial.CONDEMNED


def affordable(*, cap: int | None, reserve: int, spent: int, reserved: int) -> int | None:
    """Return how many items the budget still allows; None where there is no budget."""
    if cap is None:
        return None
    left = cap - spent - reserved
    if left <= 0:
        return 0
    return left // reserve if reserve > 0 else None


def check_times(lease: float, heartbeat: float) -> None:
    """Refuse a heartbeat that could miss a lease."""
    if lease <= 0:
        raise UsageError(f"lease={lease:g}: a lease lasts longer than 0 s")
    if not 0 < heartbeat < lease / 2:
        raise UsageError(
            f"a heartbeat every {heartbeat:g} s is too slow for a lease of {lease:g} s: it must be under half of it"
        )


def _child(chunk: Chunk, at: ItemNo, tail: Counts, child_id: ChunkId, blame: int) -> Chunk:
    return Chunk(
        id=child_id,
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
    )
