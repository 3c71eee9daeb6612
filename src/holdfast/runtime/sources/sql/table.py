"""`hf.Table`: the rows of a table or a view."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import UsageError
from holdfast.runtime.durations import Duration
from holdfast.runtime.sources.sql import shape as shapes
from holdfast.runtime.sources.sql.database import sqlalchemy
from holdfast.runtime.sources.sql.final import Where
from holdfast.runtime.sources.sql.query import as_text, normalised
from holdfast.runtime.sources.sql.shape import Shape
from holdfast.runtime.sources.sql.source import PAGE, Nulls, SqlSource, _names

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine


class Table(SqlSource):
    """A table in the order of a column that grows with every change, and of its key.

    `hf.Table(dsn, "orders", cursor="updated_at", key="id")`
    """

    def __init__(self, database: "str | Engine", name: str, *, cursor: str, key: str | Sequence[str] | None = None,
                 where: str | Mapping[str, Any] | None = None, columns: Sequence[str] | None = None,
                 schema: str | None = None, nulls: Nulls = "refuse", settle: Duration = "10s",
                 clock: Where | None = None, page: int = PAGE, unsafe_cursor: bool = False) -> None:  # fmt: skip
        if not isinstance(name, str) or not name:
            raise UsageError(f"Table({name!r}): name the table")
        super().__init__(database, f"table {name!r}", cursor=cursor, key=key, nulls=nulls, settle=settle, clock=clock,
                         page=page, unsafe_cursor=unsafe_cursor)  # fmt: skip
        if not (where is None or isinstance(where, str | Mapping)):
            raise UsageError(f"{self.what}: where={where!r}: write SQL, or a dictionary of columns and values")
        self.name = name
        self.schema = schema
        self.where = where
        self._columns = None if columns is None else _names(columns, f"{self.what}: columns")

    def describe(self) -> dict[str, Any]:
        """The logical table: from which machine and as which user it is read says nothing about it."""
        return {
            "kind": "table",
            "database": self.database.name,
            "table": self.name if self.schema is None else f"{self.schema}.{self.name}",
            "cursor": self.cursor,
            "key": list(self._key_columns()),
            "where": self._described_filter(),
            "nulls": self.nulls,
        }

    def _described_filter(self) -> Any:
        if self.where is None or isinstance(self.where, str):
            return None if self.where is None else normalised(self.where)
        return {name: str(value) for name, value in self.where.items()}

    def _shape_of(self, connection: "Connection") -> Shape:
        return shapes.of_table(connection, self.name, self.schema, cursor=self.cursor, key=self.key,
                               columns=self._columns, what=self.what, unsafe=self.unsafe_cursor)  # fmt: skip

    def _filter(self, statement: Any, shape: Shape) -> Any:
        if self.where is None:
            return statement
        if isinstance(self.where, str):
            return statement.where(sqlalchemy().text(f"({as_text(self.where)}\n)"))
        for name, value in self.where.items():
            if name not in shape.origin.c:
                raise UsageError(f"{self.what}: where={{{name!r}: …}}: it has no such column")
            column = shape.origin.c[name]
            statement = statement.where(column.is_(None) if value is None else column == value)
        return statement
