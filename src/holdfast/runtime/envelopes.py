"""Envelopes of items, read from the journal on demand: most handlers never look at theirs."""

import threading
from collections import OrderedDict
from collections.abc import Iterator
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
        if revision or entry.header.format == 1:
            for later, moved in self._renewals(n):
                if moved.revision == revision:
                    return envelope.of_revision(later.header, moved)
        return envelope.of_admission(entry.header, entry.told(journal.Ingested), n)

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

    def _renewals(self, n: ItemNo) -> Iterator[tuple[JournalEntry, journal.Moved]]:
        """Yield the acts that gave an item another payload, newest first. Those of format 1 overwrote it: of them, only
        the newest tells about the payload that is stored as revision 0."""
        for entry in backward_of(self._store, self._store.chunks(self._batch.id), n):
            if isinstance(entry.body, journal.Acted):
                yield from ((entry, each) for each in entry.body.items if each.n == n and each.digest)
