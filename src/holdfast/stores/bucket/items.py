"""Items and outputs of a bucket store: written once, in groups, and read in parts."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from types import MappingProxyType

from holdfast.core.canonical import key_text
from holdfast.core.ingest import Known
from holdfast.core.model import BatchId, ItemNo, Key, NewItem, Output
from holdfast.stores.bucket import names
from holdfast.stores.bucket.chains import Chains
from holdfast.stores.bucket.documents import (
    SEQ_BITS,
    BatchDocument,
    ChunkDocument,
    Data,
    Group,
    Keys,
    decode_data,
    decode_keys,
    encode_data,
    encode_keys,
)
from holdfast.stores.bucket.names import EntryName
from holdfast.stores.bucket.shelf import Shelf
from holdfast.stores.bucket.sight import Sight

CACHE_BYTES = 32 * 1024 * 1024
"""Of objects that never change, so much is kept in memory."""
PART_BYTES = 4 * 1024 * 1024
"""Of payloads, so much is read with one request."""
GROUPS_AT_A_TIME = 64
"""Of keys, so many groups are read together."""
DIGEST = 32
NONE: Mapping[int, bytes] = MappingProxyType({})


class Index:
    """The keys of one batch, in memory: which item has which key."""

    def __init__(self) -> None:
        self.groups = 0
        self.numbers: dict[str, int] = {}
        self.digests = bytearray()

    def add(self, lo: int, keys: Keys) -> None:
        self.numbers.update(zip(map(key_text, keys.keys), range(lo, lo + len(keys.keys)), strict=True))
        self.digests += keys.digests
        self.groups += 1

    def digest(self, n: int) -> bytes:
        return bytes(self.digests[n * DIGEST : (n + 1) * DIGEST])


class Items:
    """What never changes about items: keys, payloads, outputs."""

    def __init__(self, shelf: Shelf, chains: Chains, sight: Sight) -> None:
        self._shelf, self._chains, self._sight = shelf, chains, sight
        self._indexes: dict[BatchId, Index] = {}
        self._cache: OrderedDict[str, tuple[int, Keys | Data]] = OrderedDict()
        self._cached = 0
        self._lock = threading.RLock()

    # -- groups of items ----------------------------------------------------------------------------------------

    def write(self, batch: BatchId, lo: int, items: Sequence[NewItem]) -> str:
        """A group of items, durable but not admitted yet; returns its name."""
        payloads = [item.payload for item in items]
        keys = Keys([item.key for item in items], [item.salt for item in items], [len(p) for p in payloads],
                    b"".join(hashlib.sha256(payload).digest() for payload in payloads))  # fmt: skip
        packed = encode_keys(keys)
        name = names.group(batch, lo, hashlib.sha256(packed).digest())
        self._shelf.put(f"{name}.data", b"".join(payloads))
        self._shelf.put(f"{name}.keys", packed)
        return name

    def index(self, document: BatchDocument) -> Index:
        """The keys of a batch up to what its document says; those of new groups are read."""
        with self._lock:
            index = self._indexes.setdefault(document.batch.id, Index())
        while (first := index.groups) < len(document.groups):
            new = document.groups[first : first + GROUPS_AT_A_TIME]
            found = self._sight.each(self.keys, new)  # without the lock: its readers take it, too
            with self._lock:
                for at, (group, keys) in enumerate(zip(new, found, strict=True), first):
                    if at == index.groups:
                        index.add(group.lo, keys)
        return index

    def known(self, document: BatchDocument, items: Sequence[NewItem], renewed: Mapping[int, bytes] = NONE) -> Known:
        """Which of some items the batch has. `renewed` has the digests of payloads that replaced the first ones."""
        index = self.index(document)
        found: dict[int, tuple[ItemNo, bool]] = {}
        for at, item in enumerate(items):
            n = index.numbers.get(key_text(item.key))
            if n is not None and n < document.batch.admitted:
                digest = renewed.get(n, index.digest(n))
                found[at] = (ItemNo(n), digest == hashlib.sha256(item.payload).digest())
        return found

    def keys(self, group: Group) -> Keys:
        name = f"{group.name}.keys"
        found = self._remembered(name)
        if not isinstance(found, Keys):
            raw = self._shelf.fetch(name)
            found = decode_keys(raw, self._shelf.where(name))
            self._remember(name, 3 * len(raw), found)
        return found

    def rows(self, group: Group, ns: Sequence[int], most: int = PART_BYTES) -> Iterator[tuple[int, Key, bytes, bytes]]:
        """(number, key, salt, payload) of some items of a group, in order; so many bytes are read at a time."""
        keys = self.keys(group)
        ends = [0, *accumulate(keys.sizes)]
        for part in _parts([n - group.lo for n in ns], ends, most):
            first, last = ends[part[0]], ends[part[-1] + 1]
            data = self._shelf.fetch_part(f"{group.name}.data", first, last - first)
            for at in part:
                payload = data[ends[at] - first : ends[at + 1] - first]
                yield group.lo + at, keys.keys[at], keys.salts[at], payload

    # -- what commits brought -----------------------------------------------------------------------------------

    def write_data(self, batch: BatchId, number: int, name: EntryName, data: Data) -> None:
        self._shelf.put(names.data(batch, number, name), encode_data(data))

    def data(self, batch: BatchId, ref: int, entry: str = "") -> Data:
        """What the commit at a reference brought; where the name of its entry is known, the chain is not asked."""
        number, seq = ref >> SEQ_BITS, ref & ((1 << SEQ_BITS) - 1)
        return self._data_at(names.data(batch, number, entry if entry else self._entry(batch, number, seq)))

    def _entry(self, batch: BatchId, number: int, seq: int) -> EntryName:
        """The entry at a place of the chain of a chunk."""
        held = self._sight.known(batch, number)
        if held is None or held.document.chunk.seq < seq:
            held = self._sight.fresh(batch, number)
        if held is None:
            raise self._shelf.missing(names.chunk(batch, number))
        chunk = held.document.chunk
        return self._chains.follow(batch, number, chunk.seq, chunk.head)[seq - 1]

    def _data_at(self, name: str) -> Data:
        found = self._remembered(name)
        if not isinstance(found, Data):
            raw = self._shelf.fetch(name)
            found = decode_data(raw, self._shelf.where(name))
            self._remember(name, len(raw), found)
        return found

    def output(self, document: ChunkDocument, n: int, stage: int, ref: int) -> Output:
        return self.data(document.chunk.batch, ref).outputs[n, stage]

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


def by_group(groups: Sequence[Group], ns: Sequence[int]) -> Iterator[tuple[Group, list[int]]]:
    """Some item numbers, in order, with the group that each part of them is in."""
    starts = [0]
    for group in groups:
        starts.append(_first_at(ns, group.hi, starts[-1]))
    for group, (first, last) in zip(groups, pairwise(starts), strict=True):
        if last > first:
            yield group, list(ns[first:last])


def _parts(places: Sequence[int], ends: Sequence[int], most: int) -> Iterator[list[int]]:
    """Items that are read together: all that lie within so many bytes, and at least one."""
    part: list[int] = []
    for at in places:
        if part and ends[at + 1] - ends[part[0]] > most:
            yield part
            part = []
        part.append(at)
    if part:
        yield part


def _first_at(ns: Sequence[int], bound: int, start: int) -> int:
    """The index of the first number that is not below the bound."""
    while start < len(ns) and ns[start] < bound:
        start += 1
    return start
