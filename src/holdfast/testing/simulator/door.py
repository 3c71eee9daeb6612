"""The way of one process to the bucket: requests that are lost, late or doubled, replies that are lost or lie, and
others who get in between."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from holdfast.core.errors import StoreUnavailable
from holdfast.stores.buckets.base import Found, ListedObject, ObjectMark, WriteLost, WriteUnknown
from holdfast.testing.simulator.plan import LEASE, Plan
from holdfast.testing.simulator.vault import Vault


class Surroundings(Protocol):
    """What a door needs of its world."""

    plan: Plan
    chance: Callable[[], float]

    def goes_wrong(self, rate: float) -> bool: ...

    def begin(self, actor: Callable[[], object], after: float = 0.0) -> None: ...

    def meanwhile(self, door: "Door") -> None: ...

    def trouble(self, door: "Door", what: str, name: str) -> None: ...


class Door:
    """A bucket as one process sees it."""

    url = "memory-bucket:"

    def __init__(self, world: Surroundings, vault: Vault, who: str) -> None:
        self.who = who
        self.is_quiet = True
        """Whether everything goes well."""
        self.process: Any = None
        """The process whose door it is; None for people."""
        self.late: dict[bytes, tuple[str, ObjectMark | None]] = {}
        """What is on its way and may land yet."""
        self._world, self._vault = world, vault

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
        """Nothing to let go of."""

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
        """What was read may be old when it arrives."""
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
                world.trouble(self, "hears nothing of", name)
                raise WriteUnknown(f"{name}: the reply was lost") from None
            raise
        if world.goes_wrong(plan.doubled):
            world.trouble(self, "sends twice", name)
            if world.chance() < 0.5:
                raise WriteLost(f"{name}: someone else was first")  # it was we: the second copy met the first
            world.begin(lambda: self._arrive(name, data, mark), world.chance() * 2 * LEASE)
        if world.goes_wrong(plan.unheard):
            world.trouble(self, "hears nothing of", name)
            raise WriteUnknown(f"{name}: the reply was lost")
        self._wait()
        return landed

    def _unsent(self, name: str, data: bytes, mark: ObjectMark | None) -> Exception:
        """It never arrives, and that is known or not; or it arrives late."""
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
