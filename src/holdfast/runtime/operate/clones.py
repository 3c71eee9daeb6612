"""New batches that begin at given cursors: clones of a scan, and imported states.

Such a batch is paused until every partition has its checkpoint, so that no run claims it half made and delivers every
row again. A crash leaves it paused and noted as begun; running the same command again finishes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core import canonical, ingest, journal
from holdfast.core.course import to_course, to_note
from holdfast.core.cursor import go_on_from
from holdfast.core.errors import Conflict, Refused
from holdfast.core.model import Batch, BatchMode, Change, Checkpoint, ItemNo, Key, Kind
from holdfast.runtime.acts import Actor, ActResult, Acts, Preview
from holdfast.runtime.define.pipeline import check_name
from holdfast.runtime.journal import forward
from holdfast.runtime.operate import state_document
from holdfast.runtime.operate.state_document import PartitionDocument
from holdfast.runtime.partitions import BEGUN, CLONED, IMPORTED, PLANTED, for_a_clone, remarks, standings
from holdfast.runtime.text import command, many
from holdfast.stores.base import Store, find_batch

_ANY = ItemNo(0)

COUNTED = 1 << 44
"""More than the grants of any chunk."""
YEAR_2024 = 1_704_067_200


@dataclass(frozen=True, slots=True, kw_only=True)
class ClonedPartition:
    """A partition of the new batch, with the checkpoint that it begins at."""

    key: Key
    payload: bytes
    checkpoint: Checkpoint
    """Its item number is set once the item exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClonePlan:
    """The plan of a new batch."""

    name: str
    pipeline: str
    definition: bytes
    seeds: tuple[ClonedPartition, ...]
    fence: int
    """The fence that every fence of the new batch is above."""
    kind: str
    """The kind of its acts: CLONED or IMPORTED."""
    origin: dict[str, Any]
    """Its origin, for the journal."""

    @property
    def digest(self) -> bytes:
        said = [[each.key, each.payload, each.checkpoint.rows, each.checkpoint.cursor, each.checkpoint.acc]
                for each in self.seeds]  # fmt: skip
        return canonical.digest(canonical.encode([self.definition, self.fence, said]))


def check_fence(store: Store, fence: int, what: str, known: int = 0) -> None:
    """Refuse a foreign fence that this store could grant again after it was set back: its own fences then restart at
    the microseconds since 2024, which is above every fence reached by counting. A fence up to `known` is fine."""
    if fence > known and fence >= max(COUNTED, (store.now() - YEAR_2024) * 1e6):
        raise Refused(f"{what}: its fence {fence:,} is too high to have come from a real batch; nothing was changed")


def check_free(store: Store, plan: ClonePlan) -> Batch | None:
    """Return the batch that a crash left half made, or None if there is none. Raises Refused if the name is taken."""
    if plan.kind == IMPORTED:
        check_fence(store, plan.fence, plan.name)
    found = find_batch(store, plan.name)
    if found is None:
        return None
    kinds: dict[str, journal.Body] = {}
    is_whole = False
    for entry in forward(store, found):
        kinds[entry.kind] = entry.body
        is_whole = is_whole or (PLANTED in kinds and entry.kind != PLANTED)
    is_empty = not found.admitted and found.course is not BatchMode.CANCELLED and not {BEGUN, PLANTED} & kinds.keys()
    if is_empty or (kinds.get(BEGUN) == _begun(plan) and not is_whole and _is_paused(found)):
        return found
    raise Refused(
        f"there is already a batch {plan.name!r}, and a state never replaces another one: choose another name, or use "
        f"`{command('cursor reset', plan.name)}`"
    )


def _is_paused(batch: Batch) -> bool:
    """Return whether the batch is still paused, as it is until it is whole. If the process was killed just before it
    opened the batch to runs, the batch has all its checkpoints and is still paused."""
    return batch.course is BatchMode.PAUSED or not batch.admitted


def plant(store: Store, plan: ClonePlan, by: Actor, notes: Sequence[journal.Acted] = ()) -> Batch:
    """Make the batch, and set every partition to its checkpoint. Called again after a crash, it does the rest."""
    check_free(store, plan)
    batch = store.open_batch(plan.name, plan.pipeline, plan.definition, actor=by.name)
    store.amend(batch.id, to_course(BatchMode.PAUSED, reason=by.reason), actor=by.name)
    store.amend(batch.id, to_note(BEGUN, _begun(plan), once=True), actor=by.name)
    items = [ingest.admit(seed.key, seed.payload) for seed in plan.seeds]
    store.add_items(batch.id, items, kind=Kind.PARTITIONS, ended=True, actor=by.name)
    _set(store, batch, plan, by)
    _check_set(store, batch, plan)
    for note in notes:
        store.amend(batch.id, to_note(plan.kind, note, once=True), actor=by.name)
    told = journal.Acted(reason=by.reason, note=canonical.encode(plan.origin))
    store.amend(batch.id, to_note(PLANTED, told, once=True), actor=by.name)
    return store.amend(batch.id, to_course(BatchMode.OPEN, reason=by.reason), actor=by.name).batch


