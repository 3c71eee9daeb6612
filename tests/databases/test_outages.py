"""A database that dies, or loses its table, in the middle of a read: a quiet retry, or an error that says what."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import holdfast as hf
from holdfast.runtime.scan.tick import Ended
from holdfast.runtime.sources.sql import database
from tests.databases import servers
from tests.runtime.support import SOON


@pytest.fixture
def server() -> Iterator[servers.Restartable]:
    with servers.restartable() as made:
        yield made


def fill(url: str, count: int = 40) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE orders (id INT PRIMARY KEY)")
        connection.exec_driver_sql("INSERT INTO orders VALUES " + ", ".join(f"({n})" for n in range(count)))
    engine.dispose()


def follow(url: str, folder: Path, at: int, act: Any) -> tuple[hf.Scan, list[int]]:
    """A scan to which something happens at a row, once."""
    table = hf.Table(url, "orders", cursor="id", lateness=0, page=5)
    scan = hf.Follow("orders", table, store=folder / "state.db", every=5, retry=SOON)
    seen: list[int] = []
    acts = [act]

    @scan.handler
    def keep(rows: list[dict[str, int]], acc: int) -> int:
        seen.extend(row["id"] for row in rows)
        if at in seen and acts:
            acts.pop()()
        return acc + sum(row["id"] for row in rows)

    return scan, seen


@pytest.mark.slow
@pytest.mark.promise("B7", "B10", "C11")
def test_a_server_that_dies_in_mid_read_and_comes_back_is_waited_for_by_a_poller_that_stays(
    server: servers.Restartable, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(server.url)
    caplog.set_level(logging.DEBUG)
    scan, seen = follow(server.url, folder, 12, server.kill)
    first = scan.run(poll="20ms", deadline="1s")
    while first.ended is Ended.TIME_UP:  # a busy machine may take longer to come to the row at which the server dies
        first = scan.run(poll="20ms", deadline="1s")
    assert (first.ended, first.exit_code) == (Ended.FAILED, 75)
    assert 10 <= first.total < 40
    assert "did not answer" in first.why
    server.start()
    ends = [first]
    while ends[-1].total < 40 and len(ends) < 30:
        ends.append(scan.run(poll="20ms", deadline="1s"))
    assert ends[-1].total == 40
    assert scan.report().result == sum(range(40))
    assert set(seen) == set(range(40))
    assert len(seen) <= 40 + 2 * 5, "no more than an interval comes again"
    assert "s3cr3t" not in caplog.text + "".join(str(each) for each in ends)


@pytest.mark.slow
@pytest.mark.promise("B7", "B10")
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_bounded_scan_whose_server_dies_buries_nothing_and_is_resumed_by_the_next_run(
    server: servers.Restartable, folder: Path, partitions: int
) -> None:
    fill(server.url, 400)
    table = hf.Table(server.url, "orders", cursor="id", page=5)
    scan = hf.Scan("orders", table, store=folder / "state.db", every=30, partitions=partitions,
                   retry=hf.Retry(attempts=1))  # fmt: skip
    seen: list[int] = []
    scan.converge(sum)

    @scan.handler
    def keep(rows: list[dict[str, int]], acc: int) -> int:
        seen.extend(row["id"] for row in rows)
        if len(seen) <= 30:
            server.kill()
        return acc + sum(row["id"] for row in rows)

    report = scan.run(progress=False, patience="300ms")
    assert (report.exit_code, report.reason, report.counts.dead) == (75, "away", 0)
    assert "s3cr3t" not in str(report)
    assert report.rows == len(seen) > 0, "what was handled is behind a checkpoint"
    with pytest.raises(hf.Transient, match="the source is away"):
        scan.run(progress=False, patience="300ms")
    server.start()
    assert scan.run(progress=False).result == sum(range(400))
    assert sorted(seen) == list(range(400))


@pytest.mark.promise("C17")
def test_a_table_that_is_gone_in_mid_read_is_told_and_gone_on_with_when_it_is_back(url: str, folder: Path) -> None:
    fill(url)
    engine = sa.create_engine(url)

    def rename(one: str, other: str) -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"ALTER TABLE {one} RENAME TO {other}")

    scan, _ = follow(url, folder, 12, lambda: rename("orders", "orders_old"))
    for _ in range(2):
        with pytest.raises(hf.UsageError, match="orders"):
            scan.tick()
    assert scan.report().counts.dead == 0, "somebody would have to redrive it"
    rename("orders_old", "orders")
    assert scan.tick().total == 40
    assert scan.report().result == sum(range(40))
    engine.dispose()


def test_a_column_that_is_added_changes_no_fingerprint_and_comes_with_the_next_start(url: str, folder: Path) -> None:
    fill(url, 3)
    engine = sa.create_engine(url)
    scan, _ = follow(url, folder, -1, lambda: None)
    assert scan.tick().total == 3
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE orders ADD COLUMN note VARCHAR(9) DEFAULT 'new'")
        connection.exec_driver_sql("INSERT INTO orders (id) VALUES (3)")
    assert scan.tick().total == 4
    again, _ = follow(url, folder, -1, lambda: None)
    assert again.tick().ended is Ended.NOTHING_NEW
    assert set(next(iter(hf.Table(url, "orders", cursor="id")))) == {"id", "note"}
    engine.dispose()


def test_who_is_not_let_in_has_to_act_and_nothing_is_buried(postgresql: str, mariadb: str, folder: Path) -> None:
    """It did answer: to run it again would never help."""
    for url in (postgresql, mariadb):
        fill(url)
        known = sa.make_url(url)
        for wrong in (known.set(username="nobody_at_all", password="s3cr3t"), known.set(database="no_such_database")):
            table = hf.Table(wrong.render_as_string(hide_password=False), "orders", cursor="id", key="id")
            scan = hf.Scan("orders", table, store="memory:")
            scan.handler(lambda rows: None)
            with pytest.raises(hf.UsageError) as refused:
                scan.run(progress=False)
            assert "s3cr3t" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ('connection failed: FATAL:  password authentication failed for user "ann"', True),
        ('connection failed: FATAL:  role "ann" does not exist', True),
        ('connection failed: FATAL:  database "shop" does not exist', True),
        ('connection failed: FATAL:  no pg_hba.conf entry for host "10.0.0.1"', True),
        ("connection failed: FATAL:  the database system is starting up", False),
        ("connection failed: FATAL:  sorry, too many clients already", False),
        ("connection refused", False),
    ],
)
def test_a_refusal_is_told_from_an_outage(text: str, refused: bool) -> None:
    assert database._is_refused(None, text) is refused


def test_a_code_of_a_refusal_is_enough() -> None:
    class Coded(Exception):
        sqlstate = "28P01"

    assert database._is_refused(Coded(), "Passwort-Authentifizierung fehlgeschlagen")
    assert database._is_refused(Exception({"C": "3D000"}), "")
    assert not database._is_refused(Exception({"C": "57P03"}), "")
