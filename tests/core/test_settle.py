"""From what happened to what is written."""

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import commitments, journal, record, sections
from holdfast.core.errors import Permanent, UsageError
from holdfast.core.limits import MESSAGE_CHARS, REWINDS
from holdfast.core.model import BatchId, ChunkId, Counts, Item, ItemState, Output, State
from holdfast.core.outcome import Deferred, Done, Failed, Lost, Outcome, Skipped
from holdfast.core.retry import Policy
from holdfast.core.settle import NOTHING, Holder, Settled, commit, settle
from tests.core.made import DRAWS, GRANT, NOW, PROPERTY, UID, deferred, done, failed, item, lost, seeded, skipped

STAGES = 3
POLICIES = [Policy(), Policy(attempts=2), Policy(attempts=4, money=20)]
HOLDER = Holder(batch=BatchId(1), uid=UID, chunk=ChunkId(7), number=2, fence=3, grant=GRANT, version=5, seconds=30.0)


def settled(*outcomes: Outcome, stages: int = STAGES, now: float = NOW) -> Settled:
    return settle(outcomes, stages=stages, policies=POLICIES[:stages], now=now)


def committed(written: record.SaltedCommit) -> journal.Checkpointed:
    """The body of the entry of a commit, as it is stored."""
    entry = journal.link(bytes(32), journal.Chain(UID, 2, 7), seq=1, kind="checkpoint", at=NOW, actor="ann",
                         commit_id=written.commit.id, encoded=written.encoded)  # fmt: skip
    body = sections.decode(entry, journal.check(entry, bytes(32), journal.Chain(UID, 2, 7), BatchId(1)))
    assert isinstance(body, journal.Checkpointed)
    return body


def places(result: Settled) -> dict[int, ItemState]:
    return {move.n: move.place for move in result.moves}


# -- one outcome ------------------------------------------------------------------------------------------------------


@pytest.mark.promise("P1", "P8")
def test_a_plain_item_whose_stage_succeeded_goes_on_and_leaves_no_place_behind() -> None:
    result = settled(done(item(4), output=b'"text"'))
    assert result.outputs == [Output(4, 0, 0, b'"text"')]
    assert (result.moves, result.attempts, result.spends) == ([], [], [])
    (onward,) = result.onward
    assert (onward.place, onward.plain, onward.input) == (ItemState(stage=1), True, b'"text"')
    assert result.counts == Counts(attempts=1, seconds=0.5)
    assert not result.advanced[0].finished


@pytest.mark.promise("P1", "P8")
def test_the_last_stage_makes_an_item_done() -> None:
    result = settled(done(item(4, stage=2)))
    assert (result.counts.done, result.counts.settled, result.onward) == (1, 1, [])
    assert result.advanced[0].finished


def test_an_output_in_a_file_is_known_by_its_name_and_handed_on_as_it_is() -> None:
    result = settled(done(item(4), output=b'"text"', file=b"page-4.json"))
    assert result.outputs == [Output(4, 0, 0, None, b"page-4.json")]
    assert (result.onward[0].input, result.onward[0].source_file) == (b'"text"', b"page-4.json")


@pytest.mark.promise("P11")
def test_an_output_that_was_found_is_no_attempt_and_is_told_apart() -> None:
    result = settled(done(item(4), adopted=True), done(item(5)))
    assert [(list(each.items), each.adopted) for each in result.advanced] == [([4], True), ([5], False)]
    assert (result.counts.attempts, result.counts.seconds) == (1, 0.5)


def test_an_item_that_is_skipped_is_settled_with_its_reason() -> None:
    result = settled(skipped(item(4, stage=1)))
    assert result.counts == Counts(skipped=1, attempts=1, seconds=0.5)
    assert (result.moves[0].place.state, result.moves[0].place.reason) == (State.SKIPPED, "blank")
    assert (result.attempts[0].outcome, result.attempts[0].stage) == ("skip", 1)
    assert result.onward == []


@pytest.mark.promise("A15")
def test_an_item_is_deferred_for_a_day_in_all_and_then_buried() -> None:
    one, waited = item(4), 0.0
    while True:
        result = settled(deferred(one, wait=7200.0), now=NOW + waited)
        if result.counts.dead:
            break
        (one,), waited = result.onward, waited + 7200.0
        assert (one.place.deferred, one.place.attempt) == (waited, 0)
    place = result.moves[0].place
    assert (place.state, place.code, waited) == (State.DEAD, "deferred_too_long", 86_400.0)
    assert (result.attempts[0].outcome, result.onward) == ("bury", [])
    assert [event.n for event in result.events] == [4]


