"""Make a table of orders, or add some: `python make_orders.py [COUNT] [FIRST]`. They are a minute old."""

import os
import sqlite3
import sys

DSN = os.environ.get("ORDERS_DSN", "sqlite:///orders.db")


def make(count: int, first: int = 1) -> None:
    """So many orders, numbered from the first on."""
    with sqlite3.connect(DSN.removeprefix("sqlite:///")) as database:
        database.execute(
            "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, updated_at DATETIME NOT NULL, "
            "total NUMERIC NOT NULL, currency TEXT NOT NULL)"
        )
        database.execute("CREATE INDEX IF NOT EXISTS by_change ON orders (updated_at, id)")
        database.executemany(
            "INSERT INTO orders VALUES (?, strftime('%Y-%m-%d %H:%M:%f', 'now', ?), ?, ?)",
            [
                (n, f"-{60 - n / 1000:.3f} seconds", f"{n}.50", "EUR" if n % 3 else "USD")
                for n in range(first, first + count)
            ],
        )
    database.close()


if __name__ == "__main__":
    make(*[int(each) for each in sys.argv[1:]] or [1000])
