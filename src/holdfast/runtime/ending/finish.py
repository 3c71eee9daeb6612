"""The end of a batch that no run is there to see: fed by messages, or settled by a person.

Whoever lands something that may have left nothing pending looks here, after it landed. The look is cheap while there
is something left. The end itself is noted once, whoever comes to it and however often, and only while the batch is as
it was counted: a process that was killed between its last commit and this look leaves it to the next one.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple
from weakref import WeakKeyDictionary

from holdfast.core import canonical, course, events, journal
from holdfast.core.model import Batch, BatchId, ChunkId, Course, ItemNo, chain_of_batch
from holdfast.core.reconcile import How, Reconciliation
from holdfast.runtime.ending import sealing, state
from holdfast.runtime.reconciling.reconciler import reconcile
from holdfast.runtime.sinks.base import Sink
from holdfast.stores.base import ENTRIES_AT_A_TIME, Store, newest_entries

NO_SINKS: Mapping[int, Sink] = {}
SURPLUS = "surplus"
AMENDS = frozenset({"opened", "ingested", "steered", "sealed", "reopened"})
"""Entries after which an end that was noted before says nothing any more."""


log = logging.getLogger("holdfast.ending")


class _Compared(NamedTuple):
    """An end that agreed with all chains when they were last compared."""

    batch: BatchId
    end: str
    heads: Mapping[ChunkId, bytes]


_compared: WeakKeyDictionary[Store, _Compared] = WeakKeyDictionary()
"""The last one of each store in this process: a message that comes again compares one chain only."""


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
        if _is_known(store, now, message) or not store.is_settled(now.id) or _is_known(store, now, message, whole=True):
            return None
        return reconcile(store, now, sinks=sinks, how=_depth(store, now, sinks, message))

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


def _is_known(store: Store, batch: Batch, message: Message | None, *, whole: bool = False) -> bool:
    """Return whether the last word on the batch is its end, and knows of the item. By the heads of chains, never by
    clocks: they may be set back, or differ between hosts. Without `whole`, by those that were compared before."""
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
    chunk = store.chunk_of(batch.id, message.n)
    return known.heads.get(chunk.id) == chunk.head


def _last_end(store: Store, batch: Batch) -> str | None:
    """Return the heads of all chains at the end that was noted last; None where the batch was amended since."""
    for entry in newest_entries(store, chain_of_batch(batch.id), batch.seq):
        kind = journal.decode_header(entry.head).kind
        if kind in AMENDS:
            return None
        if kind == state.RECONCILED:
            body = journal.decode_body(entry.body)
            return str(canonical.decode(body.note)["heads"]) if isinstance(body, journal.Acted) else None
    return None


def _depth(store: Store, batch: Batch, sinks: Mapping[int, Sink], message: Message | None) -> How:
    """How closely to look: at no files where an end was noted before and only new messages came since. Each has seen to
    its own."""
    if not sinks:
        return "sums"
    newest = islice(newest_entries(store, chain_of_batch(batch.id), batch.seq), ENTRIES_AT_A_TIME)
    kinds = (journal.decode_header(entry.head).kind for entry in newest)
    told = next((kind for kind in kinds if kind == state.RECONCILED or kind in AMENDS - {"ingested"}), None)
    return "sums" if message is not None and told == state.RECONCILED else "files"
