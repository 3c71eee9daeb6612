"""How far rows are final while others write: nothing that commits later can stand before that.

The value of a cursor is taken before its row is committed, so a row may appear behind one that was delivered. A row is
final once every transaction that could have taken a smaller value is finished:

- `settle` bounds the time between taking the value and the statement that writes it (clocks that differ included);
  where a database tells nothing about its transactions, the time up to the commit.
- From that statement to the commit, however long that takes, the database is asked (see `writers`).

A cursor that is a time is compared with the database's clock. Any other, such as a number from a sequence, is observed:
the largest value there is now is final once `settle` has passed and the writers of then are finished.
"""

import logging
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from holdfast.core.cursor import Cursor
from holdfast.core.errors import UsageError
from holdfast.runtime.sources.base import Final
from holdfast.runtime.sources.sql import writers
from holdfast.runtime.sources.sql.writers import Clock, Writers

if TYPE_CHECKING:
    from sqlalchemy import Connection

log = logging.getLogger("holdfast.source")

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

    def look(self, connection: "Connection", newest: Cursor, wait: Wait, what: str) -> Final:
        """How far the rows are final; `newest` is the last row there is."""
        clock = writers.clock(connection)
        style = _style_of(newest.value)
        if style is None:
            return self._observe(connection, newest, wait, what)
        known = writers.writers(connection)
        oldest, held = clock.now, ""
        if known is not None and known.hidden:
            if not self._outwaited(connection, wait):
                return Final(until=None, nothing=True, why=_hidden(known, what))
        elif known is not None and known.oldest is not None and known.oldest < clock.now:
            oldest = known.oldest
            held = f"a transaction that is open for {clock.now - oldest:,.0f} s has written rows{_by(connection)}"
        at = math.floor(oldest - self.seconds)
        offset = min(clock.offset, writers.offset(connection, at)) if self.where == "local" else clock.offset
        bound = style(Moment(at, clock._replace(offset=offset), self.where, what))
        return Final(until=Cursor(BEFORE, bound), why=held, settle=self.seconds)

    def now_like(self, connection: "Connection", row: Cursor, what: str) -> Any:
        """The time there as the cursor column writes it; None where that is not a time."""
        style = _style_of(row.value)
        if style is None:
            return None
        clock = writers.clock(connection)
        return style(Moment(math.floor(clock.now), clock, self.where, what))

    def set_back(self, connection: "Connection", after: Cursor, what: str) -> str:
        """What to say where the cursor stands after the time it is there: rows that are written now stand behind it."""
        style = _style_of(after.value)
        if style is None:
            return ""
        clock = writers.clock(connection)
        now = style(Moment(math.floor(clock.now) + 1, clock, self.where, what))
        if not after.value > now:
            return ""
        return (
            f"{what}: its cursor stands at {after.value}, and in the database it is {now}: its clock was set back, or "
            "it is a replica that is behind. Rows that are written now are passed over: when it is right again, set "
            "the cursor back with holdfast cursor reset --to-cursor"
        )

    def _observe(self, connection: "Connection", newest: Cursor, wait: Wait, what: str) -> Final:
        """A cursor that is no time: what is there now is final after a while."""
        if self.seconds and not wait(self.seconds):
            return Final(until=None, nothing=True, why=f"it takes {self.seconds:g} s until rows are final")
        if not self._outwaited(connection, wait):
            why = f"a transaction that has written rows is not finished{_by(connection)}"
            return Final(until=None, nothing=True, why=why)
        return Final(until=newest)

    def _outwaited(self, connection: "Connection", wait: Wait) -> bool:
        """Wait for the transactions that have written up to now; whether all of them are finished."""
        left = writers.holders(connection)
        began, waited = writers.clock(connection).now, 0.0
        while True:
            if left is not None:
                left &= writers.holders(connection) or frozenset()
                done = not left
            else:
                known = writers.writers(connection)
                done = known is None or (not known.hidden and (known.oldest is None or known.oldest > began))
            if done or waited >= PATIENCE or not wait(LOOK_SECONDS):
                return done
            waited += LOOK_SECONDS


def _by(connection: "Connection") -> str:
    """Who holds rows back, where the database tells it."""
    who = writers.who(connection)
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
    """How a moment is written in the cursor column; None where the cursor is no time."""
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
    """A time without a zone is UTC or the database's own: where these differ, only the user knows."""
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
    """A day is final when it is over."""
    return _naive(moment).date()
