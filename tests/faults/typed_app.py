"""A scan whose cursors are values of every type: its source goes on only after a cursor that it knows, to the type."""

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import holdfast as hf
from holdfast.core.cursor import Cursor
from holdfast.runtime.sources.base import Span

BATCH = "typed"
HANDLED = "handled.log"
VALUES: list[Any] = [
    0, 10**40, -(2**63) - 1, 2**53 + 1, "", "é\n\x00 ☃", None, True, 1.0, -0.0, 0.1, Decimal("1.50"), Decimal("1E+3"),
    datetime(2026, 4, 7, 1, 23, 45, 123456),  # noqa: DTZ001 - naive ones are cursors, too
    datetime(2026, 4, 7, 1, 23, 45, 123456, UTC),
    datetime(2026, 4, 7, 1, 23, 45, 1, timezone(timedelta(hours=5, minutes=30))), date(2026, 11, 16), UUID(int=7),
    b"\x00\xff", (1, "a", (None,)), [1, [2.0, Decimal(3)]], {"a": {"b": UUID(int=8)}, "$int": "7"}, {3: "three"},
]  # fmt: skip
"""No two of them are the same; the tiebreaker of each is another one of them."""


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types all through."""
    if type(one) is not type(other) or one != other or str(one) != str(other):
        return False
    if isinstance(one, dict):
        return len(one) == len(other) and all(same(one[key], other[key]) for key in one)
    return not isinstance(one, list | tuple) or all(map(same, one, other))


def cursor_of(index: int) -> Cursor:
    return Cursor("any", VALUES[index], VALUES[-1 - index])


def index_of(at: Cursor) -> int:
    """Which row a cursor stands after."""
    (found,) = (
        n for n, value in enumerate(VALUES) if same(value, at.value) and same(VALUES[-1 - n], at.tiebreaker)
    )  # fmt: skip
    return found


class Row:
    def __init__(self, index: int) -> None:
        self.rows, self._index = [index], index

    def after(self, count: int) -> Cursor:
        return cursor_of(self._index + count - 1)


class Typed:
    def describe(self) -> dict[str, Any]:
        return {"kind": "typed"}

    def read(self, after: Cursor | None, until: Cursor | None) -> Iterator[Row]:
        first = 0 if after is None else index_of(after) + 1
        return (Row(index) for index in range(first, len(VALUES)))

    def split(self, parts: int) -> list[Span]:
        return [Span(rows=len(VALUES))]


def main(argv: list[str]) -> int:
    scan = hf.Scan(BATCH, Typed(), every=1, store=argv[0])

    @scan.handler(initial=list)
    def keep(rows: list[int], acc: list[Any]) -> list[Any]:
        with Path(HANDLED).open("a") as file:
            file.writelines(f"{row}\n" for row in rows)
        return [*acc, *(VALUES[row] for row in rows)]

    report = scan.run(progress=False)
    is_same = same(report.result, VALUES)
    print(json.dumps({"rows": report.rows, "same": is_same}))  # noqa: T201
    return int(report.exit_code)
