"""One message in trouble: overtaken, sealed off, out of time, deadly; and what it never touches."""

import os
import time
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.core.limits import BLAME, SUSPECT
from holdfast.core.model import Claim, ClaimRequest, ItemNo
from holdfast.runtime import lookup
from holdfast.runtime.acts import Actor
from holdfast.runtime.engine.exchange import Deadline
from holdfast.runtime.engine.hold import Hold
from holdfast.runtime.message import Processor
from holdfast.runtime.operate import operations, steer
from holdfast.runtime.report import lifecycle
from holdfast.runtime.report.reconcile import reconcile
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import ManualClock
from tests.runtime.support import Calls

BY = Actor(name="ann", reason="mine")


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def pages(clock: ManualClock, calls: Calls) -> hf.Pipeline:
    made = hf.Pipeline("book", store=MemoryStore(clock=clock))

    @made.stage
    def read(n: int) -> int:
        calls(n)
        return n

    return made


@pytest.mark.promise("C13", "P6")
def test_whoever_was_overtaken_gives_its_file_no_name(book: hf.Pipeline, folder: Path) -> None:
    @book.stage(sink=hf.Files("out/{key}.json"))
    def read(n: int) -> int:
        operations.reset(book.store, lookup.batch_named(book.store, "book"), BY, str(n))
        return n

    assert "taken over" in book.process(1).why
    assert not (folder / "out" / "1.json").exists()


@pytest.mark.promise("A14")
def test_work_that_comes_after_the_seal_is_not_answered_as_if_it_counted(book: hf.Pipeline) -> None:
    @book.stage
    def read(n: int) -> int:
        batch = lookup.batch_named(book.store, "book")
        steer.cancel(book.store, batch, BY, at_once=True)
        lifecycle.seal(book.store, batch, reconcile(book.store, batch), actor="ann")
        return n

    with pytest.raises(hf.Refused, match="sealed meanwhile: the outcome is not recorded"):
        book.process(1)


def processor(pages: hf.Pipeline, *, seconds: float) -> Processor:
    return Processor(pages, batch="book", key=None, changed="refuse", lease=30.0, deadline=time.monotonic() + seconds)


def test_a_stage_that_took_longer_before_than_there_is_time_is_not_begun(pages: hf.Pipeline, calls: Calls) -> None:
    with processor(pages, seconds=600.0) as brief:
        assert brief.process(1).state == "done"
        brief._slowest[0] = 3_600.0
        assert brief.process(2).state == "again"
    assert calls.seen == [1]
    assert pages.process(2).state == "done"


def test_what_was_not_begun_in_time_costs_nothing(pages: hf.Pipeline, calls: Calls) -> None:
    with processor(pages, seconds=600.0) as late:
        n = late.store.add_items(late.batch.id, [late.ingester.freeze(7, None)], actor="ann").lo
        late.deadline = Deadline(time.monotonic() - 1.0)
        claim = late.driver.claim(n)
        assert isinstance(claim, Claim)
        with late.driver.held(claim) as hold:
            item = hold.load(n)
            assert item is not None
            work = hold.assign(0, item)
            assert late.inline.run(late.runners[0], work, late.deadline) is None
            assert late.inline._give_up(late.runners[0], work, 0.0) is None, "whoever looks first"
    assert not calls.seen
    assert pages.process(7).state == "done"


def test_a_message_never_brings_its_neighbour(pages: hf.Pipeline) -> None:
    """Both stand in one chunk, and the first is settled."""
    with processor(pages, seconds=600.0) as at_work:
        items = [at_work.ingester.freeze(n, None) for n in (1, 2)]
        at_work.store.add_items(at_work.batch.id, items, actor="ann")
        assert at_work.process(1).state == "done"
        claim = at_work.store.claim(ClaimRequest(batch=at_work.batch.id, owner="ann", limit=2, seconds=30.0))
        assert isinstance(claim, Claim)
        assert claim.lo == 0
        with at_work.driver.held(claim) as hold:
            assert hold.load(ItemNo(0)) is None
            assert hold.load(ItemNo(1)) is not None


@pytest.mark.promise("A15")
def test_a_message_that_killed_its_process_too_often_is_buried_and_not_run_again(
    pages: hf.Pipeline, clock: ManualClock, calls: Calls
) -> None:
    with processor(pages, seconds=600.0) as first:
        first.store.add_items(first.batch.id, [first.ingester.freeze(7, None)], actor="ann")
        for _ in range(SUSPECT + BLAME):
            die(first.store, first.batch.id, clock)
    result = pages.process(7)
    assert (result.state, result.code, calls.seen) == ("dead", "killed_process", [])


def die(store: Store, batch: int, clock: ManualClock) -> None:
    """Claim the one item, say that it is begun where that has to be said, and be gone."""
    claim = store.claim(ClaimRequest(batch=batch, owner="gone", limit=1, seconds=30.0, only=ItemNo(0)))
    assert isinstance(claim, Claim)
    hold = Hold(claim, 1, 30.0, moment=0.0)
    if hold.on_trial:
        assert store.commit([hold.start(os.urandom(16))])[0].landed
    clock.advance(31.0)


@pytest.mark.promise("E1")
def test_hooks_hear_of_a_message_that_is_not_valid_and_only_once(pages: hf.Pipeline) -> None:
    heard: list[tuple[object, str]] = []
    pages.on_failure(lambda letter: heard.append((letter.key, letter.code)))
    for _ in range(2):
        assert pages.process("seven").state == "dead"
    assert heard == [("seven", "invalid")]


@pytest.mark.promise("C6", "C7")
def test_a_lease_that_cannot_be_kept_is_lost_at_once(pages: hf.Pipeline) -> None:
    with processor(pages, seconds=600.0) as at_work:
        at_work.store.add_items(at_work.batch.id, [at_work.ingester.freeze(7, None)], actor="ann")
        claim = at_work.driver.claim(ItemNo(0))
        assert isinstance(claim, Claim)
        with at_work.driver.held(claim) as hold:
            at_work.driver._in_trouble("the store is away")
            assert hold.lost
            assert "the store is away" in at_work._lost(hold)
