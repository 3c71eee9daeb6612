"""A commit that comes again: it moves nothing, raises nothing, and is logged."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.model import Receipt
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.conformance.kit import Kit, done


def memory(place: Path, **given: Any) -> Store:
    return MemoryStore(**given)


def sqlite(place: Path, **given: Any) -> Store:
    return SqliteStore(place / "state.db", **given)


@pytest.mark.promise("A3", "P8")
@pytest.mark.parametrize("make", [memory, sqlite])
@pytest.mark.parametrize("later", ["at once", "a stage later", "after a take-over"])
def test_moving_an_item_where_it_was_moved_before_changes_nothing_and_is_logged(
    make: Callable[..., Store], later: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kit = Kit(make, tmp_path)
    kit.admit("a")
    claim = kit.claim("ann")
    moved = kit.land(claim, [done(kit.load(claim)[0])])
    if later == "a stage later":
        kit.land(claim, [done(kit.load(claim)[0])], version=1)
    if later == "after a take-over":
        kit.dead.add("ann")
        kit.finish(kit.claim("bob"))
    before = kit.everything()
    with caplog.at_level(logging.INFO, logger="holdfast.store"):
        assert kit.store.commit([moved]) == [Receipt(landed=True)]
    assert kit.everything() == before
    assert [moved.id.hex() in record.getMessage() for record in caplog.records] == [True]
