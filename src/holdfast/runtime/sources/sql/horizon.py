"""The time of a database, and its transactions that write and are not finished.

PostgreSQL shows to every user which transactions hold an id, which they get with their first write, or a lock that
writers take before; to privileged users it also shows since when they are open. A replica knows nothing about that.
MySQL and MariaDB show which transactions have changed rows or hold locks, to users with the privilege PROCESS. If a
database shows nothing, the settle window alone must be long enough.

MySQL answers from a snapshot of its transactions that it does not renew while any client asks more often than every 0.1
s. So the question is itself a transaction, marked with a word: a snapshot without that word is old.
"""

import logging
import math
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from holdfast.core.cursor import Cursor
from holdfast.core.errors import UsageError
from holdfast.runtime.sources.base import Horizon
from holdfast.runtime.sources.sql.database import sqlalchemy

if TYPE_CHECKING:
    from sqlalchemy import Connection


log = logging.getLogger("holdfast.source")

PICTURE_SECONDS = 0.12
"""How long no client may have asked MySQL before it renews its snapshot of transactions."""
PICTURES = 5
"""How often a new snapshot is requested."""


class Clock(NamedTuple):
    """The time of the database."""

    now: float
    """Seconds since 1970 UTC. On a replica: the time up to which it has the commits of the primary."""
    offset: float
    """Seconds by which its local time is ahead of UTC."""
    other_offset: float = 0.0
    """The same half a year ago: summer time if it is winter now."""


class Writers(NamedTuple):
    """Transactions that write, or are about to, and are not finished."""

    oldest: float | None = None
    """When the first one began; None if there is none."""
    hidden: int = 0
    """How many there are whose beginning is not shown."""
    prepared: str = ""
    """The names of prepared transactions among them, which wait for a COMMIT PREPARED."""


_NOW = {
    "postgresql": """
        SELECT extract(epoch FROM CASE WHEN pg_is_in_recovery()
                 THEN least(clock_timestamp(), greatest(
                   coalesce(pg_last_xact_replay_timestamp(), 'epoch'),
                   (SELECT last_msg_send_time FROM pg_stat_wal_receiver
                    WHERE status = 'streaming' AND latest_end_lsn <= pg_last_wal_replay_lsn())))
                 ELSE clock_timestamp() END)::float8""",
    "mysql": "SELECT UNIX_TIMESTAMP(NOW(6))",
    "sqlite": "SELECT (julianday('now') - 2440587.5) * 86400.0",
}
"""A replica has everything up to the last commit that it replayed. If it has replayed everything that its primary had
sent with its last message, it has everything up to then: otherwise the last rows before a quiet night would wait until
the morning."""
_OFFSET = {
    "postgresql": "extract(timezone FROM to_timestamp({at}))::float8",
    "mysql": """TIMESTAMPDIFF(SECOND, FROM_UNIXTIME({at}),
                              CONVERT_TZ(FROM_UNIXTIME({at}), '+00:00', @@global.time_zone))""",
    "sqlite": """(julianday({at}, 'unixepoch', 'localtime') - julianday({at}, 'unixepoch')) * 86400.0""",
}
_HALF_A_YEAR = 182 * 86_400
_HELD = """
        SELECT DISTINCT l.virtualtransaction AS id, l.pid, l.transactionid, a.xact_start, p.gid
        FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
             LEFT JOIN pg_prepared_xacts p ON l.pid IS NULL AND p.transaction = l.transactionid
        WHERE l.pid IS DISTINCT FROM pg_backend_pid()
          AND (l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
               AND coalesce(a.datname, p.database, current_database()) = current_database()
               OR l.locktype = 'relation' AND l.pid IS NOT NULL
               AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
               AND l.mode IN ('RowShareLock', 'RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                              'AccessExclusiveLock'))"""
