"""The documents of a bucket store: their content and encoding, and how the document of a chunk changes when the chunk
is granted and cut, renewed, committed to, or acted on. Nothing is written here.

Three kinds are replaced by compare-and-swap, and have a revision that only grows, the id of the write that made them
and the epoch of the store: the root (names of batches), a batch (its chain, its groups of items), and a chunk (lease,
fence, totals, places of its items). Objects that are written once and never change (items, outputs, entries) have no
revision.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.core import acts, canonical, journal, lease, settle
from holdfast.core.course import Amendment
from holdfast.core.errors import Damaged, NotOurs, SchemaTooNew
from holdfast.core.journal import pack, unpack
from holdfast.core.model import (
    Batch,
    Checkpoint,
    Chunk,
    ClaimRequest,
    Commit,
    Counts,
    Entry,
    ItemNo,
    ItemState,
    Key,
    Kind,
    Move,
    NewItem,
    Output,
    State,
)
from holdfast.stores.bucket import names

FORMAT = 2
"""Since format 2, documents of chunks store the kind of their items: see `with_kind`."""
REF = "Q"
"""A column of references to outputs, 0 for none."""
SEQ_BITS = 32


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of every document."""

    holdfast: str
    """The kind of the document."""
    format: int = FORMAT
    revision: int = 0
    """Grows with every write, so that no two versions have the same bytes."""
    write: str = ""
    """The id of the write that made it: a writer whose reply was lost recognises its own write by it."""
    epoch: int = 0


class Root(Document, frozen=True, kw_only=True):
    """The batches of a store, by name."""

    holdfast: str = "root"
    url: str = ""
    """The location of the store: a copy elsewhere begins a new epoch."""
    next: int = 1
    names: list[tuple[int, str]] = []


class ItemGroup(msgspec.Struct, frozen=True, array_like=True):
    """Items that were admitted together, and their first chunk."""

    lo: int
    hi: int
    chunk: int
    name: str


class BatchDocument(Document, frozen=True, kw_only=True):
    """A batch as a whole."""

    holdfast: str = "batch"
    batch: Batch
    groups: list[ItemGroup] = []
    seal: str = ""
    """The id of the current or beginning seal: chunks store the same id."""
    renewed: bool = False
    """True if an item may have come again with a different payload, which its chunk stores."""
    noted: list[bytes] = []
    """Digests of entries that are noted only once."""


class PlaceRow(msgspec.Struct, frozen=True, array_like=True):
    """A place in compact form."""

    stage: int
    state: State
    epoch: int
    attempt: int
    due: float
    since: float
    """No longer read: see `used`."""
    spent: int
    rewinds: int
    requeues: int
    deferred: float
    code: str
    reason: str
    used: float = 0.0
    wait: float = 0.0


PLACE_FIELDS = tuple(name for name in PlaceRow.__struct_fields__ if name != "since")


class Renewal(msgspec.Struct, frozen=True, array_like=True):
    """A reference to the payload that replaced the first one."""

    ref: int
    digest: bytes


