"""Which columns a table or a query has, which of them make its order, and whether they can carry a cursor."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import UsageError
from holdfast.core.limits import LISTED_NAMES
from holdfast.runtime.sources.sql import exact
from holdfast.runtime.sources.sql.database import sqlalchemy

if TYPE_CHECKING:
    from sqlalchemy import Connection


@dataclass(frozen=True, slots=True)
class Shape:
    """What is read of a table or a query."""

    origin: Any
    """What stands after FROM."""
    names: tuple[str, ...]
    """The columns of a row as the user gets it."""
    shown: tuple[Any, ...]
    order: tuple[Any, ...]
    """The cursor column and then those of the key, as they are compared."""
    key: tuple[str, ...]
    """The key columns that stand behind the cursor: the tiebreaker."""
    may_be_null: bool
    """Whether the cursor column may hold NULL."""
    null_keys: tuple[Any, ...] = ()
    """Key columns that may hold NULL."""
    in_utc: bool = False
    """Whether the cursor is a moment that tells no zone, and is UTC even so."""


def of_table(connection: "Connection", name: str, schema: str | None, *, cursor: str, key: Sequence[str],
             columns: Sequence[str] | None, what: str, unsafe: bool) -> Shape:  # fmt: skip
    """The shape of a table or a view, as the database describes it."""
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
        exact.check_column(known[each]["type"], each, dialect, what)
    origin = sa.table(name, *[sa.column(each["name"], each["type"]) for each in found], schema=schema)
    shown = tuple(columns) if columns is not None else tuple(known)
    tie = tuple(each for each in key if each != cursor)
    return Shape(
        origin=origin, names=shown, shown=tuple(origin.c[each] for each in shown), key=tie,
        order=tuple(_as_stored(origin.c[each], dialect) for each in (cursor, *tie)),
        may_be_null=bool(known[cursor].get("nullable", True)),
        null_keys=tuple(origin.c[each] for each in tie if known[each].get("nullable", True) and each not in primary),
        in_utc=exact.is_utc(known[cursor]["type"], dialect),
    )  # fmt: skip


def of_query(connection: "Connection", statement: str, params: dict[str, Any], *, cursor: str, key: Sequence[str],
             what: str) -> Shape:  # fmt: skip
    """The shape of a query: its columns as the database names them, of types that only their values show."""
    sa = sqlalchemy()
    text = sa.text(f"SELECT * FROM ({statement}\n) AS q WHERE 1 = 0")  # noqa: S608 - it is the user's own statement
    asked = connection.execute(text, params)
    names = tuple(asked.keys())
    _check_names([cursor, *key], dict.fromkeys(names), what)
    if len(set(names)) < len(names):
        raise UsageError(f"{what}: two of its columns have the same name: give each a name of its own with AS")
    tie = tuple(each for each in key if each != cursor)
    types = exact.of_query(connection, asked.cursor, (cursor, *tie), what)
    columns = [sa.column(each, types.get(each)) for each in names]
    origin = sa.text(f"{statement}\n").bindparams(**params).columns(*columns).subquery("q")
    return Shape(
        origin=origin, names=names, shown=tuple(origin.c[each] for each in names), key=tie,
        order=tuple(origin.c[each] for each in (cursor, *tie)), may_be_null=True,
        null_keys=tuple(origin.c[each] for each in tie),
        in_utc=exact.is_utc(types.get(cursor), connection.dialect.name),
    )  # fmt: skip


def _as_stored(column: Any, dialect: str) -> Any:
    """SQLite keeps dates as text and compares that text: a cursor is taken as it is stored, digit by digit."""
    sa = sqlalchemy()
    return sa.type_coerce(column, sa.types.NULLTYPE) if dialect == "sqlite" else column


def _check_names(wanted: Sequence[str], known: dict[str, Any], what: str) -> None:
    for name in wanted:
        if name not in known:
            listed = ", ".join(list(known)[:LISTED_NAMES]) + ("…" if len(known) > LISTED_NAMES else "")
            raise UsageError(f"{what} has no column {name!r}: it has {listed or 'none'}")


def _check_unique(inspector: Any, name: str, schema: str | None, cursor: str, key: tuple[str, ...],
                  primary: tuple[str, ...], what: str) -> None:  # fmt: skip
    """Rows that share the cursor must be told apart, or one of them is skipped at the border of a page."""
    if not key:
        raise UsageError(f"{what} has no primary key: name columns that tell its rows apart, key=…")
    sets = [primary] if primary else []
    sets += [tuple(each["column_names"]) for each in inspector.get_unique_constraints(name, schema=schema)]
    sets += [tuple(each["column_names"]) for each in inspector.get_indexes(name, schema=schema) if each["unique"]]
    if sets and not any(set(some) <= {cursor, *key} for some in sets if None not in some):
        raise UsageError(
            f"{what}: nothing says that {', '.join(key)} tells rows apart: name the primary key "
            f"({', '.join(primary) or 'there is none'}) or columns with a unique index, key=…"
        )
