"""The course of one message, call by call: what is done with its item, and in which order.

Each call that touches the outside world is yielded before it is made. A message makes the calls one after the other on
the calling thread; the simulator makes them in virtual time, where processes die between any two calls.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from holdfast.core import retry
from holdfast.core.model import Claim, Item, ItemNo, Receipt, State, StoredItem
from holdfast.core.outcome import Lost, Outcome
from holdfast.core.retry import Policy
from holdfast.core.settle import Settled
from holdfast.runtime.engine.driver import HoldDriver, LoneHold
from holdfast.runtime.engine.hold import trouble_of
from holdfast.stores.base import Idle

TIME_UP = "its time was up"
T = TypeVar("T")
Calls = Generator[Callable[[], Any], Any, T]


def make_calls(calls: Calls[T]) -> T:
    """Make every call on this thread; return the result."""
    answer = None
    try:
        while True:
            try:
                call = calls.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            answer = call()
    finally:
        calls.close()


class BroughtOn(NamedTuple):
    """The state of an item after it was brought on."""

    stored: StoredItem
    why: str = ""
    """Why it is pending and may be handed over again at once."""
    due: float | None = None
    """When it may be tried again, if it waits."""
    idle: Idle | None = None
    """Why there was nothing to claim."""


class NextMove(NamedTuple):
    """The move that follows a commit."""

    goes_on: bool
    """The item continues under the same claim; otherwise the commit gives the chunk back."""
    onward: Item | None
    """The item as it continues; None if it must be read again."""
    due: float
    """When the chunk may be claimed again."""


class Handover(ABC):
    """Brings single items of a batch on. Everything that touches the outside world is a call, which is not made
    here."""

    driver: HoldDriver
    policies: Sequence[Policy]
    makers: Sequence[str]

    @abstractmethod
    def now(self) -> float:
        """Return the time by the clock of the store."""

    @abstractmethod
    def has_time(self, stage: int) -> bool:
        """Return whether there is time to begin a stage."""

    @abstractmethod
    def stored(self, n: ItemNo) -> StoredItem:
        """Return the item as it is stored."""

    @abstractmethod
    def verified(self, n: ItemNo) -> StoredItem:
        """Return the item, after its inputs were inspected."""

    @abstractmethod
    def look_again(self) -> None:
        """Look for unrecorded outputs again: a chunk was claimed, and its last owner may have left some."""

    @abstractmethod
    def ask(self, item: Item, hold: LoneHold) -> Any:
        """Ask the verifiers about the input of an item; the answer is an outcome, or None if the input holds."""

    @abstractmethod
    def run(self, item: Item, hold: LoneHold, resumed: bool) -> Any:
        """Run the stage of an item; the answer is an outcome, or None if it was not begun or did not end."""

    @abstractmethod
    def check(self, receipt: Receipt | None) -> None:
        """Examine the result of a write."""

    @abstractmethod
    def sync(self, settled: Settled) -> None:
        """Make the outputs of the next commit durable."""

    @abstractmethod
    def publish(self, settled: Settled, outcome: Outcome) -> None:
        """Give outputs their final names and call the hooks for a death: the commit has landed."""

    # -- the way ------------------------------------------------------------------------------------------------

    def bring_on(self, n: ItemNo) -> Calls[BroughtOn]:
        """Bring an item as far as possible."""
        stored = yield partial(self.verified, n)
        if (early := self._stays(stored)) is not None:
            return early
        answer = yield from self._claim(n)
        if isinstance(answer, Idle):
            return BroughtOn((yield partial(self.stored, n)), idle=answer)
        lost = yield from self._work(answer, n)
        stored = yield partial(self.stored, n)
        if stored.place.state is State.PENDING and lost:
            return BroughtOn(stored, lost)
        return self._waits(stored) or BroughtOn(stored, TIME_UP)

    def _waits(self, stored: StoredItem) -> BroughtOn | None:
        """Return its state if it is settled or waits."""
        place = stored.place
        if place.state is not State.PENDING:
            return BroughtOn(stored)
        return None if retry.wait_is_over(place.due, place.wait, self.now()) else BroughtOn(stored, due=place.due)

    def _stays(self, stored: StoredItem) -> BroughtOn | None:
        """Return its state if nothing is begun."""
        if (waits := self._waits(stored)) is not None:
            return waits
        return None if self.has_time(stored.place.stage) else BroughtOn(stored, TIME_UP)

    def _claim(self, n: ItemNo) -> Calls[Claim | Idle]:
        """Claim the chunk of the item; of a suspect, only the item. Items before it in the chunk are claimed first and
        given back, which cuts them off."""
        answer: Claim | Idle
        while isinstance(answer := (yield partial(self.driver.claim, n)), Claim) and answer.hi <= n:
            yield partial(self.driver.give_back, answer)
        return answer

    def _work(self, claim: Claim, n: ItemNo) -> Calls[str]:
        """Run the due stages of a claimed item; return why it is lost, or an empty string."""
        yield self.look_again
        with self.driver.held(claim) as hold:
            item = self._if_due((yield partial(hold.load, n)))
            resumed = item is not None and (item.place.stage > 0 or claim.lease.fence > 1)
            while item is not None and not hold.lost:
                lost = (yield partial(self.ask, item, hold)) if resumed else None
                outcome = lost if lost is not None else (yield from self._outcome(item, hold, resumed))
                if outcome is None:
                    break
                item, resumed = (yield from self._commit(hold, outcome)), isinstance(outcome, Lost)
            return self._lost(hold)

    def _if_due(self, item: Item | None) -> Item | None:
        """Return the item unless it waits: another process may have tried it since it was read."""
        if item is None or not retry.wait_is_over(item.place.due, item.place.wait, self.now()):
            return None
        return item

    def _lost(self, hold: LoneHold) -> str:
        """Return why nothing more can be recorded here; the next call tells whether another process continues with
        it."""
        if not hold.lost:
            return ""
        trouble = self.driver.trouble
        how = f"its lease could not be renewed: {trouble}" if trouble else "it was taken over by another process"
        return f"{how}; work since its last checkpoint is not recorded"

    def _outcome(self, item: Item, hold: LoneHold, resumed: bool) -> Calls[Outcome | None]:
        if hold.hold.is_condemned:
            return hold.hold.condemned(item)
        self.check((yield hold.start))
        if hold.lost:
            return None
        outcome: Outcome | None = yield partial(self.run, item, hold, resumed)
        return outcome

    # -- committing ---------------------------------------------------------------------------------------------

    def _commit(self, hold: LoneHold, outcome: Outcome) -> Calls[Item | None]:
        """Commit an outcome; return the item if it continues at once. The last commit gives the chunk back."""
        settled = hold.settle([outcome], self.policies)
        move = self.next_move(hold, settled, outcome)
        yield partial(self.sync, settled)
        self.check((yield partial(hold.write, settled, release=not move.goes_on, due=move.due, makers=self.makers)))
        if hold.lost:
            return None
        yield partial(self.publish, settled, outcome)
        if (trouble := trouble_of(outcome, "hand the item over again")) is not None:
            raise trouble
        if not move.goes_on:
            return None
        item: Item | None = move.onward if move.onward is not None else (yield partial(hold.load, outcome.item.n))
        return item

    def next_move(self, hold: LoneHold, settled: Settled, outcome: Outcome) -> NextMove:
        """Return what follows the commit of an outcome."""
        now = self.now()
        onward = next((item for item in settled.onward if item.place.due <= now), None)
        again = isinstance(outcome, Lost) and any(move.place.state is State.PENDING for move in settled.moves)
        goes_on = again or (onward is not None and self.has_time(onward.place.stage))
        waits = settled.onward[0].place.due if settled.onward and onward is None and hold.hold.left == 1 else 0.0
        return NextMove(goes_on, None if again else onward, waits)
