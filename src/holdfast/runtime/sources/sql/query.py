"""`hf.Query`: the rows of a statement of the user's."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import UsageError
from holdfast.runtime.durations import Duration
from holdfast.runtime.sources.sql import shape as shapes
from holdfast.runtime.sources.sql.final import Where
from holdfast.runtime.sources.sql.shape import Shape
from holdfast.runtime.sources.sql.source import PAGE, Nulls, SqlSource

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

_QUOTED = re.compile(r"('(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|--[^\n]*\n?|/\*.*?\*/)", re.DOTALL)
"""What is not SQL within SQL: texts, names in quotes, and comments."""


class Query(SqlSource):
    """A query in the order of a column that grows with every change, and of its key.

    `hf.Query(dsn, "SELECT o.*, c.name FROM orders o JOIN customers c USING (customer)", cursor="updated_at", key="id")`
    """

    def __init__(self, database: "str | Engine", statement: str, *, cursor: str, key: str | Sequence[str],
                 params: Mapping[str, Any] | None = None, nulls: Nulls = "refuse", settle: Duration = "10s",
                 clock: Where | None = None, page: int = PAGE, unsafe_cursor: bool = False) -> None:  # fmt: skip
        if not isinstance(statement, str):
            raise UsageError(f"Query({statement!r}): give the statement as text")
        self.statement = statement.strip().rstrip(";").rstrip()
        short = " ".join(self.statement.split())
        what = f"query {short if len(short) <= 60 else short[:59] + '…'!r}"
        words = _QUOTED.sub(lambda found: " " if found[0][:2] in ("--", "/*") else "''", self.statement)
        if not re.match(r"(?i)(select|with|values)\b", words.lstrip("( \n\t")) or ";" in words:
            raise UsageError(f"{what}: give one SELECT: what is read is never changed")
        super().__init__(database, what, cursor=cursor, key=key, nulls=nulls, settle=settle, clock=clock, page=page,
                         unsafe_cursor=unsafe_cursor)  # fmt: skip
        self.params = dict(params) if params is not None else {}

    def describe(self) -> dict[str, Any]:
        """The logical query: how it is laid out, and from where it is asked, says nothing about it."""
        return {
            "kind": "query",
            "database": self.database.name,
            "query": normalised(self.statement),
            "params": {name: str(value) for name, value in self.params.items()},
            "cursor": self.cursor,
            "key": list(self.key),
            "nulls": self.nulls,
        }

    def _shape_of(self, connection: "Connection") -> Shape:
        return shapes.of_query(
            connection, as_text(self.statement), self.params, cursor=self.cursor, key=self.key, what=self.what
        )


def normalised(statement: str) -> str:
    """The statement without what does not matter: blanks and line ends outside of quotes and comments."""
    parts = _QUOTED.split(statement.strip().rstrip(";"))
    return "".join(part if at % 2 else re.sub(r"\s+", " ", part) for at, part in enumerate(parts)).strip()


def as_text(statement: str) -> str:
    """The statement as SQLAlchemy's text: a colon within quotes or a comment begins no parameter."""
    return _QUOTED.sub(lambda quoted: re.sub(r"(?<!\\):", r"\\:", quoted[0]), statement)
