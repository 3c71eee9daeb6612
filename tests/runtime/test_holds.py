"""One claimed chunk by itself: what is ready, what waits, what was tried before, what its commits say."""

from typing import Any

import pytest

from holdfast.core.limits import BLAME, SUSPECT
from holdfast.core.model import START, BatchId, ChunkId, Claim, Item, ItemNo, ItemState, Lease
from holdfast.core.outcome import Done
from holdfast.core.retry import Policy
from holdfast.core.settle import NOTHING, Reached
from holdfast.runtime.engine.hold import Hold

NOW = 1_700_000_000.0


def item(n: int, place: ItemState = START) -> Item:
    return Item(ItemNo(n), str(n), b"1", place, place is START)


def waiting(n: int, seconds: float, stage: int = 0) -> Item:
    """An item that failed just now, and waits."""
    return item(n, ItemState(stage=stage, attempt=1, due=NOW + seconds, wait=seconds))


def held(pending: int, *, stages: int = 1, fence: int = 1, blame: int = 0, reserve: int = 0, **more: Any) -> Hold:
    claim = Claim(lease=Lease(chunk=ChunkId(1), fence=fence, owner="ann", expires=0.0), batch=BatchId(1), lo=ItemNo(0),
                  hi=ItemNo(pending), version=0, blame=blame, pending=pending, uid=bytes(16), number=1,
                  end=stages)  # fmt: skip
    return Hold(claim, stages, 30.0, reserve, moment=0.0, **more)


# -- waits --------------------------------------------------------------------------------------------------------


@pytest.mark.promise("E7")
def test_what_waits_in_memory_does_not_wait_for_a_clock_that_was_set_back() -> None:
    hold = held(2)
    hold.take_in([waiting(0, 10.0), waiting(1, 8_000.0)], NOW, 0.0, from_store=True)
    hold.wake(NOW + 1.0, 1.0)
    assert hold.ready_count == 0
    hold.wake(NOW - 3_600.0, 2.0)
    assert [each.n for each in hold.ready[0].items()] == [0], "an hour is more than twice ten seconds"
    assert hold.next_due() == NOW + 8_000.0, "and not more than twice two hours"


def test_a_chunk_in_which_something_can_be_run_is_not_given_back_for_later() -> None:
    hold = held(3)
    hold.take_in([waiting(0, 100.0)], NOW, 0.0, from_store=True)
    assert hold.release_due(NOW) == 0.0, "two of its items wait for nothing"
    hold.take_in([waiting(1, 100.0), waiting(2, 200.0)], NOW, 0.0, from_store=True)
    assert NOW + 100.0 <= hold.release_due(NOW) <= NOW + 110.0


@pytest.mark.promise("E7", "P11")
def test_a_page_of_new_items_and_others_has_each_at_its_own_stage_and_time() -> None:
    hold = held(3, stages=2)
    hold.take_in([item(0), waiting(1, 100.0), item(2, ItemState(stage=1))], NOW, 0.0, from_store=True)
    assert [[each.n for each in queue.items()] for queue in hold.ready] == [[0], [2]]
    assert [n for _, n, _ in hold.waiting] == [1]


# -- what was tried before ------------------------------------------------------------------------------------------


def test_a_portion_in_which_one_item_may_have_been_tried_before_is_looked_for_first() -> None:
    hold = held(2, fence=2, adopting=frozenset({0}))
    hold.take_in([item(0)], NOW, 0.0, from_store=True)
    hold.take_in([item(1)], NOW, 0.0, from_store=False)
    _, items, resumed = hold.take(0, 2)
    assert (len(items), resumed) == (2, True)


@pytest.mark.parametrize("fence", [1, 2])
def test_what_came_back_without_being_begun_may_have_been_tried_before_as_it_was(fence: int) -> None:
    hold = held(2, fence=fence, adopting=frozenset({0}))
    hold.take_in([item(0), item(1)], NOW, 0.0, from_store=True)
    at, items, resumed = hold.take(0, 2)
    hold.put_back(0, items, at, resumed=resumed)
    assert hold.take(0, 2)[2] is (fence > 1), "the grant before may have tried it"


# -- its commits ----------------------------------------------------------------------------------------------------


@pytest.mark.promise("P13")
def test_what_is_set_aside_falls_with_every_item_that_is_settled() -> None:
    hold = held(3, reserve=10)
    hold.outcomes = [Done(item(0), b"1", 0.0, 0.0)]
    commit = hold.commit(hold.settle([Policy()], NOW), b"id")
    assert (commit.reserved, commit.release) == (20, False)


@pytest.mark.promise("P1")
def test_a_range_tells_the_rows_that_it_came_further_and_no_others() -> None:
    hold, told = held(1), list[int]()
    for rows in (10, 25, 25):
        hold.reached = [Reached(item=item(0), rows=rows, cursor=b"1")]
        told.append(hold.landed(NOTHING, NOW, 1.0))
    assert told == [10, 15, 0]


def test_a_hold_that_comes_no_further_is_not_kept_beyond_its_grace() -> None:
    hold = held(1)
    assert hold.is_kept(60.0, 60.0)
    assert not hold.is_kept(60.1, 60.0)
    hold.written(60.0)
    assert hold.is_kept(120.0, 60.0)
    hold.lose()
    assert not hold.is_kept(120.0, 60.0)


# -- suspects -------------------------------------------------------------------------------------------------------


def test_an_item_is_accused_when_a_new_process_died_under_it() -> None:
    hold = held(3)
    hold.suspect([0, 1, 2])
    assert not hold.is_accused, "the process may have died of something else"
    hold.acquit([1, 2])
    hold.suspect([0])
    assert hold.is_accused


def test_a_condemned_item_is_said_to_have_killed_what_it_was_alone_with() -> None:
    hold = held(1, blame=SUSPECT + BLAME)
    assert hold.is_condemned
    assert hold.condemned(item(0)).message == f"its process died {BLAME} times while it was handled alone"
