"""Acts on cursors by people: gather, decide, act. Each raises the fence, and the journal keeps who and why.

A `CursorPlan`, which can be shown, is made first; then it is carried out, guarded by the state and epoch of every
partition. Nothing that the owner of a partition does meanwhile can be committed.

A new batch that begins in the middle is paused until every partition has its checkpoint, so that no run takes it up
half made and delivers everything again. A crash leaves it paused and noted as begun; the same command again finishes
it. `holdfast reset` of a scan resumes a partition at its checkpoint, with a fresh budget of attempts; it begins again
at its first row only if that is asked for, and a person may settle it by hand instead.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.core import canonical, cursor, ingest, journal
from holdfast.core.course import item_dead, to_course, to_note
from holdfast.core.cursor import Accumulated, Cursor, Shift, Standing, cursor_of, go_on_from
from holdfast.core.errors import Conflict, Refused, UsageError
from holdfast.core.limits import OUTPUT_BYTES
from holdfast.core.model import Batch, Change, Checkpoint, Chunk, Course, ItemNo, Key, Kind, Output, State, StoredItem
from holdfast.core.states import ItemFacts, Transition, move
from holdfast.runtime import lookup
from holdfast.runtime.acts import MEANWHILE, ActResult, Acts, By
from holdfast.runtime.define.pipeline import check_name
from holdfast.runtime.journal import forward
from holdfast.runtime.operate import state_document
from holdfast.runtime.operate.operations import RESOLVED
from holdfast.runtime.operate.state_document import PartitionDocument
from holdfast.runtime.partitions import (
    BEGUN,
    CLONED,
    IMPORTED,
    MISCOUNTS,
    PLANTED,
    chunk_of,
    for_a_clone,
    history,
    identity_of,
    is_partition,
    remarks,
    source_of,
    standing_of,
    standings,
)
from holdfast.runtime.report import lifecycle, reconcile
from holdfast.runtime.text import command
from holdfast.stores import owners
from holdfast.stores.base import Store, find_batch

RESET, BROKEN = "reset", "lease_broken"
NOBODY = "nobody holds it"
MOVED = "it came further since this was looked at: pause the batch or break its lease, and look again"
_ANY = ItemNo(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One partition, as it stands and as it shall stand."""

    at: Standing
    to: Checkpoint | None
    """None to go on where it stands."""
    shift: Shift
    owner: str | None
    """Who is at work on it, and will be fenced off."""
    fence: int
    left: str = ""
    """Why it would be left alone."""
    miscounts: bool = False
    """Whether its total may then leave rows out or count them twice."""

    def __str__(self) -> str:
        if self.left:
            return f"left alone: {self.left}"
        if self.to is None and self.owner is not None:
            return "rows since then are delivered again"
        if self.to is None and self.at.place.state is State.DONE:
            return "its result is cleared, and made again from what is accumulated; rows that are left are read"
        if self.to is not None and self.at.acc is not None and not self.to.cursor:
            return f"{self.shift}; its total begins at nothing"
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
    """What an act would do."""

    kind: str
    batch: str
    parts: tuple[Turn, ...]
    origin: dict[str, Any]
    """What it goes by, for the journal."""
    beyond: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {"act": self.kind, "batch": self.batch, "partitions": [each.as_dict() for each in self.parts],
                **self.origin}  # fmt: skip


def spoken(at: Cursor | None, rows: int) -> dict[str, Any]:
    return {"cursor": None if at is None else cursor.to_plain(at), "rows": rows}


# -- plans ----------------------------------------------------------------------------------------------------------


def to_beginning(store: Store, batch: Batch, partition: str | None = None) -> CursorPlan:
    """Every partition, or one, before its first row."""

    def aim(at: Standing) -> tuple[Checkpoint, Shift]:
        return cursor.at_the_beginning(at), Shift(again=at.rows)

    return _plan(store, batch, partition, RESET, aim, {"to": "beginning"})


