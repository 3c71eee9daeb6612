"""Between rows and values: the only place that knows the order of columns and the shape of ids."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from holdfast.core.model import (
    START,
    Batch,
    BatchId,
    Checkpoint,
    Chunk,
    ChunkId,
    Claim,
    Commit,
    Counts,
    Course,
    Entry,
    Item,
    ItemNo,
    Place,
    State,
    StoredEvent,
    StoredItem,
)
from holdfast.core.settle import Guard
from holdfast.stores.sqlite.file import UnreadableRow

STAGE_BITS = 6
ITEM_BITS = 34
STAGE_MASK = (1 << STAGE_BITS) - 1
PLAIN_PLACES = [START, *(Place(stage=stage) for stage in range(1, STAGE_MASK + 1))]


NUMBER, WHOLE, TEXT, BYTES, NOTHING = (float, int), (int,), (str,), (bytes,), type(None)
MOMENT = (float, NOTHING)
BATCH_SHAPE = (WHOLE, TEXT, TEXT, BYTES, NUMBER, WHOLE, MOMENT, TEXT, MOMENT, MOMENT, (int, NOTHING), MOMENT,
               WHOLE, BYTES)  # fmt: skip
CHUNK_SHAPE = (*[WHOLE] * 4, (int, NOTHING), WHOLE, WHOLE, (str, NOTHING), NUMBER, NUMBER, *[WHOLE] * 10, NUMBER, WHOLE,
               BYTES, NUMBER)  # fmt: skip
EVENT_SHAPE = (WHOLE, WHOLE, NUMBER, TEXT, BYTES, (int, NOTHING))
CHECKPOINT_SHAPE = (WHOLE, WHOLE, BYTES, (bytes, NOTHING), NUMBER)
PLACE_SHAPE = (WHOLE, TEXT, WHOLE, WHOLE, NUMBER, NUMBER, NUMBER, WHOLE, WHOLE, WHOLE, NUMBER, TEXT, TEXT)


def checked(row: Any, shape: tuple[tuple[type, ...], ...]) -> Any:
    """The row, if every column holds what it should: in a damaged file, a number may have become something else."""
    if trouble := _trouble(tuple(map(type, row)), shape):
        raise UnreadableRow(trouble)
    return row


@lru_cache(maxsize=1024)
def _trouble(kinds: tuple[type, ...], shape: tuple[tuple[type, ...], ...]) -> str:
    """What is wrong with columns of these types; rows of one table have few combinations of them."""
    for kind, types in zip(kinds, shape, strict=True):
        if kind not in types:
            return f"{kind.__name__} instead of {types[0].__name__}"
    return ""


def state_of(word: Any) -> State:
    try:
        return State(word)
    except ValueError:
        raise UnreadableRow(f"{word!r} is not a state") from None


def batch_of(row: Any) -> Batch:
    (id_, name, pipeline, definition, opened_at, admitted, ingested_at, course, ends_at, sealed_at,
     expected, closed_at, seq, head) = checked(row, BATCH_SHAPE)  # fmt: skip
    return Batch(
        id=BatchId(id_), name=name, pipeline=pipeline, definition=definition, opened_at=opened_at, admitted=admitted,
        ingested_at=ingested_at, course=Course(course), ends_at=ends_at, sealed_at=sealed_at,
        expected=expected, closed_at=closed_at, seq=seq, head=head,
    )  # fmt: skip


def chunk_of(row: Any) -> Chunk:
    (id_, batch, lo, hi, parent, fence, version, owner, expires, due, blame, progressed, reserved, done, skipped, dead,
     cancelled, attempts, spent, tokens, seconds, seq, head, touched_at) = checked(row, CHUNK_SHAPE)  # fmt: skip
    counts = Counts(done=done, skipped=skipped, dead=dead, cancelled=cancelled, attempts=attempts, spent=spent,
                    tokens=tokens, seconds=seconds)  # fmt: skip
    return Chunk(
        id=ChunkId(id_), batch=BatchId(batch), lo=ItemNo(lo), hi=ItemNo(hi), parent=parent, fence=fence,
        version=version, owner=owner, expires=expires, due=due, blame=blame, progressed=bool(progressed),
        reserved=reserved, counts=counts, seq=seq, head=head, touched_at=touched_at,
    )  # fmt: skip


def entry_of(row: Any) -> Entry:
    chain, seq, head, body, hash_ = row
    return Entry(chain=chain, seq=seq, head=head, body=body, hash=hash_)


def event_of(row: Any) -> StoredEvent:
    id_, batch, at, kind, body, n = checked(row, EVENT_SHAPE)
    return StoredEvent(id=id_, batch=BatchId(batch), at=at, kind=kind, body=body, n=n)


def item_of(row: Any, base: int) -> Item:
    """A row of `load_any`: the input is the payload, or the output of the stage before."""
    id_, key, salt, payload, output_id, data, file, place_id, *place = row
    if place_id is None:
        stage = 0 if output_id is None else (output_id & STAGE_MASK) + 1
        at = PLAIN_PLACES[stage]
    else:
        at = place_of(place)
    given = payload if at.stage == 0 else (data if data is not None else b"")
    return Item(ItemNo(id_ - base), key, salt, given, at, place_id is None, file if at.stage else None)


def stored_item_of(row: Any, base: int, stages: int) -> StoredItem:
    """A row of `records_any`; where there is no place, the item stands after its last output."""
    id_, key, payload, salt, output_id, place_id, *place = row
    if place_id is None:
        stage = 0 if output_id is None else (output_id & STAGE_MASK) + 1
        at = PLAIN_PLACES[stage] if stage < stages else Place(stage=stage, state=State.DONE)
    else:
        at = place_of(place)
    return StoredItem(n=ItemNo(id_ - base), key=key, place=at, payload=payload, salt=salt)


def place_of(columns: Any) -> Place:
    stage, state, epoch, attempt, due, used, wait, spent, rewinds, requeues, deferred, code, reason = checked(
        columns, PLACE_SHAPE
    )
    return Place(stage=stage, state=state_of(state), epoch=epoch, attempt=attempt, due=due, used=used, wait=wait,
                 spent=spent, rewinds=rewinds, requeues=requeues, deferred=deferred, code=code,
                 reason=reason)  # fmt: skip


def place_row(p: Place) -> tuple[Any, ...]:
    return (p.stage, p.state.value, p.epoch, p.attempt, p.due, 0.0, p.used, p.wait, p.spent, p.rewinds, p.requeues,
            p.deferred, p.code, p.reason)  # fmt: skip


def checkpoint_of(row: Any, base: int) -> Checkpoint:
    id_, rows, cursor, acc, at = checked(row, CHECKPOINT_SHAPE)
    return Checkpoint(ItemNo(id_ - base), rows, cursor, acc, at)


def rows_of_checkpoints(batch: BatchId, checkpoints: Sequence[Checkpoint], now: float) -> list[Any]:
    base = batch << ITEM_BITS
    return [(base + each.n, each.rows, each.cursor, each.acc, now) for each in checkpoints]


class Prepared(NamedTuple):
    """A commit with the rows of its outputs and places, made before the transaction begins."""

    commit: Commit
    outputs: list[Any]
    places: list[Any]


class Landing(NamedTuple):
    """A commit that its guard let through, with everything it writes."""

    commit: Commit
    outputs: list[Any]
    places: list[Any]
    entry: Entry
    at: float


class ChainHead(NamedTuple):
    """The end of the chain of a chunk, and the chunk as a commit finds it."""

    seq: int
    head: bytes
    guard: Guard


def chain_head_of(row: Any) -> tuple[ChunkId, ChainHead]:
    id_, fence, version, owner, seq, head, lo, hi, sealed_at = row
    return id_, ChainHead(seq, head, Guard(fence, version, owner, lo, hi, sealed_at is not None))


class Granted(NamedTuple):
    """A claim, with the entry and the row of its chunk that make it true."""

    claim: Claim
    entry: Entry
    row: tuple[Any, ...]


def rows_of_commit(commit: Commit) -> tuple[list[Any], list[Any]]:
    """The rows of its outputs and places."""
    base = commit.batch << ITEM_BITS
    outputs = [(((base + o.n) << STAGE_BITS) | o.stage, o.epoch, o.data, o.file) for o in commit.outputs]
    return outputs, [(base + m.n, *place_row(m.place)) for m in commit.moves]


def row_of_advance(landing: Landing) -> tuple[Any, ...]:
    """For `advance_chunks`: the chunk after a commit, given back with it or not."""
    commit, entry, now, c = landing.commit, landing.entry, landing.at, landing.commit.counts
    return (commit.chunk, commit.fence, commit.version, entry.seq, entry.hash, now, now + commit.extend, c.done,
            c.skipped, c.dead, c.cancelled, c.attempts, c.spent, c.tokens, c.seconds, commit.reserved, commit.release,
            commit.due)  # fmt: skip


def row_of_start(landing: Landing) -> tuple[Any, ...]:
    """For `start_chunks`: the chunk with one more strike."""
    commit, entry = landing.commit, landing.entry
    return commit.chunk, commit.fence, commit.version, entry.seq, entry.hash, landing.at + commit.extend


def row_of_grant(granted: Chunk, was: int, entry: Entry) -> tuple[Any, ...]:
    """For `grant_chunks`: the chunk under its new fence; `was` is the one before."""
    c = granted.counts
    return (granted.id, was, granted.hi, granted.fence, granted.owner, granted.expires, granted.due, granted.blame,
            granted.reserved, c.done, c.skipped, c.dead, c.cancelled, entry.seq, entry.hash)  # fmt: skip
