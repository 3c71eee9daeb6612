"""The report of a tick of a followed source, and the lag of the scan.

The lag is how long a row that exists and was not delivered has waited. A row that is not final yet does not count.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Any, ClassVar

from holdfast.core.cursor import Cursor
from holdfast.core.errors import Transient
from holdfast.core.plain import Plain
from holdfast.runtime.sources.base import Horizon, Readable, Waited, Waits
from holdfast.runtime.text import many, printable


class Ended(StrEnum):
    """How a tick ended."""

    NOTHING_NEW = "nothing new"
    CAUGHT_UP = "caught up"
    TIME_UP = "its time was up"
    STOPPED = "stopped"
    WAITING = "waiting"
    HELD = "held by another process"
    LOST = "its lease was lost"
    FAILED = "failed"
    DEAD = "stopped at a dead letter"
    OVER = "over"


AGAIN = frozenset({Ended.TIME_UP, Ended.STOPPED, Ended.WAITING, Ended.LOST, Ended.FAILED})
"""Ends of a tick after which something is left to do: run again."""


@dataclass(frozen=True, slots=True)
class Tick(Plain):
    """The report of one tick of `hf.Follow`, or of all ticks of a run."""

    _tells: ClassVar[str] = "ended why rows dead redriven waiting total cursor lag due again exit_code"

    ended: Ended
    """Why the tick ended."""
    why: str = ""
    """The reason in words, and what to do next."""
    rows: int = 0
    """Rows that this tick handled and committed."""
    dead: int = 0
    """Rows that this tick buried, redriven ones included."""
    redriven: int = 0
    """Rows that were dead letters and are handled now."""
    waiting: int = 0
    """Redriven rows that wait for another attempt."""
    total: int = 0
    """Rows committed in total."""
    cursor: str = ""
    """The cursor of the last committed row."""
    lag: float | None = None
    """How many seconds the oldest undelivered row has waited, rows that are not final yet excepted; None if the cursor
    is not a time, or the source does not answer."""
    due: float | None = None
    """When a waiting follower may continue, in seconds since 1970."""

    @property
    def line(self) -> str:
        """The tick in one line, for a log."""
        return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%SZ}  {self}"

    @property
    def again(self) -> bool:
        """Whether to tick again soon: rows or attempts are left."""
        return self.ended in AGAIN

    @property
    def did_something(self) -> bool:
        """Whether rows were handled or buried."""
        return bool(self.rows or self.dead or self.redriven)

    @property
    def exit_code(self) -> int:
        """1 if rows were buried, or if the follower cannot continue until a person acts; else 75 if it should run
        again; else 0. Only this tick reports the rows that it buried, so 1 comes first."""
        if self.ended in (Ended.DEAD, Ended.OVER) or self.dead:
            return 1
        return 75 if self.again else 0

    def __str__(self) -> str:
        told = [f"{self.ended}: {many(self.rows, 'row')}, {self.total:,} in all"]
        told += [f"{self.dead:,} buried"] if self.dead else []
        told += [f"{self.redriven:,} redriven"] if self.redriven else []
        told += [f"{self.waiting:,} redriven and not handled yet"] if self.waiting else []
        told += [f"{self.lag:,.1f} s behind"] if self.lag else []
        return printable(", ".join(told) + (f" ({self.why})" if self.why else ""))


SECOND = 1.0
"""The horizon of final rows has a resolution of whole seconds."""


def lag(source: Readable, final: Horizon, reached: Cursor | None) -> float | None:
    """Return the seconds for which the first row after the checkpoint has waited; 0 if there is none, or if it has not
    waited longer than every row must; None if the cursor is not a time, or the time is unknown."""
    if final.newest is None or _moment(final.newest.value) is None or not isinstance(source, Waited):
        return None
    if final.newest == reached:
        return 0.0
    try:
        waits = source.waiting(reached)
    except Transient:
        return None
    return 0.0 if waits is None else waited(waits, final.settle)


def waited(waits: Waits, settle: float) -> float | None:
    """Return the seconds for which a row that could have been delivered has waited."""
    first, now = _moment(waits.first.value), _moment(waits.now)
    if first is None or now is None or not _alike(first, now):
        return None
    seconds = (now - first).total_seconds()
    return seconds if seconds > settle + SECOND else 0.0


def unsettled(final: Horizon) -> bool:
    """Return whether the newest row is not final yet."""
    newest = None if final.newest is None else _moment(final.newest.value)
    bound = None if final.until is None else _moment(final.until.value)
    return newest is not None and bound is not None and _alike(newest, bound) and newest >= bound


def _alike(one: datetime, other: datetime) -> bool:
    return (one.tzinfo is None) == (other.tzinfo is None)


def _moment(value: Any) -> datetime | None:
    if isinstance(value, datetime):
        return value
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) else _midnight(value)
    except ValueError:
        return None


def _midnight(value: Any) -> datetime | None:
    return datetime(value.year, value.month, value.day) if isinstance(value, date) else None  # noqa: DTZ001 - a day
