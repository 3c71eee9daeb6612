"""Makes inventory.csv: so many rows of invented stock, the same every time.

python examples/inventory/make_inventory.py 1000000
"""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

WAREHOUSES = ("Bergen", "Hull", "Nantucket", "New Bedford", "Sag Harbor")
GOODS = ("harpoon", "lamp oil", "rope, tarred", 'plank, 2"', "sailcloth", "biscuit", "quadrant")


def main(count: int, path: Path) -> None:
    """Write the file, and say how long it is."""
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write("id,article,warehouse,quantity,price\n")
        file.writelines(rows(count))
    print(f"{path}: {count:,} rows, {path.stat().st_size:,} bytes")


def rows(count: int) -> Iterator[str]:
    """One row each; some articles have a comma or a quote in their name, and some a note of two lines."""
    chance = random.Random(1851)
    for number in range(count):
        article = chance.choice(GOODS) + (" (see\nnotes)" if number % 101 == 0 else "")
        if any(mark in article for mark in ',"\n'):
            article = '"' + article.replace('"', '""') + '"'
        price = chance.randrange(10_000) / 100
        yield f"{number},{article},{chance.choice(WAREHOUSES)},{chance.randrange(500)},{price:.2f}\n"


if __name__ == "__main__":
    given = [*sys.argv[1:], *("1000000", "inventory.csv")[len(sys.argv) - 1 :]]
    main(int(given[0]), Path(given[1]))
