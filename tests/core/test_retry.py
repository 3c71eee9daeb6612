"""Whether there is another attempt, and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.model import Item, ItemState
from holdfast.core.retry import GiveUp, Policy, TryAgain, backoff, deadline, decide, wait_is_over
from holdfast.core.settle import settle
from tests.core.made import DRAWS, NOW, PROPERTY, failed, item

POLICIES = st.builds(
    lambda attempts, within, low, more, money: Policy(
        attempts=attempts, within=within, wait_min=low, wait_max=low + more, money=money
    ),
    st.integers(1, 8),
    st.floats(0.0, 2000.0),
    st.floats(0.001, 60.0),
    st.floats(0.0, 600.0),
    st.none() | st.integers(0, 50),
)


@pytest.mark.promise("E7")
@PROPERTY
@given(attempt=st.integers(1, 10_000), draw=DRAWS)
def test_a_wait_lies_between_2_and_30_seconds(attempt: int, draw: float) -> None:
    assert 2.0 <= backoff(Policy(), attempt, draw) <= 30.0


@pytest.mark.promise("E7")
@PROPERTY
@given(policy=POLICIES, attempt=st.integers(1, 100), draw=DRAWS)
def test_a_wait_lies_under_a_cap_that_doubles(policy: Policy, attempt: int, draw: float) -> None:
    wait, slack = backoff(policy, attempt, draw), 1 + 1e-9
    assert policy.wait_min <= wait <= policy.wait_max * slack
    assert wait <= policy.wait_min * 2.0**attempt * slack
    assert wait <= backoff(policy, attempt + 1, draw) * slack
    assert backoff(policy, attempt, 0.0) == policy.wait_min


@pytest.mark.promise("E7")
def test_the_cap_grows_from_4_to_30_seconds_and_the_draw_decides_below_it() -> None:
    almost_one = 1.0 - 2**-53
    caps = [backoff(Policy(), attempt, almost_one) for attempt in range(1, 7)]
    assert caps == pytest.approx([4.0, 8.0, 16.0, 30.0, 30.0, 30.0])
    assert [backoff(Policy(), 3, draw) for draw in (0.0, 0.25, 0.5)] == [2.0, 5.5, 9.0]


@pytest.mark.promise("E7")
@PROPERTY
@given(draw=DRAWS, after=st.floats(0.0, 5000.0))
def test_a_wait_the_other_side_asked_for_is_kept_and_only_the_back_off_is_charged(draw: float, after: float) -> None:
    own = backoff(Policy(), 1, draw)
    answer = decide(ItemState(), failed(item(), draw=draw, after=after), Policy(), spent=0)
    assert isinstance(answer, TryAgain)
    assert (answer.wait, answer.charged) == (pytest.approx(max(own, after)), own)


def test_waits_that_were_asked_for_end_where_deferrals_end() -> None:
    assert isinstance(decide(ItemState(), failed(item(), after=3600.0), Policy(), spent=0), TryAgain)
    given_up = decide(ItemState(deferred=86_000.0), failed(item(), after=3600.0), Policy(), spent=0)
    assert isinstance(given_up, GiveUp)
    assert "86400 s" in given_up.why


@pytest.mark.promise("E2")
@PROPERTY
@given(policy=POLICIES, attempt=st.integers(0, 9), draw=DRAWS)
def test_a_permanent_failure_is_never_tried_again(policy: Policy, attempt: int, draw: float) -> None:
    place = ItemState(attempt=attempt)
    answer = decide(place, failed(item(), transient=False, draw=draw), policy, spent=0)
    assert answer == GiveUp("permanent")


@pytest.mark.promise("E7")
def test_the_third_transient_failure_in_a_row_is_the_last() -> None:
    first, second, third = (
        decide(ItemState(attempt=attempt, used=9.0 if attempt else 0.0), failed(item()), Policy(), spent=0)
        for attempt in range(3)
    )
    assert isinstance(first, TryAgain)
    assert isinstance(second, TryAgain)
    assert third == GiveUp("3 of 3 attempts used")


@pytest.mark.promise("E7")
def test_a_deadline_is_what_is_left_of_the_time_from_when_the_next_attempt_is_due() -> None:
    assert deadline(ItemState(), Policy(), NOW) == 0.0
    assert deadline(ItemState(used=100.0, due=NOW + 20), Policy(), NOW) == NOW + 820
    assert deadline(ItemState(used=100.0), Policy(), NOW) == NOW + 800


@pytest.mark.promise("E7")
@pytest.mark.parametrize(("late", "again"), [(0.0, True), (0.001, False)])
def test_an_attempt_and_its_back_off_may_use_all_of_the_time_and_no_more(late: float, again: bool) -> None:
    place = ItemState(attempt=1, used=896.0 + late)
    answer = decide(place, failed(item(), draw=0.0, seconds=2.0), Policy(), spent=0)
    assert isinstance(answer, TryAgain) == again


@pytest.mark.promise("E7")
@PROPERTY
@given(step=st.floats(-1e9, 1e9), draw=DRAWS)
def test_no_step_of_the_clock_and_no_time_off_uses_up_a_budget(step: float, draw: float) -> None:
    (first,) = settle([failed(item(), draw=draw)], stages=1, policies=[Policy()], now=NOW).onward
    (second,) = settle([failed(first, draw=draw)], stages=1, policies=[Policy()], now=NOW + step).onward
    assert second.place.used == pytest.approx(2 * 0.5 + backoff(Policy(), 1, draw) + backoff(Policy(), 2, draw))


@pytest.mark.parametrize(
    ("due", "planned", "over"),
    [
        (0.0, 0.0, True),
        (10.0, 10.0, False),
        (20.0, 10.0, False),
        (20.1, 10.0, True),
        (1e9, 0.0, False),
        (-5.0, 3.0, True),
    ],
)
def test_a_wait_that_a_clock_set_back_makes_longer_than_twice_is_over(due: float, planned: float, over: bool) -> None:
    assert wait_is_over(NOW + due, planned, NOW) == over


@pytest.mark.parametrize(
    ("money", "spent", "again"), [(None, 10**18, True), (10, 9, True), (10, 10, False), (10, 11, False), (0, 0, False)]
)
def test_an_item_whose_money_is_used_up_is_not_tried_again(money: int | None, spent: int, again: bool) -> None:
    answer = decide(ItemState(), failed(item()), Policy(money=money), spent=spent)
    assert isinstance(answer, TryAgain) == again
    assert again or "money" in answer.why


@pytest.mark.promise("E7", "A15")
@PROPERTY
@given(
    policy=POLICIES,
    attempts=st.lists(
        st.tuples(DRAWS, st.floats(0.0, 120.0), st.none() | st.floats(0.0, 60.0), st.integers(0, 9)),
        min_size=9,
        max_size=9,
    ),
)
def test_an_item_that_always_fails_is_buried_within_its_attempts_its_time_and_its_money(
    policy: Policy, attempts: list[tuple[float, float, float | None, int]]
) -> None:
    one, now, spent, tried = item(), NOW, 0, 0
    waiting: list[Item] = [one]
    for draw, seconds, after, usd in attempts:
        if not waiting:
            break
        (one,) = waiting
        assert tried < policy.attempts
        assert one.place.attempt == tried
        assert policy.money is None or not tried or spent < policy.money
        assert one.place.used <= policy.within
        now += seconds
        spent, tried = spent + usd, tried + 1
        outcome = failed(one, draw=draw, seconds=seconds, after=after, usd=usd)
        waiting = settle([outcome], stages=1, policies=[policy], now=now).onward
        if waiting:
            due = waiting[0].place.due
            assert due - now >= max(policy.wait_min, after if after is not None else 0.0) - 1e-6
            now = due
    assert not waiting
