"""What a tick asks of a bucket when every tick is a process of its own, as in a cloud function: always the same."""

from collections import Counter
from typing import Any

import pytest

import holdfast as hf
from holdfast.runtime.scan.tick import Ended
from holdfast.stores.bucket import BucketStore
from holdfast.stores.bucket.items import Chains
from holdfast.stores.buckets.memory import MemoryBucket
from holdfast.testing.rows import Rows

SLACK = 256
"""Bytes by which the numbers in a document may become longer."""


class Metered:
    """A bucket that counts requests, the names that listings told, and the bytes of everything read and written."""

    def __init__(self, bucket: MemoryBucket) -> None:
        self._bucket, self.requests, self.sent = bucket, Counter[str](), 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._bucket, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self.requests[name] += 1
            answer = found(*args, **kwargs)
            if name == "list":
                answer = list(answer)
                self.requests["listed"] += len(answer)
            self.sent += sum(len(each) for each in (*args, answer) if isinstance(each, bytes))
            self.sent += len(answer.data) if name == "get" and answer is not None else 0
            return answer

        return call


def tick(bucket: MemoryBucket, rows: list[Any], pad: int) -> tuple[hf.Tick, Metered]:
    """One tick of a process that knows nothing; what it asked of the bucket."""
    metered = Metered(bucket)
    store = BucketStore(metered, at_once=1)  # type: ignore[arg-type]
    scan = hf.Follow("orders", Rows(rows, page=50), store=store, isolate=True)

    @scan.handler
    def keep(some: list[Any], acc: dict[str, Any]) -> dict[str, Any]:
        if "poison" in some:
            raise ValueError("this row cannot be handled")
        return {"count": acc.get("count", 0) + len(some), "pad": "x" * pad}

    return scan.tick(), metered


def ticks(bucket: MemoryBucket, rows: list[Any], count: int, pad: int) -> Metered:
    """So many ticks with one new row each; what the last one asked for."""
    for _ in range(count):
        rows.append(len(rows))
        told, metered = tick(bucket, rows, pad)
        assert (told.ended, told.rows) == (Ended.CAUGHT_UP, 1)
    return metered


@pytest.mark.parametrize("pad", [0, 10_000], ids=["small", "large"])
def test_a_tick_of_a_fresh_process_costs_the_same_after_many_as_after_few(pad: int) -> None:
    bucket, rows = MemoryBucket(), list[Any]()
    few, many = ticks(bucket, rows, 5, pad), ticks(bucket, rows, 60, pad)
    assert few.requests == many.requests
    assert "list" not in many.requests
    assert abs(few.sent - many.sent) < SLACK
    told, idle = tick(bucket, rows, pad)
    assert told.ended is Ended.NOTHING_NEW
    assert set(idle.requests) == {"get"}
    assert idle.requests["get"] <= 6


def test_a_tick_that_looked_through_its_chain_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = BucketStore.checkpoints

    def thorough(self: BucketStore, batch: Any, **asked: Any) -> Any:
        for chunk in self.chunks(batch):
            Chains(self._documents).follow(batch, chunk.id, chunk.seq, chunk.head)
        return real(self, batch, **asked)

    monkeypatch.setattr(BucketStore, "checkpoints", thorough)
    bucket, rows = MemoryBucket(), list[Any]()
    assert ticks(bucket, rows, 5, 0).requests["listed"] < ticks(bucket, rows, 60, 0).requests["listed"]


def test_rows_that_were_buried_cost_a_fresh_process_a_listing_and_a_read_each() -> None:
    """It has to know whether any was redriven; one that stays looks once a minute."""
    bucket, rows = MemoryBucket(), list[Any]()
    ticks(bucket, rows, 1, 0)
    _, before = tick(bucket, rows, 0)
    for _ in range(20):
        rows.append("poison")
        told, _ = tick(bucket, rows, 0)
        assert told.dead == 1
    _, after = tick(bucket, rows, 0)
    assert after.requests - before.requests == {"list": 1, "listed": 21, "get": 21}
