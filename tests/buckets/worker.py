"""A worker as patient as ours: what it cannot reach it tries again, what it does not know it looks up."""

from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.core.errors import CommitUnknown, StoreUnavailable
from holdfast.core.model import BatchId, Claim, ClaimRequest, Commit
from holdfast.core.settle import commit, settle
from holdfast.stores.base import find_batch
from holdfast.stores.bucket import BucketStore
from holdfast.stores.buckets.base import Bucket
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance.kit import DEFINITION, LEASE, POLICIES, STAGES, done, holder_of, new_item
from holdfast.testing.replay import Story, compare, replay

T = TypeVar("T")
PATIENCE = 12


def store_on(bucket: Bucket, clock: ManualClock, *, monotonic: ManualClock | None = None, **facts: Any) -> BucketStore:
    """A store of one process, with a wall clock and a monotonic one."""
    is_dead = facts.pop("is_dead", lambda owner: False)
    given = clock if monotonic is None else monotonic
    return BucketStore(bucket, clock=clock, monotonic=given, is_dead=is_dead, at_once=1, pause=lambda _: None, **facts)


def patiently(call: Callable[[], T]) -> T:
    """What a call answers once it does."""
    for _ in range(PATIENCE):
        try:
            return call()
        except (StoreUnavailable, CommitUnknown):
            continue
    raise AssertionError("it never answers")


class Worker:
    """One process that does everything from the first item to the seal."""

    def __init__(self, bucket: Bucket, name: str = "ann") -> None:
        self.clock, self.name, self.ids = ManualClock(), name, 0
        self.store = patiently(lambda: store_on(bucket, self.clock))
        self.batch = BatchId(0)

    def admit(self, *keys: str) -> None:
        opened = patiently(lambda: self.store.open_batch("book", "pages", DEFINITION, actor=self.name))
        self.batch = opened.id
        patiently(lambda: self.store.add_items(self.batch, [new_item(key) for key in keys], ended=True))

    def work(self, limit: int = 2) -> None:
        """Take everything through both stages. A grant that nobody heard of ends by itself."""
        for _ in range(PATIENCE):
            want = ClaimRequest(batch=self.batch, owner=self.name, limit=limit, seconds=LEASE)
            claim = patiently(lambda want=want: self.store.claim(want))  # type: ignore[misc]
            if isinstance(claim, Claim):
                self.finish(claim)
            elif claim.pending:
                self.clock.advance(LEASE + 1)
            else:
                return
        raise AssertionError("there is always something left")

    def finish(self, claim: Claim) -> None:
        for version in range(STAGES):
            items = patiently(lambda: self.store.load(claim, None, 100, 1 << 20))
            holder = holder_of(claim, version, LEASE)
            settled = settle([done(item) for item in items], stages=STAGES, policies=POLICIES, now=self.clock())
            self.ids += 1
            self.send(commit(holder, settled, commit_id=self.ids.to_bytes(16, "big"), release=version + 1 == STAGES))
            patiently(lambda: self.store.renew([claim.lease], LEASE))

    def send(self, written: Commit) -> None:
        for _ in range(PATIENCE):
            try:
                (receipt,) = self.store.commit([written])
                assert receipt.landed, receipt
                return
            except CommitUnknown:
                continue  # to send it again is how to learn what became of it
            except StoreUnavailable:
                continue
        raise AssertionError("it never landed")

    def seal(self) -> None:
        (batch,) = self.store.batches("book")
        if batch.sealed_at is None:
            patiently(self._seal_once)

    def _seal_once(self) -> None:
        batch = find_batch(self.store, "book")
        if batch is not None and batch.sealed_at is None:
            self.store.seal(self.batch, actor=self.name, reconciliation=b"")

    def check(self) -> Story:
        story = replay(self.store, self.batch, POLICIES)
        compare(self.store, self.batch, story)
        return story