"""Transactions that hold a transaction id or the lock of writers of a table, or wait for it. The lock comes first: a
transaction that waits for a row, or reads for long before its first write, has taken its value and has no id yet."""
_WRITERS = f"""
        SELECT extract(epoch FROM min(xact_start))::float8, count(DISTINCT id) FILTER (WHERE xact_start IS NULL),
               coalesce(string_agg(DISTINCT gid, ', '), '')
        FROM ({_HELD}) AS held"""  # noqa: S608 - contains no outside text
_HOLDERS = f"SELECT coalesce(transactionid::text, id) FROM ({_HELD}) AS held"  # noqa: S608 - the same
_OLDEST = {
    "postgresql": f"""
        SELECT 'pid ' || h.pid, a.application_name, a.usename FROM ({_HELD}) AS h
               JOIN pg_stat_activity a ON a.pid = h.pid
        WHERE h.xact_start IS NOT NULL ORDER BY h.xact_start, h.pid LIMIT 1""",  # noqa: S608 - the same
    "mysql": """
        SELECT CONCAT('connection ', t.trx_mysql_thread_id), p.program, p.user
        FROM information_schema.innodb_trx t LEFT JOIN
             (SELECT id, NULL AS program, user FROM information_schema.processlist) AS p ON p.id = t.trx_mysql_thread_id
        WHERE (t.trx_rows_modified > 0 OR t.trx_lock_structs > 0) AND t.trx_mysql_thread_id <> CONNECTION_ID()
        ORDER BY t.trx_started, t.trx_mysql_thread_id LIMIT 1""",
}
"""The transaction that has been open for the longest time: its session, program and user."""
_PICTURE = """
        SELECT MIN(CASE WHEN (trx_rows_modified > 0 OR trx_lock_structs > 0)
                         AND trx_mysql_thread_id <> CONNECTION_ID() THEN trx_started END),
               SUM(trx_query LIKE '%%{word}%%')
        FROM information_schema.innodb_trx"""
"""Transactions that have changed rows, or hold a lock or wait for one: an UPDATE that waits for a row has taken its
value."""
_BEGUN = """
        SELECT LEAST(u, IF(CONVERT_TZ(FROM_UNIXTIME(u - 3600), '+00:00', 'SYSTEM') = t, u - 3600, u)) FROM
               (SELECT t, UNIX_TIMESTAMP(CONVERT_TZ(t, 'SYSTEM', '+00:00')) AS u FROM (SELECT %s AS t) AS s) AS r"""
"""The snapshot has the server's local time, whatever the session's zone; if a local time occurs twice, the first is
taken."""


def server_clock(connection: "Connection") -> Clock:
    """Return the time there."""
    dialect = _dialect(connection)
    if dialect not in _NOW:
        return Clock(time.time(), *(float(time.localtime(time.time() - ago).tm_gmtoff) for ago in (0, _HALF_A_YEAR)))
    there, ago = (_OFFSET[dialect].format(at=at) for at in ("t.now", f"(t.now - {_HALF_A_YEAR})"))
    asked = f"SELECT t.now, {there}, {ago} FROM ({_NOW[dialect]} AS now) AS t"  # noqa: S608 - contains no outside text
    now, *ahead = connection.exec_driver_sql(asked).one()
    return Clock(float(now), *(float(round(float(each))) for each in ahead))


def clock_offset(connection: "Connection", at: int) -> float:
    """Return how far its local time was ahead of UTC at a moment."""
    asked = _OFFSET.get(_dialect(connection))
    if asked is None:
        return float(time.localtime(at).tm_gmtoff)
    return float(round(float(connection.exec_driver_sql(f"SELECT {asked.format(at=at)}").scalar() or 0.0)))


def writers(connection: "Connection") -> Writers | None:
    """Return the transactions that have written; None if the database shows nothing about them."""
    dialect = _dialect(connection)
    try:
        if dialect == "mysql":
            return _pictured(connection)
        if dialect != "postgresql":
            return None
        if _is_replica(connection):
            return None
        oldest, hidden, prepared = connection.exec_driver_sql(_WRITERS).one()
        return Writers(None if oldest is None else float(oldest), int(hidden), prepared)
    except sqlalchemy().exc.DBAPIError as error:
        if error.connection_invalidated:
            raise
        _warn(dialect)
        return None


