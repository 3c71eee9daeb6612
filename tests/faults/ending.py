"""How a small batch comes to its end, verb by verb: paused, resumed, worked on, sent on its way again, cancelled,
sealed, reopened, sealed again; and a receiver that hears of all of it.

What is left to do is derived from what is stored, so whoever is killed anywhere in it is followed by one that goes on.
"""

import json
import os

from holdfast.core import canonical, journal
from holdfast.core import course as events
from holdfast.core.course import to_note, to_reopen, to_steer
from holdfast.core.model import (
    Act,
    Batch,
    BatchMode,
    Change,
    Claim,
    ClaimRequest,
    Item,
    State,
    StoredItem,
    chain_of_batch,
)
from holdfast.core.outcome import Done, Failed, Outcome
from holdfast.core.retry import Policy
from holdfast.core.settle import commit, settle
from holdfast.core.states import Transition, move
from holdfast.stores import owners
from holdfast.stores.base import each_entry
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.conformance.kit import holder_of, new_item

STORE = "state.db"
BATCH = "letters"
KEYS = ("answered", "torn", "stuck")
POLICIES = [Policy()]
DEFINITION = canonical.encode({"stages": [{"name": "answer"}]})
RECEIVER = "clerk"
HEARD = "heard.jsonl"
STORY = ("opened", "ingested", "steered", "steered", "steered", "warned", "sealed", "reopened", "sealed")
"""The kinds of the entries in the chain of the batch, once it is over."""
WORK = ("claimed", "checkpoint", "requeued", "cancelled")
"""The same in the chain of its chunk, but for grants that came to nothing."""
TOLD = (events.BATCH_OPENED, events.ITEM_DEAD, events.ORPHAN_RESOLVED, events.WARNING, events.BATCH_FINISHED,
        events.BATCH_FINISHED)  # fmt: skip


class Ending:
    """One process's part in it."""

    def __init__(self) -> None:
        self.store = SqliteStore(STORE)
        self.owner = owners.new_owner()
        batch = self.store.open_batch(BATCH, "letters", DEFINITION, actor=self.owner)
        self.id = batch.id
        self.store.add_items(self.id, [new_item(key) for key in KEYS], ended=True, actor=self.owner)

    def live(self) -> None:
        script = (self.pause, self.resume, self.cancel, self.warn, self.seal, self.reopen, self.seal)
        for told in range(len(kinds(self.store, chain_of_batch(self.id))), len(STORY)):
            script[told - 2]()
            self.hear()
        self.hear()
        self.store.close()

    def pause(self) -> None:
        self.steer(BatchMode.PAUSED)

    def resume(self) -> None:
        self.steer(BatchMode.OPEN)

    def steer(self, course: BatchMode) -> Batch:
        return self.store.amend(self.id, to_steer(course, reason="because"), actor=self.owner).batch

    def cancel(self) -> None:
        """After some work, of which one item is left over."""
        if self.items()[0].place.state is State.PENDING:
            self.work()
        stuck = self.items()[2]
        if not stuck.place.requeues:
            event = events.orphan_resolved(
                stuck.n, stuck.key, stuck.place, strategy="re-enqueue", actor="clerk", reason="so"
            )
            self.act("requeued", stuck, Transition.REQUEUE, event)
        self.steer(BatchMode.CANCELLED)

    def work(self) -> None:
        claim = self.store.claim(ClaimRequest(batch=self.id, owner=self.owner, limit=9, seconds=30.0))
        assert isinstance(claim, Claim), claim
        outcomes = [_outcome(item) for item in self.store.load(claim, None, 9, 1 << 20)[:2]]
        settled = settle(outcomes, stages=1, policies=POLICIES, now=self.store.now())
        holder = holder_of(claim, 0, 30.0)
        (receipt,) = self.store.commit([commit(holder, settled, commit_id=os.urandom(16), release=True)])
        assert receipt.landed, receipt

    def warn(self) -> None:
        stuck = self.items()[2]
        if stuck.place.state is State.PENDING:
            self.act("cancelled", stuck, Transition.CANCEL)
        body = journal.Acted(reason="one letter is torn")
        warning = events.warning("torn", "one letter is torn")
        self.store.amend(self.id, to_note("warned", body, once=True, events=[warning]), actor=self.owner)

    def act(self, kind: str, item: StoredItem, transition: Transition, *told: events.Event) -> None:
        place = item.place
        after = move(place, transition, stages=1)
        change = Change(n=item.n, state=place.state, epoch=place.epoch, place=after)
        self.store.act(
            Act(id=os.urandom(16), batch=self.id, kind=kind, actor="clerk", reason="because", at_items=(change,),
                seize=True, events=told)
        )  # fmt: skip

    def seal(self) -> None:
        counts = {"done": 1, "dead": 1, "cancelled": 1}
        self.store.seal(
            self.id, actor=self.owner, reconciliation=b"{}", events=[events.batch_finished("cancelled", counts)]
        )

    def reopen(self) -> None:
        self.store.amend(self.id, to_reopen("one more look"), actor=self.owner)

    def hear(self) -> None:
        """Everything that the receiver has not heard, a few at a time: first it hears, then that is written down."""
        after = self.store.delivered(RECEIVER)
        while page := self.store.events(after, limit=2):
            for event in page:
                deliver({"id": event.id, "batch": event.batch, "kind": event.kind, "n": event.n})
            after = self.store.delivered(RECEIVER, page[-1].id)

    def items(self) -> list[StoredItem]:
        return self.store.items(self.id)


def deliver(event: dict[str, object]) -> None:
    handle = os.open(HEARD, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, json.dumps(event).encode() + b"\n")
    os.close(handle)


def kinds(store: SqliteStore, chain: int) -> list[str]:
    return [journal.decode_header(entry.head).kind for entry in each_entry(store, chain)]


def _outcome(item: Item) -> Outcome:
    if item.key == KEYS[1]:
        return Failed(item, False, "torn", "it cannot be read", 0.5, 0.0, 0.0)
    return Done(item, b'"yes"', 0.0, 0.0)