@pytest.mark.promise("A15")
def test_an_item_that_defers_itself_without_a_wait_is_buried_too() -> None:
    one, rounds, policies = item(4), 0, [Policy(defer_within=60.0)]
    while not (result := settle([deferred(one, wait=0.0)], stages=1, policies=policies, now=NOW)).counts.dead:
        (one,), rounds = result.onward, rounds + 1
    assert rounds == 60


@pytest.mark.promise("A15")
def test_the_pauses_of_a_stage_are_not_held_against_an_item() -> None:
    paused = msgspec.structs.replace(deferred(item(4), wait=600.0), by_breaker=True)
    result = settle([paused], stages=1, policies=[Policy(defer_within=60.0)], now=NOW)
    assert [(each.place.due, each.place.deferred) for each in result.onward] == [(NOW + 600.0, 0.0)]


def test_the_next_stage_begins_with_no_deferral() -> None:
    waiting = settled(deferred(item(4))).onward[0]
    assert waiting.place.deferred == 60.0
    assert settled(done(waiting)).onward[0].place.deferred == 0.0


def test_a_disk_that_fails_is_not_held_against_the_item() -> None:
    trouble = Deferred(item(4, plain=False, deferred=86_400.0), 0.0, "disk full", 0.25, 0.5, None, trouble=True)
    assert settled(trouble).counts.dead == 0


@pytest.mark.promise("E7")
def test_deferring_costs_no_attempt_and_leaves_the_budgets_alone() -> None:
    before = ItemState(stage=2, attempt=1, used=50.0, spent=4)
    one = item(4, plain=False, stage=2, attempt=1, used=50.0, spent=4)
    result = settled(deferred(one, wait=60.0, usd=3))
    (after,) = places(result).values()
    assert (after.attempt, after.used, after.epoch, after.stage) == (before.attempt, before.used, 0, 2)
    assert (after.due, after.spent, after.code) == (NOW + 60.0, 7, "deferred")
    assert result.counts.settled == 0
    assert [each.outcome for each in result.attempts] == ["defer"]
    assert result.onward[0].place == after


def test_an_item_that_is_deferred_a_thousand_times_still_has_all_of_its_attempts() -> None:
    waiting = [item(4)]
    for _ in range(1000):
        waiting = settled(deferred(waiting[0])).onward
    assert waiting[0].place.attempt == 0


@pytest.mark.promise("E3", "E7")
def test_a_transient_failure_waits_and_keeps_its_input() -> None:
    result = settled(failed(item(4), usd=5, draw=0.5))
    (after,) = places(result).values()
    assert (after.state, after.stage, after.attempt, after.spent) == (State.PENDING, 0, 1, 5)
    assert (after.due, after.wait, after.used) == (NOW + 3.0, 3.0, 3.5)
    assert (after.code, after.reason) == ("http_503", "no answer")
    assert (result.onward[0].input, result.onward[0].plain) == (item(4).input, False)
    assert result.counts == Counts(attempts=1, spent=5, tokens=3, seconds=0.5)


@pytest.mark.promise("E2")
def test_a_permanent_failure_buries_at_the_first_attempt() -> None:
    result = settled(failed(item(4, stage=1), transient=False))
    (after,) = places(result).values()
    assert (after.state, after.stage, after.attempt, after.due) == (State.DEAD, 1, 1, 0.0)
    assert (after.code, after.reason) == ("http_404", "no answer")
    assert (result.counts.dead, result.onward, result.outputs) == (1, [], [])


@pytest.mark.promise("E7")
def test_the_time_that_attempts_take_counts_from_the_beginning_of_the_first() -> None:
    """An item has 15 minutes at a stage: attempts that take ten each leave no time for a third."""
    policies = [Policy(attempts=9)]

    def attempt(one: Item, seconds: float, now: float) -> ItemState:
        (moved,) = settle([failed(one, seconds=seconds)], stages=1, policies=policies, now=now).moves
        return moved.place

    assert attempt(item(), 899.0, NOW).state is State.DEAD
    first = attempt(item(), 600.0, NOW)
    assert first.state is State.PENDING
    second = msgspec.structs.replace(item(plain=False), place=first)
    assert attempt(second, 600.0, first.due + 600.0).state is State.DEAD


