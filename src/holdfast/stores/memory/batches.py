"""The verbs of the reference store that concern a batch as a whole: opened, noted, steered, sealed; and the outbox."""

import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from holdfast.core import course, journal
from holdfast.core.errors import UsageError
from holdfast.core.model import (
    Batch,
    BatchId,
    Checkpoint,
    Chunk,
    ChunkId,
    Entry,
    Event,
    ItemNo,
    NewItem,
    Output,
    Place,
    StoredEvent,
    chain_of_batch,
)  # fmt: skip
from holdfast.stores.base import Capabilities

replace = msgspec.structs.replace


class MemoryBatches:
    """The dictionaries, and what is said about a whole batch."""

    capabilities = Capabilities()

    def __init__(
        self, *, clock: Callable[[], float] = time.time, is_dead: Callable[[str], bool] = lambda owner: False
    ) -> None:
        self.url = "memory:"
        self._clock = clock
        self._is_dead = is_dead
        self._lock = threading.RLock()
        self._written = threading.Condition(self._lock)
        self._batches: dict[BatchId, Batch] = {}
        self._chunks: dict[ChunkId, Chunk] = {}
        self._items: dict[tuple[BatchId, ItemNo], NewItem] = {}
        self._numbers: dict[tuple[BatchId, str], ItemNo] = {}
        self._places: dict[tuple[BatchId, ItemNo], Place] = {}
        self._outputs: dict[tuple[BatchId, ItemNo, int], Output] = {}
        self._checkpoints: dict[tuple[BatchId, ItemNo], Checkpoint] = {}
        self._entries: dict[int, list[Entry]] = {}
        self._events: list[StoredEvent] = []
        self._delivered: dict[str, int] = {}

    def now(self) -> float:
        return self._clock()

    def wait(self, batch: BatchId, seconds: float) -> None:
        with self._written:
            self._written.wait(seconds)

    def close(self) -> None:
        """Nothing to let go of."""

    # -- batches ------------------------------------------------------------------------------------------------

    def open_batch(self, name: str, pipeline: str, definition: bytes, *, actor: str) -> Batch:
        with self._lock:
            found = self.batch(name)
            if found is None:
                found = Batch(id=BatchId(len(self._batches) + 1), name=name, pipeline=pipeline, definition=definition,
                              opened_at=self.now(), admitted=0, head=journal.GENESIS)  # fmt: skip
                self._batches[found.id] = found
                body = journal.encode_body(journal.Opened(name=name, pipeline=pipeline, definition=definition))
                self._link_batch(found.id, "opened", body, actor)
                self._tell(found.id, [course.batch_opened(name, pipeline)])
            return self.amend(found.id, course.to_redefine(pipeline, definition), actor=actor).batch

    def batch(self, name: str) -> Batch | None:
        with self._lock:
            return next((batch for batch in self._batches.values() if batch.name == name), None)

    def batches(self) -> list[Batch]:
        with self._lock:
            return list(self._batches.values())

    def amend(self, batch: BatchId, decide: course.Decide, *, actor: str) -> course.Amended:
        with self._lock:
            found = self._known_batch(batch)
            facts = course.BatchFacts(
                found, self.now(), lambda: self.chunks(batch), lambda kind, body: self._is_noted(batch, kind, body)
            )
            change = decide(facts)
            if change is None:
                return course.Amended(batch=found, written=False)
            self._batches[batch] = change.batch
            self._link_batch(batch, change.kind, change.body, actor)
            self._tell(batch, change.events)
            return course.Amended(batch=self._batches[batch], written=True)

    def _is_noted(self, batch: BatchId, kind: str, body: bytes) -> bool:
        entries = self._entries.get(chain_of_batch(batch), [])
        return any(entry.body == body and journal.decode_header(entry.head).kind == kind for entry in entries)

    def seal(
        self, batch: BatchId, *, actor: str, reconciliation: bytes, reason: str = "", events: Sequence[Event] = ()
    ) -> Batch:
        return self.amend(batch, course.to_seal(reconciliation, reason=reason, events=events), actor=actor).batch

    def chunks(self, batch: BatchId) -> list[Chunk]:
        with self._lock:
            return sorted((c for c in self._chunks.values() if c.batch == batch), key=lambda c: c.lo)

    def is_settled(self, batch: BatchId) -> bool:
        return not any(chunk.pending for chunk in self.chunks(batch))

    def events(self, after: int = 0, *, limit: int = 1000) -> list[StoredEvent]:
        with self._lock:
            return self._events[after : after + limit]

    def delivered(self, receiver: str, up_to: int = 0) -> int:
        with self._lock:
            self._delivered[receiver] = max(up_to, self._delivered.get(receiver, 0))
            return self._delivered[receiver]

    # -- helpers ------------------------------------------------------------------------------------------------

    def _known_batch(self, batch: BatchId) -> Batch:
        if batch not in self._batches:
            raise UsageError(f"there is no batch number {batch}")
        return self._batches[batch]

    def _tell(self, batch: BatchId, events: Sequence[Event]) -> None:
        for event in events:
            self._events.append(
                StoredEvent(
                    id=len(self._events) + 1, batch=batch, at=self.now(), kind=event.kind, body=event.body, n=event.n
                )
            )

    def _link_batch(self, batch: BatchId, kind: str, body: bytes, actor: str) -> bytes:
        at = self._batches[batch]
        entry = journal.link(
            at.head,
            chain=chain_of_batch(batch),
            batch=batch,
            seq=at.seq + 1,
            kind=kind,
            at=self.now(),
            actor=actor,
            fence=0,
            commit_id=b"",
            body=body,
        )
        self._entries.setdefault(entry.chain, []).append(entry)
        self._batches[batch] = replace(at, seq=entry.seq, head=entry.hash)
        self._written.notify_all()
        return entry.hash