class StoredReach(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint; a large accumulator is stored with the entry that wrote it."""

    rows: int
    cursor: bytes
    at: float
    acc: bytes | None = None
    ref: int = 0
    name: str = ""
    """The name of that entry: it is read without searching the chain, however long that is."""


class ChunkDocument(Document, frozen=True, kw_only=True):
    """A chunk with everything about its items that changes."""

    holdfast: str = "chunk"
    chunk: Chunk
    term: float = 0.0
    """The length of the lease, counted from the moment at which another process first sees this beat."""
    beat: int = 0
    """Grows with every write of an owner and with no other: acts and seals do not prove that it is alive."""
    children: list[int] = []
    """The chunks that were cut off: a child exists once it is listed here."""
    seal: str = ""
    places: dict[int, PlaceRow] = {}
    """Places of items that left the plain way."""
    outputs: dict[int, bytes] = {}
    """By stage, a reference for each item."""
    renewed: dict[int, Renewal] = {}
    checkpoints: dict[int, StoredReach] = {}

    def refs(self, stage: int) -> list[int]:
        """Return the references to the outputs of a stage, one for each item of the chunk."""
        column = self.outputs.get(stage)
        return list(unpack(REF, column)) if column else [0] * self.chunk.size

    def place(self, n: int, columns: dict[int, list[int]], stages: int) -> ItemState:
        """Return the stored place, or the one that follows from the outputs."""
        row = self.places.get(n)
        if row is not None:
            return place_of(row)
        at = n - self.chunk.lo
        stage = next((s for s in range(stages) if s not in columns or not columns[s][at]), stages)
        return ItemState(stage=stage, state=State.DONE if stage == stages else State.PENDING)

    def places_between(self, stages: int, lo: int, hi: int | None) -> Iterator[tuple[int, ItemState]]:
        """Yield the places of the items with numbers from `lo` up to `hi`."""
        columns = self.columns()
        return ((n, self.place(n, columns, stages)) for n in within(self.chunk, lo, hi))

    def columns(self) -> dict[int, list[int]]:
        """Return all references, by stage."""
        return {stage: self.refs(stage) for stage in self.outputs}


class Keys(msgspec.Struct, frozen=True, array_like=True):
    """Everything about the items of a group except their payloads."""

    keys: list[str | int]
    salts: list[bytes]
    sizes: list[int]
    digests: bytes
    """SHA-256 of each payload."""


class Data(msgspec.Struct, frozen=True, array_like=True):
    """The part of a commit or an act that is not stored in the document."""

    outputs: dict[tuple[int, int], Output] = {}
    """By item and stage."""
    accs: dict[int, bytes] = {}
    renewed: dict[int, tuple[bytes, bytes]] = {}
    """Item -> (salt, payload)."""


D = TypeVar("D", bound=Document)
_json = msgspec.json.Encoder()
_kinds = {"root": Root, "batch": BatchDocument, "chunk": ChunkDocument}
_decoders: dict[str, Any] = {name: msgspec.json.Decoder(kind) for name, kind in _kinds.items()}
_about = msgspec.json.Decoder(Document)
_pack = msgspec.msgpack.Encoder().encode
_unpack_keys = msgspec.msgpack.Decoder(Keys).decode
_unpack_data = msgspec.msgpack.Decoder(list[Any]).decode


def encode(document: Document) -> bytes:
    return _json.encode(document)


def decode(kind: type[D], data: bytes, where: str) -> D:
    """Return the document in some bytes; foreign, incomplete or newer ones are refused."""
    try:
        about = _about.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError):
        if kind is not Root:  # a store exists, and it named this document
            raise Damaged(f"{where} is foreign or incomplete: restore it from a backup") from None
        raise NotOurs(f"{where} is not a document of a Holdfast store: choose another place") from None
    if about.format > FORMAT:
        raise SchemaTooNew(
            f"{where} was written by a newer Holdfast (format {about.format}, this one knows {FORMAT}): update Holdfast"
        )
    wanted = next(name for name, each in _kinds.items() if each is kind)
    if about.holdfast != wanted:
        raise Damaged(f"{where} is a document of the kind {about.holdfast!r}, not {wanted!r}: restore it from a backup")
    try:
        found: D = _decoders[wanted].decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise Damaged(f"{where} does not contain what was written ({error}): restore it from a backup") from None
    return found


def encode_keys(keys: Keys) -> bytes:
    return _pack(keys)


def decode_keys(data: bytes, where: str) -> Keys:
    try:
        return _unpack_keys(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise Damaged(f"{where} does not contain what was written ({error}): restore it from a backup") from None


def encode_data(data: Data) -> bytes:
    rows = [(o.n, o.stage, o.epoch, o.data, o.file) for o in data.outputs.values()]
    return _pack([rows, data.accs, data.renewed])


def decode_data(data: bytes, where: str) -> Data:
    try:
        rows, accs, renewed = _unpack_data(data)
        outputs = {(row[0], row[1]): Output(*row) for row in rows}
        return Data(outputs, accs, {n: (salt, payload) for n, (salt, payload) in renewed.items()})
    except (msgspec.DecodeError, TypeError, ValueError) as error:
        raise Damaged(f"{where} does not contain what was written ({error}): restore it from a backup") from None


def place_of(row: PlaceRow) -> ItemState:
    return ItemState(**{name: getattr(row, name) for name in PLACE_FIELDS})


def row_of(place: ItemState) -> PlaceRow:
    return PlaceRow(since=0.0, **{name: getattr(place, name) for name in PLACE_FIELDS})


def with_refs(document: ChunkDocument, outputs: list[tuple[int, int]], ref: int) -> dict[int, bytes]:
    """Return the columns once the outputs of some (item, stage) have a new reference."""
    columns: dict[int, list[int]] = {}
    for n, stage in outputs:
        if stage not in columns:
            columns[stage] = document.refs(stage)
        columns[stage][n - document.chunk.lo] = ref
    return {**document.outputs, **{stage: pack(REF, column) for stage, column in columns.items()}}


def within(chunk: Chunk, lo: int, hi: int | None) -> range:
    """Return the numbers from `lo` up to `hi` that are in a chunk."""
    return range(max(lo, chunk.lo), chunk.hi if hi is None else min(hi, chunk.hi))


def amended(document: BatchDocument, change: Amendment) -> BatchDocument:
    """Return a batch after an amendment; its chain is not linked yet. Lifting a seal removes its id."""
    digest = digest_of(change.kind, change.body)
    return msgspec.structs.replace(
        document,
        batch=change.batch,
        seal=document.seal if change.batch.sealed_at == document.batch.sealed_at else "",
        noted=document.noted if digest in document.noted else [*document.noted, digest],
    )


def digest_of(kind: str, body: bytes) -> bytes:
    """Return the digest by which a batch remembers that an entry is in its chain."""
    return hashlib.sha256(kind.encode() + b"\0" + body).digest()[:16]


replace = msgspec.structs.replace
V = TypeVar("V")
LARGE_ACC = 4096
"""A larger accumulator is not stored in the document, which is written with every heartbeat."""


class CutDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A grant as documents: the granted chunk, and the one that was cut off."""

    given: lease.Grant
    granted: ChunkDocument
    child: ChunkDocument | None


def new_chunk(batch: Batch, fresh: Sequence[NewItem], kind: Kind, *, number: int, epoch: int, ended: bool, actor: str,
              now: float) -> tuple[ChunkDocument, Entry]:  # fmt: skip
    """Return the document of a chunk of new items, and the entry of its batch at which its chain begins."""
    lo, identity = batch.admitted, names.chunk_id(batch.id, number)
    dead = {n: item.place for n, item in enumerate(fresh, start=lo) if item.place.state is State.DEAD}
    body = journal.Ingested(
        lo=lo, hi=lo + len(fresh), digests=b"".join([item.digest for item in fresh]), chunk=identity, ended=ended,
        invalid=[(n, place.code) for n, place in dead.items()], kind=kind,
    )  # fmt: skip
    entry = journal.link_batch(batch, "ingested", journal.encode_body(body), actor, now)
    chunk = Chunk(id=identity, batch=batch.id, lo=ItemNo(lo), hi=ItemNo(lo + len(fresh)), fence=epoch, head=entry.hash,
                  counts=Counts(dead=len(dead)), touched_at=now, kind=kind)  # fmt: skip
    return ChunkDocument(chunk=chunk, places={n: row_of(place) for n, place in dead.items()}), entry


ROW = "row "
"""The prefix of the keys of buried rows of a scan, in a store whose chunks do not store their kind."""


def is_scan(batch: BatchDocument) -> bool:
    """Return whether a batch was a scan by the rule of the first format: its only stage has a source."""
    stages = canonical.decode(batch.batch.definition)["stages"]
    return len(stages) == 1 and isinstance(stages[0], dict) and "source" in stages[0]


def with_kind(document: ChunkDocument, key: Key | None) -> ChunkDocument:
    """Return the document of a chunk of a scan with its kind, which the first format did not store: the key of its
    first item distinguishes rows from partitions. `key` is None for a chunk that the batch does not name yet: then only
    rows begin as dead letters."""
    chunk = document.chunk
    is_row = chunk.counts.dead == chunk.size if key is None else isinstance(key, str) and key.startswith(ROW)
    return replace(document, chunk=replace(chunk, kind=Kind.ROWS if is_row else Kind.PARTITIONS))


def places_of(document: ChunkDocument, stages: int) -> dict[int, ItemState]:
    columns = document.columns()
    return {n: document.place(n, columns, stages) for n in range(document.chunk.lo, document.chunk.hi)}


def grant(
    document: ChunkDocument, want: ClaimRequest, *, now: float, stages: int, floor: int, child: int
) -> CutDocument:
    """Return a chunk under a new fence, cut to the request; `child` is the number of the chunk that is cut off."""
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
    return CutDocument(given=given, granted=granted, child=tail)


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
    """Return a chunk after a commit that its guard lets through; its chain is not linked yet."""
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
    """Return a chunk after an act; its chain is not linked yet."""
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
        renewed={
            **document.renewed,
            **{c.n: Renewal(ref, _sha(c.renewed.payload)) for c in changes if c.renewed},
        },
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
    """Return the reference for the outputs of the next commit of a chunk."""
    return names.number_of(chunk.id) << SEQ_BITS | (chunk.seq + 1)


def _rows(moves: Iterable[Move]) -> dict[int, PlaceRow]:
    return {move.n: row_of(move.place) for move in moves}


def _reached(checkpoints: Iterable[Checkpoint], now: float, ref: int) -> dict[int, StoredReach]:
    return {
        at.n: StoredReach(at.rows, at.cursor, now, None, ref)
        if at.acc is not None and len(at.acc) > LARGE_ACC
        else StoredReach(at.rows, at.cursor, now, at.acc)
        for at in checkpoints
    }


def named(document: ChunkDocument, entry: str, accs: Iterable[int]) -> ChunkDocument:
    """Return a chunk whose large accumulators of a write refer to the name of its entry."""
    reached = {n: replace(document.checkpoints[n], name=entry) for n in accs}
    return replace(document, checkpoints={**document.checkpoints, **reached}) if reached else document


def _sha(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest()
