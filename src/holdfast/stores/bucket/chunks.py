"""How the document of a chunk changes when the chunk is created, granted and cut, continued, renewed, committed to, or
acted on, and which part of a commit or an act is stored beside it. Nothing is written here."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from holdfast.core import acts, journal, lease, record, settle
from holdfast.core.commitments import Draw, KeyIndex
from holdfast.core.journal import Ingested, pack
from holdfast.core.model import (
    Batch,
    Checkpoint,
    Chunk,
    ClaimRequest,
    Commit,
    Entry,
    ItemState,
    Move,
    NewItem,
)
from holdfast.stores.bucket import names
from holdfast.stores.bucket.documents import (
    PAYLOAD,
    REF,
    SEQ_BITS,
    ChunkDocument,
    Data,
    Payload,
    PlaceRow,
    Renewal,
    StoredReach,
    framed,
    place_of,
    row_of,
)

replace = msgspec.structs.replace
V = TypeVar("V")
LARGE_ACC = 4096
"""A larger accumulator is not stored in the document, which is written with every heartbeat."""


class CutDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A grant as documents: the granted chunk, and the one that was cut off."""

    given: lease.Grant
    granted: ChunkDocument
    child: ChunkDocument | None


def new_chunk(batch: Batch, fresh: Sequence[NewItem], body: Ingested, *, epoch: int, actor: str, now: float,
              draw: Draw) -> tuple[ChunkDocument, Entry]:  # fmt: skip
    """Return the document of a chunk of new items, and the entry of its batch at which its chain begins."""
    entry = record.link_batch(batch, "ingested", body, actor, now, draw)
    identity = names.chunk_id(batch.id, body.chunk)
    chunk = record.chunk_of_items(body, batch, entry, id_=identity, fence=epoch, now=now)
    return ChunkDocument(chunk=chunk, places={n: row_of(fresh[n - body.lo].place) for n, _ in body.invalid}), entry


def places_of(document: ChunkDocument) -> dict[int, ItemState]:
    return dict(document.places_between(document.chunk.lo, document.chunk.hi))


def grant(
    document: ChunkDocument, want: ClaimRequest, grant_id: bytes, *, now: float, floor: int, child: int
) -> CutDocument:
    """Return a chunk under a new fence, cut to the request; `child` is the number of the chunk that is cut off."""
    chunk = document.chunk
    given = lease.grant(
        chunk, want, grant_id, now=now, floor=floor,
        states=lambda: [place.state for place in places_of(document).values()],
    )  # fmt: skip
    if given.child is not None:
        given = given.with_child(names.chunk_id(chunk.batch, child), child)
    tail = _part(document, given.child) if given.child is not None else None
    granted = replace(
        _part(document, given.chunk),
        term=want.seconds,
        beat=document.beat + 1,
        children=[*document.children, child] if tail is not None else document.children,
    )
    return CutDocument(given=given, granted=granted, child=tail)


def continued(document: ChunkDocument, rolled: record.Rollover) -> tuple[ChunkDocument, ChunkDocument]:
    """Return a chunk whose chain has ended, and its successor, which nobody owns yet."""
    free = replace(rolled.successor, owner=None, expires=0.0, reserved=0)
    ended = replace(_part(document, rolled.ended), children=[*document.children, rolled.successor.number])
    return ended, _part(document, free)


def snapshots(document: ChunkDocument) -> list[journal.Snapshot]:
    """Return the attempts that the new owner of a chunk may repeat."""
    return lease.snapshots((n, place_of(row)) for n, row in sorted(document.places.items()))


def _part(document: ChunkDocument, chunk: Chunk) -> ChunkDocument:
    """Return the content of a document for the items of a part of its chunk."""
    first, last = chunk.lo - document.chunk.lo, chunk.hi - document.chunk.lo
    return replace(
        document,
        chunk=chunk,
        term=0.0,
        children=[],
        seal="",
        places=_of(document.places, chunk),
        renewed=_of(document.renewed, chunk),
        checkpoints=_of(document.checkpoints, chunk),
        outputs={s: pack(REF, refs) for s in document.outputs if any(refs := document.refs(s)[first:last])},
    )


def _of(values: Mapping[int, V], chunk: Chunk) -> dict[int, V]:
    return {n: value for n, value in values.items() if chunk.lo <= n < chunk.hi}


def renewed(document: ChunkDocument, expires: float, seconds: float) -> ChunkDocument:
    """Return the chunk with an extended lease."""
    return replace(document, chunk=replace(document.chunk, expires=expires), term=seconds, beat=document.beat + 1)


def committed(document: ChunkDocument, commit: Commit, now: float) -> ChunkDocument:
    """Return a chunk after a commit that its guard lets through, with its salts; its chain is not linked yet."""
    chunk = document.chunk
    advanced = settle.advanced(chunk, commit, now)
    term = min(advanced.expires - now, max(document.term, commit.extend))  # a clock set back extends no lease
    ref = _ref(chunk)
    return replace(
        document,
        chunk=advanced,
        term=0.0 if commit.release else term,
        beat=document.beat + 1,
        seal="",
        outputs=with_refs(document, [(o.n, o.stage) for o in commit.outputs], ref),
        places={**document.places, **_rows(commit.moves)},
        checkpoints={**document.checkpoints, **_reached(commit.checkpoints, now, ref)},
    )


