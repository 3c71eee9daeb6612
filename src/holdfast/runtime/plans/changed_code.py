"""A batch is run with another pipeline than before: what was done is kept, run again, or the run is refused.

Items go back before the new definition is remembered. Whoever is killed in between finds the old definition, and comes
to the same end with the same choice: what went back already stands where it shall stand.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from holdfast.core import changes
from holdfast.core.limits import ACT_ITEMS
from holdfast.core.model import Act, Batch, Change, Chunk
from holdfast.runtime.plans import makers
from holdfast.stores.base import Store, each_item, stage_count

log = logging.getLogger("holdfast.run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What a batch is opened with, and what to tell."""

    definition: bytes
    warnings: tuple[str, ...] = ()
    sent_back: int = 0


def settle(store: Store, known: Batch, definition: bytes, choice: str | None, *, actor: str) -> Settled:
    """Do with what is done what the user wants; a batch in which nothing was begun has nothing that could differ."""
    found = look(store, known, definition, choice)
    if found is None:
        return Settled(definition=definition if known.sealed_at is None else known.definition)
    if found.rerun is not None:
        count = _send_back(store, known, found, actor)
        log.info("%s: %d items go back to it", found.rerun, count)
        return Settled(definition=found.definition, sent_back=count)
    if choice is None and found.news:
        warning = changes.warning(known.name, found)
        log.warning("batch %s: %s", known.name, warning)
        return Settled(definition=found.definition, warnings=(warning,))
    return Settled(definition=found.definition)


def look(store: Store, known: Batch, definition: bytes, choice: str | None) -> changes.Decision | None:
    """What would follow, and None where nothing can differ. Nothing is changed."""
    if known.definition == definition or not known.admitted or known.sealed_at is not None:
        return None
    found = changes.decide(known.name, known.definition, definition, None)
    if not found.changes or not any(map(has_begun, store.chunks(known.id))):
        return None
    return changes.decide(known.name, known.definition, definition, choice)


def has_begun(chunk: Chunk) -> bool:
    """Whether any of its items can have passed a stage. A chunk that was cut off another one has items that may have
    come far, and no attempts of its own."""
    counts = chunk.counts
    return chunk.owner is not None or chunk.parent is not None or counts.attempts + counts.done + counts.skipped > 0


def _send_back(store: Store, batch: Batch, found: changes.Decision, actor: str) -> int:
    """Group by group: no transaction is long. An owner at work on one of them is fenced. What the new code made
    stays."""
    moved = 0
    chunks = [chunk for chunk in store.chunks(batch.id) if has_begun(chunk)]
    known = makers.read(store, batch, found.changes, found.definition, chunks)
    for change in found.changes:
        for group in _groups(_affected(store, batch, chunks, known, change)):
            act = Act(id=os.urandom(16), batch=batch.id, kind="reset", actor=actor, reason=str(change),
                      at_items=tuple(group), seize=True)  # fmt: skip
            moved += len(store.act(act))
    return moved


def _affected(
    store: Store, batch: Batch, chunks: Sequence[Chunk], known: makers.Makers, change: changes.StageChange
) -> Iterator[Change]:
    stages = stage_count(batch.definition)
    for chunk in chunks:
        for item in each_item(store, batch.id, lo=chunk.lo, hi=chunk.hi):
            if known.other(item) is change:
                yield changes.send_back(item, change.index, stages, reason=str(change))


def _groups(found: Iterator[Change]) -> Iterator[Sequence[Change]]:
    for first in found:
        yield list(chain([first], islice(found, ACT_ITEMS - 1)))