def to_cursor(store: Store, batch: Batch, partition: str | None, text: str, keys: Sequence[str], *,
              type_name: str | None = None, acc: Accumulated | None = None) -> CursorPlan:  # fmt: skip
    """One partition after the row that a person names; where the scan has one only, it need not be named."""
    found = list(standings(store, batch, partition))
    if len(found) != 1:
        raise UsageError(
            f"{batch.name!r} has {len(found)} partitions: name the one that shall stand there; nothing was changed"
        )
    like = next((each for each in (found[0].cursor, found[0].until, found[0].after) if each is not None), None)
    if like is None:
        raise UsageError(
            f"partition {found[0].key!r} of {batch.name!r} has no cursor yet that would tell its kind: run it until "
            "its first checkpoint, or import a state; nothing was changed"
        )
    given = cursor_of(text, keys, like, type_name)

    def aim(at: Standing) -> tuple[Checkpoint, Shift]:
        positions = (past.position for past in history(store, batch, at.n))
        return cursor.at_cursor(at, given, positions, acc)

    origin = {"to": "cursor", "cursor": cursor.to_plain(given), **({} if acc is None else {"acc": acc})}
    return _plan(store, batch, canonical.key_text(found[0].key), RESET, aim, origin)


def to_state(store: Store, batch: Batch, data: bytes, name: str, partition: str | None = None, *,
             kind: str = RESET) -> CursorPlan:  # fmt: skip
    """Every partition, or one, as it stood when the state was exported. The partitions have to be the same."""
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
                f"{name} has no partition {at.key!r} with the same borders: its cursors belong to other ranges, so "
                "nothing was changed"
            )
        if part.identity != identity_of(at):
            raise Refused(
                f"{name} was exported when that source held something else: its cursors mean nothing in it now, so "
                "nothing was changed"
            )
        to = part.checkpoint_for(at.n)
        return to, cursor.difference(at, to)

    origin = {"to": "state", "file": name, "digest": state.digest, "exported_at": state.at, "of": state.name}
    return _plan(store, batch, partition, kind, aim, origin, beyond=state.fence)


def to_same(store: Store, batch: Batch, partition: str | None = None) -> CursorPlan:
    """Every partition that somebody holds, or one, taken from its owner: it goes on where it stands."""
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
        found.append(Turn(at=at, to=to, shift=shift, owner=owner_of(chunk, now), fence=chunk.fence,
                          left=decided if isinstance(decided, str) else "", miscounts=spoils))  # fmt: skip
    return CursorPlan(kind=kind, batch=batch.name, parts=tuple(found), origin=origin, beyond=beyond)


def owner_of(chunk: Chunk, now: float) -> str | None:
    """Who is at work on a chunk, in short; None where nobody is."""
    return owners.short(chunk.owner) if chunk.owner is not None and owners.is_live(chunk, now) else None


def _plain(at: Cursor | None) -> Any:
    return None if at is None else cursor.to_plain(at)


# -- writing --------------------------------------------------------------------------------------------------------


def carry_out(store: Store, batch: Batch, plan: CursorPlan, by: By) -> ActResult:
    """Write what was planned. A partition that moved to another state since is left alone."""
    lifecycle.check_goes_on(store, batch)
    chunks = store.chunks(batch.id)

    def decide(each: Turn) -> Change | str:
        if each.left:  # nobody was asked about it
            return each.left
        item = lookup.item_of(store, batch, each.at.n)
        now = standing_of(store, batch, item) if item is not None else None
        return _decide(plan, each, now if now is not None else each.at, by, is_held(chunks, each.at))

    body, acts = canonical.encode(plan.origin), Acts(store, batch, by)
    acts.carry_out(plan.kind, map(decide, plan.parts), seize=True, body=body, beyond=plan.beyond)
    return acts.result(plan.kind)


def _decide(plan: CursorPlan, each: Turn, now: Standing, by: By, held: bool) -> Change | str:
    if plan.kind == BROKEN and not held:
        return NOBODY
    if each.to is not None and each.to.cursor and (now.rows, now.cursor) != (each.at.rows, each.at.cursor):
        return MOVED
    return cursor.go_on_from(each.at, each.to, 1, reason=by.reason, even_so=held)


def is_held(chunks: Sequence[Chunk], at: Standing) -> bool:
    """Whether somebody has the partition, be it that his lease is over."""
    return at.place.state is State.PENDING and chunk_of(chunks, at.n).owner is not None


# -- batches that begin in the middle ----------------------------------------------------------------------------------

