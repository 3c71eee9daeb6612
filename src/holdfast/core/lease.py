"""Leases: who may have a chunk, for how long, how much of it, and who is to blame.

The fence grows by one with every grant and never goes back, whatever happens to the chunk. A commit is judged by the
fence, never by the time: the lease only decides when somebody else may be granted the chunk.

Blame: a grant that ended without a commit and without a release died with its process. A chunk that such a grant held
is a suspect; it is handed out in smaller and smaller parts until one item stands alone, and that item is buried when
its process died `limits.BLAME` times.
"""

import msgspec

from holdfast.core.errors import UsageError
from holdfast.core.limits import BLAME
from holdfast.core.model import Chunk, ChunkId, Counts, ItemNo, Want


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim writes: the granted chunk, and the child that was cut off it."""

    chunk: Chunk
    child: Chunk | None
    taken_from: str


def may_claim(chunk: Chunk, *, now: float, waited: float = 0.0, owner_is_dead: bool = False) -> bool:
    """Whether the chunk can be granted. `waited` is how long the claimer's own write was kept waiting: others may
    have been kept from renewing just as long, so they are given that time."""
    if chunk.pending <= 0 or chunk.due > now:
        return False
    return chunk.owner is None or owner_is_dead or chunk.expires < now - waited


def grant(chunk: Chunk, want: Want, *, now: float, child_id: ChunkId, affordable: int | None = None) -> Grant:
    """The chunk under a new fence, cut to what the worker wants, can afford and may be trusted with."""
    died = chunk.owner is not None and not chunk.progressed
    blame = chunk.blame + 1 if died else (chunk.blame if not chunk.progressed else 0)
    size = _size(chunk, want, blame, affordable)
    child = _child(chunk, size, child_id, blame, now) if size < chunk.size else None
    granted = msgspec.structs.replace(
        chunk,
        hi=ItemNo(chunk.lo + size),
        fence=chunk.fence + 1,
        version=0,
        owner=want.owner,
        expires=now + want.seconds,
        due=0.0,
        blame=blame,
        progressed=False,
        reserved=want.reserve * min(size, chunk.pending),
    )
    return Grant(chunk=granted, child=child, taken_from=chunk.owner or "")


def affordable(*, cap: int | None, reserve: int, spent: int, reserved: int) -> int | None:
    """How many items the budget still allows; None where there is no budget."""
    if cap is None:
        return None
    left = cap - spent - reserved
    if left <= 0:
        return 0
    return left // reserve if reserve > 0 else None


def condemned(pending: int, blame: int) -> bool:
    """Whether a lone item has killed its process too often to be run again."""
    return pending == 1 and blame >= BLAME


def check_times(lease: float, heartbeat: float) -> None:
    """Refuse a heartbeat that could miss a lease."""
    if lease <= 0:
        raise UsageError(f"lease={lease:g}: a lease lasts longer than 0 s")
    if not 0 < heartbeat < lease / 2:
        raise UsageError(f"a heartbeat every {heartbeat:g} s is too slow for a lease of {lease:g} s: it must be under half of it")


def _size(chunk: Chunk, want: Want, blame: int, affordable: int | None) -> int:
    """How many items to grant. Only a chunk in which nothing is settled can be cut without looking at its items."""
    if chunk.counts.settled:
        return chunk.size
    size = min(chunk.size, max(1, want.limit))
    if affordable is not None:
        size = min(size, max(1, affordable))
    return max(1, chunk.size >> 1) if blame > 1 and size > 1 and size == chunk.size else size


def _child(chunk: Chunk, size: int, child_id: ChunkId, blame: int, now: float) -> Chunk:
    return Chunk(
        id=child_id,
        batch=chunk.batch,
        parent=chunk.id,
        lo=ItemNo(chunk.lo + size),
        hi=chunk.hi,
        fence=chunk.fence,
        due=chunk.due,
        blame=blame,
        progressed=False if blame else True,
        head=chunk.head,
        counts=Counts(),
        touched_at=now,
    )
