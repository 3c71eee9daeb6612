"""The rules between the chunks that a run holds: who is kept apart, what is written before what, what is let go."""

from collections.abc import Sequence

import msgspec
import pytest

from holdfast.core.course import Barrier
from holdfast.core.limits import BLAME, SUSPECT
from holdfast.core.model import BatchMode, CommitRefusal, DeadLimit, Kind, Receipt
from holdfast.core.settle import Reached
from holdfast.runtime.define.stage import WorkFacts
from holdfast.runtime.engine import exchange as ex
from holdfast.runtime.engine.hold import Saving
from holdfast.stores.base import Idle
from tests.core.made import chunk
from tests.runtime.rehearsal import NOW, Rehearsal, claim, died, done

SOME_LEFT = Idle(pending=1)
RANGES = WorkFacts(kind=Kind.PARTITIONS, travels_alone=True, has_checkpoints=True,
                   spares=frozenset({Kind.PARTITIONS}))  # fmt: skip


def woken(events: Sequence[ex.Event]) -> Sequence[ex.Event]:
    """The same, and there may be something to claim."""
    return [*events, ex.Woken()]


# -- suspects -------------------------------------------------------------------------------------------------------


def test_nothing_is_begun_or_claimed_beside_a_suspect() -> None:
    """What a process had in its hands when it died is blamed for that."""
    run = Rehearsal(claim(0, 2), SOME_LEFT, claim(10, 12, blame=SUSPECT), claim(20, 22), workers=8)
    beside: list[set[int]] = []

    def look() -> Sequence[ex.Event]:
        beside.append({work.hold.claim.lo for work in run.begun})
        return run.come_back(done)

    run.play(run.nothing, run.nothing, lambda: woken([]), run.nothing, run.nothing, *[look] * 9)
    assert {10} in beside
    assert all(len(some) < 2 for some in beside if 10 in some), beside
    taken = [run.noted.index(effect) for effect in run.all(ex.Taken) if effect.hold.claim.lo == 10]
    first = next(at for at, effect in enumerate(run.noted) if isinstance(effect, ex.Write) and at > taken[0] and any(
        each.hold.claim.lo == 10 for each in effect.group))  # fmt: skip
    assert not [effect for effect in run.noted[taken[0] : first] if isinstance(effect, ex.AskFor)]


@pytest.mark.promise("A7")
def test_deaths_that_were_withheld_are_written_before_their_chunk_makes_room_for_a_suspect() -> None:
    run = Rehearsal(claim(0, 2), SOME_LEFT, claim(10, 11, blame=SUSPECT))
    run.play(run.nothing, run.nothing, lambda: woken(run.all_die()))
    assert (run.written("dead"), run.written("done")) == (2, 1), "what was paid for is not forgotten"


@pytest.mark.promise("A7")
def test_deaths_that_were_withheld_are_written_before_payloads_are_compared() -> None:
    run = Rehearsal(claim(0, 2), SOME_LEFT)

    def compare() -> Sequence[ex.Event]:
        run.orders.comparing = True
        return run.all_die()

    def compared() -> Sequence[ex.Event]:
        run.orders.comparing = False
        return woken([])

    run.play(run.nothing, run.nothing, compare, run.nothing, run.nothing, compared)
    assert run.written("dead") == 2, "what was paid for is not forgotten"


def test_a_run_that_is_careful_asks_for_no_more_than_it_can_begin() -> None:
    run = Rehearsal(claim(0, 2, blame=1), workers=3)
    run.play()
    assert run.all(ex.AskFor)[1].request.limit == 1, "two of three workers have something to do"


@pytest.mark.promise("A7")
def test_a_range_that_killed_its_process_too_often_is_run_all_the_same_and_an_item_is_not() -> None:
    """What the range died of is found and buried instead."""
    deadly = claim(0, 1, blame=SUSPECT + BLAME)
    items = Rehearsal(deadly).play()
    assert (len(items.all(ex.Begin)), items.written("dead")) == (0, 1)
    ranges = Rehearsal(msgspec.structs.replace(deadly, kind=Kind.PARTITIONS), work=RANGES).play()
    assert (len(ranges.all(ex.Begin)), ranges.written("dead")) == (1, 0)
    assert ranges.all(ex.Begin)[0].work.is_condemned


