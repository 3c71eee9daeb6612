"""The verbs of the reference store that concern a batch as a whole: opened, noted, steered, sealed; and the outbox."""

import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from holdfast.core import course, journal
from holdfast.core.errors import Refused, UsageError
from holdfast.core.model import (
    Batch,
    BatchId,
    Checkpoint,
    Chunk,
    ChunkId,
    Course,
    Entry,
    Event,
    ItemNo,
    NewItem,
    Output,
    Place,
    StoredEvent,
    chain_of_batch,
)  # fmt: skip
from holdfast.stores.base import Capabilities, check_redefinition, stage_count

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
        self._batches: dict[BatchId, Batch] = {}
        self._stages: dict[BatchId, int] = {}
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

    def close(self) -> None:
        """Nothing to let go of."""

    # -- batches ------------------------------------------------------------------------------------------------

    def open_batch(self, name: str, pipeline: str, definition: bytes, *, actor: str) -> Batch:
        with self._lock:
            found = self.batch(name)
            body = journal.encode_body(journal.Opened(name=name, pipeline=pipeline, definition=definition))
            if found is None:
                found = Batch(id=BatchId(len(self._batches) + 1), name=name, pipeline=pipeline, definition=definition,
                              opened_at=self.now(), admitted=0, head=journal.GENESIS)  # fmt: skip
                self._batches[found.id] = found
                self._stages[found.id] = stage_count(definition)
                self._link_batch(found.id, "opened", body, actor)
                self._tell(found.id, [course.batch_opened(name, pipeline)])
            elif found.pipeline != pipeline:
                raise UsageError(
                    f"batch {name!r} belongs to pipeline {found.pipeline!r}, not to {pipeline!r}: choose another "
                    "batch name"
                )
            elif found.definition != definition:
                check_redefinition(found, definition)
                self._stages[found.id] = stage_count(definition)
                self._batches[found.id] = replace(found, definition=definition)
                self._link_batch(found.id, "opened", body, actor)
            return self._batches[found.id]

    def batch(self, name: str) -> Batch | None:
        with self._lock:
            return next((batch for batch in self._batches.values() if batch.name == name), None)

    def batches(self) -> list[Batch]:
        with self._lock:
            return list(self._batches.values())

    def note(
        self, batch: BatchId, kind: str, body: bytes, *, actor: str, once: bool = False, events: Sequence[Event] = (),
        basis: bytes | None = None,
    ) -> bool:  # fmt: skip
        with self._lock:
            found = self._known_batch(batch)
            entries = self._entries.get(chain_of_batch(batch), [])
            if once and any(journal.decode_header(e.head).kind == kind and e.body == body for e in entries):
                return False
            if basis is not None:
                course.check_unchanged(found, self.chunks(batch), basis)
            self._link_batch(batch, kind, body, actor)
            self._tell(batch, events)
            return True

    def steer(
        self, batch: BatchId, to: Course | None, *, actor: str, reason: str, ends_at: float | None = None,
        expected: int | None = None, close: bool = False,
    ) -> Batch:  # fmt: skip
        with self._lock:
            found = self._known_batch(batch)
            body = course.steer(found, to, reason=reason, ends_at=ends_at, expected=expected, close=close)
            if body is not None:
                self._link_batch(batch, "steered", journal.encode_body(body), actor)
                self._batches[batch] = course.steered(self._batches[batch], body, self.now())
            return self._batches[batch]

    def seal(
        self, batch: BatchId, *, actor: str, reconciliation: bytes, reason: str = "", events: Sequence[Event] = ()
    ) -> Batch:
        with self._lock:
            found, chunks = self._known_batch(batch), self.chunks(batch)
            obstacle = course.obstacle(found, chunks, reconciliation, now=self.now())
            if obstacle is not None:
                raise Refused(f"batch {found.name!r} cannot be sealed: {obstacle}")
            self._link_batch(batch, "sealed", journal.encode_body(course.seal(chunks, reconciliation, reason)), actor)
            self._batches[batch] = replace(self._batches[batch], sealed_at=self.now())
            self._tell(batch, events)
            return self._batches[batch]

    def reopen(self, batch: BatchId, *, actor: str, reason: str) -> Batch:
        with self._lock:
            if self._known_batch(batch).sealed_at is None:
                raise UsageError(f"batch {self._batches[batch].name!r} is not sealed: nothing to reopen")
            self._link_batch(batch, "reopened", journal.encode_body(journal.Reopened(reason=reason)), actor)
            self._batches[batch] = replace(self._batches[batch], sealed_at=None)
            return self._batches[batch]

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
        return entry.hash
