"""The write of a chunk: an entry and its data as immutable objects, then the document that puts them into effect."""

import msgspec

from holdfast.core.model import Entry
from holdfast.stores import faults
from holdfast.stores.bucket import chunks, names
from holdfast.stores.bucket.cache import ChunkCache
from holdfast.stores.bucket.cas import DocumentStore, HeldDocument, Raced
from holdfast.stores.bucket.documents import ChunkDocument, Data
from holdfast.stores.bucket.items import Chains, Items

replace = msgspec.structs.replace


class ChunkWriter:
    """Writes the chunks of a store, each with the next entry of its chain."""

    def __init__(self, documents: DocumentStore, chains: Chains, items: Items, cache: ChunkCache) -> None:
        self._documents, self._chains, self._items, self._chunks = documents, chains, items, cache

    def write(
        self,
        held: HeldDocument[ChunkDocument],
        after: ChunkDocument,
        entry: Entry,
        point: str,
        data: Data | None = None,
    ) -> HeldDocument[ChunkDocument]:
        """Write immutable objects, then the document with the entry at the head of its chain."""
        chunk, number = held.document.chunk, names.number_of(held.document.chunk.id)
        name = self._chains.write(chunk.batch, number, chunk.head, entry)
        if data is not None:
            self._items.write_data(chunk.batch, number, name, data)
            after = chunks.named(after, str(name), data.accs)
        faults.reach(f"{point}.written")

        def landed(later: ChunkDocument) -> bool:
            followed = self._chains.follow(chunk.batch, number, later.chunk.seq, later.chunk.head)
            return name in followed[entry.seq - 1 : entry.seq]

        linked = replace(after, chunk=replace(after.chunk, seq=entry.seq, head=entry.hash))
        try:
            written = self._documents.swap(held, linked, landed)
        except Raced:
            self._chunks.fresh(chunk.batch, number)
            raise
        self._chunks.saw(written)
        faults.reach(f"{point}.after")
        return written
