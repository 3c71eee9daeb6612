"""The immutable objects of a bucket store: the entries of its journal, and items and outputs, which are written once,
in groups, and read in parts.

An entry is written before the document that names the last one of its chain, and is in the chain if the head in the
document leads back to it. Objects written for a document that lost its race remain, but nothing refers to them.
"""

import hashlib
import threading
from bisect import bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import msgspec

from holdfast.core import journal
from holdfast.core.canonical import key_text
from holdfast.core.commitments import KeyIndex, unframe
from holdfast.core.course import stage_count
from holdfast.core.errors import Damaged
from holdfast.core.ingest import Known
from holdfast.core.limits import BUCKET_CHUNK_ITEMS
from holdfast.core.model import (
    Admitted,
    BatchId,
    Checkpoint,
    Chunk,
    Entry,
    Item,
    ItemNo,
    ItemState,
    Key,
    NewItem,
    Output,
    StoredItem,
    TextFrame,
)
from holdfast.core.record import Admission
from holdfast.stores.bucket import names
from holdfast.stores.bucket.cache import ChunkCache
from holdfast.stores.bucket.cas import DocumentStore, HeldDocument
from holdfast.stores.bucket.documents import (
    COPIED,
    PAYLOAD,
    SEQ_BITS,
    BatchDocument,
    ChunkDocument,
    Data,
    ItemGroup,
    Keys,
    Payload,
    checkpoint_of,
    decode_data,
    decode_keys,
    encode_data,
    encode_keys,
    is_same,
    within,
)
from holdfast.stores.bucket.names import EntryName
from holdfast.stores.bucket.upgrade import is_scan, upgraded, with_kind

replace = msgspec.structs.replace
KNOWN_CHAINS = 256
"""Chains whose names are remembered; the least recently used is forgotten first."""


