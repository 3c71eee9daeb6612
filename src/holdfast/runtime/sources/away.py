"""A source that is away for a while: it is asked again until somebody's patience ends, and no row is to blame.

Connections that are refused, servers that answer 5xx, a database that restarts: all that is transient by its kind. What
a server asks us to wait is a Defer, and is not meant here.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Protocol

from holdfast.core.cursor import Cursor
from holdfast.core.errors import Defer, Transient
from holdfast.core.limits import SOURCE_FIRST_WAIT, SOURCE_LONGEST_WAIT
from holdfast.core.retry import classify
from holdfast.runtime.durations import in_words
from holdfast.runtime.sources.base import Page

log = logging.getLogger("holdfast.source")

UNAVAILABLE = "source_unavailable"
ANSWERED = frozenset({"not_json"})
"""Transient, but the source is there: it is asked again so often as its policy says."""
LOOK_SECONDS = 0.1
"""How often whoever waits looks whether the run stops."""


class SourceAway(Transient):
    """The source did not come back while it was waited for. Nothing was buried: the next run resumes."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=UNAVAILABLE)


class Reads(Protocol):
    """What can be read after a cursor."""

    def read(self, after: Cursor | None, until: Cursor | None) -> Iterator[Any]: ...


class Notice:
    """What the log has of a source that is away: one line when that begins, one when it is over, however many ranges
    of a run wait for it."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._since = 0.0
        self._lock = threading.Lock()

    def begin(self, patience: float, error: BaseException) -> None:
        """Somebody finds it away."""
        with self._lock:
            if not self._since:
                self._since = time.monotonic()
                log.warning("%s: it is away, waiting for up to %s: %s", self._what, in_words(patience), error)

    def end(self) -> None:
        """It answered somebody who waited."""
        with self._lock:
            if self._since:
                log.warning("%s: it is back after %s", self._what, in_words(time.monotonic() - self._since))
                self._since = 0.0


class Outage:
    """How long one source is away at a time, and how long it is waited for."""

    def __init__(self, patience: float, stopping: Callable[[], bool], notice: Notice) -> None:
        self._patience, self._stopping, self._notice = patience, stopping, notice
        self._since = 0.0
        self._wait = 0.0

    def over(self) -> None:
        """It answered."""
        if self._since:
            self._notice.end()
            self._since = 0.0

    def endures(self, error: BaseException, *, told: bool = False) -> bool:
        """Wait, where waiting may help, and say whether to ask again: not while the run stops, and not where the
        trouble is another. With `told`, what the server asks for is waited for here. Raises SourceAway at the end of
        the patience."""
        if isinstance(error, Defer):
            return told and error.seconds <= self._patience and self._sleep(error.seconds)
        if not is_away(error):
            return False
        now = time.monotonic()
        if not self._since:
            self._since, self._wait = now, SOURCE_FIRST_WAIT
            if self._patience:
                self._notice.begin(self._patience, error)
        left = self._since + self._patience - now
        if left <= 0:
            raise SourceAway(
                f"the source is away: {error}; it was waited for {in_words(self._patience)} (patience=…). "
                "What was handled is kept and nothing was buried: run again to resume"
            ) from error
        wait, self._wait = min(self._wait, left), min(2 * self._wait, SOURCE_LONGEST_WAIT)
        return self._sleep(wait)

    def refuse_long(self, error: Exception) -> None:
        """Raise SourceAway where the server asks to wait longer than the patience lasts."""
        if isinstance(error, Defer) and error.seconds > self._patience:
            raise SourceAway(
                f"the source is away: the server asks to wait {in_words(error.seconds)}, longer than "
                f"the {in_words(self._patience)} of its patience (patience=…): {error}. What was handled is kept and "
                "nothing was buried: run again to resume"
            ) from error

    def _sleep(self, seconds: float) -> bool:
        """Whether it was waited for so long."""
        until = time.monotonic() + seconds
        while not self._stopping():
            left = until - time.monotonic()
            if left <= 0:
                return True
            time.sleep(min(left, LOOK_SECONDS))
        return False


def is_away(error: BaseException) -> bool:
    """Whether the source cannot be had for now."""
    transient, code = classify(error)
    return transient and code not in ANSWERED


def asked(function: Callable[[], Any], outage: Outage, *, told: bool = True) -> Any:
    """What a function of the source answers, once it does."""
    while True:
        try:
            found = function()
        except Exception as error:
            if not outage.endures(error, told=told):
                if told:
                    outage.refuse_long(error)
                raise
        else:
            outage.over()
            return found


def rows_of(source: Reads, outage: Outage) -> Iterator[Any]:
    """Every row of a source; after an outage it is read on after the last page that came."""
    after: Cursor | None = None
    page: Page | None = None
    while True:
        try:
            with closing(source.read(after, None)) as pages:  # type: ignore[type-var]  # a generator
                for page in pages:
                    outage.over()
                    yield from page.rows
            return
        except Exception as error:
            if not outage.endures(error, told=True):
                outage.refuse_long(error)
                raise
            after = after if page is None or not len(page.rows) else page.after(len(page.rows))
