"""What must be true of the batch of `ending.py` once it is over, however often its process was killed on the way."""

import json
from collections import Counter
from pathlib import Path

from holdfast.core import course
from holdfast.core.model import BatchMode, State, chain_of_batch
from holdfast.runtime.operate import audit
from holdfast.stores.base import find_batch
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.replay import Violation, compare, replay
from tests.faults import ending


def check(folder: Path, *, crashes: int) -> list[str]:
    """Every complaint; none is a pass."""
    store = SqliteStore(folder / ending.STORE)
    try:
        batch = find_batch(store, ending.BATCH)
        if batch is None:
            return ["the batch is gone"]
        found = [f"audit: {each.where}: {each.message}" for each in audit.verify(store, batch).findings]
        try:
            compare(store, batch.id, replay(store, batch.id, ending.POLICIES))
        except Violation as violation:
            found.append(f"replay: {violation}")
        if (batch.course, batch.sealed_at is not None) != (BatchMode.CANCELLED, True):
            found.append(f"the batch is {batch.course}, sealed at {batch.sealed_at}")
        told = ending.kinds(store, chain_of_batch(batch.id))
        if tuple(told) != ending.STORY:
            found.append(f"its chain tells {told}")
        return found + look_at_items(store, batch.id) + look_at_events(store, batch.id, folder, crashes)
    finally:
        store.close()


def look_at_items(store: SqliteStore, batch: int) -> list[str]:
    """Each item ended as the script says, and each thing that was done to it is told once."""
    states = [item.place.state for item in store.items(batch)]  # type: ignore[arg-type]
    chunks = store.chunks(batch)  # type: ignore[arg-type]
    found = [] if states == [State.DONE, State.DEAD, State.CANCELLED] else [f"the items are {states}"]
    if [(chunk.owner, chunk.pending) for chunk in chunks] != [(None, 0)]:
        found.append(f"the chunks are {chunks}")
    told = Counter(kind for chunk in chunks for kind in ending.kinds(store, chunk.id))
    if told.keys() != set(ending.WORK) or any(told[kind] != 1 for kind in ending.WORK[1:]):
        found.append(f"of the work is told {dict(told)}")
    return found


def look_at_events(store: SqliteStore, batch: int, folder: Path, crashes: int) -> list[str]:
    """Events are those of what happened and no others; each was heard, in order, and again only after a crash."""
    stored = store.events(limit=10_000)
    own = tuple(event.kind for event in stored if event.batch == batch)
    found = [] if own == ending.TOLD else [f"the outbox tells {own}"]
    dead = [event.n for event in stored if (event.batch, event.kind) == (batch, course.ITEM_DEAD)]
    if dead != [1]:
        found.append(f"it tells that items {dead} are dead")
    at, last = store.delivered(ending.RECEIVER), stored[-1].id if stored else 0
    if at != last:
        found.append(f"the receiver is at {at}, the last event is {last}")
    path = folder / ending.HEARD
    heard = [json.loads(line)["id"] for line in path.read_text().splitlines()] if path.exists() else []
    if list(dict.fromkeys(heard)) != [event.id for event in stored]:
        found.append(f"it heard {heard}")
    again = max(Counter(heard).values(), default=0) - 1
    if again > crashes:
        found.append(f"it heard one event {again} times more than once, there were {crashes} crashes")
    return found
