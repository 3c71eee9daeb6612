"""Rows are delivered once nothing can appear before them: what holds them back, and for how long."""

import threading
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import holdfast as hf
from holdfast.core.cursor import Cursor
from holdfast.runtime.sources.sql import horizon
from tests.databases.race import make_table

INSERT = sa.text("INSERT INTO orders VALUES (:id, :at)")


@pytest.fixture
def shop(postgresql: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(postgresql)
    make_table(engine)
    yield engine
    engine.dispose()


def never(seconds: float) -> bool:
    raise AssertionError("nothing is waited for")


def put(engine: sa.Engine, name: str, age: float) -> None:
    with engine.begin() as connection:
        connection.execute(INSERT, {"id": name, "at": _at(engine, age)})


def _at(engine: sa.Engine, age: float) -> Any:
    at = datetime.now(UTC) - timedelta(seconds=age)
    if engine.dialect.name == "sqlite":
        return at.strftime("%Y-%m-%d %H:%M:%S.%f")
    return at.replace(tzinfo=None) if engine.dialect.name == "mysql" else at


def found(table: hf.Table) -> list[str]:
    until = table.final(None, never)
    if until.nothing:
        return []
    return [row["id"] for page in table.read(None, until.until) for row in page.rows]


@pytest.mark.promise("C17")
def test_a_row_is_final_once_the_settle_window_has_passed(url: str) -> None:
    engine = sa.create_engine(url)
    make_table(engine)
    put(engine, "old", 60)
    put(engine, "new", 0)
    assert found(hf.Table(url, "orders", cursor="updated_at", lateness="20s")) == ["old"]
    assert found(hf.Table(url, "orders", cursor="updated_at", unsafe_cursor=True)) == ["old", "new"]
    engine.dispose()


@pytest.mark.promise("C17")
def test_a_transaction_that_has_written_holds_rows_back_however_long_it_takes(url: str) -> None:
    engine = sa.create_engine(url)
    if engine.dialect.name == "sqlite":
        return  # it tells nothing about its transactions: there the window must be long enough
    make_table(engine)
    put(engine, "old", 60)
    table = hf.Table(url, "orders", cursor="updated_at", lateness=0)
    with engine.connect() as slow, slow.begin():
        slow.execute(INSERT, {"id": "slow", "at": _at(engine, 0)})
        put(engine, "quick", 0)
        time.sleep(2.1)  # past every window: only the open transaction is in the way
        assert found(table) == ["old"]
        assert "has been open for" in table.final(None, never).why
    deadline = time.monotonic() + 20
    while len(found(table)) < 3 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert found(table) == ["old", "slow", "quick"]
    engine.dispose()


@pytest.mark.promise("C17")
def test_those_who_only_read_hold_nothing_back(shop: sa.Engine) -> None:
    put(shop, "old", 60)
    with shop.connect() as reader, reader.begin():
        reader.execute(sa.text("SELECT * FROM orders"))
        assert found(hf.Table(shop, "orders", cursor="updated_at", lateness=5)) == ["old"]


@pytest.mark.promise("C17")
def test_a_user_who_may_not_see_others_waits_for_them_instead(shop: sa.Engine, postgresql: str) -> None:
    with shop.begin() as connection:
        connection.exec_driver_sql("DROP ROLE IF EXISTS poller")
        connection.exec_driver_sql("CREATE ROLE poller LOGIN")
        connection.exec_driver_sql("GRANT SELECT ON orders TO poller")
    url = sa.make_url(postgresql).set(username="poller")
    table = hf.Table(url.render_as_string(hide_password=False), "orders", cursor="updated_at", lateness=5)
    put(shop, "old", 60)
    waits: list[float] = []
    slow = shop.connect()
    slow.begin()
    slow.execute(INSERT, {"id": "slow", "at": _at(shop, 50)})

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        if len(waits) == 5:
            slow.commit()
        return True

    until = table.final(None, wait)
    slow.close()
    assert len(waits) == 5
    assert [row["id"] for page in table.read(None, until.until) for row in page.rows] == ["old", "slow"]
    with shop.connect() as still, still.begin():
        still.execute(INSERT, {"id": "still", "at": _at(shop, 50)})
        told = table.final(None, lambda _: False)
        assert told.nothing
        assert "pg_read_all_stats" in told.why
    with shop.begin() as connection:
        connection.exec_driver_sql("DROP OWNED BY poller")
        connection.exec_driver_sql("DROP ROLE poller")


@pytest.mark.promise("C17")
def test_a_prepared_transaction_is_waited_for_too(shop: sa.Engine) -> None:
    put(shop, "old", 60)
    with shop.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        connection.execute(INSERT, {"id": "prepared", "at": _at(shop, 50)})
        connection.exec_driver_sql("PREPARE TRANSACTION 'later'")
    table = hf.Table(shop, "orders", cursor="updated_at", lateness=5)
    assert table.final(None, lambda _: False).nothing
    with shop.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("COMMIT PREPARED 'later'")
    assert found(table) == ["old", "prepared"]


@pytest.mark.promise("C17")
def test_numbers_of_a_sequence_are_final_when_those_who_could_hold_a_smaller_one_are_finished(
    shop: sa.Engine, folder: Path
) -> None:
    with shop.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE log (id BIGSERIAL PRIMARY KEY, word TEXT)")
    add = sa.text("INSERT INTO log (word) VALUES (:word)")
    table = hf.Table(shop, "log", cursor="id", lateness=0.1)
    naive = hf.Table(shop, "log", cursor="id", unsafe_cursor=True)
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        if len(waits) == 4:
            slow.commit()
        return True

    with shop.connect() as slow:
        slow.execute(add, {"word": "first"})
        with shop.begin() as quick:
            quick.execute(add, {"word": "second"})
        skipped = [row["word"] for page in naive.read(None, naive.final(None, never).until) for row in page.rows]
        assert skipped == ["second"], "the naive cursor is past what comes later"
        assert table.final(None, lambda seconds: seconds == 0.1).nothing
        until = table.final(None, wait)
    assert waits == [0.1, 0.05, 0.05, 0.05]
    assert [row["word"] for page in table.read(None, until.until) for row in page.rows] == ["first", "second"]


@pytest.mark.promise("C17")
def test_an_old_picture_of_transactions_is_not_believed(mariadb: str) -> None:
    engine = sa.create_engine(mariadb)
    make_table(engine)
    put(engine, "old", 60)
    stop = threading.Event()

    def keep_asking() -> None:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            while not stop.is_set():
                connection.exec_driver_sql("SELECT COUNT(*) FROM information_schema.innodb_trx").scalar()

    asker = threading.Thread(target=keep_asking)
    asker.start()
    table = hf.Table(mariadb, "orders", cursor="updated_at", lateness=1)
    try:
        told = table.final(None, lambda _: False)
    finally:
        stop.set()
        asker.join()
    assert told.nothing
    assert "not finished" in told.why
    time.sleep(horizon.PICTURE_SECONDS)
    assert found(table) == ["old"]
    engine.dispose()


@pytest.mark.promise("C17")
def test_a_user_who_is_told_nothing_hears_that_the_window_must_be_long(
    mariadb: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = sa.create_engine(mariadb)
    make_table(engine)
    put(engine, "old", 60)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE OR REPLACE USER poller@localhost")
        connection.exec_driver_sql("GRANT SELECT ON test.* TO poller@localhost")
    horizon._warn.cache_clear()
    url = sa.make_url(mariadb).set(username="poller").render_as_string(hide_password=False)
    assert found(hf.Table(url, "orders", cursor="updated_at", lateness=5)) == ["old"]
    assert "must be longer than the longest transaction" in caplog.text
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP USER poller@localhost")
    engine.dispose()


@pytest.mark.promise("C17")
def test_a_row_that_loses_its_cursor_later_is_not_passed_over_in_silence(url: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE orders (id INT PRIMARY KEY, at INT)")
        connection.exec_driver_sql("INSERT INTO orders VALUES (1, 1)")
    table = hf.Table(url, "orders", cursor="at", lateness=0)
    assert table.final(None, lambda _: True).until == Cursor("column+key", 1, {"id": 1})
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO orders VALUES (2, NULL)")
    with pytest.raises(hf.UsageError, match="1 row without a value in the cursor column"):
        table.final(None, lambda _: True)
    engine.dispose()


@pytest.mark.promise("C17")
def test_an_update_that_waits_for_a_row_has_taken_its_value_and_is_waited_for(url: str) -> None:
    """It holds no id and has changed nothing, and its value is as old as its statement."""
    engine = sa.create_engine(url)
    if engine.dialect.name == "sqlite":
        return  # it has one writer at a time, and tells nothing: the window must be as long as its busy timeout
    make_table(engine)
    put(engine, "contended", 60)
    lock = sa.text("SELECT * FROM orders WHERE id = 'contended' FOR UPDATE")
    began, locked = threading.Event(), threading.Event()

    def update() -> None:
        with engine.begin() as connection:
            connection.execute(sa.text("SELECT now()"))
            began.set()
            locked.wait(10)
            if engine.dialect.name == "postgresql":  # an UPDATE alone would have an id before it waits
                connection.execute(lock)
            connection.execute(sa.text("UPDATE orders SET updated_at = now() WHERE id = 'contended'"))

    table = hf.Table(url, "orders", cursor="updated_at", lateness=0)
    waiting = threading.Thread(target=update)
    waiting.start()
    began.wait(10)
    time.sleep(1.1)  # whoever holds the lock was begun later, and says nothing about the one who waits
    with engine.connect() as first:
        first.execute(lock)
        locked.set()
        time.sleep(1.1)
        bound = table.final(None, lambda _: True).until
        first.rollback()
    waiting.join()
    assert bound is not None
    found_value = {row["id"]: row["updated_at"] for page in table.read(None, None) for row in page.rows}["contended"]
    assert bound.value <= found_value, "what it wrote would stand behind what was final"
    engine.dispose()


@pytest.mark.promise("C17")
def test_a_statement_that_reads_for_long_before_it_writes_is_waited_for(shop: sa.Engine) -> None:
    put(shop, "old", 60)
    gate = sa.text("INSERT INTO orders SELECT 'slow', now() FROM (SELECT pg_advisory_xact_lock(7)) AS t")
    with shop.connect() as key:
        key.execute(sa.text("SELECT pg_advisory_xact_lock(7)"))
        table = hf.Table(shop, "orders", cursor="updated_at", lateness=0)

        def insert() -> None:
            with shop.begin() as connection:
                connection.execute(gate)

        slow = threading.Thread(target=insert)
        slow.start()
        asked = sa.text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        with shop.connect().execution_options(isolation_level="AUTOCOMMIT") as watch:
            deadline = time.monotonic() + 20
            while not watch.execute(asked).scalar() and time.monotonic() < deadline:
                time.sleep(0.02)
            ids = watch.execute(sa.text("SELECT count(*) FROM pg_stat_activity WHERE backend_xid IS NOT NULL")).scalar()
            assert ids == 0, "nobody holds an id of a transaction"
            began = time.monotonic()
            while time.monotonic() - began < 1.1:
                time.sleep(0.1)
        told = table.final(None, lambda _: True)
        key.rollback()
    slow.join()
    assert "has been open for" in told.why
    late = {row["id"]: row["updated_at"] for page in table.read(None, None) for row in page.rows}["slow"]
    assert told.until is not None
    assert told.until.value <= late


@pytest.mark.promise("C17")
def test_what_was_prepared_in_another_database_holds_nothing_back_and_what_was_here_is_named(
    shop: sa.Engine, postgresql: str
) -> None:
    put(shop, "old", 60)
    with shop.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("CREATE DATABASE elsewhere")
    other = sa.create_engine(sa.make_url(postgresql).set(database="elsewhere"))
    table = hf.Table(shop, "orders", cursor="updated_at", lateness=5)
    try:
        with other.connect() as connection:
            connection.exec_driver_sql("CREATE TABLE things (id INT)")
            connection.exec_driver_sql("PREPARE TRANSACTION 'forgotten'")
        assert found(table) == ["old"]
        with shop.connect() as connection:
            connection.exec_driver_sql("BEGIN")
            connection.execute(INSERT, {"id": "prepared", "at": _at(shop, 50)})
            connection.exec_driver_sql("PREPARE TRANSACTION 'here'")
        told = table.final(None, lambda _: False)
        assert told.nothing
        assert "(here)" in told.why
        with shop.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("ROLLBACK PREPARED 'here'")
    finally:
        with other.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("ROLLBACK PREPARED 'forgotten'")
        other.dispose()
        with shop.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("DROP DATABASE elsewhere")


@pytest.mark.promise("C17")
def test_a_savepoint_within_a_transaction_holds_its_rows_back_too(shop: sa.Engine) -> None:
    put(shop, "old", 60)
    table = hf.Table(shop, "orders", cursor="updated_at", lateness=1)
    with shop.connect() as slow, slow.begin():
        with slow.begin_nested():
            slow.execute(INSERT, {"id": "nested", "at": _at(shop, 0)})
        told = table.final(None, lambda _: False)
        assert told.until is not None
        began = slow.execute(sa.text("SELECT now()")).scalar()
        assert began is not None
        assert told.until.value < began


@pytest.mark.promise("C17")
def test_when_the_last_row_is_deleted_a_tick_with_nothing_new_waits_for_nothing(url: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE orders (id INT PRIMARY KEY)")
        connection.exec_driver_sql("INSERT INTO orders VALUES (1), (2), (3)")
    table = hf.Table(url, "orders", cursor="id", lateness="1h")
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM orders WHERE id = 3")
    told = table.final(Cursor("column+key", 3), never)
    assert (told.nothing, told.why) == (True, "")
    engine.dispose()


@pytest.mark.promise("C17")
def test_a_clock_that_was_set_back_behind_the_cursor_is_told(url: str, folder: Path) -> None:
    engine = sa.create_engine(url)
    make_table(engine)
    put(engine, "ahead", -3600)
    table = hf.Table(url, "orders", cursor="updated_at", lateness=0)
    at = table.newest()
    told = table.final(at, never)
    assert told.nothing
    assert "set back" in told.why
    assert "cursor reset" in told.why
    put(engine, "after the jump", 0)
    assert "set back" in table.final(at, never).why
    engine.dispose()


@pytest.mark.promise("C17")
def test_a_timestamp_of_mysql_is_utc_whatever_is_said_about_the_clock(mariadb: str) -> None:
    engine = sa.create_engine(mariadb)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE orders (id INT PRIMARY KEY, updated_at TIMESTAMP(6) NOT NULL)")
        connection.exec_driver_sql("INSERT INTO orders VALUES (1, NOW(6)), (2, NOW(6) - INTERVAL 1 MINUTE)")
        connection.exec_driver_sql("SET GLOBAL time_zone = '+09:00'")
    try:
        for clock in (None, "local", "utc"):
            for source in (
                hf.Table(mariadb, "orders", cursor="updated_at", lateness="20s", clock=clock),  # type: ignore[arg-type]
                hf.Query(mariadb, "SELECT * FROM orders", cursor="updated_at", key="id", lateness="20s", clock=clock),  # type: ignore[arg-type]
            ):
                until = source.final(None, never).until
                assert [row["id"] for page in source.read(None, until) for row in page.rows] == [2], clock
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("SET GLOBAL time_zone = '+00:00'")
    engine.dispose()


@pytest.mark.promise("C17")
def test_in_the_spring_a_local_time_is_that_of_the_moment_and_not_of_now(
    shop: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction was begun before the hour was skipped: its rows stand an hour before what is an hour ago now."""
    skipped = datetime(2026, 3, 29, 1, tzinfo=UTC).timestamp()
    monkeypatch.setattr(horizon, "server_clock", lambda _: horizon.Clock(skipped + 1800, 7200, 3600))
    monkeypatch.setattr(horizon, "writers", lambda _: horizon.Writers(skipped - 1800))
    with shop.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("SET TIME ZONE 'Europe/Berlin'")
        newest = Cursor("column+key", datetime(2026, 3, 29, 3, 29), {"id": "x"})  # noqa: DTZ001
        told = horizon.Settling(0, "local").look(connection, newest, never, "it")
    assert told.until == Cursor("before", datetime(2026, 3, 29, 1, 30))  # noqa: DTZ001


def test_the_bound_is_written_as_the_column_writes_moments() -> None:
    clock = horizon.Clock(1_767_261_600.0, 7200.0)
    for value, where, said in [
        (datetime(2026, 1, 1, tzinfo=UTC), None, datetime(2026, 1, 1, 10, tzinfo=UTC)),
        (datetime(2026, 1, 1), "utc", datetime(2026, 1, 1, 10)),  # noqa: DTZ001
        (datetime(2026, 1, 1), "local", datetime(2026, 1, 1, 12)),  # noqa: DTZ001
        (date(2026, 1, 1), "utc", date(2026, 1, 1)),
        ("2026-01-01 09:00:00.5", "utc", "2026-01-01 10:00:00"),
        ("2026-01-01T09:00:00", "local", "2026-01-01T12:00:00"),
        ("2026-01-01T09:00:00Z", None, "2026-01-01T10:00:00"),
    ]:
        style = horizon._style_of(value)
        assert style is not None
        assert style(horizon.Moment(clock.now, clock, where, "it")) == said  # type: ignore[arg-type]
    for value in (17, "k-17", "2026-01-01 09:00:00+02:00", None, b"x"):
        assert horizon._style_of(value) is None
    style = horizon._style_of(datetime(2026, 1, 1))  # noqa: DTZ001
    assert style is not None
    with pytest.raises(hf.UsageError, match=r"\+2 h from UTC.*clock="):
        style(horizon.Moment(clock.now, clock, None, "table 'orders'"))
    london = horizon.Clock(clock.now, 0.0, 3600.0)
    with pytest.raises(hf.UsageError, match=r"\+1 h from UTC in the other half of the year.*clock="):
        style(horizon.Moment(clock.now, london, None, "table 'orders'"))


@pytest.mark.promise("C17")
def test_whole_seconds_hide_nothing(folder: Path) -> None:
    """A column of whole seconds says 10 for a row of 10.9: none of that second is final before the second is over."""
    engine = sa.create_engine(f"sqlite:///{folder / 'shop.db'}")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, at DATETIME NOT NULL)")
        connection.exec_driver_sql(
            "INSERT INTO orders VALUES (1, datetime('now')), (2, datetime('now', '-60 seconds'))"
        )
    table = hf.Table(engine, "orders", cursor="at", lateness=0)
    until = table.final(None, never).until
    assert until is not None
    seconds = [row["id"] for page in table.read(None, until) for row in page.rows]
    newest = table.newest()
    assert newest is not None
    assert (1 in seconds) == (newest.value < until.value)
    assert list(table.read(Cursor("column+key", until.value, {"id": 99}), until)) == []
    engine.dispose()
