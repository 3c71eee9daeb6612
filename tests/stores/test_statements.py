"""SQL by name, and many rows in few statements."""

import time
from pathlib import Path

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.model import Claim, ClaimRequest
from holdfast.stores.base import Idle
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite import rows as statements
from holdfast.stores.sqlite.rows import BULK, ROWS, load, write_rows
from holdfast.testing.clock import START, ManualClock
from holdfast.testing.conformance.kit import DEFINITION, LEASE, new_item
from tests.core.made import PROPERTY

SIZES = [0, 1, 2, 3, 31, 100, BULK - 1, BULK, BULK + 1, 2 * BULK, 2 * BULK + 3, 1777]


@pytest.mark.promise("P3")
@pytest.mark.parametrize("size", SIZES)
def test_every_row_is_written_once_and_in_order(size: int) -> None:
    db = apsw.Connection(":memory:")
    db.execute("CREATE TABLE rows (a, b, c)")
    rows = [(n, f"text {n}", None) for n in range(size)]
    write_rows(db.execute, "INSERT INTO rows (a, b, c) VALUES", rows)
    assert db.execute("SELECT * FROM rows ORDER BY rowid").fetchall() == rows
    db.close()


@PROPERTY
@given(st.integers(0, 5000))
def test_few_statements_of_few_sizes_carry_all_rows(size: int) -> None:
    sent: list[tuple[str, tuple[int, ...]]] = []
    write_rows(lambda sql, values: sent.append((sql, values)), "PUT", [(n,) for n in range(size)])
    assert [n for _, values in sent for n in values] == list(range(size))
    assert len(sent) <= size // BULK + 9
    assert all(sql.count("?") == len(values) for sql, values in sent)
    assert {len(values) for _, values in sent} <= {1 << power for power in range(10)}


def test_a_statement_has_no_more_values_than_sqlite_takes() -> None:
    widest = max(width_of(sql) for sql in load("statements.sql").values() if "VALUES" in sql)
    db = apsw.Connection(":memory:")
    assert BULK * widest < db.limit(apsw.SQLITE_LIMIT_VARIABLE_NUMBER)
    db.close()


def width_of(sql: str) -> int:
    """How many values a row of a bulk statement has."""
    return sql.partition("VALUES")[0].partition("(")[2].partition(")")[0].count(",") + 1


def test_rows_may_stand_inside_of_a_statement() -> None:
    sent: list[str] = []
    write_rows(lambda sql, _values: sent.append(sql), "WITH new AS (VALUES {rows}) DO", [(1, 2), (3, 4)])
    assert sent == ["WITH new AS (VALUES (?,?),(?,?)) DO"]


def test_statements_are_found_by_name_without_their_semicolon() -> None:
    found = load("statements.sql")
    assert found["get_meta"] == "SELECT value FROM meta WHERE name = ?"
    assert found["insert_items"].endswith("VALUES")
    assert not [name for name, sql in found.items() if not sql or ";" in sql or sql != sql.strip()]
    assert load("statements.sql") is found


def test_every_statement_fits_the_tables() -> None:
    db = apsw.Connection(":memory:")
    folder = statements.resources.files("holdfast.stores.sqlite").joinpath("migrations")
    for script in sorted(folder.iterdir(), key=lambda script: script.name):
        db.execute(script.read_text("utf-8"))
    for name, sql in load("statements.sql").items():
        whole = sql
        if sql.endswith("VALUES") or ROWS in sql:
            whole = statements._values(sql, width_of(sql), 2)
        explained = db.execute(f"EXPLAIN {whole}", (None,) * whole.count("?")).fetchall()
        assert explained, name
    db.close()


@pytest.mark.promise("C4")
def test_a_lease_ends_after_its_last_moment_and_not_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the write lock was had without any wait, which is otherwise taken off."""
    clock = ManualClock(START)
    store = SqliteStore(tmp_path / "state.db", clock=clock, is_dead=lambda _owner: False)
    batch = store.open_batch("book", "pages", DEFINITION, actor="ann").id
    store.add_items(batch, [new_item("a")])
    want = ClaimRequest(batch=batch, owner="ann", limit=1, seconds=LEASE)
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)
    assert isinstance(store.claim(want), Claim)
    clock.advance(LEASE)
    assert isinstance(store.claim(want), Idle)
    clock.advance(0.001)
    assert isinstance(store.claim(want), Claim)
    store.close()
