"""The example with the orders: ticks of its own, one of them killed, and a ledger that has every order once."""

import os
import shutil
import signal
import sqlite3
import subprocess
from decimal import Decimal
from pathlib import Path

import pytest

from holdfast.core import canonical
from holdfast.stores.sqlite import SqliteStore
from tests.forkserver import shared

ORDERS = Path(__file__).resolve().parents[2] / "examples" / "orders"


def call(folder: Path, program: str, *arguments: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "ORDERS_STATE": "state.db", **settings}
    if program == "holdfast":
        return shared().command(*arguments, cwd=folder, env=env).completed()
    return shared().program(program, *arguments, cwd=folder, env=env).completed()


@pytest.mark.slow
@pytest.mark.promise("C10", "C11", "B10")
def test_a_killed_tick_loses_no_order_and_books_none_twice(folder: Path) -> None:
    for name in ("poller.py", "make_orders.py"):
        shutil.copy(ORDERS / name, folder)
    assert call(folder, "make_orders.py", "450").returncode == 0
    killed = call(folder, "poller.py", ORDERS_KILL="250")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = call(folder, "poller.py")
    assert done.returncode == 0, done.stderr
    assert "caught up: 250 rows, 450 in all" in done.stdout
    assert "nothing new" in call(folder, "poller.py").stdout
    call(folder, "make_orders.py", "5", "451")
    with sqlite3.connect(folder / "orders.db") as database:
        database.execute("UPDATE orders SET total = -1 WHERE id = 453")
    database.close()
    last = call(folder, "poller.py")
    assert last.returncode == 1, last.stderr
    assert "5 rows, 455 in all, 1 buried" in last.stdout
    with sqlite3.connect(folder / "ledger.db") as ledger:
        booked = [n for (n,) in ledger.execute("SELECT id FROM entries ORDER BY id")]
    ledger.close()
    assert booked == [n for n in range(1, 456) if n != 453]
    store = SqliteStore(folder / "state.db")
    (at,) = store.checkpoints(1)
    store.close()
    assert at.acc is not None
    assert sum(canonical.decode_typed(at.acc).values()) == sum(Decimal(f"{n}.50") for n in booked)


def change(folder: Path, statement: str) -> None:
    with sqlite3.connect(folder / "orders.db") as database:
        database.execute(statement)
    database.close()


def entries(folder: Path) -> dict[int, tuple[str, int]]:
    """Order -> what the ledger has of it: total and fence."""
    with sqlite3.connect(folder / "ledger.db") as ledger:
        booked = {n: (total, fence) for n, total, fence in ledger.execute("SELECT id, total, fence FROM entries")}
    ledger.close()
    return booked


@pytest.mark.slow
@pytest.mark.promise("C2", "C11")
@pytest.mark.parametrize("state", ["state.db", "file:state"])
def test_a_corrected_order_is_redriven_and_the_ledger_takes_it_though_it_refuses_smaller_fences(
    folder: Path, state: str
) -> None:
    for name in ("poller.py", "make_orders.py"):
        shutil.copy(ORDERS / name, folder)
    call(folder, "make_orders.py", "10")
    assert call(folder, "poller.py", ORDERS_STATE=state).returncode == 0
    call(folder, "make_orders.py", "10", "11")
    change(folder, "INSERT INTO orders VALUES (99, strftime('%Y-%m-%d %H:%M:%f', 'now', '-59.9 seconds'), -1, 'EUR')")
    buried = call(folder, "poller.py", ORDERS_STATE=state)
    assert (buried.returncode, "1 buried" in buried.stdout) == (1, True), buried
    assert call(folder, "poller.py", ORDERS_STATE=state).returncode == 0  # the tick that buries says so, and no other
    change(folder, "UPDATE orders SET total = 7 WHERE id = 99")
    redriven = call(folder, "holdfast", "dead", "redrive", "orders", "--all", "--reason", "corrected", "--yes",
                    "--store", state)  # fmt: skip
    assert redriven.returncode == 0, redriven
    done = call(folder, "poller.py", ORDERS_STATE=state)
    assert (done.returncode, "1 redriven" in done.stdout) == (0, True), done
    for first in (21, 22, 23):
        call(folder, "make_orders.py", "1", str(first))
        after = call(folder, "poller.py", ORDERS_STATE=state)
        assert (after.returncode, "1 row," in after.stdout) == (0, True), after
    booked = entries(folder)
    assert sorted(booked) == [*range(1, 24), 99]
    assert Decimal(booked[99][0]) == 7
    assert [booked[n][1] for n in (1, 11, 99, 21, 22, 23)] == [1, 2, 3, 4, 5, 6]


def test_the_function_is_python_and_calls_a_tick() -> None:
    source = (ORDERS / "function" / "function_app.py").read_text()
    compile(source, "function_app.py", "exec")
    assert "orders.tick(deadline=" in source
