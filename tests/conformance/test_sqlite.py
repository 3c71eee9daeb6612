"""The SQLite store passes the suite that every store passes."""

import pytest

from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.conformance import conformance

test_sqlite = conformance(
    lambda place, **given: SqliteStore(place / "state.db", **given),
    mark=pytest.mark.promise,
)
