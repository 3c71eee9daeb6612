"""What a write adds to the record: salts and commitments for its content, and the encoded body of its entry.

Stores call this, and nothing else makes commitments: an engine hands over content and facts, and a store turns them
into rows and an entry that proves them. Everything is built before the transaction begins, as far as the facts are
known by then.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.core import commitments, sections
from holdfast.core.acts import Effect
from holdfast.core.commitments import Draw, Mark
from holdfast.core.journal import (
    Body,
    Carried,
    Chain,
    ChainEnded,
    Continued,
    Encoded,
    Ingested,
    Position,
    RefusalReason,
    encode_content,
    link,
    numbers,
)
from holdfast.core.model import (
    START,
    Batch,
    Change,
    Checkpoint,
    Chunk,
    ChunkId,
    Commit,
    Counts,
    Entry,
    ItemNo,
    ItemOrigin,
    Kind,
    NewItem,
    Output,
    StoredItem,
    chain_of_batch,
)

replace = msgspec.structs.replace


def link_batch(batch: Batch, kind: str, body: Body, actor: str, now: float, draw: Draw) -> Entry:
    """Return the next entry in the chain of a batch."""
    chain = Chain(batch.uid, 0, chain_of_batch(batch.id))
    encoded = sections.encode(body, batch.uid, 0, b"", draw)
    return link(batch.head, chain, seq=batch.seq + 1, kind=kind, at=now, actor=actor, encoded=encoded)


def link_chunk(
    uid: bytes, chunk: Chunk, kind: str, encoded: Encoded, actor: str, now: float, *, fence: int, grant: bytes = b"",
    commit_id: bytes = b"",
) -> Entry:  # fmt: skip
    """Return the next entry in the chain of a chunk."""
    return link(chunk.head, Chain(uid, chunk.number, chunk.id), seq=chunk.seq + 1, kind=kind, at=now, actor=actor,
                fence=fence, grant=grant, commit_id=commit_id, encoded=encoded)  # fmt: skip


class SaltedCommit(NamedTuple):
    """A commit as it is written."""

    commit: Commit
    encoded: Encoded
    salts: list[bytes]
    """One for each output."""
    checkpoints: list[Checkpoint]
    """With their salts."""


def unmarked(_label: str, _content: bytes) -> bytes:
    """Return no mark: for a store that cannot recognise the same content again."""
    return b""


def of_commit(commit: Commit, draw: Draw, mark: Mark = unmarked) -> SaltedCommit:
    """Return a commit with commitments to its outputs and accumulators; `mark` makes marks of accumulators."""
    body, uid = commit.body, commit.uid
    salts = commitments.salts(draw, len(commit.outputs))
    digests = commitments.outputs(uid, commit.outputs, salts)
    advanced, at = [], 0
    for group in body.advanced:
        upto = at + len(group.items)
        advanced.append(replace(group, digests=b"".join(digests[at:upto])))
        at = upto
    assert at == len(digests), f"commit {commit.id.hex()} has {len(digests)} outputs, but its entry names {at}"
    if commit.checkpoints:
        checkpoints = [_salted(each, draw) for each in commit.checkpoints]
        told = zip(body.positions, checkpoints, strict=True)
        positions = [_committed(position, uid, each, mark) for position, each in told]
        body = replace(body, advanced=advanced, positions=positions)
    else:
        checkpoints = []
        body = replace(body, advanced=advanced) if advanced else body
    return SaltedCommit(commit, sections.encode(body, uid, commit.number, commit.id, draw), salts, checkpoints)


def _salted(checkpoint: Checkpoint, draw: Draw) -> Checkpoint:
    return checkpoint if checkpoint.acc is None else replace(checkpoint, salt=draw(commitments.SALT_BYTES))


def _committed(position: Position, uid: bytes, at: Checkpoint, mark: Mark) -> Position:
    known = b"" if at.acc is None else mark("accumulator", b"%b%d:%b" % (uid, at.n, at.acc))
    return replace(position, digest=of_accumulator(uid, at), mark=known)


def of_accumulator(uid: bytes, at: Checkpoint) -> bytes:
    """Return the commitment to the accumulator of a stored checkpoint; empty if it has none."""
    return b"" if at.acc is None else commitments.accumulator(uid, at.n, at.rows, at.salt, at.acc)


def of_output(uid: bytes, output: Output) -> bytes:
    """Return the commitment to a stored output."""
    if output.file is not None or output.data is None:
        return commitments.file(uid, output.n, output.stage, output.epoch, output.salt, output.file or b"")
    return commitments.output(uid, output.n, output.stage, output.epoch, output.salt, output.data)


# -- acts -------------------------------------------------------------------------------------------------------------


class Revision(NamedTuple):
    """The next revision of an item's payload, as it is written."""

    n: ItemNo
    number: int
    item: NewItem
    salt: bytes
    raw_salt: bytes
    """Empty if validation did not change the item."""


