"""What comes after a row, as SQL that every database answers from its index on (cursor, key).

PostgreSQL and SQLite walk the index for a comparison of row values. MySQL and MariaDB do not: there the same is spelled
out column by column, with a bound on the first column in front that the index can be entered by.
"""

from collections.abc import Sequence
from typing import Any

from holdfast.runtime.sources.sql.database import sqlalchemy

ROW_VALUES = frozenset({"postgresql", "sqlite", "cockroachdb"})


def after(columns: Sequence[Any], values: Sequence[Any], dialect: str) -> Any:
    """Rows that come after these values in the order of the columns."""
    return _beyond(columns, values, dialect, more=True)


def until(columns: Sequence[Any], values: Sequence[Any], dialect: str) -> Any:
    """Rows that come before these values, or have them."""
    return _beyond(columns, values, dialect, more=False)


def _beyond(columns: Sequence[Any], values: Sequence[Any], dialect: str, *, more: bool) -> Any:
    sa = sqlalchemy()
    if len(columns) == 1:
        return columns[0] > values[0] if more else columns[0] <= values[0]
    if dialect in ROW_VALUES:
        given = sa.tuple_(*[sa.literal(value, _type(column)) for column, value in zip(columns, values, strict=True)])
        return sa.tuple_(*columns) > given if more else sa.tuple_(*columns) <= given
    entry = columns[0] >= values[0] if more else columns[0] <= values[0]
    return sa.and_(entry, spelled_out(columns, values, more=more))


def spelled_out(columns: Sequence[Any], values: Sequence[Any], *, more: bool) -> Any:
    """(a, b) > (x, y) as a > x OR (a = x AND b > y); the last column of `<=` takes the row itself in."""
    sa = sqlalchemy()
    cases = []
    for at, (column, value) in enumerate(zip(columns, values, strict=True)):
        same = [each == known for each, known in zip(columns[:at], values[:at], strict=True)]
        last = at == len(columns) - 1
        beyond = column > value if more else (column <= value if last else column < value)
        cases.append(sa.and_(*same, beyond) if same else beyond)
    return sa.or_(*cases)


def _type(column: Any) -> Any:
    """The type a value is sent with: the column's, unless nothing is known about that."""
    return None if isinstance(column.type, sqlalchemy().types.NullType) else column.type
