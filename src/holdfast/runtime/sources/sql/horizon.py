"""What a database tells about time, and about transactions that write and are not finished.

PostgreSQL tells everybody which transactions hold an id, which they get with their first write, or a lock that those
who write take before; and those who may know since when they are open; a replica knows nothing of that. MySQL and
MariaDB tell which have changed rows or hold locks, to those with the privilege PROCESS. Where nothing is told, the
settle window alone must be long enough.

MySQL answers from a picture that it does not renew while anybody keeps asking more often than every 0.1 s, however
long that goes on. So our question is a transaction itself, with a word in it: a picture without that word is old.
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
"""For so long nobody may have asked MySQL before it renews its picture of transactions."""
PICTURES = 5
"""How often it is asked for a new one."""


class Clock(NamedTuple):
    """The time of the database."""

    now: float
    """Seconds since 1970 UTC. On a replica: up to where it has what the primary committed."""
    offset: float
    """Seconds by which its local time is ahead of UTC."""
    other_offset: float = 0.0
    """The same half a year ago: in summer where it is winter."""


class Writers(NamedTuple):
    """Transactions that write, or are about to, and are not finished."""

    oldest: float | None = None
    """When the first of them was begun; None if there is none."""
    hidden: int = 0
    """How many there are of which nobody tells when they were begun."""
    prepared: str = ""
    """The names of those among them that were prepared, and wait for somebody to commit them."""


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
"""A replica has all up to the last commit that it replayed; and where it has replayed all that its primary had when
that sent its last word, up to then: else the last rows before a quiet night would wait for the morning."""
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
"""Who holds an id of a transaction, or the lock of those who write a table, or waits for that. The lock comes first:
whoever waits for a row, or reads for long before his first one is written, has taken his value, and has no id yet."""
_WRITERS = f"""
        SELECT extract(epoch FROM min(xact_start))::float8, count(DISTINCT id) FILTER (WHERE xact_start IS NULL),
               coalesce(string_agg(DISTINCT gid, ', '), '')
        FROM ({_HELD}) AS held"""  # noqa: S608 - nothing in it is anybody's
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
"""Who has changed rows, or holds a lock or waits for one: an UPDATE that waits for a row has taken its value."""
_BEGUN = """
        SELECT LEAST(u, IF(CONVERT_TZ(FROM_UNIXTIME(u - 3600), '+00:00', 'SYSTEM') = t, u - 3600, u)) FROM
               (SELECT t, UNIX_TIMESTAMP(CONVERT_TZ(t, 'SYSTEM', '+00:00')) AS u FROM (SELECT %s AS t) AS s) AS r"""
"""The picture has the server's local time, whatever the session says; where that comes twice, the first is taken."""


def server_clock(connection: "Connection") -> Clock:
    """Return what time it is there."""
    dialect = _dialect(connection)
    if dialect not in _NOW:
        return Clock(time.time(), *(float(time.localtime(time.time() - ago).tm_gmtoff) for ago in (0, _HALF_A_YEAR)))
    there, ago = (_OFFSET[dialect].format(at=at) for at in ("t.now", f"(t.now - {_HALF_A_YEAR})"))
    asked = f"SELECT t.now, {there}, {ago} FROM ({_NOW[dialect]} AS now) AS t"  # noqa: S608 - nothing in it is anybody's
    now, *ahead = connection.exec_driver_sql(asked).one()
    return Clock(float(now), *(float(round(float(each))) for each in ahead))


def clock_offset(connection: "Connection", at: int) -> float:
    """Return how far its local time was ahead of UTC at a moment."""
    asked = _OFFSET.get(_dialect(connection))
    if asked is None:
        return float(time.localtime(at).tm_gmtoff)
    return float(round(float(connection.exec_driver_sql(f"SELECT {asked.format(at=at)}").scalar() or 0.0)))


def writers(connection: "Connection") -> Writers | None:
    """Return the transactions that have written; None where the database tells nothing about them."""
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
    """Name the session that has written and has been open for the longest time; empty where nobody tells."""
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
    """Said once in a process: it concerns every look."""
    log.warning(
        "this user is not told which transactions of the %s are not finished (PROCESS on MySQL and MariaDB): rows are "
        "taken for final after the settle window, which must be longer than the longest transaction",
        dialect,
    )


