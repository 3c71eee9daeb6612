"""Every state of the document of a chunk that was met, changed by the real functions of the bucket store."""

import math
from typing import Any

import msgspec

from holdfast.core import acts, lease, settle
from holdfast.core.commitments import GRANT_BYTES
from holdfast.core.model import (
    Act,
    BatchId,
    Change,
    Checkpoint,
    Chunk,
    ChunkId,
    ClaimRequest,
    Commit,
    Item,
    ItemNo,
    ItemState,
    Lease,
    State,
)
from holdfast.core.outcome import Done
from holdfast.core.retry import Policy
from holdfast.core.settle import Holder, Reached
from holdfast.core.states import Transition, move
from holdfast.stores.bucket import chunks as bucket_chunks
from holdfast.stores.bucket import store as bucket
from holdfast.stores.bucket.cas import HeldDocument
from holdfast.stores.bucket.documents import ChunkDocument
from holdfast.stores.buckets.base import ObjectMark
from holdfast.testing.clock import START
from holdfast.testing.replay import Violation
from holdfast.testing.simulator.handlers import checkpoint_at, folded
from tests.model.exhaustive.swapper import Request, Swapper

replace = msgspec.structs.replace
LEASE = 30.0
FENCE = 10
"""What stands for the current fence; the one below it for all that are outdated."""
N = ItemNo(0)
BATCH, CHUNK = BatchId(1), ChunkId(1)
OWNER = "worker"
GRANT = bytes(GRANT_BYTES)
"""Every grant has the same id here: it is the fence alone that keeps owners apart."""
POLICY = Policy(attempts=1)
TIMELESS: dict[str, Any] = {name: 0 for name in ("term", "beat") if name in ChunkDocument.__struct_fields__}
"""What tells how long ago an owner was heard: here that is anybody's guess."""


def may_end() -> bool:
    """Whether a lease ends for who watches it: at any moment."""
    return True


