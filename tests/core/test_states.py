"""Where an item may go: the law once more, written by hand, against the table that the code goes by."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import HoldfastError, Permanent, UsageError
from holdfast.core.model import START, ItemState, State
from holdfast.core.states import RULES, TABLE, Leads, Transition, checkpoint, move, on_plain_way, refused
from tests.core.made import PROPERTY

STAGES = 3
PENDING, DONE, SKIPPED, DEAD, CANCELLED = State
LAW: dict[Transition, tuple[set[State], set[State]]] = {
    Transition.ADMIT: (set(), {PENDING}),
    Transition.REFUSE: (set(), {DEAD}),
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
    Transition.RENEW: ({PENDING, DONE, SKIPPED, CANCELLED}, {PENDING, DEAD}),
    Transition.REWIND: ({PENDING, DONE, SKIPPED, DEAD}, {PENDING}),
    Transition.EXHAUST: ({PENDING, DONE, SKIPPED, DEAD}, {DEAD}),
}
NEW_EPOCH = {Transition.RESET, Transition.RENEW, Transition.REWIND, Transition.EXHAUST}
BACK = NEW_EPOCH - {Transition.RENEW}
MOVED = [step for step in Transition if LAW[step][0]]
"""The transitions of an item that is there."""
USED = {
    "attempt": 2,
    "due": 40.0,
    "used": 7.0,
    "wait": 3.0,
    "spent": 5,
    "requeues": 2,
    "deferred": 9.0,
    "code": "http_503",
    "reason": "no answer",
}
FRESH = {"attempt": 0, "due": 0.0, "used": 0.0, "wait": 0.0, "spent": 0, "requeues": 0, "deferred": 0.0, "code": "",
         "reason": ""}  # fmt: skip
KEPT = {"rewinds": 1}
SETTLED = {**USED, **KEPT, "due": 0.0, "wait": 0.0}
FACTS: dict[tuple[Transition, State], dict[str, object]] = {
    (Transition.CHECKPOINT, PENDING): {**FRESH, **KEPT},
    (Transition.FINISH, DONE): {**FRESH, **KEPT},
    (Transition.PROGRESS, PENDING): {**FRESH, **KEPT, "spent": 5},
    (Transition.RETRY, PENDING): {**USED, **KEPT},
    (Transition.DEFER, PENDING): {**USED, **KEPT},
    (Transition.REQUEUE, PENDING): {**USED, **KEPT, "due": 0.0, "wait": 0.0, "used": 0.0, "requeues": 3},
    (Transition.SKIP, SKIPPED): SETTLED,
    (Transition.BURY, DEAD): SETTLED,
    (Transition.CANCEL, CANCELLED): SETTLED,
    (Transition.REDRIVE, PENDING): {**FRESH, **KEPT},
    (Transition.RESOLVE, DONE): SETTLED,
    (Transition.RESOLVE, SKIPPED): SETTLED,
    (Transition.DISCARD, CANCELLED): SETTLED,
    (Transition.RECOVER, PENDING): {**USED, **KEPT},
    (Transition.RECOVER, DONE): SETTLED,
    (Transition.RESET, PENDING): {**FRESH, "rewinds": 0},
    (Transition.RENEW, PENDING): {**FRESH, "rewinds": 0},
    (Transition.RENEW, DEAD): {**FRESH, "rewinds": 0},
    (Transition.REWIND, PENDING): {**FRESH, "rewinds": 2},
    (Transition.EXHAUST, DEAD): {**FRESH, **KEPT},
}
"""What is known of an item after each step, when before it was `USED` and had gone back once."""
SAID = {"code", "reason"}
TOLD = {
    Transition.RETRY: {*SAID, "attempt", "due", "wait", "used", "spent", "deferred"},
    Transition.DEFER: {*SAID, "due", "wait", "spent", "deferred"},
    Transition.BURY: {*SAID, "attempt", "used", "spent"},
    **dict.fromkeys(
        (Transition.REFUSE, Transition.SKIP, Transition.CANCEL, Transition.RESOLVE, Transition.RECOVER,
         Transition.EXHAUST), SAID),
    Transition.RESET: {"reason"},
    Transition.REWIND: {"reason"},
}  # fmt: skip
"""What a caller may say with a step; a renewal that is refused may say more than one that is not."""


def facts_of(place: ItemState) -> dict[str, object]:
    return {name: getattr(place, name) for name in FRESH}


def stage_after(step: Transition, to: State, stage: int) -> int:
    """Where a legal step leads from a stage, the last one for a step that finishes."""
    if to is DONE:
        return STAGES
    if step is Transition.RENEW:
        return 0
    return stage + 1 if step in (Transition.CHECKPOINT, Transition.RECOVER) else stage


def test_the_table_is_the_law() -> None:
    assert set(RULES) == set(Transition)
    assert len(TABLE) == sum(len(ends) for ends in RULES.values())
    for step, (before, after) in LAW.items():
        assert set(RULES[step]) == after
        for rule in RULES[step].values():
            assert rule.from_ == before
            assert rule.epoch is (Leads.NEXT if step in NEW_EPOCH else Leads.SAME)
            told = {"reason"} if (step, rule.to) == (Transition.RENEW, PENDING) else SAID
            assert rule.takes == (told if step is Transition.RENEW else TOLD.get(step, set()))


@pytest.mark.promise("A2")
@pytest.mark.parametrize("step", Transition)
def test_a_step_leads_from_a_state_to_a_state_or_nowhere(step: Transition) -> None:
    here = 2 if step is Transition.FINISH else 1
    for before, to in itertools.product(State, State):
        place = ItemState(stage=here, state=before, epoch=4)
        target = stage_after(step, to, here)
        if before in LAW[step][0] and to in LAW[step][1]:
            after = move(place, step, to=to, stage=target, stages=STAGES)
            assert (after.state, after.stage) == (to, target)
            assert after.epoch == (5 if step in NEW_EPOCH else 4)
        else:
            with pytest.raises(UsageError, match=f"{step}.*{before}|{step} leads to"):
                move(place, step, to=to, stage=target, stages=STAGES)


@pytest.mark.promise("A2")
@pytest.mark.parametrize(("step", "to"), [(rule.transition, rule.to) for rule in TABLE if rule.from_])
def test_each_step_has_its_own_stages_to_lead_to(step: Transition, to: State) -> None:
    before = DEAD if LAW[step][0] == {DEAD} else PENDING
    for stage, target in itertools.product(range(STAGES), range(-1, STAGES + 2)):
        legal = {
            (Transition.CHECKPOINT, PENDING): target == stage + 1 < STAGES,
            (Transition.FINISH, DONE): target == stage + 1 == STAGES,
            (Transition.RESOLVE, DONE): target == STAGES,
            (Transition.RECOVER, DONE): target == STAGES,
            (Transition.RECOVER, PENDING): stage < target < STAGES,
            (Transition.RENEW, PENDING): target == 0,
            (Transition.RENEW, DEAD): target == 0,
        }.get((step, to), 0 <= target <= stage if step in BACK else target == stage)
        place = ItemState(stage=stage, state=before)
        if legal:
            assert move(place, step, to=to, stage=target, stages=STAGES).stage == target
        else:
            with pytest.raises(UsageError, match="stage"):
                move(place, step, to=to, stage=target, stages=STAGES)


@pytest.mark.parametrize("step", MOVED)
def test_where_a_step_leaves_no_choice_the_stage_need_not_be_given(step: Transition) -> None:
    before, after = (min(states) for states in LAW[step])
    place = ItemState(stage=2 if after is DONE else 1, state=before)
    if step in BACK:
        with pytest.raises(UsageError, match="pass stage="):
            move(place, step, to=after, stages=STAGES)
    else:
        assert move(place, step, to=after, stages=STAGES).stage == stage_after(step, after, place.stage)


@pytest.mark.promise("A2")
@pytest.mark.parametrize("step", sorted(BACK))
def test_what_is_done_goes_back_to_a_stage_that_there_is(step: Transition) -> None:
    place = ItemState(stage=STAGES, state=DONE)
    with pytest.raises(UsageError, match="there is no stage 3"):
        move(place, step, stage=STAGES, stages=STAGES)


@pytest.mark.parametrize(("step", "to"), FACTS)
def test_each_step_resets_what_the_law_says_and_nothing_else(step: Transition, to: State) -> None:
    here = 2 if to is DONE else 1
    place = ItemState(stage=here, state=min(LAW[step][0]), epoch=4, rewinds=1, **USED)
    after = move(place, step, to=to, stage=stage_after(step, to, here), stages=STAGES)
    assert {**facts_of(after), "rewinds": after.rewinds} == FACTS[step, to]


def test_the_law_of_facts_has_every_row() -> None:
    assert set(FACTS) == {(rule.transition, rule.to) for rule in TABLE if rule.from_}


@pytest.mark.parametrize(("step", "to"), FACTS)
def test_a_step_sets_no_fact_that_is_not_its_own(step: Transition, to: State) -> None:
    here = 2 if to is DONE else 1
    place, rule = ItemState(stage=here, state=min(LAW[step][0])), RULES[step][to]
    where = {"to": to, "stage": stage_after(step, to, here), "stages": STAGES}
    for name, value in {**USED, "rewinds": 7}.items():
        if name in rule.takes:
            assert getattr(move(place, step, **where, **{name: value}), name) == value
        else:
            with pytest.raises(UsageError, match=f"{step} does not set {name}"):
                move(place, step, **where, **{name: value})


def test_a_new_item_is_pending_at_the_first_stage_or_a_dead_letter() -> None:
    assert (START.state, START.stage, START.epoch) == (PENDING, 0, 0)
    assert refused(code="invalid", reason="no key") == ItemState(state=DEAD, code="invalid", reason="no key")


@pytest.mark.parametrize("stages", [1, STAGES])
def test_the_plain_way_is_the_rows_that_are_marked_as_plain(stages: int) -> None:
    assert {rule.transition for rule in TABLE if rule.plain} == {
        Transition.ADMIT, Transition.CHECKPOINT, Transition.FINISH
    }  # fmt: skip
    place = START
    for reached in range(1, stages + 1):
        place = checkpoint(place, reached, stages)
        assert place == on_plain_way(reached, stages)


@pytest.mark.promise("A2")
@pytest.mark.parametrize(("stage", "reached"), [(0, 2), (0, 3), (1, 3), (2, 4), (3, 4), (0, 10**9)])
def test_a_jump_over_a_stage_is_a_permanent_failure_and_changes_nothing(stage: int, reached: int) -> None:
    place = ItemState(stage=stage, **USED)
    with pytest.raises(Permanent, match=f"stage {stage}.*stage {reached}") as caught:
        checkpoint(place, reached, STAGES)
    assert caught.value.code == "illegal_jump"
    assert place == ItemState(stage=stage, **USED)


@pytest.mark.promise("A2")
def test_a_stage_leads_to_the_next_and_the_last_one_to_the_end() -> None:
    place = ItemState()
    for reached in range(1, STAGES + 1):
        place = checkpoint(place, reached, STAGES)
        assert (place.stage, place.state) == (reached, DONE if reached == STAGES else PENDING)


@pytest.mark.promise("A3")
@pytest.mark.parametrize("state", State)
def test_reaching_what_was_reached_before_changes_nothing(state: State) -> None:
    for stage, reached in itertools.product(range(STAGES + 1), range(-2, STAGES + 1)):
        place = ItemState(stage=stage, state=state, **USED)
        if reached <= stage:
            assert checkpoint(place, reached, STAGES) is place


@pytest.mark.promise("A3")
def test_a_second_checkpoint_does_not_use_up_the_attempts_of_the_next_stage() -> None:
    place = checkpoint(ItemState(), 1, STAGES)
    waiting = move(place, Transition.RETRY, stages=STAGES, attempt=2, due=40.0, wait=3.0, code="http_503")
    assert checkpoint(waiting, 1, STAGES) == waiting


@pytest.mark.promise("A2")
@pytest.mark.parametrize("state", [DONE, SKIPPED, DEAD, CANCELLED])
def test_a_settled_item_reaches_no_further_stage(state: State) -> None:
    with pytest.raises(UsageError, match=f"{state}: only pending can"):
        checkpoint(ItemState(stage=1, state=state), 2, STAGES)


def test_a_checkpoint_gives_the_next_stage_a_fresh_budget_and_keeps_the_epoch() -> None:
    after = checkpoint(ItemState(epoch=2, rewinds=1, **USED), 1, STAGES)
    assert facts_of(after) == FRESH
    assert (after.epoch, after.rewinds) == (2, 1)


@pytest.mark.promise("A1")
@pytest.mark.parametrize("step", [Transition.RESET, Transition.REWIND])
@pytest.mark.parametrize("state", [PENDING, DONE])
def test_going_back_opens_an_epoch_and_resets_the_attempts(step: Transition, state: State) -> None:
    place = ItemState(stage=2, state=state, epoch=4, rewinds=1, **USED)
    after = move(place, step, stage=1, stages=STAGES, reason="the output is gone")
    assert (after.stage, after.state, after.epoch) == (1, PENDING, 5)
    assert facts_of(after) == {**FRESH, "reason": "the output is gone"}


def test_rewinds_are_counted_and_a_reset_begins_to_count_anew() -> None:
    place = ItemState()
    for _ in range(2):
        place = move(place, Transition.REWIND, stage=0, stages=STAGES, reason="x")
    assert place.rewinds == 2
    assert move(place, Transition.RESET, stage=0, stages=STAGES, reason="x").rewinds == 0


def test_a_step_changes_only_the_facts_it_is_given() -> None:
    place = ItemState(stage=1, epoch=2, rewinds=1, **USED)
    after = move(place, Transition.DEFER, stages=STAGES, due=99.0)
    assert after == ItemState(stage=1, epoch=2, rewinds=1, **{**USED, "due": 99.0})


REQUESTS = st.one_of(
    st.tuples(
        st.just("move"), st.sampled_from(Transition), st.sampled_from([None, *State]), st.integers(-1, STAGES + 1)
    ),
    st.tuples(st.just("reach"), st.integers(-1, STAGES + 1)),
    st.tuples(st.just("back"), st.sampled_from(Transition), st.integers(-1, STAGES + 1)),
)


def asked(place: ItemState, request: tuple) -> ItemState:
    """The place after a request, sensible or not; a refused one leads nowhere."""
    try:
        match request:
            case ("move", step, to, stage):
                return move(place, step, to=to, stage=None if stage < 0 else stage, stages=STAGES)
            case ("reach", stage):
                return checkpoint(place, stage, STAGES)
            case _:
                _, step, stage = request
                return move(place, step, stage=stage, stages=STAGES, reason="asked")
    except HoldfastError:
        return place


@pytest.mark.promise("A1", "A2")
@PROPERTY
@given(st.lists(REQUESTS, max_size=30))
def test_within_an_epoch_the_stage_never_decreases_whatever_is_asked(requests: list[tuple]) -> None:
    place = ItemState()
    for request in requests:
        after = asked(place, request)
        if after.epoch == place.epoch:
            by_hand = (place.state, after.state) == (DEAD, DONE) or Transition.RECOVER in request
            assert after.stage - place.stage in (0, 1) or (by_hand and after.stage > place.stage)
        else:
            assert after.epoch == place.epoch + 1
            assert after.stage <= place.stage
            assert after.state in (PENDING, DEAD)
        assert 0 <= after.stage <= STAGES
        assert after.state is not PENDING or after.stage < STAGES
        place = after


@pytest.mark.parametrize("transition", [step for step in Transition if len(LAW[step][1]) > 1])
def test_a_transition_with_two_ends_is_told_which(transition: Transition) -> None:
    before, _ = LAW[transition]
    with pytest.raises(UsageError, match=" or "):
        move(ItemState(state=min(before)), transition, stages=2)
