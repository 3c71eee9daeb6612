"""Columns that are compared in another way than they are ordered: refused, or compared as what they are."""

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

import holdfast as hf

HOSTILE = {
    "mysql": {
        "FLOAT": ("0.1", "0.2", "0.2", "0.3"),
        "ENUM('zero', 'one', 'aaa')": ("'zero'", "'one'", "'one'", "'aaa'"),
        "SET('x', 'y', 'a')": ("'x'", "'y'", "'a'", "'y,a'"),
        "TIME(6)": ("'-10:00'", "'10:00'", "'10:00:00.5'", "'800:00'"),
    },
    "postgresql": {"REAL": ("0.1", "0.2", "0.2", "0.3")},
    "sqlite": {},
}
"""With each of these, pages of one or two rows were read for ever, or rows between them never."""
KIND = {
    "postgresql": {
        "CITEXT": ("'a'", "'A'", "'B'", "'b'", "'c'", "'C'"),
        "mood": ("'zero'", "'one'", "'one'", "'aaa'"),
        'TEXT COLLATE "no_case"': ("'a'", "'A'", "'B'", "'b'", "'c'", "'C'"),
        'TEXT COLLATE "en-x-icu"': ("'a'", "'a-b'", "'a-B'", "'ab'", "'B'", "'c'"),
        "CHAR(5)": ("'a'", "'a'", "'b'", "'b'"),
        "FLOAT8": ("'-Infinity'", "-5.5", "0.1", "0.1", "1e300", "'NaN'", "'NaN'"),
        "NUMERIC": ("-1.50", "0.1", "0.10", "'Infinity'", "'NaN'"),
        "BIGINT": ("-9223372036854775808", "-1", "0", "9223372036854775807"),
        "TIMESTAMP(0)": ("'2026-01-01 10:00:00'", "'2026-01-01 10:00:00'", "'2026-01-01 10:00:01'"),
    },
    "mysql": {
        "VARCHAR(9)": ("'a'", "'A'", "'a '", "'B'", "'b'", "'e'", "'é'", "'E'"),
        "VARCHAR(9) CHARACTER SET latin1": ("'a'", "'A'", "'B'", "'é'", "'E'"),
        "DECIMAL(30, 10)": ("-1.5", "0", "12345678901234567890.1234567890", "12345678901234567890.1234567891"),
        "BIGINT UNSIGNED": ("0", "18446744073709551614", "18446744073709551615"),
        "TIMESTAMP(3)": ("'2026-01-01 10:00:00.001'", "'2026-01-01 10:00:00.001'", "'2026-01-01 10:00:00.002'"),
        "UUID": ("'00000000-0000-4000-8000-000000000001'", "'ffffffff-0000-4000-8000-000000000001'"),
    },
    "sqlite": {
        "TEXT COLLATE NOCASE": ("'a'", "'A'", "'B'", "'b'", "'c'", "'C'"),
        "REAL": ("-0.1", "0.1", "0.1", "1e300"),
        "": ("-1", "2", "2.5", "'1'", "'a'", "x'00'"),
    },
}


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    made = sa.create_engine(url)
    if made.dialect.name == "postgresql":
        with made.begin() as connection:
            connection.exec_driver_sql("CREATE EXTENSION IF NOT EXISTS citext")
            connection.exec_driver_sql("CREATE TYPE mood AS ENUM ('zero', 'one', 'aaa')")
            connection.exec_driver_sql(
                "CREATE COLLATION no_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
            )
    yield made
    if made.dialect.name == "postgresql":
        with made.begin() as connection:
            connection.exec_driver_sql("DROP TABLE IF EXISTS orders")
            connection.exec_driver_sql("DROP TYPE mood")
            connection.exec_driver_sql("DROP COLLATION no_case")
    made.dispose()


def make(engine: sa.Engine, kind: str, values: tuple[str, ...]) -> None:
    """Rows whose ids are in the order of their cursors."""
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS orders")
        connection.exec_driver_sql(f"CREATE TABLE orders (id INT PRIMARY KEY, at {kind} NOT NULL)")
        for n, value in enumerate(values):
            connection.exec_driver_sql(f"INSERT INTO orders VALUES ({n}, {value})")


def sources(engine: sa.Engine, page: int) -> list[Any]:
    return [
        hf.Table(engine, "orders", cursor="at", key="id", page=page),
        hf.Query(engine, "SELECT * FROM orders", cursor="at", key="id", page=page),
    ]


@pytest.mark.promise("C17")
def test_a_column_that_is_not_compared_as_it_is_ordered_is_refused(engine: sa.Engine) -> None:
    for kind, values in HOSTILE[engine.dialect.name].items():
        make(engine, kind, values)
        for source in sources(engine, 1):
            with pytest.raises(hf.UsageError, match=r"'at' is an? .* column: the database orders it in one way"):
                list(source.read(None, None))


@pytest.mark.promise("C17", "B9")
def test_texts_and_numbers_of_every_sort_are_read_in_the_order_of_the_database(engine: sa.Engine) -> None:
    for kind, values in KIND[engine.dialect.name].items():
        make(engine, kind, values)
        with engine.connect() as connection:
            order = connection.exec_driver_sql("SELECT id FROM orders ORDER BY at, id").scalars().all()
        for page in (1, 2, 100):
            for source in sources(engine, page):
                found = [row["id"] for each in source.read(None, None) for row in each.rows]
                assert found == order, (kind, page, source)
