"""Changed code: which outputs of a batch the current stages made, and which are made again."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from holdfast.core import changes, journal
from holdfast.core.course import stage_count
from holdfast.core.model import Batch, Change, Chunk, StoredItem
from holdfast.runtime.acts import Actor, Acts
from holdfast.runtime.journal import forward_over
from holdfast.stores.base import Store, each_item


class Makers:
    """For every changed stage, the items whose last outcome at it came from the stage as it is now defined. The maker
    of an adopted output, or of one that an older version recorded, is unknown: such an output does not count."""

    def __init__(self, changed: Sequence[changes.StageChange], definition: bytes, items: int) -> None:
        self.changed = changed
        makers = changes.makers(definition)
        self._now = {each.index: makers[each.index] for each in changed}
        self._ours = {each.index: bytearray(items) for each in changed}

    def replay(self, body: journal.Body) -> None:
        """Replay an entry of a chunk; a parent's entries come before those of the chunks cut from it."""
        if not isinstance(body, journal.Checkpointed):
            return
        made_by = dict(body.made_by)
        for group in body.advanced:
            self._note(group.stage, group.items, not group.adopted and self._is_ours(group.stage, made_by))
        for attempt in body.attempts:
            if attempt.outcome == "skip":
                self._note(attempt.stage, (attempt.n,), self._is_ours(attempt.stage, made_by))

    def other(self, item: StoredItem) -> changes.StageChange | None:
        """Return the first change that an item's outputs predate; None if it depends on no changed stage."""
        affected = (each for each in self.changed if changes.is_affected(item.place, each.index))
        return next((each for each in affected if not self._ours[each.index][item.n]), None)

    def _is_ours(self, stage: int, made_by: dict[int, str]) -> bool:
        return stage in self._now and made_by.get(stage) == self._now[stage]

    def _note(self, stage: int, items: Iterable[int], ours: bool) -> None:
        if (known := self._ours.get(stage)) is not None:
            for n in items:
                known[n] = ours


def read_makers(
    store: Store, batch: Batch, changed: Sequence[changes.StageChange], definition: bytes, chunks: Sequence[Chunk]
) -> Makers:
    """Replay a batch: the last entry about an item counts, in the chunk that has it now."""
    found = Makers(changed, definition, max((chunk.hi for chunk in chunks), default=batch.admitted))
    for entry in forward_over(store, chunks, "checkpoint"):
        found.replay(entry.body)
    return found


log = logging.getLogger("holdfast.run")


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledDefinition:
    """The definition to open a batch with, and the warnings to give."""

    definition: bytes
    warnings: tuple[str, ...] = ()
    sent_back: int = 0
    is_changed: bool = False
    """Some stage changed since the last run of the batch, or an earlier change is still undecided."""


def settle(store: Store, known: Batch, definition: bytes, choice: str | None, *, actor: str) -> SettledDefinition:
    """Treat existing outputs as the user chose; a batch in which nothing has begun has none that could differ."""
    found = look(store, known, definition, choice)
    if found is None:
        return SettledDefinition(definition=definition if known.sealed_at is None else known.definition)
    if found.rerun is not None:
        count = _send_back(store, known, found, actor)
        log.info("%s: %d items begin again at it", found.rerun, count)
        return SettledDefinition(definition=found.definition, sent_back=count, is_changed=True)
    if choice is None and found.news:
        warning = changes.changes_warning(known.name, found)
        log.warning("batch %s: %s", known.name, warning)
        return SettledDefinition(definition=found.definition, warnings=(warning,), is_changed=True)
    return SettledDefinition(definition=found.definition, is_changed=True)


def look(store: Store, known: Batch, definition: bytes, choice: str | None) -> changes.Decision | None:
    """Return what `settle` would do; None if no output can differ. Nothing is changed."""
    if known.definition == definition or not known.admitted or known.sealed_at is not None:
        return None
    found = changes.decide_changes(known.name, known.definition, definition, None)
    if not found.changes or not any(map(has_begun, store.chunks(known.id))):
        return None
    return changes.decide_changes(known.name, known.definition, definition, choice)


def has_begun(chunk: Chunk) -> bool:
    """Return whether any of its items can have passed a stage. A chunk that was cut from another has no attempts of its
    own, but its items may be at a late stage."""
    counts = chunk.counts
    return chunk.owner is not None or chunk.parent is not None or counts.attempts + counts.done + counts.skipped > 0


def _send_back(store: Store, batch: Batch, found: changes.Decision, actor: str) -> int:
    """Send affected items back group by group, so that no transaction is long. A live owner of one is fenced off.
    Outputs made by the new code stay."""
    moved = 0
    chunks = [chunk for chunk in store.chunks(batch.id) if has_begun(chunk)]
    known = read_makers(store, batch, found.changes, found.definition, chunks)
    for change in found.changes:
        acts = Acts(store, batch, Actor(name=actor, reason=str(change)))
        moved += acts.carry_out("reset", _affected(store, batch, chunks, known, change), seize=True).changed
    return moved


def _affected(
    store: Store, batch: Batch, chunks: Sequence[Chunk], known: Makers, change: changes.StageChange
) -> Iterator[Change]:
    stages = stage_count(batch.definition)
    for chunk in chunks:
        for item in each_item(store, batch.id, lo=chunk.lo, hi=chunk.hi):
            if known.other(item) is change:
                yield changes.send_back(item, change.index, stages, reason=str(change))
