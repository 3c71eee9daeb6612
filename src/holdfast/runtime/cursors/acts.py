"""What a person does to cursors: gather, decide, act. Each raises the fence, and the journal keeps who and why.

What would be done is made first, as a `Plan` that can be shown; then it is written, guarded by the state and epoch of
every partition. What the owner of a partition does meanwhile cannot be committed any more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.core import canonical, cursor, state_document
from holdfast.core.cursor import Accumulated, Cursor, Shift, Standing, cursor_of
from holdfast.core.errors import Refused, UsageError
from holdfast.core.model import Batch, Change, Checkpoint, Chunk, ItemNo, State
from holdfast.core.state_document import PartitionDocument
from holdfast.runtime import lookup
from holdfast.runtime.acts import Acts, By, Result
from holdfast.runtime.cursors.history import CLONED, IMPORTED, history
from holdfast.runtime.cursors.planting import Plan as Planting
from holdfast.runtime.cursors.planting import check_fence, check_free, plant, seed_of
from holdfast.runtime.cursors.remarks import MISCOUNTS, for_a_clone, remarks
from holdfast.runtime.cursors.standing import chunk_of, identity_of, source_of, standing_of, standings
from holdfast.runtime.define.pipeline import check_name
from holdfast.runtime.lifecycle import end
from holdfast.stores import owners
from holdfast.stores.base import Store

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
class Plan:
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


def to_beginning(store: Store, batch: Batch, partition: str | None = None) -> Plan:
    """Every partition, or one, before its first row."""

    def aim(at: Standing) -> tuple[Checkpoint, Shift]:
        return cursor.at_the_beginning(at), Shift(again=at.rows)

    return _plan(store, batch, partition, RESET, aim, {"to": "beginning"})


def to_cursor(store: Store, batch: Batch, partition: str | None, text: str, keys: Sequence[str], *,
              type_name: str | None = None, acc: Accumulated | None = None) -> Plan:  # fmt: skip
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
             kind: str = RESET) -> Plan:  # fmt: skip
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


def to_same(store: Store, batch: Batch, partition: str | None = None) -> Plan:
    """Every partition that somebody holds, or one, taken from its owner: it goes on where it stands."""
    plan = _plan(store, batch, partition, BROKEN, lambda _: (None, Shift()), {})
    chunks = store.chunks(batch.id)
    parts = (each if is_held(chunks, each.at) else replace(each, left=NOBODY) for each in plan.parts)
    return replace(plan, parts=tuple(parts))


Aim = Callable[[Standing], tuple[Checkpoint | None, Shift]]


def _plan(store: Store, batch: Batch, partition: str | None, kind: str, aim: Aim, origin: dict[str, Any],
          beyond: int = 0) -> Plan:  # fmt: skip
    end.check_goes_on(store, batch)
    chunks, now = store.chunks(batch.id), store.now()
    found = []
    for at in standings(store, batch, partition):
        to, shift = aim(at)
        chunk = chunk_of(chunks, at.n)
        decided = cursor.go_on_from(at, to, 1, reason="", even_so=to is None or is_held(chunks, at))
        spoils = "acc" in origin and at.acc is not None and not isinstance(decided, str)
        found.append(Turn(at=at, to=to, shift=shift, owner=owner_of(chunk, now), fence=chunk.fence,
                          left=decided if isinstance(decided, str) else "", miscounts=spoils))  # fmt: skip
    return Plan(kind=kind, batch=batch.name, parts=tuple(found), origin=origin, beyond=beyond)


def owner_of(chunk: Chunk, now: float) -> str | None:
    """Who is at work on a chunk, in short; None where nobody is."""
    return owners.short(chunk.owner) if chunk.owner is not None and owners.is_live(chunk, now) else None


def _plain(at: Cursor | None) -> Any:
    return None if at is None else cursor.to_plain(at)


# -- writing --------------------------------------------------------------------------------------------------------


def carry_out(store: Store, batch: Batch, plan: Plan, by: By) -> Result:
    """Write what was planned. A partition that moved to another state since is left alone."""
    end.check_goes_on(store, batch)
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


def _decide(plan: Plan, each: Turn, now: Standing, by: By, held: bool) -> Change | str:
    if plan.kind == BROKEN and not held:
        return NOBODY
    if each.to is not None and each.to.cursor and (now.rows, now.cursor) != (each.at.rows, each.at.cursor):
        return MOVED
    return cursor.go_on_from(each.at, each.to, 1, reason=by.reason, even_so=held)


def is_held(chunks: Sequence[Chunk], at: Standing) -> bool:
    """Whether somebody has the partition, be it that his lease is over."""
    return at.place.state is State.PENDING and chunk_of(chunks, at.n).owner is not None


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


def make(store: Store, plan: Planting, by: By, notes: Sequence[bytes] = ()) -> Result:
    """Make the planned batch."""
    made = plant(store, plan, by, notes)
    return Result(kind=plan.kind, batch=made.name, changed=len(plan.seeds))
