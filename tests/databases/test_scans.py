"""Scans over tables: in ranges side by side, interrupted and gone on with, and followed with their lag."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import holdfast as hf
from holdfast.runtime.scan.tick import Ended
from tests.databases.race import make_table
from tests.databases.test_tables import make
from tests.runtime.support import wait_for

INSERT = sa.text("INSERT INTO orders VALUES (:id, :at)")


@pytest.mark.promise("B10")
def test_ranges_of_a_table_come_to_the_same_as_one_pass(url: str, folder: Path) -> None:
    engine = sa.create_engine(url)
    make(engine, sa.Integer, [n // 7 for n in range(500)])
    failed: list[int] = []

    def scan() -> hf.Scan:
        made = hf.Scan("totals", hf.Table(url, "orders", cursor="at", key="id", page=30), every=25, partitions=4,
                       store=folder / "state.db", retry=hf.Retry(attempts=1))  # fmt: skip

        @made.handler
        def add(rows: list[dict[str, Any]], acc: int) -> int:
            if any(row["id"] == 333 for row in rows) and not failed:
                failed.append(1)
                raise hf.Transient("once")
            return acc + sum(row["total"] for row in rows)

        made.converge(sum)
        return made

    first = scan().run(progress=False)
    assert first.counts.dead == 1
    from holdfast.runtime.acts import Actor
    from holdfast.runtime.operate.operations import redrive

    again = scan()
    (batch,) = again.pipeline.store.batches("totals")
    redrive(again.pipeline.store, batch, Actor(name="ann", reason="again"))
    report = again.run(progress=False)
    assert report.result == sum(n * 10 for n in range(500))
    assert report.rows == 500
    engine.dispose()


@pytest.mark.promise("C17")
def test_a_tick_says_how_far_it_is_behind_and_what_holds_it_back(postgresql: str, folder: Path) -> None:
    engine = sa.create_engine(postgresql)
    make_table(engine)
    now = datetime.now(UTC)
    with engine.begin() as connection:
        connection.execute(INSERT, {"id": "old", "at": now - timedelta(minutes=2)})
        connection.execute(INSERT, {"id": "new", "at": now})
    table = hf.Table(postgresql, "orders", cursor="updated_at", lateness="1m")
    scan = hf.Follow("orders", table, store=folder / "state.db")
    scan.handler(lambda rows: None)
    told = scan.tick()
    assert (told.ended, told.rows) == (Ended.CAUGHT_UP, 1)
    assert told.lag == 0  # the other row is not final yet, as everybody's is for a minute
    assert "not final yet" in told.why
    with engine.connect() as slow, slow.begin():
        slow.execute(INSERT, {"id": "slow", "at": now})
        held = scan.tick()
    assert (held.ended, held.exit_code) == (Ended.NOTHING_NEW, 0)
    assert "has written rows" in held.why
    engine.dispose()


@pytest.mark.slow
@pytest.mark.promise("C17")
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_committed_row_that_is_held_back_is_lag_and_who_holds_it_back_is_named(
    kind: str, request: pytest.FixtureRequest, folder: Path
) -> None:
    url: str = request.getfixturevalue(kind)
    engine = sa.create_engine(url)
    make_table(engine)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE others (id INTEGER)"))
    table = hf.Table(url, "orders", cursor="updated_at", lateness="0s")
    scan = hf.Follow("orders", table, store=folder / "state.db")
    scan.handler(lambda rows: None)
    with engine.connect() as slow, slow.begin():
        if kind == "postgresql":
            slow.execute(sa.text("SET LOCAL application_name = 'nightly etl'"))
        slow.execute(sa.text("INSERT INTO others VALUES (1)"))
        session = slow.execute(sa.text("SELECT pg_backend_pid()" if kind == "postgresql" else "SELECT CONNECTION_ID()"))
        number = session.scalar_one()
        with engine.begin() as quick:
            written = quick.execute(sa.text("SELECT CURRENT_TIMESTAMP")).scalar_one()
            quick.execute(INSERT, {"id": "waits", "at": written + timedelta(seconds=1)})
        ticks: list[hf.Tick] = []
        wait_for(lambda: ticks.append(scan.tick()) or ticks[-1].lag)
        told = ticks[-1]
    assert (told.ended, told.total) == (Ended.NOTHING_NEW, 0)
    assert told.lag is not None
    assert told.lag > 1
    assert f"{'pid' if kind == 'postgresql' else 'connection'} {number}" in told.why
    assert kind != "postgresql" or "application 'nightly etl'" in told.why
    wait_for(lambda: scan.tick().total == 1)
    assert [scan.tick().lag for _ in range(2)] == [0, 0], "nothing is new"
    engine.dispose()


@pytest.mark.promise("C17")
def test_a_deadline_too_short_for_rows_to_settle_is_no_success(url: str, folder: Path) -> None:
    engine = sa.create_engine(url)
    make(engine, sa.Integer, [1, 2, 3])
    table = hf.Table(url, "orders", cursor="id", lateness="30s")
    scan = hf.Follow("orders", table, store=folder / "state.db")
    scan.handler(lambda rows: None)
    told = scan.tick(deadline="5s")
    assert (told.ended, told.exit_code, told.rows) == (Ended.WAITING, 75, 0)
    assert "30 s until rows are final" in told.why
    engine.dispose()


@pytest.mark.promise("C14", "C16")
def test_a_table_that_is_read_by_another_column_is_another_source(url: str, folder: Path) -> None:
    engine = sa.create_engine(url)
    make(engine, sa.Integer, [1, 2, 3])

    def tick(cursor: str, **said: Any) -> hf.Tick:
        table = hf.Table(url, "orders", cursor=cursor, key="id", lateness=0)
        scan = hf.Follow("orders", table, store=folder / "state.db")
        scan.handler(lambda rows: None)
        return scan.tick(**said)

    assert tick("at").total == 3
    with pytest.raises(hf.FingerprintChanged, match='cursor: "at" became "total"'):
        tick("total")
    engine.dispose()
