"""How far a scan that follows is behind: what is not final yet is nobody's delay."""

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import holdfast as hf
from holdfast.core.cursor import Cursor
from holdfast.runtime.scans.lag import lag, unsettled
from holdfast.runtime.scans.tick import Ended
from holdfast.runtime.sources.base import Final

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def at(seconds: float) -> Cursor:
    return Cursor("column+key", NOON + timedelta(seconds=seconds), 1)


def final(newest: float, until: float, settle: float = 10) -> Final:
    return Final(newest=at(newest), until=at(until), settle=settle)


def test_a_row_that_is_seconds_old_after_quiet_minutes_is_no_delay() -> None:
    seen = final(newest=687, until=680)
    assert lag(seen, at(0), caught_up=True) == 0
    assert unsettled(seen)


def test_rows_that_are_held_back_for_longer_than_they_have_to_be_are() -> None:
    assert lag(final(newest=687, until=300), at(0), caught_up=True) == 387


def test_rows_that_are_final_and_not_handled_are() -> None:
    assert lag(final(newest=687, until=680), at(0), caught_up=False) == 687
    assert lag(final(newest=600, until=680), at(600), caught_up=True) == 0
    assert not unsettled(final(newest=600, until=680))


def test_what_is_no_time_has_no_lag() -> None:
    assert (
        lag(Final(newest=Cursor("column+key", 7, 1), until=Cursor("column+key", 7, 1)), at(0), caught_up=True) is None
    )
    assert lag(Final(), None, caught_up=True) is None
    naive = Cursor("column+key", NOON.replace(tzinfo=None), 1)
    assert lag(Final(newest=naive, until=naive), at(0), caught_up=True) is None


def test_a_tick_says_that_the_newest_row_is_not_final_and_is_not_behind(folder: Path) -> None:
    with sqlite3.connect(folder / "shop.db") as shop:
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, at DATETIME NOT NULL)")
        shop.execute("INSERT INTO orders VALUES (1, datetime('now', '-700 seconds'))")
        shop.execute("INSERT INTO orders VALUES (2, datetime('now'))")
    shop.close()
    table = hf.Table(f"sqlite:///{folder}/shop.db", "orders", cursor="at", key="id", settle="1m")
    scan = hf.Scan("orders", table, store=folder / "state.db", follow=True)
    scan.handler(lambda rows: None)
    for ended, rows in ((Ended.CAUGHT_UP, 1), (Ended.NOTHING_NEW, 0)):
        told = scan.tick()
        assert (told.ended, told.rows, told.lag, told.exit_code) == (ended, rows, 0, 0)
        assert "the newest row is not final yet" in str(told)
        assert "behind" not in str(told)
