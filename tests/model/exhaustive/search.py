"""Two workers and a store: what can happen next in the whole world, put together from what its parts can do."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from tests.model.exhaustive.breadth import Breadth, Explored
from tests.model.exhaustive.hand import Phase
from tests.model.exhaustive.moves import Moves
from tests.model.exhaustive.scope import Scope

World = tuple[int, int, int, int, int]
"""A store, two workers in the order of their numbers, the letters on their way, an operator: each by its number."""
FIRST: World = (0, 0, 0, 0, 0)
WORKERS = ("ann", "bob")


def explore(scope: Scope, most: int = 10_000_000) -> Explored:
    """See every state of a small world, up to `most`. Raises Counterexample with the shortest story."""
    return _Search(scope).run(most)


class _Next(NamedTuple):
    """One thing that can happen next in the whole world."""

    who: int
    """The worker that does it; 2 for an operator, the post, or time."""
    told: str
    normal: bool
    world: World
    crossed: bool
    """The workers changed places, because they stand in the order of their numbers."""


class _Known(NamedTuple):
    """What of a worker matters beside its number."""

    waits_for: int
    """The letter whose reply it would hear; -1 for none."""
    asks_for: int
    """The letter that it may ask the store for."""
    may_send: bool


class _Memo(dict[Any, Any]):
    """Answers by arguments, each worked out once."""

    def __init__(self, work_out: Callable[..., Any]) -> None:
        self._work_out = work_out

    def __missing__(self, key: tuple[Any, ...]) -> Any:
        answer = self[key] = self._work_out(*key)
        return answer


class _Search(Breadth[World]):
    """One search, with everything that was worked out on the way."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(FIRST)
        self.moves = moves = Moves(scope)
        self.capacity = scope.letters
        self.of_worker = _Memo(moves.of_worker)
        self.of_operator = _Memo(moves.of_operator)
        self.overtaken = _Memo(moves.overtaken)
        self.outdated = _Memo(moves.outdated)
        self.answered = _Memo(moves.answered)
        self.delivered = _Memo(moves.delivered)
        self.without = _Memo(moves.without)
        self.posted = _Memo(moves.posted)
        self.sent = _Memo(moves.sent)
        self.forget = _Memo(moves.shelf.forget)
        self.expiries = _Memo(moves.shelf.expiries)
        self.known = _Memo(self._known)
        self.letters = _Memo(self._letters)

    def is_finished(self, world: World) -> bool:
        return self.moves.shelf.finished[world[0]]

    def stores(self) -> int:
        return len(self.moves.shelf.finished)

    def trying(self) -> str:
        return self.moves.trying

    # -- what can happen next ------------------------------------------------------------------------------------

    def next(self, world: World) -> list[_Next]:
        """Everything that can happen in a world."""
        store, one, other, post, desk = world
        found: list[_Next] = []
        self._work(found, world, 0, one, other)
        if one != other:
            self._work(found, world, 1, other, one)
        if post:
            self._post(found, world)
        for after, chunk in self.expiries[store,]:
            told = f"the lease of chunk {chunk} expires"
            found.append(_Next(2, told, True, (after, one, other, post, desk), False))
        for told, normal, after, part, raised, _ in self.of_operator[store, desk]:
            first, second, letters = one, other, post
            if raised is not None:
                first, second = self.overtaken[one, raised], self.overtaken[other, raised]
                letters = self.outdated[post, raised]
            found.append(_in_order(2, f"the operator {told}", normal, after, first, second, letters, part))
        return found

    def _work(self, found: list[_Next], world: World, who: int, own: int, other: int) -> None:
        """What one of the workers may do."""
        store, _, _, post, desk = world
        letters = self.letters[post,]
        for told, normal, after, part, raised, freed in self.of_worker[store, own]:
            beside, on_their_way = other, post
            if raised is not None:
                beside, on_their_way = self.overtaken[other, raised], self.outdated[post, raised]
            known = after if freed < 0 or freed in letters else self.forget[after, freed]
            found.append(_in_order(who, told, normal, known, part, beside, on_their_way, desk))
        if self.known[own,].may_send and len(letters) < self.capacity:
            name = _unused(letters, self.known[other,].asks_for)
            part, letter = self.sent[own, name]
            after_it = self.posted[post, letter]
            found.append(_in_order(who, "sends its commit", True, store, part, other, after_it, desk))

    def _post(self, found: list[_Next], world: World) -> None:
        """A letter arrives, arrives and comes again, or is lost."""
        store, one, other, post, desk = world
        known = self.known[one,], self.known[other,]
        for name, letter in self.letters[post,].items():
            rest = self.without[post, letter]
            after, landed = self.delivered[store, letter]
            first, second = one, other
            if known[0].waits_for == name:
                first = self.answered[after, one, landed]
            elif known[1].waits_for == name:
                second = self.answered[after, other, landed]
            asked_for = name in (self.known[first,].asks_for, self.known[second,].asks_for)
            said = "lands" if landed else "is refused"
            told = f"a commit arrives and {said}"
            gone = after if asked_for else self.forget[after, name]
            found.append(_in_order(2, told, True, gone, first, second, rest, desk))
            told = f"a commit arrives and {said}; it will come again"
            found.append(_in_order(2, told, False, after, first, second, post, desk))
            asked_for = name in (known[0].asks_for, known[1].asks_for)
            gone = store if asked_for else self.forget[store, name]
            found.append(_in_order(2, "a commit is lost on its way", False, gone, one, other, rest, desk))

    def _known(self, number: int) -> _Known:
        hand = self.moves.hands.values[number]
        waits_for = hand.letter if hand.phase is Phase.WAITING else -1
        return _Known(waits_for, hand.letter, self.moves.may_send(number))

    def _letters(self, post: int) -> dict[int, int]:
        return {self.moves.letters.values[letter].name: letter for letter in self.moves.posts.values[post]}

    def tell(self, way: Sequence[World]) -> list[str]:
        names, told = WORKERS, []
        for before, after in pairwise(way):
            move = next(each for each in self.next(before) if each.world == after)
            told.append(f"{names[move.who]} {move.told}" if move.who < 2 else move.told)
            names = (names[1], names[0]) if move.crossed else names
        return told


def _in_order(who: int, told: str, normal: bool, store: int, own: int, other: int, post: int, desk: int) -> _Next:
    """The world with its workers in the order of their numbers; `own` is the first of them, unless `who` is 1."""
    if own == other:
        return _Next(who, told, normal, (store, own, own, post, desk), False)
    if own < other:
        return _Next(who, told, normal, (store, own, other, post, desk), who == 1)
    return _Next(who, told, normal, (store, other, own, post, desk), who != 1)


def _unused(letters: dict[int, int], asked_for: int) -> int:
    """The smallest name that no letter has."""
    name = 0
    while name in letters or name == asked_for:
        name += 1
    return name