@pytest.mark.promise("E7")
def test_the_last_attempt_buries_and_says_which_budget_ended() -> None:
    result = settled(failed(item(4, plain=False, attempt=2, used=9.0)))
    (after,) = places(result).values()
    assert (after.state, after.attempt) == (State.DEAD, 3)
    assert after.reason == "no answer (3 of 3 attempts used)"
    assert result.attempts[0].outcome == "bury"
    assert result.attempts[0].message == after.reason


@pytest.mark.promise("E6")
def test_what_is_told_of_an_attempt_has_its_number_its_times_and_its_deadline() -> None:
    one = item(4, plain=False, stage=1, epoch=2, attempt=0)
    (told,) = settled(failed(one, trace="handler.py:3", seconds=2.0, queued=1.0)).attempts
    assert (told.n, told.stage, told.attempt, told.epoch, told.outcome) == (4, 1, 1, 2, "retry")
    assert (told.queued, told.seconds, told.trace) == (1.0, 2.0, "handler.py:3")
    assert told.deadline == pytest.approx(NOW - 2.0 + 900.0)
    assert told.used == pytest.approx(2.0 + told.due - NOW)
    assert NOW + 2.0 <= told.due <= NOW + 4.0


def test_an_attempt_that_cost_nothing_adds_nothing() -> None:
    one = item(4, plain=False, attempt=1, spent=7, used=1.0)
    assert [places(settled(o(one)))[4].spent for o in (failed, deferred)] == [7, 7]


@pytest.mark.promise("E6", "E7")
def test_a_deadline_is_projected_from_what_is_used_and_moves_with_time_that_nobody_used() -> None:
    first = settled(failed(item(4)), now=NOW)
    later = first.onward[0].place.due + 3600.0  # the machine was off for an hour
    second = settled(failed(first.onward[0]), now=later)
    assert first.attempts[0].deadline == pytest.approx(NOW - 0.5 + 900.0)
    assert second.attempts[0].deadline == pytest.approx(first.attempts[0].deadline + 3600.0 + 0.5 - 0.5, abs=1.0)
    assert second.attempts[0].used > first.attempts[0].used


@pytest.mark.promise("A15")
def test_what_was_lost_goes_back_in_the_next_epoch_and_the_fourth_time_it_is_buried() -> None:
    one = item(4, plain=False, stage=2, attempt=1, spent=3)
    for turn in range(1, REWINDS + 1):
        result = settled(lost(one, to_stage=1))
        (after,) = places(result).values()
        assert after == ItemState(stage=1, epoch=turn, rewinds=turn, reason="the output is gone")
        told = result.attempts[0]
        assert (told.outcome, told.stage, told.to_stage, told.attempt) == ("rewind", 2, 1, 0)
        assert (result.counts, result.onward) == (Counts(), [])
        one = item(4, plain=False, stage=2, epoch=turn, rewinds=turn)
    result = settled(lost(one, to_stage=1))
    (after,) = places(result).values()
    assert (after.state, after.code, after.stage, after.epoch) == (State.DEAD, "rewound_too_often", 1, REWINDS + 1)
    assert "rewound 3 times" in after.reason
    assert result.counts == Counts(dead=1)


def test_what_was_lost_before_the_first_stage_goes_back_to_the_beginning() -> None:
    assert settled(lost(item(4, stage=1), to_stage=-1)).moves[0].place.stage == 0


@pytest.mark.promise("A2")
def test_an_item_beyond_the_last_stage_cannot_advance_and_nothing_is_settled() -> None:
    with pytest.raises(Permanent, match="jump"):
        settled(done(item(1)), done(item(4, plain=False, stage=STAGES)))


def test_each_stage_has_a_policy() -> None:
    with pytest.raises(UsageError, match="2 policies for 3 stages"):
        settle([], stages=3, policies=POLICIES[:2], now=NOW)


def test_long_and_odd_messages_are_cut_and_can_be_stored() -> None:
    result = settled(
        failed(item(1), message="m" * 10_000, code="\udcff", trace="\udcff"), skipped(item(2)), lost(item(3, stage=1))
    )
    told = result.attempts[0]
    assert (len(told.message), told.message[-1]) == (MESSAGE_CHARS, "…")
    assert (told.code, told.trace) == ("\\udcff", "\\udcff")
    just_fits = "m" * MESSAGE_CHARS
    assert settled(failed(item(1), message=just_fits)).attempts[0].message == just_fits
    assert places(result)[1].code == "\\udcff"


