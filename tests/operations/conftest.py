"""Fixtures of the operator's side: every test that asks for a store runs on each of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.stores.base import Store
from tests.operations.world import Clock, World, make_store


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Store]:
    made = make_store(request.param, tmp_path, clock)
    yield made
    made.close()


@pytest.fixture
def world(store: Store, clock: Clock) -> World:
    return World(store, clock)
