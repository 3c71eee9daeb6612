"""How far a scan that follows is behind: rows that are not final yet are nobody's delay."""

from datetime import date, datetime, timedelta
from typing import Any

from holdfast.core.cursor import Cursor
from holdfast.runtime.sources.base import Final

SECOND = 1.0
"""Up to where rows are final is told in whole seconds."""


def lag(final: Final, reached: Cursor | None, *, caught_up: bool) -> float | None:
    """Seconds between the last row behind the checkpoint and the newest one there is; None where the cursor is no time.
    Where all rows that are final are behind the checkpoint, it stands where they end, and what is no older than every
    row has to be is not waited for."""
    newest = None if final.newest is None else _moment(final.newest.value)
    at = None if reached is None else _moment(reached.value)
    bound = _moment(final.until.value) if final.until is not None and caught_up else None
    if newest is None or at is None or not _alike(newest, at):
        return None
    if bound is not None and _alike(newest, bound):
        at = max(at, bound)
        if newest - at <= timedelta(seconds=final.settle + SECOND):
            return 0.0
    return max(0.0, (newest - at).total_seconds())


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