# -- many outcomes ----------------------------------------------------------------------------------------------------


@pytest.mark.promise("P1", "E12")
def test_plain_items_and_others_advance_together_in_columns_that_line_up() -> None:
    group = [item(9), item(3, plain=False, attempt=2, used=3.0), item(5, plain=False, epoch=4, rewinds=1), item(4)]
    result = settled(*(done(one, output=b"%d" % one.n, seconds=one.n / 4) for one in group))
    (columns,) = result.advanced
    assert list(columns.items) == [9, 3, 5, 4]
    assert columns.digests == b"", "the store makes them"
    written = record.of_commit(commit(HOLDER, result, commit_id=b"id"), seeded())
    (told,) = committed(written).advanced
    assert told.digests == b"".join(
        commitments.output(UID, one.n, 0, one.place.epoch, salt, b"%d" % one.n)
        for one, salt in zip(group, written.salts, strict=True)
    )
    assert told == msgspec.structs.replace(columns, digests=told.digests)
    assert list(array("f", columns.seconds)) == [2.25, 0.75, 1.25, 1.0]
    assert list(array("f", columns.queued)) == [0.25] * 4
    assert list(array("H", columns.attempts)) == [1, 3, 1, 1]
    assert list(array("H", columns.epochs)) == [0, 0, 4, 0]
    assert places(result) == {3: ItemState(stage=1), 5: ItemState(stage=1, epoch=4, rewinds=1)}
    assert [(one.n, one.place.stage, one.plain) for one in result.onward] == [
        (9, 1, True), (3, 1, False), (5, 1, False), (4, 1, True),
    ]  # fmt: skip
    assert [(output.n, output.epoch) for output in result.outputs] == [(9, 0), (3, 0), (5, 4), (4, 0)]


def test_plain_items_alone_need_no_columns_for_attempts_and_epochs() -> None:
    (columns,) = settled(*(done(item(n)) for n in range(5))).advanced
    assert (columns.attempts, columns.epochs, columns.items) == (b"", b"", journal.Numbers(0, 5))


def test_each_stage_is_told_apart() -> None:
    result = settled(done(item(0)), done(item(1, stage=1)), done(item(2)), done(item(3, stage=2)))
    assert [(each.stage, list(each.items), each.finished) for each in result.advanced] == [
        (0, [0, 2], False), (1, [1], False), (2, [3], True),
    ]  # fmt: skip
    assert result.counts.done == 1


def test_the_finished_ones_that_left_the_plain_way_get_a_place_at_the_end() -> None:
    result = settled(done(item(0, stage=2)), done(item(1, plain=False, stage=2, attempt=1, epoch=1)))
    assert places(result) == {1: ItemState(stage=3, state=State.DONE, epoch=1)}


@pytest.mark.promise("E8")
def test_what_a_failed_attempt_cost_is_kept() -> None:
    result = settled(
        failed(item(0), usd=5), failed(item(1), transient=False, usd=7), skipped(item(2), usd=11),
        deferred(item(3), usd=13), done(item(4), usd=17), done(item(5, stage=2), usd=19, adopted=True),
    )  # fmt: skip
    assert result.counts.spent == 5 + 7 + 11 + 13 + 17 + 19
    assert result.counts.tokens == 6 * 3
    assert sorted((stage, spend.n, spend.usd) for stage, spend in result.spends) == [
        (0, 0, 5), (0, 1, 7), (0, 2, 11), (0, 3, 13), (0, 4, 17), (2, 5, 19),
    ]  # fmt: skip


def test_numbers_that_do_not_fit_the_columns_are_held_at_the_top() -> None:
    (columns,) = settled(done(item(1, plain=False, attempt=70_000, epoch=80_000))).advanced
    assert (list(array("H", columns.attempts)), list(array("H", columns.epochs))) == ([65_535], [65_535])


FATES = ("done", "adopted", "skip", "defer", "transient", "permanent", "lost")
ITEMS = st.builds(
    lambda stage, plain, attempt, epoch, rewinds, spent: (
        {"stage": stage}
        if plain
        else {"stage": stage, "attempt": attempt, "epoch": epoch, "rewinds": rewinds, "spent": spent, "plain": False}
        | ({"used": 100.0} if attempt else {})
    ),
    st.integers(0, STAGES - 1), st.booleans(), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3),
    st.integers(0, 30),
)  # fmt: skip
HAPPENED = st.lists(st.tuples(ITEMS, st.sampled_from(FATES), st.integers(0, 9), DRAWS), max_size=25)


