"""The documents of a bucket store: what each holds, and how it becomes bytes and comes back.

Four kinds are replaced by compare-and-swap, and carry a revision that only grows, the id of the write that made them
and the epoch of the store: the root (names of batches), a batch (its chain, its groups of items), and a chunk (lease,
fence, totals, where its items stand). What is written once and never changes (items, outputs, entries) has no revision.
"""

from typing import Any, TypeVar

import msgspec

from holdfast.core.errors import Damaged, NotOurs, SchemaTooNew
from holdfast.core.journal import pack, unpack
from holdfast.core.model import Batch, Chunk, Output, Place, State

FORMAT = 1
REF = "Q"
"""A column of references: where an output stands, 0 for none."""
SEQ_BITS = 32


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What every document says about itself."""

    holdfast: str
    """Which kind it is."""
    format: int = FORMAT
    revision: int = 0
    """Grows with every write, so that no two versions have the same bytes."""
    write: str = ""
    """The id of the write that made it: how a writer whose reply was lost knows its own."""
    epoch: int = 0


class Root(Document, frozen=True, kw_only=True):
    """The batches of a store, by name."""

    holdfast: str = "root"
    url: str = ""
    """Where the store is: a copy elsewhere begins a new epoch."""
    next: int = 1
    names: list[tuple[int, str]] = []


class Group(msgspec.Struct, frozen=True, array_like=True):
    """Items that were admitted together, and the chunk they began in."""

    lo: int
    hi: int
    chunk: int
    name: str


class BatchDocument(Document, frozen=True, kw_only=True):
    """A batch as a whole."""

    holdfast: str = "batch"
    batch: Batch
    groups: list[Group] = []
    seal: str = ""
    """Which seal stands, or is being made: chunks carry the same word."""
    renewed: bool = False
    """Whether an item may have come again with another payload: its chunk knows."""
    noted: list[bytes] = []
    """Digests of what was noted once."""


class PlaceRow(msgspec.Struct, frozen=True, array_like=True):
    """A place, short."""

    stage: int
    state: State
    epoch: int
    attempt: int
    due: float
    since: float
    """Not read any more: see `used`."""
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
    """Where the payload stands that replaced the first one."""

    ref: int
    digest: bytes


class Reached(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint; a large accumulator stands with the entry that wrote it."""

    rows: int
    cursor: bytes
    at: float
    acc: bytes | None = None
    ref: int = 0
    name: str = ""
    """Of that entry: it is read without looking through the chain, however long that has become."""


class ChunkDocument(Document, frozen=True, kw_only=True):
    """A chunk with all that changes about its items."""

    holdfast: str = "chunk"
    chunk: Chunk
    term: float = 0.0
    """How long the lease lasts from the moment somebody first sees this beat."""
    beat: int = 0
    """Grows with every write of an owner, and with no other: acts and seals are no sign of its life."""
    children: list[int] = []
    """The chunks that were cut off: a child is real once it stands here."""
    seal: str = ""
    places: dict[int, PlaceRow] = {}
    """Of items that left the plain way."""
    outputs: dict[int, bytes] = {}
    """By stage, a reference for each item."""
    renewed: dict[int, Renewal] = {}
    checkpoints: dict[int, Reached] = {}

    def refs(self, stage: int) -> list[int]:
        """Where the outputs of a stage stand, one for each item of the chunk."""
        column = self.outputs.get(stage)
        return list(unpack(REF, column)) if column else [0] * self.chunk.size

    def place(self, n: int, columns: dict[int, list[int]], stages: int) -> Place:
        """The stored place, or where the outputs say the item stands."""
        row = self.places.get(n)
        if row is not None:
            return place_of(row)
        at = n - self.chunk.lo
        stage = next((s for s in range(stages) if s not in columns or not columns[s][at]), stages)
        return Place(stage=stage, state=State.DONE if stage == stages else State.PENDING)

    def columns(self) -> dict[int, list[int]]:
        """All references, by stage."""
        return {stage: self.refs(stage) for stage in self.outputs}


class Keys(msgspec.Struct, frozen=True, array_like=True):
    """What is known about the items of a group, but for their payloads."""

    keys: list[str | int]
    salts: list[bytes]
    sizes: list[int]
    digests: bytes
    """SHA-256 of each payload."""


class Data(msgspec.Struct, frozen=True, array_like=True):
    """What a commit or an act wrote that does not stand in the document."""

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
    """The document in some bytes; what is foreign, torn or from the future is refused, never guessed at."""
    try:
        about = _about.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError):
        if kind is not Root:  # a store is there, and it named this document
            raise Damaged(f"{where} is foreign or cut short: put back a backup of it") from None
        raise NotOurs(f"{where} is not a document of a Holdfast store: name another place") from None
    if about.format > FORMAT:
        raise SchemaTooNew(
            f"{where} was written by a newer Holdfast (format {about.format}, this one knows {FORMAT}): update Holdfast"
        )
    wanted = next(name for name, each in _kinds.items() if each is kind)
    if about.holdfast != wanted:
        raise Damaged(f"{where} is a document of the kind {about.holdfast!r}, not {wanted!r}: put back a backup of it")
    try:
        found: D = _decoders[wanted].decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise Damaged(f"{where} does not hold what was written ({error}): put back a backup of it") from None
    return found


def encode_keys(keys: Keys) -> bytes:
    return _pack(keys)


def decode_keys(data: bytes, where: str) -> Keys:
    try:
        return _unpack_keys(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise Damaged(f"{where} does not hold what was written ({error}): put back a backup of it") from None


def encode_data(data: Data) -> bytes:
    rows = [(o.n, o.stage, o.epoch, o.data, o.file) for o in data.outputs.values()]
    return _pack([rows, data.accs, data.renewed])


def decode_data(data: bytes, where: str) -> Data:
    try:
        rows, accs, renewed = _unpack_data(data)
        outputs = {(row[0], row[1]): Output(*row) for row in rows}
        return Data(outputs, accs, {n: (salt, payload) for n, (salt, payload) in renewed.items()})
    except (msgspec.DecodeError, TypeError, ValueError) as error:
        raise Damaged(f"{where} does not hold what was written ({error}): put back a backup of it") from None


def place_of(row: PlaceRow) -> Place:
    return Place(**{name: getattr(row, name) for name in PLACE_FIELDS})


def row_of(place: Place) -> PlaceRow:
    return PlaceRow(since=0.0, **{name: getattr(place, name) for name in PLACE_FIELDS})


def with_refs(document: ChunkDocument, outputs: list[tuple[int, int]], ref: int) -> dict[int, bytes]:
    """The columns once the outputs of some (item, stage) stand in a new place."""
    columns: dict[int, list[int]] = {}
    for n, stage in outputs:
        if stage not in columns:
            columns[stage] = document.refs(stage)
        columns[stage][n - document.chunk.lo] = ref
    return {**document.outputs, **{stage: pack(REF, column) for stage, column in columns.items()}}