def test_a_process_that_dies_while_the_run_stops_is_held_against_nobody() -> None:
    run = Rehearsal(claim(0, 1))

    def break_() -> Sequence[ex.Event]:
        (work,) = run.begun
        run.begun.clear()
        return [ex.Broken(work, "killed", work.items[0])]

    def end_everything() -> Sequence[ex.Event]:
        assert run.begun[0].lone, "two processes died under it"
        run.orders.stopping = True
        return break_()

    run.play(run.nothing, break_, break_, end_everything)
    assert [each.commit.moves for effect in run.all(ex.Write) for each in effect.group] == [()], "it is only given back"


# -- leases and checkpoints -----------------------------------------------------------------------------------------


def test_one_lease_that_ran_out_is_renewed_at_once_whatever_the_others_do() -> None:
    run = Rehearsal(claim(0, 2, expires=NOW + 100.0), claim(10, 12, expires=NOW + 0.1))
    run.play(run.nothing, run.nothing, run.nothing)
    assert run.all(ex.Renew)


@pytest.mark.promise("B4", "C8")
def test_a_checkpoint_whose_commit_was_refused_is_not_acknowledged() -> None:
    run = Rehearsal(claim(0, 1, kind=Kind.PARTITIONS), work=RANGES)
    run.receipts = [Receipt(landed=False, reason=CommitRefusal.LOST)]

    def save() -> Sequence[ex.Event]:
        (work,) = run.begun
        run.begun.clear()
        return [ex.CheckpointReached(work, Saving(Reached(item=work.items[0], rows=5, cursor=b"5"), "the handler"))]

    run.play(run.nothing, save)
    assert [(reply.savings[0].waiter, reply.landed) for reply in run.all(ex.Reply)] == [("the handler", False)]


# -- when it is over --------------------------------------------------------------------------------------------------


def test_a_pause_is_noticed_while_items_are_at_work() -> None:
    run = Rehearsal(claim(0, 2))

    def pause() -> Sequence[ex.Event]:
        run.batch = msgspec.structs.replace(run.batch, course=BatchMode.PAUSED)
        return []

    run.play(run.nothing, pause, run.nothing, run.nothing, seconds=3.0)
    assert set(run.stopped) == {"paused"}


def test_the_dead_are_counted_after_each_commit_that_buries_something() -> None:
    run = Rehearsal(claim(0, 1), claim(10, 11), SOME_LEFT, claim(20, 22), tolerance=DeadLimit(count=0))

    def one_of_two_dies() -> Sequence[ex.Event]:
        run.chunks = [chunk(0, 1, dead=1)]
        return run.come_back(lambda one: died(one) if one.n == 0 else done(one))

    run.play(run.nothing, run.nothing, one_of_two_dies)
    assert run.stopped == ["tolerance"]
    assert len(run.all(ex.Taken)) == 2, "nothing more is claimed"


@pytest.mark.promise("P13")
def test_while_nothing_is_known_of_costs_one_item_is_claimed() -> None:
    run = Rehearsal(claim(0, 1), cap=1_000)
    run.play()
    assert run.all(ex.AskFor)[0].request.limit == 1


def test_no_more_items_travel_together_than_may_still_die() -> None:
    run = Rehearsal(claim(0, 2), tolerance=DeadLimit(count=20))
    run.chunks = [chunk(0, 100, dead=5)]
    run.play()
    assert run.desk.slots.most == 15


@pytest.mark.promise("P13")
@pytest.mark.parametrize("held", [0, 1])
def test_a_budget_that_others_have_only_set_aside_is_waited_for(held: int) -> None:
    run = Rehearsal(Idle(pending=2, held=held, why=Barrier.BUDGET), claim(0, 2), cap=1_000)
    run.play(run.nothing, lambda: woken([]))
    assert (set(run.stopped), run.written("done")) == (({"budget"}, 0) if not held else (set(), 2))
