"""Tables and queries in pages by cursor and key; the rows after a row, as SQL that every database answers from its
index on (cursor, key).

PostgreSQL and SQLite use the index for a comparison of row values. MySQL and MariaDB do not: there the same is spelled
out column by column, preceded by a bound on the first column through which the index can be entered.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from holdfast.core import cursor as cursors
from holdfast.core.cursor import Cursor
from holdfast.core.errors import UsageError
from holdfast.core.model import Key
from holdfast.runtime.sources import listing
from holdfast.runtime.sources.base import Horizon, Outage, Since, Span, Waits, rows_of
from holdfast.runtime.sources.sql import columns as shapes
from holdfast.runtime.sources.sql.columns import QueryShape
from holdfast.runtime.sources.sql.database import Database, sqlalchemy
from holdfast.runtime.sources.sql.horizon import BEFORE, Settling, Where
from holdfast.runtime.text import Duration, many, seconds

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine


ROW_VALUES = frozenset({"postgresql", "sqlite", "cockroachdb"})


def rows_after(columns: Sequence[Any], values: Sequence[Any], dialect: str) -> Any:
    """Return the condition for rows that come after these values in the order of the columns."""
    return _beyond(columns, values, dialect, more=True)


def rows_until(columns: Sequence[Any], values: Sequence[Any], dialect: str) -> Any:
    """Return the condition for rows that come before these values, or have them."""
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
    """Return (a, b) > (x, y) as a > x OR (a = x AND b > y); the last column of `<=` includes the row itself."""
    sa = sqlalchemy()
    cases = []
    for at, (column, value) in enumerate(zip(columns, values, strict=True)):
        same = [each == known for each, known in zip(columns[:at], values[:at], strict=True)]
        last = at == len(columns) - 1
        beyond = column > value if more else (column <= value if last else column < value)
        cases.append(sa.and_(*same, beyond) if same else beyond)
    return sa.or_(*cases)


def _type(column: Any) -> Any:
    """Return the type with which a value is sent: that of the column, unless it is unknown."""
    return None if isinstance(column.type, sqlalchemy().types.NullType) else column.type


Nulls = Literal["refuse", "skip", "first"]
KIND = "column+key"
PAGE = 1_000
"""Rows that are read at a time, unless the source defines another number."""


class SqlPage:
    """Some rows, each with its position in the order."""

    def __init__(self, rows: list[dict[str, Any]], places: list[tuple[Any, ...]], key: tuple[str, ...]) -> None:
        self.rows, self.places, self._key = rows, places, key

    def after(self, count: int) -> Cursor:
        return _cursor(self.places[count - 1], self._key)


class SqlSource:
    """The base of tables and queries. Subclasses define their names and their columns."""

    def __init__(self, database: "str | Engine", what: str, *, cursor: str, key: Any, nulls: Nulls, lateness: Duration,
                 clock: Where | None, page: int, unsafe_cursor: bool) -> None:  # fmt: skip
        if nulls not in ("refuse", "skip", "first"):
            raise UsageError(f'{what}: nulls={nulls!r}: pass "refuse", "skip" or "first"')
        if clock not in (None, "utc", "local"):
            raise UsageError(f'{what}: clock={clock!r}: pass "utc" or "local", or leave it out')
        if type(page) is not int or page < 1:
            raise UsageError(f"{what}: page={page!r}: pass a whole number of rows, 1 or more")
        if not isinstance(cursor, str) or not cursor:
            raise UsageError(f"{what}: cursor={cursor!r}: name the column that grows with every change")
        self.what = what
        self.cursor = cursor
        self.key = _names(key, f"{what}: key")
        self.nulls = nulls
        self.page = page
        self.unsafe_cursor = unsafe_cursor
        self.settling = Settling(seconds(lateness, f"{what}: lateness"), clock)
        self.database = Database(database, what)
        self._shape: QueryShape | None = None

    def __repr__(self) -> str:
        return f"<{self.what} in {self.database.name}>"

    # -- reading ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Every row, as items of a pipeline."""
        for page in self.read(None, None):
            yield from page.rows

    def read(self, after: Cursor | None, until: Cursor | None) -> Iterator[SqlPage]:
        """Yield the rows after a cursor, up to another and with it. Each page is a statement of its own: none is open
        while rows are handled."""
        place = None if after is None else self._place(after)
        while True:
            page = self._page(place, until)
            if not page.rows:
                return
            yield page
            if len(page.rows) < self.page and page.places[-1][0] is not None:
                return
            place = page.places[-1]

    def patiently(self, outage: Outage) -> Iterator[Any]:
        """Yield every item of a pipeline; after an outage it is read on where it was."""
        return rows_of(self, outage)

    def natural_key(self, value: Any) -> Key | None:
        """Return the key of a row where it is read as an item."""
        found = [value.get(name) for name in self._key_columns()] if isinstance(value, Mapping) else []
        if not found or any(each is None for each in found):
            return None
        if len(found) == 1 and isinstance(found[0], str | int):
            return found[0]
        return "/".join(map(str, found))

    def _key_columns(self) -> tuple[str, ...]:
        if self.key:
            return self.key
        with self.database.connect() as connection:
            shape = self._shaped(connection)
        return shape.key if shape.key else (self.cursor,)

    def final(self, after: Cursor | None, wait: Callable[[float], bool]) -> Horizon:
        """Return how far rows can be delivered so that none appears behind them later."""
        if self.nulls == "first":
            raise UsageError(
                f"{self.what}: rows without a cursor come first, so a scan that follows would never find new ones: "
                'pass nulls="skip", and they come once they have a value; or give every row a value'
            )
        if self.unsafe_cursor:
            return Horizon()
        with self.database.connect() as connection:
            shape = self._shaped(connection)
            if shape.may_be_null:
                self._refuse_nulls(connection, shape)
            settling = replace(self.settling, where="utc") if shape.in_utc else self.settling
            newest = self._newest(connection, after)
            if newest is None:
                why = "" if after is None else settling.set_back(connection, after, self.what)
                return Horizon(nothing=True, newest=after, why=why)
            found = settling.look(connection, newest, wait, self.what)
        return msgspec.structs.replace(found, newest=newest)

    def waiting(self, after: Cursor | None) -> Waits | None:
        """Return the first row after a cursor, final or not; None where there is none, or its cursor is not a time."""
        with self.database.connect() as connection:
            shape = self._shaped(connection)
            first = self._first(connection, shape, after)
            settling = replace(self.settling, where="utc") if shape.in_utc else self.settling
            now = None if first is None else settling.now_like(connection, first, self.what)
        return None if first is None or now is None else Waits(first, now)

    def newest(self) -> Cursor | None:
        """Return the last row there is; None where there is none."""
        with self.database.connect() as connection:
            return self._newest(connection)

    # -- ranges -------------------------------------------------------------------------------------------------

    def split(self, parts: int) -> Sequence[Span]:
        """Return ranges of about as many rows each. The first begins before every row and the last never ends, so that
        no row falls outside, whatever is written meanwhile."""
        described = listing.names_of(self.describe())
        with self.database.connect() as connection:
            shape = self._shaped(connection)
            known = self._identity(connection, shape) | {"of": described}
            if parts == 1:
                return [Span(identity=known)]
            count = self._count(connection, shape)
            borders: list[Cursor] = []
            if count:
                ends = [count * part // min(parts, count) for part in range(1, min(parts, count))]
                borders = list(self._borders(connection, shape, [hi - lo for lo, hi in pairwise([0, *ends])]))
        edges: list[Cursor | None] = [None, *borders, None]
        each = count // max(1, len(edges) - 1)
        return [Span(after=lo, until=hi, rows=each, identity=known) for lo, hi in pairwise(edges)]

    def since(self, before: dict[str, Any], handled: int) -> Since:
        """Return what became of the rows since they were counted. A row whose cursor is its key stays where it is; any
        other may have moved on by an update, so that only their number tells."""
        if before.get("of") != listing.names_of(self.describe()):
            return Since()
        with self.database.connect() as connection:
            shape = self._shaped(connection)
            now = self._identity(connection, shape)
            last = None if before["last"] is None else cursors.from_plain(before["last"])
            stays = last is not None and (not shape.key or self.cursor in shape.key)
            held = now["rows"]
            if stays:
                held = self._count(connection, shape, last) + self._nulls(connection, shape)
        if held < before["rows"]:
            among = " among those it had" if now["rows"] >= before["rows"] else ""
            return Since(
                f"it has {many(held, 'row')}{among}, but had {before['rows']:,}: rows were deleted or replaced"
            )
        return Since(more=max(0, now["rows"] - max(before["rows"], handled)))

    def _identity(self, connection: "Connection", shape: QueryShape) -> dict[str, Any]:
        """Return how many rows there are, and the last one."""
        newest = self._newest(connection)
        last = None if newest is None else cursors.to_plain(newest)
        return {"rows": self._count(connection, shape) + self._nulls(connection, shape), "last": last}

    def _nulls(self, connection: "Connection", shape: QueryShape) -> int:
        """Return how many delivered rows have no cursor."""
        if self.nulls != "first" or not shape.may_be_null:
            return 0
        sa = sqlalchemy()
        asked = self._filter(sa.select(sa.func.count()).select_from(shape.origin), shape)
        return int(connection.execute(asked.where(shape.order[0].is_(None))).scalar_one())

    def _count(self, connection: "Connection", shape: QueryShape, until: Cursor | None = None) -> int:
        """Return how many rows have a cursor, up to and including one."""
        sa, values = sqlalchemy(), self._values(shape)
        if until is not None:
            values = values.where(rows_until(shape.order, self._place(until), self.database.dialect))
        return connection.execute(sa.select(sa.func.count()).select_from(values.subquery())).scalar() or 0

    def _borders(self, connection: "Connection", shape: QueryShape, widths: Sequence[int]) -> Iterator[Cursor]:
        """Yield the last row of each partition. Each search starts at the previous border, so that the index is walked
        once."""
        values = self._values(shape).order_by(*shape.order)
        found: Any = None
        for rows in widths:
            rest = values
            if found is not None:
                rest = values.where(rows_after(shape.order, tuple(found), self.database.dialect))
            found = connection.execute(rest.offset(rows - 1).limit(1)).first()
            if found is None:
                return  # rows were deleted meanwhile: the last partition has the rest
            yield _cursor(tuple(found), shape.key)

    # -- statements ---------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Return what the source is, as data."""
        raise NotImplementedError

    def _shape_of(self, connection: "Connection") -> QueryShape:
        raise NotImplementedError

    def _filter(self, statement: Any, shape: QueryShape) -> Any:
        return statement

    def _shaped(self, connection: "Connection") -> QueryShape:
        if self._shape is None:
            shape = self._shape_of(connection)
            self._refuse_nulls(connection, shape)
            self._shape = shape
        return self._shape

    def _refuse_nulls(self, connection: "Connection", shape: QueryShape) -> None:
        """Refuse NULL, which compares with nothing: rows without a cursor or a key would be skipped silently."""
        sa = sqlalchemy()
        bad = [(column, column.name, "key") for column in shape.null_keys]
        if shape.may_be_null and self.nulls == "refuse":
            bad.append((shape.order[0], self.cursor, "cursor"))
        for column, name, role in bad:
            if self._exists(connection, shape, column.is_(None)):
                asked = self._filter(sa.select(sa.func.count()).select_from(shape.origin), shape)
                count = connection.execute(asked.where(column.is_(None))).scalar_one()
                then = 'pass nulls="skip" or nulls="first"' if role == "cursor" else "name other key columns, key=…"
                raise UsageError(
                    f"{self.what}: {many(count, 'row')} without a value in the {role} column {name!r}, so there is no "
                    f"position to continue from: give every row a value, or {then}"
                )

    def _exists(self, connection: "Connection", shape: QueryShape, condition: Any) -> bool:
        sa = sqlalchemy()
        asked = self._filter(sa.select(sa.literal(1)).select_from(shape.origin), shape).where(condition).limit(1)
        return connection.execute(asked).first() is not None

    def _page(self, place: tuple[Any, ...] | None, until: Cursor | None) -> SqlPage:
        with self.database.connect() as connection:
            shape = self._shaped(connection)
            if place is None and shape.may_be_null and self.nulls == "refuse":
                self._refuse_nulls(connection, shape)
            rows: list[Any] = []
            if self.nulls == "first" and (place is None or place[0] is None):
                rows = list(connection.execute(self._null_rows(shape, place, until)))
            if not rows and not (until is not None and until.kind == KIND and until.value is None):
                rows = list(connection.execute(self._valued_rows(shape, place, until)))
        return self._paged(rows, shape)

    def _null_rows(self, shape: QueryShape, place: tuple[Any, ...] | None, until: Cursor | None) -> Any:
        """Return rows without a cursor, in the order of their keys."""
        statement = self._select(shape).where(shape.order[0].is_(None))
        dialect = self.database.dialect
        if place is not None:
            statement = statement.where(rows_after(shape.order[1:], place[1:], dialect))
        if until is not None and until.kind == KIND and until.value is None:
            statement = statement.where(rows_until(shape.order[1:], self._place(until)[1:], dialect))
        return statement.order_by(*shape.order[1:]).limit(self.page)

    def _valued_rows(self, shape: QueryShape, place: tuple[Any, ...] | None, until: Cursor | None) -> Any:
        dialect = self.database.dialect
        statement = self._select(shape)
        if shape.may_be_null:
            statement = statement.where(shape.order[0].is_not(None))
        if place is not None and place[0] is not None:
            statement = statement.where(rows_after(shape.order, place, dialect))
        if until is not None and until.kind == BEFORE:
            statement = statement.where(shape.order[0] < until.value)
        elif until is not None:
            statement = statement.where(rows_until(shape.order, self._place(until), dialect))
        return statement.order_by(*shape.order).limit(self.page)

    def _select(self, shape: QueryShape) -> Any:
        order = [column.label(f"hf_{at}") for at, column in enumerate(shape.order)]
        return self._filter(sqlalchemy().select(*shape.shown, *order).select_from(shape.origin), shape)

    def _values(self, shape: QueryShape) -> Any:
        """Return the order columns of every row that has a cursor."""
        found = self._filter(sqlalchemy().select(*shape.order).select_from(shape.origin), shape)
        return found.where(shape.order[0].is_not(None)) if shape.may_be_null else found

    def _newest(self, connection: "Connection", after: Cursor | None = None) -> Cursor | None:
        """Return the last row; None if there is none after a cursor."""
        shape = self._shaped(connection)
        last = self._after(shape, after).order_by(*[column.desc() for column in shape.order]).limit(1)
        found = connection.execute(last).first()
        return None if found is None else _cursor(tuple(found), shape.key)

    def _first(self, connection: "Connection", shape: QueryShape, after: Cursor | None) -> Cursor | None:
        """Return the first row after a cursor."""
        found = connection.execute(self._after(shape, after).order_by(*shape.order).limit(1)).first()
        return None if found is None else _cursor(tuple(found), shape.key)

    def _after(self, shape: QueryShape, after: Cursor | None) -> Any:
        """Return the order columns of every row that has a cursor, after one."""
        values = self._values(shape)
        if after is not None and (place := self._place(after))[0] is not None:
            values = values.where(rows_after(shape.order, place, self.database.dialect))
        return values

    def _paged(self, rows: list[Any], shape: QueryShape) -> SqlPage:
        width = len(shape.names)
        places = [tuple(row[width:]) for row in rows]
        if not self.unsafe_cursor:
            for before, now in pairwise(places):
                if before == now:
                    raise UsageError(
                        f"{self.what}: two rows share the cursor and the key {now!r}, so one row could be skipped: "
                        "name key columns that tell every row apart, key=…"
                    )
        return SqlPage([dict(zip(shape.names, row[:width], strict=True)) for row in rows], places, shape.key)

    # -- cursors ------------------------------------------------------------------------------------------------

    def _place(self, at: Cursor) -> tuple[Any, ...]:
        """Return the values of a cursor."""
        if at.kind != KIND:
            raise UsageError(f"{self.what}: a cursor of the kind {at.kind!r} is not one of a table: {KIND!r}")
        if self._shape is None:
            with self.database.connect() as connection:
                self._shaped(connection)
        shape = cast("QueryShape", self._shape)
        tie = at.tiebreaker
        if isinstance(tie, dict):
            missing = [name for name in shape.key if name not in tie]
            values = None if missing else [tie[name] for name in shape.key]
        else:
            values = list(tie) if isinstance(tie, list | tuple) else [] if tie is None else [tie]
        if not shape.key:
            values = []
        if values is None or len(values) != len(shape.key):
            raise UsageError(
                f"{self.what}: the cursor {at} does not have a value for each of the key columns "
                f"{', '.join(shape.key)}: without them, rows that share its value would be skipped or repeated"
            )
        return (at.value, *values)


def _cursor(place: tuple[Any, ...], key: tuple[str, ...]) -> Cursor:
    return Cursor(KIND, place[0], dict(zip(key, place[1:], strict=True)) if key else None)


def _names(given: Any, what: str) -> tuple[str, ...]:
    """Return column names from one, several or none."""
    if given is None:
        return ()
    names = (given,) if isinstance(given, str) else tuple(given)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise UsageError(f"{what}={given!r}: name a column, or several in a list")
    return names


class Table(SqlSource):
    """The rows of a table or view as dictionaries: `hf.Table(dsn, "orders", cursor="updated_at", key="id")`.

    Args:
        database: A SQLAlchemy URL, or an engine.
        name: The name of the table or view.
        cursor: The column that orders the rows. To be followed, it must grow with every change.
        key: The column or columns that tell rows with the same cursor apart; by default the primary key.
        where: A condition: SQL, or a dictionary of columns and values.
        columns: The columns to read; by default all.
        schema: The schema of the table.
        nulls: What to do with rows without a cursor: `"refuse"` to stop, `"skip"` to pass over them until they have
            one, or `"first"` to read them before all others (not in a follower).
        lateness: How much later than its cursor a row may be committed.
        clock: `"utc"` or `"local"`: what a cursor without a time zone means; needed only if the database cannot tell.
        page: How many rows one statement reads.
        unsafe_cursor: True to accept any cursor, without waiting for rows that commit late.
    """

    def __init__(self, database: "str | Engine", name: str, *, cursor: str, key: str | Sequence[str] | None = None,
                 where: str | Mapping[str, Any] | None = None, columns: Sequence[str] | None = None,
                 schema: str | None = None, nulls: Nulls = "refuse", lateness: Duration = "10s",
                 clock: Where | None = None, page: int = PAGE, unsafe_cursor: bool = False) -> None:  # fmt: skip
        if not isinstance(name, str) or not name:
            raise UsageError(f"Table({name!r}): name the table")
        super().__init__(database, f"table {name!r}", cursor=cursor, key=key, nulls=nulls, lateness=lateness,
                         clock=clock, page=page, unsafe_cursor=unsafe_cursor)  # fmt: skip
        if not (where is None or isinstance(where, str | Mapping)):
            raise UsageError(f"{self.what}: where={where!r}: pass SQL, or a dictionary of columns and values")
        self.name = name
        self.schema = schema
        self.where = where
        self._columns = None if columns is None else _names(columns, f"{self.what}: columns")

    def describe(self) -> dict[str, Any]:
        """Return the logical table: from which machine and as which user it is read says nothing about it."""
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

    def _shape_of(self, connection: "Connection") -> QueryShape:
        return shapes.shape_of_table(connection, self.name, self.schema, cursor=self.cursor, key=self.key,
                               columns=self._columns, what=self.what, unsafe=self.unsafe_cursor)  # fmt: skip

    def _filter(self, statement: Any, shape: QueryShape) -> Any:
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


_QUOTED = re.compile(r"('(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|--[^\n]*\n?|/\*.*?\*/)", re.DOTALL)
"""The parts of SQL that are not parsed: texts, quoted names, and comments."""


class Query(SqlSource):
    """The rows of one SELECT as dictionaries, in the order of a column of its result.

    `hf.Query(dsn, "SELECT o.*, c.name FROM orders o JOIN customers c USING (customer)", cursor="updated_at", key="id")`

    Args:
        database: A SQLAlchemy URL, or an engine.
        statement: The SELECT.
        cursor: The column that orders the rows. To be followed, it must grow with every change.
        key: The column or columns that tell rows with the same cursor apart.
        params: Values for the `:names` in the statement.
        nulls: What to do with rows without a cursor: `"refuse"` to stop, `"skip"` to pass over them until they have
            one, or `"first"` to read them before all others (not in a follower).
        lateness: How much later than its cursor a row may be committed.
        clock: `"utc"` or `"local"`: what a cursor without a time zone means; needed only if the database cannot tell.
        page: How many rows one statement reads.
        unsafe_cursor: True to accept any cursor, without waiting for rows that commit late.
    """

    def __init__(self, database: "str | Engine", statement: str, *, cursor: str, key: str | Sequence[str],
                 params: Mapping[str, Any] | None = None, nulls: Nulls = "refuse", lateness: Duration = "10s",
                 clock: Where | None = None, page: int = PAGE, unsafe_cursor: bool = False) -> None:  # fmt: skip
        if not isinstance(statement, str):
            raise UsageError(f"Query({statement!r}): pass the statement as text")
        self.statement = statement.strip().rstrip(";").rstrip()
        short = " ".join(self.statement.split())
        what = f"query {short if len(short) <= 60 else short[:59] + '…'!r}"
        words = _QUOTED.sub(lambda found: " " if found[0][:2] in ("--", "/*") else "''", self.statement)
        if not re.match(r"(?i)(select|with|values)\b", words.lstrip("( \n\t")) or ";" in words:
            raise UsageError(f"{what}: pass one SELECT statement; a source only reads")
        super().__init__(database, what, cursor=cursor, key=key, nulls=nulls, lateness=lateness, clock=clock, page=page,
                         unsafe_cursor=unsafe_cursor)  # fmt: skip
        self.params = dict(params) if params is not None else {}

    def describe(self) -> dict[str, Any]:
        """Return the logical query: how it is laid out, and from where it is asked, says nothing about it."""
        return {
            "kind": "query",
            "database": self.database.name,
            "query": normalised(self.statement),
            "params": {name: str(value) for name, value in self.params.items()},
            "cursor": self.cursor,
            "key": list(self.key),
            "nulls": self.nulls,
        }

    def _shape_of(self, connection: "Connection") -> QueryShape:
        return shapes.shape_of_query(
            connection, as_text(self.statement), self.params, cursor=self.cursor, key=self.key, what=self.what
        )


def normalised(statement: str) -> str:
    """Return the statement without irrelevant differences: spaces and line ends outside of quotes and comments."""
    parts = _QUOTED.split(statement.strip().rstrip(";"))
    return "".join(part if at % 2 else re.sub(r"\s+", " ", part) for at, part in enumerate(parts)).strip()


def as_text(statement: str) -> str:
    """Return the statement as SQLAlchemy's text: a colon within quotes or a comment does not begin a parameter."""
    return _QUOTED.sub(lambda quoted: re.sub(r"(?<!\\):", r"\\:", quoted[0]), statement)