class SaltedAct(NamedTuple):
    """An act on one chunk as it is written."""

    encoded: Encoded
    outputs: list[Output]
    checkpoints: list[Checkpoint]
    revisions: list[Revision]


def of_act(
    effect: Effect, uid: bytes, chunk: Chunk, act_id: bytes, draw: Draw, revision_of: Callable[[ItemNo], int],
    mark: Mark = unmarked,
) -> SaltedAct:  # fmt: skip
    """Return an act with commitments to the content it brings. `revision_of` returns the number of the newest revision
    of a stored payload."""
    outputs, checkpoints, revisions = list[Output](), list[Checkpoint](), list[Revision]()
    moved = dict[int, dict[str, Any]]()
    for change in effect.changes:
        told: dict[str, Any] = {}
        if change.output is not None:
            outputs.append(replace(change.output, salt=draw(commitments.SALT_BYTES)))
            told["output_digest"] = of_output(uid, outputs[-1])
        if change.checkpoint is not None:
            checkpoints.append(_salted(change.checkpoint, draw))
            told["position"] = _committed(position_of(change.checkpoint), uid, checkpoints[-1], mark)
        if change.renewed is not None:
            revisions.append(_revision(change, change.renewed, revision_of(change.n) + 1, draw))
            told |= _revised(uid, revisions[-1])
        if told:
            moved[change.n] = told
    body = effect.body
    if moved:
        body = replace(body, items=[replace(each, **moved.get(each.n, {})) for each in body.items])
    return SaltedAct(sections.encode(body, uid, chunk.number, act_id, draw), outputs, checkpoints, revisions)


def position_of(at: Checkpoint) -> Position:
    """Return how far a partition has been read, without the commitment to its accumulator."""
    return Position(at.n, at.rows, at.cursor)


def _revision(change: Change, item: NewItem, number: int, draw: Draw) -> Revision:
    raw_salt = b"" if item.raw is None else draw(commitments.SALT_BYTES)
    return Revision(change.n, number, item, draw(commitments.SALT_BYTES), raw_salt)


def _revised(uid: bytes, revision: Revision) -> dict[str, Any]:
    item, number = revision.item, revision.number
    raw = b"" if item.raw is None else commitments.raw(uid, item.key, number, revision.raw_salt, item.raw)
    digest = commitments.payload(uid, item.key, number, revision.salt, item.payload)
    return {"revision": number, "digest": digest, "raw_digest": raw}


# -- admission --------------------------------------------------------------------------------------------------------


class Admission(NamedTuple):
    """A group of new items as it is written."""

    body: Ingested
    salts: list[bytes]
    raw_salts: list[bytes | None]


class SaltedItems(NamedTuple):
    """Commitments to items that are probably new, made before it is known."""

    items: Sequence[NewItem]
    salts: list[bytes]
    digests: list[bytes]


def salt_items(uid: bytes, items: Sequence[NewItem], draw: Draw) -> SaltedItems:
    """Return commitments to the payloads of items. They do not depend on the numbers that the items get, so that a
    store can make them before its transaction begins, which nobody else waits for."""
    salts = commitments.salts(draw, len(items))
    return SaltedItems(items, salts, commitments.payloads(uid, items, salts))


def of_items(
    batch: Batch, fresh: Sequence[NewItem], *, number: int, kind: Kind, ended: bool, origin: ItemOrigin, end: int,
    draw: Draw, salted: SaltedItems | None = None,
) -> Admission:  # fmt: skip
    """Return the entry that admits a group, with commitments to its items; `number` is that of their chunk, `end` the
    number of stages of the batch. `salted` is used if it is of just these items."""
    lo, uid = batch.admitted, batch.uid
    if not fresh:
        return Admission(Ingested(lo=lo, hi=lo, ended=ended), [], [])
    if salted is None or salted.items is not fresh:
        salted = salt_items(uid, fresh, draw)
    raws = [(n, x) for n, x in enumerate(fresh, start=lo) if x.raw is not None]
    raw_salts = dict(zip((n for n, _ in raws), commitments.salts(draw, len(raws)), strict=True))
    dead = [(n, x.place) for n, x in enumerate(fresh, start=lo) if x.place is not START]
    body = Ingested(
        lo=lo,
        hi=lo + len(fresh),
        digests=b"".join(salted.digests),
        chunk=number,
        ended=ended,
        invalid=[(n, place.code) for n, place in dead],
        refusals=[RefusalReason(n, place.reason) for n, place in dead],
        kind=kind,
        leg=origin.leg,
        first=origin.first,
        end=end if origin.end is None else origin.end,
        source=origin.source,
        schema=origin.schema,
        raw_items=numbers([n for n, _ in raws]) if raws else None,
        raws=b"".join([commitments.raw(uid, x.key, 0, raw_salts[n], x.raw or b"") for n, x in raws]),
        parents=[(n, x.parent) for n, x in enumerate(fresh, start=lo) if x.parent is not None],
    )
    return Admission(body, salted.salts, [raw_salts.get(n) for n in range(body.lo, body.hi)])