def outcome_of(n: int, facts: dict[str, Any], fate: str, usd: int, draw: float) -> Outcome:
    one = item(n, **facts)
    match fate:
        case "done" | "adopted":
            return done(one, output=b"%d" % n, usd=usd, adopted=fate == "adopted")
        case "skip":
            return skipped(one, usd=usd)
        case "defer":
            return deferred(one, usd=usd)
        case "lost":
            return lost(one, to_stage=one.place.stage - 1)
        case _:
            return failed(one, transient=fate == "transient", usd=usd, draw=draw)


def expected_state(outcome: Outcome) -> State:
    """What becomes of an item, in the words of the promises."""
    place = outcome.item.place
    match outcome:
        case Done():
            return State.DONE if place.stage == STAGES - 1 else State.PENDING
        case Skipped():
            return State.SKIPPED
        case Deferred():
            return State.PENDING
        case Lost():
            return State.DEAD if place.rewinds >= REWINDS else State.PENDING
        case Failed():
            policy = POLICIES[place.stage]
            spent = place.spent + (outcome.spend.usd if outcome.spend else 0)
            used_up = place.attempt + 1 >= policy.attempts or (policy.money is not None and spent >= policy.money)
            return State.DEAD if used_up or not outcome.transient else State.PENDING


@pytest.mark.promise("P1", "P8", "E12")
@PROPERTY
@given(HAPPENED)
def test_every_outcome_is_counted_once_told_once_and_leads_where_it_should(happened: list[Any]) -> None:
    outcomes = [outcome_of(n, *each) for n, each in enumerate(happened)]
    result = settled(*outcomes)
    states = {outcome.item.n: expected_state(outcome) for outcome in outcomes}
    counted = Counter(states.values())
    counts = result.counts
    assert (counts.done, counts.skipped, counts.dead, counts.cancelled) == (
        counted[State.DONE], counted[State.SKIPPED], counted[State.DEAD], 0,
    )  # fmt: skip
    executed = [o for o in outcomes if not isinstance(o, Lost) and not (isinstance(o, Done) and o.adopted)]
    assert counts.attempts == len(executed)
    assert counts.seconds == pytest.approx(0.5 * len(executed))
    assert counts.spent == sum(spend.usd for _, spend in result.spends) == sum(spent_by(o) for o in outcomes)

    advanced = [n for each in result.advanced for n in each.items]
    told = [each.n for each in result.attempts]
    assert sorted(advanced + told) == sorted(states)
    assert sorted(advanced) == sorted(output.n for output in result.outputs)
    written = record.of_commit(commit(HOLDER, result, commit_id=b"id"), seeded())
    for each in committed(written).advanced:
        check_columns(each)

    moved = places(result)
    assert len(moved) == len(result.moves)
    for outcome in outcomes:
        plainly_done = outcome.item.plain and isinstance(outcome, Done)
        assert (outcome.item.n in moved) != plainly_done
        if not plainly_done:
            check_move(outcome.item.place, moved[outcome.item.n], states[outcome.item.n])
    still = {n for n, state in states.items() if state is State.PENDING} - {
        outcome.item.n for outcome in outcomes if isinstance(outcome, Lost)
    }
    assert sorted(one.n for one in result.onward) == sorted(still)
    for one in result.onward:
        assert one.place == moved.get(one.n, ItemState(stage=one.place.stage))


def spent_by(outcome: Outcome) -> int:
    spend = None if isinstance(outcome, Lost) else outcome.spend
    return spend.usd if spend is not None else 0


def check_columns(each: journal.Advanced) -> None:
    """One value for each item, in every column that is there."""
    size = len(each.items)
    assert (len(each.digests), len(each.queued), len(each.seconds)) == (32 * size, 4 * size, 4 * size)
    assert len(each.attempts) == len(each.epochs)
    assert len(each.attempts) in (0, 2 * size)


def check_move(before: ItemState, after: ItemState, state: State) -> None:
    """Forward by a stage at most within an epoch, back only in the next one."""
    assert after.state is state
    if after.epoch == before.epoch:
        assert after.stage - before.stage in (0, 1)
    else:
        assert after.epoch == before.epoch + 1
        assert after.stage <= before.stage
        assert after.attempt == 0


