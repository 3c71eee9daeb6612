"""Orphans: announce them, resolve them, and lift the blame of dead owners.

An item is announced once each time it gets stuck, with events and a journal entry. Items of a chunk get stuck together,
so they are announced together: the first few of a group with an event each, the others with one event for all. A group
is identified by its chunk, its kind and the time of its last progress.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from holdfast.core import acts as core
from holdfast.core import canonical, course, journal
from holdfast.core.acts import OrphanKind, Strategy, change_of
from holdfast.core.course import to_note
from holdfast.core.errors import UsageError
from holdfast.core.journal import LIFTED
from holdfast.core.limits import FOUND_EACH, FOUND_GROUPS
from holdfast.core.model import Batch, Change, Chunk, Event, ItemNo, ItemState, State
from holdfast.runtime import lookup
from holdfast.runtime.acts import MEANWHILE, Actor, ActResult, Acts, Preview, PreviewedItems, grouped
from holdfast.runtime.journal import forward
from holdfast.runtime.report import lifecycle, orphans, reconcile
from holdfast.runtime.report.orphans import Orphan, OrphanFinder, find
from holdfast.runtime.text import many
from holdfast.stores import owners
from holdfast.stores.base import Store

KIND = "orphans_found"

Group = tuple[int, str, float]
"""(chunk, kind, since)"""


@dataclass(slots=True)
class OrphanCounts:
    """The orphans of a batch, counted."""

    total: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    first: list[Orphan] = field(default_factory=list)
    """The first orphans, up to the limit."""
    new: dict[Group, list[Orphan]] = field(default_factory=dict)
    """Groups that were not announced before, with their first items."""
    sizes: Counter[Group] = field(default_factory=Counter)


def look_for_orphans(store: Store, batch: Batch, *, limit: int) -> OrphanCounts:
    """Count the orphans, keep the first, and find the groups that were not announced yet."""
    seen, told = OrphanCounts(), None
    for orphan in find(store, batch):
        told = set(_told(store, batch)) if told is None else told  # read for the first orphan: most batches have none
        seen.total += 1
        seen.kinds[orphan.kind.value] += 1
        if len(seen.first) < limit:
            seen.first.append(orphan)
        group = (orphan.chunk, orphan.kind.value, orphan.since)
        if group in told or (
            orphan.kind is OrphanKind.STRANDED and orphan.is_held
        ):  # its owner may still be finishing it
            continue
        if group in seen.new or len(seen.new) < FOUND_GROUPS:
            some = seen.new.setdefault(group, [])
            seen.sizes[group] += 1
            if len(some) < FOUND_EACH:
                some.append(orphan)
    return seen


def announce(store: Store, batch: Batch, seen: OrphanCounts, *, actor: str) -> bool:
    """Record the new groups with their events in one commit; return whether there were any."""
    if not seen.new:
        return False
    note = {"groups": [[*group, seen.sizes[group]] for group in seen.new]}
    many = sum(seen.sizes.values())
    body = journal.Acted(reason=f"{many} items found without progress", note=canonical.encode(note))
    return store.amend(batch.id, to_note(KIND, body, once=True, events=tuple(_found_events(seen))), actor=actor).written


def _told(store: Store, batch: Batch) -> Iterator[Group]:
    for entry in forward(store, batch, KIND):
        for chunk, kind, since, _ in entry.note["groups"]:
            yield chunk, kind, float(since)


def _found_events(seen: OrphanCounts) -> Iterator[Event]:
    for group, some in seen.new.items():
        _, kind, since = group
        for orphan in some:
            yield course.orphan_found(orphan.n, orphan.key, orphan.place, kind=kind, since=since)
        rest = seen.sizes[group] - len(some)
        if rest:
            yield course.orphans_found(rest, kind=kind, since=since)


KINDS = {Strategy.REQUEUE: "requeued", Strategy.FAIL: "marked_failed", Strategy.REVIEW: "sent_to_review"}
"""The kind of the journal entry for each strategy."""
BURIED = "buried"
"""The kind of the entry for an item that was requeued too often."""
LETTER = "a dead letter: see `holdfast dead`"
FIRST_KEYS = 5
RESOLVE_KEYS = "batch strategy requeued buried in_flight never_begun owners first left_alone warning items"


def check_strategy(text: str) -> Strategy:
    """Return the strategy of that name."""
    try:
        return Strategy(text)
    except ValueError:
        known = ", ".join(strategy.value for strategy in Strategy)
        raise UsageError(
            f"there is no strategy {text!r} for orphans, use one of {known}; nothing was changed"
        ) from None


def preview_resolution(store: Store, batch: Batch, strategy: Strategy, items: Sequence[str] | None = None) -> Preview:
    """Return what `resolve` would do. Nothing is changed."""
    counts, left = Counter[State](), Counter[str]()
    owners: dict[str, None] = {}
    first: list[str] = []
    held, untouched, chosen = 0, 0, PreviewedItems()
    for orphan in _chosen(store, batch, items, left):
        place = _decide(batch, orphan, strategy, "…")
        if isinstance(place, str):
            left[place] += 1
            continue
        counts[place.state] += 1
        chosen.add(orphan.n, orphan.place)
        untouched += not orphan.was_begun
        if orphan.is_held:
            held += 1
            owners[orphan.owner] = None
        if len(first) < FIRST_KEYS:
            first.append(canonical.key_text(orphan.key))
    warning = lifecycle.end_in_the_way(store, batch) if counts[State.PENDING] else ""
    told = {"requeued": counts[State.PENDING], "buried": counts[State.DEAD], "never_begun": untouched}
    shown = _preview(batch, strategy, told, held, tuple(owners), tuple(first), left, warning)
    return replace(shown, previewed=chosen, perform=lambda by, only: resolve_orphans(
        store, batch, by, strategy, items, shown=only))  # fmt: skip


def _preview(
    batch: Batch, strategy: Strategy, counts: dict[str, int], held: int, owners: tuple[str, ...],
    first: tuple[str, ...], left: Mapping[str, int], warning: str,
) -> Preview:  # fmt: skip
    items = counts["requeued"] + counts["buried"]
    keys = f" ({', '.join(first)}{', …' if items > len(first) else ''})" if first else ""
    often = ", because they were requeued too often" if strategy is Strategy.REQUEUE else ""
    told = {
        "requeued": f"{counts['requeued']:,}, to resume from their checkpoint with the next run",
        "buried": f"{counts['buried']:,}, as dead letters{often}",
        "never_begun": f"{counts['never_begun']:,} of them: they were never claimed, and a run would still claim them",
    }
    rows = [(name.replace("_", " "), text) for name, text in told.items() if counts[name]]
    if held:
        rows.append(
            (
                "fenced off",
                f"{', '.join(owners)}, alive, with {held:,} of them: its work will not be committed",
            )
        )
    rows += [("left alone", f"{count:,} ({why})") for why, count in left.items()]
    return Preview(
        batch=batch.name, keys=RESOLVE_KEYS, items=items, counts=counts, facts={"strategy": strategy.value},
        in_flight=held, owners=owners, first=first, left_alone=dict(left), warning=warning, rows=tuple(rows),
        titles=(f"{many(items, 'orphan')} of {batch.name}{keys} would be resolved by {strategy.value}:",),
        question=f"{strategy.value.capitalize()} {many(items, 'orphan')} of {batch.name}",
    )  # fmt: skip


def resolve_orphans(
    store: Store, batch: Batch, by: Actor, strategy: Strategy = Strategy.REQUEUE, items: Sequence[str] | None = None, *,
    shown: PreviewedItems | None = None,
) -> ActResult:  # fmt: skip
    """Resolve the named orphans, or all of the batch. Items that are not orphans, or have moved since, are left
    alone."""
    acts, buried = Acts(store, batch, by), 0
    for group in _groups(_chosen(store, batch, items, acts.left)):
        known = [orphan for orphan in group if shown is None or shown.has(orphan.n, orphan.place)]
        acts.left[MEANWHILE] += len(group) - len(known)
        decided = [(orphan, _decide(batch, orphan, strategy, by.reason)) for orphan in known]
        acts.left.update(why for _, why in decided if isinstance(why, str))
        moves = [(orphan, place) for orphan, place in decided if isinstance(place, ItemState)]
        _write(acts, by, strategy, [move for move in moves if move[1].state is State.PENDING])
        landed = _write(acts, by, strategy, [move for move in moves if move[1].state is State.DEAD])
        buried += landed if strategy is Strategy.REQUEUE else 0
    warning = lifecycle.end_in_the_way(store, batch) if acts.changed > buried and strategy is Strategy.REQUEUE else ""
    reconcile.look_for_end(store, batch, actor=by.name)
    return acts.result(KINDS[strategy], buried=buried, warning=warning)


def _chosen(store: Store, batch: Batch, items: Sequence[str] | None, left: Counter[str]) -> Iterator[Orphan]:
    """Yield the chosen orphans; count the others in `left`, by reason."""
    if items is None:
        found: Iterable[Orphan | str] = find(store, batch)
    else:
        eye = OrphanFinder(store, batch)
        named = {found.n: found for found in (lookup.item_named(store, batch, item) for item in items)}
        found = (eye.at(named[n]) for n in sorted(named))
    for orphan in found:
        if isinstance(orphan, str):
            left[orphan] += 1
        elif orphan.kind is OrphanKind.UNANSWERED:
            left[LETTER] += 1
        else:
            yield orphan


def _groups(found: Iterator[Orphan]) -> Iterator[list[Orphan]]:
    """Yield orphans in groups of limited size, each from one chunk."""
    for _, same in groupby(found, key=lambda orphan: orphan.chunk):
        yield from grouped(same)


def _decide(batch: Batch, orphan: Orphan, strategy: Strategy, reason: str) -> ItemState | str:
    stages = len(course.stage_names(batch))
    return core.resolve_orphan(orphan.place, strategy, stages=stages, reason=reason, course=batch.course)


def _write(acts: Acts, by: Actor, strategy: Strategy, some: list[tuple[Orphan, ItemState]]) -> int:
    """Write the new places of some orphans, all of the same state; return how many changed."""
    buried = any(place.state is State.DEAD for _, place in some)
    kind = BURIED if buried and strategy is Strategy.REQUEUE else KINDS[strategy]
    note = {"strategy": strategy.value, "items": [_context(orphan) for orphan, _ in some]}
    changes = [change_of(ItemNo(orphan.n), orphan.place, place) for orphan, place in some]
    events = [event for orphan, place in some for event in _resolved_events(by, strategy, orphan, place)]
    return len(acts.write(kind, changes, seize=True, body=canonical.encode(note), events=events))


def _context(orphan: Orphan) -> dict[str, Any]:
    """Return what the item was doing, to be kept with the entry, because its place changes now."""
    place = orphan.place
    return {
        "n": orphan.n, "kind": orphan.kind.value, "since": orphan.since, "stage": orphan.stage, "owner": orphan.owner,
        "held": orphan.is_held, "attempts": place.attempt, "requeues": place.requeues, "last_code": place.code,
        "last_error": place.reason, "usd": format(canonical.to_usd(place.spent), "f"),
    }  # fmt: skip


def _resolved_events(by: Actor, strategy: Strategy, orphan: Orphan, place: ItemState) -> Iterator[Event]:
    yield course.orphan_resolved(orphan.n, orphan.key, place, strategy=strategy.value, actor=by.name, reason=by.reason)
    if place.state is State.DEAD:
        yield course.item_dead(orphan.n, orphan.key, place)
        message = f"item {orphan.key!r} {WARNINGS[place.code]}: {by.reason}"
        context = {name: value for name, value in _context(orphan).items() if name != "n"}
        yield course.warning(place.code, message, orphan.n, key=orphan.key, context=context)


WARNINGS = {
    core.ORPHANED: "was an orphan and was marked failed",
    core.REVIEW: "was an orphan and waits for a review",
    core.REQUEUED_TOO_OFTEN: "was requeued too often and is now a dead letter",
}


AT_WORK = "held by a live owner: its next commit lifts the blame"


def preview_lift(store: Store, batch: Batch) -> Preview:
    """Return what `lift_blame` would do. Nothing is changed."""
    lifecycle.check_goes_on(store, batch)
    found = orphans.blame_of(store, batch, _free(store, batch), now=store.now())
    title = f"No chunk of {batch.name} that is free carries blame."
    if found is not None:
        whom = "owner" if found.deaths == 1 else f"{found.deaths:,} owners"
        title = (
            f"{many(found.items, 'item')} of {batch.name} in {many(found.parts, 'chunk')} would be claimed as if the "
            f"last {whom} had not died; the items stay as they are."
        )
    facts = {"parts": 0, "items": 0} if found is None else found.as_dict()
    return Preview(
        batch=batch.name, keys=" ".join(["batch", *facts]), items=0 if found is None else found.items, counts={},
        facts=facts, titles=(title,), question=f"Lift the blame in {batch.name}",
        perform=lambda by, _: lift_blame(store, batch, by),
    )  # fmt: skip


def lift_blame(store: Store, batch: Batch, by: Actor) -> ActResult:
    """Lift the blame of every chunk that no live owner holds; its items stay as they are."""
    lifecycle.check_goes_on(store, batch)
    carriers = orphans.find_carriers(store.chunks(batch.id), now=store.now())
    free = [chunk for chunk in carriers if not owners.is_live(chunk, store.now())]
    acts = Acts(store, batch, by)
    for some in grouped(free):
        acts.write(LIFTED, list(_naming(store, some)), seize=True, lifts=True)
    held = len(carriers) - len(free)
    left = ((AT_WORK, held),) if held else ()
    return ActResult(kind=LIFTED, batch=batch.name, changed=acts.changed, left_alone=left, noun="chunk")


def _free(store: Store, batch: Batch) -> list[Chunk]:
    return [chunk for chunk in store.chunks(batch.id) if not owners.is_live(chunk, store.now())]


def _naming(store: Store, chunks: list[Chunk]) -> Iterator[Change]:
    """Yield one pending item of each chunk, by which an act finds the chunk."""
    for chunk in chunks:
        for item in store.items(chunk.batch, lo=chunk.lo, hi=chunk.hi, state=State.PENDING, limit=1):
            yield change_of(item.n, item.place, item.place)
