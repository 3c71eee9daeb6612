"""What is done about orphans: requeue, fail or review. Gather, decide, act.

Every act is one entry per chunk, which says who, what, why, and for each item what it was doing. The chunk is taken
from its owner, so one that is slow and still alive cannot commit what it holds. Resolving twice does no harm: an item
that was resolved is no orphan any more, and two who decided the same at once write it once.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, islice
from typing import Any

from holdfast.core import canonical, events, money
from holdfast.core import orphans as core
from holdfast.core.acts import change_of
from holdfast.core.errors import UsageError
from holdfast.core.limits import ACT_ITEMS
from holdfast.core.model import Act, Batch, Event, ItemNo, Place, State
from holdfast.core.orphans import Kind, Strategy
from holdfast.runtime import lookup
from holdfast.runtime.ending import finish, sealing
from holdfast.runtime.operating.operations import By, Result
from holdfast.runtime.stuck.orphans import Eye, Orphan, find
from holdfast.stores.base import Store

KINDS = {Strategy.REQUEUE: "requeued", Strategy.FAIL: "marked_failed", Strategy.REVIEW: "sent_to_review"}
"""How the entry is called that says so."""
BURIED = "buried"
"""And the one of an item that was to be requeued once too often."""
LETTER = "a dead letter: see `holdfast dead`"
FIRST_KEYS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What resolving would do now."""

    batch: str
    strategy: str
    requeued: int
    buried: int
    in_flight: int
    """Of all these, items in the hands of an owner that is alive: it will be fenced off."""
    never_begun: int
    """Of all these, items that nobody ever took."""
    owners: tuple[str, ...]
    first: tuple[str, ...]
    left_alone: tuple[tuple[str, int], ...]
    warning: str = ""
    """What would keep them from going on: the end of their batch has come."""

    @property
    def items(self) -> int:
        return self.requeued + self.buried

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"items": self.items, "left_alone": dict(self.left_alone)}


def check_strategy(text: str) -> Strategy:
    """The strategy of that name."""
    try:
        return Strategy(text)
    except ValueError:
        known = ", ".join(strategy.value for strategy in Strategy)
        raise UsageError(f"there is no strategy {text!r} for orphans: there is {known}; nothing was changed") from None


def preview(store: Store, batch: Batch, strategy: Strategy, items: Sequence[str] | None = None) -> Preview:
    """What `resolve` would do. Nothing is changed."""
    counts, left = Counter[State](), Counter[str]()
    owners: dict[str, None] = {}
    first: list[str] = []
    held = untouched = 0
    for orphan in _chosen(store, batch, items, left):
        place = _decide(batch, orphan, strategy, "…")
        if isinstance(place, str):
            left[place] += 1
            continue
        counts[place.state] += 1
        untouched += not orphan.was_begun
        if orphan.is_held:
            held += 1
            owners[orphan.owner] = None
        if len(first) < FIRST_KEYS:
            first.append(canonical.key_text(orphan.key))
    return Preview(
        batch=batch.name, strategy=strategy.value, requeued=counts[State.PENDING], buried=counts[State.DEAD],
        in_flight=held, never_begun=untouched, owners=tuple(owners), first=tuple(first), left_alone=tuple(left.items()),
        warning=sealing.end_in_the_way(store, batch) if counts[State.PENDING] else "",
    )  # fmt: skip


def resolve(
    store: Store, batch: Batch, by: By, strategy: Strategy = Strategy.REQUEUE, items: Sequence[str] | None = None
) -> Result:
    """Resolve the orphans that are named, or all of the batch. What is no orphan, or moved on meanwhile, is left."""
    changed, buried, left = 0, 0, Counter[str]()
    for group in _groups(_chosen(store, batch, items, left)):
        decided = [(orphan, _decide(batch, orphan, strategy, by.reason)) for orphan in group]
        left.update(why for _, why in decided if isinstance(why, str))
        moves = [(orphan, place) for orphan, place in decided if isinstance(place, Place)]
        for state in (State.PENDING, State.DEAD):
            some = [(orphan, place) for orphan, place in moves if place.state is state]
            if some:
                landed = len(store.act(_act(batch, by, strategy, some)))
                changed += landed
                buried += landed if state is State.DEAD and strategy is Strategy.REQUEUE else 0
                left["it moved on meanwhile"] += len(some) - landed
    warning = sealing.end_in_the_way(store, batch) if changed > buried and strategy is Strategy.REQUEUE else ""
    finish.look(store, batch, actor=by.actor)
    return Result(
        kind=KINDS[strategy], batch=batch.name, changed=changed, left_alone=tuple((+left).items()), buried=buried,
        warning=warning,
    )  # fmt: skip


