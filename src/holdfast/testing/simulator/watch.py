"""What is looked at from outside, without asking the core: what a seal covers, that items add up, what is
tolerated, how long waits are."""

import hashlib
from collections import Counter
from collections.abc import Sequence

from holdfast.core import journal
from holdfast.core.model import BatchId, ItemNo, State, Tolerance, chain_of_batch
from holdfast.core.outcome import Failed, Outcome
from holdfast.core.retry import Policy
from holdfast.core.settle import Settled
from holdfast.stores.base import Store
from holdfast.testing.replay import EVERYTHING, Violation


class Seal:
    """How a batch stood when it was sealed."""

    def __init__(self, store: Store, batch: BatchId) -> None:
        self.batch = batch
        self.items = store.items(batch, limit=EVERYTHING)
        self.heads = heads(store, batch)
        if any(item.place.state is State.PENDING for item in self.items):
            raise Violation("a batch with pending items is sealed")
        self.check(store)

    def check(self, store: Store) -> None:
        """Nothing has changed since, and the seal covers where the chains end."""
        if store.items(self.batch, limit=EVERYTHING) != self.items:
            raise Violation("items of a sealed batch have changed")
        if heads(store, self.batch) != self.heads:
            raise Violation("a chain of a sealed batch has grown")
        last = store.entries(chain_of_batch(self.batch), limit=EVERYTHING)[-1]
        body = journal.decode_body(last.body)
        if not isinstance(body, journal.Sealed):
            raise Violation("a batch is sealed, and the last entry of its chain is not a seal")
        if body.heads != hashlib.sha256(b"".join(self.heads)).digest():
            raise Violation("the seal of a batch does not cover the heads of its chains")


def heads(store: Store, batch: BatchId) -> list[bytes]:
    """Number, length and last hash of the chain of every chunk, from the entries themselves."""
    found = []
    for chunk in sorted(store.chunks(batch), key=lambda chunk: chunk.id):
        entries = store.entries(chunk.id, limit=EVERYTHING)
        last = entries[-1].hash if entries else chunk.head
        found.append(chunk.id.to_bytes(8, "big") + len(entries).to_bytes(8, "big") + last)
    return found


def check_sums(store: Store, batch: BatchId) -> None:
    """Every item is in one state, every state is counted, and the sum is what was admitted."""
    chunks = store.chunks(batch)
    states = Counter(item.place.state for item in store.items(batch, limit=EVERYTHING))
    told = {state: sum(getattr(chunk.counts, state.value) for chunk in chunks) for state in State if state != "pending"}
    told[State.PENDING] = sum(chunk.pending for chunk in chunks)
    if +Counter(told) != states:
        raise Violation(f"the chunks count {told}, the items are {dict(states)}")
    (admitted,) = [row.admitted for row in store.batches() if row.id == batch]
    if states.total() != admitted:
        raise Violation(f"{admitted} items were admitted, there are {states.total()}")


def is_over(tolerance: Tolerance, store: Store, batch: BatchId, ended: bool) -> bool:
    """Whether there are more dead letters than tolerated, counted one by one."""
    dead = len(store.items(batch, state=State.DEAD, limit=EVERYTHING))
    if tolerance.count is not None and dead > tolerance.count:
        return True
    admitted = len(store.items(batch, limit=EVERYTHING))
    return tolerance.share is not None and ended and dead > tolerance.share * admitted


def check_waits(outcomes: Sequence[Outcome], settled: Settled, policies: Sequence[Policy], now: float) -> None:
    """Every wait lies between the least and the growing most; what is permanent never waits."""
    asked = {outcome.item.n: outcome for outcome in outcomes if isinstance(outcome, Failed)}
    for attempt in settled.attempts:
        if attempt.outcome != "retry":
            continue
        failed, policy = asked[ItemNo(attempt.n)], policies[attempt.stage]
        if not failed.transient:
            raise Violation(f"item {attempt.n} failed for good ({attempt.code}) and is tried again")
        most = max(policy.wait_min, min(policy.wait_max, policy.wait_min * 2**attempt.attempt), failed.after or 0.0)
        wait = attempt.due - now
        if not policy.wait_min - 1e-6 <= wait <= most + 1e-6:
            bounds = f"{policy.wait_min:.3f} to {most:.3f}"
            raise Violation(f"item {attempt.n} waits {wait:.3f} s after attempt {attempt.attempt}, not {bounds}")
