"""Rows of a SQLite store: the statements by name, and the only code that knows the order of columns and the
format of ids.

Statements are in `statements.sql`: `-- name: commit_chunk`, then one statement each.

Payloads, outputs and accumulators are stored as frames: a salt, then the content.
"""

import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from importlib import resources
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw
import msgspec

from holdfast.core import journal, record
from holdfast.core.commitments import SALT_BYTES, Draw, Mark
from holdfast.core.course import stage_count
from holdfast.core.errors import UsageError
from holdfast.core.journal import Encoded
from holdfast.core.model import (
    START,
    Act,
    Batch,
    BatchId,
    BatchMode,
    Checkpoint,
    Chunk,
    ChunkId,
    Claim,
    Commit,
    Counts,
    Entry,
    Item,
    ItemNo,
    ItemState,
    Kind,
    Output,
    State,
    StoredEvent,
    StoredItem,
    TextFrame,
    chain_of_batch,
)
from holdfast.core.settle import Guard
from holdfast.stores.base import SetBack

if TYPE_CHECKING:
    from holdfast.stores.sqlite.file import SqliteFile


BULK = 512
"""Rows in one statement. Each statement releases the interpreter lock once; the rows in it do not."""

ROWS = "{rows}"
"""The position of the rows in a statement, if not at its end."""

_NAME = re.compile(r"^-- name: (\w+)(?: \(bulk\))?\s*$", re.MULTILINE)


@cache
def load(file: str) -> dict[str, str]:
    """Return the statements of a file in this package, by name."""
    text = resources.files("holdfast.stores.sqlite").joinpath(file).read_text("utf-8")
    parts = _NAME.split(text)[1:]
    return {name: sql.strip().rstrip(";") for name, sql in zip(parts[::2], parts[1::2], strict=True)}


def write_rows(execute: Callable[[str, Any], object], sql: str, rows: Sequence[Sequence[Any]]) -> None:
    """Write many rows with few statements, in sizes that keep the statement cache warm."""
    start, left = 0, len(rows)
    width = len(rows[0]) if rows else 0
    size = BULK
    while left:
        while size > left:
            size >>= 1
        execute(_values(sql, width, size), tuple(chain.from_iterable(rows[start : start + size])))
        start, left = start + size, left - size


@cache
def _values(sql: str, width: int, rows: int) -> str:
    values = ",".join(["(" + ",".join("?" * width) + ")"] * rows)
    return sql.replace(ROWS, values) if ROWS in sql else f"{sql} {values}"


SQL = load("statements.sql")


class UnreadableRow(ValueError):
    """A column does not contain what was written to it."""


LONGEST_GAP = 1 << 20
"""Words of one entry that may be missing in a row; with more, the row is damaged."""
STAGE_BITS = 6
ITEM_BITS = 34
STAGE_MASK = (1 << STAGE_BITS) - 1
PLAIN_PLACES = [START, *(ItemState(stage=stage) for stage in range(1, STAGE_MASK + 1))]


NUMBER, WHOLE, TEXT, BYTES, NOTHING = (float, int), (int,), (str,), (bytes,), type(None)
MOMENT = (float, NOTHING)
BATCH_SHAPE = (WHOLE, BYTES, TEXT, TEXT, BYTES, NUMBER, WHOLE, MOMENT, TEXT, MOMENT, MOMENT, (int, NOTHING), MOMENT,
               WHOLE, BYTES)  # fmt: skip
CHUNK_SHAPE = (*[WHOLE] * 5, (int, NOTHING), WHOLE, BYTES, WHOLE, (str, NOTHING), NUMBER, NUMBER, *[WHOLE] * 10, NUMBER,
               WHOLE, BYTES, NUMBER, TEXT, *[WHOLE] * 4)  # fmt: skip
EVENT_SHAPE = (WHOLE, WHOLE, NUMBER, TEXT, BYTES, (int, NOTHING))
CHECKPOINT_SHAPE = (WHOLE, WHOLE, BYTES, (bytes, NOTHING), NUMBER)
PLACE_SHAPE = (WHOLE, TEXT, WHOLE, WHOLE, NUMBER, NUMBER, NUMBER, WHOLE, WHOLE, WHOLE, NUMBER, TEXT, TEXT)


