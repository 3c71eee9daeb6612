"""The end of a batch that no run is there to see: fed by messages, or settled by a person.

Whoever lands something that may have left nothing pending looks here, after it landed. The look is cheap while there
is something left. The end itself is noted once, whoever comes to it and however often, and only while the batch is as
it was counted: a process that was killed between its last commit and this look leaves it to the next one.
"""

from collections.abc import Mapping

from holdfast.core import course, journal
from holdfast.core.model import Batch, Course, ItemNo, chain_of_batch
from holdfast.core.reconcile import Reconciliation
from holdfast.runtime.ending import sealing
from holdfast.runtime.reconciling.reconciler import reconcile
from holdfast.runtime.sinks.base import Sink
from holdfast.stores.base import ENTRIES_AT_A_TIME, Store

NO_SINKS: Mapping[int, Sink] = {}
AMENDS = frozenset({"opened", "ingested", "steered", "sealed", "reopened"})
"""Entries after which an end that was noted before says nothing any more."""


def look(
    store: Store, batch: Batch, *, actor: str, sinks: Mapping[int, Sink] = NO_SINKS, again: ItemNo | None = None
) -> Reconciliation | None:
    """Reconcile a batch and publish its end, if it has come; None while it may go on. Files are looked at where their
    sinks are given.

    `again`: nothing was written now, this item only came again. An end that was noted after it was settled knows of it,
    so that messages which come again and again do not each compare the whole batch.
    """

    def compare() -> Reconciliation | None:
        now = store.batch(batch.name)
        if now is None or now.sealed_at is not None or not _may_have_ended(now, store.now()):
            return None
        if not store.is_settled(now.id) or (again is not None and _was_noted(store, now, again)):
            return None
        return reconcile(store, now, sinks=sinks, how="files" if sinks else "sums")

    return sealing.conclude(store, batch, compare, actor=actor)


def _may_have_ended(batch: Batch, now: float) -> bool:
    return batch.ingested_at is not None or batch.course is Course.CANCELLED or course.has_ended(batch, now)


def _was_noted(store: Store, batch: Batch, n: ItemNo) -> bool:
    """Return whether the last word on the batch is its end, from after the last entry about the item."""
    chunk = store.chunk_of(batch.id, n)
    written = store.entries(chunk.id, after=max(0, chunk.seq - 1), limit=1)
    since = journal.decode_header(written[-1].head).at if written else chunk.touched_at
    last = store.entries(chain_of_batch(batch.id), after=max(0, batch.seq - ENTRIES_AT_A_TIME), limit=ENTRIES_AT_A_TIME)
    for header in (journal.decode_header(entry.head) for entry in reversed(last)):
        if header.kind in AMENDS:
            return False
        if header.kind == sealing.RECONCILED:
            return header.at > since
    return False
