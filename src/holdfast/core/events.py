"""What others hear of: the events that are written to the outbox together with what they tell.

An event carries the facts and nothing that can be looked up by them: whoever delivers it adds the names of batch and
stage. Keys of items are in it, payloads never are.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.core.canonical import encode
from holdfast.core.model import Event, ItemNo, Key, Place

BATCH_OPENED = "batch.opened"
BATCH_FINISHED = "batch.finished"
ITEM_DEAD = "item.dead"
ORPHAN_FOUND = "orphan.found"
ORPHAN_RESOLVED = "orphan.resolved"
WARNING = "warning"
KINDS = (BATCH_OPENED, BATCH_FINISHED, ITEM_DEAD, ORPHAN_FOUND, ORPHAN_RESOLVED, WARNING)


def opened(batch: str, pipeline: str) -> Event:
    """A batch was made."""
    return _event(BATCH_OPENED, {"batch": batch, "pipeline": pipeline})


def finished(end: str, counts: Mapping[str, int]) -> Event:
    """A batch came to its end, and every item of it is accounted for."""
    return _event(BATCH_FINISHED, {"end": end, "counts": dict(counts)})


def item_dead(n: int, key: Key, place: Place) -> Event:
    """An item was buried."""
    facts = {"key": key, "stage": place.stage, "code": place.code, "reason": place.reason, "attempts": place.attempt}
    return _event(ITEM_DEAD, facts, n)


def orphan_found(n: int, key: Key, place: Place, *, kind: str, since: float) -> Event:
    """An item was found stuck; `kind` says in which way."""
    return _event(ORPHAN_FOUND, {"key": key, "stage": place.stage, "kind": kind, "since": since}, n)


def orphans_found(count: int, *, kind: str, since: float) -> Event:
    """Many items were found stuck together; those that got an event of their own are not counted again."""
    return _event(ORPHAN_FOUND, {"items": count, "kind": kind, "since": since})


def orphan_resolved(n: int, key: Key, place: Place, *, strategy: str, actor: str, reason: str) -> Event:
    """Somebody decided what becomes of a stuck item."""
    facts = {"key": key, "stage": place.stage, "strategy": strategy, "actor": actor, "reason": reason}
    return _event(ORPHAN_RESOLVED, facts, n)


def warning(code: str, message: str, n: int | None = None, **facts: Any) -> Event:
    """Something that a person should look at."""
    return _event(WARNING, {"code": code, "message": message, **facts}, n)


def _event(kind: str, facts: dict[str, Any], n: int | None = None) -> Event:
    return Event(kind=kind, body=encode(facts), n=None if n is None else ItemNo(n))
