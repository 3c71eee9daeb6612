"""Delivering events: at least once, in order for each receiver, beside the run.

An event is written in the same commit as what it tells, so nothing that happened goes untold. How far a receiver is,
the store remembers after the delivery: a process that dies in between delivers again. Each receiver has a thread of
its own. One that is down is tried again with growing waits, delays neither the run nor the others, and gets what is
left from the next run, or from `holdfast events --deliver`.
"""

import hashlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from holdfast.core import retry
from holdfast.core.errors import HoldfastError, UsageError
from holdfast.core.limits import EVENT_FLUSH_SECONDS, EVENTS_PAGE
from holdfast.core.model import StoredEvent
from holdfast.core.retry import Policy
from holdfast.runtime.events.cloudevents import Envelopes
from holdfast.runtime.events.receivers import Receiver, Undelivered
from holdfast.runtime.words import many
from holdfast.stores.base import Store

log = logging.getLogger("holdfast.events")

LOOK_SECONDS = 0.25
"""How often it is looked whether there is something new."""
REMEMBER_SECONDS = 1.0
"""A slow receiver's progress is remembered so often."""
WAITS = Policy(wait_min=1.0, wait_max=30.0)


class Delivery:
    """Brings the events of one pipeline to one receiver, from where it was left."""

    def __init__(self, store: Store, pipeline: str, receiver: Receiver) -> None:
        self._store, self._pipeline = store, pipeline
        self.receiver = receiver
        scope = hashlib.sha256(pipeline.encode()).hexdigest()[:8]
        self.name = f"{receiver.name}:{scope}"
        self._envelopes = Envelopes(store)
        self.at = store.delivered(self.name)
        self._remembered = self.at
        self.count = 0

    def deliver(self, stopping: Callable[[], bool] = lambda: False) -> bool:
        """Deliver some of what is there; says whether there may be more. Raises Undelivered."""
        page = self._store.events(self.at, limit=EVENTS_PAGE)
        ours = [event for event in page if self._envelopes.pipeline_of(event) == self._pipeline]
        try:
            if self._hand_over(ours, stopping) and page:
                self.at = page[-1].id
        finally:
            self._remember()
        return len(page) == EVENTS_PAGE

    def left(self) -> int:
        """How many events wait for this receiver; counted up to some number."""
        waiting = self._store.events(self.at, limit=10 * EVENTS_PAGE)
        return sum(self._envelopes.pipeline_of(event) == self._pipeline for event in waiting)

    def _hand_over(self, events: Sequence[StoredEvent], stopping: Callable[[], bool]) -> bool:
        """Whether all of them were taken, or it was told to stop before."""
        last, size = time.monotonic(), self.receiver.at_once
        for some in (events[at : at + size] for at in range(0, len(events), size)):
            if stopping():
                return False
            self.receiver.take([self._envelopes.make(event) for event in some])
            self.at = some[-1].id
            self.count += len(some)
            if time.monotonic() - last > REMEMBER_SECONDS:
                last = time.monotonic()
                self._remember()
        return True

    def _remember(self) -> None:
        if self.at > self._remembered:
            self._store.delivered(self.name, self.at)
            self._remembered = self.at


def deliver_all(store: Store, receiver: Receiver) -> int:
    """Deliver everything that waits for a receiver, of every pipeline; returns how much. Raises Undelivered."""
    count = 0
    for pipeline in dict.fromkeys(batch.pipeline for batch in store.batches()):
        delivery = Delivery(store, pipeline, receiver)
        while delivery.deliver():
            pass
        count += delivery.count
    return count


@contextmanager
def delivering(
    store: Callable[[], Store], pipeline: str, receivers: Sequence[Receiver], deadline: float | None = None
) -> Iterator[None]:
    """Deliver events while the body runs, and for a moment after it."""
    names = [receiver.name for receiver in receivers]
    twice = next((receiver.title for receiver in receivers if names.count(receiver.name) > 1), None)
    if twice is not None:
        raise UsageError(f"events: {twice} is named twice, and could not be told apart: give it once")
    if not receivers:
        yield
        return
    threads = [_Courier(Delivery(store(), pipeline, receiver)) for receiver in receivers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends = time.monotonic() + EVENT_FLUSH_SECONDS
        ends = ends if deadline is None else min(ends, max(deadline, time.monotonic()))
        for thread in threads:
            thread.finish()
        for thread in threads:
            thread.join(max(0.0, ends - time.monotonic()))
            thread.leave()


class _Courier(threading.Thread):
    """Delivers until it is told to finish; then what is left, if its receiver answers."""

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(name="holdfast-events", daemon=True)
        self._delivery = delivery
        self._ending = threading.Event()
        self._left = False
        self._failures = 0
        self._trouble = ""

    def finish(self) -> None:
        """Come to an end: at once where the receiver is down."""
        self._ending.set()

    def leave(self) -> None:
        """Start nothing new, and say what was not delivered."""
        self._left = True
        if self._trouble or self.is_alive():
            why, some = self._trouble if self._trouble else "it takes its time", "events"
            with suppress(HoldfastError):
                some = many(self._delivery.left(), "event")
            log.warning(
                "not delivered to %s: %s (%s); the next run delivers what is left, or `holdfast events --deliver …`",
                self._delivery.receiver.title, some, why,
            )  # fmt: skip

    def run(self) -> None:
        while not self._left:
            is_last = self._ending.is_set()
            try:
                more = self._delivery.deliver(lambda: self._left)
                self._failures, self._trouble = 0, ""
                wait = 0.0 if more else LOOK_SECONDS
            except Exception as error:  # noqa: BLE001 - receiver or store: the work goes on, the events are kept
                more, wait = False, self._failed(error)
            if self._ending.is_set() and (self._failures or (is_last and not more)):
                return
            self._ending.wait(wait)

    def _failed(self, error: Exception) -> float:
        """How long to leave the receiver alone."""
        self._failures += 1
        self._trouble = str(error) if isinstance(error, Undelivered) else type(error).__name__
        if self._failures == 1:
            log.warning("%s does not take events (%s): tried again", self._delivery.receiver.title, self._trouble)
        told = error.after if isinstance(error, Undelivered) else None
        own = retry.backoff(WAITS, self._failures, random.random())  # noqa: S311 - spread, not secrecy
        return own if told is None else max(own, told)
