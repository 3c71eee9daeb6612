"""Leases and commits on compare-and-swap: worlds on a bucket whose every request may go wrong, and a small world of
documents that is seen without exception."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest

from holdfast.core.errors import UsageError
from holdfast.testing.simulator import Failure, on_a_bucket, search, simulate
from tests.model.exhaustive import Counterexample, explore_swaps
from tests.model.mutants import BY_EXPLORING, BY_SIMULATION, BY_SWAPPING, Mutant, catch
from tests.model.mutants.recording import chains_end_early
from tests.simulation.conftest import seeds_of_this_commit

SWAPPED = pytest.mark.promise(
    *("A1", "A4", "A7", "B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8", "B10", "B11", "B18", "C1", "C2", "C3", "C4"),
    *("C7", "C8", "C9", "C10", "C11", "C12", "C13", "E12", "P1", "P7", "P8"),
)
SEEN = pytest.mark.promise("B2", "B4", "B7", "B10", "C1", "C2", "C3", "C8", "C10", "C11", "C12", "C13")
PART = 300
PARTS = [0, 1, *(pytest.param(part, marks=pytest.mark.slow) for part in range(2, 5))]
"""The first run in the quick part, too."""
ENOUGH = 2500
"""Worlds: more than twice what the most hidden mutant needs."""


@SWAPPED
@pytest.mark.parametrize("part", PARTS)
def test_every_promise_holds_on_a_bucket(part: int, tally: Callable[..., None]) -> None:
    count(search(range(part * PART, (part + 1) * PART), on_a_bucket, store="cas"), tally)


def count(counts: Counter[str], tally: Callable[..., None]) -> None:
    tally(
        worlds=counts["worlds"], crashes=counts["crashes"], pauses=counts["pauses"],
        requests_in_trouble=counts["requests in trouble"], races=counts["races"],
    )  # fmt: skip


@SWAPPED
@pytest.mark.parametrize("part", PARTS)
def test_every_promise_holds_on_a_bucket_in_worlds_that_no_other_commit_tried(
    part: int, tally: Callable[..., None]
) -> None:
    begin = seeds_of_this_commit() + part * PART
    count(search(range(begin, begin + PART), on_a_bucket, store="cas"), tally)


@SWAPPED
def test_every_promise_holds_on_a_bucket_where_chains_end_after_a_few_entries(tally: Callable[..., None]) -> None:
    with chains_end_early():
        count(search(range(PART), on_a_bucket, store="cas"), tally)


def test_the_same_seed_is_the_same_world_on_a_bucket() -> None:
    first, second = list[str](), list[str]()
    for seed in range(20):
        assert simulate(seed, on_a_bucket, trace=first).heads == simulate(seed, on_a_bucket, trace=second).heads
    assert first == second


def test_a_seed_of_a_world_on_a_bucket_can_be_replayed_from_the_command_line() -> None:
    with BY_SWAPPING["a_lease_ends_after_half_its_time"](), pytest.raises(Failure, match="--trace --store cas"):
        search(range(100), on_a_bucket, store="cas")
    command = [sys.executable, "-m", "holdfast.testing.simulator", "--seed", "7", "--trace", "--store", "cas"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    trace: list[str] = []
    simulate(7, on_a_bucket, trace=trace)
    assert told.splitlines() == trace


# -- the worlds can fail ------------------------------------------------------------------------------------------


@SWAPPED
@pytest.mark.parametrize("name", BY_SWAPPING)
def test_worlds_on_a_bucket_catch(name: str, tally: Callable[..., None]) -> None:
    caught = catch(BY_SWAPPING[name], ENOUGH, make_store=on_a_bucket)
    assert caught is not None, f"{ENOUGH} worlds on a bucket in which {name.replace('_', ' ')}, and nothing was noticed"
    tally(mutants=1, seeds=caught.seeds)


def test_there_are_enough_broken_versions() -> None:
    of_scans = [name for name, mutant in BY_SIMULATION.items() if mutant.__module__.endswith("scanning")]
    assert len(BY_SWAPPING) >= 20
    assert len(of_scans) >= 10


# -- the small world ----------------------------------------------------------------------------------------------

QUICK = {"two workers": {"resets": 0}, "two workers and an operator": {"resets": 1}}
WHOLE = {
    "three workers": {"workers": 3, "resets": 0},
    "three workers and an operator": {"workers": 3, "resets": 1},
    "longer ranges": {"rows": 3, "resets": 1},
}
"""More than a million states in all."""
AT_FIRST = {
    "two chunks": {"chunks": 2, "resets": 0},
    "two chunks, three workers and an operator": {"chunks": 2, "workers": 3, "requests": 3},
}
"""Too large to be seen to their end; all that can happen in the first moves is."""
FIRST_STATES = 300_000


@SEEN
@pytest.mark.parametrize("name", QUICK)
def test_every_state_of_documents_keeps_every_promise(name: str, tally: Callable[..., None]) -> None:
    see_all(QUICK[name], tally)


@SEEN
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", WHOLE)
def test_every_state_of_more_documents_keeps_every_promise(name: str, tally: Callable[..., None]) -> None:
    see_all(WHOLE[name], tally)


@SEEN
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", AT_FIRST)
def test_the_first_moves_on_documents_keep_every_promise(name: str, tally: Callable[..., None]) -> None:
    seen = explore_swaps(**AT_FIRST[name], most=FIRST_STATES)
    assert seen.deepest >= 8
    tally(states=seen.states, moves=seen.moves)


def see_all(sizes: dict[str, int], tally: Callable[..., None]) -> None:
    seen = explore_swaps(**sizes)
    assert seen.complete
    assert seen.finished
    tally(states=seen.states, moves=seen.moves)


BROKEN = {
    "a_small_bucket_does_not_compare_what_it_swaps": 3,
    "a_small_swapper_takes_silence_for_success": 2,
    "a_small_swapper_takes_silence_for_failure": 5,
    "a_small_swapper_takes_every_write_for_its_own": 3,
    "a_small_swapper_compares_no_write_id_and_asks_no_chain": 4,
    "a_take_over_does_not_raise_the_fence": 3,
    "a_fence_begins_again_after_a_release": 5,
    "a_commit_of_a_stale_owner_is_accepted": 7,
    "a_release_goes_without_its_commit": 5,
    "a_document_keeps_a_cursor_without_its_accumulator": 3,
    "a_reset_keeps_the_fence_of_the_old_owner": 2,
}
"""By the name of the mutant: in how many moves it does harm."""


def test_every_broken_worker_on_documents_is_noticed() -> None:
    of_documents = {name for name in BY_EXPLORING if "_small_swapper_" in name or "_small_bucket_" in name}
    assert of_documents <= BROKEN.keys()


def mutant(name: str) -> Mutant:
    return (BY_EXPLORING | BY_SWAPPING)[name]


@SEEN
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_version_does_harm_on_documents_within_a_few_moves(name: str, tally: Callable[..., None]) -> None:
    with mutant(name)(), pytest.raises(Counterexample) as found:
        explore_swaps(most=30_000)
    assert found.value.length == BROKEN[name]
    tally(mutants=1)


def test_a_chunk_that_nobody_can_take_over_is_noticed() -> None:
    with (
        BY_EXPLORING["a_small_lease_never_ends"](),
        pytest.raises(Counterexample, match="no item can come to its end"),
    ):
        explore_swaps(resets=0)


def test_a_small_world_without_workers_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one"):
        explore_swaps(workers=0)


def test_documents_can_be_explored_from_the_command_line() -> None:
    command = [sys.executable, "-m", "tests.model.exhaustive", "--swaps", "--resets", "0"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.startswith("all 7,")
