"""The SQLite store passes the suite that every store passes."""

import pytest

from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.conformance import conformance

test_sqlite = conformance(
    lambda place, clock, is_dead: SqliteStore(place / "state.db", clock=clock, is_dead=is_dead),
    mark=pytest.mark.promise,
)