def checked(row: Any, shape: tuple[tuple[type, ...], ...]) -> Any:
    """Return the row if every column has an allowed type: in a damaged file, a number may have become something
    else."""
    if trouble := _trouble(tuple(map(type, row)), shape):
        raise UnreadableRow(trouble)
    return row


@lru_cache(maxsize=1024)
def _trouble(kinds: tuple[type, ...], shape: tuple[tuple[type, ...], ...]) -> str:
    """Return what is wrong with columns of these types; rows of one table have few combinations."""
    for kind, types in zip(kinds, shape, strict=True):
        if kind not in types:
            return f"{kind.__name__} instead of {types[0].__name__}"
    return ""


def state_of(word: Any) -> State:
    try:
        return State(word)
    except ValueError:
        raise UnreadableRow(f"{word!r} is not a state") from None


def kind_of(word: str) -> Kind:
    try:
        return Kind(word)
    except ValueError:
        raise UnreadableRow(f"{word!r} is not a kind of chunk") from None


def batch_of(row: Any) -> Batch:
    (id_, uid, name, pipeline, definition, opened_at, admitted, ingested_at, course, ends_at, sealed_at,
     expected, closed_at, seq, head) = checked(row, BATCH_SHAPE)  # fmt: skip
    return Batch(
        id=BatchId(id_), uid=uid, name=name, pipeline=pipeline, definition=definition, opened_at=opened_at,
        admitted=admitted, ingested_at=ingested_at, course=BatchMode(course), ends_at=ends_at, sealed_at=sealed_at,
        expected=expected, closed_at=closed_at, seq=seq, head=head,
    )  # fmt: skip


def chunk_of(row: Any) -> Chunk:
    (id_, batch, number, lo, hi, parent, fence, grant, version, owner, expires, due, blame, progressed, reserved, done,
     skipped, dead, cancelled, attempts, spent, tokens, seconds, seq, head, touched_at, kind, leg, first, end,
     origin) = checked(row, CHUNK_SHAPE)  # fmt: skip
    counts = Counts(done=done, skipped=skipped, dead=dead, cancelled=cancelled, attempts=attempts, spent=spent,
                    tokens=tokens, seconds=seconds)  # fmt: skip
    return Chunk(
        id=ChunkId(id_), batch=BatchId(batch), number=number, lo=ItemNo(lo), hi=ItemNo(hi), parent=parent, fence=fence,
        grant=grant, version=version, owner=owner, expires=expires, due=due, blame=blame, progressed=bool(progressed),
        reserved=reserved, counts=counts, seq=seq, head=head, touched_at=touched_at, kind=kind_of(kind), leg=leg,
        first=first, end=end, origin=origin,
    )  # fmt: skip


def entry_of(row: Any, texts: tuple[TextFrame, ...]) -> Entry:
    chain, seq, head, body, hash_ = row
    return Entry(chain=chain, seq=seq, head=head, body=body, hash=hash_, texts=texts)


GONE = TextFrame(-1, 0, None)
"""In place of words whose row is missing."""


def texts_of(rows: Iterable[Any]) -> dict[int, tuple[TextFrame, ...]]:
    """Return the words of entries, by the number of the entry, each at its position."""
    found: dict[int, list[TextFrame]] = {}
    for seq, at, n, boundary, frame in rows:
        some = found.setdefault(seq, [])
        if not len(some) <= at < len(some) + LONGEST_GAP:
            raise UnreadableRow(f"words of entry {seq} are out of order")
        some += [GONE] * (at - len(some))
        some.append(TextFrame(n, boundary, frame))
    return {seq: tuple(some) for seq, some in found.items()}


def event_of(row: Any) -> StoredEvent:
    id_, batch, at, kind, body, n = checked(row, EVENT_SHAPE)
    return StoredEvent(id=id_, batch=BatchId(batch), at=at, kind=kind, body=body, n=n)


