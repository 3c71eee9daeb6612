"""What a source is called, and what it never tells: neither host nor user nor password."""

import logging
import traceback
from pathlib import Path

import pytest
import sqlalchemy as sa

import holdfast as hf

SECRET = "s3cr3t/p@ss word"
FOUND = ("s3cr3t", "s3cr3t%2Fp%40ss+word", "s3cr3t%2Fp%40ss%20word")


def address(backend: str, host: str = "nowhere.invalid") -> str:
    url = sa.URL.create(backend, username="mallory", password=SECRET, host=host, port=1, database="shop")
    return url.render_as_string(hide_password=False)


@pytest.mark.promise("C14")
def test_the_fingerprint_is_of_the_logical_source_and_the_same_from_everywhere() -> None:
    one = hf.Table(address("postgresql+psycopg", "a.example"), "orders", cursor="at", key="id", where="total > 1")
    two = hf.Table("postgresql+psycopg://ann:other@b.example/shop", "orders", cursor="at", key=["id"],
                   where="total  >\n 1", columns=["id"], page=7, lateness="1m")  # fmt: skip
    assert one.describe() == two.describe()
    assert one.describe() == {"kind": "table", "database": "shop", "table": "orders", "cursor": "at", "key": ["id"],
                              "where": "total > 1", "nulls": "refuse"}  # fmt: skip
    for other in (
        hf.Table("postgresql+psycopg://b.example/store", "orders", cursor="at", key="id", where="total > 1"),
        hf.Table("postgresql+psycopg://b.example/shop", "orders", cursor="made", key="id", where="total > 1"),
        hf.Table("postgresql+psycopg://b.example/shop", "orders", cursor="at", key="id", where="total > 2"),
        hf.Table("postgresql+psycopg://b.example/shop", "orders", cursor="at", key="id", schema="x", where="total > 1"),
    ):
        assert other.describe() != one.describe()
    for text in (repr(one), str(one.describe()), str(one)):
        assert not any(word in text for word in (*FOUND, "mallory", "a.example"))


def test_a_file_is_known_by_its_name_and_not_by_its_folder(folder: Path) -> None:
    table = hf.Table(f"sqlite:///{folder / 'shop.db'}", "orders", cursor="at", key="id")
    assert table.describe()["database"] == "shop.db"
    assert str(folder) not in str(table.describe()) + repr(table)


@pytest.mark.promise("C14")
@pytest.mark.parametrize("backend", ["postgresql+psycopg", "mysql+pymysql"])
def test_no_password_in_errors_tracebacks_or_logs(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    table = hf.Table(address(backend, "127.0.0.1"), "orders", cursor="at", key="id")
    scan = hf.Follow("orders", table, store="memory:")
    scan.handler(lambda rows: None)
    with pytest.raises(hf.Transient) as caught:
        scan.tick()
    told = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert "did not answer" in told
    assert not any(word in told for word in FOUND)
    assert "mallory:" not in told


def test_an_address_that_cannot_be_read_is_not_repeated() -> None:
    with pytest.raises(hf.UsageError) as caught:
        hf.Table(f"postgresql//{SECRET}", "orders", cursor="at", key="id")
    assert not any(word in str(caught.value) for word in FOUND)
    with pytest.raises(hf.UsageError, match="driver 'oracledb' is not installed"):
        list(hf.Table("oracle+oracledb://u:p@h/x", "orders", cursor="at", key="id").read(None, None))


def test_a_password_that_a_driver_repeats_is_taken_out() -> None:
    table = hf.Table(address("mysql+pymysql"), "orders", cursor="at", key="id")
    for word in (*FOUND[1:], SECRET, address("mysql+pymysql")):
        assert "s3cr3t" not in table.database.without_secrets(f"cannot parse {word}\n at 7")


@pytest.mark.filterwarnings("ignore:unclosed <socket")  # what is killed is dropped by the pool, not closed
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_database_that_goes_away_and_comes_back_is_survived(mariadb: str, folder: Path) -> None:
    engine = sa.create_engine(mariadb)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE orders (id INT PRIMARY KEY)")
        connection.exec_driver_sql("INSERT INTO orders VALUES (1), (2), (3)")
    table = hf.Table(mariadb, "orders", cursor="id", lateness=0, page=1)
    scan = hf.Follow("orders", table, store=folder / "s.db")
    seen = []

    @scan.handler
    def keep(rows: list[dict[str, int]]) -> None:
        seen.extend(row["id"] for row in rows)

    scan.tick()
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO orders VALUES (4)")
        others = "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user = 'root'"
        for (number,) in connection.exec_driver_sql(others).all():
            connection.exec_driver_sql(f"KILL {number}")
    assert scan.tick().total == 4  # the pool finds out by itself
    assert seen == [1, 2, 3, 4]
    engine.dispose()