def context_of(note: bytes, n: int) -> dict[str, Any]:
    """What an item was doing when it was resolved, from the note of the entry; empty where there is none."""
    said = canonical.decode(note) if note else {}
    items = said.get("items", []) if isinstance(said, dict) else []
    return next((dict(each) for each in items if isinstance(each, dict) and each.get("n") == n), {})


def _chosen(store: Store, batch: Batch, items: Sequence[str] | None, left: Counter[str]) -> Iterator[Orphan]:
    """The orphans that are meant; why others are not goes to `left`."""
    if items is None:
        found: Iterable[Orphan | str] = find(store, batch)
    else:
        eye = Eye(store, batch)
        named = {found.n: found for found in (lookup.item_named(store, batch, item) for item in items)}
        found = (eye.at(named[n]) for n in sorted(named))
    for orphan in found:
        if isinstance(orphan, str):
            left[orphan] += 1
        elif orphan.kind is Kind.UNANSWERED:
            left[LETTER] += 1
        else:
            yield orphan


def _groups(found: Iterator[Orphan]) -> Iterator[list[Orphan]]:
    """Orphans of one chunk together, so many at a time."""
    for _, same in groupby(found, key=lambda orphan: orphan.chunk):
        while group := list(islice(same, ACT_ITEMS)):
            yield group


def _decide(batch: Batch, orphan: Orphan, strategy: Strategy, reason: str) -> Place | str:
    stages = len(lookup.stage_names(batch))
    return core.resolve(orphan.place, strategy, stages=stages, reason=reason, course=batch.course)


def _act(batch: Batch, by: By, strategy: Strategy, some: list[tuple[Orphan, Place]]) -> Act:
    buried = some[0][1].state is State.DEAD
    kind = BURIED if buried and strategy is Strategy.REQUEUE else KINDS[strategy]
    note = {"strategy": strategy.value, "items": [_context(orphan) for orphan, _ in some]}
    return Act(
        id=os.urandom(16),
        batch=batch.id,
        kind=kind,
        actor=by.actor,
        reason=by.reason,
        seize=True,
        body=canonical.encode(note),
        at_items=tuple(change_of(ItemNo(orphan.n), orphan.place, place) for orphan, place in some),
        events=tuple(event for orphan, place in some for event in _events(by, strategy, orphan, place)),
    )


def _context(orphan: Orphan) -> dict[str, Any]:
    """What the item was doing: kept with the entry, because its place says something else from now on."""
    place = orphan.place
    return {
        "n": orphan.n, "kind": orphan.kind.value, "since": orphan.since, "stage": orphan.stage, "owner": orphan.owner,
        "held": orphan.is_held, "attempts": place.attempt, "requeues": place.requeues, "last_code": place.code,
        "last_error": place.reason, "usd": format(money.to_usd(place.spent), "f"),
    }  # fmt: skip


def _events(by: By, strategy: Strategy, orphan: Orphan, place: Place) -> Iterator[Event]:
    yield events.orphan_resolved(orphan.n, orphan.key, place, strategy=strategy.value, actor=by.actor, reason=by.reason)
    if place.state is State.DEAD:
        yield events.item_dead(orphan.n, orphan.key, place)
        message = f"item {orphan.key!r} {WARNINGS[place.code]}: {by.reason}"
        context = {name: value for name, value in _context(orphan).items() if name != "n"}
        yield events.warning(place.code, message, orphan.n, key=orphan.key, context=context)


WARNINGS = {
    core.ORPHANED: "was an orphan and was marked failed",
    core.REVIEW: "was an orphan and waits for a person to review it",
    core.REQUEUED_TOO_OFTEN: "was re-enqueued too often and is buried",
}
