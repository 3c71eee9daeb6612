"""The end of a batch that no run is there to see: fed by messages, or settled by a person.

Whoever lands something that may have left nothing pending looks here, after it landed. The look is cheap while there
is something left. The end itself is noted once, whoever comes to it and however often, and only while the batch is as
it was counted: a process that was killed between its last commit and this look leaves it to the next one.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.core import canonical, course, events, journal
from holdfast.core.model import Batch, Course, ItemNo, chain_of_batch
from holdfast.core.reconcile import Reconciliation
from holdfast.runtime.ending import sealing, state
from holdfast.runtime.reconciling.reconciler import reconcile
from holdfast.runtime.sinks.base import Sink
from holdfast.stores.base import Store, newest_entries

NO_SINKS: Mapping[int, Sink] = {}
SURPLUS = "surplus"
AMENDS = frozenset({"opened", "ingested", "steered", "sealed", "reopened"})
"""Entries after which an end that was noted before says nothing any more."""


log = logging.getLogger("holdfast.ending")


@dataclass(frozen=True, slots=True)
class Message:
    """The message that may have settled the last item of a batch, so that messages which come again and again, and
    those beyond the expected number, do not each compare the whole batch."""

    n: ItemNo
    again: bool
    """Nothing was written for it now: an end that was noted since its item was settled knows of it."""


def look(
    store: Store, batch: Batch, *, actor: str, sinks: Mapping[int, Sink] = NO_SINKS, message: Message | None = None
) -> Reconciliation | None:
    """Reconcile a batch and publish its end, if it has come; None while it may continue. Files are looked at where
    their sinks are given. After a message, most looks are spared."""

    def compare() -> Reconciliation | None:
        now = store.batch(batch.name)
        if now is None or now.sealed_at is not None or not _may_have_ended(now, store.now()):
            return None
        if message is not None and _has_surplus(now):
            _warn_of_surplus(store, now, message, actor)
            return None
        if not store.is_settled(now.id) or (
            message is not None and message.again and _was_noted(store, now, message.n)
        ):
            return None
        return reconcile(store, now, sinks=sinks, how="files" if sinks else "sums")

    return sealing.conclude(store, batch, compare, actor=actor)


def _may_have_ended(batch: Batch, now: float) -> bool:
    return batch.ingested_at is not None or batch.course is Course.CANCELLED or course.has_ended(batch, now)


def _has_surplus(batch: Batch) -> bool:
    """Return whether more items came than were expected, and more may come."""
    return batch.expected is not None and batch.admitted > batch.expected and batch.closed_at is None


def _warn_of_surplus(store: Store, batch: Batch, message: Message, actor: str) -> None:
    """Tell that no end is told: the log, each time the first one comes that was not expected; others, once."""
    if message.n != batch.expected:
        return
    text = f"more items came than the {batch.expected:,} that are expected: no end is told before the number is right"
    log.warning("batch %s: %s", batch.name, text)
    body = journal.Acted(reason=text, note=canonical.encode({"expected": batch.expected}))
    warning = events.warning("more_than_expected", f"{batch.name}: {text}")
    store.note(batch.id, SURPLUS, journal.encode_body(body), actor=actor, once=True, events=[warning])


def _was_noted(store: Store, batch: Batch, n: ItemNo) -> bool:
    """Return whether the last word on the batch is its end, from after the last entry about the item."""
    chunk = store.chunk_of(batch.id, n)
    written = store.entries(chunk.id, after=max(0, chunk.seq - 1), limit=1)
    since = journal.decode_header(written[-1].head).at if written else chunk.touched_at
    newest = newest_entries(store, chain_of_batch(batch.id), batch.seq)
    for header in (journal.decode_header(entry.head) for entry in newest):
        if header.kind in AMENDS:
            return False
        if header.kind == state.RECONCILED:
            return header.at > since
    return False
