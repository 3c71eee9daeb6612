"""What a database tells about time, and about transactions that have written and are not finished.

PostgreSQL tells everybody which transactions hold an id, which they get with their first write, and those who may know
since when they are open; a replica knows nothing of that. MySQL and MariaDB tell which have changed rows, to those with
the privilege PROCESS. Where nothing is told, the settle window alone must be long enough.

MySQL answers from a picture that it does not renew while anybody keeps asking more often than every 0.1 s, however
long that goes on. So our question is a transaction itself, with a word in it: a picture without that word is old.
"""

import logging
import secrets
import time
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from holdfast.runtime.sources.sql.database import sqlalchemy

if TYPE_CHECKING:
    from sqlalchemy import Connection

log = logging.getLogger("holdfast.source")

PICTURE_SECONDS = 0.12
"""For so long nobody may have asked MySQL before it renews its picture of transactions."""
PICTURES = 5
"""How often it is asked for a new one."""


class Clock(NamedTuple):
    """The time of the database."""

    now: float
    """Seconds since 1970 UTC. On a replica: up to where it has what the primary committed."""
    offset: float
    """Seconds by which its local time is ahead of UTC."""


class Writers(NamedTuple):
    """Transactions that have written something and are not finished."""

    oldest: float | None = None
    """When the first of them was begun; None if there is none."""
    hidden: int = 0
    """How many there are of which nobody tells when they were begun."""


_NOW = {
    "postgresql": """
        SELECT extract(epoch FROM CASE WHEN pg_is_in_recovery()
                 THEN least(clock_timestamp(), coalesce(pg_last_xact_replay_timestamp(), 'epoch'))
                 ELSE clock_timestamp() END)::float8,
               extract(timezone FROM clock_timestamp())::float8""",
    "mysql": """
        SELECT UNIX_TIMESTAMP(NOW(6)),
               TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', @@global.time_zone))""",
    "sqlite": """
        SELECT (julianday('now') - 2440587.5) * 86400.0,
               (julianday('now', 'localtime') - julianday('now')) * 86400.0""",
}
_WRITERS = """
        SELECT extract(epoch FROM min(a.xact_start))::float8, count(*) FILTER (WHERE a.xact_start IS NULL)
        FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
        WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
          AND l.pid IS DISTINCT FROM pg_backend_pid()
          AND (a.datname = current_database() OR a.datname IS NULL)"""
_PICTURE = """
        SELECT UNIX_TIMESTAMP(MIN(CASE WHEN trx_rows_modified > 0 AND trx_mysql_thread_id <> CONNECTION_ID()
                                       THEN trx_started END)),
               SUM(trx_query LIKE '%%{word}%%')
        FROM information_schema.innodb_trx"""
_HOLDERS = """
        SELECT l.transactionid::text FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
        WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
          AND l.pid IS DISTINCT FROM pg_backend_pid()
          AND (a.datname = current_database() OR a.datname IS NULL)"""


def clock(connection: "Connection") -> Clock:
    """What time it is there."""
    asked = _NOW.get(_dialect(connection))
    if asked is None:
        return Clock(time.time(), float(-time.timezone))
    now, offset = connection.exec_driver_sql(asked).one()
    return Clock(float(now), float(round(float(offset))))


def writers(connection: "Connection") -> Writers | None:
    """The transactions that have written; None where the database tells nothing about them."""
    dialect = _dialect(connection)
    try:
        if dialect == "mysql":
            return _pictured(connection)
        if dialect != "postgresql":
            return None
        if _is_replica(connection):
            return None
        oldest, hidden = connection.exec_driver_sql(_WRITERS).one()
        return Writers(None if oldest is None else float(oldest), int(hidden))
    except sqlalchemy().exc.DBAPIError as error:
        if error.connection_invalidated:
            raise
        _warn(dialect)
        return None


@cache
def _warn(dialect: str) -> None:
    """Said once in a process: it concerns every look."""
    log.warning(
        "this user is not told which transactions of the %s are not finished (PROCESS on MySQL and MariaDB): rows are "
        "taken for final after the settle window, which must be longer than the longest transaction",
        dialect,
    )


def _pictured(connection: "Connection") -> Writers:
    """What MySQL's picture shows, once it is one of now."""
    for turn in range(PICTURES):
        word = f"holdfast {secrets.token_hex(8)}"
        if turn:
            time.sleep(PICTURE_SECONDS)
        connection.exec_driver_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        try:
            oldest, ours = connection.exec_driver_sql(_PICTURE.format(word=word)).one()
        finally:
            connection.exec_driver_sql("ROLLBACK")
        if ours:
            return Writers(None if oldest is None else float(oldest))
    return Writers(None, 1)


def holders(connection: "Connection") -> frozenset[str] | None:
    """The ids of transactions that have written, by which they are known until they end; None where nobody tells.

    Not the borders of a snapshot: its upper one is that of the last transaction that *ended*, and one that began after
    that and is not finished is beyond it.
    """
    if _dialect(connection) != "postgresql" or _is_replica(connection):
        return None
    return frozenset(connection.exec_driver_sql(_HOLDERS).scalars())


def _is_replica(connection: "Connection") -> bool:
    return bool(connection.exec_driver_sql("SELECT pg_is_in_recovery()").scalar())


def _dialect(connection: "Connection") -> str:
    name: str = connection.dialect.name
    return "mysql" if name == "mariadb" else name
