"""The life of a batch: opened, paused, cancelled, ended, sealed; its events; the decisions that change it."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from holdfast.core.canonical import decode, encode
from holdfast.core.errors import Conflict, DefinitionChanged, Refused, UsageError
from holdfast.core.journal import Body, Opened, Reopened, Sealed, Steered
from holdfast.core.model import Batch, BatchMode, Chunk, Counts, DeadLimit, Event, ItemNo, ItemState, Key, Kind

replace = msgspec.structs.replace


# -- amendments ---------------------------------------------------------------------------------------------------


class BatchFacts(NamedTuple):
    """The facts on which a decision about a batch may depend; chunks and chain are read only on demand."""

    batch: Batch
    now: float
    chunks: Callable[[], Sequence[Chunk]]
    noted: Callable[[str, Body], bool]
    """Returns whether the chain of the batch has an entry of that kind with that body."""


class Amendment(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a batch: the new batch, with the entry and the events that are written together with it."""

    batch: Batch
    """The new batch, with the number and hash of its previous last entry: the store links the new one."""
    kind: str
    body: Body
    events: Sequence[Event] = ()
    once: bool = False
    """True for a note: the store remembers it, so that it can tell whether it was written."""


class Amended(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an amendment: the current batch, and whether anything was written."""

    batch: Batch
    written: bool


Decide = Callable[[BatchFacts], Amendment | None]
"""A pure decision about a batch, or None if there is nothing to write. A store that lost a race repeats it."""


def to_note(
    kind: str, body: Body, *, once: bool = False, basis: bytes | None = None, events: Sequence[Event] = ()
) -> Decide:
    """Decide to add an entry to the chain of a batch. With `once`, do nothing if an entry of that kind with that body
    exists; with `basis`, raise a Conflict unless the batch is still in the state for which this was decided."""

    def decide(at: BatchFacts) -> Amendment | None:
        if once and at.noted(kind, body):
            return None
        if basis is not None:
            check_unchanged(at.batch, at.chunks(), basis)
        return Amendment(batch=at.batch, kind=kind, body=body, events=events, once=True)

    return decide


def to_steer(
    course: BatchMode | None, *, reason: str, ends_at: float | None = None, expected: int | None = None,
    close: bool = False,
) -> Decide:  # fmt: skip
    """Decide to pause, continue, cancel or close a batch, to give it an end, or to set its number of items. Without a
    course, course and end stay unchanged."""

    def decide(at: BatchFacts) -> Amendment | None:
        body = steer(at.batch, course, reason=reason, ends_at=ends_at, expected=expected, close=close)
        if body is None:
            return None
        return Amendment(batch=steered(at.batch, body, at.now), kind="steered", body=body)

    return decide


def to_course(course: BatchMode, *, reason: str) -> Decide:
    """Decide to pause, continue or cancel a batch; its end stays as it is at the time of the write."""
    return lambda at: to_steer(course, reason=reason, ends_at=at.batch.ends_at)(at)


def to_end(ends_at: float, *, reason: str) -> Decide:
    """Decide to give a batch an end; its course stays as it is at the time of the write. A cancelled batch is
    unchanged."""

    def decide(at: BatchFacts) -> Amendment | None:
        if at.batch.course is BatchMode.CANCELLED:
            return None
        return to_steer(at.batch.course, reason=reason, ends_at=ends_at)(at)

    return decide


def to_redefine(pipeline: str, definition: bytes) -> Decide:
    """Decide to give a batch a new definition of its pipeline."""

    def decide(at: BatchFacts) -> Amendment | None:
        batch = at.batch
        if batch.pipeline != pipeline:
            raise UsageError(
                f"batch {batch.name!r} belongs to pipeline {batch.pipeline!r}, not to {pipeline!r}: choose another "
                "batch name"
            )
        if batch.definition == definition:
            return None
        check_redefinition(batch, definition)
        body = Opened(name=batch.name, pipeline=pipeline, definition=definition)
        return Amendment(batch=replace(batch, definition=definition), kind="opened", body=body)

    return decide


def to_seal(reconciliation: bytes, *, reason: str = "", events: Sequence[Event] = ()) -> Decide:
    """Decide to seal a batch, if nothing prevents it."""

    def decide(at: BatchFacts) -> Amendment:
        chunks = at.chunks()
        check_sealable(at.batch, chunks, reconciliation, now=at.now)
        body = seal(chunks, reconciliation, reason)
        return Amendment(batch=replace(at.batch, sealed_at=at.now), kind="sealed", body=body, events=events)

    return decide


def to_reopen(reason: str) -> Decide:
    """Decide to lift the seal of a batch; the entry that sealed it stays."""

    def decide(at: BatchFacts) -> Amendment:
        if at.batch.sealed_at is None:
            raise UsageError(f"batch {at.batch.name!r} is not sealed: nothing to reopen")
        body = Reopened(reason=reason)
        return Amendment(batch=replace(at.batch, sealed_at=None), kind="reopened", body=body)

    return decide


@lru_cache(maxsize=64)
def stage_count(definition: bytes) -> int:
    """Return the number of stages in a definition."""
    return len(decode(definition)["stages"])


def stage_names(batch: Batch) -> list[str]:
    """Return the names of the stages in order, as of the last run of the batch."""
    return [stage["name"] if isinstance(stage, dict) else str(stage) for stage in decode(batch.definition)["stages"]]


def kind_of(batch: Batch, chunks: Sequence[Chunk]) -> Kind:
    """Return the kind of a batch: that of its first chunk, or, if there is none yet, the kind it was opened with."""
    if chunks:
        return chunks[0].kind
    stages = decode(batch.definition)["stages"]
    has_source = len(stages) == 1 and isinstance(stages[0], dict) and stages[0].get("source") is not None
    return Kind.PARTITIONS if has_source else Kind.ITEMS


def check_redefinition(batch: Batch, definition: bytes) -> None:
    """Refuse a definition that would change the meaning of stored positions."""
    before, after = stage_count(batch.definition), stage_count(definition)
    if batch.admitted and before != after:
        raise DefinitionChanged(
            f"batch {batch.name!r} was opened with {before} stages, and the positions of its items refer to them: "
            f"it cannot continue with {after}; choose another batch name"
        )


# -- course and end -----------------------------------------------------------------------------------------------


def steer(
    batch: Batch, course: BatchMode | None, *, reason: str, ends_at: float | None, expected: int | None = None,
    close: bool = False,
) -> Steered | None:  # fmt: skip
    """Return the body of the entry that changes the course, the end or the expected number of items of a batch, or
    closes it; None if nothing changes. Without a course, course and end stay unchanged."""
    to, end = (batch.course, batch.ends_at) if course is None else (course, ends_at)
    total, closed = batch.expected if expected is None else expected, close or batch.closed_at is not None
    before = (batch.course, batch.ends_at, batch.expected, batch.closed_at is not None)
    if course is None and before == (to, end, total, closed):
        return None
    if batch.sealed_at is not None:
        raise Refused(f"batch {batch.name!r} is sealed: it is finished; reopen it first")
    if batch.course is BatchMode.CANCELLED and course is not BatchMode.CANCELLED:
        raise UsageError(f"batch {batch.name!r} was cancelled, which cannot be undone: choose another batch name")
    if batch.expected not in (None, total) and not reason.strip():
        raise UsageError(
            f"batch {batch.name!r} is expected to have {batch.expected:,} items: changing that needs a reason, which "
            "the journal keeps; nothing was changed"
        )
    if before == (to, end, total, closed):
        return None
    return Steered(course=to, reason=reason, ends_at=end, expected=total, closed=closed)


def steered(batch: Batch, body: Steered, now: float) -> Batch:
    """Return the batch after that entry."""
    read = is_read(batch.ingested_at is not None, batch.expected, body, batch.admitted)
    return replace(
        batch, course=BatchMode(body.course), ends_at=body.ends_at, expected=body.expected,
        closed_at=(batch.closed_at if batch.closed_at is not None else now) if body.closed else None,
        ingested_at=(batch.ingested_at if batch.ingested_at is not None else now) if read else None,
    )  # fmt: skip


def is_read(was_read: bool, expected: int | None, body: Steered, admitted: int) -> bool:
    """Return whether a batch has all its items after it was steered: it was closed, or has reached the new expected
    number. `expected`: the number before."""
    if body.closed:
        return True
    return was_read if body.expected in (None, expected) else admitted >= body.expected


def is_last(batch: Batch, fresh: int) -> bool:
    """Return whether admitting so many new items reaches the expected number of items of a batch."""
    return batch.ingested_at is None and batch.expected is not None and batch.admitted + fresh >= batch.expected


def is_whole(batch: Batch, *, read: bool) -> bool:
    """Return whether a batch has all its items, given whether the run reached the end of its source (`read`). If it did
    not, the batch must be closed or have as many items as expected: then the rest of the source is irrelevant."""
    is_said = batch.closed_at is not None or batch.admitted == batch.expected
    return batch.ingested_at is not None and (read or is_said)


def has_ended(batch: Batch, now: float) -> bool:
    """Return whether the end of a batch has come: from then on, no more items are claimed."""
    return batch.ends_at is not None and now >= batch.ends_at


class Barrier(StrEnum):
    """Why no more items of a batch can be claimed."""

    CANCELLED = "cancelled"
    UNTIL = "until"
    """Its end has come."""
    PAUSED = "paused"
    TOLERANCE = "tolerance"
    """It has more dead letters than tolerated."""
    BUDGET = "budget"
    """Its budget does not cover another item."""


def barrier(batch: Batch, now: float, tolerance: DeadLimit | None = None, dead: int = 0) -> Barrier | None:
    """Return why no more items of a batch can be claimed, budget aside; None if they can."""
    if batch.course is BatchMode.CANCELLED:
        return Barrier.CANCELLED
    if has_ended(batch, now):
        return Barrier.UNTIL
    if batch.course is BatchMode.PAUSED:
        return Barrier.PAUSED
    return Barrier.TOLERANCE if is_exceeded(tolerance, dead, batch) else None


def check_takes_items(batch: Batch, fresh: int) -> None:
    """Refuse items for a batch that takes no more. A closed batch accepts items that it already has; `fresh` is the
    number of new ones."""
    if batch.sealed_at is not None:
        raise Refused(f"batch {batch.name!r} is sealed: it takes no more items; choose another batch name")
    if batch.course is BatchMode.CANCELLED:
        raise Refused(f"batch {batch.name!r} was cancelled: it takes no more items; choose another batch name")
    if fresh and batch.closed_at is not None:
        raise Refused(f"batch {batch.name!r} was closed: it takes no new items; send this one to another batch")


def is_exceeded(tolerance: DeadLimit | None, dead: int, batch: Batch) -> bool:
    """Return whether a batch has more dead letters than tolerated. A share applies once the number of items is known:
    before, every new item would change it."""
    if tolerance is None:
        return False
    share = tolerance.share if batch.ingested_at is not None else None
    too_many = tolerance.count is not None and dead > tolerance.count
    return too_many or (share is not None and dead > share_of(share, batch.admitted))


def share_of(share: float, count: int) -> int:
    """Return how many items a share allows, corrected for rounding: 0.29 * 100 is slightly less than 29."""
    return int(share * count + 1e-9)


def spare(tolerance: DeadLimit, dead: int, batch: Batch) -> int:
    """Return how many more items may die before the tolerance is exceeded, as far as known."""
    limits = [] if tolerance.count is None else [tolerance.count - dead]
    if tolerance.share is not None:
        limits.append(share_of(tolerance.share, batch.admitted) - dead)
    return max(0, min(limits, default=0))


def obstacle(batch: Batch, chunks: Sequence[Chunk], reconciliation: bytes, *, now: float) -> str | None:
    """Return why a batch cannot be sealed, or None. The reconciled state must be the sealed state: if the
    reconciliation names the heads it saw, they must still be the heads, and the expected number must be the same."""
    if batch.sealed_at is not None:
        return "it is sealed already"
    if batch.ingested_at is None and batch.course is not BatchMode.CANCELLED and not has_ended(batch, now):
        return missing_items(batch)
    pending = sum(chunk.pending for chunk in chunks)
    if pending:
        return f"{pending:,} of its items are pending: run it again, or cancel it"
    admitted = sum(chunk.size for chunk in chunks)
    if admitted != batch.admitted:
        return f"its chunks hold {admitted:,} items, but {batch.admitted:,} were admitted: run `holdfast audit verify`"
    seen = decode(reconciliation) if reconciliation else {}
    if "heads" in seen and (seen["heads"], seen.get("expected")) != (cover(chunks).hex(), batch.expected):
        return "it changed while it was reconciled: try again"
    return None


def check_sealable(batch: Batch, chunks: Sequence[Chunk], reconciliation: bytes, *, now: float) -> None:
    """Refuse to seal a batch that has an obstacle."""
    if (found := obstacle(batch, chunks, reconciliation, now=now)) is not None:
        raise Refused(f"batch {batch.name!r} cannot be sealed: {found}")


def missing_items(batch: Batch) -> str:
    """Return why a batch may lack items, and what to do."""
    if batch.expected is None:
        return "its source was not read to its end: run it again; if messages bring its items, close it"
    missing = batch.expected - batch.admitted
    return f"{missing:,} of {batch.expected:,} expected items have not come: wait for them, or close it"


def seal(chunks: Sequence[Chunk], reconciliation: bytes, reason: str = "") -> Sealed:
    """Return the body of the entry that seals a batch."""
    counts = Counts()
    for chunk in chunks:
        counts = counts.plus(chunk.counts)
    return Sealed(
        chunks=len(chunks), heads=cover(chunks), expected=sum(chunk.size for chunk in chunks), done=counts.done,
        skipped=counts.skipped, dead=counts.dead, cancelled=counts.cancelled, reconciliation=reconciliation,
        reason=reason,
    )  # fmt: skip


def cover(chunks: Sequence[Chunk]) -> bytes:
    """Return one digest over the heads of all chains: it changes with every entry. Chunks of items that were admitted
    in format 1 have no origin, and are named by their numbers in the store, as in the seals of that format."""
    found = hashlib.sha256()
    for chunk in sorted(chunks, key=lambda chunk: chunk.number):
        number = chunk.number if chunk.origin else int(chunk.id)
        found.update(number.to_bytes(8, "big") + chunk.seq.to_bytes(8, "big") + chunk.head)
    return found.digest()


def basis(batch: Batch, chunks: Sequence[Chunk]) -> bytes:
    """Return one digest over everything that decides the end of a batch: its items and their states, their expected
    number, its course and its end. Notes in its chain do not affect it."""
    facts = [batch.admitted, batch.ingested_at is not None, batch.course.value, batch.ends_at, batch.expected,
             batch.closed_at is not None]  # fmt: skip
    return hashlib.sha256(cover(chunks) + encode(facts)).digest()


def check_unchanged(batch: Batch, chunks: Sequence[Chunk], seen: bytes) -> None:
    """Refuse a decision that was made for another state of the batch."""
    if basis(batch, chunks) != seen:
        raise Conflict(f"batch {batch.name!r} changed in the meantime: try again; nothing was written")


ENDED = "ended"
"""The error code of items that were cancelled because their batch ended."""
CANCELLED = "cancelled"
"""The error code of items whose batch was cancelled."""
EMPTY = "empty"
"""The state of a batch whose source gave no items, unless that was allowed."""
FINDINGS = "finished with findings"
PAUSED = "paused"
OVER_TOLERANCE = "over tolerance"
HALTS = {"budget": PAUSED, "breaker": PAUSED, "tolerance": OVER_TOLERANCE}
"""The state of a batch whose last run ended for that reason: running it again does not help by itself."""


class StopReason(StrEnum):
    """Why a run ended before its batch was complete. `NONE`, which is false, if there is no such reason."""

    NONE = ""
    INTERRUPTED = "interrupted"
    """A signal, or an uncaught Ctrl-C."""
    DEADLINE = "deadline"
    """The run reached its deadline."""
    BUDGET = "budget"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    UNTIL = "until"
    """The end of the batch has come."""
    TOLERANCE = "tolerance"
    """More items died than `stop_beyond` allows."""
    BREAKER = "breaker"
    """A service did not answer for too long."""
    AWAY = "away"
    """The source is unavailable."""
    TROUBLE = "trouble"
    """An error that was shown to the caller."""


class BatchState(StrEnum):
    """One word for the state of a batch, as shown in reports and statuses."""

    NOT_BEGUN = "not begun"
    OPEN = "open"
    """Everything so far is settled, and more items may come."""
    RUNNING = "running"
    FOLLOWING = "following"
    """A healthy follow: it never ends."""
    WAITING = "waiting"
    """All remaining items wait for a retry that is not due yet."""
    INTERRUPTED = "interrupted"
    """Items are left, and no process works on them."""
    ORPHANED = "orphaned"
    PAUSED = "paused"
    OVER_TOLERANCE = "over tolerance"
    EMPTY = "empty"
    """The source gave no items, and that was not allowed."""
    COMPLETE = "complete"
    WITH_DEAD = "complete with dead letters"
    NOT_CONVERGED = "complete, not converged"
    FINDINGS = "finished with findings"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    SEALED = "sealed"
    SEALED_WITH_DEAD = "sealed with dead letters"


class End(StrEnum):
    """The end of a batch."""

    COMPLETE = "complete"
    WITH_DEAD = "complete with dead letters"
    STOPPED = "stopped"
    CANCELLED = "cancelled"


def end_of(batch: Batch, now: float, *, pending: int, dead: int, cut_short: Callable[[], bool]) -> End | None:
    """Return the end of a batch, or None while it may continue. `cut_short` returns whether items were cancelled
    because the batch ended, even if it was given a later end since; it is called only if that matters."""
    was_read = batch.ingested_at is not None
    if batch.course is BatchMode.CANCELLED:
        return End.CANCELLED
    if has_ended(batch, now) and (pending or not was_read):
        return End.STOPPED
    if pending or not was_read:
        return None
    if batch.ends_at is not None and cut_short():
        return End.STOPPED
    if batch.expected is not None and batch.admitted < batch.expected:
        return End.STOPPED
    return End.WITH_DEAD if dead else End.COMPLETE


def word_of(
    end: End | None, *, empty: bool = False, findings: bool = False, paused: bool = False, halted: str = ""
) -> str:
    """Return one word for a batch that has ended, or that cannot continue until an operator acts; empty while it may
    continue. `halted`: why its last run ended, if recorded."""
    if end in (End.CANCELLED, End.STOPPED):
        return end
    if empty:
        return EMPTY
    if end is not None:
        return FINDINGS if findings else end
    return PAUSED if paused else HALTS.get(halted, "")


BATCH_OPENED = "batch.opened"
BATCH_FINISHED = "batch.finished"
ITEM_DEAD = "item.dead"
ORPHAN_FOUND = "orphan.found"
ORPHAN_RESOLVED = "orphan.resolved"
WARNING = "warning"


def batch_opened(batch: str, pipeline: str) -> Event:
    """Return the event that a batch was created."""
    return _event(BATCH_OPENED, {"batch": batch, "pipeline": pipeline})


def batch_finished(end: str, counts: Mapping[str, int]) -> Event:
    """Return the event that a batch ended and every item is accounted for."""
    return _event(BATCH_FINISHED, {"end": end, "counts": dict(counts)})


def item_dead(n: int, key: Key, place: ItemState) -> Event:
    """Return the event that an item was buried."""
    facts = {"key": key, "stage": place.stage, "code": place.code, "reason": place.reason, "attempts": place.attempt}
    return _event(ITEM_DEAD, facts, n)


def orphan_found(n: int, key: Key, place: ItemState, *, kind: str, since: float) -> Event:
    """Return the event that an item was found stuck; `kind` is the kind of orphan."""
    return _event(ORPHAN_FOUND, {"key": key, "stage": place.stage, "kind": kind, "since": since}, n)


def orphans_found(count: int, *, kind: str, since: float) -> Event:
    """Return the event that many items were found stuck together; items with an event of their own are not counted."""
    return _event(ORPHAN_FOUND, {"items": count, "kind": kind, "since": since})


def orphan_resolved(n: int, key: Key, place: ItemState, *, strategy: str, actor: str, reason: str) -> Event:
    """Return the event that an orphan was resolved."""
    facts = {"key": key, "stage": place.stage, "strategy": strategy, "actor": actor, "reason": reason}
    return _event(ORPHAN_RESOLVED, facts, n)


def warning(code: str, message: str, n: int | None = None, **facts: Any) -> Event:
    """Return the event for a warning that an operator should see."""
    return _event(WARNING, {"code": code, "message": message, **facts}, n)


def _event(kind: str, facts: dict[str, Any], n: int | None = None) -> Event:
    return Event(kind=kind, body=encode(facts), n=None if n is None else ItemNo(n))
