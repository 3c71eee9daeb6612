"""Reconciles a batch: gathers what is expected, recorded and observed, streaming, and lets the core conclude."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from holdfast.core import course
from holdfast.core.ending import End
from holdfast.core.errors import StoreError
from holdfast.core.limits import FINDINGS
from holdfast.core.model import Batch, Chunk, Course, State
from holdfast.core.reconcile import (
    Expected,
    Finding,
    How,
    Observed,
    Reconciliation,
    Recorded,
    What,
    conclude,
)
from holdfast.runtime import lookup, ownership
from holdfast.runtime.cursors.standing import is_scan
from holdfast.runtime.ending.state import is_empty
from holdfast.runtime.reconciling.extras import Extras
from holdfast.runtime.reconciling.observer import Observer
from holdfast.runtime.reconciling.source_keys import SourceKeys
from holdfast.runtime.records.outputs import sinks_of
from holdfast.runtime.reports import status
from holdfast.runtime.sinks.base import Sink
from holdfast.runtime.sinks.files import Files
from holdfast.runtime.stage import Stage
from holdfast.stores.base import Store

TRIES = 3
"""How often a batch is looked at that changes while it is looked at."""
Findings = Callable[[], Iterator[Finding]]
SETTLED = (State.DONE, State.SKIPPED, State.DEAD, State.CANCELLED)


def sinks_among(stages: Sequence[Stage]) -> dict[int, Sink]:
    """The sinks of a pipeline, by stage."""
    return {index: stage.sink for index, stage in enumerate(stages) if stage.sink is not None}


def reconcile(
    store: Store,
    batch: Batch,
    *,
    sinks: Mapping[int, Sink] | None = None,
    how: How = "quick",
    source: SourceKeys | None = None,
    allow_empty: bool = False,
) -> Reconciliation:
    """Compare what should be there, what is recorded and what is there. No output is edited or deleted; one that is
    recorded and was never published gets its final name.

    `how`: `sums` adds up what the chunks say; `files` looks at every recorded file besides, as the end of a run does;
    `quick` also at outputs in the store, and for files that nothing recorded; `full` reads everything.
    `allow_empty`: it is fine that the source gave nothing, though nobody has said so before.
    """
    there = sinks if sinks is not None else sinks_of(batch)
    ownership.introduce(store, batch, there)
    return _Reconciler(store, there, how, source, allow_empty).reconcile(batch.name)


def repairable(store: Store, batch: Batch, sinks: Mapping[int, Sink] | None, how: How) -> Findings:
    """A function that looks at the recorded outputs again and gives what is wrong with them, item by item."""

    def look() -> Iterator[Finding]:
        there = sinks if sinks is not None else sinks_of(batch)
        ownership.introduce(store, batch, there)
        return Observer(store, batch, store.chunks(batch.id), there, how).findings()

    return look


class _Reconciler:
    def __init__(
        self, store: Store, sinks: Mapping[int, Sink], how: How, source: SourceKeys | None, allow_empty: bool
    ) -> None:
        self._store, self._sinks, self._how, self._source = store, sinks, how, source
        self._allow_empty = allow_empty
        self._found: Counter[What] = Counter()
        self._listed: list[Finding] = []
        self._leftovers = 0

    def reconcile(self, name: str) -> Reconciliation:
        """Look, and look again where the batch changed meanwhile and something was found."""
        self._take(self._source.findings() if self._source is not None else ())
        before = (self._found.copy(), list(self._listed))
        for turn in range(TRIES):
            self._found, self._listed = before[0].copy(), list(before[1])
            batch = lookup.batch_named(self._store, name)
            chunks = self._store.chunks(batch.id)
            seen = self._observe(batch, chunks)
            is_still = self._how == "sums" or course.cover(self._store.chunks(batch.id)) == course.cover(chunks)
            if is_still or not self._found or turn == TRIES - 1:
                break
        if is_still and self._how in ("quick", "full"):
            self._take(_miscounted(chunks, seen.states))
        return self._conclude(batch, chunks, seen)

    def _observe(self, batch: Batch, chunks: Sequence[Chunk]) -> Observer:
        seen = Observer(self._store, batch, chunks, self._sinks, self._how)
        try:
            if self._how != "sums":
                self._take(seen.findings())
            if self._how in ("quick", "full"):
                files = {stage: sink for stage, sink in self._sinks.items() if isinstance(sink, Files)}
                extras = Extras(self._store, batch, files, seen)
                self._take(extras.findings())
                self._leftovers = extras.leftovers
        except OSError as error:
            raise StoreError(
                f"outputs of batch {batch.name!r} could not be looked at: {error}; see to the disk, then try again: "
                "nothing was changed"
            ) from error
        return seen

    def _take(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self._found[finding.what] += 1
            if len(self._listed) < FINDINGS:
                self._listed.append(finding)

    def _conclude(self, batch: Batch, chunks: Sequence[Chunk], seen: Observer) -> Reconciliation:
        now = self._store.now()
        counts = status.count_of(self._store, batch, chunks, now=now)
        states = {name: getattr(counts, name) for name in Recorded.__struct_fields__}
        keys = self._source.keys if self._source is not None else None
        stopped = status.end_of_batch(self._store, batch, counts, now) is End.STOPPED
        read = batch.ingested_at is not None or batch.course is Course.CANCELLED or stopped
        return conclude(
            batch.name,
            batch.course,
            stopped=stopped,
            expected=Expected(
                admitted=batch.admitted,
                read=read,
                keys=keys,
                total=batch.expected,
                closed=batch.closed_at is not None,
                scanned=is_scan(batch),
            ),  # fmt: skip
            recorded=Recorded(**states),
            observed=Observed(
                how=self._how,
                outputs=seen.outputs,
                files=seen.files,
                published=seen.published,
                leftovers=self._leftovers,
                superseded=seen.superseded,
                partly=seen.partly,
            ),
            heads=course.cover(chunks).hex(),
            found=dict(self._found),
            findings=self._listed,
            nothing=""
            if counts.pending or self._allow_empty or not is_empty(self._store, batch)
            else ("row" if batch.admitted else "item"),
            basis=course.basis(batch, chunks),
        )


def _miscounted(chunks: Sequence[Chunk], states: Mapping[State, int]) -> Iterator[Finding]:
    """Where the chunks say something else than their items, counted one by one."""
    for state in SETTLED:
        told = sum(getattr(chunk.counts, state.value) for chunk in chunks)
        if told != states[state]:
            why = f"the chunks say that {told:,} items are {state}, the items themselves are {states[state]:,}"
            yield Finding(what=What.MISCOUNTED, why=why)
