"""Pending items by stage, for the progress of a run: counted as commits land, and read from the store if another
process moved them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.core.model import Batch, Chunk, State
from holdfast.core.settle import Settled
from holdfast.stores.base import Store

READ_ITEMS = 5_000
"""Pending items that are read from the store to count them by stage; if there are more, the counts are scaled up."""
READ_CHUNKS = 50
"""Chunks whose items are read then."""


@dataclass(frozen=True, slots=True)
class PendingByStage:
    """How many pending items are at each stage, as the store has them."""

    counts: Counter[int] = field(default_factory=Counter)
    is_estimate: bool = False
    """Only some items were read: the counts are scaled up."""


def read_pending(store: Store, batch: Batch, chunks: Sequence[Chunk]) -> PendingByStage:
    """Read at which stages the pending items of these chunks are. If there are many, some items of chunks from all over
    the batch are read: its beginning is usually ahead of its end."""
    begun = [chunk for chunk in chunks if chunk.pending and _may_have_begun(chunk)]
    left = sum(chunk.pending for chunk in begun)
    whole = sum(chunk.pending for chunk in chunks)
    sampled = begun if left <= READ_ITEMS else begun[:: -(-len(begun) // READ_CHUNKS)]
    most = READ_ITEMS if left <= READ_ITEMS else max(1, READ_ITEMS // len(sampled))
    found, seen = Counter[int](), 0
    for chunk in sampled:
        items = store.items(batch.id, lo=chunk.lo, hi=chunk.hi, state=State.PENDING, limit=most)
        found.update(item.place.stage for item in items)
        seen += len(items)
    counts = Counter({stage: count * left // max(1, seen) for stage, count in found.items()})
    counts[0] += whole - left
    return PendingByStage(counts, is_estimate=seen < left)


def _may_have_begun(chunk: Chunk) -> bool:
    """Return whether any of its items can be beyond the first stage."""
    return chunk.counts.attempts > 0 or chunk.owner is not None or chunk.parent is not None


class StageCounts:
    """Pending items beyond the first stage. Every other pending item counts for the first stage."""

    def __init__(self) -> None:
        self._later = Counter[int]()
        self.is_estimate = False

    def add(self, settled: Settled) -> None:
        """Move the items that a commit moved."""
        for group in settled.advanced:
            self._move(group.stage, None if group.finished else group.stage + 1, len(group.items))
        for attempt in settled.attempts:
            if attempt.outcome in ("skip", "bury"):
                self._move(attempt.stage, None, 1)
            elif attempt.outcome == "rewind":
                self._move(attempt.stage, attempt.to_stage, 1)

    def _move(self, stage: int, to: int | None, count: int) -> None:
        if stage:  # an item that was not counted here was pending before the run, or came from another process
            self._later[stage] = max(0, self._later[stage] - count)
        if to:
            self._later[to] += count

    def replace(self, found: PendingByStage) -> None:
        """Take over the counts that were read from the store."""
        self._later = Counter({stage: count for stage, count in found.counts.items() if stage})
        self.is_estimate = found.is_estimate

    def of(self, pending: int, stages: int) -> list[int]:
        """Return how many of so many pending items are at each stage."""
        at, left = [0] * stages, max(0, pending)
        for stage in range(stages - 1, 0, -1):
            at[stage] = min(left, self._later[stage])
            left -= at[stage]
        at[0] = left
        return at
