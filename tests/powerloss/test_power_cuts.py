"""After a power cut at any moment the store opens, has everything it acknowledged, and nothing by halves."""

import os
from collections.abc import Callable, Sequence

import pytest

from tests.powerloss.crash_states import Window, windows
from tests.powerloss.judge import Judge
from tests.powerloss.story import Story
from tests.powerloss.survey import Survey, all_simple, by_chance, survey
from tests.simulation.conftest import seeds_of_this_commit

PROMISES = pytest.mark.promise("A8", "B7", "C10", "P6", "P10")
PARTS = 8
DRAWN = 2_000
FIXED = 1
"""The seed that is always the same."""


def seed_of_today() -> int:
    """Another one for each commit; HOLDFAST_SEED replays one."""
    said = os.environ.get("HOLDFAST_SEED")
    return int(said) if said else seeds_of_this_commit()


def part_of(story: Story, part: int) -> Sequence[Window]:
    """Moments from the whole story: each part has busy ones."""
    return list(windows(story.ops))[part::PARTS]


def must_hold(found: Survey, seed: int | None, tally: Callable[..., None]) -> None:
    replay = "" if seed is None else f"; replay it: HOLDFAST_SEED={seed} pytest tests/powerloss"
    assert not found.complaints, f"{found.first} ({found.complaints} of {found.states} states{replay})"
    tally(states=found.states, continued=found.continued)


@PROMISES
def test_the_store_survives_a_power_cut(story: Story, judge: Judge, tally: Callable[..., None]) -> None:
    found = survey(judge, by_chance(windows(story.ops), FIXED), limit=1_000)
    must_hold(found, None, tally)


@PROMISES
@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_the_store_survives_every_simple_state(
    part: int, story: Story, judge: Judge, tally: Callable[..., None]
) -> None:
    found = survey(judge, all_simple(part_of(story, part)), limit=100_000)
    must_hold(found, None, tally)


@PROMISES
@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_the_store_survives_whatever_chance_leaves(
    part: int, story: Story, judge: Judge, tally: Callable[..., None]
) -> None:
    seed = seed_of_today()
    must_hold(survey(judge, by_chance(part_of(story, part), seed), limit=DRAWN), seed, tally)


def test_the_story_has_moments_of_every_kind(story: Story) -> None:
    """Else the states would prove less than they seem to."""
    kinds = {(op.kind, op.file) for op in story.ops}
    assert kinds >= {("create", "-wal"), ("delete", "-wal"), ("create", "-journal"), ("delete", "-journal")}
    assert kinds >= {("write", ""), ("sync", ""), ("truncate", ""), ("sync folder", "")}
    begun_anew = [op for op in story.ops if (op.kind, op.file, op.offset) == ("write", "-wal", 0)]
    assert len(begun_anew) > 3, "the log is begun again"
    assert any(is_spilled(story, at) for at in range(len(story.ops))), "a part of a transaction is written early"
    assert len(story.contents) > 40
    assert len(set(story.contents)) > 35


def is_spilled(story: Story, at: int) -> bool:
    """Whether a write to the log goes back to an earlier place, though the log was not begun again: a page of a
    transaction that had been written before its end, and changed again."""
    op, before = story.ops[at], story.ops[at - 1]
    same_log = op.kind == before.kind == "write" and op.file == before.file == "-wal"
    return same_log and 0 < op.offset < before.offset
