"""The value of the stock, by warehouse and in all: a CSV file of a million rows in five ranges.

    python examples/inventory/make_inventory.py 1000000
    python examples/inventory/app.py inventory.csv

Kill it as often as you like and start it again: it goes on at the last checkpoint of each range, and the totals are
those of a run that nobody disturbed, to the cent.
"""

import os
import sys
import time
from decimal import Decimal
from typing import Any

import holdfast as hf

Stock = dict[str, Any]

PACE = float(os.environ.get("HOLDFAST_DEMO_PACE", "0"))
"""Seconds to wait after each group of rows, so that there is time to kill it."""


def scan(path: str, every: int = 1000) -> hf.Scan:
    """The scan: what is done with rows, and what with the results of the ranges."""
    inventory = hf.Scan("inventory", hf.Csv(path), every=every, partitions=5)

    @inventory.handler(initial={"rows": 0, "value": {}})
    def add(rows: list[dict[str, str]], acc: Stock) -> Stock:
        value = acc["value"]
        for row in rows:
            house = row["warehouse"]
            value[house] = value.get(house, Decimal(0)) + int(row["quantity"]) * Decimal(row["price"])
        time.sleep(PACE)
        return {"rows": acc["rows"] + len(rows), "value": value}

    @inventory.converge
    def total(parts: list[Stock]) -> Stock:
        value: dict[str, Decimal] = {}
        for part in parts:
            for house, amount in part["value"].items():
                value[house] = value.get(house, Decimal(0)) + amount
        return {"rows": sum(part["rows"] for part in parts), "value": value}

    return inventory


def main(path: str) -> int:
    report = scan(path).run(workers=5)
    print(report.run)
    if report.result is not None:
        for house, amount in sorted(report.result["value"].items()):
            print(f"{house:<14}{amount:>20,.2f}")
        print(f"{report.result['rows']:<14,}{sum(report.result['value'].values()):>20,.2f}")
    return int(report.exit_code)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1] if len(sys.argv) > 1 else "inventory.csv"))
