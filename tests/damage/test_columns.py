"""Every column of every table: a change, a deleted row, two exchanged values are found, or the register says why not.

`core.register.UNPROVED` is the list of columns that rest on no proof. A column that is listed there and whose change is
found fails this test as well: the list is exact.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import apsw
import pytest
from msgspec.structs import replace

from holdfast.core import lease
from holdfast.core.course import to_note, to_steer, warning
from holdfast.core.errors import HoldfastError
from holdfast.core.journal import Acted
from holdfast.core.model import BatchMode, Claim, ItemNo, ItemOrigin, Kind, NewItem
from holdfast.core.register import UNPROVED, UNPROVED_ROWS, register
from holdfast.runtime.operate import audit
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.conformance.kit import DEFINITION, Kit, done, failed, new_item, reset, skipped

PROMISES = pytest.mark.promise("A8", "E12", "E13")
INTERNAL = ("sqlite_sequence",)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with something in every column."""
    place = tmp_path_factory.mktemp("columns")
    kit = Kit(lambda folder, **given: SqliteStore(folder / "state.db", **given), place)
    kit.store.add_items(kit.batch, [NewItem("a", b"1", raw=b'"1"'), NewItem("b", b"2", parent=ItemNo(0))],
                        origin=ItemOrigin(source="x", schema="y"))  # fmt: skip
    kit.admit(*"cdefgh", None)
    for limit in (2, 3):
        claim = kit.claim("ann", limit)
        items = kit.load(claim)
        kit.land(claim, [done(items[0], usd=5), failed(items[1], usd=3), *map(skipped, items[2:])], release=True)
    for payload in (b"3", b"4"):
        kit.act("renewed", replace(reset(0, kit.place(0)), renewed=NewItem("a", payload, raw=b'"x"')))
    claim = kit.claim("ann", 2)
    kit.land(claim, [failed(item, transient=False) for item in kit.load(claim)], release=True)
    kit.admit("feed", "feed 2", kind=Kind.PARTITIONS)
    with mock.patch.object(lease, "CHAIN_ENTRIES", 3):
        for turn in range(4):
            claim = kit.claim("ann", only=9 + turn % 2)
            items = kit.load(claim)
            assert kit.store.commit([kit.reach(claim, items[turn % 2], turn + 1, acc=b"[1]")])[0].landed
            kit.land(claim, version=1, release=True)
    for number in range(2):
        kit.store.amend(kit.batch, to_note("warned", Acted(reason=str(number)), events=[warning("w", "x")]), actor="a")
    kit.store.amend(kit.batch, to_steer(BatchMode.OPEN, reason="so", ends_at=2e9, expected=99), actor="ada")
    other = kit.store.open_batch("other", "pages", DEFINITION, actor="ann").id
    kit.store.add_items(other, [new_item("z")], ended=True)
    for receiver in ("file", "hook"):
        kit.store.delivered(receiver, 1)  # type: ignore[attr-defined]
    assert isinstance(kit.claim("eve", 1), Claim), "one chunk is held"
    kit.check()
    kit.store.close()
    return place / "state.db"


class Damage(NamedTuple):
    """A statement that changes the file, and the column or table it concerns."""

    what: str
    sql: str


