"""Envelopes of items, read from the journal on demand: most handlers never look at theirs."""

import threading
from collections import OrderedDict
from functools import cached_property

from holdfast.core import envelope, journal
from holdfast.core.envelope import Envelope
from holdfast.core.model import Batch, ItemNo
from holdfast.runtime import lookup
from holdfast.runtime.journal import JournalEntry, backward_of, forward
from holdfast.stores.base import Store, chunk_of

HELD = 4
"""Entries that are kept: each has the commitments of thousands of items."""


class EnvelopeReader:
    """The envelopes of one batch."""

    def __init__(self, store: Store, batch: str) -> None:
        self._store, self._name = store, batch
        self._lock = threading.Lock()
        self._held: OrderedDict[int, JournalEntry] = OrderedDict()
        """Entries that admitted items, by their numbers."""

    @cached_property
    def _batch(self) -> Batch:
        return lookup.batch_named(self._store, self._name)

    def of(self, n: ItemNo, revision: int = 0) -> Envelope:
        """Return the envelope of a revision of an item."""
        with self._lock:
            entry = self._admission(n)
        first = envelope.of_admission(entry.header, entry.told(journal.Ingested), n)
        return self._revised(n, revision, first) if revision else first

    def _admission(self, n: ItemNo) -> JournalEntry:
        """Return the entry that admitted an item. Its chunk names it, unless an older version admitted the item."""
        for seq, entry in list(self._held.items()):
            body = entry.told(journal.Ingested)
            if body.lo <= n < body.hi:
                self._held.move_to_end(seq)
                return entry
        origin = chunk_of(self._store, self._batch.id, n).origin
        for entry in forward(self._store, self._batch, "ingested", after=max(0, origin - 1)):
            body = entry.told(journal.Ingested)
            if body.lo <= n < body.hi:
                self._held[entry.seq] = entry
                while len(self._held) > HELD:
                    self._held.popitem(last=False)
                return entry
        raise LookupError(f"no entry of batch {self._batch.name!r} admits item {n}")

    def _revised(self, n: ItemNo, revision: int, first: Envelope) -> Envelope:
        left = revision
        for entry in _with_revisions(self._store, self._batch, n):
            moved = next((each for each in entry.told(journal.Acted).items if each.n == n and each.digest), None)
            if moved is not None:
                left -= 1
                if not left:
                    return envelope.of_revision(entry.header, moved, first)
        return first


def _with_revisions(store: Store, batch: Batch, n: ItemNo) -> list[JournalEntry]:
    """Return the acts on an item, oldest first."""
    found = backward_of(store, store.chunks(batch.id), n)
    return [entry for entry in found if isinstance(entry.body, journal.Acted)][::-1]
