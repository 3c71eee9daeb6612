"""How far a scan that follows is behind: for how long a row has waited that is there and was not delivered. A row that
is not final yet is nobody's delay."""

from datetime import date, datetime
from typing import Any

from holdfast.core.cursor import Cursor
from holdfast.core.errors import Transient
from holdfast.runtime.sources.base import Final, Readable, Waited, Waits

SECOND = 1.0
"""Up to where rows are final is told in whole seconds."""


def lag(source: Readable, final: Final, reached: Cursor | None) -> float | None:
    """Seconds for which the first row after the checkpoint has waited; 0 where there is none, or it has not waited for
    longer than every row has to; None where the cursor is not a time, or nobody can tell."""
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
    """Seconds for which a row has waited that could have been delivered."""
    first, now = _moment(waits.first.value), _moment(waits.now)
    if first is None or now is None or not _alike(first, now):
        return None
    seconds = (now - first).total_seconds()
    return seconds if seconds > settle + SECOND else 0.0


def unsettled(final: Final) -> bool:
    """Whether the newest row there is is not final yet."""
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
