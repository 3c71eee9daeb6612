"""The one stage of a scan: its items are ranges of the source."""

from typing import Any

import msgspec

from holdfast.core import cursor
from holdfast.core.cursor import Cursor
from holdfast.core.errors import UsageError
from holdfast.runtime.define.policy import Breaker, Retry
from holdfast.runtime.define.stage import Stage, Where, code_of
from holdfast.runtime.scans.handler import Handler, Shape
from holdfast.runtime.scans.interval import Every
from holdfast.runtime.sources.base import Readable, Span


class RangeStage(Stage):
    """Reads ranges of a source and hands their rows to a handler."""

    def __init__(self, handler: Handler, source: Readable, every: Every, *, retry: Retry | None = None,
                 executor: Where | None = None, breaker: Breaker | bool | None = False,
                 isolate: bool = False) -> None:  # fmt: skip
        if isolate and handler.shape is Shape.GENERATOR:
            raise UsageError(
                f"{handler.what} is a generator, which takes its rows itself: isolate=True is for (rows) and for "
                "(rows, acc) only"
            )
        super().__init__(_range, name="scan", retry=retry, executor=executor, breaker=breaker)
        self.takes_ranges = True
        self.handler = handler
        self.what = handler.what
        self.parameters = self.parameters._replace(
            needed=handler.needed, optional=handler.optional, accumulator=handler.accumulator
        )
        self.awaits = handler.is_async and handler.shape is not Shape.GENERATOR
        self.source = source
        self.every = every
        self.home: Any = None
        """The scan it is the stage of, which worker processes look for."""
        self.follows = False
        """Its item never ends: it is brought on by ticks, not by a run."""
        self.isolate = isolate
        """Rows that a handler cannot take are buried one by one, and the others go on."""

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "code": code_of(self.handler.function), "source": self.source.describe()}


def _range(span: dict[str, Any]) -> Any:  # noqa: ARG001 - its annotation is the schema of an item
    """The shape of a range as an item; how it is run, `runner` says."""
    raise UsageError("a range of a scan is run by the scan")


def payload_of(span: Span) -> dict[str, Any]:
    """A range as an item."""
    plain = {"after": _plain(span.after), "until": _plain(span.until), "rows": span.rows}
    return plain if span.identity is None else {**plain, "identity": span.identity}


def span_of(payload: bytes) -> Span:
    """The range that an item is."""
    plain = msgspec.json.decode(payload)
    after, until = plain["after"], plain["until"]
    return Span(
        after=None if after is None else cursor.from_plain(after),
        until=None if until is None else cursor.from_plain(until),
        rows=plain["rows"],
        identity=plain.get("identity"),
    )


def _plain(at: Cursor | None) -> Any:
    return None if at is None else cursor.to_plain(at)
