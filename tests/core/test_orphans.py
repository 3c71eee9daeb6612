"""Which items are stuck, exactly at the bounds; and what becomes of one when somebody decides."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.acts import OrphanFacts, OrphanKind, Strategy, begun, judge_orphan, resolve_orphan, still_since
from holdfast.core.errors import UsageError
from holdfast.core.limits import DEAD_AGE, ORPHAN_GRACE, REQUEUES
from holdfast.core.model import BatchId, BatchMode, Chunk, ChunkId, ItemNo, ItemState, State
from holdfast.core.states import checkpoint

NOW = 1_700_000_000.0
STAGES = 3
whole = st.integers(1, 1_000_000)


def kind(
    facts: OrphanFacts, *, now: float = NOW, grace: float = ORPHAN_GRACE, dead_after: float = DEAD_AGE
) -> OrphanKind | None:
    return judge_orphan(facts, now=now, grace=grace, dead_after=dead_after)


@pytest.mark.promise("A9")
@given(grace=whole, over=st.floats(0.001, 1e6), due=st.integers(-1_000_000, 0), written=st.integers(0, 1_000_000))
def test_a_dropped_item_is_an_orphan_past_the_grace_period_and_not_at_it_whatever_its_batch_does(
    grace: int, over: float, due: int, written: int
) -> None:
    """Whole seconds, so that the bound itself is met exactly."""
    began = NOW - 2_000_000
    facts = OrphanFacts(
        state=State.PENDING, progressed_at=began, due=began + due, was_claimed=True, written_at=began + written
    )
    assert still_since(facts) == began
    assert kind(facts, now=began + grace, grace=grace) is None
    assert kind(facts, now=began + grace + over, grace=grace) is OrphanKind.STUCK


@pytest.mark.promise("A9")
@given(grace=whole, over=st.floats(0.001, 1e6), written=st.integers(0, 1_000_000), hands=st.booleans())
def test_what_waits_its_turn_or_is_held_is_an_orphan_only_when_nothing_is_written_in_its_batch(
    grace: int, over: float, written: int, hands: bool
) -> None:
    began = NOW - 2_000_000
    facts = OrphanFacts(
        state=State.PENDING, progressed_at=began, was_claimed=hands, is_held=hands, written_at=began + written
    )
    assert kind(facts, now=began + written + grace, grace=grace) is None
    assert kind(facts, now=began + written + grace + over, grace=grace) is OrphanKind.STUCK


@pytest.mark.promise("A9")
@given(grace=whole, later=whole, dropped=st.booleans())
def test_a_planned_wait_is_not_standing_still(grace: int, later: int, dropped: bool) -> None:
    began = NOW - 3 * grace
    moment = began + later
    facts = OrphanFacts(state=State.PENDING, progressed_at=began, due=moment, was_claimed=dropped)
    assert kind(facts, now=moment + grace, grace=grace) is None
    assert kind(facts, now=moment + grace + 1, grace=grace) is OrphanKind.STUCK


@pytest.mark.promise("A9")
def test_begun_is_told_by_the_chain_of_the_chunk_and_never_by_its_fence() -> None:
    rest = Chunk(id=ChunkId(2), batch=BatchId(1), parent=ChunkId(1), lo=ItemNo(5), hi=ItemNo(9), fence=7)
    assert not begun(rest, ItemState())
    assert begun(rest, ItemState(stage=1))
    assert begun(msgspec.structs.replace(rest, seq=1), ItemState())


@pytest.mark.promise("A9")
@given(
    state=st.sampled_from([State.DONE, State.SKIPPED, State.CANCELLED, State.DEAD]),
    course=st.sampled_from(BatchMode),
    idle=st.integers(0, 10**9),
)
def test_what_is_settled_is_never_an_orphan(state: State, course: BatchMode, idle: int) -> None:
    found = kind(OrphanFacts(state=state, course=course, progressed_at=NOW - idle))
    assert found not in (OrphanKind.STUCK, OrphanKind.STRANDED)
    assert found is None or state is State.DEAD


@pytest.mark.promise("A10")
@given(age=whole, over=st.floats(0.001, 1e6))
def test_a_dead_letter_is_unanswered_past_its_age_limit_and_not_at_it(age: int, over: float) -> None:
    letter = OrphanFacts(state=State.DEAD, progressed_at=NOW)
    assert kind(letter, now=NOW + age, dead_after=age) is None
    assert kind(letter, now=NOW + age + over, dead_after=age) is OrphanKind.UNANSWERED


@pytest.mark.promise("A10")
def test_in_a_cancelled_batch_what_is_pending_is_stranded_at_once() -> None:
    for held in (False, True):
        facts = OrphanFacts(
            state=State.PENDING, course=BatchMode.CANCELLED, progressed_at=NOW, is_held=held, written_at=NOW
        )
        assert kind(facts) is OrphanKind.STRANDED
    assert kind(OrphanFacts(state=State.PENDING, course=BatchMode.PAUSED, progressed_at=NOW)) is None


PLACES = st.builds(
    ItemState,
    stage=st.integers(0, STAGES - 1),
    epoch=st.integers(0, 5),
    attempt=st.integers(0, 5),
    due=st.floats(0, 1e9),
    used=st.floats(0, 1e9),
    spent=st.integers(0, 100),
    rewinds=st.integers(0, 3),
    requeues=st.integers(0, REQUEUES + 1),
    code=st.sampled_from(["", "http_503"]),
)


@pytest.mark.promise("A11", "A15")
@given(PLACES)
def test_a_requeue_keeps_the_checkpoint_and_is_capped(place: ItemState) -> None:
    after = resolve_orphan(place, Strategy.REQUEUE, stages=STAGES, reason="again")
    assert isinstance(after, ItemState)
    assert (after.stage, after.epoch, after.attempt) == (place.stage, place.epoch, place.attempt)
    if place.requeues < REQUEUES:
        assert (after.state, after.due, after.used) == (State.PENDING, 0.0, 0.0)
        assert after.requeues == place.requeues + 1
    else:
        assert (after.state, after.code) == (State.DEAD, "requeued_too_often")
        assert f"{place.requeues} times" in after.reason


@pytest.mark.promise("A15")
def test_the_count_of_requeues_begins_again_with_progress() -> None:
    place = ItemState()
    for _ in range(REQUEUES):
        again = resolve_orphan(place, Strategy.REQUEUE, stages=STAGES, reason="again")
        assert isinstance(again, ItemState)
        place = again
    assert place.requeues == REQUEUES
    assert checkpoint(place, 1, STAGES).requeues == 0


@pytest.mark.promise("A12")
@given(PLACES, st.sampled_from([(Strategy.FAIL, "orphaned"), (Strategy.REVIEW, "review")]))
def test_failing_and_reviewing_change_the_state_and_not_the_position(
    place: ItemState, how: tuple[Strategy, str]
) -> None:
    after = resolve_orphan(place, how[0], stages=STAGES, reason="nobody knows")
    assert isinstance(after, ItemState)
    assert (after.state, after.code, after.reason) == (State.DEAD, how[1], "nobody knows")
    assert (after.stage, after.epoch, after.attempt, after.due) == (place.stage, place.epoch, place.attempt, 0.0)


def test_a_cancelled_batch_takes_nothing_up_again() -> None:
    assert "cancelled" in str(
        resolve_orphan(ItemState(), Strategy.REQUEUE, stages=1, reason="x", course=BatchMode.CANCELLED)
    )


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("state", [State.DONE, State.DEAD, State.SKIPPED, State.CANCELLED])
def test_only_what_is_pending_can_be_resolved(strategy: Strategy, state: State) -> None:
    with pytest.raises(UsageError):
        resolve_orphan(ItemState(state=state), strategy, stages=1, reason="x")
