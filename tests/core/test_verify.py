"""Where an item goes back to: the law once more, as properties over everything that looks can say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.limits import REWINDS, UNDO_ITEMS, UNDO_SHARE
from holdfast.core.model import ItemState, State
from holdfast.core.verify import (
    GoesBack,
    Inspection,
    Stays,
    Unclear,
    Verdict,
    decide,
    is_enough_to_judge,
    is_too_much,
    may_have_been_tried,
    next_to_ask,
    rewound,
)
from holdfast.runtime.define.options import count_or_share
from tests.core.made import PROPERTY

HOLDS, FAILS, UNKNOWN = Verdict.HOLDS, Verdict.FAILS, Verdict.UNKNOWN
WORLDS = st.lists(st.sampled_from(Verdict), min_size=1, max_size=12)
"""What a look at each stage would say, from the first on."""


def all_seen(world: list[Verdict]) -> list[Inspection]:
    return [Inspection(stage, verdict, f"because of {stage}") for stage, verdict in enumerate(world)]


def asked_downward(world: list[Verdict]) -> list[Inspection]:
    seen: list[Inspection] = []
    while (stage := next_to_ask(len(world), seen)) is not None:
        seen.append(Inspection(stage, world[stage], f"because of {stage}"))
    return seen


@PROPERTY
@given(WORLDS)
@pytest.mark.promise("A5", "A6")
def test_before_an_item_goes_on_it_is_asked_downward_until_something_holds(world: list[Verdict]) -> None:
    seen = asked_downward(world)
    assert [each.stage for each in seen] == [*range(len(world) - 1, len(world) - 1 - len(seen), -1)]
    assert all(each.verdict is FAILS for each in seen[:-1])
    decision = decide(seen)
    if world[-1] is HOLDS:
        assert decision == Stays()
        assert len(seen) == 1
    if isinstance(decision, GoesBack):
        assert decision.stage == 0 or world[decision.stage - 1] is HOLDS
        assert all(verdict is FAILS for verdict in world[decision.stage :])


@PROPERTY
@given(WORLDS)
@pytest.mark.promise("A5", "A6")
def test_whatever_does_not_hold_is_made_again_and_no_more_than_that_needs(world: list[Verdict]) -> None:
    decision = decide(all_seen(world))
    failed = [stage for stage, verdict in enumerate(world) if verdict is FAILS]
    if isinstance(decision, GoesBack):
        assert decision.stage == min(failed)
        assert decision.why == f"because of {decision.stage}"
        assert decision.stage == 0 or world[decision.stage - 1] is HOLDS
    elif isinstance(decision, Unclear):
        assert world[decision.seen.stage] is UNKNOWN
        assert not failed or decision.seen.stage == min(failed) - 1
    else:
        assert set(world) == {HOLDS}


@PROPERTY
@given(WORLDS, st.booleans())
@pytest.mark.promise("A6")
def test_what_cannot_be_said_never_sends_an_item_back(world: list[Verdict], downward: bool) -> None:
    if FAILS not in world:
        look = asked_downward if downward else all_seen
        assert not isinstance(decide(look(world)), GoesBack)


def test_nothing_is_asked_of_an_item_at_its_first_stage() -> None:
    assert next_to_ask(0, []) is None
    assert decide([]) == Stays()


@given(st.integers(0, 5), st.integers(0, REWINDS + 2), st.integers(0, 9))
@pytest.mark.promise("A6", "A15")
def test_going_back_is_a_new_epoch_and_ends_after_three_times(stage: int, rewinds: int, epoch: int) -> None:
    place = ItemState(stage=5, state=State.DONE, epoch=epoch, rewinds=rewinds, attempt=0)
    after = rewound(place, min(stage, 4), 5, reason="gone")
    assert after.epoch == epoch + 1
    if rewinds < REWINDS:
        assert (after.state, after.stage, after.rewinds) == (State.PENDING, min(stage, 4), rewinds + 1)
        assert after.reason == "gone"
    else:
        assert (after.state, after.code, after.rewinds) == (State.DEAD, "rewound_too_often", rewinds)


@PROPERTY
@given(st.integers(0, 5_000), st.integers(0, 5_000))
def test_a_tenth_of_a_hundred_or_more_is_too_much(bad: int, good: int) -> None:
    looked_at, tenth = bad + good, count_or_share(UNDO_SHARE, "undo")
    assert is_too_much(bad, looked_at, tenth) == (bad >= UNDO_ITEMS and bad > looked_at / 10)
    assert not is_too_much(bad, looked_at, 1.0)
    assert is_too_much(bad, looked_at, 7) == (bad > 7)
    if is_enough_to_judge(looked_at, tenth) and bad < UNDO_ITEMS:
        assert not is_too_much(bad, looked_at, tenth)


def test_an_item_may_have_been_tried_under_another_grant_or_before_in_this_one() -> None:
    assert not may_have_been_tried(ItemState(stage=3), resumed=False)
    assert may_have_been_tried(ItemState(stage=3), resumed=True)
    assert may_have_been_tried(ItemState(attempt=1), resumed=False)
    assert may_have_been_tried(ItemState(epoch=1), resumed=False)
