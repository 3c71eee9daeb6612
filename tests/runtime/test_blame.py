"""Owners that die take nobody with them: what they held is run with full concurrency, in halves, and that is told."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core import canonical, ingest, journal, sections
from holdfast.core.limits import BLAME_ENTRIES
from holdfast.core.model import Batch, BatchId, Chunk, ChunkId, Claim, ClaimRequest, Entry, ItemNo
from holdfast.runtime import lookup
from holdfast.runtime.acts import Actor
from holdfast.runtime.define import definition
from holdfast.runtime.engine.progress import sentence
from holdfast.runtime.operate import audit, resolution
from holdfast.runtime.report import orphans, status, why
from holdfast.stores import owners
from holdfast.stores.base import Store, random_bytes
from holdfast.stores.bucket import BucketStore
from holdfast.stores.buckets.memory import MemoryBucket
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from tests.runtime.support import Crowd, run

BY = Actor(name="ada", reason="spot instances")
WORKERS = 16


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    made = SqliteStore(folder / "state.db")
    yield made
    made.close()


def pipeline(store: Store, handler: Any) -> hf.Pipeline:
    book = hf.Pipeline("book", store=store)
    book.stage(name="page", concurrency=None)(handler)
    return book


def admitted(book: hf.Pipeline, count: int) -> Batch:
    """A batch whose source was read, and of which nobody has begun anything."""
    store = book.store
    described = definition.describe(book.name, book.stages, definition.DEFAULT, book.patience)
    batch = store.open_batch(book.name, book.name, described, actor="test")
    items = [ingest.admit(n, canonical.encode(n)) for n in range(count)]
    store.add_items(batch.id, items, ended=True, actor="test")
    return lookup.batch_named(store, book.name)


def die(store: Store, batch: Batch, times: int, *, limit: int = WORKERS) -> list[Claim]:
    """Owners that claim, and are never heard of again."""
    found = []
    for turn in range(times):
        want = ClaimRequest(batch=batch.id, owner=f"gone/{turn}", limit=limit, seconds=-1.0, at_once=limit)
        answer = store.claim(want)
        assert isinstance(answer, Claim)
        found.append(answer)
    return found


@pytest.mark.promise("A15")
def test_what_three_dead_owners_held_is_run_with_full_concurrency(store: Store) -> None:
    """Eight are granted of sixteen, after the third death four: all four must be inside before one may leave."""
    together, crowd, seen = threading.Barrier(4, timeout=30), Crowd(), set[int]()

    def page(n: int) -> int:
        with crowd:
            if n < 4:
                together.wait()
            seen.add(n)
        return n

    book = pipeline(store, page)
    batch = admitted(book, 48)
    assert [claim.pending for claim in die(store, batch, 3)] == [16, 16, 8]
    report = run(book, workers=WORKERS)
    assert (report.counts.done, report.counts.dead) == (48, 0)
    assert seen == set(range(48))
    assert not together.broken
    assert orphans.blame_of(store, batch, store.chunks(batch.id), now=store.now()) is None
    assert any("the last 3 owners of a chunk died before a commit" in each for each in report.warnings)
    assert audit.verify(store, lookup.batch_named(store, "book"), full=True).holds


@pytest.mark.promise("A15")
def test_a_batch_that_carries_blame_is_not_claimed_ahead(store: Store) -> None:
    """Whoever dies now had in its hands what it had begun, and nothing else."""
    inside, go = threading.Semaphore(0), threading.Event()
    held: list[int] = []

    def page(n: int) -> int:
        inside.release()
        go.wait(30)
        return n

    book = pipeline(store, page)
    batch = admitted(book, 200)
    die(store, batch, 1, limit=100)

    def look() -> None:
        for _ in range(WORKERS):
            assert inside.acquire(timeout=30)
        held.append(sum(chunk.pending for chunk in store.chunks(batch.id) if owners.is_live(chunk, store.now())))
        go.set()

    watcher = threading.Thread(target=look)
    watcher.start()
    report = run(book, workers=WORKERS)
    watcher.join()
    assert held == [WORKERS]
    assert report.counts.done == 200


@pytest.mark.promise("A15")
def test_the_last_item_of_a_suspect_is_run_with_nothing_beside_it(store: Store) -> None:
    crowd, most = Crowd(), {}

    def page(n: int) -> int:
        with crowd:
            most[n] = crowd.now
        return n

    book = pipeline(store, page)
    batch = admitted(book, 32)
    assert [claim.pending for claim in die(store, batch, 3, limit=2)] == [2, 2, 1]
    report = run(book, workers=WORKERS)
    assert (report.counts.done, most[0]) == (32, 1)


@pytest.mark.promise("A15")
def test_status_why_and_the_bar_say_who_died_and_what_follows(store: Store) -> None:
    book = pipeline(store, lambda n: n)
    batch = admitted(book, 48)
    assert status.snapshot(store, batch).blame is None
    die(store, batch, 3)
    seen = status.snapshot(store, batch)
    assert seen.blame is not None
    assert (seen.blame.deaths, seen.blame.items, seen.blame.parts, seen.blame.is_suspected) == (3, 16, 2, True)
    assert "the last 3 owners of a chunk died before a commit" in str(seen.blame)
    assert "holdfast reset book --blame" in str(seen.blame)
    assert seen.as_dict()["blame"]["deaths"] == 3
    tale = why.tell(store, batch, "0")
    assert "The last 3 owners of this chunk died before a commit" in tale.now
    assert any("--blame" in command for command in tale.commands)
    assert "died" not in why.tell(store, batch, "47").now
    assert any("3 owners" in each for each in book.report().warnings)
    shown: list[str] = []
    run(book, workers=2, progress=lambda figures: shown.append(sentence("book", figures)))


def test_the_bar_tells_while_it_is_careful(store: Store) -> None:
    shown: list[str] = []
    told = threading.Event()

    def look(figures: Any) -> None:
        shown.append(sentence("book", figures))
        if "careful: 16 items whose last 3 owners died" in shown[-1]:
            told.set()

    book = pipeline(store, lambda n: told.wait(30) and n)
    die(store, admitted(book, 48), 3)
    run(book, workers=2, progress=look)
    assert told.is_set(), shown


def stores(folder: Path) -> Iterator[Store]:
    yield MemoryStore()
    yield SqliteStore(folder / "lifted.db")
    yield BucketStore(MemoryBucket())


def test_a_person_lifts_the_blame_on_every_store(folder: Path) -> None:
    for store in stores(folder):
        book = pipeline(store, lambda n: n)
        batch = admitted(book, 48)
        if store.capabilities.one_clock:
            die(store, batch, 3)
        else:  # on a bucket a lease ends when it was seen for as long as it lasts
            claim = store.claim(ClaimRequest(batch=batch.id, owner="gone", limit=16, seconds=-1.0))
            assert isinstance(claim, Claim)
        before = [item.place for item in store.items(batch.id)]
        shown = resolution.preview_lift(store, batch)
        assert shown.items == 16
        result = shown.carry_out(reason=BY.reason, actor=BY.name)
        assert (result.kind, result.changed) == ("blame_lifted", shown["parts"])
        assert orphans.blame_of(store, batch, store.chunks(batch.id), now=store.now()) is None
        assert [item.place for item in store.items(batch.id)] == before
        assert resolution.lift_blame(store, batch, BY).changed == 0
        answer = store.claim(ClaimRequest(batch=batch.id, owner="ann", limit=48, seconds=30.0, at_once=4))
        assert isinstance(answer, Claim)
        assert (answer.blame, answer.pending > 4) == (0, True)
        tale = why.tell(store, batch, "0")
        assert "the blame of its chunk was lifted by ada: spot instances" in str(tale)
        assert audit.verify(store, lookup.batch_named(store, "book"), full=True).holds
        store.close()


def test_the_deaths_of_a_part_are_counted_without_reading_all_that_its_parent_did_since() -> None:
    read: list[int] = []

    class LongJournal:
        def entries(self, chain: int, *, after: int, limit: int) -> list[Entry]:
            read.append(limit)
            kind = "claimed" if chain == 2 else "checkpoint"
            body = journal.Checkpointed() if chain == 1 else journal.Claimed(lo=0, hi=1, expires=0.0)
            return [
                journal.link(journal.GENESIS, journal.Chain(bytes(16), chain, chain), seq=after + 1 + n, kind=kind,
                             at=0.0, actor="gone", fence=1,
                             encoded=sections.encode(body, bytes(16), chain, b"", random_bytes))
                for n in range(limit)
            ]  # fmt: skip

    parent = Chunk(id=ChunkId(1), number=1, batch=BatchId(1), lo=ItemNo(0), hi=ItemNo(9), seq=1_000_000)
    child = Chunk(id=ChunkId(2), number=2, batch=BatchId(1), lo=ItemNo(9), hi=ItemNo(10), seq=3, parent=ChunkId(1))
    store: Any = LongJournal()
    assert orphans.count_deaths(store, child, {parent.id: parent, child.id: child}, now=0.0) == 3
    assert sum(read) <= BLAME_ENTRIES
