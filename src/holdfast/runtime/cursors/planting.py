"""A new batch of a scan that begins in the middle: a clone, or a state that comes from elsewhere.

It is paused until every partition has its checkpoint, so that no run takes it up half made and delivers everything
again. A crash leaves it paused and noted as begun; the same command again finishes it.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core import canonical, ingest, journal
from holdfast.core.course import to_note, to_steer
from holdfast.core.cursor import go_on_from
from holdfast.core.errors import Conflict, Refused
from holdfast.core.model import Batch, Change, Checkpoint, Course, ItemNo, Key
from holdfast.runtime.acts import Acts, By
from holdfast.runtime.cursors.history import BEGUN, IMPORTED, PLANTED
from holdfast.runtime.cursors.standing import standings
from holdfast.runtime.journal import forward
from holdfast.runtime.text import command
from holdfast.stores.base import Store

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
class Plan:
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


def check_free(store: Store, plan: Plan) -> Batch | None:
    """The batch that a crash left half made; None where there is none. Raises Refused if the name is taken."""
    if plan.kind == IMPORTED:
        check_fence(store, plan.fence, plan.name)
    found = store.batch(plan.name)
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


def plant(store: Store, plan: Plan, by: By, notes: Sequence[bytes] = ()) -> Batch:
    """Make the batch, and set every partition to its checkpoint. Done again after a crash, it does what is left."""
    check_free(store, plan)
    batch = store.open_batch(plan.name, plan.pipeline, plan.definition, actor=by.actor)
    store.amend(batch.id, to_steer(Course.PAUSED, reason=by.reason, ends_at=batch.ends_at), actor=by.actor)
    store.amend(batch.id, to_note(BEGUN, _begun(plan), once=True), actor=by.actor)
    items = [ingest.admit(seed.key, seed.payload, os.urandom(canonical.SALT_BYTES)) for seed in plan.seeds]
    store.add_items(batch.id, items, ended=True, actor=by.actor)
    _set(store, batch, plan, by)
    _check_set(store, batch, plan)
    for note in notes:
        store.amend(batch.id, to_note(plan.kind, note, once=True), actor=by.actor)
    told = journal.Acted(reason=by.reason, note=canonical.encode(plan.origin))
    store.amend(batch.id, to_note(PLANTED, journal.encode_body(told), once=True), actor=by.actor)
    return store.amend(batch.id, to_steer(Course.OPEN, reason=by.reason, ends_at=batch.ends_at), actor=by.actor).batch


def _set(store: Store, batch: Batch, plan: Plan, by: By) -> None:
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


def _check_set(store: Store, batch: Batch, plan: Plan) -> None:
    """Two who make the same batch from different states at once: one of them is told so."""
    wanted = {canonical.key_text(seed.key): seed.checkpoint for seed in plan.seeds}
    for at in standings(store, batch):
        said = wanted.get(canonical.key_text(at.key))
        if said is None or (at.rows, at.acc) != (said.rows, said.acc) or (at.checkpoint or said).cursor != said.cursor:
            raise Conflict(
                f"batch {plan.name!r} was made by somebody else at the same time: look at it before you continue"
            )


def _begun(plan: Plan) -> bytes:
    return journal.encode_body(journal.Acted(reason=f"{plan.kind}: in the making", note=plan.digest))


def seed_of(key: Key, payload: bytes, at: Checkpoint | None) -> Seed:
    return Seed(key=key, payload=payload, checkpoint=at if at is not None else Checkpoint(ItemNo(0), 0, b""))
