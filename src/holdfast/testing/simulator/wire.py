"""The way between a worker and the store, where commits and replies get lost, come late, or come twice."""

from collections.abc import Generator, Sequence
from contextlib import suppress

from holdfast.core.errors import StoreError, StoreUnavailable
from holdfast.core.model import Commit
from holdfast.stores.base import Receipt, Store, has_landed
from holdfast.testing.replay import Violation
from holdfast.testing.simulator.plan import LEASE
from holdfast.testing.simulator.world import World

Reply = Generator[float, None, list[Receipt] | None]
"""What comes back: the receipts, or None when no reply ever came."""


class Wire:
    """Carries commits to the store."""

    def __init__(self, world: World, store: Store) -> None:
        self.world, self.store = world, store
        self._sent: set[bytes] = set()
        """Commits of which nobody said what became of them."""

    def send(self, who: str, commits: Sequence[Commit]) -> Reply:
        """Send the commits; nobody can tell from silence what became of them."""
        self.world.ranges.sent.update((commit.id, commit) for commit in commits if commit.checkpoints)
        if not self.world.loses_commits:
            return (yield from self._carry(who, commits))
        world, plan = self.world, self.world.plan
        if world.goes_wrong(plan.unsent):
            late = world.chance() * 4 * LEASE
            if late < 3 * LEASE:
                world.begin(lambda: self.deliver("late", commits), late)
            world.say(who, "hears nothing: the commit did not arrive", *map(_told, commits))
            world.counts["commits late or lost"] += 1
            yield 1.0 + world.chance() * 5
            return None
        yield 0.005
        receipts = self.deliver(who, commits)
        if world.goes_wrong(plan.doubled):
            world.begin(lambda: self.deliver("twice", commits), world.chance() * 2 * LEASE)
            world.counts["commits doubled"] += 1
        if world.goes_wrong(plan.unheard):
            world.say(who, "hears nothing: the reply was lost")
            world.counts["replies lost"] += 1
            yield 1.0 + world.chance() * 5
            return None
        yield world.chance() * 2 * LEASE if world.goes_wrong(plan.slow_reply) else 0.005
        return receipts

    def _carry(self, who: str, commits: Sequence[Commit]) -> Reply:
        """To a store that loses requests itself: what it cannot say is as good as no reply."""
        world = self.world
        yield 0.005
        try:
            receipts = self.deliver(who, commits)
        except StoreError as error:
            if isinstance(error, StoreUnavailable) and self._sent.isdisjoint(commit.id for commit in commits):
                for commit in commits:
                    world.check_denied(who, commit)
            self._sent.update(commit.id for commit in commits)
            world.say(who, f"cannot tell what became of {', '.join(map(_told, commits))}: {error}")
            world.counts["commits unknown"] += 1
            yield 1.0 + world.chance() * 5
            return None
        yield 0.005
        if world.goes_wrong(world.plan.doubled):
            with suppress(StoreError):
                receipts = self.deliver("twice", commits)
        return receipts

    def asked(self, commit: Commit) -> bool:
        """What the store says of a commit whose reply never came; no answer is no yes."""
        try:
            return self.landed(commit)
        except StoreError:
            return False

    def landed(self, commit: Commit) -> bool:
        """Ask the store what became of a commit. It must remember what it answered."""
        landed = has_landed(self.store, commit)
        if landed or self.world.loses_commits:
            self.world.check_told(commit, landed=landed)
        if landed:
            self.world.landed.add(commit.id)
        return landed

    def deliver(self, who: str, commits: Sequence[Commit]) -> list[Receipt]:
        world = self.world
        sealed = world.sealed
        receipts = self.store.commit(commits)
        world.check_budget(with_reservations=False)
        world.changed()
        for commit, receipt in zip(commits, receipts, strict=True):
            if world.trace is not None:
                world.say(who, "commits", _told(commit), "→", "landed" if receipt.landed else receipt.reason)
            world.counts["commits landed" if receipt.landed else "commits refused"] += 1
            if receipt.landed:
                if sealed is not None and sealed is world.sealed and commit.id not in world.landed:
                    raise Violation(f"{_told(commit)} was taken after the batch was sealed")
                world.landed.add(commit.id)
            elif commit.id in world.landed:
                raise Violation(f"the store took {_told(commit)} and now says it is {receipt.reason}")
        return receipts


def _told(commit: Commit) -> str:
    moved = [f"{o.n}@{o.stage}" for o in commit.outputs] + [f"{m.n}:{m.place.state}" for m in commit.moves]
    moved += [f"{at.n}→row {at.rows}" for at in commit.checkpoints]
    end = " release" if commit.release else ""
    return f"chunk {commit.chunk} fence {commit.fence} version {commit.version} [{' '.join(moved)}]{end}"