class Window(NamedTuple):
    """The stages that the items of a chunk pass through."""

    first: int
    end: int

    def reached(self, output_id: int | None) -> ItemState:
        """Return the place of an item on the plain way, given its last output."""
        stage = self.first if output_id is None else (output_id & STAGE_MASK) + 1
        return PLAIN_PLACES[stage] if stage < self.end else ItemState(stage=stage, state=State.DONE)


def item_of(row: Any, base: int, window: Window) -> Item:
    """Return a row of `load_any`: the input is the payload, or the output of the stage before."""
    id_, key, payload, revision, output_id, data, file, place_id, *place = row
    at = window.reached(output_id) if place_id is None else place_of(place)
    n, is_first = ItemNo(id_ - base), at.stage == window.first
    given = payload if is_first else data
    source = file[SALT_BYTES:] if file is not None and not is_first else None
    return Item(n, key, given[SALT_BYTES:] if given is not None else b"", at, place_id is None, source, revision)


def stored_item_of(row: Any, base: int, window: Window, newest: Mapping[int, Any]) -> StoredItem:
    """Return a row of `records_any`; if it has no place, the item is after its last output. `newest`: the last revision
    of payloads that have any, by id."""
    id_, key, payload, raw, revision, parent, output_id, place_id, *place = row
    at = window.reached(output_id) if place_id is None else place_of(place)
    if id_ in newest:
        revision, payload, raw = newest[id_]
    payload = payload if payload is not None else b""
    return StoredItem(n=ItemNo(id_ - base), key=key, place=at, payload=payload[SALT_BYTES:], salt=payload[:SALT_BYTES],
                      revision=revision, raw_salt=raw if raw is not None else b"", parent=parent)  # fmt: skip


def place_of(columns: Any) -> ItemState:
    stage, state, epoch, attempt, due, used, wait, spent, rewinds, requeues, deferred, code, reason = checked(
        columns, PLACE_SHAPE
    )
    return ItemState(stage=stage, state=state_of(state), epoch=epoch, attempt=attempt, due=due, used=used, wait=wait,
                 spent=spent, rewinds=rewinds, requeues=requeues, deferred=deferred, code=code,
                 reason=reason)  # fmt: skip


def place_row(p: ItemState) -> tuple[Any, ...]:
    return (p.stage, p.state.value, p.epoch, p.attempt, p.due, p.used, p.wait, p.spent, p.rewinds, p.requeues,
            p.deferred, p.code, p.reason)  # fmt: skip


def checkpoint_of(row: Any, base: int) -> Checkpoint:
    id_, rows, cursor, acc, at = checked(row, CHECKPOINT_SHAPE)
    salt, content = (b"", None) if acc is None else (acc[:SALT_BYTES], acc[SALT_BYTES:])
    return Checkpoint(ItemNo(id_ - base), rows, cursor, content, at, salt)


def row_of_checkpoint(base: int, at: Checkpoint, now: float) -> tuple[Any, ...]:
    return base + at.n, at.rows, at.cursor, None if at.acc is None else at.salt + at.acc, now


def rows_of_checkpoints(batch: BatchId, checkpoints: Sequence[Checkpoint], now: float) -> list[Any]:
    base = batch << ITEM_BITS
    return [row_of_checkpoint(base, each, now) for each in checkpoints]


def output_of(row: Any, base: int) -> Output:
    id_, epoch, data, file = row
    salt = (data if file is None else file) or b""
    return Output(
        ItemNo((id_ >> STAGE_BITS) - base), id_ & STAGE_MASK, epoch, None if data is None else data[SALT_BYTES:],
        None if file is None else file[SALT_BYTES:], salt[:SALT_BYTES],
    )  # fmt: skip


def row_of_output(base: int, output: Output, salt: bytes) -> tuple[Any, ...]:
    data, file = output.data, output.file
    return (((base + output.n) << STAGE_BITS) | output.stage, output.epoch, None if data is None else salt + data,
            None if file is None else salt + file)  # fmt: skip


