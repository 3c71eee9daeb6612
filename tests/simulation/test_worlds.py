"""Thousands of small worlds in which everything goes wrong, and every promise holds."""

import itertools
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from holdfast.core import record
from holdfast.core.commitments import GRANT_BYTES, Draw
from holdfast.core.model import Chunk
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.simulator import Failure, in_folders, search, simulate
from holdfast.testing.simulator.world import MakeStore
from tests.model.mutants import BY_SIMULATION
from tests.model.mutants.recording import chains_end_early
from tests.simulation.conftest import seeds_of_this_commit

EVERYTHING = pytest.mark.promise(
    *("A1", "A4", "A6", "A7", "A11", "A13", "A14", "A15", "B7", "C1", "C3", "C4", "C7", "C8", "C9", "C10", "C11"),
    *("C12", "C13", "E5", "E6", "E7", "E8", "E12", "P1", "P3", "P7", "P8", "P10", "P11", "P13"),
    *("B1", "B2", "B3", "B4", "B5", "B6", "B8", "B10", "B11", "B18"),
)
"""Those of scans in the worlds whose items are ranges of rows: one in five."""
ROOT = Path(__file__).parents[2]
PART = 500
PARTS = [0, 1, 2, *(pytest.param(part, marks=pytest.mark.slow) for part in range(3, 10))]
"""The first run in the quick part, too."""
LARGE_PART = 5_000
FIXED = 9
"""Large parts whose seeds are always the same: with the quick ones 50,000."""
OF_THIS_COMMIT = 10
"""Large parts whose seeds come from the commit: 50,000 more."""


@EVERYTHING
@pytest.mark.parametrize("part", PARTS)
def test_every_promise_holds_in_every_world(part: int, tally: Callable[..., None]) -> None:
    count(search(range(part * PART, (part + 1) * PART)), tally)


@EVERYTHING
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(FIXED))
def test_every_promise_holds_in_many_more_worlds(part: int, tally: Callable[..., None]) -> None:
    begin = 100_000 + part * LARGE_PART
    count(search(range(begin, begin + LARGE_PART)), tally)


@EVERYTHING
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(OF_THIS_COMMIT))
def test_every_promise_holds_in_worlds_that_no_other_commit_tried(part: int, tally: Callable[..., None]) -> None:
    begin = seeds_of_this_commit() + part * LARGE_PART
    count(search(range(begin, begin + LARGE_PART)), tally)


def count(counts: Counter[str], tally: Callable[..., None]) -> None:
    tally(
        worlds=counts["worlds"], crashes=counts["crashes"], pauses=counts["pauses"], lost_replies=counts["replies lost"]
    )


def sqlite_below(place: Path) -> MakeStore:
    """Real SQLite files, in memory where the system has a file system there."""
    return in_folders(lambda folder, **given: SqliteStore(folder / "s.db", **given), place)


@EVERYTHING
@pytest.mark.parametrize("first", [0, 50, 100, 150])
def test_sqlite_tells_the_same_story_as_the_memory_store(first: int, place: Path) -> None:
    on_disk = in_folders(lambda folder, **given: SqliteStore(folder / "s.db", **given | plain_draw()), place)
    for seed in range(first, first + 50):
        in_memory = simulate(seed, lambda clock, is_dead: MemoryStore(clock=clock, is_dead=is_dead, **plain_draw()),
                             chunks=1)  # fmt: skip
        assert simulate(seed, on_disk, chunks=1).heads == in_memory.heads, f"seed {seed}"


def plain_draw() -> dict[str, Draw]:
    """In place of random bytes: the ids of grants are counted, and everything else is zero, so that it does not matter
    how often a store draws."""
    ids = itertools.count(1)
    return {"draw": lambda count: next(ids).to_bytes(count, "big") if count == GRANT_BYTES else bytes(count)}


@EVERYTHING
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(4))
def test_every_promise_holds_on_sqlite(part: int, place: Path, tally: Callable[..., None]) -> None:
    begin = seeds_of_this_commit() + part * PART
    count(search(range(begin, begin + PART), sqlite_below(place)), tally)


@EVERYTHING
@pytest.mark.parametrize("part", PARTS[:2])
def test_every_promise_holds_where_chains_end_after_a_few_entries(part: int, tally: Callable[..., None]) -> None:
    with counted_ends() as ends:
        count(search(range(part * PART, (part + 1) * PART)), tally)
    assert len(ends) > PART // 2
    tally(chains_ended=len(ends))


@EVERYTHING
def test_every_promise_holds_on_sqlite_where_chains_end_after_a_few_entries(
    place: Path, tally: Callable[..., None]
) -> None:
    with counted_ends() as ends:
        count(search(range(150), sqlite_below(place)), tally)
    assert len(ends) > 75
    tally(chains_ended=len(ends))


@contextmanager
def counted_ends() -> Iterator[list[int]]:
    """Chains end early, and the chunks of those that ended are counted."""
    ends, roll_over = list[int](), record.roll_over

    def counted(uid: bytes, chunk: Chunk, *args: Any, **named: Any) -> record.Rollover:
        ends.append(chunk.number)
        return roll_over(uid, chunk, *args, **named)

    with chains_end_early(), mock.patch.object(record, "roll_over", counted):
        yield ends


def test_the_same_seed_is_the_same_world() -> None:
    first, second = list[str](), list[str]()

    def seeded(clock: Callable[[], float], is_dead: Callable[[str], bool]) -> MemoryStore:
        return MemoryStore(clock=clock, is_dead=is_dead, draw=random.Random(7).randbytes)

    assert simulate(7, seeded, trace=first).heads == simulate(7, seeded, trace=second).heads
    assert first == second
    simulate(7, trace=(third := list[str]()))
    assert first == third, "what happens does not depend on salts and ids"


def test_a_failure_names_its_seed_and_tells_how_it_came() -> None:
    with BY_SIMULATION["a_lost_reply_is_taken_for_success"](), pytest.raises(Failure) as failure:
        search(range(100))
    message = str(failure.value)
    assert "replay it: python -m holdfast.testing.simulator --seed" in message
    assert "claims chunk" in message


def test_a_seed_can_be_replayed_from_the_command_line() -> None:
    command = [sys.executable, "-m", "holdfast.testing.simulator", "--seed", "7", "--trace"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    trace: list[str] = []
    simulate(7, trace=trace)
    assert told.splitlines() == trace


def test_a_store_of_ones_own_is_named_on_the_command_line() -> None:
    own = ["--store", "examples.own_store.test_log_store:make"]
    command = [sys.executable, "-m", "holdfast.testing.simulator", "--seed", "3", "--count", "2", *own]
    told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert told.startswith("2 seeds in ")


def test_a_failure_on_a_store_of_ones_own_says_how_to_replay_it() -> None:
    with (
        BY_SIMULATION["a_lost_reply_is_taken_for_success"](),
        pytest.raises(Failure, match="--trace --store mine:make"),
    ):
        search(range(100), store="mine:make")
