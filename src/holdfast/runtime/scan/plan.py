"""The plan of a scan, made without changing anything; and the progress of the search for borders."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.core import canonical, changes, journal
from holdfast.core.counts import totals
from holdfast.core.course import to_note
from holdfast.core.errors import FingerprintChanged, SourceChanged
from holdfast.core.limits import MONEY_DIGITS
from holdfast.core.model import Batch
from holdfast.runtime.journal import backward
from holdfast.runtime.operate.identity import refuse_changed_batch
from holdfast.runtime.partitions import payload_of, standings
from holdfast.runtime.plan import Plan
from holdfast.runtime.report import overview as glance
from holdfast.runtime.report.forecast import RunForecast
from holdfast.runtime.scan import follow
from holdfast.runtime.sources.base import Outage, Span, asked
from holdfast.runtime.sources.text_file import LineFile
from holdfast.runtime.text import brief, many, usd
from holdfast.stores import owners
from holdfast.stores.base import Store, find_batch

if TYPE_CHECKING:
    from holdfast.runtime.scan.scan import SourceWalk

KIND = "borders_sought"
"""The kind of the entry that records it."""
TELL_SECONDS = 10.0
"""How often it is written."""


class BorderSearch:
    """The search for the borders of one batch, recorded now and then."""

    def __init__(self, store: Store, batch: str) -> None:
        self._store, self._name = store, batch
        self._told_at = time.monotonic()
        self._owner = owners.new_owner()

    def last(self) -> dict[str, Any] | None:
        """Return how far an earlier run came; None if there was none."""
        batch = find_batch(self._store, self._name)
        return None if batch is None else next((each.note for each in backward(self._store, batch, KIND)), None)

    def tell(self, so_far: dict[str, Any]) -> None:
        """Write it, if it is time."""
        batch = find_batch(self._store, self._name) if time.monotonic() - self._told_at >= TELL_SECONDS else None
        if batch is None:
            return
        self._told_at = time.monotonic()
        body = journal.Acted(reason=f"searching for borders: at byte {so_far['at']:,}", note=canonical.encode(so_far))
        self._store.amend(batch.id, to_note(KIND, body), actor=self._owner)


def plan(scan: "SourceWalk", batch: str, *, workers: int | None = None, **options: Any) -> Plan:
    """Return which partitions would run and why, how many rows are behind them, and what would prevent a run."""
    store = scan.pipeline.store_if_there()
    known = find_batch(store, batch) if store is not None else None
    items = None if known is not None and known.ingested_at is not None else Ranges(scan)
    made = scan.pipeline.plan(items, batch, key="range", workers=workers if workers is not None else scan.partitions,
                              **options)  # fmt: skip
    if store is None or known is None:
        return made
    obstacles, notes = _looked_at(scan, store, known)
    return replace(made, obstacles=(*made.obstacles, *obstacles), does_nothing=made.does_nothing and not obstacles,
                   forecast=_by_rows(made.forecast, store, known),
                   notes=(*made.notes, *notes, _behind(store, known)), so_far=_so_far(store, known))  # fmt: skip


class Ranges:
    """The partitions of a scan, as items. They have a size, so that they are admitted together: if the source changed
    while half of them were known, it would be divided in two ways."""

    def __init__(self, scan: "SourceWalk", sought: BorderSearch | None = None) -> None:
        self._scan, self._sought = scan, sought

    def __len__(self) -> int:
        return self._scan.partitions

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._made_of(self._split)

    def patiently(self, outage: Outage) -> Iterator[dict[str, Any]]:
        """Yield the same items; a source that is away is waited for."""
        return self._made_of(lambda: asked(self._split, outage))

    def _split(self) -> Sequence[Span]:
        source, parts = self._scan.source, self._scan.partitions
        if self._sought is None or not isinstance(source, LineFile):
            return source.split(parts)
        return source.split_on(parts, self._sought.last(), self._sought.tell)

    def _made_of(self, split: Callable[[], Sequence[Span]]) -> Iterator[dict[str, Any]]:
        if self._scan.follows:
            yield {"range": follow.KEY, **payload_of(Span())}
            return
        for number, span in enumerate(split()):
            yield {"range": number, **payload_of(span)}


def _looked_at(scan: "SourceWalk", store: Store, known: Batch) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what would prevent a run, and notes about the source."""
    resets, from_start = follow.how_it_begins(store, known)
    try:
        changes.check_source(known, scan.source.describe(), from_start, resets=resets)
        return (), refuse_changed_batch(scan.source, store, known)
    except (FingerprintChanged, SourceChanged) as error:
        return (str(error),), ()


def _by_rows(told: RunForecast, store: Store, known: Batch) -> RunForecast:
    """Return the forecast for the remaining rows, by the time and cost of those behind the checkpoints; unchanged if
    the number of rows is not known."""
    seen = glance.overview(list(glance.glances(store, known)))
    (stage,), so_far = told.stages, totals(store.chunks(known.id))
    if not stage.items or not seen.rows or seen.rows_left is None or not so_far.seconds:
        return told
    seconds = so_far.seconds * seen.rows_left / seen.rows
    money = round(so_far.usd * seen.rows_left / seen.rows, MONEY_DIGITS)
    return replace(told, stages=(replace(stage, seconds=seconds, usd=money),), learned_from=known.name)


def _so_far(store: Store, known: Batch) -> str:
    """Return the time and cost of the rows behind the checkpoints."""
    rows, so_far = sum(at.rows for at in standings(store, known)), totals(store.chunks(known.id))
    time = f"{brief(so_far.seconds)} of work" if so_far.seconds else ""
    cost = usd(so_far.usd) if so_far.usd else ""
    took = " and ".join(filter(None, (time, cost)))
    return f"{many(rows, 'row')} took {took}; how many are left is not known" if rows and took else ""


def _behind(store: Store, known: Batch) -> str:
    rows = left = 0
    knows = True
    for at in standings(store, known):
        rows += at.rows
        knows = knows and at.expected is not None
        left += max(0, at.expected - at.rows) if at.expected is not None else 0
    verb = "is" if rows == 1 else "are"
    return f"{many(rows, 'row')} {verb} behind the checkpoints" + (f", {left:,} left" if knows else "")