def _set(store: Store, batch: Batch, plan: ClonePlan, by: Actor) -> None:
    """Set every partition to its checkpoint, under a fence above every fence granted for it. Partitions that were set
    before a crash are left alone."""
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


def _check_set(store: Store, batch: Batch, plan: ClonePlan) -> None:
    """Raise Conflict if another process made the same batch from a different state at the same time."""
    wanted = {canonical.key_text(seed.key): seed.checkpoint for seed in plan.seeds}
    for at in standings(store, batch):
        said = wanted.get(canonical.key_text(at.key))
        if said is None or (at.rows, at.acc) != (said.rows, said.acc) or (at.checkpoint or said).cursor != said.cursor:
            raise Conflict(
                f"batch {plan.name!r} was made by another process at the same time, from a different state: look at it "
                "before you continue"
            )


def _begun(plan: ClonePlan) -> journal.Acted:
    return journal.Acted(reason=f"{plan.kind}: in the making", note=plan.digest)


def seed_of(key: Key, payload: bytes, at: Checkpoint | None) -> ClonedPartition:
    return ClonedPartition(key=key, payload=payload, checkpoint=at if at is not None else Checkpoint(ItemNo(0), 0, b""))


def clone(store: Store, batch: Batch, new_name: str) -> ClonePlan:
    """Plan a new batch with the same definition and the same cursors, under higher fences. Known flaws of its totals
    are copied as well."""
    chunks = store.chunks(batch.id)
    known = for_a_clone(remarks(store, batch))
    seeds = tuple(seed_of(at.key, at.payload, at.checkpoint) for at in standings(store, batch))
    plan = ClonePlan(
        name=check_name(new_name, "batch"), pipeline=batch.pipeline, definition=batch.definition, seeds=seeds,
        fence=max((chunk.fence for chunk in chunks), default=0), kind=CLONED,
        origin={"cloned_from": batch.name, **({"totals": known} if known else {})},
    )  # fmt: skip
    check_free(store, plan)
    return plan


def from_state(store: Store, data: bytes, name: str, batch: str) -> ClonePlan:
    """Plan a new batch from a state that was exported, here or elsewhere."""
    state = state_document.read(data, name)
    state_document.check_key(state.partitions, name)
    seeds = tuple(seed_of(part.key, _payload(part), part.checkpoint_for(_ANY)) for part in state.partitions)
    plan = ClonePlan(
        name=check_name(batch, "batch"), pipeline=state.pipeline, definition=canonical.encode(state.definition),
        seeds=seeds, fence=state.fence, kind=IMPORTED,
        origin={"file": name, "digest": state.digest, "exported_at": state.at, "of": state.name},
    )  # fmt: skip
    check_free(store, plan)
    return plan


def _payload(part: PartitionDocument) -> bytes:
    plain = {"range": part.key, "after": part.after, "until": part.until, "rows": part.expected_rows}
    return canonical.encode(plain if part.identity is None else {**plain, "identity": part.identity})


def preview_make(store: Store, plan: ClonePlan) -> Preview:
    """Return what `make` would do. Nothing is changed."""
    rows = sum(seed.checkpoint.rows for seed in plan.seeds)
    facts = {"act": plan.kind, "partitions": len(plan.seeds), "fence_above": plan.fence, "rows": rows, **plan.origin}
    totals = plan.origin.get("totals", ())
    title = (
        f"A new batch {plan.name} would be made, with {many(len(plan.seeds), 'partition')} and {many(rows, 'row')} "
        f"already handled, under fences above {plan.fence}. It delivers the rows after these."
    )
    return Preview(
        batch=plan.name, keys=" ".join(["act", "batch", *(name for name in facts if name != "act")]),
        items=len(plan.seeds), counts={}, facts=facts, question=f"Make batch {plan.name}",
        titles=(title,),
        warning="; ".join(f"its total has a known flaw from the start: {each['text']}" for each in totals),
        nothing_to_do=False, perform=lambda by, _: make(store, plan, by),
    )  # fmt: skip


def make(store: Store, plan: ClonePlan, by: Actor, notes: Sequence[journal.Acted] = ()) -> ActResult:
    """Make the planned batch."""
    made = plant(store, plan, by, notes)
    return ActResult(kind=plan.kind, batch=made.name, changed=len(plan.seeds), noun="partition")
