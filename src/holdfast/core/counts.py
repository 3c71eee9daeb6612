"""The counts and cost of a batch, summed from its chunks alone, without reading items."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from holdfast.core import canonical
from holdfast.core.course import End, end_of, kind_of
from holdfast.core.model import Batch, Chunk, Kind
from holdfast.core.plain import Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCounts(Plain):
    """The number of items of a batch in each state. The numbers always add up."""

    expected: int
    done: int
    skipped: int
    dead: int
    cancelled: int
    pending: int
    ready: int
    running: int
    waiting: int
    orphaned: int

    def __post_init__(self) -> None:
        assert self.expected == self.done + self.skipped + self.dead + self.cancelled + self.pending, self
        assert self.pending == self.ready + self.running + self.waiting + self.orphaned, self
        settled = (self.done, self.skipped, self.dead, self.cancelled)
        assert min(*settled, self.ready, self.running, self.waiting, self.orphaned) >= 0, self

    @property
    def settled(self) -> int:
        return self.expected - self.pending


def count(chunks: Sequence[Chunk], word_of: Callable[[Chunk], str]) -> StateCounts:
    """Count every item once. The rows of the chunks were read together, so the sum is right. `word_of` returns the
    state of the pending items of a chunk: ready, running, waiting or orphaned."""
    pending: Counter[str] = Counter()
    for chunk in chunks:
        if left := chunk.pending:
            pending[word_of(chunk)] += left
    return StateCounts(
        expected=sum(chunk.size for chunk in chunks),
        done=sum(chunk.counts.done for chunk in chunks),
        skipped=sum(chunk.counts.skipped for chunk in chunks),
        dead=sum(chunk.counts.dead for chunk in chunks),
        cancelled=sum(chunk.counts.cancelled for chunk in chunks),
        pending=pending.total(),
        ready=pending["ready"],
        running=pending["running"],
        waiting=pending["waiting"],
        orphaned=pending["orphaned"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals(Plain):
    """Totals from the rows of the chunks: cheap enough for a live view, whatever the size of the batch."""

    attempts: int
    usd: Decimal
    tokens: int
    seconds: float
    settled: int
    mean_usd: Decimal | None
    """Per settled item."""
    mean_seconds: float | None


def totals(chunks: Sequence[Chunk]) -> Totals:
    """Return the totals of a batch."""
    spent = sum(chunk.counts.spent for chunk in chunks)
    seconds = sum(chunk.counts.seconds for chunk in chunks)
    settled = sum(chunk.counts.settled for chunk in chunks)
    return Totals(
        attempts=sum(chunk.counts.attempts for chunk in chunks),
        usd=canonical.to_usd(spent),
        tokens=sum(chunk.counts.tokens for chunk in chunks),
        seconds=seconds,
        settled=settled,
        mean_usd=canonical.to_usd(round(Fraction(spent, settled))) if settled else None,
        mean_seconds=seconds / settled if settled else None,
    )


class BatchStanding(NamedTuple):
    """The state of a batch at some moment."""

    counts: StateCounts
    totals: Totals
    kind: Kind
    end: End | None
    """How it ended; None while it may continue."""


def stand(
    batch: Batch, chunks: Sequence[Chunk], now: float, word_of: Callable[[Chunk], str], cut_short: Callable[[], bool]
) -> BatchStanding:
    """Return the state of a batch. `word_of` is called for chunks with pending items, as in `count`; `cut_short`
    returns whether items were cancelled by the end of the batch, as in `end_of`."""
    counts = count(chunks, word_of)
    end = end_of(batch, now, pending=counts.pending, dead=counts.dead, cut_short=cut_short)
    return BatchStanding(counts, totals(chunks), kind_of(batch, chunks), end)
