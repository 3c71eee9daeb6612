"""How far a scan that follows is behind: what is not final yet is nobody's delay."""

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast.core.cursor import Cursor
from holdfast.runtime.report import overview as glance
from holdfast.runtime.scan.tick import Ended, lag, unsettled, waited
from holdfast.runtime.sources.base import Horizon, Waits
from holdfast.testing.rows import Rows

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def at(seconds: float) -> Cursor:
    return Cursor("column+key", NOON + timedelta(seconds=seconds), 1)


def final(newest: float, until: float, settle: float = 10) -> Horizon:
    return Horizon(newest=at(newest), until=at(until), settle=settle)


class Table(Rows):
    """A source with one row that was not delivered, and a clock of its own."""

    def __init__(self, first: float | None, now: float) -> None:
        super().__init__([])
        self.first, self.now, self.asked = first, now, 0

    def waiting(self, after: Cursor | None) -> Waits | None:
        self.asked += 1
        return None if self.first is None else Waits(at(self.first), at(self.now).value)


def test_a_row_that_is_seconds_old_is_not_a_delay() -> None:
    seen = final(newest=687, until=680)
    assert lag(Table(687, now=691), seen, at(0)) == 0
    assert lag(Table(687, now=698), seen, at(0)) == 0, "ten seconds every row has to wait, and the second at hand"
    assert unsettled(seen)


def test_a_row_that_is_held_back_is_behind_for_as_long_as_it_waits() -> None:
    """Also on a quiet table: nothing else comes, and the transaction that holds it back stays open."""
    seen = final(newest=687, until=680)
    assert lag(Table(687, now=699), seen, at(0)) == 12
    assert lag(Table(687, now=4287), seen, at(0)) == 3600


def test_the_first_row_that_waits_counts_and_not_the_newest() -> None:
    assert lag(Table(100, now=700), final(newest=699, until=690), at(90)) == 600


def test_nothing_new_is_no_lag_however_long_ago_the_last_row_came() -> None:
    table = Table(0, now=36_000)
    assert lag(table, final(newest=0, until=35_990), at(0)) == 0
    assert not table.asked
    assert lag(Table(None, now=36_000), final(newest=5, until=35_990), at(0)) == 0, "it was deleted meanwhile"
    assert not unsettled(final(newest=600, until=680))


def test_what_is_not_a_time_has_no_lag() -> None:
    number = Cursor("column+key", 7, 1)
    assert lag(Table(0, now=9), Horizon(newest=number, until=number), at(0)) is None
    assert lag(Table(0, now=9), Horizon(), None) is None
    assert lag(Rows([]), final(newest=687, until=680), at(0)) is None, "a source that does not tell"
    naive = Cursor("column+key", NOON.replace(tzinfo=None), 1)
    assert waited(Waits(naive, NOON), 10) is None


def test_a_source_that_does_not_answer_has_no_lag() -> None:
    class Away(Table):
        def waiting(self, after: Cursor | None) -> Waits | None:
            raise hf.Transient("no answer")

    assert lag(Away(0, now=9), final(newest=687, until=680), at(0)) is None


def test_a_tick_says_that_the_newest_row_is_not_final_and_is_not_behind(folder: Path) -> None:
    with sqlite3.connect(folder / "shop.db") as shop:
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, at DATETIME NOT NULL)")
        shop.execute("INSERT INTO orders VALUES (1, datetime('now', '-700 seconds'))")
        shop.execute("INSERT INTO orders VALUES (2, datetime('now'))")
    shop.close()
    table = hf.Table(f"sqlite:///{folder}/shop.db", "orders", cursor="at", key="id", lateness="1m")
    scan = hf.Follow("orders", table, store=folder / "state.db")
    scan.handler(lambda rows: None)
    for ended, rows in ((Ended.CAUGHT_UP, 1), (Ended.NOTHING_NEW, 0)):
        told = scan.tick()
        assert (told.ended, told.rows, told.lag, told.exit_code) == (ended, rows, 0, 0)
        assert "the newest row is not final yet" in str(told)
        assert "behind" not in str(told)


def test_rows_that_are_there_and_not_handled_are_told_alike_by_every_look(folder: Path) -> None:
    with sqlite3.connect(folder / "shop.db") as shop:
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, at DATETIME NOT NULL)")
        shop.execute("INSERT INTO orders VALUES (1, datetime('now', '-700 seconds'))")
    table = hf.Table(f"sqlite:///{folder}/shop.db", "orders", cursor="at", key="id", lateness="1s")
    scan = hf.Follow("orders", table, store=folder / "state.db")

    @scan.handler
    def handle(rows: list[Any]) -> None:
        if rows[0]["id"] > 1:
            raise hf.Defer(3600)

    assert [scan.tick().lag for _ in range(2)] == [0, 0], "nothing is new, however long ago the last row came"
    store = scan.pipeline.store
    (seen,) = glance.glances(store, store.batches()[0])
    assert seen.lag.startswith("last row")
    assert "behind" not in seen.lag
    with shop:
        shop.execute("INSERT INTO orders VALUES (2, datetime('now', '-300 seconds'))")
    shop.close()
    for _ in range(2):
        told = scan.tick()
        assert told.lag is not None
        assert 299 <= told.lag <= 360
