"""Connections to a store, where requests and replies get lost, come late or come twice: for commits, and to a
bucket."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.core.errors import StoreError, StoreUnavailable
from holdfast.core.model import Commit, Receipt
from holdfast.stores.base import Store, has_landed
from holdfast.stores.buckets.base import Found, ListedObject, ObjectMark, WriteLost, WriteUnknown
from holdfast.testing.replay import Violation
from holdfast.testing.simulator.plan import LEASE, WorldPlan
from holdfast.testing.simulator.world import World

if TYPE_CHECKING:
    from holdfast.testing.simulator.bucket import WatchedBucket


Reply = Generator[float, None, list[Receipt] | None]
"""The reply: the receipts, or None if no reply ever came."""


class CommitConnection:
    """A connection that carries commits to the store."""

    def __init__(self, world: World, store: Store) -> None:
        self.world, self.store = world, store
        self._sent: set[bytes] = set()
        """Commits whose result is unknown."""

    def send(self, who: str, commits: Sequence[Commit]) -> Reply:
        """Send the commits; without a reply, their result is unknown."""
        self.world.ranges.sent.update((commit.id, commit) for commit in commits if commit.checkpoints)
        if not self.world.loses_commits:
            return (yield from self._carry(who, commits))
        world, plan = self.world, self.world.plan
        if world.goes_wrong(plan.unsent):
            late = world.chance() * 4 * LEASE
            if late < 3 * LEASE:
                world.begin(lambda: self.deliver("late", commits), late)
            world.say(who, "gets no reply: the commit did not arrive", *map(_told, commits))
            world.counts["commits late or lost"] += 1
            yield 1.0 + world.chance() * 5
            return None
        yield 0.005
        receipts = self.deliver(who, commits)
        if world.goes_wrong(plan.doubled):
            world.begin(lambda: self.deliver("twice", commits), world.chance() * 2 * LEASE)
            world.counts["commits doubled"] += 1
        if world.goes_wrong(plan.unheard):
            world.say(who, "gets no reply: the reply was lost")
            world.counts["replies lost"] += 1
            yield 1.0 + world.chance() * 5
            return None
        yield world.chance() * 2 * LEASE if world.goes_wrong(plan.slow_reply) else 0.005
        return receipts

    def _carry(self, who: str, commits: Sequence[Commit]) -> Reply:
        """Send commits to a store that loses requests itself: an unknown result counts as no reply."""
        world = self.world
        yield 0.005
        try:
            receipts = self.deliver(who, commits)
        except StoreError as error:
            if isinstance(error, StoreUnavailable) and self._sent.isdisjoint(commit.id for commit in commits):
                for commit in commits:
                    world.check_denied(who, commit)
            self._sent.update(commit.id for commit in commits)
            world.say(who, f"does not know the result of {', '.join(map(_told, commits))}: {error}")
            world.counts["commits unknown"] += 1
            yield 1.0 + world.chance() * 5
            return None
        yield 0.005
        if world.goes_wrong(world.plan.doubled):
            with suppress(StoreError):
                receipts = self.deliver("twice", commits)
        return receipts

    def asked(self, commit: Commit) -> bool:
        """Return whether the store knows a commit whose reply never came; no answer counts as no."""
        try:
            return self.landed(commit)
        except StoreError:
            return False

    def landed(self, commit: Commit) -> bool:
        """Ask the store for the result of a commit. It must remember its answer."""
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
                raise Violation(f"the store took {_told(commit)} but now says it is {receipt.reason}")
        return receipts


def _told(commit: Commit) -> str:
    moved = [f"{o.n}@{o.stage}" for o in commit.outputs] + [f"{m.n}:{m.place.state}" for m in commit.moves]
    moved += [f"{at.n}→row {at.rows}" for at in commit.checkpoints]
    end = " release" if commit.release else ""
    return f"chunk {commit.chunk} fence {commit.fence} version {commit.version} [{' '.join(moved)}]{end}"


class NetworkWorld(Protocol):
    """The methods that a connection needs of its world."""

    plan: WorldPlan
    chance: Callable[[], float]

    def goes_wrong(self, rate: float) -> bool: ...

    def begin(self, actor: Callable[[], object], after: float = 0.0) -> None: ...

    def meanwhile(self, connection: "BucketConnection") -> None: ...

    def trouble(self, connection: "BucketConnection", what: str, name: str) -> None: ...


class BucketConnection:
    """A bucket as one process sees it."""

    url = "memory-bucket:"

    def __init__(self, world: NetworkWorld, bucket: "WatchedBucket", who: str) -> None:
        self.who = who
        self.is_quiet = True
        """True if everything succeeds."""
        self.process: Any = None
        """The process that uses the connection; None for operators."""
        self.late: dict[bytes, tuple[str, ObjectMark | None]] = {}
        """Requests in transit that may still land."""
        self._world, self._vault = world, bucket

    def get(self, name: str) -> Found | None:
        self._ask("get", name)
        found = self._vault.get(name)
        self._wait()
        return found

    def part(self, name: str, start: int, length: int) -> bytes | None:
        self._ask("part", name)
        found = self._vault.get(name)
        return None if found is None else found.data[start : start + length]

    def list(self, prefix: str, after: str = "", *, etags: bool = True) -> Iterator[ListedObject]:
        self._ask("list", prefix)
        found = self._vault.list(prefix, after)
        self._wait()
        return found

    def delete(self, name: str) -> None:
        self._vault.delete(name)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def create(self, name: str, data: bytes) -> ObjectMark:
        return self._write(name, data, None)

    def replace(self, name: str, data: bytes, mark: ObjectMark) -> ObjectMark:
        return self._write(name, data, mark)

    # -- what goes wrong ----------------------------------------------------------------------------------------

    def _ask(self, verb: str, name: str) -> None:
        if self.is_quiet:
            return
        world = self._world
        world.meanwhile(self)
        if world.goes_wrong(world.plan.unsent / 4):
            world.trouble(self, f"cannot {verb}", name)
            raise StoreUnavailable("the bucket cannot be reached")

    def _wait(self) -> None:
        """Let time pass: a read may be outdated when it arrives."""
        if not self.is_quiet:
            self._world.meanwhile(self)

    def _write(self, name: str, data: bytes, mark: ObjectMark | None) -> ObjectMark:
        if self.is_quiet:
            return self._put(name, data, mark)
        world, plan = self._world, self._world.plan
        world.meanwhile(self)
        if world.goes_wrong(plan.unsent):
            raise self._unsent(name, data, mark)
        try:
            landed = self._put(name, data, mark)
        except WriteLost:
            if world.goes_wrong(plan.unheard):
                world.trouble(self, "gets no reply about", name)
                raise WriteUnknown(f"{name}: the reply was lost") from None
            raise
        if world.goes_wrong(plan.doubled):
            world.trouble(self, "sends twice", name)
            if world.chance() < 0.5:
                raise WriteLost(f"{name}: another process was first")  # in fact ours: the second copy met the first
            world.begin(lambda: self._arrive(name, data, mark), world.chance() * 2 * LEASE)
        if world.goes_wrong(plan.unheard):
            world.trouble(self, "gets no reply about", name)
            raise WriteUnknown(f"{name}: the reply was lost")
        self._wait()
        return landed

    def _unsent(self, name: str, data: bytes, mark: ObjectMark | None) -> Exception:
        """Return the error for a request that never arrives, whether known or not, or that arrives late."""
        world = self._world
        luck = world.chance()
        if luck < 0.3:
            world.trouble(self, "cannot send", name)
            return StoreUnavailable("the bucket cannot be reached")
        if luck < 0.7:
            self.late[data] = (name, mark)
            world.begin(lambda: self._arrive(name, data, mark), world.chance() ** 2 * 2 * LEASE)
        world.trouble(self, "does not know whether it sent", name)
        return WriteUnknown(f"{name}: no answer")

    def _arrive(self, name: str, data: bytes, mark: ObjectMark | None) -> None:
        self.late.pop(data, None)
        try:
            self._put(name, data, mark)
        except WriteLost:
            return
        self._world.trouble(self, "late: wrote", name)

    def _put(self, name: str, data: bytes, mark: ObjectMark | None) -> ObjectMark:
        return self._vault.put(name, data, mark, self.who)
