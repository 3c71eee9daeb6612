"""The documents and objects of a bucket store: their content and encoding. Nothing is written here.

Three kinds are replaced by compare-and-swap, and have a revision that only grows, the id of the write that made them
and the epoch of the store: the root (names of batches), a batch (its chain, its groups of items), and a chunk (lease,
fence, totals, places of its items). Objects that are written once and never change (items, outputs, entries) have no
revision.

Payloads, outputs and accumulators are stored as frames: a salt, then the content. Before format 3, everything of an
item had the salt of the item, which its group stores: `upgrade` and the readers in `items` put it in front.
"""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast.core.commitments import KeyIndex, unframe
from holdfast.core.errors import Damaged, NotOurs, SchemaTooNew
from holdfast.core.journal import unpack
from holdfast.core.model import (
    Batch,
    Checkpoint,
    Chunk,
    ItemNo,
    ItemState,
    Output,
    State,
)
from holdfast.core.states import on_plain_way

FORMAT = 3
"""Since format 2, documents of chunks store the kind of their items: see `upgrade.with_kind`. Since format 3, batches
have a uid and chunks a window of stages, content is stored in frames, and all revisions of a payload are listed."""
REF = "Q"
"""A column of references to outputs, 0 for none."""
SEQ_BITS = 32
COPIED = 1 << 62
"""A bit in references to content that came with a copy of its batch: instead of the number of an entry, they have that
of a part of this content."""


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
    index_key: bytes = b""
    """The key of all marks in the store; empty until the first write to a store of an earlier format."""


class ItemGroup(msgspec.Struct, frozen=True, array_like=True):
    """Items that were admitted together, and their first chunk. In a copy of a batch, they may be several groups."""

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
    """Marks of entries that are noted only once; digests of all notes, if an earlier version wrote them."""


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
    """A reference to a payload that came later."""

    ref: int
    digest: bytes
    """Its mark; SHA-256 of it, if an earlier version wrote it."""
    number: int = 0
    """The number of the revision; 0 if an earlier version wrote it in place of the first payload."""


