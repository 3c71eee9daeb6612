"""What becomes of the document of a chunk: granted and cut, renewed, committed to, acted on. Nothing is written."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from holdfast.core import acts, journal, lease, settle
from holdfast.core.journal import pack
from holdfast.core.model import Checkpoint, Chunk, Commit, Move, Place, Want
from holdfast.stores.bucket import names
from holdfast.stores.bucket.documents import (
    REF,
    SEQ_BITS,
    ChunkDocument,
    Data,
    PlaceRow,
    Reached,
    Renewal,
    place_of,
    row_of,
    with_refs,
)

replace = msgspec.structs.replace
V = TypeVar("V")
LARGE_ACC = 4096
"""A larger accumulator does not stand in the document, which is written with every heartbeat."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A grant as documents: of what is granted, and of what was cut off."""

    given: lease.Grant
    granted: ChunkDocument
    child: ChunkDocument | None


def places_of(document: ChunkDocument, stages: int) -> dict[int, Place]:
    columns = document.columns()
    return {n: document.place(n, columns, stages) for n in range(document.chunk.lo, document.chunk.hi)}


def grant(document: ChunkDocument, want: Want, *, now: float, stages: int, floor: int, child: int) -> Cut:
    """A chunk under a new fence, cut to what is wanted; `child` is the number of what is cut off."""
    chunk = document.chunk
    given = lease.grant(
        chunk, want, now=now, floor=floor, child_id=names.chunk_id(chunk.batch, child),
        states=lambda: [place.state for place in places_of(document, stages).values()],
    )  # fmt: skip
    tail = _part(document, given.child) if given.child is not None else None
    granted = replace(
        _part(document, given.chunk),
        term=want.seconds,
        beat=document.beat + 1,
        children=[*document.children, child] if tail is not None else document.children,
    )
    return Cut(given=given, granted=granted, child=tail)


def snapshots(document: ChunkDocument) -> list[journal.Snapshot]:
    """The attempts that whoever is granted a chunk may repeat."""
    return lease.snapshots((n, place_of(row)) for n, row in sorted(document.places.items()))


def _part(document: ChunkDocument, chunk: Chunk) -> ChunkDocument:
    """What a document says about the items of a part of its chunk."""
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
    """A lease that lasts longer."""
    return replace(document, chunk=replace(document.chunk, expires=expires), term=seconds, beat=document.beat + 1)


def committed(document: ChunkDocument, commit: Commit, now: float) -> ChunkDocument:
    """A chunk after a commit that its guard lets through; its chain is not linked yet."""
    chunk = document.chunk
    advanced = settle.advanced(chunk, commit, now)
    term = min(advanced.expires - now, max(document.term, commit.extend))  # a clock set back lengthens no lease
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
    """A chunk after an act; its chain is not linked yet."""
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
        renewed={**document.renewed, **{c.n: Renewal(ref, _sha(c.renewed.payload)) for c in changes if c.renewed}},
    )


def data_of_commit(commit: Commit) -> Data | None:
    accs = {int(at.n): at.acc for at in commit.checkpoints if at.acc is not None and len(at.acc) > LARGE_ACC}
    return Data({(o.n, o.stage): o for o in commit.outputs}, accs) if commit.outputs or accs else None


def data_of_act(effect: acts.Effect) -> Data | None:
    outputs = {(int(c.output.n), c.output.stage): c.output for c in effect.changes if c.output is not None}
    given = [c.checkpoint for c in effect.changes if c.checkpoint is not None]
    accs = {int(at.n): at.acc for at in given if at.acc is not None and len(at.acc) > LARGE_ACC}
    renewals = {int(c.n): (c.renewed.salt, c.renewed.payload) for c in effect.changes if c.renewed is not None}
    return Data(outputs, accs, renewals) if outputs or accs or renewals else None


def _ref(chunk: Chunk) -> int:
    """Where the next commit of a chunk puts what it brings."""
    return names.number_of(chunk.id) << SEQ_BITS | (chunk.seq + 1)


def _rows(moves: Iterable[Move]) -> dict[int, PlaceRow]:
    return {move.n: row_of(move.place) for move in moves}


def _reached(checkpoints: Iterable[Checkpoint], now: float, ref: int) -> dict[int, Reached]:
    return {
        at.n: Reached(at.rows, at.cursor, now, None, ref)
        if at.acc is not None and len(at.acc) > LARGE_ACC
        else Reached(at.rows, at.cursor, now, at.acc)
        for at in checkpoints
    }


def named(document: ChunkDocument, entry: str, accs: Iterable[int]) -> ChunkDocument:
    """A chunk whose large accumulators of a write are found by the name of its entry."""
    reached = {n: replace(document.checkpoints[n], name=entry) for n in accs}
    return replace(document, checkpoints={**document.checkpoints, **reached}) if reached else document


def _sha(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest()
