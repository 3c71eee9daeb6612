"""Lifting blame: a person knows that the owners died of something else, so the batch is worked on at full speed."""

import os
from collections.abc import Iterator

from holdfast.core.acts import change_of
from holdfast.core.journal import LIFTED
from holdfast.core.limits import ACT_ITEMS
from holdfast.core.model import Act, Batch, Change, Chunk, State
from holdfast.runtime.ending import sealing
from holdfast.runtime.operating.operations import By, Result
from holdfast.runtime.stuck import blame, grants
from holdfast.stores.base import Store

AT_WORK = "an owner that is alive has it: what it commits takes the blame away"


def preview(store: Store, batch: Batch) -> blame.Blame | None:
    """The blame that `lift` would take away; None where there is none. Nothing is changed."""
    return blame.of(store, batch, _free(store, batch), now=store.now())


def lift(store: Store, batch: Batch, by: By) -> Result:
    """Take the blame from every part that nobody holds; nothing becomes of its items."""
    sealing.check_goes_on(store, batch)
    carriers = blame.carriers(store.chunks(batch.id), now=store.now())
    free = [chunk for chunk in carriers if not grants.is_live(chunk, store.now())]
    changed = 0
    for index in range(0, len(free), ACT_ITEMS):
        changes = tuple(_naming(store, free[index : index + ACT_ITEMS]))
        changed += len(store.act(Act(id=os.urandom(16), batch=batch.id, kind=LIFTED, actor=by.actor, reason=by.reason,
                                     at_items=changes, seize=True, lifts=True)))  # fmt: skip
    held = len(carriers) - len(free)
    return Result(kind=LIFTED, batch=batch.name, changed=changed, left_alone=((AT_WORK, held),) if held else ())


def _free(store: Store, batch: Batch) -> list[Chunk]:
    return [chunk for chunk in store.chunks(batch.id) if not grants.is_live(chunk, store.now())]


def _naming(store: Store, chunks: list[Chunk]) -> Iterator[Change]:
    """One pending item of each chunk, by which an act finds it."""
    for chunk in chunks:
        for item in store.items(chunk.batch, lo=chunk.lo, hi=chunk.hi, state=State.PENDING, limit=1):
            yield change_of(item.n, item.place, item.place)
