"""Tables and queries as sources: every row once, in order, whatever type its cursor has."""

import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import holdfast as hf
from holdfast.core import cursor
from holdfast.core.cursor import Cursor
from holdfast.runtime.sources.sql import source

START = datetime(2026, 1, 1, tzinfo=UTC)
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - columns without a zone


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    made = sa.create_engine(url)
    yield made
    made.dispose()


def make(engine: sa.Engine, kind: Any, values: list[Any], *, nullable: bool = False) -> None:
    """A table of rows with those cursors, in an order that has nothing to do with them."""
    table = sa.Table("orders", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
                     sa.Column("at", kind, nullable=nullable), sa.Column("total", sa.Integer))  # fmt: skip
    table.create(engine)
    rows = [{"id": n, "at": value, "total": n * 10} for n, value in enumerate(values)]
    if rows:
        with engine.begin() as connection:
            connection.execute(table.insert(), rows[::2] + rows[1::2])


def ids(pages: Iterator[Any]) -> list[int]:
    return [row["id"] for page in pages for row in page.rows]


def kinds(dialect: str) -> dict[str, tuple[Any, list[Any]]]:
    def ties(make_one: Any) -> list[Any]:
        return [make_one(n // 4) for n in range(40)]

    text = sa.String(40)
    aware = sa.DateTime(timezone=True)
    precise: Any = sa.DateTime
    if dialect == "mysql":
        from sqlalchemy.dialects import mysql

        precise = mysql.DATETIME(fsp=6)
    found = {
        "number": (sa.BigInteger, ties(lambda n: n * 10**12)),
        "text": (text, ties(lambda n: f"k{n:03d}é'\"%")),
        "decimal": (sa.Numeric(20, 4), ties(lambda n: Decimal(n) / 16)),
        "day": (sa.Date, ties(lambda n: date(2026, 1, 1) + timedelta(days=n))),
        "moment": (precise, ties(lambda n: NAIVE + timedelta(microseconds=n))),
        "bytes": (sa.LargeBinary(8) if dialect != "mysql" else sa.VARBINARY(8), ties(lambda n: bytes([n, 255 - n]))),
        "uuid": (sa.Uuid, ties(lambda n: uuid.UUID(int=n << 64))),
    }
    if dialect == "postgresql":
        found["moment with a zone"] = (aware, ties(lambda n: START + timedelta(microseconds=n)))
    return found


@pytest.mark.promise("C17", "B9")
@pytest.mark.parametrize("name", ["number", "text", "decimal", "day", "moment", "bytes", "uuid", "moment with a zone"])
def test_ties_across_the_borders_of_pages_are_neither_skipped_nor_repeated(engine: sa.Engine, name: str) -> None:
    known = kinds(engine.dialect.name)
    if name not in known:
        return
    make(engine, *known[name])
    for page in (1, 3, 4, 100):
        table = hf.Table(engine, "orders", cursor="at", key="id", page=page)
        assert ids(table.read(None, None)) == list(range(40))
    read = [each.after(count) for each in table.read(None, None) for count in range(1, len(each.rows) + 1)]
    for n, at in enumerate(read[::5]):
        again = cursor.decode(cursor.encode(at))  # as a checkpoint keeps it
        assert ids(table.read(again, None)) == list(range(n * 5 + 1, 40))
        assert ids(table.read(None, again)) == list(range(n * 5 + 1))


@pytest.mark.promise("C17")
def test_ranges_of_a_table_hold_every_row_once_and_so_do_rows_that_come_later(engine: sa.Engine) -> None:
    make(engine, sa.Integer, [n // 5 for n in range(100)])
    for parts in (1, 2, 3, 7, 100, 150):
        table = hf.Table(engine, "orders", cursor="at", key="id", page=10)
        spans = table.split(parts)
        assert len(spans) == min(parts, 100)
        found = [ids(table.read(span.after, span.until)) for span in spans]
        assert sorted(chain(*found)) == list(range(100))
        assert max(map(len, found)) - min(map(len, found)) <= 1
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO orders VALUES (1000, -5, 0), (1001, 500, 0)")
    assert sorted(ids(iter([p for s in spans for p in table.read(s.after, s.until)]))) == [*range(100), 1000, 1001]


def test_a_table_is_split_in_one_walk_however_many_ranges_there_are(folder: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{folder / 'shop.db'}")
    make(engine, sa.Integer, list(range(1000)))
    passed: list[int] = []

    @sa.event.listens_for(engine, "before_cursor_execute")
    def note(_: Any, __: Any, statement: str, parameters: Any, ___: Any, ____: Any) -> None:
        if "OFFSET" in statement and parameters[-1]:
            passed.append(parameters[-1])

    assert len(hf.Table(engine, "orders", cursor="at", key="id").split(50)) == 50
    assert len(passed) == 49
    assert sum(passed) < 1000, "rows are passed over once, not once for every range"
    engine.dispose()


def test_an_empty_table_is_one_empty_range(engine: sa.Engine) -> None:
    make(engine, sa.Integer, [])
    table = hf.Table(engine, "orders", cursor="at", key="id")
    (span,) = table.split(5)
    assert ids(table.read(span.after, span.until)) == []


@pytest.mark.promise("C17")
def test_rows_are_told_apart_by_several_key_columns(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE order_lines (at INT NOT NULL, a INT NOT NULL, b INT NOT NULL, PRIMARY KEY (a, b))"
        )
        connection.exec_driver_sql(
            "INSERT INTO order_lines VALUES " + ", ".join(f"({n // 30}, {n % 7}, {n})" for n in range(120))
        )
    table = hf.Table(engine, "order_lines", cursor="at", page=7)
    rows = [(row["at"], row["a"], row["b"]) for page in table.read(None, None) for row in page.rows]
    assert rows == sorted(rows)
    assert len(set(rows)) == 120
    assert table.describe()["key"] == ["a", "b"]


@pytest.mark.promise("C17")
def test_a_cursor_that_is_the_key_needs_no_other(engine: sa.Engine) -> None:
    make(engine, sa.Integer, list(range(20)))
    table = hf.Table(engine, "orders", cursor="id", page=3)
    assert ids(table.read(None, None)) == list(range(20))
    assert ids(table.read(Cursor("column+key", 4), Cursor("column+key", 9))) == [5, 6, 7, 8, 9]


@pytest.mark.promise("C17")
def test_rows_without_a_cursor_are_refused_passed_or_read_first_and_never_lost_in_silence(engine: sa.Engine) -> None:
    make(engine, sa.Integer, [None, 1, None, 2, None], nullable=True)
    with pytest.raises(hf.UsageError, match=r"3 rows without a value in the cursor column 'at'.*nulls="):
        ids(hf.Table(engine, "orders", cursor="at", key="id").read(None, None))
    assert ids(hf.Table(engine, "orders", cursor="at", key="id", nulls="skip").read(None, None)) == [1, 3]
    first = hf.Table(engine, "orders", cursor="at", key="id", nulls="first", page=2)
    assert ids(first.read(None, None)) == [0, 2, 4, 1, 3]
    pages = list(first.read(None, None))
    places = [page.after(count) for page in pages for count in range(1, len(page.rows) + 1)]
    for n, at in enumerate(places):
        assert ids(first.read(at, None)) == [0, 2, 4, 1, 3][n + 1 :]
        assert ids(first.read(None, at)) == [0, 2, 4, 1, 3][: n + 1]
    with pytest.raises(hf.UsageError, match="follows"):
        first.final(None, lambda _: True)


@pytest.mark.promise("C17")
def test_rows_that_nothing_tells_apart_are_refused(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE loose (at INT NOT NULL, kind INT NOT NULL)")
        connection.exec_driver_sql("INSERT INTO loose VALUES (1, 1), (1, 1), (2, 1)")
    with pytest.raises(hf.UsageError, match="has no primary key"):
        ids(hf.Table(engine, "loose", cursor="at").read(None, None))
    with pytest.raises(hf.UsageError, match="two rows share the cursor and the key"):
        list(hf.Query(engine, "SELECT * FROM loose", cursor="at", key="kind").read(None, None))
    make(engine, sa.Integer, [1, 1])
    with pytest.raises(hf.UsageError, match="it is not certain that total tells rows apart"):
        ids(hf.Table(engine, "orders", cursor="at", key="total").read(None, None))


@pytest.mark.promise("C17")
def test_a_row_that_moves_or_goes_while_it_is_read_is_seen_where_it_is_then(engine: sa.Engine) -> None:
    make(engine, sa.Integer, list(range(12)))
    table = hf.Table(engine, "orders", cursor="at", key="id", page=4)
    pages = table.read(None, None)
    seen = ids(iter([next(pages)]))
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE orders SET at = 100 WHERE id IN (2, 6)")
        connection.exec_driver_sql("DELETE FROM orders WHERE id IN (3, 7)")
    seen += ids(pages)
    assert seen == [0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 2, 6]  # 2 once for each of its two values, 6 only where it went


def test_filters_and_columns_and_queries(engine: sa.Engine) -> None:
    make(engine, sa.Integer, list(range(20)))
    for where in ("total >= 150", " total  >= 150"):
        table = hf.Table(engine, "orders", cursor="at", key="id", where=where, columns=["total"], page=2)
        assert next(row for page in table.read(None, None) for row in page.rows) == {"total": 150}
        assert table.describe()["where"] == "total >= 150"
    assert ids(hf.Table(engine, "orders", cursor="at", key="id", where={"total": 40}).read(None, None)) == [4]
    query = hf.Query(engine, "SELECT id, at, total * 2 AS twice\n FROM orders WHERE total >= :least;", cursor="at",
                     key="id", params={"least": 100}, page=3)  # fmt: skip
    assert ids(query.read(None, None)) == list(range(10, 20))
    assert next(iter(query))["twice"] == 200
    spans = query.split(3)
    assert list(chain(*[ids(query.read(span.after, span.until)) for span in spans])) == list(range(10, 20))
    assert query.describe()["query"] == "SELECT id, at, total * 2 AS twice FROM orders WHERE total >= :least"


def test_a_table_is_a_source_of_items_too(engine: sa.Engine) -> None:
    make(engine, sa.Integer, list(range(30)))
    shop = hf.Pipeline("shop", store="memory:", source=hf.Table(engine, "orders", cursor="at", page=7))

    @shop.stage
    def total(order: dict) -> int:  # type: ignore[type-arg]
        return int(order["total"])

    report = shop.run(progress=False)
    assert report.counts.done == 30
    assert {result.key: result.output for result in report.results()} == {n: n * 10 for n in range(30)}


@pytest.mark.promise("C17")
def test_pages_are_found_by_the_index_and_not_by_sorting(engine: sa.Engine) -> None:
    make(engine, sa.Integer, [n // 5 for n in range(2000)])
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE INDEX by_cursor ON orders (at, id)")
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("ANALYZE orders")
        elif engine.dialect.name == "mysql":
            connection.exec_driver_sql("ANALYZE TABLE orders")
    table = hf.Table(engine, "orders", cursor="at", key="id", page=5)
    with table.database.connect() as connection:
        statement = table._valued_rows(table._shaped(connection), (350, 1754), None)
        compiled = statement.compile(engine, compile_kwargs={"literal_binds": True})
        explain = {"sqlite": "EXPLAIN QUERY PLAN ", "postgresql": "EXPLAIN ", "mysql": "EXPLAIN "}
        plan = str(connection.exec_driver_sql(explain[engine.dialect.name] + str(compiled)).all())
    assert "by_cursor" in plan
    for sorting in ("TEMP B-TREE", "Sort", "filesort"):
        assert sorting not in plan
    entered = {"sqlite": "SEARCH", "postgresql": "Index Cond", "mysql": "range"}
    assert entered[engine.dialect.name] in plan, plan


def test_row_values_and_what_is_spelled_out_say_the_same(engine: sa.Engine) -> None:
    make(engine, sa.Integer, [n // 3 for n in range(30)])
    table = sa.table("orders", sa.column("id"), sa.column("at"))
    columns = (table.c.at, table.c.id)
    with engine.connect() as connection:
        for values in ((0, 0), (3, 10), (3, 99), (9, 29), (20, 0)):
            for more in (True, False):
                said = [
                    connection.execute(sa.select(table.c.id).where(source._beyond(columns, values, name, more=more)))
                    .scalars()
                    .all()
                    for name in ("sqlite", "other")
                ]
                assert set(said[0]) == set(said[1])


@pytest.mark.promise("C17")
def test_text_as_fine_as_a_nanosecond_is_compared_digit_by_digit(folder: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{folder / 'fine.db'}")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, at DATETIME NOT NULL)")
        for n in range(20):
            connection.exec_driver_sql(f"INSERT INTO orders VALUES ({n}, '2026-01-01 10:00:00.123456{n // 2:03d}')")
        connection.exec_driver_sql("INSERT INTO orders VALUES (20, '2026-01-01 10:00:01'), (21, '2026-01-01 10:00:01')")
    table = hf.Table(engine, "orders", cursor="at", key="id", page=1)
    assert ids(table.read(None, None)) == list(range(22))
    engine.dispose()


def test_what_is_asked_for_must_be_there(engine: sa.Engine) -> None:
    make(engine, sa.Integer, [1])
    with pytest.raises(hf.UsageError, match="orderz"):
        ids(hf.Table(engine, "orderz", cursor="at", key="id").read(None, None))
    with pytest.raises(hf.UsageError, match=r"no column 'updated'.*id, at, total"):
        ids(hf.Table(engine, "orders", cursor="updated", key="id").read(None, None))
    with pytest.raises(hf.UsageError, match="cannot be read"):
        ids(hf.Query(engine, "SELECT nothing FROM orders", cursor="at", key="id").read(None, None))
    with pytest.raises(hf.UsageError, match="key columns id"):
        ids(hf.Table(engine, "orders", cursor="at", key="id").read(Cursor("column+key", 1), None))
    with pytest.raises(hf.UsageError, match="kind 'row'"):
        ids(hf.Table(engine, "orders", cursor="at", key="id").read(Cursor("row", 1), None))
    for statement in ("DELETE FROM orders", "SELECT 1; DELETE FROM orders", "DROP TABLE orders"):
        with pytest.raises(hf.UsageError, match="one SELECT"):
            hf.Query(engine, statement, cursor="at", key="id")