class Documents:
    """The documents, by number; `rows` is how many checkpoints it takes to the end of the range."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.values: list[ChunkDocument] = []
        self.finished: list[bool] = []
        self._numbers: dict[bytes, int] = {}
        self._memo: dict[tuple[Any, ...], int | None] = {}
        self._resets: dict[int, list[tuple[str, int]]] = {}
        chunk = Chunk(id=CHUNK, number=1, batch=BATCH, lo=N, hi=ItemNo(1), end=1, fence=FENCE, grant=GRANT)
        self._number(ChunkDocument(chunk=chunk))

    # -- what the verbs of the store make of a document ---------------------------------------------------------

    def grant(self, number: int) -> int | None:
        """The document under a new fence; None where there is nothing to claim. A lease may end at any moment."""
        return self._once(("grant", number), lambda: self._grant(number))

    def _grant(self, number: int) -> int | None:
        document = self.values[number]
        held = replace(document.chunk, expires=math.inf)
        if not lease.may_claim(held, now=START, owner_is_dead=may_end()):
            return None
        want = ClaimRequest(batch=BATCH, owner=OWNER, limit=9, seconds=LEASE)
        cut = bucket_chunks.grant(document, want, GRANT, now=START, floor=0, child=2)
        return self._changed(number, cut.granted, "claim")

    def commit(self, number: int, worker: Swapper) -> int | None:
        """The document once a worker has come one checkpoint further; None where its guard does not let it through."""
        key = ("commit", number, worker.behind, worker.version, worker.rows, worker.epoch)
        return self._once(key, lambda: self._commit(number, worker))

    def _commit(self, number: int, worker: Swapper) -> int | None:
        commit = self._commit_of(worker)
        document = self.values[number]
        if not bucket._is_guarded(HeldDocument("", document, ObjectMark("")), commit):
            return None
        return self._changed(number, bucket_chunks.committed(document, commit, START), "commit")

    def _commit_of(self, worker: Swapper) -> Commit:
        place = ItemState(epoch=worker.epoch)
        item = Item(N, "range", b"", place, not worker.epoch)
        at = checkpoint_at(N, self.further(worker.rows))
        reached = Reached(item=item, rows=at.rows, cursor=at.cursor, acc=at.acc)
        holder = Holder(batch=BATCH, uid=b"", chunk=CHUNK, number=1, fence=FENCE - worker.behind, grant=GRANT,
                        version=worker.version, seconds=LEASE)  # fmt: skip
        at_end = at.rows == self.rows
        settled = settle.NOTHING
        if at_end:
            done = Done(item, at.acc or b"", 0.0, 0.0)
            settled = settle.settle([done], stages=1, policies=[POLICY], now=START)
        return settle.commit(holder, settled, commit_id=b"", release=at_end, reached=[reached])

    def further(self, rows: int) -> int:
        """Where a walk is at its next checkpoint; one that was reset at its end has nothing left to read."""
        return min(rows + 1, self.rows)

    def renews(self, number: int, worker: Swapper) -> bool:
        """Whether a heartbeat finds owner and fence as they were."""
        chunk = self.values[number].chunk
        held = Lease(chunk=CHUNK, fence=FENCE - worker.behind, owner=OWNER, expires=0.0, grant=GRANT)
        return lease.is_held_by(chunk, held)

    def resets(self, number: int) -> list[tuple[str, int]]:
        """What an operator may make of it: it goes on at its checkpoint, or at its start."""
        if number not in self._resets:
            start = Checkpoint(N, 0, b"", None)
            self._resets[number] = [("", self._reset(number, None)), (", from its start", self._reset(number, start))]
        return self._resets[number]

    def _reset(self, number: int, at: Checkpoint | None) -> int:
        document = self.values[number]
        place = document.place(N, document.columns())
        after = move(place, Transition.RESET, stage=0, stages=1, reason="because")
        change = Change(n=N, state=place.state, epoch=place.epoch, place=after, checkpoint=at)
        act = Act(id=b"", batch=BATCH, kind="reset", actor="operator", reason="because", at_items=(change,), seize=True)
        effect = acts.apply(act, document.chunk, [change], {N: place})
        return self._changed(number, bucket_chunks.acted(document, effect, START), "reset")

    # -- what must be true --------------------------------------------------------------------------------------

    def standing(self, number: int) -> tuple[int, int]:
        """How many rows a document says, and in which epoch."""
        document = self.values[number]
        rows = document.checkpoints[N].rows if N in document.checkpoints else 0
        return rows, document.places[N].epoch if N in document.places else 0

    def raises(self, before: int, after: int) -> bool:
        return self.values[after].chunk.fence > self.values[before].chunk.fence

    def settled(self, number: int) -> int:
        """The document with its fence as the current one."""
        document = self.values[number]
        return self._number(replace(document, chunk=replace(document.chunk, fence=FENCE)))

    def check_landing(self, document: int, request: Request) -> None:
        """Who replaces a document has seen it."""
        if document != request.base:
            raise Violation("a document was replaced by a worker that had not seen it")

    def check_holder(self, number: int, worker: Swapper) -> None:
        """A worker that was not overtaken holds the chunk, and stands where its document stands; one that does not know
        yet that its commit landed stands one checkpoint behind."""
        chunk, (rows, epoch) = self.values[number].chunk, self.standing(number)
        known = (worker.rows, worker.version)
        if worker.is_written:
            known = (self.further(worker.rows), worker.version + 1)
            if known[0] == self.rows:
                return
        if chunk.owner is None or (rows, chunk.version) != known or epoch != worker.epoch:
            raise Violation(
                f"a worker holds a chunk at row {worker.rows} of epoch {worker.epoch}, its document is at row {rows} "
                f"of epoch {epoch}"
            )

    def _changed(self, number: int, after: ChunkDocument, how: str) -> int:
        """The next document, held against the one that it replaces."""
        before = self.values[number]
        was, now = before.chunk, after.chunk
        made = self._number(after)
        (rows_before, epoch_before), (rows, epoch) = self.standing(number), self.standing(made)
        at = after.checkpoints.get(N)
        if at is not None and at.acc != folded(N, at.rows):
            raise Violation(f"a document has the cursor after row {at.rows}, and another accumulator")
        if now.fence < was.fence:
            raise Violation(f"a {how} lowers the fence")
        fenced = how == "claim" or (how == "reset" and was.owner is not None and was.pending)
        if fenced and now.fence == was.fence:
            raise Violation(f"a {how} does not raise the fence")
        if how == "commit" and (rows, epoch, now.version) != (self.further(rows_before), epoch_before, was.version + 1):
            raise Violation(f"a commit leads from row {rows_before} to row {rows}")
        if how == "claim" and (rows, epoch) != (rows_before, epoch_before):
            raise Violation("a claim moves a checkpoint")
        if how == "reset" and epoch != epoch_before + 1:
            raise Violation("a reset stays in its epoch")
        if (now.pending == 0) != (after.place(N, after.columns()).state is State.DONE):
            raise Violation("a document does not count what it says of its items")
        return made

    # -- keeping ------------------------------------------------------------------------------------------------

    def _once(self, key: tuple[Any, ...], work_out: Any) -> int | None:
        if key not in self._memo:
            self._memo[key] = work_out()
        return self._memo[key]

    def _number(self, document: ChunkDocument) -> int:
        """All of a document that its future depends on."""
        kind = replace(
            document,
            **TIMELESS,
            outputs=document.outputs if document.chunk.counts.done else {},
            checkpoints={n: replace(at, at=0.0) for n, at in document.checkpoints.items()},
            chunk=replace(
                document.chunk,
                expires=0.0, due=0.0, touched_at=0.0, blame=0, progressed=True, seq=0, head=b"",
                version=document.chunk.version if document.chunk.owner is not None else 0,
                counts=replace(document.chunk.counts, attempts=0, seconds=0.0),
            ),
        )  # fmt: skip
        key = msgspec.msgpack.encode(kind)
        number = self._numbers.setdefault(key, len(self.values))
        if number == len(self.values):
            self.values.append(kind)
            self.finished.append(kind.chunk.pending == 0)
        return number
