"""Operators' acts on cursors. Each raises the fence, and the journal keeps who acted and why.

First a `CursorPlan` is made, which can be shown; then it is carried out, guarded by the state and epoch of every
partition. Nothing that the owner of a partition does meanwhile can be committed.

`holdfast reset` of a scan resumes a partition at its checkpoint, with a fresh budget of attempts; it begins again at
its first row only with `from_start`. A person can also settle a partition by hand.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.core import canonical, cursor
from holdfast.core.course import item_dead
from holdfast.core.cursor import Accumulated, Cursor, Shift, Standing, cursor_of
from holdfast.core.errors import Refused, UsageError
from holdfast.core.limits import OUTPUT_BYTES
from holdfast.core.model import Batch, Change, Checkpoint, Chunk, ItemState, Output, State, StoredItem
from holdfast.core.states import ItemFacts, Transition, move
from holdfast.runtime import lookup
from holdfast.runtime.acts import MEANWHILE, MOVED, Actor, ActResult, Acts, Preview, PreviewedItems
from holdfast.runtime.operate import state_document
from holdfast.runtime.operate.clones import check_fence
from holdfast.runtime.operate.operations import RESOLVED
from holdfast.runtime.partitions import (
    MISCOUNTS,
    chunk_of,
    history,
    identity_of,
    is_partition,
    source_of,
    standing_of,
    standings,
)
from holdfast.runtime.report import lifecycle, reconcile
from holdfast.runtime.report.overview import partition_in_words
from holdfast.runtime.text import command, many, one_line
from holdfast.stores import owners
from holdfast.stores.base import Store

RESET, BROKEN = "reset", "lease_broken"
NOBODY = "no owner holds it"
PARTITION = "partition"


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorMove:
    """One partition, with its current place and its planned one."""

    at: Standing
    to: Checkpoint | None
    """None to resume at its checkpoint."""
    shift: Shift
    owner: str | None
    """The live owner, which will be fenced off."""
    fence: int
    left: str = ""
    """The reason why it would be left alone."""
    miscounts: bool = False
    """True if its total may then leave rows out or count them twice."""

    def __str__(self) -> str:
        if self.left:
            return f"left alone: {self.left}"
        if self.to is None and self.owner is not None:
            return "rows since then are delivered again"
        if self.to is None and self.at.place.state is State.DONE:
            return "its result is cleared and made again from its accumulator; rows that are left are read"
        if self.to is not None and self.at.acc is not None and not self.to.cursor:
            return f"{self.shift}; its total begins empty"
        return f"{self.shift}; {MISCOUNTS}" if self.miscounts else str(self.shift)

    def as_dict(self) -> dict[str, Any]:
        plain = {"partition": self.at.key, "state": self.at.place.state.value, "owner": self.owner,
                 "fence": self.fence, "from": spoken(self.at.cursor, self.at.rows)}  # fmt: skip
        plain |= {"left_alone": self.left} if self.left else {}
        if self.to is not None:
            target = cursor.decode(self.to.cursor) if self.to.cursor else None
            plain |= {"to": spoken(target, self.to.rows), "delivered_again": self.shift.again,
                      "skipped": self.shift.skipped, "exact": self.shift.exact}  # fmt: skip
        return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorPlan:
    """The partitions that an act would change, and how."""

    kind: str
    batch: str
    parts: tuple[CursorMove, ...]
    origin: dict[str, Any]
    """The target of the act, for the journal."""
    beyond: int = 0

    @property
    def concerned(self) -> int:
        """The number of partitions that would change."""
        return sum(not each.left for each in self.parts)


PARTS_SHOWN = 20
COLUMNS = ("partition", "is now after", "would resume after", "effect", "held by")
FENCED = "The owner of a held partition is fenced off: rows it has not committed are handled again."


def shown(
    plan: CursorPlan, question: str, perform: Callable[[Actor, PreviewedItems | None], ActResult], *, title: str = "",
    warning: str = "",
) -> Preview:  # fmt: skip
    """Return a plan as a preview that can be shown and carried out."""
    facts = {"act": plan.kind, "partitions": [each.as_dict() for each in plan.parts], **plan.origin}
    first = [dict(zip(COLUMNS, _row(each), strict=True)) for each in plan.parts[:PARTS_SHOWN]]
    held = any(each.owner is not None for each in plan.parts)
    warnings = [*([FENCED] if held else []), *([warning] if warning else [])]
    return Preview(
        batch=plan.batch, keys=" ".join(["act", "batch", *(name for name in facts if name != "act")]),
        items=plan.concerned, counts={}, facts=facts, first=tuple(first), columns=COLUMNS,
        more=len(plan.parts) - len(first), titles=(title,) if title else (), warning="; ".join(warnings),
        question=question, perform=perform,
    )  # fmt: skip


def _row(turn: CursorMove) -> tuple[str, ...]:
    if turn.to is None:
        target = "the same"
    else:
        target = str(cursor.decode(turn.to.cursor)) if turn.to.cursor else "the beginning"
    stands = "not begun" if turn.at.cursor is None else str(turn.at.cursor)
    return str(turn.at.key), stands, target, str(turn), turn.owner if turn.owner is not None else "nobody"


def spoken(at: Cursor | None, rows: int) -> dict[str, Any]:
    return {"cursor": None if at is None else cursor.to_plain(at), "rows": rows}


# -- plans ----------------------------------------------------------------------------------------------------------


def to_beginning(store: Store, batch: Batch, partition: str | None = None) -> CursorPlan:
    """Plan to set every partition, or one, before its first row."""

    def aim(at: Standing) -> tuple[Checkpoint, Shift]:
        return cursor.at_the_beginning(at), Shift(again=at.rows)

    return _plan(store, batch, partition, RESET, aim, {"to": "beginning"})


def to_cursor(store: Store, batch: Batch, partition: str | None, text: str, keys: Sequence[str], *,
              type_name: str | None = None, acc: Accumulated | None = None) -> CursorPlan:  # fmt: skip
    """Plan to set one partition after the row that a person names; if the scan has only one, its name can be
    omitted."""
    found = list(standings(store, batch, partition))
    if len(found) != 1:
        raise UsageError(f"{batch.name!r} has {len(found)} partitions: name the one to set; nothing was changed")
    like = next((each for each in (found[0].cursor, found[0].until, found[0].after) if each is not None), None)
    if like is None:
        raise UsageError(
            f"partition {found[0].key!r} of {batch.name!r} has no cursor yet, so the kind of its cursor is unknown: "
            "run it until its first checkpoint, or import a state; nothing was changed"
        )
    given = cursor_of(text, keys, like, type_name)

    def aim(at: Standing) -> tuple[Checkpoint, Shift]:
        positions = (past.position for past in history(store, batch, at.n))
        return cursor.at_cursor(at, given, positions, acc)

    origin = {"to": "cursor", "cursor": cursor.to_plain(given), **({} if acc is None else {"acc": acc})}
    return _plan(store, batch, canonical.key_text(found[0].key), RESET, aim, origin)


def to_state(store: Store, batch: Batch, data: bytes, name: str, partition: str | None = None, *,
             kind: str = RESET) -> CursorPlan:  # fmt: skip
    """Plan to set every partition, or one, to where it was when the state was exported. The partitions must be the
    same."""
    state = state_document.read(data, name)
    state_document.check_source(state, source_of(batch), batch.name, name)
    state_document.check_key(state.partitions, name)
    highest = max((chunk.fence for chunk in store.chunks(batch.id)), default=0)
    check_fence(store, state.fence, name, known=highest)
    parts = {canonical.key_text(part.key): part for part in state.partitions}

    def aim(at: Standing) -> tuple[Checkpoint, Shift]:
        part = parts.get(canonical.key_text(at.key))
        if part is None or (part.after, part.until) != (_plain(at.after), _plain(at.until)):
            raise Refused(
                f"{name} has no partition {at.key!r} with the same borders: its cursors belong to other partitions; "
                "nothing was changed"
            )
        if part.identity != identity_of(at):
            raise Refused(
                f"{name} was exported when the source held something else: its cursors have no meaning in the source "
                "now; nothing was changed"
            )
        to = part.checkpoint_for(at.n)
        return to, cursor.difference(at, to)

    origin = {"to": "state", "file": name, "digest": state.digest, "exported_at": state.at, "of": state.name}
    return _plan(store, batch, partition, kind, aim, origin, beyond=state.fence)


def to_same(store: Store, batch: Batch, partition: str | None = None) -> CursorPlan:
    """Plan to take every held partition, or one, from its owner; it resumes at its checkpoint."""
    plan = _plan(store, batch, partition, BROKEN, lambda _: (None, Shift()), {})
    chunks = store.chunks(batch.id)
    parts = (each if is_held(chunks, each.at) else replace(each, left=NOBODY) for each in plan.parts)
    return replace(plan, parts=tuple(parts))


Aim = Callable[[Standing], tuple[Checkpoint | None, Shift]]


def _plan(store: Store, batch: Batch, partition: str | None, kind: str, aim: Aim, origin: dict[str, Any],
          beyond: int = 0) -> CursorPlan:  # fmt: skip
    lifecycle.check_goes_on(store, batch)
    chunks, now = store.chunks(batch.id), store.now()
    found = []
    for at in standings(store, batch, partition):
        to, shift = aim(at)
        chunk = chunk_of(chunks, at.n)
        decided = cursor.go_on_from(at, to, 1, reason="", even_so=to is None or is_held(chunks, at))
        spoils = "acc" in origin and at.acc is not None and not isinstance(decided, str)
        found.append(CursorMove(at=at, to=to, shift=shift, owner=owner_of(chunk, now), fence=chunk.fence,
                          left=decided if isinstance(decided, str) else "", miscounts=spoils))  # fmt: skip
    return CursorPlan(kind=kind, batch=batch.name, parts=tuple(found), origin=origin, beyond=beyond)


def owner_of(chunk: Chunk, now: float) -> str | None:
    """Return the live owner of a chunk, in short; None if there is none."""
    return owners.short(chunk.owner) if chunk.owner is not None and owners.is_live(chunk, now) else None


def _plain(at: Cursor | None) -> Any:
    return None if at is None else cursor.to_plain(at)


# -- writing --------------------------------------------------------------------------------------------------------


def carry_out(store: Store, batch: Batch, plan: CursorPlan, by: Actor) -> ActResult:
    """Carry out a plan. A partition that has changed its state since is left alone."""
    lifecycle.check_goes_on(store, batch)
    chunks = store.chunks(batch.id)

    def decide(each: CursorMove) -> Change | str:
        if each.left:  # it was not in the question that was confirmed
            return each.left
        item = lookup.item_of(store, batch, each.at.n)
        now = standing_of(store, batch, item) if item is not None else None
        return _decide(plan, each, now if now is not None else each.at, by, is_held(chunks, each.at))

    body, acts = canonical.encode(plan.origin), Acts(store, batch, by)
    acts.carry_out(plan.kind, map(decide, plan.parts), seize=True, body=body, beyond=plan.beyond)
    return acts.result(plan.kind, noun=PARTITION)


def _decide(plan: CursorPlan, each: CursorMove, now: Standing, by: Actor, held: bool) -> Change | str:
    if plan.kind == BROKEN and not held:
        return NOBODY
    if each.to is not None and each.to.cursor and (now.rows, now.cursor) != (each.at.rows, each.at.cursor):
        return MOVED
    return cursor.go_on_from(each.at, each.to, 1, reason=by.reason, even_so=held)


def is_held(chunks: Sequence[Chunk], at: Standing) -> bool:
    """Return whether the partition has an owner, even one whose lease has expired."""
    return at.place.state is State.PENDING and chunk_of(chunks, at.n).owner is not None


# -- reset to a checkpoint, and results by hand ------------------------------------------------------------------------

BY_HAND = "by_hand"
"""The code of a partition that a person is about to settle."""
DONE = "done: --from-start does it again"
FRESH = "it resumes at its checkpoint anyway"


def plan_retry(store: Store, batch: Batch, partition: str | None = None, *, from_start: bool = False) -> CursorPlan:
    """Plan a reset: each partition resumes at its checkpoint, or begins again at its first row."""
    if from_start:
        return to_beginning(store, batch, partition)
    lifecycle.check_goes_on(store, batch)
    chunks, now = store.chunks(batch.id), store.now()
    turns = []
    for at in standings(store, batch, partition):
        chunk = chunk_of(chunks, at.n)
        decided = _decide_retry(at, chunk, "…", named=partition is not None)
        turns.append(CursorMove(at=at, to=None, shift=Shift(), owner=owner_of(chunk, now), fence=chunk.fence,
                          left=decided if isinstance(decided, str) else ""))  # fmt: skip
    return CursorPlan(kind=RESET, batch=batch.name, parts=tuple(turns), origin={"to": "its checkpoint"})


def retry(store: Store, batch: Batch, plan: CursorPlan, by: Actor, *, named: bool) -> ActResult:
    """Let partitions resume at their checkpoints: attempts at 0, the result cleared, a live owner fenced off. A
    partition that is done is left alone unless it is named."""
    lifecycle.check_goes_on(store, batch)
    chunks = store.chunks(batch.id)
    decided = (
        turn.left if turn.left else _decide_retry(turn.at, chunk_of(chunks, turn.at.n), by.reason, named=named)
        for turn in plan.parts
    )
    acts = Acts(store, batch, by).carry_out(RESET, decided, seize=True, body=canonical.encode(plan.origin))
    return acts.result(RESET, noun=PARTITION)


def _decide_retry(at: Standing, chunk: Chunk, reason: str, *, named: bool) -> Change | str:
    if at.place.state is State.DONE and not named:
        return DONE
    is_held = chunk.owner is not None and at.place.state is State.PENDING
    decided = cursor.go_on_from(at, None, 1, reason=reason, even_so=is_held)
    return FRESH if isinstance(decided, str) else decided


def settle(
    store: Store, batch: Batch, by: Actor, partition: str, result: bytes | None, shown: PreviewedItems | None = None
) -> ActResult:
    """Settle a partition by hand: done with the result that a person gives, or skipped without one. The result counts
    as given: no further row of the partition is read."""
    lifecycle.check_open(store, batch)
    item = lookup.item_named(store, batch, partition)
    if not is_partition(store, batch, item):
        raise UsageError(f"item {item.key!r} of {batch.name!r} is a row: use `holdfast dead resolve`")
    if item.place.state not in (State.DEAD, State.PENDING):
        left = ((f"{item.place.state} already", 1),)
        return ActResult(kind=RESOLVED, batch=batch.name, changed=0, left_alone=left, noun=PARTITION)
    if shown is not None and not shown.has(item.n, _settled_alike(item.place)):
        return ActResult(kind=RESOLVED, batch=batch.name, changed=0, left_alone=((MEANWHILE, 1),), noun=PARTITION)
    if item.place.state is State.PENDING:
        item = _taken_out(store, batch, by, item)
        if item.place.state is not State.DEAD:
            return ActResult(kind=RESOLVED, batch=batch.name, changed=0, left_alone=((MEANWHILE, 1),), noun=PARTITION)
    facts: ItemFacts = {"code": RESOLVED, "reason": by.reason}
    if result is None:
        place = move(item.place, Transition.RESOLVE, to=State.SKIPPED, stages=1, **facts)
        change = Change(n=item.n, state=item.place.state, epoch=item.place.epoch, place=place)
    else:
        place = move(item.place, Transition.RESOLVE, to=State.DONE, stage=1, stages=1, **facts)
        change = Change(
            n=item.n, state=item.place.state, epoch=item.place.epoch, place=place,
            output=Output(item.n, 0, place.epoch, result),
        )  # fmt: skip
    acts = Acts(store, batch, by)
    acts.write(RESOLVED, [change], seize=True)
    reconcile.look_for_end(store, batch, actor=by.name)
    return acts.result(RESOLVED, noun=PARTITION)


def preview_retry(store: Store, batch: Batch, partition: str | None = None, *, from_start: bool = False) -> Preview:
    """Return what `plan_retry` plans, as a preview. Nothing is changed."""
    plan = plan_retry(store, batch, partition, from_start=from_start)
    named = partition is not None

    def perform(by: Actor, _: PreviewedItems | None) -> ActResult:
        return carry_out(store, batch, plan, by) if from_start else retry(store, batch, plan, by, named=named)

    again = "Every row up to the checkpoint would be handled again:"
    title = again if from_start else "Each would resume at its checkpoint, with no attempts used:"
    whose = f"partition {partition}" if named else many(plan.concerned, PARTITION)
    return shown(plan, f"Reset {whose} of {batch.name}", perform, title=title,
                 warning=lifecycle.end_in_the_way(store, batch))  # fmt: skip


def preview_settle(store: Store, batch: Batch, partition: str, result: bytes | None) -> Preview:
    """Return what `settle` would do. Nothing is changed."""
    lifecycle.check_open(store, batch)
    (at,) = standings(store, batch, partition)
    check_unsettled(batch, at.place.state, partition)
    fate = "skipped, without a result" if result is None else f"done with {one_line(result.decode(), 60)}"
    facts = {"act": "resolve", "partition": at.key, "state": at.place.state.value, "rows": at.rows}
    return Preview(
        batch=batch.name, keys="act batch partition state rows", items=1, counts={}, facts=facts,
        titles=(
            f"partition {partition} of {batch.name} ({at.place.state}) would count as {fate}.",
            f"It is {partition_in_words(at)}; no further row of it would be read.",
        ),
        warning="" if result is None else unlike(at, result), question=f"Settle partition {partition} of {batch.name}",
        perform=lambda by, only: settle(store, batch, by, partition, result, only), previewed=_previewed(at),
    )  # fmt: skip


def _previewed(at: Standing) -> PreviewedItems:
    only = PreviewedItems()
    only.add(at.n, _settled_alike(at.place))
    return only


def _settled_alike(place: ItemState) -> Hashable:
    """Return the facts that must not change between the preview and the act: all of them if the partition is dead, but
    only state and epoch while it runs."""
    return place if place.state is State.DEAD else (place.state, place.epoch)


def check_unsettled(batch: Batch, state: State, partition: str) -> None:
    """Refuse to settle a partition that is settled already."""
    if state not in (State.DEAD, State.PENDING):
        raise Refused(
            f"partition {partition} of {batch.name!r} is already {state}: to change that, first run "
            f"`{command('reset', batch.name, partition)}`; nothing was changed"
        )


def _taken_out(store: Store, batch: Batch, by: Actor, item: StoredItem) -> StoredItem:
    """Bury a pending partition and take it from its owner, because only a dead letter can be settled by hand. A crash
    after that leaves a dead letter; running the same command again settles it."""
    place = move(item.place, Transition.BURY, stages=1, code=BY_HAND, reason=by.reason)
    change = Change(n=item.n, state=item.place.state, epoch=item.place.epoch, place=place)
    Acts(store, batch, by).write("buried", [change], seize=True, events=[item_dead(item.n, item.key, place)])
    found = lookup.item_of(store, batch, item.n)
    assert found is not None
    return found


def check_result(data: bytes, what: str) -> bytes:
    """Return the canonical bytes of a result that a person wrote as JSON."""
    if len(data) > OUTPUT_BYTES:
        raise UsageError(f"{what}: a result has at most {OUTPUT_BYTES:,} bytes, this one has {len(data):,}")
    try:
        return canonical.encode_typed(canonical.decode_typed(data, what), what)
    except UsageError as error:
        raise UsageError(f"{error}: a result is one JSON value; nothing was changed") from None


def unlike(at: Standing, result: bytes) -> str:
    """Return why a result may not be what `converge` expects, judged by the partition's accumulator; empty if it
    fits."""
    if at.acc is None:
        return ""
    mine, theirs = (type(canonical.decode_typed(each)).__name__ for each in (result, at.acc))
    return "" if mine == theirs else f"the accumulator is a {theirs}, this result is a {mine}: can converge take it?"
