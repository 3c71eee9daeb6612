"""When dead letters were buried, as the journal tells: their places do not say."""

from collections.abc import Iterator, Sequence

from holdfast.core import journal
from holdfast.core.model import Batch, Chunk, ChunkId, State, chain_of_batch
from holdfast.stores.base import Store, each_entry


class Burials:
    """Knows of every dead letter in a batch when it was buried. Chains are read once, family by family: what was one
    ingested group, however often it was cut."""

    def __init__(self, store: Store, batch: Batch) -> None:
        self._store, self._batch = store, batch
        self._admissions: list[tuple[int, int, float]] | None = None

    def of(self, family: Sequence[Chunk]) -> dict[int, float]:
        """The item's number, and when it was last buried, of all that ever were in these chunks."""
        found: dict[int, float] = {}
        for chunk in sorted(family, key=lambda chunk: chunk.id):  # a parent has a lower number than its child
            for entry in each_entry(self._store, chunk.id):
                body = journal.decode_body(entry.body)
                buried = list(_buried(body))
                if buried:
                    at = journal.decode_header(entry.head).at
                    found.update(dict.fromkeys(buried, at))
        return found

    def admitted_at(self, n: int) -> float:
        """When an item was admitted: what nobody buried was a dead letter from the first moment."""
        if self._admissions is None:
            self._admissions = list(self._read_admissions())
        return next((at for lo, hi, at in self._admissions if lo <= n < hi), self._batch.opened_at)

    def _read_admissions(self) -> Iterator[tuple[int, int, float]]:
        for entry in each_entry(self._store, chain_of_batch(self._batch.id)):
            body = journal.decode_body(entry.body)
            if isinstance(body, journal.Ingested) and body.hi > body.lo:
                yield body.lo, body.hi, journal.decode_header(entry.head).at


def families(chunks: Sequence[Chunk]) -> Iterator[list[Chunk]]:
    """Chunks that were one when they were ingested, together, in the order of their items."""
    roots: dict[ChunkId, ChunkId] = {}
    for chunk in sorted(chunks, key=lambda chunk: chunk.id):
        roots[chunk.id] = chunk.id if chunk.parent is None else roots.get(chunk.parent, chunk.id)
    by_root: dict[ChunkId, list[Chunk]] = {}
    for chunk in chunks:
        by_root.setdefault(roots[chunk.id], []).append(chunk)
    yield from by_root.values()


def _buried(body: journal.Body) -> Iterator[int]:
    if isinstance(body, journal.Checkpointed):
        yield from (attempt.n for attempt in body.attempts if attempt.outcome == "bury")
    elif isinstance(body, journal.Acted):
        yield from (moved.n for moved in body.items if moved.after == State.DEAD)
