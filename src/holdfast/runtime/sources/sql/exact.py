"""Whether a column can carry a cursor: its values come back from Python as they were, and in the order they were in.

Where they do not, rows would be skipped or read for ever, and nothing would say so. Of a table, the types are asked
for; of a query, what the driver tells about its columns is all there is.
"""

from typing import TYPE_CHECKING, Any

from holdfast.core.errors import UsageError
from holdfast.runtime.sources.sql.database import sqlalchemy

if TYPE_CHECKING:
    from sqlalchemy import Connection

FINE = frozenset({"mssql", "oracle"})
"""Databases whose timestamps may be finer than a microsecond, which is as fine as Python's are."""
_MYSQL_TIMESTAMP = 7
_MYSQL_CODES = {4: "a floating-point", 5: "a floating-point", 11: "a TIME", 16: "a BIT"}
_MYSQL_FLAGS = {256: "an ENUM", 2048: "a SET"}
_REAL = 700
_PLAIN = frozenset({16, 17, 20, 21, 23, 25, 701, 1042, 1043, 1082, 1083, 1114, 1184, 1186, 1700, 2950})
"""Types of PostgreSQL that Python has one for. Others are sent as text, and must be told what they are."""


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
            f"{what}: {name!r} may be finer than a microsecond, which Python cannot hold: use a query that casts it "
            "to a whole number or to text, and that as the cursor"
        )


def _refused(what: str, name: str, kind: str) -> UsageError:
    return UsageError(
        f"{what}: {name!r} is {kind} column: the database orders it in one way and compares it with values in "
        "another, so rows could be skipped. Use another column, or a query that casts it to DECIMAL or CHAR"
    )


def is_utc(kind: Any, dialect: str) -> bool:
    """Whether it says a moment without its zone, and always in UTC: what MySQL calls TIMESTAMP, as it is read here."""
    return dialect in ("mysql", "mariadb") and isinstance(kind, sqlalchemy().types.TIMESTAMP)


def of_query(connection: "Connection", told: Any, order: tuple[str, ...], what: str) -> dict[str, Any]:
    """The types of the columns that order a query, as far as they must be known; refuses what cannot carry a cursor."""
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
    """What a driver of MySQL tells besides: whether a text is one of an ENUM or a SET."""
    flags = getattr(told, "description_flags", None)
    if flags is None:
        fields = getattr(getattr(told, "_result", None), "fields", None)
        flags = None if fields is None else [each.flags for each in fields]
    return int(flags[at]) if flags is not None and at < len(flags) else 0


def named(name: str) -> Any:
    """A type by the name that PostgreSQL knows it by. Its values are sent as such: a citext is compared as one."""
    sa = sqlalchemy()

    class Named(sa.types.UserDefinedType):  # type: ignore[misc, name-defined]
        cache_ok = True
        render_bind_cast = True

        def __init__(self, name: str) -> None:
            self.name = name

        def get_col_spec(self, **_: Any) -> str:
            return self.name

    return Named(name)
