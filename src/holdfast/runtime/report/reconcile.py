"""The reconciliation of a batch: what is expected, recorded and observed; and its end, if it has come."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

from holdfast.core import canonical, course, journal
from holdfast.core.course import End, to_note
from holdfast.core.errors import StoreError
from holdfast.core.limits import FINDINGS
from holdfast.core.model import Batch, BatchId, BatchMode, Chunk, ChunkId, ItemNo, Kind, State
from holdfast.core.verify import RECONCILED, Expected, Finding, How, Observed, Reconciliation, Recorded, What, conclude
from holdfast.runtime import lookup
from holdfast.runtime.journal import backward
from holdfast.runtime.report import status
from holdfast.runtime.report.lifecycle import conclude_end, is_empty
from holdfast.runtime.sinks.base import Sink
from holdfast.runtime.sinks.files import Files
from holdfast.runtime.verify import ownership
from holdfast.runtime.verify.inspector import sinks_of
from holdfast.runtime.verify.observe import Extras, Observer
from holdfast.stores.base import ENTRIES_AT_A_TIME, Store, chunk_of, find_batch, is_settled

TRIES = 3
"""The most times that a batch is checked if it changes during the check."""
Findings = Callable[[], Iterator[Finding]]


class ComparedKeys(Protocol):
    """The keys of a source, compared with those of a batch."""

    keys: int
    """The number of keys in the source, known after the comparison."""

    def findings(self) -> Iterator[Finding]:
        """Yield the keys that only one of the two has."""


SETTLED = (State.DONE, State.SKIPPED, State.DEAD, State.CANCELLED)


def reconcile(
    store: Store,
    batch: Batch,
    *,
    sinks: Mapping[int, Sink] | None = None,
    how: How = "quick",
    source: ComparedKeys | None = None,
    allow_empty: bool = False,
    chunks: list[Chunk] | None = None,
) -> Reconciliation:
    """Compare what is expected, recorded and observed. No output is edited or deleted; one that was recorded but never
    published gets its final name.

    `how`: `sums` adds up the counts of the chunks; `files` also checks every recorded file, as the end of a run does;
    `quick` also checks outputs in the store, and searches for files that nothing recorded; `full` reads everything.
    `allow_empty`: an empty source is fine, even if that was not recorded before. `chunks`: the chunks, if they were
    just read together with the batch.
    """
    there = sinks if sinks is not None else sinks_of(batch)
    if there:
        ownership.introduce(store, batch, there)
    return _Reconciler(store, there, how, source, allow_empty).reconcile(batch, chunks)


def repairable(store: Store, batch: Batch, sinks: Mapping[int, Sink] | None, how: How) -> Findings:
    """Return a function that checks the recorded outputs again and yields their flaws, item by item."""

    def look() -> Iterator[Finding]:
        there = sinks if sinks is not None else sinks_of(batch)
        ownership.introduce(store, batch, there)
        return Observer(store, batch, store.chunks(batch.id), there, how).findings()

    return look


class _Reconciler:
    def __init__(
        self, store: Store, sinks: Mapping[int, Sink], how: How, source: ComparedKeys | None, allow_empty: bool
    ) -> None:
        self._store, self._sinks, self._how, self._source = store, sinks, how, source
        self._allow_empty = allow_empty
        self._found: Counter[What] = Counter()
        self._listed: list[Finding] = []
        self._leftovers = 0

    def reconcile(self, batch: Batch, chunks: list[Chunk] | None) -> Reconciliation:
        """Check the batch; check again if there are findings and the batch changed meanwhile."""
        if chunks is None:
            batch, chunks = self._read(batch.name)
        self._take(self._source.findings() if self._source is not None else ())
        before = (self._found.copy(), list(self._listed))
        for turn in range(TRIES):
            self._found, self._listed = before[0].copy(), list(before[1])
            if turn:
                batch, chunks = self._read(batch.name)
            seen = self._observe(batch, chunks)
            is_still = self._how == "sums" or course.cover(self._store.chunks(batch.id)) == course.cover(chunks)
            if is_still or not self._found or turn == TRIES - 1:
                break
        if is_still and seen is not None and self._how in ("quick", "full"):
            self._take(_miscounted(chunks, seen.states))
        return self._conclude(batch, chunks, seen)

    def _read(self, name: str) -> tuple[Batch, list[Chunk]]:
        batch = lookup.batch_named(self._store, name)
        return batch, self._store.chunks(batch.id)

    def _observe(self, batch: Batch, chunks: Sequence[Chunk]) -> Observer | None:
        """Check outputs; none if sums are enough."""
        if self._how == "sums":
            return None
        seen = Observer(self._store, batch, chunks, self._sinks, self._how)
        try:
            self._take(seen.findings())
            if self._how in ("quick", "full"):
                files = {stage: sink for stage, sink in self._sinks.items() if isinstance(sink, Files)}
                extras = Extras(self._store, batch, files, seen)
                self._take(extras.findings())
                self._leftovers = extras.leftovers
        except OSError as error:
            raise StoreError(
                f"outputs of batch {batch.name!r} could not be checked: {error}; fix the disk, then try again; nothing "
                "was changed"
            ) from error
        return seen

    def _take(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self._found[finding.what] += 1
            if len(self._listed) < FINDINGS:
                self._listed.append(finding)

    def _conclude(self, batch: Batch, chunks: Sequence[Chunk], seen: Observer | None) -> Reconciliation:
        now = self._store.now()
        counts, _, kind, end = status.standing_of(self._store, batch, chunks, now=now)
        states = {name: getattr(counts, name) for name in Recorded.__struct_fields__}
        keys = self._source.keys if self._source is not None else None
        stopped = end is End.STOPPED
        read = batch.ingested_at is not None or batch.course is BatchMode.CANCELLED or stopped
        return conclude(
            batch,
            chunks,
            stopped=stopped,
            expected=Expected(
                admitted=batch.admitted,
                read=read,
                keys=keys,
                total=batch.expected,
                closed=batch.closed_at is not None,
                scanned=kind is Kind.PARTITIONS,
            ),  # fmt: skip
            recorded=Recorded(**states),
            observed=self._observed(seen),
            found=dict(self._found),
            findings=self._listed,
            nothing=""
            if counts.pending or self._allow_empty or not is_empty(self._store, batch, chunks)
            else ("row" if batch.admitted else "item"),
        )

    def _observed(self, seen: Observer | None) -> Observed:
        if seen is None:
            return Observed(how=self._how)
        return Observed(how=self._how, outputs=seen.outputs, files=seen.files, published=seen.published,
                        leftovers=self._leftovers, superseded=seen.superseded, partly=seen.partly)  # fmt: skip


def _miscounted(chunks: Sequence[Chunk], states: Mapping[State, int]) -> Iterator[Finding]:
    """Yield states for which the counts of the chunks differ from their items, counted one by one."""
    for state in SETTLED:
        told = sum(getattr(chunk.counts, state.value) for chunk in chunks)
        if told != states[state]:
            why = f"the chunks count {told:,} items as {state}, but {states[state]:,} items are"
            yield Finding(what=What.MISCOUNTED, why=why)


NO_SINKS: Mapping[int, Sink] = {}
SURPLUS = "surplus"
AMENDS = frozenset({"opened", "ingested", "steered", "sealed", "reopened"})
"""Entries that make an earlier recorded end obsolete."""


log = logging.getLogger("holdfast.ending")


class _Compared(NamedTuple):
    """An end that matched all chains when they were last compared."""

    batch: BatchId
    end: str
    heads: Mapping[ChunkId, bytes]


_compared: WeakKeyDictionary[Store, _Compared] = WeakKeyDictionary()
"""The last such end of each store in this process, so that a repeated message compares only one chain."""


@dataclass(frozen=True, slots=True)
class LastMessage:
    """The message that may have settled the last item of a batch. With it, repeated messages, and those beyond the
    expected number, do not each compare the whole batch."""

    n: ItemNo
    again: bool
    """The message came again and nothing was written for it: an end recorded since its item was settled includes it."""


def look_for_end(
    store: Store, batch: Batch, *, actor: str, sinks: Mapping[int, Sink] = NO_SINKS, message: LastMessage | None = None
) -> Reconciliation | None:
    """Reconcile a batch and publish its end, if it has come; return None while it may continue. Files are checked if
    their sinks are given. With `message`, most checks are skipped."""

    def compare() -> Reconciliation | None:
        now = find_batch(store, batch.name)
        if now is None or now.sealed_at is not None or not _may_have_ended(now, store.now()):
            return None
        if message is not None and _has_surplus(now):
            _warn_of_surplus(store, now, message, actor)
            return None
        if (
            _is_known(store, now, message)
            or not is_settled(store, now.id)
            or _is_known(store, now, message, whole=True)
        ):
            return None
        return reconcile(store, now, sinks=sinks, how=_depth(store, now, sinks, message))

    return conclude_end(store, batch, compare, actor=actor)


def _may_have_ended(batch: Batch, now: float) -> bool:
    return batch.ingested_at is not None or batch.course is BatchMode.CANCELLED or course.has_ended(batch, now)


def _has_surplus(batch: Batch) -> bool:
    """Return whether more items came than expected, and more may come."""
    return batch.expected is not None and batch.admitted > batch.expected and batch.closed_at is None


def _warn_of_surplus(store: Store, batch: Batch, message: LastMessage, actor: str) -> None:
    """Warn that no end is published: in the log each time the first unexpected item comes, in the journal and the
    events once."""
    if message.n != batch.expected:
        return
    text = (
        f"more items arrived than the {batch.expected:,} expected: the batch does not end until the number is corrected"
    )
    log.warning("batch %s: %s", batch.name, text)
    body = journal.Acted(reason=text, note=canonical.encode({"expected": batch.expected}))
    warning = course.warning("more_than_expected", f"{batch.name}: {text}")
    store.amend(batch.id, to_note(SURPLUS, body, once=True, events=[warning]), actor=actor)


def _is_known(store: Store, batch: Batch, message: LastMessage | None, *, whole: bool = False) -> bool:
    """Return whether the end of the batch is its latest entry and includes the item. This is decided by the heads of
    chains, never by clocks, which may be set back or differ between hosts. Without `whole`, the heads compared before
    are used."""
    if message is None or not message.again:
        return False
    end = _last_end(store, batch)
    if end is not None and whole:
        chunks = store.chunks(batch.id)
        if course.cover(chunks).hex() == end:
            _compared[store] = _Compared(batch.id, end, {chunk.id: chunk.head for chunk in chunks})
    known = _compared.get(store)
    if end is None or known is None or (known.batch, known.end) != (batch.id, end):
        return False
    chunk = chunk_of(store, batch.id, message.n)
    return known.heads.get(chunk.id) == chunk.head


def _last_end(store: Store, batch: Batch) -> str | None:
    """Return the heads of all chains at the last recorded end; None if the batch was amended since."""
    for entry in backward(store, batch, *AMENDS, RECONCILED):
        return None if entry.kind in AMENDS else str(entry.note["heads"])
    return None


def _depth(store: Store, batch: Batch, sinks: Mapping[int, Sink], message: LastMessage | None) -> How:
    """Return how closely to check: no files if an end was recorded and only messages came since, because each message
    checked its own."""
    if not sinks:
        return "sums"
    newest = backward(store, batch, *AMENDS - {"ingested"}, RECONCILED, most=ENTRIES_AT_A_TIME)
    told = next((entry.kind for entry in newest), None)
    return "sums" if message is not None and told == RECONCILED else "files"
