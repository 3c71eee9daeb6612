"""Operators' acts on items (redrive, resolve, discard, reset), and a preview of each."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import msgspec

from holdfast.core import canonical
from holdfast.core.acts import change_of
from holdfast.core.course import stage_names
from holdfast.core.errors import UsageError
from holdfast.core.journal import FLOAT32, unpack
from holdfast.core.limits import OUTPUT_BYTES
from holdfast.core.model import Batch, Change, Chunk, ItemState, Output, State, StoredItem
from holdfast.core.states import ItemFacts, Transition, move
from holdfast.runtime import lookup
from holdfast.runtime.acts import Actor, ActResult, Acts, Preview, PreviewedItems
from holdfast.runtime.define.stage import Stage
from holdfast.runtime.operate.manual_output import OutputByHand, fitted
from holdfast.runtime.report import lifecycle, reconcile
from holdfast.runtime.report.attempts import AttemptReader
from holdfast.runtime.text import brief, many, one_line
from holdfast.runtime.text import usd as money
from holdfast.stores import owners
from holdfast.stores.base import Store, each_item, lineage


def preview_reset(store: Store, batch: Batch, item: str | None = None, *, to_stage: str | int = 0) -> Preview:
    """Return what `reset` would do now. Nothing is changed."""
    lifecycle.check_goes_on(store, batch)
    target = lookup.stage_numbered(batch, to_stage)
    name = stage_names(batch)[target]
    chunks = store.chunks(batch.id)
    if item is None:
        shown = _of_batch(store, batch, name, target, [chunk for chunk in chunks if may_have_begun(chunk)])
    else:
        found = lookup.item_named(store, batch, item)
        shown = _of_item(store, batch, found, lineage(chunks, found.n), name=name, target=target)
    question = f"Reset item {item} of {batch.name}" if item is not None else f"Reset all of {batch.name}"
    return replace(shown, question=question,
                   perform=lambda by, only: reset(store, batch, by, item, to_stage=to_stage, shown=only))  # fmt: skip


NOBODY = Actor(name="nobody", reason="only shown")
RESET_KEYS = "batch item to_stage done skipped dead cancelled pending in_flight owners usd seconds warning items"


def _of_batch(store: Store, batch: Batch, name: str, target: int, chunks: list[Chunk]) -> Preview:
    now = store.now()
    held = [chunk for chunk in chunks if chunk.pending and owners.is_live(chunk, now)]
    if target == 0:
        spent = sum(chunk.counts.spent for chunk in chunks)
        seconds = sum(chunk.counts.seconds for chunk in chunks)
    else:
        spent, seconds = _cost(AttemptReader(store, chunks), target)
    counts, left, shown = _decided(store, batch, target, chunks)
    in_flight = sum(chunk.pending for chunk in held)
    told = _preview(store, batch, None, name, counts, held, in_flight, spent, seconds, left)
    return replace(told, previewed=shown)


def _decided(
    store: Store, batch: Batch, target: int, chunks: list[Chunk]
) -> tuple[dict[str, int], Counter[str], PreviewedItems]:
    """Count the items that a reset would begin again, by state, and those that it would leave alone, by reason."""
    counts, left, shown = dict.fromkeys((*SETTLED, "pending"), 0), Counter[str](), PreviewedItems()
    for chunk in chunks:
        decide = _Reset(store, batch, target, NOBODY, in_flight=owners.is_live(chunk, store.now()))
        for item in each_item(store, batch.id, lo=chunk.lo, hi=chunk.hi):
            decided = decide(item)
            if isinstance(decided, str):
                left[decided] += 1
            else:
                counts[item.place.state.value] += 1
                shown.add(item.n, item.place)
    return counts, left, shown


def _of_item(store: Store, batch: Batch, item: StoredItem, line: list[Chunk], *, name: str, target: int) -> Preview:
    now, state = store.now(), item.place.state
    held = [chunk for chunk in line[-1:] if state is State.PENDING and owners.is_live(chunk, now)]
    spent, seconds = _cost(AttemptReader(store, line), target, item.n)
    counts, shown = {each: int(state.value == each) for each in (*SETTLED, "pending")}, PreviewedItems()
    shown.add(item.n, item.place)
    told = _preview(store, batch, str(item.key), name, counts, held, len(held), spent, seconds)
    return replace(told, previewed=shown)


def _preview(
    store: Store, batch: Batch, item: str | None, stage: str, counts: dict[str, int], held: list[Chunk],
    in_flight: int, spent: int, seconds: float, left: Mapping[str, int] = MappingProxyType({}),
) -> Preview:  # fmt: skip
    """Return what a reset would begin again, throw away and leave alone."""
    items, usd = sum(counts.values()), canonical.to_usd(spent)
    by = tuple(sorted({owners.short(chunk.owner) for chunk in held if chunk.owner is not None}))
    whose = f"item {item} of {batch.name}" if item is not None else f"{items:,} items of {batch.name}"
    rows = [("items", ", ".join(f"{count:,} {name}" for name, count in counts.items() if count))]
    rows.append(("thrown away", f"work that took {brief(seconds)} and cost {money(usd)}"))
    rows += [("left alone", f"{count:,} ({why})") for why, count in left.items()]
    if in_flight:
        rows.append(
            ("in flight", f"{in_flight:,} items, held by {', '.join(by)}: their attempts will not be committed")
        )
    return Preview(
        batch=batch.name, keys=RESET_KEYS, items=items, counts=counts, facts={"item": item, "to_stage": stage},
        in_flight=in_flight, owners=by, usd=usd, seconds=seconds, warning=lifecycle.end_in_the_way(store, batch),
        titles=(f"{whose} would begin again at {stage!r}, in a new epoch:",), rows=tuple(rows),
    )  # fmt: skip


def _cost(reader: AttemptReader, target: int, n: int | None = None) -> tuple[int, float]:
    """Return the money and seconds that the journal has for a stage and those after it; of one item if `n` is given."""
    spent, seconds = 0, 0.0
    for body in reader.checkpoints():
        spent += sum(said.usd for stage, said in body.spends if stage >= target and n in (None, said.n))
        seconds += sum(a.seconds for a in body.attempts if a.stage >= target and n in (None, a.n))
        for group in body.advanced:
            if group.stage >= target and not group.adopted and (n is None or n in group.items):
                took = zip(group.items, unpack(FLOAT32, group.seconds), strict=True)
                seconds += sum(part for number, part in took if n in (None, number))
    return spent, seconds


LETTERS_SHOWN = 5
FATES = {
    "redrive": ("tried again where it stopped", "tried again where they stopped"),
    "discard": ("given up: it counts as cancelled", "given up: they count as cancelled"),
}
"""The fate of one dead letter, and of several."""


def preview_redrive(
    store: Store, batch: Batch, items: Sequence[str] | None = None, *, code: str | None = None
) -> Preview:
    """Return what `redrive` would do now. Nothing is changed."""
    lifecycle.check_goes_on(store, batch)
    shown = _of_letters(store, batch, "redrive", items, code)
    return replace(shown, warning=lifecycle.end_in_the_way(store, batch),
                   perform=lambda by, only: redrive(store, batch, by, items, code=code, shown=only))  # fmt: skip


def preview_discard(
    store: Store, batch: Batch, items: Sequence[str] | None = None, *, code: str | None = None
) -> Preview:
    """Return what `discard` would do now. Nothing is changed."""
    lifecycle.check_open(store, batch)
    shown = _of_letters(store, batch, "discard", items, code)
    return replace(shown, perform=lambda by, only: discard(store, batch, by, items, code=code, shown=only))


def preview_resolve(
    store: Store, batch: Batch, item: str, *, output: bytes | None = None, stage: Stage | None = None
) -> Preview:
    """Return what `resolve` would do now. Nothing is changed. Resolving a dead letter twice is harmless; an item that
    was never dead is refused, because the operator mistakes it for a dead letter."""
    lifecycle.check_open(store, batch)
    data = None if output is None else fitted(store, batch, check_output(output), stage)
    found = lookup.item_named(store, batch, item)
    if found.place.state is not State.DEAD and found.place.code != RESOLVED:
        is_what = f"item {found.key!r} of batch {batch.name!r} is {found.place.state}, not dead"
        raise UsageError(f"{is_what}; nothing was changed")
    fate = "counted as skipped" if data is None else f"done with the output {one_line(data.decode(), 60)}"
    shown = _of_letters(store, batch, "resolve", [item], None, (fate, fate))
    return replace(shown, perform=lambda by, only: resolve(
        store, batch, by, item, output=data, stage=stage, shown=only))  # fmt: skip


def _of_letters(
    store: Store, batch: Batch, verb: str, items: Sequence[str] | None, code: str | None,
    fates: tuple[str, str] | None = None,
) -> Preview:  # fmt: skip
    count, first, alive, shown = 0, list[str](), list[str](), PreviewedItems()
    for item in _dead_letters(store, batch, items, code):
        if item.place.state is not State.DEAD:
            alive.append(f"{canonical.key_text(item.key)} is {item.place.state}")
            continue
        count += 1
        shown.add(item.n, item.place)
        first += [canonical.key_text(item.key)] if len(first) < LETTERS_SHOWN else []
    keys = f" ({', '.join(first)}{', …' if count > len(first) else ''})" if first else ""
    fate = (FATES[verb] if fates is None else fates)[count != 1]
    letters = f"{many(count, 'dead letter')} of {batch.name}"
    title = f"{letters}{keys} would be {fate}."
    if not count and items is not None:
        title = f"Nothing to {verb}: {', '.join(alive)}, of {batch.name}."
    return Preview(
        batch=batch.name, keys="act batch items first warning", items=count, counts={}, facts={"act": verb},
        first=tuple(first), titles=(title,), question=f"{verb.capitalize()} {letters}", previewed=shown,
    )  # fmt: skip


SENT_BACK = frozenset({"reset", "redriven"})
"""Kinds of acts after which items run again."""
CUT_PAYLOAD = "too_large"
RESOLVED = "resolved"
RECOVERED = "recovered"
SETTLED = ("done", "skipped", "dead", "cancelled")
NO_INPUT = {RESOLVED: "resolved by hand", RECOVERED: "recovered by its output"}
"""Codes of items that may be past stages for which they have no output."""

Decide = Callable[[StoredItem], Change | str]
"""Decides the change of an item; text is the reason why it is left alone."""


def redrive(
    store: Store, batch: Batch, by: Actor, items: Sequence[str] | None = None, *, code: str | None = None,
    shown: PreviewedItems | None = None,
) -> ActResult:  # fmt: skip
    """Try dead letters again where they stopped, with a fresh budget of attempts: the named ones, or all."""
    lifecycle.check_goes_on(store, batch)
    stages = len(stage_names(batch))

    def decide(item: StoredItem) -> Change | str:
        if item.place.state is not State.DEAD:
            return f"{item.place.state}, not dead"
        if item.place.code == CUT_PAYLOAD:
            return "its payload was too large to store"
        return change_of(item.n, item.place, move(item.place, Transition.REDRIVE, stages=stages))

    return act_on(store, batch, _dead_letters(store, batch, items, code), decide, kind="redriven", by=by,
                  shown=shown)  # fmt: skip


def discard(
    store: Store, batch: Batch, by: Actor, items: Sequence[str] | None = None, *, code: str | None = None,
    shown: PreviewedItems | None = None,
) -> ActResult:  # fmt: skip
    """Give dead letters up, the named ones or all: they count as cancelled from now on."""
    stages = len(stage_names(batch))

    def decide(item: StoredItem) -> Change | str:
        if item.place.state is not State.DEAD:
            return f"{item.place.state}, not dead"
        return change_of(item.n, item.place, move(item.place, Transition.DISCARD, stages=stages))

    return act_on(store, batch, _dead_letters(store, batch, items, code), decide, kind="discarded", by=by,
                  shown=shown)  # fmt: skip


def resolve(
    store: Store, batch: Batch, by: Actor, item: str, *, output: bytes | None = None, stage: Stage | None = None,
    shown: PreviewedItems | None = None,
) -> ActResult:  # fmt: skip
    """Settle a dead letter by hand: done with the output that a person gives (JSON), or skipped without one. If the
    last stage keeps its outputs in files, the output becomes such a file. It must fit what the last stage returns, as
    far as that is known: from `stage`, or from the definition stored with the batch."""
    stages = len(stage_names(batch))
    data = None if output is None else fitted(store, batch, check_output(output), stage)
    facts: ItemFacts = {"code": RESOLVED, "reason": by.reason}
    file = OutputByHand(store, batch) if data is not None else None

    def decide(item: StoredItem) -> Change | str:
        if item.place.state is not State.DEAD:
            return f"{item.place.state}, not dead"
        if data is None or file is None:
            skipped = move(item.place, Transition.RESOLVE, to=State.SKIPPED, stages=stages, **facts)
            return change_of(item.n, item.place, skipped)
        place = move(item.place, Transition.RESOLVE, to=State.DONE, stage=stages, stages=stages, **facts)
        made = file.stage(item, data) or Output(item.n, stages - 1, place.epoch, data)
        return msgspec.structs.replace(change_of(item.n, item.place, place), output=made)

    return act_on(store, batch, [lookup.item_named(store, batch, item)], decide, kind="resolved", by=by, shown=shown,
                  at_end=file.publish if file is not None else None)  # fmt: skip


def reset(
    store: Store, batch: Batch, by: Actor, item: str | None = None, *, to_stage: str | int = 0,
    shown: PreviewedItems | None = None,
) -> ActResult:  # fmt: skip
    """Begin again at a stage, in a new epoch and with no attempts used: one item, or all that have begun.

    An item in flight is taken from its owner: the fence rises, and the owner's work on it is not committed.
    """
    lifecycle.check_goes_on(store, batch)
    target = lookup.stage_numbered(batch, to_stage)
    chunks = store.chunks(batch.id)
    if item is not None:
        found = lookup.item_named(store, batch, item)
        if target > found.place.stage:
            here, there = (lookup.stage_title(stage_names(batch), at) for at in (found.place.stage, target))
            raise UsageError(f"item {found.key!r} is at {here!r}: a reset goes back, not forward to {there!r}")
        held = any(chunk.lo <= found.n < chunk.hi and owners.is_live(chunk, store.now()) for chunk in chunks)
        decide = _Reset(store, batch, target, by, in_flight=held)
        return act_on(store, batch, [found], decide, kind="reset", by=by, seize=True, shown=shown)
    parts = [_reset_chunk(store, batch, by, target, chunk, shown) for chunk in chunks if may_have_begun(chunk)]
    left = Counter[str]()
    for part in parts:
        left.update(dict(part.left_alone))
    return ActResult(
        kind="reset", batch=batch.name, changed=sum(part.changed for part in parts), left_alone=tuple(left.items()),
        warning=next((part.warning for part in parts if part.warning), ""),
    )  # fmt: skip


def _reset_chunk(
    store: Store, batch: Batch, by: Actor, target: int, chunk: Chunk, shown: PreviewedItems | None
) -> ActResult:
    decide = _Reset(store, batch, target, by, in_flight=owners.is_live(chunk, store.now()))
    items = each_item(store, batch.id, lo=chunk.lo, hi=chunk.hi)
    return act_on(store, batch, items, decide, kind="reset", by=by, seize=True, shown=shown)


def may_have_begun(chunk: Chunk) -> bool:
    """Return whether any of its items can have left the first stage, or has an owner. A chunk that was cut from another
    has no attempts of its own, but its items may be at a late stage."""
    begun = chunk.counts.settled > 0 or chunk.counts.attempts > 0
    return begun or chunk.owner is not None or chunk.parent is not None


class _Reset:
    """The rule for what a reset does to an item."""

    def __init__(self, store: Store, batch: Batch, target: int, by: Actor, *, in_flight: bool) -> None:
        self._store, self._batch, self._target, self._by = store, batch, target, by
        self._in_flight = in_flight
        self._stages = len(stage_names(batch))

    def __call__(self, item: StoredItem) -> Change | str:
        place = item.place
        if place.stage < self._target:
            return "not yet at that stage"
        if place.code == CUT_PAYLOAD:
            return "its payload was too large to store"
        if _is_untouched(place, self._target) and not self._in_flight:
            return "already there"
        if self._target > 0 and not self._has_input(item):
            return f"{NO_INPUT[place.code]}: the stage before has no output to begin from"
        after = move(place, Transition.RESET, stage=self._target, stages=self._stages, reason=self._by.reason)
        return change_of(item.n, place, after)

    def _has_input(self, item: StoredItem) -> bool:
        if item.place.code not in NO_INPUT:
            return True
        before = self._target - 1
        return bool(self._store.outputs(self._batch.id, lo=item.n, hi=item.n + 1, stage=before, limit=1))


def _is_untouched(place: ItemState, stage: int) -> bool:
    return (place.state, place.stage, place.attempt, place.due) == (State.PENDING, stage, 0, 0.0)


def check_output(output: bytes) -> bytes:
    """Return the canonical bytes of an output that a person wrote as JSON."""
    if len(output) > OUTPUT_BYTES:
        raise UsageError(f"an output has at most {OUTPUT_BYTES:,} bytes, this one has {len(output):,}")
    try:
        return canonical.encode(canonical.decode(output))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the output is not JSON: {error}") from None


def _dead_letters(store: Store, batch: Batch, items: Sequence[str] | None, code: str | None) -> Iterable[StoredItem]:
    """Return the named items, each once and in any state; or every dead letter, of one code if that is given."""
    if items is not None:
        named = {found.n: found for found in (lookup.item_named(store, batch, item) for item in items)}
        return [named[n] for n in sorted(named)]
    dead = each_item(store, batch.id, state=State.DEAD)
    return dead if code is None else (item for item in dead if item.place.code == code)


def act_on(
    store: Store, batch: Batch, items: Iterable[StoredItem], decide: Decide, *, kind: str, by: Actor,
    seize: bool = False, at_end: Callable[[int], str] | None = None, shown: PreviewedItems | None = None,
) -> ActResult:  # fmt: skip
    """Decide and write, group by group, so that memory stays flat and no transaction is long. If a preview was shown,
    only its items (`shown`) are changed. `at_end` is called with the number of changed items, before the batch is
    checked for its end; it returns a warning, or an empty string."""
    lifecycle.check_open(store, batch)
    decide = decide if shown is None else shown.guard(decide)
    acts = Acts(store, batch, by).carry_out(kind, map(decide, items), seize=seize)
    in_the_way = lifecycle.end_in_the_way(store, batch) if acts.changed and kind in SENT_BACK else ""
    warning = "; ".join(filter(None, [in_the_way, at_end(acts.changed) if at_end is not None else ""]))
    reconcile.look_for_end(store, batch, actor=by.name)
    return acts.result(kind, warning=warning)
