"""What this process has seen of the chunks of a bucket store, and since when.

A listing tells by etag which documents changed, so that only those are read again. For every chunk it is remembered
when the last write of its owner was first seen, on the monotonic clock of this process: a lease has ended when he
wrote nothing for the whole length of the lease. No other clock is asked, and none has to be right.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from holdfast.core.errors import Damaged
from holdfast.core.limits import DOCUMENT_LOOKS
from holdfast.core.model import BatchId, Chunk
from holdfast.stores.bucket import names
from holdfast.stores.bucket.documents import BatchDocument, ChunkDocument
from holdfast.stores.bucket.shelf import Held, Shelf

READER = "holdfast-bucket"
FEW = 4
"""Of so few items the documents are read one by one, without listing those of the whole batch."""
WHOLE_DOCUMENTS = 64
"""Documents that are kept whole; of the others, what claims and totals need."""
A = TypeVar("A")
B = TypeVar("B")


class Seen(msgspec.Struct, frozen=True, kw_only=True):
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
    """Whether its owner was seen at work: an earlier beat is known, too."""


class Sight:
    """The chunks of a store as this process knows them."""

    def __init__(self, shelf: Shelf, monotonic: Callable[[], float], readers: int) -> None:
        self._shelf = shelf
        self._monotonic = monotonic
        self._readers = readers
        self._seen: dict[tuple[BatchId, int], Seen] = {}
        self._whole: OrderedDict[tuple[BatchId, int], Held[ChunkDocument]] = OrderedDict()
        self._highest: dict[BatchId, int] = {}
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None

    # -- one chunk ----------------------------------------------------------------------------------------------

    def fresh(self, batch: BatchId, number: int) -> Held[ChunkDocument] | None:
        """The document as it is now."""
        for _ in range(DOCUMENT_LOOKS):
            with self._lock:
                before = self._seen.get((batch, number))
            found = self._shelf.read(ChunkDocument, names.chunk(batch, number))
            if found is None:
                return None
            if before is None or found.document.revision >= before.revision:
                self.saw(found)
                return found
        where = self._shelf.where(names.chunk(batch, number))
        raise Damaged(
            f"{where} is older than it was a moment ago: the bucket was set back while this process was running; start "
            "again"
        )

    def known(self, batch: BatchId, number: int) -> Held[ChunkDocument] | None:
        """The document as it was last read or written: good for a swap, which fails if it is not the newest."""
        with self._lock:
            held = self._whole.get((batch, number))
        return held if held is not None else self.fresh(batch, number)

    def saw(self, held: Held[ChunkDocument]) -> None:
        """Remember a document as read or written; one that is older than what is known is let go."""
        document, now = held.document, self._monotonic()
        at = (document.chunk.batch, names.number_of(document.chunk.id))
        with self._lock:
            before = self._seen.get(at)
            if before is not None and before.revision > document.revision:
                return
            since = before.since if before is not None and before.beat == document.beat else now
            self._seen[at] = Seen(chunk=document.chunk, children=tuple(document.children), revision=document.revision,
                                  etag=held.mark.etag.strip('"'), term=document.term, beat=document.beat,
                                  since=since, was_there=self._was_there(before, document))  # fmt: skip
            self._highest[at[0]] = max(at[1], self._highest.get(at[0], 0))
            self._whole[at] = held
            self._whole.move_to_end(at)
            while len(self._whole) > WHOLE_DOCUMENTS:
                self._whole.popitem(last=False)

    # -- all chunks of a batch ----------------------------------------------------------------------------------

    def sweep(self, held: Held[BatchDocument], lo: int = 0, hi: int | None = None) -> list[Seen]:
        """Every chunk with some of these items, in their order: found from the groups of the batch down to what was cut
        off. Those of lost races are listed with them, and nothing leads there."""
        batch = held.document.batch.id
        groups = [group for group in held.document.groups if group.hi > lo and (hi is None or group.lo < hi)]
        if not groups:
            return []
        is_near = sum(group.hi - group.lo for group in groups) <= FEW
        if not is_near:
            self._look_at_all(batch)
        found: list[Seen] = []
        waiting = [group.chunk for group in groups][::-1]
        while waiting:
            seen = self._newest(batch, waiting.pop()) if is_near else self._one(batch, waiting.pop())
            found.append(seen)
            waiting += seen.children
        within = [seen for seen in found if seen.chunk.hi > lo and (hi is None or seen.chunk.lo < hi)]
        return sorted(within, key=lambda seen: seen.chunk.lo)

    def _look_at_all(self, batch: BatchId) -> None:
        """One listing tells which documents are others than before; those are read."""
        listed = {names.number_in(each.name): each.etag for each in self._shelf.names(names.chunks(batch), etags=True)}
        with self._lock:
            old = [n for n, etag in listed.items() if not etag or self._etag(batch, n) != etag]
        self.each(lambda number: self.fresh(batch, number), old)

    def highest(self, batch: BatchId, taken: int = 0) -> int:
        """The highest number of a chunk of a batch; `taken` is one that others have, so that there may be more."""
        with self._lock:
            known = self._highest.get(batch)
        if known is None or taken:
            after = names.chunk(batch, taken) if taken else ""
            listed = [names.number_in(each.name) for each in self._shelf.names(names.chunks(batch), after)]
            known = max([taken, *listed, 0 if known is None else known])
            with self._lock:
                self._highest[batch] = max(known, self._highest.get(batch, 0))
        return known

    def document(self, seen: Seen) -> Held[ChunkDocument]:
        """The whole document of a chunk, as it was seen or newer."""
        batch, number = seen.chunk.batch, names.number_of(seen.chunk.id)
        with self._lock:
            held = self._whole.get((batch, number))
        if held is not None and held.document.revision >= seen.revision:
            return held
        found = self.fresh(batch, number)
        if found is None:
            raise self._shelf.missing(names.chunk(batch, number))
        return found

    def remaining(self, seen: Seen) -> float:
        """Seconds until the lease of a chunk has ended for this process; below 0 when it has."""
        return seen.since + seen.term - self._monotonic()

    def told(self, seen: Seen, now: float) -> Chunk:
        """A chunk with the end of its lease on the clock of this process, as far as it was watched: an owner that was
        seen at work has it for the rest of its term, one that was silent for a whole term has lost it. Of any other
        nothing is known but what its own clock said."""
        left = self.remaining(seen)
        if seen.chunk.owner is None or (left >= 0 and not seen.was_there):
            return seen.chunk
        return msgspec.structs.replace(seen.chunk, expires=now + left)

    def _was_there(self, before: Seen | None, document: ChunkDocument) -> bool:
        if before is None or before.chunk.fence != document.chunk.fence:
            return False
        return before.was_there or before.beat != document.beat

    def each(self, call: Callable[[A], B], values: Sequence[A] | Iterable[A]) -> list[B]:
        """The same call for several values, several at a time."""
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

    def _newest(self, batch: BatchId, number: int) -> Seen:
        """A chunk as it is now, by one read."""
        self._known_to_be_there(batch, number)
        with self._lock:
            return self._seen[batch, number]

    def _known_to_be_there(self, batch: BatchId, number: int) -> None:
        if self.fresh(batch, number) is None:
            self._shelf.need(ChunkDocument, names.chunk(batch, number))  # it says what is wrong
            self.fresh(batch, number)

    def _one(self, batch: BatchId, number: int) -> Seen:
        with self._lock:
            seen = self._seen.get((batch, number))
        if seen is None:
            seen = self._newest(batch, number)
        return seen
