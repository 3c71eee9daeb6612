"""The chunks of a bucket store as this process has last seen them, and when.

A listing shows by etag which documents changed, so that only those are read again. For every chunk, the cache remembers
when the last write of its owner was first seen, on the monotonic clock of this process: a lease has ended when its
owner wrote nothing for the whole length of the lease. No other clock is used, and none has to be right.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from holdfast.core import lease
from holdfast.core.errors import Damaged, UsageError
from holdfast.core.limits import DOCUMENT_LOOKS
from holdfast.core.model import Batch, BatchId, Chunk, ItemNo
from holdfast.stores.base import Idle
from holdfast.stores.bucket import names
from holdfast.stores.bucket.cas import DocumentStore, HeldDocument, Raced
from holdfast.stores.bucket.documents import FORMAT, BatchDocument, ChunkDocument

READER = "holdfast-bucket"
NEVER = float("inf")
FEW = 4
"""For this few items, documents are read one by one, without listing those of the whole batch."""
WHOLE_DOCUMENTS = 64
"""Documents that are kept whole; of the others, only what claims and totals need is kept."""
A = TypeVar("A")
B = TypeVar("B")


class SeenChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One chunk as it was last seen."""

    chunk: Chunk
    children: tuple[int, ...]
    revision: int
    etag: str
    term: float
    beat: int
    since: float
    """When this beat of its owner was first seen, on the monotonic clock."""
    was_there: bool = False
    """True if its owner was seen at work: an earlier beat is known as well."""