def who_writes(connection: "Connection") -> str:
    """Name the session that has written and has been open for the longest time; empty if it is not shown."""
    asked = _OLDEST.get(_dialect(connection))
    if asked is None:
        return ""
    try:
        found = connection.exec_driver_sql(asked).first()
    except sqlalchemy().exc.DBAPIError as error:
        if error.connection_invalidated:
            raise
        return ""
    if found is None:
        return ""
    session, program, user = found
    named = [f"application {program!r}"] if program else []
    return ", ".join([str(session), *named, *([f"user {user!r}"] if user else [])])


@cache
def _warn(dialect: str) -> None:
    """Log once in a process: it concerns every tick."""
    log.warning(
        "this user cannot see which transactions of the %s are not finished (PROCESS on MySQL and MariaDB): rows count "
        "as final after the settle window, which must be longer than the longest transaction",
        dialect,
    )


def _pictured(connection: "Connection") -> Writers:
    """Return the writers in MySQL's snapshot, once it is a current one."""
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
            begun = None if oldest is None else connection.exec_driver_sql(_BEGUN, (oldest,)).scalar()
            return Writers(None if begun is None else float(begun))
    return Writers(None, 1)


def holders(connection: "Connection") -> frozenset[str] | None:
    """Return the ids of transactions that write, by which they are known until they end; None if they are not shown.

    The borders of a snapshot are not used: the upper one is that of the last transaction that *ended*, and an
    unfinished transaction that began after that is beyond it.
    """
    if _dialect(connection) != "postgresql" or _is_replica(connection):
        return None
    return frozenset(connection.exec_driver_sql(_HOLDERS).scalars())


def _is_replica(connection: "Connection") -> bool:
    return bool(connection.exec_driver_sql("SELECT pg_is_in_recovery()").scalar())


def _dialect(connection: "Connection") -> str:
    name: str = connection.dialect.name
    return "mysql" if name == "mariadb" else name


Wait = Callable[[float], bool]
"""Waits for so many seconds; False if there is not enough time, or the run stops."""
Where = Literal["utc", "local"]

BEFORE = "before"
"""The kind of a cursor that is before every row with its value, or a larger one."""
LOOK_SECONDS = 0.05
PATIENCE = 30.0
"""How long one check waits for transactions whose beginning is not shown."""
_TEXT = re.compile(r"\d{4}-\d\d-\d\d([ T])\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]00:?00)?")


