"""A database from which rows are read: its connections, its name, and its errors without secrets."""

import re
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

from holdfast.core import errors
from holdfast.core.errors import HoldfastError, Transient, UsageError
from holdfast.core.limits import REQUEST_HINT_CHARS
from holdfast.runtime.sources.base import UNAVAILABLE

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

_NOT_THERE = (
    "no such table", "no such column", "syntax error", "ambiguous column", "unrecognized token",
    "unable to open database file",
)  # fmt: skip
"""Operational errors of SQLite that are permanent."""
_NOT_THERE_CODES = frozenset({1044, 1045, 1049, 1052, 1054, 1064, 1142, 1143, 1146})
"""The same for MySQL: unknown names, syntax, and missing privileges."""


_NOT_LET_IN = (
    "password authentication failed", "no password supplied", "no pg_hba.conf entry", "not permitted to log in",
    "authentication failed for user", "permission denied for database",
)  # fmt: skip
"""Messages of PostgreSQL while a connection is made, for which its library gives no code."""
_NOT_LET_IN_CODES = ("28", "3D", "42501")
"""Prefixes of SQLSTATEs: access denied, a missing database, missing privileges."""


class Database:
    """The database of a table or a query. It is connected only when needed."""

    def __init__(self, given: "str | Engine", what: str) -> None:
        sa = sqlalchemy()
        self.what = what
        self._engine: Engine | None = None
        self._owned = isinstance(given, str)
        self._lock = threading.Lock()
        if isinstance(given, str):
            try:
                self.url = sa.make_url(given)
            except (sa.exc.SQLAlchemyError, ValueError):
                found = None
            else:
                found = self.url
            if found is None:
                raise UsageError(
                    f"{what}: the address of the database cannot be read: write dialect+driver://user@host/name, such "
                    "as postgresql+psycopg://, mysql+pymysql:// or sqlite:///orders.db"
                )
        elif isinstance(given, sa.Engine):
            self._engine, self.url = given, given.url
        else:
            raise UsageError(f"{what}: pass the address of a database as text, or an Engine; not {type(given)}")

    @property
    def dialect(self) -> str:
        """postgresql, mysql, sqlite …; MariaDB is called mysql."""
        name = self.url.get_backend_name()
        return "mysql" if name == "mariadb" else name

    @property
    def name(self) -> str:
        """The name of the database, the same from every machine: without host and user, and for a file without its
        folder."""
        name = self.url.database
        if not name:
            return ":memory:" if self.dialect == "sqlite" else ""
        return Path(name).name if self.dialect == "sqlite" else name

    @contextmanager
    def connect(self) -> "Iterator[Connection]":
        """Yield a connection in which every statement sees what is committed when it begins; errors are translated."""
        failed: HoldfastError | None = None
        try:
            engine = self._open()
            with (
                engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
                _in_utc(connection, self.dialect),
            ):
                yield connection
        except sqlalchemy().exc.SQLAlchemyError as error:
            failed = self._told(error)
        if failed is not None:
            raise failed from None  # the original error may contain a password

    def close(self) -> None:
        """Close connections that were made here."""
        if self._engine is not None and self._owned:
            self._engine.dispose()
            self._engine = None

    def _open(self) -> "Engine":
        with self._lock:
            if self._engine is None:
                try:
                    self._engine = sqlalchemy().create_engine(self.url, hide_parameters=True, pool_pre_ping=True)
                except ModuleNotFoundError as error:
                    name = error.name
                else:
                    weakref.finalize(self, self._engine.dispose)
                    return self._engine
                raise UsageError(f"{self.what}: the driver {name!r} is not installed: pip install {name}")
            return self._engine

    def _told(self, error: Exception) -> HoldfastError:
        exc = sqlalchemy().exc
        text = self.without_secrets(str(getattr(error, "orig", None) or error))
        gone = isinstance(error, exc.DBAPIError) and error.connection_invalidated
        away = gone or isinstance(error, exc.OperationalError | exc.InterfaceError | exc.TimeoutError)
        code = next(iter(getattr(getattr(error, "orig", None), "args", ())), None)
        if _is_refused(getattr(error, "orig", None), text):
            return UsageError(f"{self.what}: the database refuses access: {text}: check user, password and name")
        if away and code not in _NOT_THERE_CODES and not any(word in text for word in _NOT_THERE):
            return Transient(f"{self.what}: the database did not answer: {text}", code=UNAVAILABLE)
        if isinstance(error, exc.NoSuchTableError):
            text = f"there is no table {text}"
        return UsageError(f"{self.what} cannot be read: {text}")

    def without_secrets(self, text: str) -> str:
        """Return a message of a driver, in one line, without the password and the address."""
        for secret in self._secrets():
            text = text.replace(secret, "***")
        line = " ".join(text.split())
        return line if len(line) <= 2 * REQUEST_HINT_CHARS else line[: 2 * REQUEST_HINT_CHARS - 1] + "…"

    def _secrets(self) -> list[str]:
        found = [self.url.render_as_string(hide_password=False)]
        plain = [self.url.password, *[v for values in self.url.normalized_query.values() for v in values]]
        for each in plain:
            if each:
                found += [str(each), quote(str(each)), quote_plus(str(each)), quote(str(each), safe="")]
        return sorted({each for each in found if each}, key=len, reverse=True)


def _is_refused(error: Any, text: str) -> bool:
    """Return whether a server answered that access is denied: waiting does not help."""
    first = next(iter(getattr(error, "args", ())), None)
    state = getattr(error, "sqlstate", None) or (first.get("C") if isinstance(first, dict) else None)
    if isinstance(state, str) and state.startswith(_NOT_LET_IN_CODES):
        return True
    missing = re.search(r'FATAL:\s+(role|database) ".*" does not exist', text)
    return missing is not None or any(words in text for words in _NOT_LET_IN)


@contextmanager
def _in_utc(connection: "Connection", dialect: str) -> "Iterator[None]":
    """Read MySQL's TIMESTAMP columns in UTC: in the time zone of the session, an hour may occur twice."""
    if dialect != "mysql":
        yield
        return
    before = connection.exec_driver_sql("SELECT @@session.time_zone").scalar()
    connection.exec_driver_sql("SET time_zone = '+00:00'")
    try:
        yield
    finally:
        if not connection.invalidated and not connection.closed:
            connection.exec_driver_sql("SET time_zone = %s", (before,))


def sqlalchemy() -> Any:
    """Return SQLAlchemy, which an extra installs."""
    try:
        import sqlalchemy as found
        import sqlalchemy.exc
    except ModuleNotFoundError:
        raise errors.missing_extra("tables and queries need", "SQLAlchemy") from None
    if int(found.__version__.split(".", maxsplit=1)[0]) < 2:
        raise UsageError(
            f"SQLAlchemy {found.__version__} is too old: {errors.how_to_get('SQLAlchemy')}, in 2.0 or newer"
        )
    return found
