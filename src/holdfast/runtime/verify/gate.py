"""The gate: before an item that was read from the store goes on, what it rests on is verified.

Verifiers are asked on threads of their own. What holds is ready for its stage. What does not hold goes back to the last
stage that does, once enough was looked at to tell damage from a wrong folder or a wrong database. A verifier that
gives no answer fails the attempt.
"""

import queue
import random
import threading
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.model import Item, Output
from holdfast.core.outcome import Lost, Outcome
from holdfast.core.verify import GoesBack, Seen, Stays, Verdict, is_enough_to_judge, is_too_much
from holdfast.runtime.define.options import Level
from holdfast.runtime.verify.inspector import Looker, Past
from holdfast.runtime.verify.recheck import refusal
from holdfast.runtime.working.assignment import clock
from holdfast.runtime.working.control import Control
from holdfast.runtime.working.explanation import explain
from holdfast.runtime.working.holding import Holding
from holdfast.runtime.working.pools import Finished
from holdfast.stores.base import Store

TOGETHER = 16
"""Items that one thread asks about before it hands over what was said."""


class Question(NamedTuple):
    """Some items of one holding on their way through the gate."""

    holding: Holding
    items: list[Item]


class Passed(NamedTuple):
    """What came of a question: items that may go on, and outcomes of those that may not."""

    question: Question
    cleared: list[Item]
    outcomes: list[Outcome]
    error: BaseException | None = None
    """The store, or the disk, gave no answer."""


class Gate:
    """Stands between the store and the stages of one run. All but the asking is done by the worker's thread."""

    def __init__(self, store: Store, looker: Looker, level: Level, *, workers: int, allowed: float, control: Control,
                 finished: Finished) -> None:  # fmt: skip
        self.store, self.looker = store, looker
        self.is_open = level == "none"
        after = [stage.verifier is not None for stage in looker.stages[:-1]]
        self.guarded = frozenset() if self.is_open else frozenset(n for n, asks in enumerate(after, 1) if asks)
        """Stages before which a verifier is asked."""
        self.allowed = allowed
        self.control, self.finished = control, finished
        self.asked = self.bad = 0
        self._free = self._size = workers
        self._threads = 0
        self._todo: queue.SimpleQueue[Question | None] = queue.SimpleQueue()
        self._withheld: list[tuple[Holding, Lost]] = []
        """Items that go back as soon as it is known that not everything does."""
        self._draw = random.SystemRandom().random

    # -- on the worker's thread -----------------------------------------------------------------------------------

    def can_start(self, holding: Holding) -> bool:
        if holding.lost or not holding.unasked or not self._free:
            return False
        return holding.running == 0 if holding.alone else True

    def start(self, holdings: Sequence[Holding]) -> None:
        """Ask for as many items as there are threads for."""
        for holding in holdings:
            while self.can_start(holding):
                size = 1 if holding.alone else max(1, min(TOGETHER, len(holding.unasked) // self._free))
                items = [holding.unasked.popleft() for _ in range(min(size, len(holding.unasked)))]
                holding.running += len(items)
                self._free -= 1
                if self._threads < self._size - self._free:
                    self._threads += 1
                    threading.Thread(target=self._loop, name=f"holdfast-gate-{self._threads}", daemon=True).start()
                self._todo.put(Question(holding, items))

    def take(self, passed: Passed) -> None:
        """What was said: ready, withheld, or an outcome."""
        holding = passed.question.holding
        self._free += 1
        holding.running -= len(passed.question.items)
        if passed.error is not None:
            raise passed.error
        self.asked += len(passed.question.items)
        if holding.lost:
            return
        holding.clear_for_stage(passed.cleared)
        for outcome in passed.outcomes:
            if isinstance(outcome, Lost):
                self._withhold(holding, outcome)
            else:
                holding.outcomes.append(outcome)
        self._judge()

    def hear(self, holding: Holding, lost: Sequence[Lost], *, others: int) -> None:
        """A stage found the input of some items gone, and that of others in its file. How far back must they go?"""
        self.asked += others
        for each in lost:
            if self.is_open:
                holding.outcomes.append(each)
            elif each.to_stage < 1:
                self.asked += 1
                self._withhold(holding, each)
            else:
                holding.known_lost[each.item.n] = each.why
                holding.unasked.append(each.item)
        if lost:
            self._judge()

    def let_through(self, holdings: Sequence[Holding], *, nothing_left: bool) -> None:
        """Called in every round: what is withheld goes back once there is nothing left to ask."""
        if not self._withheld:
            return
        if any(holding.exclusive for holding in holdings):
            self.give_back()
        elif nothing_left and self._free == self._size and not any(h.unasked or not h.loaded_all for h in holdings):
            self._release()

    def give_back(self) -> None:
        """Forget what is withheld: it is pending in the store, and asked about again."""
        for holding, _ in self._withheld:
            holding.running -= 1
        self._withheld.clear()

    def close(self) -> None:
        for _ in range(self._threads):
            self._todo.put(None)

    def _withhold(self, holding: Holding, lost: Lost) -> None:
        self.bad += 1
        if holding.exclusive:
            holding.outcomes.append(lost)
        else:
            holding.running += 1
            self._withheld.append((holding, lost))

    def _judge(self) -> None:
        if self._withheld and is_too_much(self.bad, self.asked, self.allowed):
            lost = self._withheld[0][1]
            self.give_back()
            self.control.fail(refusal(self.looker.batch, self.bad, self.asked, lost.item.key, lost.why))
        elif is_enough_to_judge(self.asked, self.allowed):
            self._release()

    def _release(self) -> None:
        for holding, lost in self._withheld:
            holding.running -= 1
            if not holding.lost:
                holding.outcomes.append(lost)
        self._withheld.clear()

    # -- on threads of the gate -----------------------------------------------------------------------------------

    def _loop(self) -> None:
        while (question := self._todo.get()) is not None:
            cleared: list[Item] = []
            outcomes: list[Outcome] = []
            error: BaseException | None = None
            try:
                for item in question.items:
                    outcome = self._ask(item, question.holding)
                    if outcome is None:
                        cleared.append(item)
                    else:
                        outcomes.append(outcome)
            except BaseException as raised:  # noqa: BLE001 - the worker's thread raises it
                error = raised
            self.finished.put(Passed(question, cleared, outcomes, error))

    def _ask(self, item: Item, holding: Holding) -> Outcome | None:
        why = holding.known_lost.pop(item.n, None)
        return ask(self.looker, self.store, item, holding, self._draw(), why=why)


def ask(
    looker: Looker, store: Store, item: Item, holding: Holding, draw: float, *, why: str | None = None
) -> Outcome | None:
    """None if the item may go on, else what becomes of it. `why` says that its input is known to be lost."""
    began, at = clock(), item.place.stage
    known = [] if item.input == b"" and item.source_file is None else [
        Output(item.n, at - 1, item.place.epoch, item.input, item.source_file)
    ]  # fmt: skip
    past = Past(store, holding.claim.batch, item, holding.lease.fence, outputs=known)
    seen = [] if why is None else [Seen(at - 1, Verdict.FAILS, why)]
    decision = looker.before_going_on(past, seen)
    if isinstance(decision, Stays):
        return None
    if isinstance(decision, GoesBack):
        return Lost(item, decision.stage, decision.why)
    error = decision.seen.error
    assert error is not None
    return explain(item, error, queued=0.0, seconds=clock() - began, draw=draw, spend=None)
