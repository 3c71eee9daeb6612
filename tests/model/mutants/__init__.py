"""Holdfast with one decision removed at a time. Each version must be caught, or the proofs prove nothing.

A mutant is a patch that breaks the core, the memory store or the simulated worker in one place. `catch` runs worlds of
the simulator until one of them fails; `checks_failed` runs the suite for stores, for what no worker can see. A mutant
that is not caught is a hole in the tests.
"""

import tempfile
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.errors import HoldfastError
from holdfast.stores.memory import MemoryStore
from holdfast.testing.simulator import in_memory, simulate
from holdfast.testing.simulator.world import MakeStore
from tests.model.mutants import (
    commits,
    deadlines,
    decisions,
    endings,
    engine,
    explored,
    leases,
    messages,
    pauses,
    processes,
    recording,
    returns,
    scanning,
    slices,
    swapping,
)
from tests.model.mutants.register import BY_CONFORMANCE, BY_EXPLORING, BY_SIMULATION, BY_SWAPPING, Mutant

__all__ = [
    "BY_CONFORMANCE",
    "BY_EXPLORING",
    "BY_SIMULATION",
    "BY_SWAPPING",
    "CAUGHT",
    "Catch",
    "Mutant",
    "catch",
    "checks_failed",
]

CHAPTERS = (
    commits,
    leases,
    deadlines,
    messages,
    decisions,
    engine,
    pauses,
    processes,
    slices,
    endings,
    returns,
    recording,
    scanning,
    swapping,
    explored,
)
CAUGHT = (AssertionError, HoldfastError)
"""How a broken version shows: by an oracle, an assertion or a refusal. Any other error is a bug of the mutant."""


class Catch(msgspec.Struct, frozen=True):
    """How a mutant was caught."""

    seeds: int
    """How many it took."""
    why: str


def catch(mutant: Mutant, limit: int, first: int = 0, make_store: MakeStore = in_memory) -> Catch | None:
    """Simulate world after world until the mutant is caught; None when `limit` do not suffice."""
    with mutant():
        for count in range(limit):
            try:
                simulate(first + count, make_store)
            except CAUGHT as error:
                return Catch(count + 1, f"{type(error).__name__}: {error}")
    return None


def _in_memory(place: Path, **given: Any) -> MemoryStore:
    return MemoryStore(**given)


def checks_failed(mutant: Mutant) -> list[str]:
    """The checks of the suite for stores that a mutant fails."""
    from pytest import fail  # noqa: PT013 - also what should have been raised and was not

    from holdfast.testing.conformance import Kit, checks  # needs pytest, which the simulator does not

    failed = []
    with mutant(), tempfile.TemporaryDirectory() as place:
        for check in checks(durable=False):
            try:
                check(Kit(_in_memory, Path(place)))
            except (*CAUGHT, fail.Exception):
                failed.append(check.__name__)
    return failed
