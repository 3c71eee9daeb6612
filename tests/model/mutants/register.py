"""How mutants are made and found: a function whose name says what is broken, and which returns the patch."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from holdfast.core.model import Commit, Receipt
from holdfast.stores.memory import MemoryStore

Patch = AbstractContextManager[Any]
Mutant = Callable[[], Patch]

BY_SIMULATION: dict[str, Mutant] = {}
"""Mutants that the simulator catches."""
BY_CONFORMANCE: dict[str, Mutant] = {}
"""Mutants that only the suite for stores can see."""
BY_SWAPPING: dict[str, Mutant] = {}
"""Mutants of the bucket store that worlds on a bucket catch."""
BY_EXPLORING: dict[str, Mutant] = {}
"""Mutants of the worker that small worlds have, which only exploring them can see."""


def simulation(mutant: Mutant) -> Mutant:
    """Registers a mutant that workers can see."""
    return BY_SIMULATION.setdefault(mutant.__name__, mutant)


def conformance(mutant: Mutant) -> Mutant:
    """Registers a mutant that only the suite for stores can see."""
    return BY_CONFORMANCE.setdefault(mutant.__name__, mutant)


def swapping(mutant: Mutant) -> Mutant:
    """Registers a mutant of the bucket store."""
    return BY_SWAPPING.setdefault(mutant.__name__, mutant)


def exploring(mutant: Mutant) -> Mutant:
    """Registers a mutant of the worker in a small world."""
    return BY_EXPLORING.setdefault(mutant.__name__, mutant)


def wrapped(owner: Any, name: str, wrapper: Callable[..., Any]) -> Patch:
    """Puts `wrapper(original, …)` in the place of a function."""
    original = getattr(owner, name)
    return mock.patch.object(owner, name, lambda *args, **named: wrapper(original, *args, **named))


def committing(one: Callable[..., Any]) -> Patch:
    """Puts `one(commit_one, store, commit)` in the place of every commit to the memory store."""

    def each(commit: Any, store: MemoryStore, commits: Sequence[Commit]) -> list[Receipt]:
        return [one(lambda store, single: commit(store, [single])[0], store, single) for single in commits]

    return wrapped(MemoryStore, "commit", each)


def answering(owner: Any, name: str, answer: Any) -> Patch:
    """Puts a function that always gives the same answer in the place of another."""
    return wrapped(owner, name, lambda _original, *_args, **_named: answer)
