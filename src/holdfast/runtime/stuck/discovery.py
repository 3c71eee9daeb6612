"""Announcing orphans: events and one journal entry for what a look finds, once for each time an item gets stuck.

Items of a chunk get stuck together, so they are announced together: the first few of a group with an event of their
own, the others with one event for all. A group is told by chunk, kind and the moment since which nothing happened.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.core import canonical, events, journal
from holdfast.core.limits import FOUND_EACH, FOUND_GROUPS
from holdfast.core.model import Batch, BatchId, Event, chain_of_batch
from holdfast.core.orphans import Kind
from holdfast.runtime.stuck.orphans import Orphan, find
from holdfast.stores.base import Store, each_entry

KIND = "orphans_found"

Group = tuple[int, str, float]
"""(chunk, kind, since)"""


@dataclass(slots=True)
class Seen:
    """What one look at a batch found."""

    total: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    first: list[Orphan] = field(default_factory=list)
    """As many as were asked for."""
    new: dict[Group, list[Orphan]] = field(default_factory=dict)
    """Groups that were not announced before, with their first items."""
    sizes: Counter[Group] = field(default_factory=Counter)


def look(store: Store, batch: Batch, *, limit: int) -> Seen:
    """Count what is stuck, keep the first, and see what of it is news."""
    seen, told = Seen(), None
    for orphan in find(store, batch):
        told = set(_told(store, batch.id)) if told is None else told  # most batches have none: then it is not read
        seen.total += 1
        seen.kinds[orphan.kind.value] += 1
        if len(seen.first) < limit:
            seen.first.append(orphan)
        group = (orphan.chunk, orphan.kind.value, orphan.since)
        if group in told or (orphan.kind is Kind.STRANDED and orphan.is_held):  # its owner may still be finishing it
            continue
        if group in seen.new or len(seen.new) < FOUND_GROUPS:
            some = seen.new.setdefault(group, [])
            seen.sizes[group] += 1
            if len(some) < FOUND_EACH:
                some.append(orphan)
    return seen


def announce(store: Store, batch: Batch, seen: Seen, *, actor: str) -> bool:
    """Write down what is new, with its events, in one commit; says whether there was any."""
    if not seen.new:
        return False
    note = {"groups": [[*group, seen.sizes[group]] for group in seen.new]}
    many = sum(seen.sizes.values())
    body = journal.Acted(reason=f"{many} found without progress", note=canonical.encode(note))
    return store.note(batch.id, KIND, journal.encode_body(body), actor=actor, once=True, events=tuple(_events(seen)))


def _told(store: Store, batch: BatchId) -> Iterator[Group]:
    for entry in each_entry(store, chain_of_batch(batch)):
        if journal.decode_header(entry.head).kind == KIND:
            body = journal.decode_body(entry.body)
            assert isinstance(body, journal.Acted)
            for chunk, kind, since, _ in canonical.decode(body.note)["groups"]:
                yield chunk, kind, float(since)


def _events(seen: Seen) -> Iterator[Event]:
    for group, some in seen.new.items():
        _, kind, since = group
        for orphan in some:
            yield events.orphan_found(orphan.n, orphan.key, orphan.place, kind=kind, since=since)
        rest = seen.sizes[group] - len(some)
        if rest:
            yield events.orphans_found(rest, kind=kind, since=since)
