"""Columns that can carry a cursor: their values come back from Python unchanged, and in the same order.

With other columns, rows would be skipped or read forever, without an error. For a table the types are read; for a
query, there is only what the driver reports about its columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import UsageError
from holdfast.core.limits import LISTED_NAMES
from holdfast.runtime.sources.sql.database import sqlalchemy

if TYPE_CHECKING:
    from sqlalchemy import Connection


FINE = frozenset({"mssql", "oracle"})
"""Databases whose timestamps may be finer than a microsecond, which is the resolution of Python."""
_MYSQL_TIMESTAMP = 7
_MYSQL_CODES = {4: "a floating-point", 5: "a floating-point", 11: "a TIME", 16: "a BIT"}
_MYSQL_FLAGS = {256: "an ENUM", 2048: "a SET"}
_REAL = 700
_PLAIN = frozenset({16, 17, 20, 21, 23, 25, 701, 1042, 1043, 1082, 1083, 1114, 1184, 1186, 1700, 2950})
"""Types of PostgreSQL that have a type in Python. Others are sent as text, with their type."""


def check_column(kind: Any, name: str, dialect: str, what: str) -> None:
    """Refuse a column of a table that cannot carry a cursor."""
    types = sqlalchemy().types
    if dialect in ("mysql", "mariadb"):
        if isinstance(kind, types.Float):
            raise _refused(what, name, "a floating-point")
        named = {"ENUM": "an ENUM", "SET": "a SET", "TIME": "a TIME"}.get(type(kind).__name__)
        if named is not None:
            raise _refused(what, name, named)
    if dialect == "postgresql" and isinstance(kind, types.REAL):
        raise _refused(what, name, "a REAL")
    precision = getattr(kind, "precision", None)
    if isinstance(kind, types.DateTime) and dialect in FINE and (precision is None or precision > 6):
        raise UsageError(
            f"{what}: {name!r} may be finer than a microsecond, which Python cannot represent: use a query that casts "
            "it to a whole number or to text, with that as the cursor"
        )


def _refused(what: str, name: str, kind: str) -> UsageError:
    return UsageError(
        f"{what}: {name!r} is {kind} column: the database orders it in one way and compares it with values in another, "
        "so rows could be skipped. Use another column, or a query that casts it to DECIMAL or CHAR"
    )


def is_utc(kind: Any, dialect: str) -> bool:
    """Return whether a column holds a moment without a zone that is always UTC: MySQL's TIMESTAMP, as it is read
    here."""
    return dialect in ("mysql", "mariadb") and isinstance(kind, sqlalchemy().types.TIMESTAMP)


def exact_types(connection: "Connection", told: Any, order: tuple[str, ...], what: str) -> dict[str, Any]:
    """Return the types of the columns that order a query, as far as they are needed; refuses columns that cannot carry
    a cursor."""
    described = {each[0]: (each[1], at) for at, each in enumerate(told.description or ())}
    found = {}
    for name in order:
        code, at = described.get(name, (None, 0))
        if connection.dialect.name == "postgresql":
            found[name] = _postgresql(connection, code, name, what)
        elif connection.dialect.name in ("mysql", "mariadb"):
            found[name] = _mysql(code, _flags(told, at), name, what)
    return {name: kind for name, kind in found.items() if kind is not None}


def _postgresql(connection: "Connection", code: Any, name: str, what: str) -> Any:
    if code == _REAL:
        raise _refused(what, name, "a REAL")
    if type(code) is not int or code in _PLAIN:
        return None
    return named(str(connection.exec_driver_sql(f"SELECT format_type({code}, NULL)").scalar()))


def _mysql(code: Any, flags: int, name: str, what: str) -> Any:
    bad = _MYSQL_CODES.get(code) if type(code) is int else None
    bad = next((kind for flag, kind in _MYSQL_FLAGS.items() if flags & flag), bad)
    if bad is not None:
        raise _refused(what, name, bad)
    return sqlalchemy().types.TIMESTAMP() if code == _MYSQL_TIMESTAMP else None


def _flags(told: Any, at: int) -> int:
    """Return the column flags of a MySQL driver: they tell whether a text is an ENUM or a SET."""
    flags = getattr(told, "description_flags", None)
    if flags is None:
        fields = getattr(getattr(told, "_result", None), "fields", None)
        flags = None if fields is None else [each.flags for each in fields]
    return int(flags[at]) if flags is not None and at < len(flags) else 0


def named(name: str) -> Any:
    """Return a type by its name in PostgreSQL. Its values are sent with that type: a citext is compared as citext."""
    sa = sqlalchemy()

    class Named(sa.types.UserDefinedType):  # type: ignore[misc, name-defined]
        cache_ok = True
        render_bind_cast = True

        def __init__(self, name: str) -> None:
            self.name = name

        def get_col_spec(self, **_: Any) -> str:
            return self.name

    return Named(name)


@dataclass(frozen=True, slots=True)
class QueryShape:
    """The columns and the order of a table or a query."""

    origin: Any
    """The FROM clause."""
    names: tuple[str, ...]
    """The columns of a row as the user gets it."""
    shown: tuple[Any, ...]
    order: tuple[Any, ...]
    """The cursor column and then those of the key, as they are compared."""
    key: tuple[str, ...]
    """The key columns that follow the cursor: the tiebreaker."""
    may_be_null: bool
    """Whether the cursor column may hold NULL."""
    null_keys: tuple[Any, ...] = ()
    """Key columns that may hold NULL."""
    in_utc: bool = False
    """Whether the cursor is a moment without a zone that is always UTC."""


def shape_of_table(connection: "Connection", name: str, schema: str | None, *, cursor: str, key: Sequence[str],
             columns: Sequence[str] | None, what: str, unsafe: bool) -> QueryShape:  # fmt: skip
    """Return the shape of a table or a view, as the database describes it."""
    sa = sqlalchemy()
    inspector = sa.inspect(connection)
    found = inspector.get_columns(name, schema=schema)
    known = {each["name"]: each for each in found}
    primary = tuple(inspector.get_pk_constraint(name, schema=schema).get("constrained_columns") or ())
    key = tuple(key) if key else primary
    _check_names([cursor, *key, *(columns if columns is not None else ())], known, what)
    if not unsafe:
        _check_unique(inspector, name, schema, cursor, key, primary, what)
    dialect = connection.dialect.name
    for each in dict.fromkeys([cursor, *key]):
        check_column(known[each]["type"], each, dialect, what)
    origin = sa.table(name, *[sa.column(each["name"], each["type"]) for each in found], schema=schema)
    shown = tuple(columns) if columns is not None else tuple(known)
    tie = tuple(each for each in key if each != cursor)
    return QueryShape(
        origin=origin, names=shown, shown=tuple(origin.c[each] for each in shown), key=tie,
        order=tuple(_as_stored(origin.c[each], dialect) for each in (cursor, *tie)),
        may_be_null=bool(known[cursor].get("nullable", True)),
        null_keys=tuple(origin.c[each] for each in tie if known[each].get("nullable", True) and each not in primary),
        in_utc=is_utc(known[cursor]["type"], dialect),
    )  # fmt: skip


def shape_of_query(connection: "Connection", statement: str, params: dict[str, Any], *, cursor: str, key: Sequence[str],
             what: str) -> QueryShape:  # fmt: skip
    """Return the shape of a query: its columns as the database names them; only their values show their types."""
    sa = sqlalchemy()
    text = sa.text(f"SELECT * FROM ({statement}\n) AS q WHERE 1 = 0")  # noqa: S608 - it is the user's own statement
    asked = connection.execute(text, params)
    names = tuple(asked.keys())
    _check_names([cursor, *key], dict.fromkeys(names), what)
    if len(set(names)) < len(names):
        raise UsageError(f"{what}: two of its columns have the same name: give each a name of its own with AS")
    tie = tuple(each for each in key if each != cursor)
    types = exact_types(connection, asked.cursor, (cursor, *tie), what)
    columns = [sa.column(each, types.get(each)) for each in names]
    origin = sa.text(f"{statement}\n").bindparams(**params).columns(*columns).subquery("q")
    return QueryShape(
        origin=origin, names=names, shown=tuple(origin.c[each] for each in names), key=tie,
        order=tuple(origin.c[each] for each in (cursor, *tie)), may_be_null=True,
        null_keys=tuple(origin.c[each] for each in tie),
        in_utc=is_utc(types.get(cursor), connection.dialect.name),
    )  # fmt: skip


def _as_stored(column: Any, dialect: str) -> Any:
    """Return the column as it is compared: SQLite stores dates as text and compares that text, so a cursor is taken
    exactly as it is stored."""
    sa = sqlalchemy()
    return sa.type_coerce(column, sa.types.NULLTYPE) if dialect == "sqlite" else column


def _check_names(wanted: Sequence[str], known: dict[str, Any], what: str) -> None:
    for name in wanted:
        if name not in known:
            listed = ", ".join(list(known)[:LISTED_NAMES]) + ("…" if len(known) > LISTED_NAMES else "")
            raise UsageError(f"{what} has no column {name!r}: it has {listed or 'none'}")


def _check_unique(inspector: Any, name: str, schema: str | None, cursor: str, key: tuple[str, ...],
                  primary: tuple[str, ...], what: str) -> None:  # fmt: skip
    """Refuse rows that share the cursor and cannot be told apart: one could be skipped at the border of a page."""
    if not key:
        raise UsageError(f"{what} has no primary key: name columns that tell its rows apart, key=…")
    sets = [primary] if primary else []
    sets += [tuple(each["column_names"]) for each in inspector.get_unique_constraints(name, schema=schema)]
    sets += [tuple(each["column_names"]) for each in inspector.get_indexes(name, schema=schema) if each["unique"]]
    if sets and not any(set(some) <= {cursor, *key} for some in sets if None not in some):
        raise UsageError(
            f"{what}: it is not certain that {', '.join(key)} tells rows apart: name the primary key "
            f"({', '.join(primary) or 'there is none'}) or columns with a unique index, key=…"
        )
