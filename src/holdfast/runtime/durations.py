"""Times as people write them: `"15m"`, `"30s"`, `"2h"`, 90, a timedelta, or a moment."""

import re
import time
from datetime import UTC, datetime, timedelta

from holdfast.core.errors import UsageError

Duration = str | float | int | timedelta
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")


def seconds(value: Duration, what: str = "duration") -> float:
    """The seconds in `"1h30m"`, `"250ms"`, 90 or a timedelta."""
    if isinstance(value, timedelta):
        found = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        found = float(value)
    elif isinstance(value, str) and _PART.sub("", value).strip() == "" and value.strip():
        found = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value))
    else:
        raise UsageError(f"{what}={value!r}: write a time such as '30s', '15m' or '1h30m', or a number of seconds")
    if not 0 <= found < 1e10:
        raise UsageError(f"{what}={value!r}: a time is 0 or more and finite")
    return found


def moment(value: Duration | datetime, what: str = "deadline") -> float:
    """When a deadline ends, on the monotonic clock: after a duration, or at a moment with a time zone."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise UsageError(f"{what}={value.isoformat()} has no time zone: add one, as in 2026-12-01T06:00+00:00")
        left = (value - datetime.now(UTC)).total_seconds()
    else:
        left = seconds(value, what)
    return time.monotonic() + max(0.0, left)


def in_words(value: float) -> str:
    """A duration for people: `1 h 05 min`, `3.2 s`."""
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def brief(value: float) -> str:
    """The same, with milliseconds below a second: `35 ms`."""
    return in_words(value) if value >= 1 else f"{value * 1000:.0f} ms"


def when(at: float) -> str:
    """A moment for people, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
