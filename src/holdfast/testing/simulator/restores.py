"""Worlds in which the store is set back while processes work: a restored copy, or a standby that lacks the last writes.

Whatever was acknowledged since the copy is gone, and the store does not know it: it hands out fences and versions a
second time. That work is lost, and done again. A process from before must still never get its work into the record
under the name of another: every entry of an owner was sent by that owner, under that grant.
"""

from typing import Any

import msgspec

from holdfast.core import journal
from holdfast.core.model import Claim, Commit, Item, Lease, Receipt, State
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing.replay import EVERYTHING, Violation, compare, replay
from holdfast.testing.simulator.plan import LEASE, WorldPlan, draw
from holdfast.testing.simulator.world import Behavior, Effect, World

KEPT = (
    *("_batches", "_chunks", "_items", "_numbers", "_places", "_outputs", "_checkpoints", "_entries", "_noted"),
    "_events",
)
"""Everything that a memory store holds, except which receiver has what."""


def copy_of(store: MemoryStore) -> dict[str, Any]:
    """Return a copy of everything in a memory store."""
    return {name: _copied(getattr(store, name)) for name in KEPT}


def set_back(store: MemoryStore, copy: dict[str, Any]) -> None:
    """Put a copy in the place of what a memory store holds."""
    for name, value in copy.items():
        setattr(store, name, _copied(value))


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    return type(value)(value) if isinstance(value, list | set) else value


def draw_restored(seed: int) -> WorldPlan:
    """Return the plan of a seed for such a world: with zombies, and without what compares the store with the past."""
    plan = draw(seed)
    return msgspec.structs.replace(
        plan, cap=None, tolerance=None, seals=0.0, cancel=0.0, halts=0.0, stuck=0.0, checks=0.0, lost=0.0,
        adopts=False, watched=False, every=0, lengths=(), messages=0, outages=(), processes=False, fatal=None,
        killer=None, crash=0.0, quick=0.0, time=0.0, chunks=1, rule=None, pause=max(plan.pause, 0.02),
        unsent=max(plan.unsent, 0.1),
    )  # fmt: skip


class RecordingStore:
    """The store as one process sees it; who sent which commit is remembered."""

    def __init__(self, world: "RestoredWorld", who: str) -> None:
        self._world, self._who = world, who

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world.store, name)

    def commit(self, commits: list[Commit]) -> list[Receipt]:
        for commit in commits:
            self._world.senders[commit.id] = (self._who, commit.grant)
        return self._world.store.commit(commits)

    def renew(self, leases: list[Lease], seconds: float) -> list[Lease]:
        kept = self._world.store.renew(leases, seconds)
        for lease in kept:
            (chunk,) = [c for c in self._world.store.chunks(self._world.batch.id) if c.id == lease.chunk]
            if chunk.grant != lease.grant:
                raise Violation(f"{self._who} renewed a lease of another grant than its own")
        return kept


class RestoredWorld(World):
    """A world whose store is set back now and then."""

    def __init__(self, plan: WorldPlan, store: MemoryStore, trace: list[str] | None = None) -> None:
        self.senders: dict[bytes, tuple[str, bytes]] = {}
        """Commit -> the process that sent it, and its grant."""
        self.owners: dict[bytes, str] = {}
        """Grant -> its owner."""
        self.kept = store
        super().__init__(plan, lambda clock, is_dead: _connected(store, clock, is_dead), trace)

    def connect(self, process: Any) -> Store:
        found: Any = RecordingStore(self, process.name)
        return found  # type: ignore[no-any-return]

    def others(self) -> list[Behavior]:
        return [self._restorer()]

    def _restorer(self) -> Behavior:
        """Make a copy once the source was read, let things happen, and put the copy back."""
        while self.ingesting:
            yield 2.0
        while self.faulty:
            yield self.chance() * LEASE / 2
            copy = copy_of(self.kept)
            yield self.chance() * 2 * LEASE
            if not self.goes_wrong(1.0):
                return
            set_back(self.kept, copy)
            self.counts["restores"] += 1
            self.say("restorer", "sets the store back")
            chains = [chunk.id for chunk in self.store.chunks(self.batch.id)]
            entries = [entry for chain in chains for entry in self.store.entries(chain, limit=EVERYTHING)]
            self.landed = {journal.decode_header(entry.head).commit_id for entry in entries} - {b""}

    def _check_fences(self, claim: Claim, fence: int) -> None:
        """Check that no grant is handed out twice; fences may be, because the store was set back."""
        if claim.lease.grant in self.owners:
            raise Violation(f"grant {claim.lease.grant.hex()} was handed out twice")
        self.owners[claim.lease.grant] = claim.lease.owner

    def about_to_run(self, item: Item, now: float) -> Effect:
        """Count the run; an item may be beyond its checkpoint, which was set back."""
        effect = (int(item.n), item.place.stage, item.place.epoch)
        self.runs[effect] += 1
        return effect

    def is_seized(self, claim: Claim) -> bool:
        """Return whether a process may lose a chunk without a fault of its own: any may, once the store was set
        back."""
        return self.counts["restores"] > 0 or super().is_seized(claim)

    def check_told(self, commit: Commit, *, landed: bool) -> None:
        """Check nothing: a commit that landed may have been set back."""

    def check(self) -> None:
        """Check the record, that every entry is from its sender, and that everything is settled in the end."""
        story = replay(self.store, self.batch.id, self.plan.policies)
        compare(self.store, self.batch.id, story)
        for chunk in self.store.chunks(self.batch.id):
            for entry in self.store.entries(chunk.id, limit=EVERYTHING):
                header = journal.decode_header(entry.head)
                sent = self.senders.get(header.commit_id)
                if sent is not None and sent != (header.actor, header.grant):
                    raise Violation(f"a commit of {sent[0]} was booked to {header.actor}, who had the same fence")
        if waiting := [n for n, told in story.items.items() if told.state is State.PENDING]:
            raise Violation(f"items {waiting} were never settled")
        self.counts["items"] += len(story.items)


def _connected(store: MemoryStore, clock: Any, is_dead: Any) -> Store:
    store.now, store._is_dead = clock, is_dead
    return store
