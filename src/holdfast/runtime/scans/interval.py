"""When to checkpoint: every so many rows, every so many seconds, or as often as it costs next to nothing."""

from dataclasses import dataclass
from typing import Literal

from holdfast.core.errors import UsageError
from holdfast.runtime.text import Duration, seconds

Said = int | Duration | Literal["auto"]

SAY = "pass after how many rows to checkpoint, 1 or more; after which time, such as '5s' or '1m30s'; or 'auto'"
SLICE = 1_000
"""The most rows a handler is given at once where the interval is a time."""
FIRST_SLICE = 16
"""The first of them: nobody knows yet how long a row takes."""
CAREFUL_ROWS = 1_000
"""After so many rows that were handled one at a time, whatever killed the process is not among them."""
SHARE = 0.01
"""What `auto` lets checkpoints cost, as a share of the time."""
SHORTEST, LONGEST = 0.05, 5.0
"""Seconds of work that `auto` lets a crash lose, at least and at most."""


@dataclass(frozen=True, slots=True)
class Every:
    """What a user said about checkpoints."""

    rows: int | None = None
    seconds: float | None = None

    @property
    def said(self) -> int | str:
        """The interval as a handler is told it."""
        if self.rows is not None:
            return self.rows
        return "auto" if self.seconds is None else f"{self.seconds:g}s"

    @staticmethod
    def of(said: Said) -> "Every":
        """`every=1000` rows, `every="5s"`, or `every="auto"`."""
        if said == "auto":
            return Every()
        if isinstance(said, int) and not isinstance(said, bool):
            if said < 1:
                raise UsageError(f"every={said}: {SAY}")
            return Every(rows=said)
        try:
            found = seconds(said, "every")
        except UsageError:
            found = 0.0
        if found <= 0:
            raise UsageError(f"every={said!r}: {SAY}")
        return Every(seconds=found)


class Interval:
    """Decides for one range, from what rows and checkpoints take."""

    def __init__(self, every: Every) -> None:
        self.every = self._every = every
        self._cost = 0.0
        """Seconds that a checkpoint takes, about."""
        self._row = 0.0
        """Seconds that a row takes, about; 0 while nobody knows."""

    def rows_at_once(self, fresh: int, most: int | None) -> int:
        """How many rows to hand over, so many after the last checkpoint, before looking at the time again."""
        if self._every.rows is not None:
            left = self._every.rows - fresh
            return left if most is None else min(left, most)
        if self._row <= 0.0:
            return FIRST_SLICE
        return max(1, min(SLICE, int(self.seconds / 4 / self._row)))

    def is_due(self, rows: int, elapsed: float) -> bool:
        """Whether to checkpoint after so many rows and seconds since the last one."""
        if self._every.rows is not None:
            return rows >= self._every.rows
        return rows > 0 and elapsed >= self.seconds

    @property
    def seconds(self) -> float:
        """The time between two checkpoints."""
        if self._every.seconds is not None:
            return self._every.seconds
        return max(SHORTEST, min(LONGEST, self._cost / SHARE))

    def learn(self, rows: int, elapsed: float) -> None:
        """Some rows took so long."""
        if rows:
            self._row = _smooth(self._row, elapsed / rows)

    def paid(self, elapsed: float) -> None:
        """A checkpoint took so long."""
        self._cost = _smooth(self._cost, elapsed)


class Careful(Interval):
    """Few rows at a time, each few with a checkpoint of their own: whichever kills the process is known then."""

    def __init__(self, every: Every, size: int = 1, rows: int = CAREFUL_ROWS) -> None:
        super().__init__(every)
        self._size = size
        self._left = rows
        """How many rows are handled like this; whatever killed the process is not among those after them."""

    def rows_at_once(self, fresh: int, most: int | None) -> int:
        if self._left <= 0:
            return super().rows_at_once(fresh, most)
        wanted = self._size - fresh
        return wanted if most is None else min(wanted, most)

    def is_due(self, rows: int, elapsed: float) -> bool:
        if self._left <= 0:
            return super().is_due(rows, elapsed)
        if rows < self._size:
            return False
        self._left -= rows
        return True


def _smooth(before: float, now: float) -> float:
    return now if before == 0.0 else before + (now - before) / 4