class Prepared(NamedTuple):
    """A commit with everything that is built before the transaction begins."""

    commit: Commit
    encoded: Encoded
    outputs: list[Any]
    places: list[Any]
    checkpoints: list[Checkpoint]


class Landing(NamedTuple):
    """A commit that its guard let through, with everything it writes."""

    commit: Commit
    outputs: list[Any]
    places: list[Any]
    checkpoints: list[Checkpoint]
    entry: Entry
    at: float


class ChainHead(NamedTuple):
    """The end of the chain of a chunk, and the guard of the chunk."""

    seq: int
    head: bytes
    chain: journal.Chain
    guard: Guard


def chain_head_of(row: Any) -> tuple[ChunkId, ChainHead]:
    id_, fence, grant, version, owner, seq, head, number, lo, hi, uid, sealed_at = row
    guard = Guard(fence, grant, version, owner, lo, hi, sealed_at is not None)
    return id_, ChainHead(seq, head, journal.Chain(uid, number, id_), guard)


class Granted(NamedTuple):
    """A claim, with the entry and the row of its chunk."""

    claim: Claim
    entry: Entry
    row: tuple[Any, ...]


def prepare(commit: Commit, draw: Draw, mark: Mark = record.unmarked) -> Prepared:
    """Build everything that a commit writes."""
    base, made = commit.batch << ITEM_BITS, record.of_commit(commit, draw, mark)
    outputs = [row_of_output(base, o, salt) for o, salt in zip(commit.outputs, made.salts, strict=True)]
    places = [(base + m.n, *place_row(m.place)) for m in commit.moves]
    return Prepared(commit, made.encoded, outputs, places, made.checkpoints)


def row_of_advance(landing: Landing) -> tuple[Any, ...]:
    """Return the row for `advance_chunks`: the chunk after a commit, released or not."""
    commit, entry, now, c = landing.commit, landing.entry, landing.at, landing.commit.counts
    return (commit.chunk, commit.fence, commit.grant, commit.version, entry.seq, entry.hash, now, now + commit.extend,
            c.done, c.skipped, c.dead, c.cancelled, c.attempts, c.spent, c.tokens, c.seconds, commit.reserved,
            commit.release, commit.due)  # fmt: skip


def row_of_start(landing: Landing) -> tuple[Any, ...]:
    """Return the row for `start_chunks`: the chunk with one more strike."""
    commit, entry = landing.commit, landing.entry
    return (commit.chunk, commit.fence, commit.grant, commit.version, entry.seq, entry.hash,
            landing.at + commit.extend)  # fmt: skip


def row_of_grant(granted: Chunk, was: int, entry: Entry) -> tuple[Any, ...]:
    """Return the row for `grant_chunks`: the chunk under its new fence; `was` is the previous one."""
    c = granted.counts
    return (granted.id, was, granted.hi, granted.fence, granted.grant, granted.owner, granted.expires, granted.due,
            granted.blame, granted.reserved, c.done, c.skipped, c.dead, c.cancelled, entry.seq, entry.hash)  # fmt: skip


# -- reading and writing rows inside a transaction ---------------------------------------------------------------


def is_noted(db: "SqliteFile", batch: BatchId, mark: bytes, kind: str, content: bytes) -> bool:
    """Return whether a note was written once, in this format or in the first one, which had no marks."""
    if db.execute(SQL["is_noted"], (batch, mark)):
        return True
    heads = db.execute(SQL["heads_of_body"], (chain_of_batch(batch), len(content), content))
    return any(journal.decode_header(head).kind == kind for (head,) in heads)


def insert_entries(db: "SqliteFile", entries: Sequence[Entry]) -> None:
    write_rows(db.cursor, SQL["insert_entries"], [(e.chain, e.seq, e.head, e.body, e.hash) for e in entries])
    write_rows(db.cursor, SQL["insert_texts"], [
        (e.chain, e.seq, at, text.n, text.boundary, text.frame) for e in entries for at, text in enumerate(e.texts)
    ])  # fmt: skip


