"""What is stuck and since when: items without progress, items left in a cancelled batch, dead letters nobody answers.

Chunks of which no item can be stuck are passed over without reading one; the rest is read in pages, so memory stays
flat however many there are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.core import money
from holdfast.core import orphans as core
from holdfast.core.model import Batch, Chunk, Key, Place, State, StoredItem
from holdfast.core.orphans import Kind
from holdfast.runtime import lookup
from holdfast.runtime.stuck.activity import Activity
from holdfast.runtime.stuck.burials import Burials, families
from holdfast.runtime.stuck.grants import IsDead, last_grant
from holdfast.runtime.stuck.patience import Patience
from holdfast.stores import owners
from holdfast.stores.base import Store, each_item


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """One item that waits for a person."""

    batch: str
    n: int
    key: Key
    stage: str
    kind: Kind
    since: float
    """Since when it stands still: its last progress, the end of its wait, or the last that was written in its batch;
    of a dead letter, when it was buried."""
    owner: str
    """Who has it, or had it last; empty where nobody ever did."""
    is_held: bool
    """Whether that owner is alive, under a lease that has not ended."""
    place: Place
    chunk: int
    was_begun: bool = True
    """Whether anybody ever took it."""

    @property
    def error(self) -> str:
        """Its last error, as far as its place tells."""
        place = self.place
        return f"{place.code}: {place.reason}" if place.code and place.reason != place.code else place.code

    def as_dict(self) -> dict[str, Any]:
        return {
            "batch": self.batch, "key": self.key, "n": self.n, "stage": self.stage, "kind": self.kind.value,
            "since": self.since, "owner": self.owner, "held": self.is_held, "error": self.error,
            "attempts": self.place.attempt, "epoch": self.place.epoch, "requeues": self.place.requeues,
            "begun": self.was_begun, "usd": format(money.to_usd(self.place.spent), "f"),
        }  # fmt: skip


def find(store: Store, batch: Batch, *, is_dead: IsDead = owners.is_dead) -> Iterator[Orphan]:
    """Everything in the batch that is stuck, in the order of the items of each chunk."""
    eye = Eye(store, batch, is_dead=is_dead)
    for family in families(eye.chunks):
        yield from eye.look(family)


class Eye:
    """Looks at a batch as it stands at one moment."""

    def __init__(self, store: Store, batch: Batch, *, is_dead: IsDead = owners.is_dead) -> None:
        self._store, self._batch = store, batch
        self.now, self.chunks = store.now(), store.chunks(batch.id)
        self._activity = Activity.of(store, batch, self.chunks, now=self.now, is_dead=is_dead)
        self._patience = Patience.of(batch)
        self._names = lookup.stage_names(batch)
        self._burials = Burials(store, batch)

    def look(self, family: list[Chunk]) -> Iterator[Orphan]:
        """What is stuck in some chunks of one family."""
        buried: dict[int, float] | None = None
        for chunk in family:
            if chunk.pending:
                yield from self._pending(chunk)
            if chunk.counts.dead and self._may_be_unanswered():
                buried = self._burials.of(family) if buried is None else buried
                yield from self._dead(chunk, buried)

    def at(self, item: StoredItem) -> Orphan | str:
        """One item; as text, why it is not stuck."""
        family = next(f for f in families(self.chunks) if any(c.lo <= item.n < c.hi for c in f))
        chunk = next(c for c in family if c.lo <= item.n < c.hi)
        if item.place.state is State.DEAD:
            at = self._buried_at(item, self._burials.of(family))
            found = self._judge(item, chunk, core.Facts(state=State.DEAD, progressed_at=at), "")
            return found if found is not None else "a dead letter: see `holdfast dead`"
        if item.place.state is not State.PENDING:
            return f"{item.place.state}, not pending"
        found = self._judge(item, chunk, self._activity.facts(chunk, item.place), self._owner(chunk))
        return found if found is not None else "not an orphan: it, or its batch, made progress within the grace period"

    def _pending(self, chunk: Chunk) -> Iterator[Orphan]:
        if self._kind(self._activity.facts(chunk)) is None:
            return
        owner = self._owner(chunk)
        for item in each_item(self._store, self._batch.id, state=State.PENDING, lo=chunk.lo, hi=chunk.hi):
            found = self._judge(item, chunk, self._activity.facts(chunk, item.place), owner)
            if found is not None:
                yield found

    def _dead(self, chunk: Chunk, buried: dict[int, float]) -> Iterator[Orphan]:
        for item in each_item(self._store, self._batch.id, state=State.DEAD, lo=chunk.lo, hi=chunk.hi):
            facts = core.Facts(state=State.DEAD, progressed_at=self._buried_at(item, buried))
            found = self._judge(item, chunk, facts, "")
            if found is not None:
                yield found

    def _buried_at(self, item: StoredItem, buried: dict[int, float]) -> float:
        at = buried.get(item.n)
        return self._burials.admitted_at(item.n) if at is None else at

    def _may_be_unanswered(self) -> bool:
        return self.now - self._batch.opened_at > self._patience.dead_after

    def _owner(self, chunk: Chunk) -> str:
        """Who has the chunk, or had it last."""
        if chunk.owner is not None:
            return chunk.owner
        grant = last_grant(self._store, chunk)
        return "" if grant is None else grant.owner

    def _kind(self, facts: core.Facts) -> Kind | None:
        grace, dead_after = self._patience.orphan_after, self._patience.dead_after
        return core.judge(facts, now=self.now, grace=grace, dead_after=dead_after)

    def _judge(self, item: StoredItem, chunk: Chunk, facts: core.Facts, owner: str) -> Orphan | None:
        kind = self._kind(facts)
        if kind is None:
            return None
        return Orphan(
            batch=self._batch.name,
            n=item.n,
            key=item.key,
            stage=lookup.stage_title(self._names, item.place.stage),
            kind=kind,
            since=facts.progressed_at if kind is Kind.UNANSWERED else core.still_since(facts),
            owner=owners.short(owner),
            is_held=facts.is_held,
            place=item.place,
            chunk=chunk.id,
            was_begun=core.begun(chunk, item.place),
        )
