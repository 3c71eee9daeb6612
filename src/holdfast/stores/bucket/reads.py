"""What can be read of a bucket store: batches, chunks, items, outputs, entries; each from the documents as they are."""

import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from holdfast.core.course import stage_count
from holdfast.core.errors import UsageError
from holdfast.core.ingest import Known
from holdfast.core.limits import BUCKET_ITEMS
from holdfast.core.model import (
    Batch,
    BatchId,
    Checkpoint,
    Chunk,
    Entry,
    ItemNo,
    NewItem,
    Output,
    Place,
    State,
    StoredEvent,
    StoredItem,
)
from holdfast.stores import owners
from holdfast.stores.base import Capabilities
from holdfast.stores.bucket import names
from holdfast.stores.bucket.chains import Chains
from holdfast.stores.bucket.documents import BatchDocument, ChunkDocument, Root
from holdfast.stores.bucket.items import Items, by_group
from holdfast.stores.bucket.patience import patient
from holdfast.stores.bucket.root import open_root
from holdfast.stores.bucket.shelf import Held, Shelf
from holdfast.stores.bucket.sight import Seen, Sight
from holdfast.stores.buckets.base import Bucket

replace = msgspec.structs.replace
CAPABILITIES = Capabilities(budget=False, events=False, one_clock=False, items=BUCKET_ITEMS)
AT_ONCE = 8
"""Requests that are under way at the same time."""
ROWS = 256
"""Items read together where only some of them may be wanted."""