class StoredReach(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint; a large accumulator is stored with the entry that wrote it."""

    rows: int
    cursor: bytes
    at: float
    acc: bytes | None = None
    """The frame of a small one."""
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
    """The chunks that were cut off, and the successor once the chain has ended: a child exists once it is listed
    here."""
    seal: str = ""
    places: dict[int, PlaceRow] = {}
    """Places of items that left the plain way."""
    outputs: dict[int, bytes] = {}
    """By stage, a reference for each item."""
    renewed: dict[int, list[Renewal]] = {}
    """Every revision of a payload after the first, oldest first: the newest counts."""
    checkpoints: dict[int, StoredReach] = {}

    def refs(self, stage: int) -> list[int]:
        """Return the references to the outputs of a stage, one for each item of the chunk."""
        column = self.outputs.get(stage)
        return list(unpack(REF, column)) if column else [0] * self.chunk.size

    def place(self, n: int, columns: dict[int, list[int]]) -> ItemState:
        """Return the stored place, or the one that follows from the outputs."""
        row = self.places.get(n)
        if row is not None:
            return place_of(row)
        at, end = n - self.chunk.lo, self.chunk.end
        stages = range(self.chunk.first, end)
        return on_plain_way(next((s for s in stages if s not in columns or not columns[s][at]), end), end)

    def places_between(self, lo: int, hi: int | None) -> Iterator[tuple[int, ItemState]]:
        """Yield the places of the items with numbers from `lo` up to `hi`."""
        columns = self.columns()
        return ((n, self.place(n, columns)) for n in within(self.chunk, lo, hi))

    def newest(self, n: int) -> int:
        """Return the number of the newest revision of a payload."""
        return self.renewed[n][-1].number if n in self.renewed else 0

    def columns(self) -> dict[int, list[int]]:
        """Return all references, by stage."""
        return {stage: self.refs(stage) for stage in self.outputs}


class FirstChunkDocument(ChunkDocument, frozen=True, kw_only=True):
    """The same before format 3, when a payload that came later replaced the one before."""

    renewed: dict[int, Renewal] = {}  # type: ignore[assignment]

    def listed(self) -> ChunkDocument:
        """Return the document with lists of revisions."""
        fields = {name: getattr(self, name) for name in ChunkDocument.__struct_fields__}
        return ChunkDocument(**{**fields, "renewed": {n: [each] for n, each in self.renewed.items()}})


class Keys(msgspec.Struct, frozen=True, array_like=True):
    """Everything about the items of a group except their payloads."""

    keys: list[str | int]
    salts: list[bytes]
    """Empty since format 3: salts are in front of the payloads."""
    sizes: list[int]
    """The size of each payload with its salt; in a group that has salts, without it."""
    digests: bytes
    """A mark of each payload, all of the same size; SHA-256 in a group that has salts."""
    raws: dict[int, bytes] = {}
    """Index -> salt of the commitment to the item as its source gave it."""
    parents: dict[int, int] = {}
    """Index -> number of the item that it was made of."""


class Payload(NamedTuple):
    """One revision of a payload."""

    salt: bytes
    data: bytes
    raw_salt: bytes = b""


class Data(msgspec.Struct, frozen=True, array_like=True):
    """The part of a commit or an act that is not stored in the document."""

    outputs: dict[tuple[int, int], Output] = {}
    """By item and stage; without salts, if an earlier version wrote them."""
    accs: dict[int, bytes] = {}
    """Frames."""
    renewed: dict[int, Payload] = {}
    is_framed: bool = True
    """False if an earlier version wrote it: then accumulators have no salt in front."""


D = TypeVar("D", bound=Document)
_json = msgspec.json.Encoder()
_kinds = {"root": Root, "batch": BatchDocument, "chunk": ChunkDocument}
_decoders: dict[str, Any] = {name: msgspec.json.Decoder(kind) for name, kind in _kinds.items()}
_decode_first_chunk = msgspec.json.Decoder(FirstChunkDocument).decode
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
        if kind is ChunkDocument and about.format < FORMAT:
            return _decode_first_chunk(data).listed()  # type: ignore[return-value]
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
    rows = [(o.n, o.stage, o.epoch, framed(o.salt, o.data), framed(o.salt, o.file)) for o in data.outputs.values()]
    renewed = {n: (salt + payload, raw_salt) for n, (salt, payload, raw_salt) in data.renewed.items()}
    return _pack([rows, data.accs, renewed, FORMAT])


def framed(salt: bytes, content: bytes | None) -> bytes | None:
    return None if content is None else salt + content


def decode_data(data: bytes, where: str) -> Data:
    try:
        rows, accs, renewed, *formats = _unpack_data(data)
        if not formats:
            first = {(row[0], row[1]): Output(*row) for row in rows}
            return Data(first, accs, {n: Payload(*each) for n, each in renewed.items()}, is_framed=False)
        outputs = {(row[0], row[1]): _output_of(*row) for row in rows}
        return Data(outputs, accs, {n: Payload(*unframe(frame), raw) for n, (frame, raw) in renewed.items()})
    except (msgspec.DecodeError, TypeError, ValueError) as error:
        raise Damaged(f"{where} does not contain what was written ({error}): restore it from a backup") from None


def _output_of(n: int, stage: int, epoch: int, data: bytes | None, file: bytes | None) -> Output:
    salt, made = (b"", None) if data is None else unframe(data)
    file_salt, kept = (b"", None) if file is None else unframe(file)
    return Output(ItemNo(n), stage, epoch, made, kept, salt or file_salt)


def place_of(row: PlaceRow) -> ItemState:
    return ItemState(**{name: getattr(row, name) for name in PLACE_FIELDS})


def row_of(place: ItemState) -> PlaceRow:
    return PlaceRow(since=0.0, **{name: getattr(place, name) for name in PLACE_FIELDS})


def within(chunk: Chunk, lo: int, hi: int | None) -> range:
    """Return the numbers from `lo` up to `hi` that are in a chunk."""
    return range(max(lo, chunk.lo), chunk.hi if hi is None else min(hi, chunk.hi))


DIGEST = 32
PAYLOAD = "payload"
"""The label of the marks of payloads."""


def is_same(digest: bytes, payload: bytes, index: Callable[[], KeyIndex]) -> bool:
    """Return whether a payload is the one of a stored mark, or of a digest that an earlier version stored."""
    if len(digest) == DIGEST:
        return digest == hashlib.sha256(payload).digest()
    return digest == index().mark(PAYLOAD, payload)


def copied_ref(number: int, part: int) -> int:
    """Return the reference for a part of the content that a chunk had when its batch came from another store."""
    return COPIED | number << SEQ_BITS | part


def checkpoint_of(n: int, at: StoredReach, frame: bytes | None) -> Checkpoint:
    """Return a stored checkpoint; `frame` has its accumulator."""
    salt, acc = (b"", None) if frame is None else unframe(frame)
    return Checkpoint(ItemNo(n), at.rows, at.cursor, acc, at.at, salt)