def chunk_of_items(body: Ingested, batch: Batch, entry: Entry, *, id_: ChunkId, fence: int, now: float) -> Chunk:
    """Return the chunk of a group that an entry admits; its chain begins at that entry."""
    assert body.kind is not None
    return Chunk(
        id=id_, number=body.chunk, batch=batch.id, lo=ItemNo(body.lo), hi=ItemNo(body.hi), fence=fence,
        head=entry.hash, counts=Counts(dead=len(body.invalid)), touched_at=now, kind=body.kind, leg=body.leg,
        first=body.first, end=body.end, origin=entry.seq,
    )  # fmt: skip


# -- the end of a chain -----------------------------------------------------------------------------------------------


class Rollover(NamedTuple):
    """A chain that ends and the one that continues it: two chunks, and an entry in the chain of each."""

    ended: Chunk
    last: Entry
    successor: Chunk
    first: Entry


def roll_over(
    uid: bytes, chunk: Chunk, items: Sequence[StoredItem], outputs: Sequence[Output],
    checkpoints: Sequence[Checkpoint], *, id_: ChunkId, number: int, now: float, draw: Draw,
    mark: Mark = unmarked,
) -> Rollover:  # fmt: skip
    """End the chain of a chunk: its items and totals go to a successor, whose first entry names the head of the chain
    before and everything it takes over."""
    carried = _carried(uid, items, outputs, checkpoints, mark)
    c = chunk.counts
    counts = [c.done, c.skipped, c.dead, c.cancelled, c.attempts, c.spent, c.tokens]
    state = state_of(uid, chunk.number, carried, counts)
    ending = sections.encode(ChainEnded(number, state), uid, chunk.number, b"", draw)
    last = link_chunk(uid, chunk, "ended", ending, "", now, fence=chunk.fence)
    successor = replace(chunk, id=id_, number=number, parent=chunk.id, seq=0, head=last.hash)
    body = Continued(predecessor=chunk.number, seq=last.seq, head=last.hash, state=state, lo=chunk.lo, hi=chunk.hi,
                     counts=counts, seconds=c.seconds, items=carried)  # fmt: skip
    first = link_chunk(uid, successor, "continued", sections.encode(body, uid, number, b"", draw), "", now,
                       fence=chunk.fence)  # fmt: skip
    ended = replace(chunk, hi=chunk.lo, owner=None, expires=0.0, due=0.0, reserved=0, blame=0, progressed=True,
                    counts=Counts(), seq=last.seq, head=last.hash)  # fmt: skip
    return Rollover(ended, last, replace(successor, seq=first.seq, head=first.hash), first)


def state_of(uid: bytes, chain: int, items: Sequence[Carried], counts: Sequence[int]) -> bytes:
    """Return the digest of what a chain leaves to its successor. Cursors are left out: they are words, which may be
    removed one day, and so are marks, which only their store can make. The successor has both itself."""
    bare = [
        replace(each, position=replace(each.position, cursor=b"", said=b"", mark=b""))
        if each.position is not None
        else each
        for each in items
    ]
    return commitments.state(uid, chain, encode_content([list(counts), bare]))


def _position(uid: bytes, at: Checkpoint | None, mark: Mark) -> Position | None:
    return None if at is None else _committed(position_of(at), uid, at, mark)


def _carried(
    uid: bytes, items: Sequence[StoredItem], outputs: Sequence[Output], checkpoints: Sequence[Checkpoint], mark: Mark
) -> list[Carried]:
    reached: Mapping[int, Checkpoint] = {each.n: each for each in checkpoints}
    return [
        Carried(
            n=item.n, state=item.place.state, stage=item.place.stage, epoch=item.place.epoch, revision=item.revision,
            payload=commitments.payload(uid, item.key, item.revision, item.salt, item.payload),
            outputs=[(o.stage, o.epoch, of_output(uid, o)) for o in outputs if o.n == item.n],
            position=_position(uid, reached.get(item.n), mark),
        )
        for item in items
    ]  # fmt: skip