class ChunkCache:
    """The chunks of a store as this process knows them."""

    def __init__(
        self,
        documents: DocumentStore,
        monotonic: Callable[[], float],
        readers: int,
        is_dead: Callable[[str], bool],
        upgraded: Callable[[ChunkDocument], ChunkDocument],
    ) -> None:
        self._documents = documents
        self._monotonic = monotonic
        self._readers = readers
        self._is_dead = is_dead
        self._upgraded = upgraded
        self._seen: dict[tuple[BatchId, int], SeenChunk] = {}
        self._whole: OrderedDict[tuple[BatchId, int], HeldDocument[ChunkDocument]] = OrderedDict()
        self._highest: dict[BatchId, int] = {}
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None

    # -- one chunk ----------------------------------------------------------------------------------------------

    def fresh(self, batch: BatchId, number: int) -> HeldDocument[ChunkDocument] | None:
        """Return the current document."""
        for _ in range(DOCUMENT_LOOKS):
            with self._lock:
                before = self._seen.get((batch, number))
            found = self._documents.read(ChunkDocument, names.chunk(batch, number))
            if found is None:
                return None
            if found.document.format < FORMAT:
                found = HeldDocument(found.name, self._upgraded(found.document), found.mark)
            if before is None or found.document.revision >= before.revision:
                self.saw(found)
                return found
        where = self._documents.where(names.chunk(batch, number))
        raise Damaged(
            f"{where} is older than it was a moment ago: the bucket was set back while this process was running; run "
            "again"
        )

    def known(self, batch: BatchId, number: int) -> HeldDocument[ChunkDocument] | None:
        """Return the document as last read or written: good for a swap, which fails if it is not the newest."""
        with self._lock:
            held = self._whole.get((batch, number))
        return held if held is not None else self.fresh(batch, number)

    def saw(self, held: HeldDocument[ChunkDocument]) -> None:
        """Remember a document as read or written; one that is older than the known one is ignored."""
        document, now = held.document, self._monotonic()
        at = (document.chunk.batch, names.number_of(document.chunk.id))
        with self._lock:
            before = self._seen.get(at)
            if before is not None and before.revision > document.revision:
                return
            since = before.since if before is not None and before.beat == document.beat else now
            self._seen[at] = SeenChunk(
                chunk=document.chunk, children=tuple(document.children), revision=document.revision,
                etag=held.mark.etag.strip('"'), term=document.term, beat=document.beat, since=since,
                was_there=self._was_there(before, document),
            )  # fmt: skip
            self._highest[at[0]] = max(at[1], self._highest.get(at[0], 0))
            self._whole[at] = held
            self._whole.move_to_end(at)
            while len(self._whole) > WHOLE_DOCUMENTS:
                self._whole.popitem(last=False)

    # -- all chunks of a batch ----------------------------------------------------------------------------------

    def sweep(self, held: HeldDocument[BatchDocument], lo: int = 0, hi: int | None = None) -> list[SeenChunk]:
        """Return every chunk with some of these items, in order: found from the groups of the batch through the chunks
        that were cut off. Chunks whose chains have ended have no items, so they are returned only if all are requested.
        Chunks of lost races are listed as well, but nothing refers to them."""
        batch = held.document.batch.id
        groups = [group for group in held.document.groups if group.hi > lo and (hi is None or group.lo < hi)]
        if not groups:
            return []
        is_near = sum(group.hi - group.lo for group in groups) <= FEW
        if not is_near:
            self._look_at_all(batch)
        found: list[SeenChunk] = []
        waiting = list(dict.fromkeys(group.chunk for group in groups))[::-1]  # items of a copy may have several groups
        while waiting:
            seen = self._newest(batch, waiting.pop()) if is_near else self._one(batch, waiting.pop())
            found.append(seen)
            waiting += seen.children
        if lo > 0 or hi is not None:
            found = [seen for seen in found if not seen.chunk.is_ended and _overlaps(seen.chunk, lo, hi)]
        return sorted(found, key=lambda seen: (seen.chunk.lo, seen.chunk.hi, seen.chunk.id))

    def covering(self, held: HeldDocument[BatchDocument], lo: int, hi: int | None) -> Iterator[ChunkDocument]:
        """Yield the documents of the chunks that have some of these items, in order."""
        for each in self.sweep(held, lo, hi):
            if not each.chunk.is_ended:
                yield from self._unfolded(held, each)

    def _unfolded(self, held: HeldDocument[BatchDocument], seen: SeenChunk) -> Iterator[ChunkDocument]:
        """Yield the document of a chunk and, if it was cut or ended since it was seen, those of the chunks that have
        its other items."""
        document = self.document(seen).document
        yield document
        if document.chunk.hi < seen.chunk.hi:
            for later in self.sweep(held, document.chunk.hi, seen.chunk.hi):
                if document.chunk.hi <= later.chunk.lo:
                    yield self.document(later).document

    def _look_at_all(self, batch: BatchId) -> None:
        """Find the changed documents with one listing, and read them."""
        listed = {
            names.number_in(each.name): each.etag for each in self._documents.names(names.chunks(batch), etags=True)
        }
        with self._lock:
            old = [n for n, etag in listed.items() if not etag or self._etag(batch, n) != etag]
        self.each(lambda number: self.fresh(batch, number), old)

    def highest(self, batch: BatchId, taken: int = 0) -> int:
        """Return the highest number of a chunk of a batch; `taken` is a number that another process used, so that there
        may be higher ones."""
        with self._lock:
            known = self._highest.get(batch)
        if known is None or taken:
            after = names.chunk(batch, taken) if taken else ""
            listed = [names.number_in(each.name) for each in self._documents.names(names.chunks(batch), after)]
            known = max([taken, *listed, 0 if known is None else known])
            with self._lock:
                self._highest[batch] = max(known, self._highest.get(batch, 0))
        return known

    def mark(self, seen: SeenChunk, word: str) -> Chunk:
        """Write the id of a seal into a chunk. Raise Raced if it has changed since it was seen. A chunk whose chain has
        ended takes no writes anyway."""
        if seen.chunk.is_ended:
            return seen.chunk
        held = self.document(seen)
        if held.document.revision != seen.revision:
            raise Raced
        written = self._documents.swap(held, msgspec.structs.replace(held.document, seal=word))
        self.saw(written)
        return written.document.chunk

    def next_number(self, batch: BatchId, taken: int = 0) -> int:
        """Return a number that no chunk of the batch has, as far as this process knows. Another process may take it
        first."""
        return self.highest(batch, taken) + 1

    def document(self, seen: SeenChunk) -> HeldDocument[ChunkDocument]:
        """Return the whole document of a chunk, as seen or newer."""
        batch, number = seen.chunk.batch, names.number_of(seen.chunk.id)
        with self._lock:
            held = self._whole.get((batch, number))
        if held is not None and held.document.revision >= seen.revision:
            return held
        found = self.fresh(batch, number)
        if found is None:
            raise self._documents.missing(names.chunk(batch, number))
        return found

    def remaining(self, seen: SeenChunk) -> float:
        """Return the seconds until the lease of a chunk ends for this process; below 0 if it has ended."""
        return seen.since + seen.term - self._monotonic()

    def told(self, seen: SeenChunk, now: float) -> Chunk:
        """Return a chunk with the end of its lease on the clock of this process, as far as it was observed: an owner
        that was seen at work has it for the rest of its term, one that was silent for a whole term has lost it. Of any
        other owner only the time by its own clock is known."""
        left = self.remaining(seen)
        if seen.chunk.owner is None or (left >= 0 and not seen.was_there):
            return seen.chunk
        return msgspec.structs.replace(seen.chunk, expires=now + left)

    # -- leases -------------------------------------------------------------------------------------------------

    def may_claim(self, seen: SeenChunk, now: float, *, is_dead: bool = False) -> bool:
        """Return whether a chunk may be granted. The time that the owner wrote is ignored: its clock may be wrong."""
        is_over = seen.chunk.owner is not None and self.remaining(seen) < 0
        held = msgspec.structs.replace(seen.chunk, expires=NEVER)
        return lease.may_claim(held, now=now, owner_is_dead=is_over or is_dead)

    def is_known_dead(self, chunk: Chunk) -> bool:
        return chunk.owner is not None and self._is_dead(chunk.owner)

    def idle(self, seen: Sequence[SeenChunk], now: float) -> Idle:
        """Return the answer for a claimer if there is nothing to claim among these chunks."""
        open_ones = [each for each in seen if each.chunk.pending]
        return Idle(
            pending=sum(each.chunk.pending for each in open_ones),
            next_due=min((self._free_at(each, now) for each in open_ones), default=None),
            held=sum(map(self._is_held, open_ones)),
        )

    def _is_held(self, seen: SeenChunk) -> bool:
        is_owned = seen.chunk.owner is not None and self.remaining(seen) >= 0
        return is_owned and not self.is_known_dead(seen.chunk)

    def _free_at(self, seen: SeenChunk, now: float) -> float:
        """Return when a chunk may become claimable, on the clock of this process."""
        if seen.chunk.owner is None:
            return seen.chunk.due
        return max(seen.chunk.due, now + self.remaining(seen))

    # -- helpers ------------------------------------------------------------------------------------------------

    def _was_there(self, before: SeenChunk | None, document: ChunkDocument) -> bool:
        if before is None or before.chunk.fence != document.chunk.fence:
            return False
        return before.was_there or before.beat != document.beat

    def each(self, call: Callable[[A], B], values: Sequence[A] | Iterable[A]) -> list[B]:
        """Return the results of a call for several values, running several at a time."""
        asked = list(values)
        if len(asked) < 2 or self._readers < 2 or threading.current_thread().name.startswith(READER):
            return [call(value) for value in asked]
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._readers, thread_name_prefix=READER)
            pool = self._pool
        return list(pool.map(call, asked))

    def _etag(self, batch: BatchId, number: int) -> str | None:
        seen = self._seen.get((batch, number))
        return None if seen is None else seen.etag

    def _newest(self, batch: BatchId, number: int) -> SeenChunk:
        """Return the current state of a chunk, with one read; one whose chain has ended does not change any more."""
        with self._lock:
            seen = self._seen.get((batch, number))
        if seen is not None and seen.chunk.is_ended:
            return seen
        self._known_to_be_there(batch, number)
        with self._lock:
            return self._seen[batch, number]

    def _known_to_be_there(self, batch: BatchId, number: int) -> None:
        if self.fresh(batch, number) is None:
            self._documents.need(ChunkDocument, names.chunk(batch, number))  # raises with the reason
            self.fresh(batch, number)

    def _one(self, batch: BatchId, number: int) -> SeenChunk:
        with self._lock:
            seen = self._seen.get((batch, number))
        if seen is None:
            seen = self._newest(batch, number)
        return seen


def _overlaps(chunk: Chunk, lo: int, hi: int | None) -> bool:
    return chunk.hi > lo and (hi is None or chunk.lo < hi)


def chunk_with(seen: Sequence[SeenChunk], n: ItemNo, batch: Batch) -> SeenChunk:
    """Return the chunk that has an item."""
    found = next((each for each in seen if each.chunk.lo <= n < each.chunk.hi), None)
    if found is None:
        raise UsageError(f"batch number {batch.id} has no item number {n}")
    return found