class BucketReads:
    """An open bucket, and the verbs that change nothing."""

    capabilities = CAPABILITIES

    def __init__(self, bucket: Bucket, *, clock: Callable[[], float] = time.time,
                 monotonic: Callable[[], float] = time.monotonic, is_dead: Callable[[str], bool] = owners.is_dead,
                 at_once: int = AT_ONCE, pause: Callable[[float], None] = time.sleep) -> None:  # fmt: skip
        self.url = bucket.url
        self._bucket = bucket
        self._clock = clock
        self._is_dead = is_dead
        self._shelf = Shelf(bucket, pause)
        self._sight = Sight(self._shelf, monotonic, at_once)
        self._chains = Chains(self._shelf)
        self._items = Items(self._shelf, self._chains, self._sight)
        open_root(self._shelf)

    def now(self) -> float:
        return self._clock()

    def wait(self, batch: BatchId, seconds: float) -> None:
        self._shelf.rest(seconds)

    def close(self) -> None:
        self._sight.close()
        self._bucket.close()

    # -- batches and chunks -------------------------------------------------------------------------------------

    @patient
    def batch(self, name: str) -> Batch | None:
        root = self._shelf.need(Root, names.ROOT).document
        found = next((BatchId(number) for number, known in root.names if known == name), None)
        return None if found is None else self._shelf.need(BatchDocument, names.batch(found)).document.batch

    @patient
    def batches(self) -> list[Batch]:
        root = self._shelf.need(Root, names.ROOT).document
        numbers = sorted(number for number, _ in root.names)
        return self._sight.each(
            lambda number: self._shelf.need(BatchDocument, names.batch(BatchId(number))).document.batch, numbers
        )

    @patient
    def chunks(self, batch: BatchId) -> list[Chunk]:
        held = self._find_batch(batch)
        return [] if held is None else [self._sight.told(seen, self.now()) for seen in self._sight.sweep(held)]

    @patient
    def chunk_of(self, batch: BatchId, n: ItemNo) -> Chunk:
        for seen in self._sight.sweep(self._known_batch(batch), n, n + 1):
            if seen.chunk.lo <= n < seen.chunk.hi:
                return self._sight.told(seen, self.now())
        raise UsageError(f"batch number {batch} has no item number {n}")

    def is_settled(self, batch: BatchId) -> bool:
        return not any(chunk.pending for chunk in self.chunks(batch))

    # -- items --------------------------------------------------------------------------------------------------

    @patient
    def items(self, batch: BatchId, *, lo: int = 0, hi: int | None = None, state: State | None = None,
                limit: int = 1000) -> list[StoredItem]:  # fmt: skip
        held = self._known_batch(batch)
        found: list[StoredItem] = []
        for document in self._covering(held, lo, hi):
            wanted = [(n, place) for n, place in self._places(document, held.document, lo, hi)
                      if state is None or place.state is state]  # fmt: skip
            found += self._rows(held.document, document, wanted[: limit - len(found)])
            if len(found) >= limit:
                break
        return found

    @patient
    def known(self, batch: BatchId, items: Sequence[NewItem]) -> Known:
        return self._known_items(self._known_batch(batch), items)

    @patient
    def outputs(self, batch: BatchId, *, lo: int = 0, hi: int | None = None, stage: int | None = None,
                limit: int = 1000) -> list[Output]:  # fmt: skip
        held = self._find_batch(batch)
        found: list[Output] = []
        for document in self._covering(held, lo, hi) if held is not None else ():
            columns = document.columns()
            asked = [s for s in sorted(columns) if stage is None or s == stage]
            for n in _within(document.chunk, lo, hi):
                at = n - document.chunk.lo
                found += [self._items.output(document, n, s, columns[s][at]) for s in asked if columns[s][at]]
                if len(found) >= limit:
                    return found[:limit]
        return found

    @patient
    def checkpoints(self, batch: BatchId, *, lo: int = 0, hi: int | None = None, limit: int = 1000) -> list[Checkpoint]:
        held = self._known_batch(batch)
        found: list[Checkpoint] = []
        for document in self._covering(held, lo, hi):
            for n in sorted(document.checkpoints):
                if n >= lo and (hi is None or n < hi) and len(found) < limit:
                    at = document.checkpoints[n]
                    acc = self._items.data(batch, at.ref, at.name).accs[n] if at.ref else at.acc
                    found.append(Checkpoint(ItemNo(n), at.rows, at.cursor, acc, at.at))
        return found

    # -- the journal --------------------------------------------------------------------------------------------

    @patient
    def entries(self, chain: int, *, after: int = 0, limit: int = 1000) -> list[Entry]:
        if chain < 0:
            batch, number = BatchId(-chain), 0
            held = self._find_batch(batch)
            facts = None if held is None else (held.document.batch.seq, held.document.batch.head)
        else:
            batch, number = names.batch_of(chain), names.number_of(chain)
            found = self._sight.fresh(batch, number)
            facts = None if found is None else (found.document.chunk.seq, found.document.chunk.head)
        if facts is None:
            self._find_batch(batch)
            return []
        wanted = self._chains.follow(batch, number, *facts)[after : after + limit]
        return self._sight.each(lambda name: self._chains.read(batch, number, name), wanted)

    def events(self, after: int = 0, *, limit: int = 1000) -> list[StoredEvent]:
        """None are kept: see `capabilities`."""
        return []

    def delivered(self, receiver: str, up_to: int = 0) -> int:
        if up_to:
            raise UsageError(f"{self.url}: a bucket keeps no events, so none can be delivered: use a database")
        return 0

    # -- helpers ------------------------------------------------------------------------------------------------

    def _find_batch(self, batch: BatchId) -> Held[BatchDocument] | None:
        """A batch, or None where there never was one: that its document is gone is no answer."""
        held = self._shelf.read(BatchDocument, names.batch(batch))
        if held is None and batch in [number for number, _ in self._shelf.need(Root, names.ROOT).document.names]:
            raise self._shelf.missing(names.batch(batch))
        return held

    def _known_batch(self, batch: BatchId) -> Held[BatchDocument]:
        held = self._find_batch(batch)
        if held is None:
            raise UsageError(f"{self.url} has no batch number {batch}")
        return held

    def _known_items(self, held: Held[BatchDocument], items: Sequence[NewItem]) -> Known:
        """Payloads that replaced the first ones are known to the chunks alone: those of what was found are asked."""
        found = self._items.known(held.document, items)
        if not held.document.renewed or not found:
            return found
        numbers = [n for n, _ in found.values()]
        renewed: dict[int, bytes] = {}
        for document in self._covering(held, min(numbers), max(numbers) + 1):
            renewed |= {n: each.digest for n, each in document.renewed.items()}
        return self._items.known(held.document, items, renewed)

    def _covering(self, held: Held[BatchDocument], lo: int, hi: int | None) -> Iterator[ChunkDocument]:
        """The documents of the chunks that have some of these items, in order."""
        for each in self._sight.sweep(held, lo, hi):
            yield from self._unfolded(held, each)

    def _unfolded(self, held: Held[BatchDocument], seen: Seen) -> Iterator[ChunkDocument]:
        """The document of a chunk; where it was cut since it was seen, those of what was cut off as well."""
        document = self._sight.document(seen).document
        yield document
        if document.chunk.hi < seen.chunk.hi:
            for later in self._sight.sweep(held, document.chunk.hi, seen.chunk.hi):
                if document.chunk.hi <= later.chunk.lo:
                    yield self._sight.document(later).document

    def _places(
        self, document: ChunkDocument, batch: BatchDocument, lo: int, hi: int | None
    ) -> Iterator[tuple[int, Place]]:
        stages, columns = stage_count(batch.batch.definition), document.columns()
        return ((n, document.place(n, columns, stages)) for n in _within(document.chunk, lo, hi))

    def _rows(
        self, batch: BatchDocument, document: ChunkDocument, wanted: Sequence[tuple[int, Place]]
    ) -> Iterator[StoredItem]:
        places = dict(wanted)
        for group, ns in by_group(batch.groups, [n for n, _ in wanted]):
            for n, key, salt, payload in self._items.rows(group, ns):
                if n in document.renewed:
                    salt, payload = self._items.data(batch.batch.id, document.renewed[n].ref).renewed[n]  # noqa: PLW2901
                yield StoredItem(n=ItemNo(n), key=key, place=places[n], payload=payload, salt=salt)


def _within(chunk: Chunk, lo: int, hi: int | None) -> range:
    return range(max(lo, chunk.lo), chunk.hi if hi is None else min(hi, chunk.hi))
