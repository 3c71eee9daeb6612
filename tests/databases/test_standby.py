"""A replica is followed as far as it has what its primary committed."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

import holdfast as hf
from holdfast.runtime.sources.sql import horizon
from tests.databases import servers
from tests.databases.race import make_table

INSERT = sa.text("INSERT INTO orders VALUES (:id, :at)")


@pytest.fixture
def primary(postgresql: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(postgresql)
    make_table(engine)
    yield engine
    engine.dispose()


def put(engine: sa.Engine, name: str) -> datetime:
    at = datetime.now(UTC)
    with engine.begin() as connection:
        connection.execute(INSERT, {"id": name, "at": at})
    return at


def until(check: Any, seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not check() and time.monotonic() < deadline:
        time.sleep(0.1)
    return bool(check())


@pytest.mark.slow
@pytest.mark.promise("C17")
def test_a_standby_delivers_what_it_has_replayed_and_the_last_row_of_a_quiet_primary_too(
    primary: sa.Engine, postgresql: str
) -> None:
    with servers.standby(postgresql) as url:
        replica = sa.create_engine(url)
        table = hf.Table(replica, "orders", cursor="updated_at", lateness=1)

        def found() -> list[str]:
            told = table.final(None, lambda _: True)
            return [row["id"] for page in table.read(None, told.until) for row in page.rows]

        put(primary, "first")
        assert until(lambda: found() == ["first"]), "nothing comes after it, and it is delivered even so"
        with replica.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            assert horizon.writers(connection) is None, "a replica tells nothing about transactions of its primary"
            connection.exec_driver_sql("SELECT pg_wal_replay_pause()")
            behind = put(primary, "second")
            assert until(lambda: datetime.now(UTC) - behind > timedelta(seconds=2.5))
            assert horizon.server_clock(connection).now <= behind.timestamp() + 1, (
                "its time stands still with what it replays"
            )
            connection.exec_driver_sql("SELECT pg_wal_replay_resume()")
        assert until(lambda: found() == ["first", "second"])
        replica.dispose()
