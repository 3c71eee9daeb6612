"""Expected, recorded, observed: every difference is found, nothing else is, and the sums hold."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import canonical, course
from holdfast.core.limits import REWINDS
from holdfast.core.model import Batch, BatchId, BatchMode, ItemState, State
from holdfast.core.verify import (
    GONE,
    REMEDIES,
    Expected,
    Finding,
    Inspection,
    Observed,
    Reconciliation,
    Recorded,
    Verdict,
    What,
    conclude,
    judge,
    rewound,
)
from tests.core.made import PROPERTY, STATES, chunk

STAGES = 4
REASONS = st.sampled_from([GONE, "its content differs", "its size differs: 3 bytes, 9 recorded"])
NUMBERS = st.integers(0, 50)
DOUBTS = st.sampled_from([Verdict.FAILS, Verdict.UNKNOWN])


def as_recorded(stages: Iterable[int]) -> dict[int, Inspection]:
    return {stage: Inspection(stage, Verdict.HOLDS) for stage in stages}


@st.composite
def items(draw: st.DrawFn) -> tuple[ItemState, dict[int, Inspection]]:
    """An item with the rows that the store has for it, all of them as recorded; perhaps it went back before."""
    state = draw(STATES)
    stage = STAGES if state is State.DONE else draw(st.integers(0, STAGES - 1))
    furthest = draw(st.integers(stage, STAGES))
    by_hand = draw(st.booleans()) and state is State.DONE
    rows = range(STAGES - 1, STAGES) if by_hand else range(furthest)
    return ItemState(state=state, stage=stage), as_recorded(rows)


@pytest.mark.promise("A14", "P5")
@PROPERTY
@given(items())
def test_an_item_whose_outputs_are_as_recorded_gives_no_finding(one: tuple[ItemState, dict[int, Inspection]]) -> None:
    place, rows = one
    assert list(judge(place, STAGES, rows)) == []


@pytest.mark.promise("A14", "P5", "A8")
@PROPERTY
@given(items(), st.dictionaries(st.integers(0, STAGES - 1), st.tuples(DOUBTS, REASONS)))
def test_every_planted_difference_is_found_and_nothing_else(
    one: tuple[ItemState, dict[int, Inspection]], planted: dict[int, tuple[Verdict, str]]
) -> None:
    place, rows = one
    planted = {stage: said for stage, said in planted.items() if stage in rows}
    seen = {stage: Inspection(stage, verdict, reason=why) for stage, (verdict, why) in planted.items()}
    found = list(judge(place, STAGES, {**rows, **seen}))
    rests_on = range(place.stage) if place.state is not State.CANCELLED else ()
    assert {stage: why for stage, _, why in found} == {s: why for s, (_, why) in planted.items() if s in rests_on}
    for stage, what, why in found:
        known = What.MISSING if why == GONE else What.DIFFERENT
        assert what is (What.UNVERIFIED if planted[stage][0] is Verdict.UNKNOWN else known)


@pytest.mark.promise("A14", "P5")
@pytest.mark.parametrize("state", State)
def test_an_output_that_the_store_lost_is_missing_from_what_rests_on_it(state: State) -> None:
    stage = STAGES if state is State.DONE else 2
    rows = as_recorded(range(stage - 1))
    found = [(at, what) for at, what, _ in judge(ItemState(state=state, stage=stage), STAGES, rows)]
    assert found == ([(stage - 1, What.MISSING)] if state in (State.DONE, State.PENDING) else [])


@st.composite
def recorded(draw: st.DrawFn) -> Recorded:
    return Recorded(**{name: draw(NUMBERS) for name in Recorded.__struct_fields__})


def reconciliation(counts: Recorded, **facts: Any) -> Reconciliation:
    told: dict[str, Any] = {
        "expected": Expected(admitted=counts.total, read=True), "recorded": counts, "observed": Observed(how="quick"),
        "found": {}, "findings": [], **facts,
    }  # fmt: skip
    mode = told.pop("course", BatchMode.OPEN)
    batch = Batch(id=BatchId(1), name="b", pipeline="p", definition=b"", opened_at=0, admitted=2, course=mode)
    return conclude(batch, told.pop("chunks", [chunk()]), **told)


@pytest.mark.promise("A14")
@PROPERTY
@given(recorded(), st.integers(-3, 3))
def test_states_that_do_not_sum_up_are_a_finding_of_their_own(counts: Recorded, off: int) -> None:
    found = reconciliation(counts, expected=Expected(admitted=counts.total + off, read=True))
    assert found.found.get(What.MISCOUNTED, 0) == (off != 0)
    parts = [found.counts[name] for name in ("done", "skipped", "dead", "cancelled", "pending")]
    assert (sum(parts) == found.counts["expected"]) == (off == 0)
    assert not (off and found.is_explained)


@pytest.mark.promise("A14")
@PROPERTY
@given(recorded(), st.booleans(), st.dictionaries(st.sampled_from(What), st.integers(0, 3)), st.integers(0, 50))
def test_only_a_batch_without_findings_without_pending_items_and_with_its_source_read_is_explained(
    counts: Recorded, read: bool, found: dict[What, int], tolerated: int
) -> None:
    result = reconciliation(counts, expected=Expected(admitted=counts.total, read=read), found=found)
    assert result.is_explained == (read and not counts.pending and not any(found.values()))
    assert (result.exit_code(tolerated) == 0) == (result.is_explained and counts.dead <= tolerated)
    assert result.is_ended == (read and not counts.pending)


@pytest.mark.promise("A14")
def test_a_count_below_zero_is_a_finding_even_if_the_sum_holds() -> None:
    found = reconciliation(Recorded(done=5, dead=-1))
    assert found.found == {What.MISCOUNTED: 1}


@pytest.mark.promise("A14")
def test_what_the_journal_keeps_has_numbers_and_no_keys_and_is_the_same_for_the_same_state() -> None:
    finding = Finding(what=What.MISSING, why="gone", n=7, key="secret-name", stage=1, file="out/secret-name.json")
    facts = {"found": {What.MISSING: 1}, "findings": [finding]}
    one = reconciliation(Recorded(done=3), observed=Observed(how="quick", outputs=3), **facts)
    other = reconciliation(Recorded(done=3), observed=Observed(how="full", outputs=9), **facts)
    assert one.facts() == other.facts()
    assert b"secret" not in one.facts()
    assert canonical.decode(one.facts())["findings"] == [["missing", 7, 1]]
    assert one.facts() != reconciliation(Recorded(done=3), chunks=[chunk(seq=9)], **facts).facts()


def test_how_a_batch_ended() -> None:
    assert reconciliation(Recorded(done=2)).end == "complete"
    assert reconciliation(Recorded(done=2, dead=1)).end == "complete with dead letters"
    assert reconciliation(Recorded(done=2, cancelled=1), course=BatchMode.CANCELLED).end == "cancelled"


def test_every_kind_of_finding_says_what_to_do() -> None:
    assert set(REMEDIES) == set(What)
    assert Counter(REMEDIES.values()).most_common(1)[0][1] == 1


def test_an_item_that_went_back_too_often_is_buried() -> None:
    place = ItemState(state=State.DONE, stage=2)
    for turn in range(REWINDS):
        place = rewound(place, 1, 2, reason="gone")
        assert (place.state, place.stage, place.epoch, place.rewinds) == (State.PENDING, 1, turn + 1, turn + 1)
    place = rewound(place, 1, 2, reason="gone")
    assert (place.state, place.code) == (State.DEAD, "rewound_too_often")


@pytest.mark.promise("A14")
def test_what_is_sealed_is_what_was_reconciled() -> None:
    parts = [chunk(0, 2, done=2)]
    batch = Batch(id=BatchId(1), name="b", pipeline="p", definition=b"", opened_at=0, admitted=2, ingested_at=1.0)
    seen = canonical.encode({"heads": course.cover(parts).hex()})
    assert course.obstacle(batch, parts, seen, now=0.0) is None
    later = [chunk(0, 2, done=2, seq=1, head=b"\1" * 32)]
    assert "changed while it was reconciled" in str(course.obstacle(batch, later, seen, now=0.0))