def insert_chunk(db: "SqliteFile", new: Chunk) -> None:
    """Write a new chunk."""
    c = new.counts
    row = (new.id, new.batch, new.number, new.lo, new.hi, new.parent, new.fence, new.grant, new.version, new.owner,
           new.expires, new.reserved, new.due, new.blame, int(new.progressed), c.done, c.skipped, c.dead, c.cancelled,
           c.attempts, c.spent, c.tokens, c.seconds, new.seq, new.head, new.touched_at, new.kind.value, new.leg,
           new.first, new.end, new.origin)  # fmt: skip
    db.execute(SQL["insert_chunk"], row)


def end_chunk(db: "SqliteFile", ended: Chunk) -> None:
    """Write a chunk whose chain has ended: it has no items and no totals any more."""
    before = db.changes()
    db.execute(SQL["end_chunk"], (ended.seq, ended.head, ended.id, ended.seq))
    assert db.changes() - before == 1, f"chunk {ended.id} changed inside the transaction that ends its chain"


def new_numbers(db: "SqliteFile", batch: BatchId) -> tuple[ChunkId, int]:
    """Return the numbers of a new chunk: in this store, and within its batch."""
    id_, number = db.execute(SQL["next_numbers"], (batch,))[0]
    return ChunkId(id_), number


def change_chunks(db: "SqliteFile", statement: str, changed: Sequence[Any]) -> None:
    """Change exactly one chunk per row, the one named by its guard."""
    before = db.changes()
    write_rows(db.cursor, SQL[statement], changed)
    assert db.changes() - before == len(changed), f"a chunk changed inside the transaction that writes it: {changed}"


def chain_heads(db: "SqliteFile", chunks: Sequence[ChunkId]) -> dict[ChunkId, ChainHead]:
    """Return the guards of these chunks and the heads of their chains; missing chunks are left out."""
    return dict(map(chain_head_of, db.execute(SQL["guard_chunks"], (apsw.carray(array("q", chunks)),))))


def has_landed(db: "SqliteFile", commit: Commit) -> bool:
    """Search from the newest entry back to the grant of the commit: earlier entries cannot contain it."""
    for (head,) in db.cursor(SQL["newest_heads"], (commit.chunk,)):
        header = journal.decode_header(head)
        if header.commit_id == commit.id:
            return True
        if header.kind == "claimed" and header.fence <= commit.fence:
            return False
    return False


def was_done(db: "SqliteFile", act: Act, chunks: Sequence[ChunkId]) -> bool:
    """Return whether the id of an act is in the chains of the chunks, or of those that they were cut from."""
    found = db.execute(SQL["heads_with_id"], (apsw.carray(array("q", chunks)), act.id)) if act.id else []
    return any(journal.decode_header(head).commit_id == act.id for (head,) in found)


def dead_count(db: "SqliteFile", batch: BatchId) -> int:
    return int(db.execute(SQL["dead_count"], (batch,))[0][0])


def holders(db: "SqliteFile", batch: BatchId, now: float) -> dict[str, int]:
    """Return the owners of chunks that are due, each with the number of its chunks whose leases have not ended."""
    return dict(db.execute(SQL["holders"], (now, batch, now)))


def free_chunks(
    db: "SqliteFile", sql: str, terms: tuple[Any, ...], most: int, keeps: frozenset[ChunkId]
) -> list[Chunk]:
    """Return up to so many claimable chunks, without those that the claimer keeps. More are read only if leases of kept
    chunks have ended."""
    found = db.execute(sql, (*terms, most))
    if any(row[0] in keeps for row in found):
        found = [row for row in db.execute(sql, (*terms, most + len(keeps))) if row[0] not in keeps]
    return [chunk_of(row) for row in found[:most]]


