"""Sends items back whose outputs no longer hold. Who is alive and holds one keeps it; from the dead it is taken."""

import os
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core import events
from holdfast.core.acts import change_of
from holdfast.core.model import Act, BatchId, Change, ItemNo, Key, Place, State
from holdfast.core.verify import rewound
from holdfast.runtime.reports import status
from holdfast.stores.base import Store

Back = tuple[Key, Change]
"""The key of an item, and what becomes of it."""


class Sent(NamedTuple):
    """What an act of going back came to."""

    changed: int
    buried: list[ItemNo]
    """Of those changed, items that had gone back too often and are dead letters now."""
    done: int
    """Of those changed, items that were done."""


def back(key: Key, n: ItemNo, place: Place, stage: int, stages: int, *, reason: str) -> Back:
    """What becomes of an item that goes back to a stage."""
    after = rewound(place, stage, stages, reason=reason)
    return key, change_of(n, place, after)


def send_back(store: Store, batch: BatchId, items: Sequence[Back], *, reason: str, actor: str) -> Sent:
    """Rewind items in one act, or bury them. An owner at work looks for itself before it goes on."""
    now = store.now()
    held = [(chunk.lo, chunk.hi) for chunk in store.chunks(batch) if status.is_live(chunk, now)]
    kept: list[Back] = []
    free: list[Back] = []
    for key, change in items:
        (kept if any(lo <= change.n < hi for lo, hi in held) else free).append((key, change))
    changed = [n for some in (free, kept) if some for n in _send(store, batch, some, reason, actor, seize=some is free)]
    buried = {change.n for _, change in items if change.place.state is State.DEAD}
    done = {change.n for _, change in items if change.state is State.DONE}
    return Sent(len(changed), [n for n in changed if n in buried], sum(n in done for n in changed))


def _send(store: Store, batch: BatchId, items: Sequence[Back], reason: str, actor: str, *, seize: bool) -> list[ItemNo]:
    buried = [(key, change) for key, change in items if change.place.state is State.DEAD]
    act = Act(
        id=os.urandom(16), batch=batch, kind="rewound", actor=actor, reason=reason, seize=seize,
        at_items=tuple(change for _, change in items),
        events=tuple(events.item_dead(change.n, key, change.place) for key, change in buried),
    )  # fmt: skip
    return store.act(act)
