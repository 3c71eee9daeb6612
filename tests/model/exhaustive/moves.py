"""What can happen next: the moves of a worker, of the post, of the clock and of an operator.

Each is worked out once for each state of the part of the world that it depends on, by the real core and the real
memory store; the search then puts the parts together.
"""

from typing import Generic, NamedTuple, TypeVar

import msgspec

from holdfast.core.acts import change_of, requeued
from holdfast.core.limits import REQUEUES
from holdfast.core.model import Act, BatchId, BatchMode, Change, Commit, ItemState, State, StoredItem
from holdfast.core.states import Transition, move
from holdfast.testing.replay import Violation
from tests.model.exhaustive import hand as hands
from tests.model.exhaustive.hand import IDLE, Hand, Phase
from tests.model.exhaustive.scope import ON_BATCH, Scope
from tests.model.exhaustive.shelf import Raised, Shelf

replace = msgspec.structs.replace
P = TypeVar("P")


class Letter(msgspec.Struct, frozen=True):
    """A commit on its way."""

    name: int
    commit: Commit
    overtaken: bool
    behind: int


class OperatorDesk(msgspec.Struct, frozen=True, kw_only=True):
    """An operator: how often he may still act, and what he has decided to do."""

    left: int
    kind: str = ""
    change: Change | None = None
    seize: bool = False


class Move(NamedTuple):
    """Something a worker or an operator does, with what it leads to."""

    told: str
    normal: bool
    """Whether it needs nothing to go wrong."""
    store: int
    part: int
    """The worker's, or the operator's, next state."""
    raised: Raised | None = None
    freed: int = -1
    """The letter that is not waited for any more."""


class Table(Generic[P]):
    """Values by number: equal ones have one number."""

    def __init__(self) -> None:
        self.values: list[P] = []
        self._numbers: dict[bytes, int] = {}

    def number(self, value: P) -> int:
        found = self._numbers.setdefault(msgspec.msgpack.encode(value), len(self.values))
        if found == len(self.values):
            self.values.append(value)
        return found