def chunk_with(db: "SqliteFile", batch: BatchId, n: ItemNo) -> Chunk:
    """Return the chunk that has an item. Raise UsageError if there is none."""
    told = db.execute(SQL["chunk_of_item"], (batch, n))
    if not told or n >= (found := chunk_of(told[0])).hi:
        raise UsageError(f"batch number {batch} has no item number {n}")
    return found


def snapshots(db: "SqliteFile", chunk: Chunk) -> list[journal.Snapshot]:
    """Return snapshots of pending items that were tried before. There are none if the chunk has no entry and no
    parent."""
    base = chunk.batch << ITEM_BITS
    return [
        journal.Snapshot(n=row[0] - base, stage=row[1], epoch=row[2], attempt=row[3], code=row[4], used=row[5])
        for row in db.execute(SQL["places_in_range"], (base + chunk.lo, base + chunk.hi))
    ]


def states(db: "SqliteFile", chunk: Chunk) -> list[State]:
    """Return the state of each item of the chunk; refuse states that contradict the totals of the chunk."""
    base = chunk.batch << ITEM_BITS
    found = db.cursor(SQL["states_in_range"], (chunk.end, base + chunk.lo, base + chunk.hi))
    told = [state_of(state) for (state,) in found]
    if (pending := told.count(State.PENDING)) != chunk.pending or len(told) != chunk.hi - chunk.lo:
        raise UnreadableRow(f"chunk {chunk.id} counts {chunk.pending} pending items, but has {pending}")
    return told


def places_of(db: "SqliteFile", chunk: Chunk, ns: Iterable[ItemNo]) -> dict[ItemNo, ItemState]:
    """Return the places of some items of a chunk."""
    base, window = chunk.batch << ITEM_BITS, Window(chunk.first, chunk.end)
    found = db.execute(SQL["records_of"], (apsw.carray(array("q", [base + n for n in ns])),))
    return {item.n: item.place for item in (stored_item_of(row, base, window, {}) for row in found)}


def stored_items(db: "SqliteFile", batch: BatchId, told: Sequence[Any], stages: int) -> list[StoredItem]:
    """Return the items of some rows in order, each with the window of its chunk and its newest revision."""
    if not told:
        return []
    base, first, last = batch << ITEM_BITS, told[0][0], told[-1][0]
    windows = db.execute(SQL["windows_in_range"], (batch, last - base, batch, first - base))
    starts = [lo for lo, _, _ in windows]
    newest = {id_: rest for id_, *rest in db.execute(SQL["newest_revisions"], (first, last))}
    found = []
    for row in told:
        at = bisect_right(starts, row[0] - base) - 1
        window = Window(0, stages) if at < 0 else Window(*windows[at][1:])
        found.append(stored_item_of(row, base, window, newest))
    return found


def newest_revision(db: "SqliteFile", batch: BatchId, n: ItemNo) -> int:
    return int(db.execute(SQL["newest_revision"], ((batch << ITEM_BITS) + n,))[0][0])


def revised(item: StoredItem, revision: int, payload: bytes | None, raw: bytes | None) -> StoredItem:
    """Return an item with another of its payloads."""
    frame = payload if payload is not None else b""
    return msgspec.structs.replace(item, revision=revision, payload=frame[SALT_BYTES:], salt=frame[:SALT_BYTES],
                                   raw_salt=raw if raw is not None else b"")  # fmt: skip


def rows_of_revisions(batch: BatchId, revisions: Sequence[record.Revision]) -> list[Any]:
    base = batch << ITEM_BITS
    return [(base + r.n, r.number, r.salt + r.item.payload, r.raw_salt or None) for r in revisions]


def set_back(db: "SqliteFile") -> SetBack | None:
    """Return whether an open file knows that it was set back, and when."""
    found = db.execute("SELECT value FROM meta WHERE name = 'set_back'")
    if not found:
        return None
    had, has, at = str(found[0][0]).split()
    return SetBack(int(had), int(has), float(at))


def stages_in(definition: bytes) -> int | None:
    """Return the number of stages in a definition; None if it cannot be read."""
    try:
        return stage_count(definition)
    except (msgspec.DecodeError, TypeError, LookupError):
        return None
