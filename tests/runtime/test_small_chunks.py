"""Many small chunks do not collapse: they are claimed together, run in slices that span them, committed together."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core import ingest
from holdfast.core.model import START, BatchId, ChunkId, Claim, ClaimRequest, Commit, Item, ItemNo, Lease, Receipt
from holdfast.core.outcome import Outcome
from holdfast.runtime.engine import desk, dispatch, exchange, worker
from holdfast.runtime.engine import session as runs
from holdfast.runtime.engine.hold import Hold, adjoining, by_hold
from holdfast.stores.base import Idle
from holdfast.stores.sqlite import SqliteStore
from tests.runtime.support import Calls, outputs, run

EACH = 10


class Counted(SqliteStore):
    """How often it is asked for what."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, is_dead=self._look)
        self.asked: Counter[str] = Counter()

    def _look(self, owner: str) -> bool:
        self.asked["looks at a process"] += 1
        return False

    def claim(self, want: ClaimRequest) -> Claim | Idle:
        self.asked["claims"] += 1
        return super().claim(want)

    def load(self, claim: Claim, after: ItemNo | None, limit: int, max_bytes: int) -> list[Item]:
        self.asked["loads"] += 1
        return super().load(claim, after, limit, max_bytes)

    def commit(self, commits: Sequence[Commit]) -> list[Receipt]:
        self.asked["commits"] += 1
        return super().commit(commits)


class Quick(dispatch.Pace):
    """A pace that stays what it is."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.mean = 100, 1e-5

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Nothing."""


def chunked(pipeline: hf.Pipeline, chunks: int, each: int = EACH) -> None:
    """Admit items as a slow source or messages do: few at a time."""
    run(pipeline, [0])
    (batch,) = pipeline.store.batches(pipeline.name)
    freeze = pipeline.stages[0].input.freeze
    for start in range(1, chunks * each, each):
        numbers = range(start, start + each)
        pipeline.store.add_items(batch.id, [ingest.admit(n, freeze(n)) for n in numbers])


def doubled(store: SqliteStore, calls: Callable[[int], Any] = lambda number: None) -> hf.Pipeline:
    pipeline = hf.Pipeline("small", store=store)

    @pipeline.stage
    def double(number: int) -> int:
        calls(number)
        return number * 2

    return pipeline


@pytest.mark.promise("P7")
def test_what_chunks_cost_does_not_grow_with_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "Pace", Quick)
    monkeypatch.setattr(desk, "INLINE_SECONDS", 60.0)
    asked: dict[int, Counter[str]] = {}
    for chunks in (10, 150):
        store, calls = Counted(tmp_path / f"{chunks}.db"), Calls()
        pipeline = doubled(store, calls)
        chunked(pipeline, chunks)
        store.asked.clear()
        assert run(pipeline).is_complete
        assert outputs(pipeline) == {n: n * 2 for n in range(chunks * EACH + 1)}
        assert len(calls) == chunks * EACH + 1
        asked[chunks] = store.asked
        store.close()
    assert asked[150]["loads"] <= 4, "what stands one behind the other is read as one"
    assert asked[150]["claims"] <= 4, "many chunks are claimed in one write"
    assert asked[150]["commits"] <= 4, "and what was run of many is committed in one"
    assert asked[150]["looks at a process"] <= asked[10]["looks at a process"] + 4


def test_a_slice_spans_chunks_and_is_not_longer_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "Pace", Quick)
    monkeypatch.setattr(dispatch, "SLICE_ITEMS", 35)
    monkeypatch.setattr(desk, "INLINE_SECONDS", 60.0)
    sizes: list[int] = []
    store = Counted(tmp_path / "state.db")
    pipeline = doubled(store)
    chunked(pipeline, 12)
    written = store.commit

    def noted(commits: Sequence[Commit]) -> list[Receipt]:
        sizes.append(sum(each.counts.settled for each in commits))
        return written(commits)

    monkeypatch.setattr(store, "commit", noted)
    assert run(pipeline).is_complete
    assert sum(sizes) == 120
    assert max(sizes) == 40, "as many chunks as it takes, and no more"


@pytest.mark.parametrize("workers", [1, 4])
def test_small_chunks_of_slow_items_share_the_workers(tmp_path: Path, workers: int) -> None:
    store, calls = Counted(tmp_path / "state.db"), Calls()
    pipeline = doubled(store, calls)
    chunked(pipeline, 15, each=2)
    assert run(pipeline, workers=workers).is_complete
    assert sorted(calls.seen) == list(range(31))


@pytest.mark.parametrize("most", [1, 3, 7, 10, 25])
@pytest.mark.parametrize("of", ["items", "bytes"])
def test_pages_may_end_anywhere_in_the_chunks_that_are_read_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, of: str
) -> None:
    monkeypatch.setattr(dispatch, "Pace", Quick)
    if of == "bytes":
        monkeypatch.setattr(worker, "LOAD_BYTES", most)
    else:
        monkeypatch.setattr(runs, "Rules", partial(exchange.Rules, page=most))
    store, calls = Counted(tmp_path / "state.db"), Calls()
    pipeline = doubled(store, calls)
    chunked(pipeline, 4)
    calls.seen.clear()
    assert run(pipeline).is_complete
    assert sorted(calls.seen) == list(range(1, 41)), "each once"


def item(n: int) -> Item:
    return Item(ItemNo(n), str(n), b"1", START, True)


def held(lo: int, hi: int, *, pending: int | None = None) -> Hold:
    lease = Lease(chunk=ChunkId(lo + 1), fence=1, owner="ann", expires=0.0)
    claim = Claim(lease=lease, batch=BatchId(1), lo=ItemNo(lo), hi=ItemNo(hi), version=0, blame=0,
                  pending=hi - lo if pending is None else pending, uid=bytes(16), number=1, end=1)  # fmt: skip
    return Hold(claim, 1, 30.0, moment=0.0)


def test_what_was_redriven_behind_a_grant_is_left_for_the_next() -> None:
    some = [held(0, 5, pending=2), held(5, 9, pending=2), held(9, 12, pending=1)]
    pages = by_hold([item(n) for n in (0, 2, 4, 6, 7)], some)
    assert [[each.n for each in page] for page in pages] == [[0, 2], [6, 7], []]


def test_only_first_pages_of_chunks_side_by_side_are_read_as_one() -> None:
    begun = held(30, 40)
    begun.read([item(30)])
    read = held(20, 30)
    read.read([item(n) for n in range(20, 30)])
    some = [held(0, 10), held(10, 20), read, begun, held(40, 50), held(60, 70), held(70, 85), held(85, 90)]
    spans = [[hold.claim.lo for hold in group] for group in adjoining(some, 20)]
    assert spans == [[0, 10], [30], [40], [60], [70, 85]]