def columns(db: apsw.Connection) -> Iterator[tuple[str, str, str]]:
    """Yield every table and column, with an expression for its key."""
    for (table,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
        if table not in INTERNAL:
            info = db.execute(f"PRAGMA table_info({table})").fetchall()
            keys = [str(row[1]) for row in info if row[5]] or ["rowid"]
            yield from ((str(table), str(row[1]), ", ".join(f'"{key}"' for key in keys)) for row in info)


CHANGED = """CASE typeof("{c}")
    WHEN 'integer' THEN "{c}" + 1 WHEN 'real' THEN "{c}" + 1.5 WHEN 'text' THEN "{c}" || 'x'
    WHEN 'blob' THEN CAST(substr("{c}", 1, max(0, length("{c}") - 1)) AS BLOB)
        || iif(substr("{c}", -1) = x'7e', x'7f', x'7e')
    ELSE {null} END"""
NULLS = {"ANY": "1", "BLOB": "x'00'", "INTEGER": "0", "REAL": "1.0", "TEXT": "'x'"}


def changes(db: apsw.Connection) -> Iterator[Damage]:
    """Yield a change of each column, in a row that has a value there if there is one."""
    for table, column, key in columns(db):
        (kind,) = [row[2] for row in db.execute(f"PRAGMA table_info({table})") if row[1] == column]
        changed = CHANGED.format(c=column, null=NULLS[kind])
        value = f"CAST({changed} AS BLOB)" if kind == "BLOB" else changed
        for order in ("DESC", "ASC"):
            by = f"{key.replace(',', f' {order},')} {order}"
            chosen = f'SELECT {key} FROM {table} ORDER BY "{column}" IS NULL, {by} LIMIT 1'
            yield Damage(f"{table}.{column}", f'UPDATE {table} SET "{column}" = {value} WHERE ({key}) IN ({chosen})')


def swaps(db: apsw.Connection) -> Iterator[Damage]:
    """Yield an exchange of two values of each column, where two rows differ in it and it is not part of the key."""
    for table, column, key in columns(db):
        if f'"{column}"' in key.split(", "):
            continue
        rows = db.execute(f'SELECT {key}, "{column}" FROM {table} WHERE "{column}" IS NOT NULL').fetchall()
        first = rows[0] if rows else None
        second = next((row for row in rows if first is not None and row[-1] != first[-1]), None)
        if first is None or second is None:
            continue
        names = key.split(", ")
        here, there = (
            " AND ".join(f"{n} = {_literal(v)}" for n, v in zip(names, row, strict=False)) for row in (first, second)
        )
        one, two = _literal(first[-1]), _literal(second[-1])
        sql = (f'UPDATE {table} SET "{column}" = CASE WHEN {here} THEN {two} ELSE {one} END '
               f"WHERE ({here}) OR ({there})")  # fmt: skip
        yield Damage(f"{table}.{column}", sql)


def _literal(value: Any) -> str:
    return str(apsw.format_sql_value(value))


def deletions(db: apsw.Connection) -> Iterator[Damage]:
    """Yield the deletion of the first and of the last row of each table."""
    for table in dict.fromkeys(table for table, _, _ in columns(db)):
        key = next(k for t, _, k in columns(db) if t == table)
        for order in ("ASC", "DESC"):
            chosen = f"SELECT {key} FROM {table} ORDER BY {key.replace(',', f' {order},')} {order} LIMIT 1"
            yield Damage(table, f"DELETE FROM {table} WHERE ({key}) IN ({chosen})")


def verdict(original: Path, spot: Path, damage: Damage) -> str:
    """Carry out some damage on a copy; return `found`, `refused`, or `silent`."""
    path = spot / "state.db"
    for suffix in ("", "-fence"):
        shutil.copy(f"{original}{suffix}", f"{path}{suffix}")
    db = apsw.Connection(str(path))
    for (trigger,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
        db.execute(f"DROP TRIGGER {trigger}")
    try:
        db.execute(damage.sql)
    except apsw.ConstraintError:
        return "refused"  # the schema itself does not allow it
    finally:
        db.close()
    try:
        store = SqliteStore(path)
    except HoldfastError:
        return "refused"
    try:
        found = [finding for batch in store.batches() for finding in audit.verify(store, batch, full=True).findings]
        removed = sum(audit.verify(store, batch).removed for batch in store.batches())
        return "found" if found or audit.flaws(store) or removed or store.set_back() else "silent"
    except HoldfastError:
        return "refused"
    finally:
        store.close()


def silent(original: Path, spot: Path, damages: Iterator[Damage]) -> set[str]:
    return {damage.what for damage in damages if verdict(original, spot, damage) == "silent"}


@PROMISES
def test_a_change_of_any_column_is_found_or_the_register_says_why_not(original: Path, tmp_path: Path) -> None:
    db = apsw.Connection(str(original))
    found = silent(original, tmp_path, changes(db))
    db.close()
    assert found == set(UNPROVED), (found - set(UNPROVED), set(UNPROVED) - found)


@PROMISES
def test_two_exchanged_values_of_any_column_are_found_or_the_register_says_why_not(
    original: Path, tmp_path: Path
) -> None:
    db = apsw.Connection(str(original))
    found = silent(original, tmp_path, swaps(db))
    db.close()
    assert found <= set(UNPROVED), found - set(UNPROVED)


@PROMISES
def test_a_deleted_row_of_any_table_is_found_or_the_register_says_why_not(original: Path, tmp_path: Path) -> None:
    db = apsw.Connection(str(original))
    found = silent(original, tmp_path, deletions(db))
    db.close()
    assert found == set(UNPROVED_ROWS), (found, set(UNPROVED_ROWS))


def test_the_store_has_something_in_every_column(original: Path) -> None:
    """Otherwise a change of an empty column would prove nothing."""
    db = apsw.Connection(str(original))
    empty = {
        f"{table}.{column}" for table, column, _ in columns(db)
        if not db.execute(f'SELECT count("{column}") FROM {table}').get
    }  # fmt: skip
    db.close()
    assert empty <= {"batches.sealed_at", "batches.closed_at", "batches.ingested_at", "outputs.file"}
    assert {name for name in register() if name.split(".")[0] in ("items", "chunks")} >= {
        "items.raw",
        "chunks.grant_id",
    }
