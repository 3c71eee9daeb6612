"""The example with the orders: ticks of its own, one of them killed, and a ledger that has every order once."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from holdfast.core import typed
from holdfast.stores.sqlite import SqliteStore

ORDERS = Path(__file__).resolve().parents[2] / "examples" / "orders"


def call(folder: Path, program: str, *arguments: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "ORDERS_STATE": "state.db", **settings}
    command = [sys.executable, program, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=env)


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
    assert sum(typed.decode(at.acc).values()) == sum(Decimal(f"{n}.50") for n in booked)


def test_the_function_is_python_and_calls_a_tick() -> None:
    source = (ORDERS / "function" / "function_app.py").read_text()
    compile(source, "function_app.py", "exec")
    assert "orders.tick(deadline=" in source
