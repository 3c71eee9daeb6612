"""SQL by name, from a `.sql` file: `-- name: commit_chunk` and one statement each."""

import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from itertools import chain
from typing import Any

BULK = 512
"""Rows in one statement. Every statement gives the interpreter away once; rows inside it do not."""

ROWS = "{rows}"
"""Where the rows of a statement stand, if not at its end."""

_NAME = re.compile(r"^-- name: (\w+)(?: \(bulk\))?\s*$", re.MULTILINE)


@cache
def load(file: str) -> dict[str, str]:
    """The statements of a file in this package, by name."""
    text = resources.files("holdfast.stores.sqlite").joinpath(file).read_text("utf-8")
    parts = _NAME.split(text)[1:]
    return {name: sql.strip().rstrip(";") for name, sql in zip(parts[::2], parts[1::2], strict=True)}


def write_rows(execute: Callable[[str, Any], object], sql: str, rows: Sequence[Sequence[Any]]) -> None:
    """Write many rows with few statements, in sizes that keep the statement cache warm."""
    start, left = 0, len(rows)
    width = len(rows[0]) if rows else 0
    size = BULK
    while left:
        while size > left:
            size >>= 1
        execute(_values(sql, width, size), tuple(chain.from_iterable(rows[start : start + size])))
        start, left = start + size, left - size


@cache
def _values(sql: str, width: int, rows: int) -> str:
    values = ",".join(["(" + ",".join("?" * width) + ")"] * rows)
    return sql.replace(ROWS, values) if ROWS in sql else f"{sql} {values}"