COUNTED = 1 << 44
"""No chunk is granted so often."""
YEAR_2024 = 1_704_067_200


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """A partition as it shall begin."""

    key: Key
    payload: bytes
    checkpoint: Checkpoint
    """Of whatever item: its number is set when there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planting:
    """A batch as it shall be."""

    name: str
    pipeline: str
    definition: bytes
    seeds: tuple[Seed, ...]
    fence: int
    """Every fence of the new batch is higher."""
    kind: str
    """What its acts are called: CLONED or IMPORTED."""
    origin: dict[str, Any]
    """Where it comes from, for the journal."""

    @property
    def digest(self) -> bytes:
        said = [[each.key, each.payload, each.checkpoint.rows, each.checkpoint.cursor, each.checkpoint.acc]
                for each in self.seeds]  # fmt: skip
        return canonical.digest(b"", canonical.encode([self.definition, self.fence, said]))


def check_fence(store: Store, fence: int, what: str, known: int = 0) -> None:
    """Refuse a fence from elsewhere that is so high that this store could give it out again after it was set back: its
    own begin again with the microseconds since 2024 then, which are above every fence that came about by counting. One
    that is `known` here is fine."""
    if fence > known and fence >= max(COUNTED, (store.now() - YEAR_2024) * 1e6):
        raise Refused(
            f"{what}: its fence {fence:,} is higher than any that came about by counting; nothing was changed"
        )


def check_free(store: Store, plan: Planting) -> Batch | None:
    """The batch that a crash left half made; None where there is none. Raises Refused if the name is taken."""
    if plan.kind == IMPORTED:
        check_fence(store, plan.fence, plan.name)
    found = find_batch(store, plan.name)
    if found is None:
        return None
    kinds: dict[str, bytes] = {}
    is_whole = False
    for entry in forward(store, found):
        kinds[entry.kind] = entry.stored.body
        is_whole = is_whole or (PLANTED in kinds and entry.kind != PLANTED)
    is_empty = not found.admitted and found.course is not Course.CANCELLED and not {BEGUN, PLANTED} & kinds.keys()
    if is_empty or (kinds.get(BEGUN) == _begun(plan) and not is_whole and _is_paused(found)):
        return found
    raise Refused(
        f"there is a batch {plan.name!r} already: a state is never put over another one; choose another name, or use "
        f"`{command('cursor reset', plan.name)}`"
    )


def _is_paused(batch: Batch) -> bool:
    """As one is until it is whole; killed before it was opened to runs, it has all its checkpoints and waits still."""
    return batch.course is Course.PAUSED or not batch.admitted


def plant(store: Store, plan: Planting, by: By, notes: Sequence[bytes] = ()) -> Batch:
    """Make the batch, and set every partition to its checkpoint. Done again after a crash, it does what is left."""
    check_free(store, plan)
    batch = store.open_batch(plan.name, plan.pipeline, plan.definition, actor=by.actor)
    store.amend(batch.id, to_course(Course.PAUSED, reason=by.reason), actor=by.actor)
    store.amend(batch.id, to_note(BEGUN, _begun(plan), once=True), actor=by.actor)
    items = [ingest.admit(seed.key, seed.payload, os.urandom(canonical.SALT_BYTES)) for seed in plan.seeds]
    store.add_items(batch.id, items, kind=Kind.PARTITIONS, ended=True, actor=by.actor)
    _set(store, batch, plan, by)
    _check_set(store, batch, plan)
    for note in notes:
        store.amend(batch.id, to_note(plan.kind, note, once=True), actor=by.actor)
    told = journal.Acted(reason=by.reason, note=canonical.encode(plan.origin))
    store.amend(batch.id, to_note(PLANTED, journal.encode_body(told), once=True), actor=by.actor)
    return store.amend(batch.id, to_course(Course.OPEN, reason=by.reason), actor=by.actor).batch


def _set(store: Store, batch: Batch, plan: Planting, by: By) -> None:
    """Every partition at its checkpoint, under a fence above all that were given out for it. Those that a crash found
    set are left alone."""
    wanted = {canonical.key_text(seed.key): seed.checkpoint for seed in plan.seeds}
    changes: list[Change] = []
    for at in standings(store, batch):
        if at.checkpoint is None:
            said = wanted[canonical.key_text(at.key)]
            to = Checkpoint(at.n, said.rows, said.cursor, said.acc)
            change = go_on_from(at, to, 1, reason=by.reason, even_so=True)
            assert isinstance(change, Change)
            changes.append(change)
    body = canonical.encode(plan.origin)
    Acts(store, batch, by).carry_out(plan.kind, changes, seize=True, body=body, beyond=plan.fence)


def _check_set(store: Store, batch: Batch, plan: Planting) -> None:
    """Two who make the same batch from different states at once: one of them is told so."""
    wanted = {canonical.key_text(seed.key): seed.checkpoint for seed in plan.seeds}
    for at in standings(store, batch):
        said = wanted.get(canonical.key_text(at.key))
        if said is None or (at.rows, at.acc) != (said.rows, said.acc) or (at.checkpoint or said).cursor != said.cursor:
            raise Conflict(
                f"batch {plan.name!r} was made by somebody else at the same time: look at it before you continue"
            )


def _begun(plan: Planting) -> bytes:
    return journal.encode_body(journal.Acted(reason=f"{plan.kind}: in the making", note=plan.digest))


def seed_of(key: Key, payload: bytes, at: Checkpoint | None) -> Seed:
    return Seed(key=key, payload=payload, checkpoint=at if at is not None else Checkpoint(ItemNo(0), 0, b""))


# -- new batches ----------------------------------------------------------------------------------------------------


def clone(store: Store, batch: Batch, new_name: str) -> Planting:
    """A new batch of the same definition at the same cursors, under fences that are higher. What is known of totals
    that do not count every row once goes with it."""
    chunks = store.chunks(batch.id)
    known = for_a_clone(remarks(store, batch))
    seeds = tuple(seed_of(at.key, at.payload, at.checkpoint) for at in standings(store, batch))
    plan = Planting(
        name=check_name(new_name, "batch"), pipeline=batch.pipeline, definition=batch.definition, seeds=seeds,
        fence=max((chunk.fence for chunk in chunks), default=0), kind=CLONED,
        origin={"cloned_from": batch.name, **({"totals": known} if known else {})},
    )  # fmt: skip
    check_free(store, plan)
    return plan


def from_state(store: Store, data: bytes, name: str, batch: str) -> Planting:
    """A new batch as a state says that was exported, here or elsewhere."""
    state = state_document.read(data, name)
    state_document.check_key(state.partitions, name)
    seeds = tuple(seed_of(part.key, _payload(part), part.checkpoint_for(_ANY)) for part in state.partitions)
    plan = Planting(
        name=check_name(batch, "batch"), pipeline=state.pipeline, definition=canonical.encode(state.definition),
        seeds=seeds, fence=state.fence, kind=IMPORTED,
        origin={"file": name, "digest": state.digest, "exported_at": state.at, "of": state.name},
    )  # fmt: skip
    check_free(store, plan)
    return plan


def _payload(part: PartitionDocument) -> bytes:
    plain = {"range": part.key, "after": part.after, "until": part.until, "rows": part.expected_rows}
    return canonical.encode(plain if part.identity is None else {**plain, "identity": part.identity})


def make(store: Store, plan: Planting, by: By, notes: Sequence[bytes] = ()) -> ActResult:
    """Make the planned batch."""
    made = plant(store, plan, by, notes)
    return ActResult(kind=plan.kind, batch=made.name, changed=len(plan.seeds))


# -- reset to a checkpoint, and results by hand ------------------------------------------------------------------------

BY_HAND = "by_hand"
"""The code of a partition that a person is about to settle."""
DONE = "done: --from-start does it again"
FRESH = "it resumes at its checkpoint anyway"


def plan_retry(store: Store, batch: Batch, partition: str | None = None, *, from_start: bool = False) -> CursorPlan:
    """What a reset would do: resume where each stands, or from its first row."""
    if from_start:
        return to_beginning(store, batch, partition)
    lifecycle.check_goes_on(store, batch)
    chunks, now = store.chunks(batch.id), store.now()
    turns = []
    for at in standings(store, batch, partition):
        chunk = chunk_of(chunks, at.n)
        decided = _decide_retry(at, chunk, "…", named=partition is not None)
        turns.append(Turn(at=at, to=None, shift=Shift(), owner=owner_of(chunk, now), fence=chunk.fence,
                          left=decided if isinstance(decided, str) else ""))  # fmt: skip
    return CursorPlan(kind=RESET, batch=batch.name, parts=tuple(turns), origin={"to": "its checkpoint"})


def retry(store: Store, batch: Batch, plan: CursorPlan, by: By, *, named: bool) -> ActResult:
    """Let partitions resume at their checkpoints: attempts at 0, the result cleared, an owner at work fenced off. One
    that is done is left alone unless it is named."""
    lifecycle.check_goes_on(store, batch)
    chunks = store.chunks(batch.id)
    decided = (_decide_retry(turn.at, chunk_of(chunks, turn.at.n), by.reason, named=named) for turn in plan.parts)
    return (
        Acts(store, batch, by).carry_out(RESET, decided, seize=True, body=canonical.encode(plan.origin)).result(RESET)
    )


def _decide_retry(at: Standing, chunk: Chunk, reason: str, *, named: bool) -> Change | str:
    if at.place.state is State.DONE and not named:
        return DONE
    is_held = chunk.owner is not None and at.place.state is State.PENDING
    decided = cursor.go_on_from(at, None, 1, reason=reason, even_so=is_held)
    return FRESH if isinstance(decided, str) else decided


def settle(store: Store, batch: Batch, by: By, partition: str, result: bytes | None) -> ActResult:
    """Settle a partition by hand: done with the result that a person gives, or without one skipped. It counts as it is
    given: no further row of the partition is read."""
    lifecycle.check_open(store, batch)
    item = lookup.item_named(store, batch, partition)
    if not is_partition(store, batch, item):
        raise UsageError(f"item {item.key!r} of {batch.name!r} is a row: use `holdfast dead resolve`")
    if item.place.state not in (State.DEAD, State.PENDING):
        return ActResult(kind=RESOLVED, batch=batch.name, changed=0, left_alone=((f"{item.place.state} already", 1),))
    if item.place.state is State.PENDING:
        item = _taken_out(store, batch, by, item)
        if item.place.state is not State.DEAD:
            return ActResult(kind=RESOLVED, batch=batch.name, changed=0, left_alone=((MEANWHILE, 1),))
    facts: ItemFacts = {"code": RESOLVED, "reason": by.reason}
    if result is None:
        place = move(item.place, Transition.RESOLVE, to=State.SKIPPED, stages=1, **facts)
        change = Change(n=item.n, state=item.place.state, epoch=item.place.epoch, place=place)
    else:
        place = move(item.place, Transition.RESOLVE, to=State.DONE, stage=1, stages=1, **facts)
        change = Change(
            n=item.n, state=item.place.state, epoch=item.place.epoch, place=place,
            output=Output(item.n, 0, place.epoch, result), output_digest=canonical.digest(item.salt, result),
        )  # fmt: skip
    acts = Acts(store, batch, by)
    acts.write(RESOLVED, [change], seize=True)
    reconcile.look_for_end(store, batch, actor=by.actor)
    return acts.result(RESOLVED)


def check_unsettled(batch: Batch, state: State, partition: str) -> None:
    """Refuse to settle by hand what is settled."""
    if state not in (State.DEAD, State.PENDING):
        raise Refused(
            f"partition {partition} of {batch.name!r} is {state} already: if that is not to stay, first "
            f"`{command('reset', batch.name, partition)}`; nothing was changed"
        )


def _taken_out(store: Store, batch: Batch, by: By, item: StoredItem) -> StoredItem:
    """A partition that would run again is buried first, and taken from whoever holds it: only what is dead is settled
    by hand. A crash after that leaves a dead letter, and the same command again settles it."""
    place = move(item.place, Transition.BURY, stages=1, code=BY_HAND, reason=by.reason)
    change = Change(n=item.n, state=item.place.state, epoch=item.place.epoch, place=place)
    Acts(store, batch, by).write("buried", [change], seize=True, events=[item_dead(item.n, item.key, place)])
    found = lookup.item_of(store, batch, item.n)
    assert found is not None
    return found


def check_result(data: bytes, what: str) -> bytes:
    """The canonical bytes of a result that a person wrote as JSON."""
    if len(data) > OUTPUT_BYTES:
        raise UsageError(f"{what}: a result has at most {OUTPUT_BYTES:,} bytes, this one has {len(data):,}")
    try:
        return canonical.encode_typed(canonical.decode_typed(data, what), what)
    except UsageError as error:
        raise UsageError(f"{error}: a result is one JSON value; nothing was changed") from None


def unlike(at: Standing, result: bytes) -> str:
    """Why a result may not be what `converge` expects, from what the partition accumulated; empty where it may be."""
    if at.acc is None:
        return ""
    mine, theirs = (type(canonical.decode_typed(each)).__name__ for each in (result, at.acc))
    return "" if mine == theirs else f"what it has accumulated is a {theirs}, this is a {mine}: can converge take it?"