# -- stories ----------------------------------------------------------------------------------------------------------

FAILURES = st.lists(st.lists(st.sampled_from(["transient", "defer"]), max_size=4), min_size=STAGES, max_size=STAGES)


def told_until_settled(items: Sequence[Item], disturbances: list[list[list[str]]], ends: list[str]) -> Counts:
    """The totals after every item met its disturbances at every stage and then its end."""
    counts, now = Counts(), NOW
    policies = [Policy(attempts=9, within=1e9)] * STAGES
    left = {one.n: (one, [list(each) for each in disturbances[one.n]]) for one in items}
    while left:
        assert counts.attempts < 10_000, "this never ends"
        outcomes: list[Outcome] = []
        for n, (one, ahead) in left.items():
            trouble = ahead[one.place.stage]
            fate = trouble.pop() if trouble else (ends[n] if one.place.stage == STAGES - 1 else "done")
            outcomes.append(outcome_of_fate(one, fate))
        result = settle(outcomes, stages=STAGES, policies=policies, now=now)
        counts, now = counts.plus(result.counts), now + 100.0
        left = {one.n: (one, left[one.n][1]) for one in result.onward}
    return counts


def outcome_of_fate(one: Item, fate: str) -> Outcome:
    match fate:
        case "done":
            return done(one, usd=2)
        case "skip":
            return skipped(one, usd=2)
        case "defer":
            return deferred(one, usd=2)
        case _:
            return failed(one, transient=fate == "transient", usd=2)


@pytest.mark.promise("E8", "P8")
@PROPERTY
@given(st.lists(st.tuples(FAILURES, st.sampled_from(["done", "skip", "permanent"])), min_size=1, max_size=6))
def test_retries_change_attempts_and_spending_and_never_what_became_of_the_items(story: list[Any]) -> None:
    items, ends = [item(n) for n in range(len(story))], [end for _, end in story]
    disturbed = told_until_settled(items, [failures for failures, _ in story], ends)
    quiet = told_until_settled(items, [[[] for _ in range(STAGES)] for _ in story], ends)
    extra = sum(len(each) for failures, _ in story for each in failures)
    assert (disturbed.done, disturbed.skipped, disturbed.dead) == (quiet.done, quiet.skipped, quiet.dead)
    assert disturbed.settled == len(story)
    assert disturbed.attempts == quiet.attempts + extra
    assert disturbed.spent == quiet.spent + 2 * extra


# -- the commit -------------------------------------------------------------------------------------------------------


@pytest.mark.promise("C1", "E12")
def test_a_commit_names_its_guard_and_tells_everything_in_one_entry() -> None:
    result = settled(done(item(0), usd=3), failed(item(1)), done(item(2, stage=2)))
    written = commit(HOLDER, result, commit_id=b"id", release=True, due=NOW + 3, reserved=12)
    assert (written.chunk, written.batch, written.fence, written.version) == (7, 1, 3, 5)
    assert (written.uid, written.number, written.grant) == (UID, 2, GRANT)
    assert (written.id, written.kind, written.release, written.due) == (b"id", "checkpoint", True, NOW + 3)
    assert (written.outputs, written.moves) == (tuple(result.outputs), tuple(result.moves))
    assert (written.counts, written.reserved, written.extend) == (result.counts, 12, 30.0)
    assert written.body == journal.Checkpointed(
        advanced=result.advanced, attempts=result.attempts, spends=result.spends, released=True, due=NOW + 3
    )


@pytest.mark.parametrize("outcome", [done(item(0)), failed(item(1))])
def test_progress_of_any_kind_is_a_checkpoint_and_keeps_the_lease(outcome: Outcome) -> None:
    holder = msgspec.structs.replace(HOLDER, seconds=0.0)
    written = commit(holder, settled(outcome), commit_id=b"id")
    assert (written.kind, written.release, written.due) == ("checkpoint", False, 0.0)
    assert (written.reserved, written.extend) == (0, 0.0)


def test_a_bare_release_is_called_by_its_name() -> None:
    written = commit(HOLDER, NOTHING, commit_id=b"id", release=True)
    assert (written.kind, written.outputs, written.moves, written.counts) == ("released", (), (), Counts())
    assert written.body == journal.Checkpointed(released=True)


def test_what_follows_from_nothing_is_nothing() -> None:
    assert settled() == NOTHING
