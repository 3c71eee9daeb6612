"""Breadth first through everything that can happen, so that the first thing found wrong has the shortest story."""

from array import array
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from holdfast.core.errors import HoldfastError

W = TypeVar("W")


class Counterexample(AssertionError):
    """Something that must not happen can; the message tells the shortest way to it."""

    def __init__(self, why: str, story: list[str]) -> None:
        told = "\n".join(f"  {number:2}. {line}" for number, line in enumerate(story, start=1))
        super().__init__(f"{why}\nafter {len(story)} moves:\n{told}")
        self.why, self.length = why, len(story)


class Explored(msgspec.Struct, frozen=True, kw_only=True):
    """A small world, as far as it was seen."""

    states: int
    moves: int
    stores: int
    """Different states of the store among them."""
    deepest: int
    """The most moves that any state is away from the first."""
    finished: int
    """States in which every item is settled."""
    complete: bool
    """Whether there was nothing left to see."""


class Happening(Protocol):
    """Something that can happen next."""

    @property
    def told(self) -> str: ...

    @property
    def normal(self) -> bool:
        """Whether it needs nothing to go wrong."""
        ...

    @property
    def world(self) -> Any: ...


class Breadth(Generic[W]):
    """One search. Who knows the world says what can follow, and which worlds are finished."""

    def __init__(self, first: W) -> None:
        self.first = first
        self.seen: dict[W, int] = {first: 0}
        self.came_from = array("I", [0])
        self.onward = array("I")
        """Where normal moves lead, world after world."""
        self.ends = array("I")

    def next(self, world: W) -> Sequence[Happening]:
        """Everything that can happen in a world. Raises where something must not."""
        raise NotImplementedError

    def is_finished(self, world: W) -> bool:
        raise NotImplementedError

    def stores(self) -> int:
        """How many different stores were met."""
        raise NotImplementedError

    def trying(self) -> str:
        """What was being worked out: the last line of the story where it goes wrong."""
        return ""

    def tell(self, way: Sequence[W]) -> list[str]:
        """The story of a way from the first world on."""
        pairs = pairwise(way)
        return [next(each for each in self.next(before) if each.world == after).told for before, after in pairs]

    # -- the search ---------------------------------------------------------------------------------------------

    def run(self, most: int) -> Explored:
        queue: deque[W] = deque([self.first])
        at, moves, deepest, level_ends = -1, 0, -1, 0
        while queue and len(self.seen) < most:
            world = queue.popleft()
            at += 1
            if at == level_ends:
                deepest, level_ends = deepest + 1, len(self.seen)
            try:
                following = self.next(world)
            except (AssertionError, HoldfastError) as error:
                last = [self.trying()] if self.trying() else []
                raise Counterexample(str(error), self.story(world) + last) from error
            moves += len(following)
            self._take_in(following, at, queue)
        if not queue:
            self.check_progress()
        return Explored(
            states=len(self.seen),
            moves=moves,
            stores=self.stores(),
            deepest=deepest,
            finished=sum(map(self.is_finished, self.seen)),
            complete=not queue,
        )

    def _take_in(self, following: Sequence[Happening], at: int, queue: deque[W]) -> None:
        seen, onward = self.seen, self.onward
        for each in following:
            world = each.world
            number = seen.setdefault(world, len(seen))
            if number == len(self.came_from):
                self.came_from.append(at)
                queue.append(world)
            if each.normal:
                onward.append(number)
        self.ends.append(len(onward))

    def check_progress(self) -> None:
        """From every world, normal moves lead to one in which every item is settled."""
        ends, onward = self.ends, self.onward
        hopeful = bytearray(map(self.is_finished, self.seen))
        grown = True
        while grown:
            grown = False
            for number in range(len(hopeful) - 1, -1, -1):
                if not hopeful[number]:
                    begin = ends[number - 1] if number else 0
                    for after in onward[begin : ends[number]]:
                        if hopeful[after]:
                            hopeful[number] = grown = True
                            break
        stuck = hopeful.find(0)
        if stuck >= 0:
            world = next(each for each, number in self.seen.items() if number == stuck)
            raise Counterexample("from here no item can come to its end any more", self.story(world))

    def story(self, world: W) -> list[str]:
        """The shortest way to a world."""
        worlds, way = list(self.seen), [self.seen[world]]
        while way[-1]:
            way.append(self.came_from[way[-1]])
        return self.tell([worlds[number] for number in reversed(way)])