def acted(document: ChunkDocument, effect: acts.Effect, now: float) -> ChunkDocument:
    """Return a chunk after an act, with its salts; its chain is not linked yet, and new payloads are added by
    `revised`."""
    chunk, ref = document.chunk, _ref(document.chunk)
    touched_at = now if effect.revived else chunk.touched_at
    after = replace(chunk, counts=chunk.counts.plus(effect.delta), touched_at=touched_at, due=0.0)
    term = document.term
    if effect.seized:
        after = replace(after, fence=effect.fence, version=0, owner=None, expires=0.0, reserved=0, progressed=True)
        term = 0.0
    changes = effect.changes
    return replace(
        document,
        chunk=after,
        term=term,
        seal="",
        outputs=with_refs(document, [(c.output.n, c.output.stage) for c in changes if c.output is not None], ref),
        places={**document.places, **_rows(Move(c.n, c.place) for c in changes)},
        checkpoints={
            **document.checkpoints,
            **_reached([c.checkpoint for c in changes if c.checkpoint is not None], now, ref),
        },
    )


def revised(
    after: ChunkDocument, before: Chunk, revisions: Sequence[record.Revision], index: Callable[[], KeyIndex]
) -> ChunkDocument:
    """Return a chunk after an act, with the payloads that the act added; `before` is the chunk before the act."""
    if not revisions:
        return after
    ref, renewed = _ref(before), dict(after.renewed)
    for each in revisions:
        new = Renewal(ref, index().mark(PAYLOAD, each.item.payload), each.number)
        renewed[each.n] = [*renewed.get(each.n, []), new]
    return replace(after, renewed=renewed)


def named(document: ChunkDocument, entry: str, accs: Iterable[int]) -> ChunkDocument:
    """Return a chunk whose large accumulators of a write refer to the name of its entry."""
    reached = {n: replace(document.checkpoints[n], name=entry) for n in accs}
    return replace(document, checkpoints={**document.checkpoints, **reached}) if reached else document


def salted_commit(written: record.SaltedCommit) -> Commit:
    """Return a commit whose outputs and accumulators have the salts of their commitments."""
    commit = written.commit
    outputs = tuple([replace(o, salt=salt) for o, salt in zip(commit.outputs, written.salts, strict=True)])
    return replace(commit, outputs=outputs, checkpoints=tuple(written.checkpoints))


def salted_effect(effect: acts.Effect, written: record.SaltedAct) -> acts.Effect:
    """Return the effect of an act whose accumulators have the salts of their commitments."""
    reached = {at.n: at for at in written.checkpoints}
    return replace(effect, changes=[replace(c, checkpoint=reached.get(c.n)) for c in effect.changes])


def data_of_commit(commit: Commit) -> Data | None:
    accs = _large(commit.checkpoints)
    return Data({(o.n, o.stage): o for o in commit.outputs}, accs) if commit.outputs or accs else None


def data_of_act(written: record.SaltedAct) -> Data | None:
    outputs = {(int(o.n), o.stage): o for o in written.outputs}
    renewals = {int(r.n): Payload(r.salt, r.item.payload, r.raw_salt) for r in written.revisions}
    accs = _large(written.checkpoints)
    return Data(outputs, accs, renewals) if outputs or accs or renewals else None


def with_refs(document: ChunkDocument, outputs: list[tuple[int, int]], ref: int) -> dict[int, bytes]:
    """Return the columns once the outputs of some (item, stage) have a new reference."""
    columns: dict[int, list[int]] = {}
    for n, stage in outputs:
        if stage not in columns:
            columns[stage] = document.refs(stage)
        columns[stage][n - document.chunk.lo] = ref
    return {**document.outputs, **{stage: pack(REF, column) for stage, column in columns.items()}}


def _large(checkpoints: Iterable[Checkpoint]) -> dict[int, bytes]:
    """Return the frames of accumulators that are not stored in the document."""
    return {int(at.n): at.salt + at.acc for at in checkpoints if at.acc is not None and len(at.acc) > LARGE_ACC}


def _ref(chunk: Chunk) -> int:
    """Return the reference for the outputs of the next commit of a chunk."""
    return names.number_of(chunk.id) << SEQ_BITS | (chunk.seq + 1)


def _rows(moves: Iterable[Move]) -> dict[int, PlaceRow]:
    return {move.n: row_of(move.place) for move in moves}


def _reached(checkpoints: Iterable[Checkpoint], now: float, ref: int) -> dict[int, StoredReach]:
    return {
        at.n: StoredReach(at.rows, at.cursor, now, None, ref)
        if at.acc is not None and len(at.acc) > LARGE_ACC
        else StoredReach(at.rows, at.cursor, now, framed(at.salt, at.acc))
        for at in checkpoints
    }
