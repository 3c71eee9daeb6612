"""The check of inputs: before an item that was read from the store continues, verifiers check its inputs, on their own
threads. A verifier that gives no answer fails the attempt. The desk decides what follows."""

import queue
import random
import threading

from holdfast.core.model import Item, Output
from holdfast.core.outcome import Lost, Outcome
from holdfast.core.verify import GoesBack, Inspection, Stays, Verdict
from holdfast.runtime.engine.assignment import clock
from holdfast.runtime.engine.exchange import InputAnswer, Question
from holdfast.runtime.engine.failures import explain
from holdfast.runtime.engine.hold import Hold
from holdfast.runtime.engine.pools import Finished
from holdfast.runtime.verify.inspector import OutputInspector, RecordedItem
from holdfast.stores.base import Store


class InputCheck:
    """The threads that call verifiers, for one run."""

    def __init__(self, store: Store, inspector: OutputInspector, finished: Finished) -> None:
        self.store, self.inspector, self.finished = store, inspector, finished
        self._asking = self._threads = 0
        self._todo: queue.SimpleQueue[Question | None] = queue.SimpleQueue()
        self._draw = random.SystemRandom().random

    def ask(self, question: Question) -> None:
        """Queue a question; start another thread for it if necessary."""
        self._asking += 1
        if self._threads < self._asking:
            self._threads += 1
            threading.Thread(target=self._loop, name=f"holdfast-gate-{self._threads}", daemon=True).start()
        self._todo.put(question)

    def answered(self) -> None:
        """Note that an answer was received: its thread is free."""
        self._asking -= 1

    def close(self) -> None:
        for _ in range(self._threads):
            self._todo.put(None)

    def _loop(self) -> None:
        while (question := self._todo.get()) is not None:
            cleared: list[Item] = []
            outcomes: list[Outcome] = []
            error: BaseException | None = None
            try:
                for item in question.items:
                    why = question.known_lost.get(item.n)
                    outcome = ask(self.inspector, self.store, item, question.hold, self._draw(), why=why)
                    if outcome is None:
                        cleared.append(item)
                    else:
                        outcomes.append(outcome)
            except BaseException as raised:  # noqa: BLE001 - the thread of the worker raises it
                error = raised
            self.finished.put(InputAnswer(question, cleared, outcomes, error))


def ask(
    inspector: OutputInspector, store: Store, item: Item, hold: Hold, draw: float, *, why: str | None = None
) -> Outcome | None:
    """Return None if the item may continue, else its outcome. `why` is set if its input is known to be lost."""
    began, at = clock(), item.place.stage
    known = [] if item.input == b"" and item.source_file is None else [
        Output(item.n, at - 1, item.place.epoch, item.input, item.source_file)
    ]  # fmt: skip
    past = RecordedItem(store, hold.claim.batch, item, hold.lease.fence, outputs=known)
    seen = [] if why is None else [Inspection(at - 1, Verdict.FAILS, why)]
    decision = inspector.before_going_on(past, seen)
    if isinstance(decision, Stays):
        return None
    if isinstance(decision, GoesBack):
        return Lost(item, decision.stage, decision.why)
    error = decision.seen.error
    assert error is not None
    return explain(item, error, queued=0.0, seconds=clock() - began, draw=draw, spend=None)
