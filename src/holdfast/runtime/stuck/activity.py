"""The activity in a batch: what is known about each of its chunks when somebody asks whether its items are stuck.

The rows of the chunks answer nearly always. A chain is read only in a batch whose rows say that nothing was written
for the grace period, and of a chunk that an act took from its owner.
"""

from collections.abc import Callable, Sequence
from functools import cached_property

from holdfast.core import wait
from holdfast.core.limits import ORPHAN_GRACE
from holdfast.core.model import START, Batch, Chunk, Course, Place, State
from holdfast.core.orphans import Facts
from holdfast.runtime.stuck import grants
from holdfast.runtime.stuck.patience import Patience
from holdfast.stores import owners
from holdfast.stores.base import Store

Grants = Callable[[Chunk], grants.LastGrant | None]


class Activity:
    """The facts about the pending items of a batch, at one moment."""

    def __init__(
        self,
        chunks: Sequence[Chunk],
        *,
        now: float,
        grace: float = ORPHAN_GRACE,
        course: Course = Course.OPEN,
        is_dead: grants.IsDead = owners.is_dead,
        last_grant: Grants = lambda chunk: None,
    ) -> None:
        self.now, self.grace = now, grace
        self._chunks, self._course, self._is_dead, self._last_grant = chunks, course, is_dead, last_grant

    @staticmethod
    def of(
        store: Store, batch: Batch, chunks: Sequence[Chunk], *, now: float, is_dead: grants.IsDead = owners.is_dead
    ) -> "Activity":
        """Of a batch in a store, with the patience that it was last run with."""
        return Activity(
            chunks, now=now, grace=Patience.of(batch).orphan_after, course=batch.course, is_dead=is_dead,
            last_grant=lambda chunk: grants.last_grant(store, chunk),
        )  # fmt: skip

    def facts(self, chunk: Chunk, place: Place | None = None) -> Facts:
        """What is known about the pending items of a chunk, or about the one of them that is at `place`."""
        return Facts(
            state=State.PENDING,
            course=self._course,
            progressed_at=chunk.touched_at,
            due=max(wait.until_of_chunk(chunk, self.now), wait.until_of_item(place or START, self.now)),
            was_claimed=self._was_claimed(chunk),
            is_held=grants.is_live(chunk, self.now, self._is_dead),
            written_at=self._written_at,
        )

    def _was_claimed(self, chunk: Chunk) -> bool:
        """Whether the chunk was claimed since it last made progress."""
        if chunk.seq == 0 or self.now - chunk.touched_at <= self.grace:  # never, or it makes no difference
            return False
        if not _is_seized(chunk):
            return not chunk.progressed
        grant = self._last_grant(chunk)
        return grant is not None and grant.at >= chunk.touched_at

    @cached_property
    def _written_at(self) -> float:
        """When anything was last written in the batch: by its rows, and if those are old, by its claims."""
        newest = max((chunk.touched_at for chunk in self._chunks), default=0.0)
        if self.now - newest <= self.grace:
            return newest
        claimed = [chunk for chunk in self._chunks if chunk.seq and (not chunk.progressed or _is_seized(chunk))]
        found = [grant.at for grant in map(self._last_grant, claimed) if grant is not None]
        return max([newest, *found])


def _is_seized(chunk: Chunk) -> bool:
    """Whether an act took the chunk from its owner since it was last granted, or nobody but an act ever touched it."""
    return chunk.owner is None and chunk.version == 0
