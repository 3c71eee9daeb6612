"""With one decision removed, Holdfast is caught: the proofs can fail."""

import contextlib
from collections.abc import Callable

import pytest

from tests.model.mutants import BY_CONFORMANCE, BY_SIMULATION, catch, checks_failed

SEEDS = 4000
"""Several times what the most hidden mutant needs."""


BROKEN_VERSIONS = {
    "a_commit_is_taken_whatever_its_fence": pytest.mark.catches("unfenced"),
    "a_commit_is_taken_whatever_its_version": pytest.mark.catches("unversioned"),
    "the_worker_goes_on_before_its_commit_is_written": pytest.mark.catches("acknowledge before commit"),
    "a_grant_does_not_raise_the_fence": pytest.mark.catches("fence not raised"),
    "a_lost_reply_is_taken_for_success": pytest.mark.catches("no read-back"),
}


@pytest.mark.promise(
    *("C1", "C3", "C4", "C8", "C12", "E7", "E8", "E12", "P1", "P8", "P13", "A1", "A6", "A11", "A13", "A14", "A15"),
    *("B1", "B2", "B4", "B8", "B10", "B11"),
)
@pytest.mark.parametrize("name", [pytest.param(name, marks=BROKEN_VERSIONS.get(name, ())) for name in BY_SIMULATION])
def test_the_simulator_catches(name: str, tally: Callable[..., None]) -> None:
    caught = catch(BY_SIMULATION[name], SEEDS)
    assert caught is not None, f"{SEEDS} worlds in which {name.replace('_', ' ')}, and nothing was noticed"
    tally(mutants=1, seeds=caught.seeds)


@pytest.mark.parametrize("name", BY_CONFORMANCE)
def test_the_suite_for_stores_catches(name: str, tally: Callable[..., None]) -> None:
    assert checks_failed(BY_CONFORMANCE[name]), f"a store in which {name.replace('_', ' ')} passes every check"
    tally(mutants=1)


def test_what_is_whole_is_not_caught() -> None:
    assert catch(contextlib.nullcontext, 100) is None


def test_there_are_enough_mutants() -> None:
    assert len(BY_SIMULATION) + len(BY_CONFORMANCE) >= 20
