"""The journal as typed entries: of a batch, of a chunk, or of one item; forward, or backward from the newest.

Everything in `runtime` that reads the journal reads it here, except the audit and the evidence pack: those need the
stored bytes.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.core import canonical, journal, sections
from holdfast.core.errors import Damaged
from holdfast.core.model import Batch, Chunk, Entry, chain_of_batch
from holdfast.stores.base import Store, each_entry, lineage, newest_entries

Chained = Batch | Chunk
"""An object with its own chain."""
T = TypeVar("T", bound=journal.Body)


class JournalEntry:
    """One entry of a chain. Its body is decoded once, when it is used, with its words as far as they are there."""

    __slots__ = ("_body", "actor", "at", "header", "kind", "seq", "stored")

    def __init__(self, stored: Entry) -> None:
        self.stored, self.seq = stored, stored.seq
        self.header: journal.Header = journal.decode_header(stored.head)
        self.kind, self.at, self.actor = self.header.kind, self.header.at, self.header.actor
        self._body: journal.Body | None = None

    @property
    def body(self) -> journal.Body:
        if self._body is None:
            try:
                self._body = sections.decode(self.stored, self.header)
            except (msgspec.DecodeError, UnicodeDecodeError, TypeError, ValueError) as error:
                raise Damaged(
                    f"{self.name} cannot be read ({error}): run `holdfast audit verify`, then restore a backup"
                ) from error
        return self._body

    @property
    def name(self) -> str:
        """The name of the entry in reports."""
        return journal.name(self.stored.chain, self.stored.seq)

    def told(self, body: type[T]) -> T:
        """Return the body, which has this type in every entry of the requested kind."""
        assert isinstance(self.body, body), f"{self.name}: {type(self.body).__name__}, not {body.__name__}"
        return self.body

    @property
    def note(self) -> Any:
        """The note in the entry, as plain values."""
        return canonical.decode(self.told(journal.Acted).note)


def forward(
    store: Store, whose: Chained, *kinds: str, after: int = 0, upto: int | None = None
) -> Iterator[JournalEntry]:
    """Yield the entries of a chain, oldest first: all, or those of some kinds, after one number and up to another."""
    for stored in each_entry(store, _chain(whose), after=after, upto=upto):
        entry = JournalEntry(stored)
        if not kinds or entry.kind in kinds:
            yield entry


def backward(store: Store, whose: Chained, *kinds: str, most: int | None = None) -> Iterator[JournalEntry]:
    """Yield the entries of a chain, newest first from the last one that `whose` has. Entries are read only as needed,
    and only the `most` newest entries of any kind."""
    least = 0 if most is None else max(0, whose.seq - most)
    for stored in newest_entries(store, _chain(whose), whose.seq, least=least):
        entry = JournalEntry(stored)
        if not kinds or entry.kind in kinds:
            yield entry


def forward_over(store: Store, chunks: Sequence[Chunk], *kinds: str) -> Iterator[JournalEntry]:
    """Yield the entries of several chunks, each after the one it was cut from: the last entry about an item counts."""
    for chunk in sorted(chunks, key=lambda each: each.id):
        yield from forward(store, chunk, *kinds)


def forward_of(store: Store, chunks: Sequence[Chunk], n: int) -> Iterator[JournalEntry]:
    """Yield the entries of the chunk that holds an item, after those of the chunks it was cut from."""
    for chunk in lineage(chunks, n):
        yield from forward(store, chunk)


def backward_of(store: Store, chunks: Sequence[Chunk], n: int) -> Iterator[JournalEntry]:
    """Yield the entries of the chunk that holds an item, newest first, then those of the chunks it was cut from."""
    for chunk in reversed(lineage(chunks, n)):
        yield from backward(store, chunk)


def first_hash(store: Store, batch: Batch) -> str:
    """Return the hash of a batch's first entry, which no other batch has; empty if it has none."""
    first = store.entries(chain_of_batch(batch.id), limit=1)
    return first[0].hash.hex() if first else ""


def _chain(whose: Chained) -> int:
    return chain_of_batch(whose.id) if isinstance(whose, Batch) else whose.id