class PackedEntry(msgspec.Struct, frozen=True, array_like=True):
    """An entry as an object of the bucket. Its words are in the same object: removing some means replacing it."""

    chain: int
    seq: int
    head: bytes
    body: bytes
    hash: bytes
    texts: list[tuple[int, int, bytes | None]] = []
    """(item, boundary, frame); objects that an earlier version wrote have none."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PackedEntry).decode


class Chains:
    """The chains of a store, and the names of their entries as far as they have been followed."""

    def __init__(self, documents: DocumentStore) -> None:
        self._documents = documents
        self._known: dict[tuple[BatchId, int], list[EntryName]] = {}
        self._lock = threading.Lock()

    def write(self, batch: BatchId, number: int, before: bytes, entry: Entry) -> EntryName:
        """Write an entry, durable but not yet in the chain."""
        header = journal.decode_header(entry.head)
        name = names.entry(entry.seq, before, entry.hash, header.commit_id)
        texts = [(text.n, text.boundary, text.frame) for text in entry.texts]
        packed = PackedEntry(entry.chain, entry.seq, entry.head, entry.body, entry.hash, texts)
        self._documents.put(names.entries(batch, number) + str(name), _encode(packed))
        return name

    def read(self, batch: BatchId, number: int, name: EntryName) -> Entry:
        where = names.entries(batch, number) + str(name)
        try:
            found = _decode(self._documents.fetch(where))
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise Damaged(
                f"{self._documents.where(where)} does not contain what was written ({error}): restore it from a backup"
            ) from None
        texts = tuple([TextFrame(*text) for text in found.texts])
        return Entry(chain=found.chain, seq=found.seq, head=found.head, body=found.body, hash=found.hash, texts=texts)

    def follow(self, batch: BatchId, number: int, seq: int, head: bytes) -> list[EntryName]:
        """Return the names of the entries up to the head, in order."""
        wanted = head.hex()[: names.HASH_CHARS]
        with self._lock:
            known = self._known.pop((batch, number), [])
            if 0 < seq <= len(known) and known[seq - 1].hash == wanted:
                self._known[batch, number] = known
                return known if len(known) == seq else known[:seq]
        if len(known) > seq or (len(known) == seq and known and known[-1].hash != wanted):
            known = []  # another history: the bucket was set back
        found = known + self._beyond(batch, number, known, seq, wanted)
        if 0 < len(known) < len(found) and found[len(known)].before != known[-1].hash:
            found = self._beyond(batch, number, [], seq, wanted)
        with self._lock:
            self._known[batch, number] = found
            while len(self._known) > KNOWN_CHAINS:
                del self._known[next(iter(self._known))]
        return found

    def has(self, chunk: Chunk, commit_id: bytes) -> bool:
        """Return whether the chain of a chunk has the entry of a commit or an act."""
        if not commit_id:
            return False
        followed = self.follow(chunk.batch, names.number_of(chunk.id), chunk.seq, chunk.head)
        return any(name.commit == names.commit(commit_id) for name in reversed(followed))

    def _beyond(self, batch: BatchId, number: int, known: list[EntryName], seq: int, head: str) -> list[EntryName]:
        if len(known) == seq:
            return []
        folder = names.entries(batch, number)
        at: dict[int, list[EntryName]] = defaultdict(list)
        for listed in self._documents.names(folder, f"{folder}{known[-1]}" if known else ""):
            name = names.parse_entry(listed.name)
            if len(known) < name.seq <= seq:
                at[name.seq].append(name)
        found: list[EntryName] = []
        for place in range(seq, len(known), -1):
            name_there = next((name for name in at[place] if name.hash == head), None)
            if name_there is None:
                raise self._documents.missing(f"{folder}{place:08}-…")
            found.append(name_there)
            head = name_there.before
        return found[::-1]


CACHE_BYTES = 32 * 1024 * 1024
"""Bytes of immutable objects kept in memory."""
PART_BYTES = 4 * 1024 * 1024
"""Bytes of payloads read with one request."""
GROUPS_AT_A_TIME = 64
"""Groups of keys read together."""


class Index:
    """The keys of one batch, in memory, with the number of each item."""

    def __init__(self) -> None:
        self.groups = 0
        self.numbers: dict[str, int] = {}
        self._starts: list[int] = []
        self._digests: list[bytes] = []
        """By group, those of its payloads: how long each is depends on the version that wrote the group."""
        self._sizes: list[int] = []

    def add(self, lo: int, keys: Keys) -> None:
        self.numbers.update(zip(map(key_text, keys.keys), range(lo, lo + len(keys.keys)), strict=True))
        self._starts.append(lo)
        self._digests.append(keys.digests)
        self._sizes.append(len(keys.digests) // len(keys.keys))
        self.groups += 1

    def digest(self, n: int) -> bytes:
        at = bisect_right(self._starts, n) - 1
        size, first = self._sizes[at], n - self._starts[at]
        return self._digests[at][first * size : (first + 1) * size]


class ItemRow(NamedTuple):
    """An item of a group, as it was admitted."""

    n: int
    key: Key
    payload: Payload
    parent: int | None


class Items:
    """The immutable parts of items: keys, payloads, outputs."""

    def __init__(
        self, documents: DocumentStore, chains: Chains, chunks: ChunkCache, index_of: Callable[[], KeyIndex]
    ) -> None:
        self._documents, self._chains, self._chunks, self._index_of = documents, chains, chunks, index_of
        self._indexes: dict[BatchId, Index] = {}
        self._cache: OrderedDict[str, tuple[int, Keys | Data]] = OrderedDict()
        self._cached = 0
        self._facts: dict[BatchId, tuple[int, bool]] = {}
        """Of batches of earlier formats: the number of stages, and whether it is a scan."""
        self._lock = threading.RLock()

    # -- groups of items ----------------------------------------------------------------------------------------

    def write(self, batch: BatchId, items: Sequence[NewItem], admission: Admission) -> str:
        """Write a group of items, durable but not yet admitted, and return its name. The name depends on the salts: one
        that is written again after a lost race has others."""
        body, salts, raw_salts = admission
        index, frames = self._index_of(), [salt + x.payload for x, salt in zip(items, salts, strict=True)]
        keys = Keys(
            [item.key for item in items], [], [len(frame) for frame in frames],
            b"".join([index.mark(PAYLOAD, item.payload) for item in items]),
            {at: salt for at, salt in enumerate(raw_salts) if salt is not None},
            {at: int(item.parent) for at, item in enumerate(items) if item.parent is not None},
        )  # fmt: skip
        packed, data = encode_keys(keys), b"".join(frames)
        name = names.group(batch, body.lo, hashlib.sha256(hashlib.sha256(data).digest() + packed).digest())
        self._documents.put(f"{name}.data", data)
        self._documents.put(f"{name}.keys", packed)
        return name

    def index(self, document: BatchDocument) -> Index:
        """Return the keys of a batch as of its document; the keys of new groups are read."""
        with self._lock:
            index = self._indexes.setdefault(document.batch.id, Index())
        while (first := index.groups) < len(document.groups):
            new = document.groups[first : first + GROUPS_AT_A_TIME]
            found = self._chunks.each(self.keys, new)  # without the lock, which its readers take
            with self._lock:
                for at, (group, keys) in enumerate(zip(new, found, strict=True), first):
                    if at == index.groups:
                        index.add(group.lo, keys)
        return index

    def known(self, held: HeldDocument[BatchDocument], items: Sequence[NewItem]) -> Known:
        """Return which of some items the batch has. Replaced payloads are stored only in the chunks, so the chunks of
        known items are read."""
        found = self._known(held.document, items, {})
        if not held.document.renewed or not found:
            return found
        numbers = [n for n, _ in found.values()]
        renewed: dict[int, bytes] = {}
        for document in self._chunks.covering(held, min(numbers), max(numbers) + 1):
            renewed |= {n: each[-1].digest for n, each in document.renewed.items()}
        return self._known(held.document, items, renewed)

    def _known(self, document: BatchDocument, items: Sequence[NewItem], renewed: Mapping[int, bytes]) -> Known:
        index = self.index(document)
        found: dict[int, tuple[ItemNo, bool]] = {}
        for at, item in enumerate(items):
            n = index.numbers.get(key_text(item.key))
            if n is not None and n < document.batch.admitted:
                digest = renewed[n] if n in renewed else index.digest(n)
                found[at] = (ItemNo(n), is_same(digest, item.payload, self._index_of))
        return found

    def keys(self, group: ItemGroup) -> Keys:
        name = f"{group.name}.keys"
        found = self._remembered(name)
        if not isinstance(found, Keys):
            raw = self._documents.fetch(name)
            found = decode_keys(raw, self._documents.where(name))
            self._remember(name, 3 * len(raw), found)
        return found

    def rows(self, group: ItemGroup, ns: Sequence[int], most: int = PART_BYTES) -> Iterator[ItemRow]:
        """Yield some items of a group, in order; `most` bytes are read at a time."""
        keys = self.keys(group)
        ends = [0, *accumulate(keys.sizes)]
        for part in _parts([n - group.lo for n in ns], ends, most):
            first, last = ends[part[0]], ends[part[-1] + 1]
            data = self._documents.fetch_part(f"{group.name}.data", first, last - first)
            for at in part:
                stored = data[ends[at] - first : ends[at + 1] - first]
                salt, payload = (keys.salts[at], stored) if keys.salts else unframe(stored)
                raw_salt, parent = keys.raws.get(at, b""), keys.parents.get(at)
                yield ItemRow(group.lo + at, keys.keys[at], Payload(salt, payload, raw_salt), parent)

    # -- earlier formats ----------------------------------------------------------------------------------------

    def upgraded(self, document: ChunkDocument, batch: Callable[[], BatchDocument]) -> ChunkDocument:
        """Return the document of a chunk that an earlier version wrote as it is written now; nothing is written. Its
        batch is read if that is necessary."""
        chunk = document.chunk
        stages, was_scan = self._facts_of(chunk.batch, batch)
        if document.format == 1 and was_scan:
            groups = batch().groups
            group = next((each for each in groups if each.lo <= chunk.lo < each.hi), None)
            document = with_kind(document, None if group is None else self.keys(group).keys[chunk.lo - group.lo])
        return upgraded(document, stages, lambda n: self._salt(batch(), document, n))

    def _facts_of(self, number: BatchId, batch: Callable[[], BatchDocument]) -> tuple[int, bool]:
        if number in self._facts:
            return self._facts[number]
        of_batch = batch()
        facts = stage_count(of_batch.batch.definition), is_scan(of_batch)
        if of_batch.batch.admitted:  # before, another definition may still have another number of stages
            self._facts[number] = facts
        return facts

    def _salt(self, batch: BatchDocument, document: ChunkDocument, n: int) -> bytes:
        """Return the salt that everything of an item had before format 3: that of its payload by then."""
        first = next((each for each in document.renewed.get(n, ()) if each.number == 0), None)
        if first is not None:
            return self.data(document.chunk, first.ref).renewed[n].salt
        group = batch.groups[bisect_right(batch.groups, n, key=lambda group: group.lo) - 1]
        return self.keys(group).salts[n - group.lo]

    # -- items with places --------------------------------------------------------------------------------------

    def loaded(
        self, batch: BatchDocument, document: ChunkDocument, pending: Sequence[tuple[int, ItemState]], most: int
    ) -> Iterator[Item]:
        """Yield pending items of a chunk with the input of their stage."""
        places, columns, nothing = dict(pending), document.columns(), [0] * document.chunk.size
        for group, ns in by_group(batch.groups, [n for n, _ in pending]):
            for n, key, payload, _ in self.rows(group, ns, min(most, PART_BYTES)):
                place, given = places[n], self._newest(document, n, payload).data
                file: bytes | None = None
                if place.stage != document.chunk.first:
                    ref = columns.get(place.stage - 1, nothing)[n - document.chunk.lo]
                    output = self.data(document.chunk, ref).outputs[n, place.stage - 1] if ref else None
                    given = output.data if output is not None and output.data is not None else b""
                    file = output.file if output is not None else None
                yield Item(ItemNo(n), key, given, place, n not in document.places, file, document.newest(n))

    def stored(
        self, batch: BatchDocument, document: ChunkDocument, wanted: Sequence[tuple[int, ItemState]]
    ) -> Iterator[StoredItem]:
        """Yield items of a chunk with their payloads."""
        places = dict(wanted)
        for group, ns in by_group(batch.groups, [n for n, _ in wanted]):
            for row in self.rows(group, ns):
                yield _stored_item(
                    row, places[row.n], document.newest(row.n), self._newest(document, row.n, row.payload)
                )

    def revisions(
        self, batch: BatchDocument, document: ChunkDocument, n: int, place: ItemState
    ) -> Iterator[StoredItem]:
        """Yield an item of a chunk with each of its payloads, oldest first. Before format 3, one that came later
        replaced the first."""
        later = {each.number: each.ref for each in document.renewed.get(n, ())}
        for group, ns in by_group(batch.groups, [n]):
            for row in self.rows(group, ns):
                found = {number: self.data(document.chunk, ref).renewed[n] for number, ref in later.items()}
                for number, payload in ({0: row.payload} | found).items():
                    yield _stored_item(row, place, number, payload)

    def _newest(self, document: ChunkDocument, n: int, first: Payload) -> Payload:
        """Return the newest revision of a payload; `first` is the one that was admitted."""
        if n not in document.renewed:
            return first
        return self.data(document.chunk, document.renewed[n][-1].ref).renewed[n]

    def outputs(
        self, batch: BatchDocument, document: ChunkDocument, lo: int, hi: int | None, stage: int | None
    ) -> Iterator[Output]:
        """Yield the outputs of items of a chunk from `lo` up to `hi`, in the order of items and stages."""
        columns = document.columns()
        asked = [s for s in sorted(columns) if stage is None or s == stage]
        for n in within(document.chunk, lo, hi):
            for s in asked:
                ref = columns[s][n - document.chunk.lo]
                if ref:
                    made = self.data(document.chunk, ref).outputs[n, s]
                    yield made if made.salt else replace(made, salt=self._salt(batch, document, n))

    def checkpoints(
        self, batch: BatchDocument, document: ChunkDocument, lo: int, hi: int | None
    ) -> Iterator[Checkpoint]:
        """Yield the checkpoints of items of a chunk from `lo` up to `hi`, in order."""
        for n in sorted(document.checkpoints):
            if n >= lo and (hi is None or n < hi):
                at = document.checkpoints[n]
                frame = at.acc
                if at.ref:
                    data = self.data(document.chunk, at.ref, at.name)
                    frame = data.accs[n] if data.is_framed else self._salt(batch, document, n) + data.accs[n]
                yield checkpoint_of(n, at, frame)

    # -- data of commits ----------------------------------------------------------------------------------------

    def write_data(self, batch: BatchId, number: int, name: EntryName, data: Data) -> None:
        self._documents.put(names.data(batch, number, name), encode_data(data))

    def write_copied(self, batch: BatchId, number: int, part: int, data: Data) -> None:
        self._documents.put(names.copied(batch, number, part), encode_data(data))

    def data(self, chunk: Chunk, ref: int, entry: str = "") -> Data:
        """Return the data of the commit at a reference in a chunk; if the name of its entry is given, the chain is not
        read."""
        number, seq = (ref & ~COPIED) >> SEQ_BITS, ref & ((1 << SEQ_BITS) - 1)
        if ref & COPIED:
            return self._data_at(names.copied(chunk.batch, number, seq))
        return self._data_at(names.data(chunk.batch, number, entry if entry else self._entry(chunk, number, seq)))

    def _entry(self, chunk: Chunk, number: int, seq: int) -> EntryName:
        """Return the entry at a position in the chain of a chunk: of this one, or of one that it was cut off."""
        batch = chunk.batch
        if names.number_of(chunk.id) == number:
            return self._chains.follow(batch, number, chunk.seq, chunk.head)[seq - 1]
        held = self._chunks.known(batch, number)
        if held is None or held.document.chunk.seq < seq:
            held = self._chunks.fresh(batch, number)
        if held is None:
            raise self._documents.missing(names.chunk(batch, number))
        other = held.document.chunk
        return self._chains.follow(batch, number, other.seq, other.head)[seq - 1]

    def _data_at(self, name: str) -> Data:
        found = self._remembered(name)
        if not isinstance(found, Data):
            raw = self._documents.fetch(name)
            found = decode_data(raw, self._documents.where(name))
            self._remember(name, len(raw), found)
        return found

    # -- helpers ------------------------------------------------------------------------------------------------

    def _remembered(self, name: str) -> Keys | Data | None:
        with self._lock:
            found = self._cache.get(name)
            if found is None:
                return None
            self._cache.move_to_end(name)
            return found[1]

    def _remember(self, name: str, size: int, value: Keys | Data) -> None:
        with self._lock:
            if name in self._cache:
                return
            self._cache[name] = (size, value)
            self._cached += size
            while self._cached > CACHE_BYTES and len(self._cache) > 1:
                _, (gone, _) = self._cache.popitem(last=False)
                self._cached -= gone


def _stored_item(row: ItemRow, place: ItemState, revision: int, payload: Payload) -> StoredItem:
    parent = None if row.parent is None else ItemNo(row.parent)
    return StoredItem(n=ItemNo(row.n), key=row.key, place=place, payload=payload.data, salt=payload.salt,
                      revision=revision, raw_salt=payload.raw_salt, parent=parent)  # fmt: skip


def by_group(groups: Sequence[ItemGroup], ns: Sequence[int]) -> Iterator[tuple[ItemGroup, list[int]]]:
    """Yield each group with the item numbers that are in it, in order."""
    starts = [0]
    for group in groups:
        starts.append(_first_at(ns, group.hi, starts[-1]))
    for group, (first, last) in zip(groups, pairwise(starts), strict=True):
        if last > first:
            yield group, list(ns[first:last])


def _parts(places: Sequence[int], ends: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yield items that are read together: as many as lie within so many bytes, and at least one."""
    part: list[int] = []
    for at in places:
        if part and ends[at + 1] - ends[part[0]] > most:
            yield part
            part = []
        part.append(at)
    if part:
        yield part


def _first_at(ns: Sequence[int], bound: int, start: int) -> int:
    """Return the index of the first number that is not below the bound."""
    while start < len(ns) and ns[start] < bound:
        start += 1
    return start


def groups_of(items: Sequence[NewItem]) -> Iterator[tuple[Sequence[NewItem], bool]]:
    """Yield parts small enough for one document, each with whether it is the last."""
    for at in range(0, max(1, len(items)), BUCKET_CHUNK_ITEMS):
        yield items[at : at + BUCKET_CHUNK_ITEMS], at + BUCKET_CHUNK_ITEMS >= len(items)


def together(answers: Sequence[Admitted]) -> Admitted:
    """Return one answer for groups that were admitted one after the other."""
    return Admitted(
        added=sum(answer.added for answer in answers),
        lo=answers[0].lo,
        known=sum(answer.known for answer in answers),
        dead=tuple(n for answer in answers for n in answer.dead),
        changed=tuple(
            (at * BUCKET_CHUNK_ITEMS + index, n) for at, answer in enumerate(answers) for index, n in answer.changed
        ),
    )
