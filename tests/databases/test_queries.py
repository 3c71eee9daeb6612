"""Statements as people write them: with comments, semicolons, colons, percent signs, and an order of their own."""

import pytest
import sqlalchemy as sa

import holdfast as hf

WRITTEN = (
    "SELECT * FROM orders -- all of them; really",
    "-- first a word\nSELECT * FROM orders",
    "/* SELECT; */ SELECT * FROM orders;",
    "SELECT orders.*, ' :x \"12:30' AS said FROM orders",
    "SELECT orders.*, '100%' AS share FROM orders WHERE 'a%b' LIKE 'a%'",
    "SELECT * FROM orders ORDER BY id DESC;",
    "WITH these AS (SELECT * FROM orders) SELECT * FROM these;;",
    "(SELECT * FROM orders)",
)


def test_a_statement_is_read_as_it_is_written(url: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE orders (id INT PRIMARY KEY, at INT NOT NULL, name VARCHAR(9))")
        connection.exec_driver_sql("INSERT INTO orders VALUES (1, 5, 'a:b'), (2, 5, ':b'), (3, 4, 'c')")
    for written in WRITTEN:
        if written.startswith("(") and engine.dialect.name == "sqlite":
            continue  # it knows no brackets around a SELECT
        for page in (1, 10):
            query = hf.Query(engine, written, cursor="at", key="id", page=page)
            assert [row["id"] for row in query] == [3, 1, 2], written
    for where, found in {"name = ':b' -- the second": [2], "name LIKE '%:%'": [1, 2], "id % 2 = 1": [3, 1]}.items():
        table = hf.Table(engine, "orders", cursor="at", key="id", where=where)
        assert [row["id"] for row in table] == found
    engine.dispose()


def test_what_a_parameter_holds_is_never_read_as_sql(url: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE orders (id INT PRIMARY KEY, name VARCHAR(60))")
        connection.execute(sa.text("INSERT INTO orders VALUES (1, :a), (2, 'b')"), {"a": "x'); DROP TABLE orders; --"})
    given = {"name": "x'); DROP TABLE orders; --"}
    query = hf.Query(engine, "SELECT * FROM orders WHERE name = :name", cursor="id", key="id", params=given)
    assert [row["id"] for row in query] == [1]
    assert [row["id"] for row in hf.Table(engine, "orders", cursor="id", where=given)] == [1]
    with pytest.raises(hf.UsageError, match="cannot be read"):
        list(hf.Query(engine, "SELECT * FROM orders WHERE name = :name", cursor="id", key="id"))
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT COUNT(*) FROM orders").scalar() == 2
    engine.dispose()


def test_a_comment_is_part_of_the_fingerprint_and_hides_nothing() -> None:
    def told(statement: str) -> str:
        return str(hf.Query("sqlite://", statement, cursor="id", key="id").describe()["query"])

    assert told("SELECT id\n  FROM t") == told("SELECT id FROM t;")
    assert told("SELECT id -- x\n FROM t") != told("SELECT id -- x FROM t")