def _pictured(connection: "Connection") -> Writers:
    """Return what MySQL's picture shows, once it is one of now."""
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
    """Return the ids of transactions that write, by which they are known until they end; None where nobody tells.

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


Wait = Callable[[float], bool]
"""Waits for so many seconds; False where there is no time for that, or the run stops."""
Where = Literal["utc", "local"]

BEFORE = "before"
"""The kind of a cursor that stands before every row with its value, or a larger one."""
LOOK_SECONDS = 0.05
PATIENCE = 30.0
"""How long one look waits for transactions of which nobody tells when they were begun."""
_TEXT = re.compile(r"\d{4}-\d\d-\d\d([ T])\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]00:?00)?")


@dataclass(frozen=True, slots=True)
class Settling:
    """What a user said about rows that are not final."""

    seconds: float
    where: Where | None = None
    """The time zone of a cursor that does not tell."""

    def look(self, connection: "Connection", newest: Cursor, wait: Wait, what: str) -> Horizon:
        """Return how far the rows are final; `newest` is the last row there is."""
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
            held = f"a transaction that is open for {clock.now - oldest:,.0f} s has written rows{_by(connection)}"
        at = math.floor(oldest - self.seconds)
        offset = min(clock.offset, clock_offset(connection, at)) if self.where == "local" else clock.offset
        bound = style(Moment(at, clock._replace(offset=offset), self.where, what))
        return Horizon(until=Cursor(BEFORE, bound), why=held, settle=self.seconds)

    def now_like(self, connection: "Connection", row: Cursor, what: str) -> Any:
        """Return the time there as the cursor column writes it; None where that is not a time."""
        style = _style_of(row.value)
        if style is None:
            return None
        clock = server_clock(connection)
        return style(Moment(math.floor(clock.now), clock, self.where, what))

    def set_back(self, connection: "Connection", after: Cursor, what: str) -> str:
        """Return what to say where the cursor stands after the time it is there: rows that are written now stand behind
        it."""
        style = _style_of(after.value)
        if style is None:
            return ""
        clock = server_clock(connection)
        now = style(Moment(math.floor(clock.now) + 1, clock, self.where, what))
        if not after.value > now:
            return ""
        return (
            f"{what}: its cursor stands at {after.value}, and in the database it is {now}: its clock was set back, or "
            "it is a replica that is behind. Rows that are written now are passed over: when it is right again, set "
            "the cursor back with holdfast cursor reset --to-cursor"
        )

    def _observe(self, connection: "Connection", newest: Cursor, wait: Wait, what: str) -> Horizon:
        """Return a cursor that is no time: what is there now is final after a while."""
        if self.seconds and not wait(self.seconds):
            return Horizon(until=None, nothing=True, why=f"it takes {self.seconds:g} s until rows are final")
        if not self._outwaited(connection, wait):
            why = f"a transaction that has written rows is not finished{_by(connection)}"
            return Horizon(until=None, nothing=True, why=why)
        return Horizon(until=newest)

    def _outwaited(self, connection: "Connection", wait: Wait) -> bool:
        """Wait for the transactions that have written up to now; whether all of them are finished."""
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
    """Return who holds rows back, where the database tells it."""
    who = who_writes(connection)
    return f" ({who})" if who else ""


def _hidden(known: Writers, what: str) -> str:
    if known.prepared:
        return (
            f"{what}: transactions were prepared and are not finished ({known.prepared}): their end is waited for; "
            "COMMIT PREPARED or ROLLBACK PREPARED ends one"
        )
    return (
        f"{what}: {known.hidden} transactions may have written rows and are not finished; since when they are open is "
        "not told to this user (PostgreSQL: GRANT pg_read_all_stats TO it), so their end is waited for"
    )


class Moment(NamedTuple):
    """A moment that shall be written as the cursor column writes it."""

    at: float
    clock: Clock
    where: Where | None
    what: str


def _style_of(value: Any) -> Callable[[Moment], Any] | None:
    """Return how a moment is written in the cursor column; None where the cursor is no time."""
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
    """Read a time without a zone, which is UTC or the database's own: where these differ, only the user knows."""
    offset = moment.clock.offset
    ahead = offset if offset else moment.clock.other_offset
    if moment.where is None and ahead:
        raise UsageError(
            f"{moment.what}: its cursor has no time zone, and the database is {ahead / 3600:+g} h from UTC"
            f"{'' if offset else ' in the other half of the year'}: pass "
            'clock="utc" or clock="local", whichever those who write it use'
        )
    utc = datetime.fromtimestamp(moment.at, UTC).replace(tzinfo=None)
    return utc + timedelta(seconds=offset) if moment.where == "local" else utc


def _day(moment: Moment) -> date:
    """Return the last day that is final: one is when it is over."""
    return _naive(moment).date()
