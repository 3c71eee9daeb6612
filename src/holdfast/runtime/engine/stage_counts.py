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
PAGE = 1_000


@dataclass(frozen=True, slots=True)
class PendingByStage:
    """How many pending items are at each stage, as the store has them."""

    counts: Counter[int] = field(default_factory=Counter)
    is_estimate: bool = False
    """Only the first items were read: the counts are scaled up."""


def read_pending(store: Store, batch: Batch, chunks: Sequence[Chunk]) -> PendingByStage:
    """Read at which stages the pending items of these chunks are."""
    found, seen, left = Counter[int](), 0, sum(chunk.pending for chunk in chunks)
    for chunk in chunks:
        lo, pending = int(chunk.lo), chunk.pending
        while pending > 0 and seen < READ_ITEMS:
            page = store.items(batch.id, lo=lo, hi=chunk.hi, state=State.PENDING, limit=min(PAGE, READ_ITEMS - seen))
            if not page:
                break
            found.update(item.place.stage for item in page)
            lo, pending, seen = page[-1].n + 1, pending - len(page), seen + len(page)
    if not seen or seen >= left:
        return PendingByStage(found)
    return PendingByStage(Counter({stage: count * left // seen for stage, count in found.items()}), is_estimate=True)


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
