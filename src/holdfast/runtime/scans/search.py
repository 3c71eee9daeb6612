"""Looking for the row that kills its process: groups get smaller, each with a checkpoint, until it stands alone."""

from holdfast.core.limits import BLAME, DEADLY_ROWS
from holdfast.runtime.scans.interval import SLICE, Every

SHRINK = 8
"""A group in which a process died is cut into so many."""


class Search:
    """What is known after every death of a process that handles a range. It is asked for what to try next."""

    def __init__(self, every: Every) -> None:
        self._whole = every.rows if every.rows is not None else SLICE
        self.size = 0
        """Rows to handle at once; 0: as the interval says."""
        self.window = 0
        """For how many rows."""
        self.condemned = ""
        """Why the next row is buried without being tried."""
        self.trouble = ""
        """Why no row is to blame: the search is over."""
        self.deaths = 0
        self._from = -1
        self._strikes = 0
        self._last = -1
        """Behind which row the one stood that was condemned last."""
        self._in_a_row = 0

    def died(self, rows: int) -> None:
        """A process died with so many rows behind its last checkpoint."""
        self.deaths += 1
        if self.condemned and rows == self._last:
            self.trouble = f"its worker process died {self.deaths:,} times before it came to a row"
            return
        self.condemned = ""
        if self.size == 1 and rows < self._from + self.window:
            self._strikes = self._strikes + 1 if rows == self._from else 1
            self.window = 1
        else:
            held = self.size if self.size and rows < self._from + self.window else self._whole
            self.size, self.window, self._strikes = max(1, held // SHRINK), held, 0
        self._from = rows
        if self._strikes >= BLAME:
            self._condemn(rows)

    def _condemn(self, rows: int) -> None:
        self._in_a_row = self._in_a_row + 1 if rows == self._last + 1 else 1
        self._last = rows
        self._strikes = 0
        if self._in_a_row > DEADLY_ROWS:
            self.trouble = f"its worker process died at {self._in_a_row:,} rows in a row: no row is to blame"
        else:
            self.condemned = f"its worker process died {BLAME} times while it was handled alone"
