"""Which outputs of a batch were made by the stages of today: replayed from the journal, one byte for each item."""

from collections.abc import Iterable, Sequence

from holdfast.core import changes, journal
from holdfast.core.model import Batch, Chunk, StoredItem
from holdfast.stores.base import Store, each_entry


class Makers:
    """For every stage that changed, the items whose last answer at it came from the stage as it is defined now. An
    output that was adopted, and one that an older version recorded, may be anybody's: it does not count as one."""

    def __init__(self, changed: Sequence[changes.StageChange], definition: bytes, items: int) -> None:
        self.changed = changed
        makers = changes.makers(definition)
        self._now = {each.index: makers[each.index] for each in changed}
        self._ours = {each.index: bytearray(items) for each in changed}

    def replay(self, body: journal.Body) -> None:
        """Take in an entry of a chunk; a parent's come before those of what was cut off it."""
        if not isinstance(body, journal.Checkpointed):
            return
        made_by = dict(body.made_by)
        for group in body.advanced:
            self._note(group.stage, group.items, not group.adopted and self._is_ours(group.stage, made_by))
        for attempt in body.attempts:
            if attempt.outcome == "skip":
                self._note(attempt.stage, (attempt.n,), self._is_ours(attempt.stage, made_by))

    def other(self, item: StoredItem) -> changes.StageChange | None:
        """Return the first change that an item was made without; None where it rests on nothing that changed since."""
        affected = (each for each in self.changed if changes.is_affected(item.place, each.index))
        return next((each for each in affected if not self._ours[each.index][item.n]), None)

    def _is_ours(self, stage: int, made_by: dict[int, str]) -> bool:
        return stage in self._now and made_by.get(stage) == self._now[stage]

    def _note(self, stage: int, items: Iterable[int], ours: bool) -> None:
        if (known := self._ours.get(stage)) is not None:
            for n in items:
                known[n] = ours


def read(
    store: Store, batch: Batch, changed: Sequence[changes.StageChange], definition: bytes, chunks: Sequence[Chunk]
) -> Makers:
    """Replay a batch: what is said of an item last is true of it, in the chunk it is in."""
    found = Makers(changed, definition, max((chunk.hi for chunk in chunks), default=batch.admitted))
    for chunk in sorted(chunks, key=lambda each: each.id):
        for entry in each_entry(store, chunk.id):
            if journal.decode_header(entry.head).kind == "checkpoint":
                found.replay(journal.decode_body(entry.body))
    return found
