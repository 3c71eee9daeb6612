"""What an operator's act does: only to those that still stand where they stood when it was decided."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import commitments, ingest, journal, record, sections
from holdfast.core.acts import Effect, apply, by_chunk, may_come_again
from holdfast.core.model import Act, BatchId, Change, Chunk, Counts, ItemNo, ItemState, Output, State
from holdfast.core.states import Transition, move
from tests.core.made import NOW, PROPERTY, STATES, UID, chunk, seeded

STAGES = 3
PENDING, DONE, SKIPPED, DEAD, CANCELLED = State
HELD = {"owner": "ann", "expires": NOW + 30, "fence": 5, "version": 2}


def act(*changes: Change, seize: bool = False) -> Act:
    return Act(id=b"id", batch=BatchId(1), kind="reset", actor="operator", reason="because", at_items=changes,
               seize=seize, body=b"a note")  # fmt: skip


def reset(n: int, place: ItemState, stage: int = 0) -> Change:
    after = move(place, Transition.RESET, stage=stage, stages=STAGES, reason="because")
    return Change(n=ItemNo(n), state=place.state, epoch=place.epoch, place=after)


def redrive(n: int, place: ItemState) -> Change:
    after = move(place, Transition.REDRIVE, stages=STAGES)
    return Change(n=ItemNo(n), state=place.state, epoch=place.epoch, place=after)


def resolve(n: int, place: ItemState) -> Change:
    after = move(place, Transition.RESOLVE, to=DONE, stage=STAGES, stages=STAGES)
    return Change(n=ItemNo(n), state=place.state, epoch=place.epoch, place=after)


def cancel(n: int, place: ItemState) -> Change:
    after = move(place, Transition.CANCEL, stages=STAGES)
    return Change(n=ItemNo(n), state=place.state, epoch=place.epoch, place=after)


def applied(*changes: Change, places: dict[int, ItemState], on: Chunk | None = None, seize: bool = False) -> Effect:
    one = on if on is not None else chunk(0, 10)
    return apply(act(*changes, seize=seize), one, changes, {ItemNo(n): place for n, place in places.items()})


def changed(effect: Effect) -> list[int]:
    return [change.n for change in effect.changes]


# -- the guard --------------------------------------------------------------------------------------------------------

DEAD_LETTER = ItemState(stage=1, state=DEAD, epoch=2, attempt=3)


@pytest.mark.promise("C1")
@pytest.mark.parametrize(
    ("now", "holds"),
    [
        (DEAD_LETTER, True),
        (ItemState(stage=1, state=DEAD, epoch=2, attempt=1), True),
        (ItemState(stage=1, state=PENDING, epoch=2, attempt=3), False),
        (ItemState(stage=1, state=CANCELLED, epoch=2, attempt=3), False),
        (ItemState(stage=1, state=DEAD, epoch=3, attempt=3), False),
        (ItemState(stage=1, state=DEAD, epoch=1, attempt=3), False),
        (ItemState(stage=2, state=DEAD, epoch=2, attempt=3), False),
    ],
)
def test_an_item_that_moved_on_since_the_act_was_decided_is_left_alone(now: ItemState, holds: bool) -> None:
    effect = applied(redrive(4, DEAD_LETTER), places={4: now})
    assert changed(effect) == ([4] if holds else [])
    assert effect.delta == (Counts(dead=-1) if holds else Counts())


@pytest.mark.promise("A1", "C1")
@pytest.mark.parametrize(
    ("now", "holds"),
    [
        (ItemState(stage=1, attempt=1), True),
        (ItemState(stage=1, attempt=2), False),
        (ItemState(stage=1, attempt=0), False),
        (ItemState(stage=2, attempt=0), False),
        (ItemState(stage=1, attempt=1, epoch=1), False),
    ],
)
def test_a_pending_item_changes_within_its_epoch_only_where_it_stood(now: ItemState, holds: bool) -> None:
    effect = applied(cancel(4, ItemState(stage=1, attempt=1)), places={4: now})
    assert changed(effect) == ([4] if holds else [])


@pytest.mark.promise("A11")
def test_an_item_goes_back_in_the_next_epoch_however_far_it_went_in_this_one() -> None:
    effect = applied(reset(4, ItemState(stage=1)), places={4: ItemState(stage=2, attempt=1)})
    assert changed(effect) == [4]
    assert effect.changes[0].place == ItemState(epoch=1, reason="because")


@pytest.mark.promise("A11", "C1")
def test_an_act_that_is_done_twice_changes_nothing_the_second_time() -> None:
    first = applied(reset(4, DEAD_LETTER), places={4: DEAD_LETTER})
    again = applied(reset(4, DEAD_LETTER), places={4: first.changes[0].place})
    assert (changed(first), changed(again), again.delta) == ([4], [], Counts())


def test_of_two_changes_of_one_item_the_first_counts() -> None:
    effect = applied(redrive(4, DEAD_LETTER), resolve(4, DEAD_LETTER), places={4: DEAD_LETTER})
    assert [change.place.state for change in effect.changes] == [PENDING]
    assert effect.delta == Counts(dead=-1)


# -- what is in flight ------------------------------------------------------------------------------------------------


@pytest.mark.promise("A11")
def test_what_is_in_flight_is_left_alone_unless_the_chunk_is_seized() -> None:
    held, places = chunk(0, 10, **HELD), {1: ItemState(), 2: DEAD_LETTER}
    changes = [reset(1, places[1]), reset(2, places[2])]
    gentle = applied(*changes, places=places, on=held)
    assert (changed(gentle), gentle.seized, gentle.fence) == ([2], False, 5)
    firm = applied(*changes, places=places, on=held, seize=True)
    assert (changed(firm), firm.seized, firm.fence) == ([1, 2], True, 6)


@pytest.mark.promise("C3")
def test_a_fence_rises_only_where_somebody_is_fenced() -> None:
    nobody = chunk(0, 10, fence=5)
    assert applied(reset(1, ItemState()), places={1: ItemState()}, on=nobody, seize=True).fence == 5
    held = chunk(0, 10, **HELD)
    settled = applied(reset(2, DEAD_LETTER), places={2: DEAD_LETTER}, on=held, seize=True)
    assert (changed(settled), settled.seized, settled.fence) == ([2], False, 5)
    moved_on = applied(reset(1, ItemState()), places={1: ItemState(state=DONE, stage=3)}, on=held, seize=True)
    assert (changed(moved_on), moved_on.seized, moved_on.fence) == ([], False, 5)


def test_an_expired_lease_is_still_in_flight_until_somebody_takes_it_over() -> None:
    expired = chunk(0, 10, owner="ann", expires=0.0, fence=5)
    assert changed(applied(reset(1, ItemState()), places={1: ItemState()}, on=expired)) == []


# -- totals -----------------------------------------------------------------------------------------------------------

PLACES = st.builds(
    lambda state, stage, epoch, attempt: ItemState(
        state=state, stage=STAGES if state is DONE else stage, epoch=epoch, attempt=attempt
    ),
    STATES,
    st.integers(0, STAGES - 1),
    st.integers(0, 2),
    st.integers(0, 2),
)


def some_change(n: int, seen: ItemState, kind: int) -> Change:
    if seen.state is DEAD:
        return (redrive, resolve, reset)[kind](n, seen)
    if seen.state is PENDING:
        return (cancel, reset, reset)[kind](n, seen)
    return reset(n, seen)


@pytest.mark.promise("P1", "P8")
@PROPERTY
@given(
    rows=st.lists(st.tuples(PLACES, st.none() | PLACES, st.integers(0, 2)), min_size=1, max_size=12),
    held=st.booleans(),
    seize=st.booleans(),
)
def test_totals_after_an_act_are_those_of_a_recount(rows: list[tuple[Any, ...]], held: bool, seize: bool) -> None:
    places = {n: now for n, (now, _, _) in enumerate(rows)}
    changes = [some_change(n, seen if seen is not None else now, kind) for n, (now, seen, kind) in enumerate(rows)]
    before = Counter(place.state for place in places.values())
    one = chunk(0, len(rows), **(HELD if held else {}), **counted(before))
    effect = applied(*changes, places=places, on=one, seize=seize)

    after_places = places | {change.n: change.place for change in effect.changes}
    after = Counter(place.state for place in after_places.values())
    total = one.counts.plus(effect.delta)
    assert {name: getattr(total, name) for name in counted(after)} == counted(after)
    assert total.settled + after[PENDING] == len(rows)
    for n, place in after_places.items():
        assert (place.epoch, place.stage) >= (places[n].epoch, places[n].stage) or place.epoch == places[n].epoch + 1
        assert places[n].state is not PENDING or place == places[n] or effect.seized or not held
    assert effect.fence == one.fence + effect.seized
    assert not effect.seized or (held and seize)


def counted(states: Counter[State]) -> dict[str, int]:
    return {state.value: states[state] for state in (DONE, SKIPPED, DEAD, CANCELLED)}


# -- what is told -----------------------------------------------------------------------------------------------------


@pytest.mark.promise("A13", "E12")
def test_an_act_tells_who_was_moved_from_where_to_where_and_why() -> None:
    held, places = chunk(0, 10, **HELD), {1: ItemState(stage=2, attempt=1), 2: DEAD_LETTER}
    renewed, output = ingest.admit("page-2", b'{"page":2}', b'{"page":"2"}'), Output(ItemNo(2), 2, 2, b'"given"')
    given_ = Change(n=ItemNo(2), state=DEAD, epoch=2, place=resolve(2, DEAD_LETTER).place, output=output,
                    renewed=renewed)  # fmt: skip
    effect = applied(reset(1, places[1], stage=1), given_, places=places, on=held, seize=True)
    moved = journal.Moved(2, "dead", "done", 1, 3, 2)
    told = journal.Acted(
        reason="because",
        seized=True,
        note=b"a note",
        items=[journal.Moved(1, "pending", "pending", 2, 1, 1), moved],
    )
    assert effect.body == told, "the store makes the commitments"
    written = record.of_act(effect, UID, held, b"act", seeded(), lambda n: {2: 4}[n])
    (revision,), (stored,) = written.revisions, written.outputs
    assert (revision.n, revision.number, revision.item) == (2, 5, renewed)
    moved = msgspec.structs.replace(
        moved,
        revision=5,
        digest=commitments.payload(UID, "page-2", 5, revision.salt, b'{"page":2}'),
        raw_digest=commitments.raw(UID, "page-2", 5, revision.raw_salt, b'{"page":"2"}'),
        output_digest=commitments.output(UID, 2, 2, 2, stored.salt, b'"given"'),
    )
    assert len({revision.salt, revision.raw_salt, stored.salt}) == 3
    entry = record.link_chunk(UID, held, "reset", written.encoded, "op", NOW, fence=6, commit_id=b"act")
    assert sections.decode(entry) == msgspec.structs.replace(told, items=[moved, told.items[0]]), "dead letters first"


def test_changes_are_handed_out_chunk_by_chunk_in_the_order_of_items() -> None:
    first, second, third = chunk(0, 5, number=3), chunk(5, 8, number=1), chunk(8, 9, number=2)
    changes = [reset(n, ItemState()) for n in (8, 1, 6, 4, 0, 7)]

    def chunk_of(n: ItemNo) -> Chunk:
        return next(each for each in (first, second, third) if each.lo <= n < each.hi)

    parts = [(one.id, [change.n for change in some]) for one, some in by_chunk(act(*changes), chunk_of)]
    assert parts == [(3, [0, 1, 4]), (1, [6, 7]), (2, [8])]
    assert list(by_chunk(act(), chunk_of)) == []


@pytest.mark.promise("A11")
@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (ItemState(), ItemState(requeues=1), True),
        (ItemState(), ItemState(state=State.DEAD), True),
        (ItemState(state=State.DEAD), ItemState(), True),
        (ItemState(), ItemState(epoch=1), False),
        (ItemState(), ItemState(state=State.CANCELLED), False),
        (ItemState(state=State.DEAD), ItemState(state=State.SKIPPED), False),
        (ItemState(stage=3, state=State.DONE), ItemState(epoch=1), False),
    ],
)
def test_what_goes_round_within_an_epoch_is_told_apart_by_its_id(
    before: ItemState, after: ItemState, expected: bool
) -> None:
    change = Change(n=ItemNo(1), state=before.state, epoch=before.epoch, place=after)
    assert may_come_again(act(change)) is expected