@dataclass(frozen=True, slots=True)
class Settling:
    """The user's settings for rows that are not final."""

    seconds: float
    where: Where | None = None
    """The time zone of a cursor without a zone."""

    def look(self, connection: "Connection", newest: Cursor, wait: Wait, what: str) -> Horizon:
        """Return how far the rows are final; `newest` is the last row."""
        clock = server_clock(connection)
        style = _style_of(newest.value)
        if style is None:
            return self._observe(connection, newest, wait, what)
        known = writers(connection)
        oldest, held = clock.now, ""
        if known is not None and known.hidden:
            if not self._outwaited(connection, wait):
                return Horizon(until=None, nothing=True, why=_hidden(known, what))
        elif known is not None and known.oldest is not None and known.oldest < clock.now:
            oldest = known.oldest
            held = f"a transaction that has been open for {clock.now - oldest:,.0f} s has written rows{_by(connection)}"
        at = math.floor(oldest - self.seconds)
        offset = min(clock.offset, clock_offset(connection, at)) if self.where == "local" else clock.offset
        bound = style(Moment(at, clock._replace(offset=offset), self.where, what))
        return Horizon(until=Cursor(BEFORE, bound), why=held, settle=self.seconds)

    def now_like(self, connection: "Connection", row: Cursor, what: str) -> Any:
        """Return the time there in the format of the cursor column; None if that is not a time."""
        style = _style_of(row.value)
        if style is None:
            return None
        clock = server_clock(connection)
        return style(Moment(math.floor(clock.now), clock, self.where, what))

    def set_back(self, connection: "Connection", after: Cursor, what: str) -> str:
        """Return a warning if the cursor is ahead of the time there: rows that are written now come before it."""
        style = _style_of(after.value)
        if style is None:
            return ""
        clock = server_clock(connection)
        now = style(Moment(math.floor(clock.now) + 1, clock, self.where, what))
        if not after.value > now:
            return ""
        return (
            f"{what}: its cursor is at {after.value}, but the time in the database is {now}: its clock was set back, "
            "or it is a replica that is behind. Rows that are written now are skipped: when the clock is right again, "
            "move the cursor back with holdfast cursor reset --to-cursor"
        )

    def _observe(self, connection: "Connection", newest: Cursor, wait: Wait, what: str) -> Horizon:
        """Return the horizon for a cursor that is not a time: present rows are final after a while."""
        if self.seconds and not wait(self.seconds):
            return Horizon(until=None, nothing=True, why=f"it takes {self.seconds:g} s until rows are final")
        if not self._outwaited(connection, wait):
            why = f"a transaction that has written rows is not finished{_by(connection)}"
            return Horizon(until=None, nothing=True, why=why)
        return Horizon(until=newest)

    def _outwaited(self, connection: "Connection", wait: Wait) -> bool:
        """Wait for the transactions that have written up to now; return whether all are finished."""
        left = holders(connection)
        began, waited = server_clock(connection).now, 0.0
        while True:
            if left is not None:
                left &= holders(connection) or frozenset()
                done = not left
            else:
                known = writers(connection)
                done = known is None or (not known.hidden and (known.oldest is None or known.oldest > began))
            if done or waited >= PATIENCE or not wait(LOOK_SECONDS):
                return done
            waited += LOOK_SECONDS


def _by(connection: "Connection") -> str:
    """Return which session holds rows back, if the database shows it."""
    who = who_writes(connection)
    return f" ({who})" if who else ""


def _hidden(known: Writers, what: str) -> str:
    if known.prepared:
        return (
            f"{what}: transactions were prepared and are not finished ({known.prepared}): waiting for their end; "
            "COMMIT PREPARED or ROLLBACK PREPARED ends one"
        )
    return (
        f"{what}: {known.hidden} transactions may have written rows and are not finished; this user cannot see since "
        "when they are open (PostgreSQL: GRANT pg_read_all_stats TO it), so the scan waits for their end"
    )


class Moment(NamedTuple):
    """A moment that is to be written in the format of the cursor column."""

    at: float
    clock: Clock
    where: Where | None
    what: str


def _style_of(value: Any) -> Callable[[Moment], Any] | None:
    """Return how a moment is written in the cursor column; None if the cursor is not a time."""
    if isinstance(value, datetime):
        return _naive if value.tzinfo is None else _aware
    if isinstance(value, date):
        return _day
    found = _TEXT.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    style, written = _naive if found[3] is None else _aware, f"%Y-%m-%d{found[1]}%H:%M:%S"
    return lambda moment: style(moment).strftime(written)


def _aware(moment: Moment) -> datetime:
    return datetime.fromtimestamp(moment.at, UTC)


def _naive(moment: Moment) -> datetime:
    """Return a time without a zone, which is UTC or the database's own: if these differ, only the user knows."""
    offset = moment.clock.offset
    ahead = offset if offset else moment.clock.other_offset
    if moment.where is None and ahead:
        raise UsageError(
            f"{moment.what}: its cursor has no time zone, and the database is {ahead / 3600:+g} h from UTC"
            f"{'' if offset else ' in the other half of the year'}: pass "
            'clock="utc" or clock="local", as the programs that write it do'
        )
    utc = datetime.fromtimestamp(moment.at, UTC).replace(tzinfo=None)
    return utc + timedelta(seconds=offset) if moment.where == "local" else utc


def _day(moment: Moment) -> date:
    """Return the last day that is final: a day is final when it is over."""
    return _naive(moment).date()
