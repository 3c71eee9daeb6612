"""Where an item may go: the law once more, written by hand, against the table that the code goes by."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import HoldfastError, Permanent, UsageError
from holdfast.core.model import Place, State
from holdfast.core.states import TABLE, Transition, checkpoint, go_back, move
from tests.core.made import PROPERTY

STAGES = 3
PENDING, DONE, SKIPPED, DEAD, CANCELLED = State
LAW: dict[Transition, tuple[set[State], set[State]]] = {
    Transition.CHECKPOINT: ({PENDING}, {PENDING}),
    Transition.PROGRESS: ({PENDING}, {PENDING}),
    Transition.FINISH: ({PENDING}, {DONE}),
    Transition.RETRY: ({PENDING}, {PENDING}),
    Transition.DEFER: ({PENDING}, {PENDING}),
    Transition.REQUEUE: ({PENDING}, {PENDING}),
    Transition.SKIP: ({PENDING}, {SKIPPED}),
    Transition.BURY: ({PENDING}, {DEAD}),
    Transition.CANCEL: ({PENDING}, {CANCELLED}),
    Transition.REDRIVE: ({DEAD}, {PENDING}),
    Transition.RESOLVE: ({DEAD}, {DONE, SKIPPED}),
    Transition.DISCARD: ({DEAD}, {CANCELLED}),
    Transition.RECOVER: ({PENDING}, {PENDING, DONE}),
    Transition.RESET: ({PENDING, DONE, SKIPPED, DEAD, CANCELLED}, {PENDING}),
    Transition.REWIND: ({PENDING, DONE, SKIPPED, DEAD}, {PENDING}),
}
USED = {
    "attempt": 2,
    "due": 40.0,
    "used": 7.0,
    "wait": 3.0,
    "spent": 5,
    "requeues": 2,
    "code": "http_503",
    "reason": "no answer",
}
FRESH = {"attempt": 0, "due": 0.0, "used": 0.0, "wait": 0.0, "spent": 0, "requeues": 0, "code": "", "reason": ""}


def facts_of(place: Place) -> dict[str, object]:
    return {name: getattr(place, name) for name in FRESH}


def stage_after(step: Transition, to: State, stage: int) -> int:
    """Where a legal step leads from a stage."""
    if step in (Transition.CHECKPOINT, Transition.FINISH) or (step is Transition.RECOVER and to is not DONE):
        return stage + 1
    if step is Transition.RECOVER:
        return STAGES
    return STAGES if step is Transition.RESOLVE and to is DONE else stage


def test_the_table_is_the_law() -> None:
    assert {step: (set(before), set(after)) for step, (before, after) in TABLE.items()} == LAW
    assert set(TABLE) == set(Transition)


@pytest.mark.promise("A2")
@pytest.mark.parametrize("step", Transition)
def test_a_step_leads_from_a_state_to_a_state_or_nowhere(step: Transition) -> None:
    for before, to in itertools.product(State, State):
        place = Place(stage=1, state=before, epoch=4)
        target = stage_after(step, to, 1)
        if before in LAW[step][0] and to in LAW[step][1]:
            after = move(place, step, to=to, stage=target, stages=STAGES)
            assert (after.state, after.stage) == (to, target)
            assert after.epoch == (5 if step in (Transition.RESET, Transition.REWIND) else 4)
        else:
            with pytest.raises(UsageError, match=f"{step}.*{before}|{step} leads to"):
                move(place, step, to=to, stage=target, stages=STAGES)


@pytest.mark.promise("A2")
@pytest.mark.parametrize("step", Transition)
def test_each_step_has_its_own_stages_to_lead_to(step: Transition) -> None:
    before = DEAD if step in (Transition.REDRIVE, Transition.RESOLVE, Transition.DISCARD) else PENDING
    to = min(LAW[step][1])
    for stage, target in itertools.product(range(STAGES), range(-1, STAGES + 2)):
        legal = {
            Transition.CHECKPOINT: target == stage + 1 < STAGES,
            Transition.FINISH: target == stage + 1 <= STAGES,
            Transition.RESOLVE: target in (stage, STAGES),
            Transition.RECOVER: target == STAGES,
            Transition.RESET: 0 <= target <= stage,
            Transition.REWIND: 0 <= target <= stage,
        }.get(step, target == stage)
        place = Place(stage=stage, state=before)
        if legal:
            assert move(place, step, to=to, stage=target, stages=STAGES).stage == target
        else:
            with pytest.raises(UsageError, match="stage"):
                move(place, step, to=to, stage=target, stages=STAGES)


@pytest.mark.promise("A2")
@pytest.mark.parametrize(("stage", "reached"), [(0, 2), (0, 3), (1, 3), (2, 4), (3, 4), (0, 10**9)])
def test_a_jump_over_a_stage_is_a_permanent_failure_and_changes_nothing(stage: int, reached: int) -> None:
    place = Place(stage=stage, **USED)
    with pytest.raises(Permanent, match=f"stage {stage}.*stage {reached}") as caught:
        checkpoint(place, reached, STAGES)
    assert caught.value.code == "illegal_jump"
    assert place == Place(stage=stage, **USED)


@pytest.mark.promise("A2")
def test_a_stage_leads_to_the_next_and_the_last_one_to_the_end() -> None:
    place = Place()
    for reached in range(1, STAGES + 1):
        place = checkpoint(place, reached, STAGES)
        assert (place.stage, place.state) == (reached, DONE if reached == STAGES else PENDING)


@pytest.mark.promise("A3")
@pytest.mark.parametrize("state", State)
def test_reaching_what_was_reached_before_changes_nothing(state: State) -> None:
    for stage, reached in itertools.product(range(STAGES + 1), range(-2, STAGES + 1)):
        place = Place(stage=stage, state=state, **USED)
        if reached <= stage:
            assert checkpoint(place, reached, STAGES) is place


@pytest.mark.promise("A3")
def test_a_second_checkpoint_does_not_use_up_the_attempts_of_the_next_stage() -> None:
    place = checkpoint(Place(), 1, STAGES)
    waiting = move(place, Transition.RETRY, stages=STAGES, **USED)
    assert checkpoint(waiting, 1, STAGES) == waiting


@pytest.mark.promise("A2")
@pytest.mark.parametrize("state", [DONE, SKIPPED, DEAD, CANCELLED])
def test_a_settled_item_reaches_no_further_stage(state: State) -> None:
    with pytest.raises(UsageError, match=f"{state}: only pending can"):
        checkpoint(Place(stage=1, state=state), 2, STAGES)


def test_a_checkpoint_gives_the_next_stage_a_fresh_budget_and_keeps_the_epoch() -> None:
    after = checkpoint(Place(epoch=2, rewinds=1, **USED), 1, STAGES)
    assert facts_of(after) == FRESH
    assert (after.epoch, after.rewinds) == (2, 1)


@pytest.mark.promise("A1")
@pytest.mark.parametrize("step", [Transition.RESET, Transition.REWIND])
@pytest.mark.parametrize("state", [PENDING, DONE])
def test_going_back_opens_an_epoch_and_resets_the_attempts(step: Transition, state: State) -> None:
    place = Place(stage=2, state=state, epoch=4, rewinds=1, **USED)
    after = go_back(place, step, 1, STAGES, reason="the output is gone")
    assert (after.stage, after.state, after.epoch) == (1, PENDING, 5)
    assert facts_of(after) == {**FRESH, "reason": "the output is gone"}


def test_rewinds_are_counted_and_a_reset_begins_to_count_anew() -> None:
    twice = go_back(
        go_back(Place(), Transition.REWIND, 0, STAGES, reason="x"), Transition.REWIND, 0, STAGES, reason="x"
    )
    assert twice.rewinds == 2
    assert go_back(twice, Transition.RESET, 0, STAGES, reason="x").rewinds == 0


def test_a_step_changes_only_the_facts_it_is_given() -> None:
    place = Place(stage=1, epoch=2, rewinds=1, **USED)
    after = move(place, Transition.DEFER, stages=STAGES, due=99.0)
    assert after == Place(stage=1, epoch=2, rewinds=1, **{**USED, "due": 99.0})


REQUESTS = st.one_of(
    st.tuples(
        st.just("move"), st.sampled_from(Transition), st.sampled_from([None, *State]), st.integers(-1, STAGES + 1)
    ),
    st.tuples(st.just("reach"), st.integers(-1, STAGES + 1)),
    st.tuples(st.just("back"), st.sampled_from(Transition), st.integers(-1, STAGES + 1)),
)


def asked(place: Place, request: tuple) -> Place:
    """The place after a request, sensible or not; a refused one leads nowhere."""
    try:
        match request:
            case ("move", step, to, stage):
                return move(place, step, to=to, stage=None if stage < 0 else stage, stages=STAGES)
            case ("reach", stage):
                return checkpoint(place, stage, STAGES)
            case _:
                _, step, stage = request
                return go_back(place, step, stage, STAGES, reason="asked")
    except HoldfastError:
        return place


@pytest.mark.promise("A1", "A2")
@PROPERTY
@given(st.lists(REQUESTS, max_size=30))
def test_within_an_epoch_the_stage_never_decreases_whatever_is_asked(requests: list[tuple]) -> None:
    place = Place()
    for request in requests:
        after = asked(place, request)
        if after.epoch == place.epoch:
            by_hand = (place.state, after.state) == (DEAD, DONE) or Transition.RECOVER in request
            assert after.stage - place.stage in (0, 1) or (by_hand and after.stage > place.stage)
        else:
            assert after.epoch == place.epoch + 1
            assert after.stage <= place.stage
            assert after.state is PENDING
        assert 0 <= after.stage <= STAGES
        assert after.state is not PENDING or after.stage < STAGES
        place = after


@pytest.mark.parametrize("transition", [t for t, (_, after) in TABLE.items() if len(after) > 1])
def test_a_transition_with_two_ends_is_told_which(transition: Transition) -> None:
    before, _ = TABLE[transition]
    with pytest.raises(UsageError, match=" or "):
        move(Place(state=min(before)), transition, stages=2)
