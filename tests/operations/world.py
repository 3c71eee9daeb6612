"""A small world for tests of the operator's side: a store, a clock that stands still, and items driven by hand."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.core import canonical, ingest
from holdfast.core import settle as core
from holdfast.core.journal import Spend
from holdfast.core.model import Batch, BatchId, Claim, ClaimRequest, Item, Receipt
from holdfast.core.outcome import Deferred, Done, Failed, Outcome, Skipped
from holdfast.core.retry import Policy
from holdfast.stores.base import Idle, Store
from holdfast.stores.bucket import BucketStore
from holdfast.stores.buckets.memory import MemoryBucket
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore

OWNER = "host-a/boot/ns/4711/99/abcd"
POLICY = Policy(attempts=3, wait_min=2.0, wait_max=2.0)


class Clock:
    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class World:
    """One batch in one store, worked on by whoever a test says."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        stages: Sequence[str] = ("ocr", "correct"),
        batch: str = "moby-dick",
        **more: Any,
    ) -> None:
        self.store, self.clock, self.stages = store, clock, tuple(stages)
        definition = canonical.encode({"stages": [{"name": name} for name in stages], **more})
        self.id: BatchId = store.open_batch(batch, "book", definition, actor="test").id
        self.name = batch

    @property
    def batch(self) -> Batch:
        (found,) = self.store.batches(self.name)
        return found

    def add(self, *keys: Any, ended: bool = True, payload: Callable[[Any], Any] = lambda key: {"page": key}) -> None:
        items = [ingest.admit(key, canonical.encode(payload(key))) for key in keys]
        self.store.add_items(self.id, items, ended=ended, actor="test")

    def add_invalid(self, key: str, reason: str = "page: Field required") -> None:
        item = ingest.refuse(key, b'{"pg": 1}', "invalid", reason)
        self.store.add_items(self.id, [item], actor="test")

    def claim(self, limit: int = 1000, *, owner: str = OWNER, seconds: float = 30.0) -> Claim:
        answer = self.store.claim(ClaimRequest(batch=self.id, owner=owner, limit=limit, seconds=seconds))
        assert not isinstance(answer, Idle), f"nothing to claim: {answer}"
        return answer

    def items(self, claim: Claim) -> list[Item]:
        return self.store.load(claim, None, 10_000, 1 << 30)

    def commit(
        self, claim: Claim, outcomes: Sequence[Outcome], *, version: int = 0, release: bool = True, due: float = 0.0
    ) -> Receipt:
        settled = core.settle(outcomes, stages=len(self.stages), policies=[POLICY] * len(self.stages), now=self.clock())
        holder = core.Holder(
            batch=self.id, uid=claim.uid, chunk=claim.lease.chunk, number=claim.number, fence=claim.lease.fence,
            grant=claim.lease.grant, version=version, seconds=30.0,
        )  # fmt: skip
        return self.store.commit([core.commit(holder, settled, commit_id=os.urandom(16), release=release, due=due)])[0]

    def work(self, do: Callable[[Item], Outcome | None], *, limit: int = 1000, owner: str = OWNER) -> None:
        """One grant: every pending item once, in one commit, then release."""
        claim = self.claim(limit, owner=owner)
        outcomes = [outcome for outcome in map(do, self.items(claim)) if outcome is not None]
        assert self.commit(claim, outcomes).landed

    def finish(self) -> None:
        """Every item that can be done is done, at once."""
        while not isinstance(
            answer := self.store.claim(ClaimRequest(batch=self.id, owner=OWNER, limit=1000, seconds=30.0)), Idle
        ):
            assert self.commit(answer, [done(item) for item in self.items(answer)]).landed


def done(
    item: Item,
    *,
    queued: float = 0.25,
    seconds: float = 0.5,
    spend: Spend | None = None,
    adopted: bool = False,
    output: Any = None,
) -> Done:
    data = canonical.encode({"text": f"{item.key}@{item.place.stage}"} if output is None else output)
    return Done(item, data, queued, seconds, spend, None, adopted)


def failed(
    item: Item, *, transient: bool = True, code: str = "http_503", seconds: float = 1.5, spend: Spend | None = None
) -> Failed:
    return Failed(item, transient, code, "overloaded", 0.0, 0.125, seconds, None, "Traceback", spend)


def skipped(item: Item, why: str = "blank page") -> Skipped:
    return Skipped(item, why, 0.0, 0.25)


def deferred(item: Item, wait: float = 60.0) -> Deferred:
    return Deferred(item, wait, "too early", 0.0, 0.125)


def make_store(kind: str, folder: Path, clock: Clock) -> Store:
    if kind == "memory":
        return MemoryStore(clock=clock)
    if kind == "bucket":
        return BucketStore(MemoryBucket(), clock=clock, monotonic=clock, is_dead=lambda owner: False)
    return SqliteStore(folder / ".holdfast" / "state.db", clock=clock)
