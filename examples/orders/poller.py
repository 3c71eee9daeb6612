"""A poller: every order that is new or was changed goes on to the ledger, once a tick, whatever happens in between.

    python poller.py            one tick, for a timer or for cron; ends with 0, 1 or 75
    python poller.py stay       stay, and look every two seconds

Where orders are, where the poller keeps its state, and where the ledger is are settings:

    ORDERS_DSN      sqlite:///orders.db, postgresql+psycopg://…, mysql+pymysql://…
    ORDERS_STATE    a file such as state.db, or whatever store there is
    ORDERS_LEDGER   ledger.db
"""

import os
import sqlite3
import sys
from decimal import Decimal
from typing import Any

import holdfast as hf

orders = hf.Scan(
    "orders",
    hf.Table(
        os.environ.get("ORDERS_DSN", "sqlite:///orders.db"),
        "orders",
        cursor="updated_at",
        key="id",
        settle=os.environ.get("ORDERS_SETTLE", "10s"),
    ),
    store=os.environ.get("ORDERS_STATE", "state.db"),
    follow=True,
    every=100,
    isolate=True,
)


@orders.handler
def book(rows: list[dict[str, Any]], acc: dict[str, Decimal], ctx: hf.Context) -> dict[str, Decimal]:
    """Write some orders to the ledger, and keep a sum for each currency.

    A tick that was killed before its checkpoint is repeated: so the ledger takes an order by its key and version, and
    a second time changes nothing. It also refuses whoever comes with a smaller fence than it has seen.
    """
    with sqlite3.connect(os.environ.get("ORDERS_LEDGER", "ledger.db"), timeout=30) as ledger:
        ledger.execute(
            "CREATE TABLE IF NOT EXISTS entries (id, updated_at, total, fence, PRIMARY KEY (id, updated_at))"
        )
        (seen,) = ledger.execute("SELECT coalesce(max(fence), 0) FROM entries").fetchone()
        if ctx.fence < seen:
            raise hf.Transient("another poller took over")
        for row in rows:
            total = Decimal(str(row["total"]))
            if total < 0:
                raise hf.Permanent("negative_total", f"order {row['id']} has the total {total}")
            version = str(row["updated_at"])
            ledger.execute(
                "INSERT OR IGNORE INTO entries VALUES (?, ?, ?, ?)", (row["id"], version, str(total), ctx.fence)
            )
            acc[row["currency"]] = acc.get(row["currency"], Decimal(0)) + total
    if os.environ.get("ORDERS_KILL") in {str(row["id"]) for row in rows}:  # for its test: the worst moment there is
        os.kill(os.getpid(), 9)
    return acc


if __name__ == "__main__":
    told = orders.run(poll="2s") if "stay" in sys.argv else orders.tick(deadline="50s")
    print(told)
    sys.exit(told.exit_code)