class Moves:
    """Works out what can happen, part by part."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.shelf = Shelf(scope)
        self.hands: Table[Hand] = Table()
        self.desks: Table[OperatorDesk] = Table()
        self.letters: Table[Letter] = Table()
        self.posts: Table[tuple[int, ...]] = Table()
        self.hands.number(IDLE)
        self.posts.number(())
        self.desks.number(OperatorDesk(left=scope.act_count if scope.acts else 0))
        self.trying = ""
        """What is being worked out: the last line of the story where it goes wrong."""
        self._items_of: dict[int, tuple[StoredItem, ...]] = {}

    # -- workers -------------------------------------------------------------------------------------------------

    def of_worker(self, store: int, number: int) -> tuple[Move, ...]:
        """Everything a worker may do but send."""
        hand = self.hands.values[number]
        self.trying = ""
        hands.check(hand, self._items(store))
        match hand.phase:
            case Phase.IDLE:
                return self._claim(store)
            case Phase.GRANTED:
                own = [self._load(store, hand), *self._renew(store, hand, number)]
            case Phase.HOLDING:
                own = [*self._run(store, hand), *self._renew(store, hand, number)]
            case Phase.WAITING:
                unsure = self.hands.number(hands.left_alone(hand))
                own = [Move("hears nothing of its commit", True, store, unsure), *self._renew(store, hand, number)]
            case Phase.UNSURE:
                own = [self._read_back(store, hand)]
        return (*own, Move("crashes", False, store, 0, None, hand.letter))

    def _claim(self, store: int) -> tuple[Move, ...]:
        self.trying = "a worker claims"
        found = self.shelf.claim(store)
        if found is None:
            return ()
        after, claim, raised = found
        hand = hands.granted(claim)
        told = f"claims chunk {claim.lease.chunk}, items {claim.lo} to {claim.hi - 1}"
        return (Move(told, True, after, self.hands.number(hand), raised),)

    def _load(self, store: int, hand: Hand) -> Move:
        self.trying = "a worker reads its items"
        items = self.shelf.load(store, hand.lo, hand.hi, hand.pending)
        return Move(
            f"reads items {[int(item.n) for item in items]}", True, store, self.hands.number(hands.loaded(hand, items))
        )

    def _run(self, store: int, hand: Hand) -> list[Move]:
        if not hands.may_run(hand):
            return []
        item = hand.ready[0]
        fates = [fate for fate in self.scope.fates if fate != "lost" or item.place.stage]
        return [
            Move(
                f"runs stage {item.place.stage} of item {item.n}: {fate}",
                fate == "done",
                store,
                self.hands.number(hands.ran(hand, fate)),
            )
            for fate in fates
        ]

    def _renew(self, store: int, hand: Hand, number: int) -> list[Move]:
        self.trying = "a worker renews its lease"
        after = self.shelf.renew(store, hand.chunk, hand.behind)
        if after is None:
            if hand.phase is Phase.WAITING:
                return []
            return [Move(f"finds its lease of chunk {hand.chunk} lost and drops it", True, store, 0)]
        if hand.overtaken:
            raise Violation(f"the lease of chunk {hand.chunk} was renewed for an owner that had been overtaken")
        return [Move(f"renews its lease of chunk {hand.chunk}", True, after, number)] if after != store else []

    def _read_back(self, store: int, hand: Hand) -> Move:
        assert hand.commit is not None
        self.trying = "a worker asks for its commit"
        landed = self.shelf.has_landed(store, hand.letter, hand.commit, hand.behind)
        told = f"asks for its commit, which {'landed' if landed else 'did not land'}"
        return Move(told, True, store, self.hands.number(hands.read_back(hand, landed)), None, hand.letter)

    def may_send(self, number: int) -> bool:
        return hands.may_send(self.hands.values[number], self.scope)

    def sent(self, number: int, name: int) -> tuple[int, int]:
        """The worker once it has sent what it has, and the letter."""
        hand = self.hands.values[number]
        self.trying = "a worker sends its commit"
        after, commit = hands.sent(hand, name, self.scope)
        letter = Letter(name, commit, hand.overtaken, hand.behind)
        return self.hands.number(after), self.letters.number(letter)

    def answered(self, store: int, number: int, landed: bool) -> int:
        """A worker that hears the reply."""
        hand = self.hands.values[number]
        self.trying = "a commit arrives"
        if landed and hand.letter not in self.shelf.states[store].landed:
            raise Violation("a worker was told that its commit is durable, and it is not")
        return self.hands.number(hands.answered(hand, landed))

    def overtaken(self, number: int, raised: Raised) -> int:
        return self.hands.number(hands.overtake(self.hands.values[number], raised))

    # -- the post ------------------------------------------------------------------------------------------------

    def posted(self, post: int, letter: int) -> int:
        return self.posts.number(tuple(sorted((*self.posts.values[post], letter))))

    def without(self, post: int, letter: int) -> int:
        return self.posts.number(tuple(each for each in self.posts.values[post] if each != letter))

    def outdated(self, post: int, raised: Raised) -> int:
        """The letters on their way, once a chunk has changed hands."""
        return self.posts.number(tuple(sorted(self._outdated(letter, raised) for letter in self.posts.values[post])))

    def _outdated(self, number: int, raised: Raised) -> int:
        letter, (chunk, by) = self.letters.values[number], raised
        if letter.commit.chunk != chunk:
            return number
        return self.letters.number(replace(letter, overtaken=True, behind=min(1, letter.behind + by)))

    def delivered(self, store: int, number: int) -> tuple[int, bool]:
        """What the store makes of a letter, and whether it says that it landed."""
        self.trying = "a commit arrives"
        letter = self.letters.values[number]
        after, receipt = self.shelf.commit(store, letter.name, letter.commit, letter.behind, overtaken=letter.overtaken)
        return after, receipt.landed

    # -- operators -----------------------------------------------------------------------------------------------

    def of_operator(self, store: int, number: int) -> tuple[Move, ...]:
        """Look at an item and decide; later do it, whatever has become of the item since."""
        desk = self.desks.values[number]
        found = self._of_batch(store, desk)
        if desk.change is not None:
            return (self._act(store, desk), *found)
        if not desk.left:
            return tuple(found)
        for row in self._items(store):
            for word in [word for word in self.scope.acts if word not in ON_BATCH]:
                place = _decided(word.rstrip("!"), row.place, self.scope.stages)
                if place is not None:
                    change = change_of(row.n, row.place, place)
                    kind, seize = word.rstrip("!"), word.endswith("!")
                    after = self.desks.number(OperatorDesk(left=desk.left - 1, kind=kind, change=change, seize=seize))
                    told = f"decides to {kind} item {row.n}{', seizing it' if seize else ''}"
                    found.append(Move(told, False, store, after))
        return tuple(found)

    def _act(self, store: int, desk: OperatorDesk) -> Move:
        assert desk.change is not None
        self.trying = "the operator does it"
        after, changed, raised = self.shelf.act(store, _act(desk.kind, desk.change, seize=desk.seize))
        told = f"does it: {'done' if changed else 'the item moved on meanwhile'}"
        return Move(told, True, after, self.desks.number(OperatorDesk(left=desk.left)), raised)

    def _of_batch(self, store: int, desk: OperatorDesk) -> list[Move]:
        """What may be done to the batch as a whole. A pause always ends, and what is left of a batch that was stopped
        is always cancelled: these need nobody's leave."""
        shelf, own, found = self.shelf, self.desks.number(desk), list[Move]()
        if shelf.course(store) is BatchMode.PAUSED and not shelf.is_sealed(store):
            self.trying = "the operator lets the batch go on"
            found.append(Move("lets the batch go on", True, shelf.steer(store, BatchMode.OPEN), own))
        if shelf.course(store) is BatchMode.CANCELLED:
            found += self._cancel_the_rest(store, own)
        less = self.desks.number(replace(desk, left=desk.left - 1)) if desk.left else own
        for word in self.scope.acts if desk.left else ():
            after = self._done_to_batch(store, word)
            if after != store:
                found.append(Move(f"{word}s the batch", False, after, less))
        return found

    def _done_to_batch(self, store: int, word: str) -> int:
        shelf = self.shelf
        self.trying = f"the operator tries to {word} the batch"
        if word == "pause":
            return shelf.steer(store, BatchMode.PAUSED)
        if word == "stop":
            return shelf.steer(store, BatchMode.CANCELLED)
        if word == "seal":
            return shelf.seal(store)
        return shelf.reopen(store) if word == "reopen" and shelf.is_sealed(store) else store

    def _cancel_the_rest(self, store: int, own: int) -> list[Move]:
        """The first item of a stopped batch that is pending and in nobody's hands."""
        for row in self._items(store):
            if row.place.state is State.PENDING and self.shelf.is_free(store, row.n):
                change = change_of(row.n, row.place, move(row.place, Transition.CANCEL, stages=self.scope.stages))
                self.trying = f"what is left of the batch is cancelled: item {row.n}"
                after, _, raised = self.shelf.act(store, _act("cancelled", change, seize=True))
                return [Move(f"cancels item {row.n}, which is left", True, after, own, raised)]
        return []

    def _items(self, store: int) -> tuple[StoredItem, ...]:
        if store not in self._items_of:
            self._items_of[store] = self.shelf.items(store)
        return self._items_of[store]


def _act(kind: str, change: Change, *, seize: bool) -> Act:
    return Act(id=b"", batch=BatchId(0), kind=kind, actor="operator", reason="because", at_items=(change,), seize=seize)


def _decided(kind: str, place: ItemState, stages: int) -> ItemState | None:
    """Where an item goes, or None when it cannot."""
    if kind == "reset":
        return move(place, Transition.RESET, stage=0, stages=stages, reason="because")
    if kind == "requeue" and place.state is State.PENDING and place.requeues < REQUEUES:
        return requeued(place, stages, reason="because")
    if kind == "cancel" and place.state is State.PENDING:
        return move(place, Transition.CANCEL, stages=stages)
    if kind == "redrive" and place.state is State.DEAD:
        return move(place, Transition.REDRIVE, stages=stages)
    return None
