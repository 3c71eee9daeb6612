"""The journal of a bucket store: entries written before the document that names the last of them, read by their names.

An entry is in the chain if the head in the document leads back to it. What was written for a document that lost its
race stands beside it for ever, and nothing leads there.
"""

import threading
from collections import defaultdict

import msgspec

from holdfast.core import journal
from holdfast.core.errors import Damaged
from holdfast.core.model import BatchId, Entry
from holdfast.stores.bucket import names
from holdfast.stores.bucket.names import EntryName
from holdfast.stores.bucket.shelf import Shelf

KNOWN_CHAINS = 256
"""Chains whose names are remembered; the one that was asked for longest ago is forgotten first."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, int, bytes, bytes, bytes]).decode


class Chains:
    """The chains of a store, and the names of their entries as far as they were followed."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._known: dict[tuple[BatchId, int], list[EntryName]] = {}
        self._lock = threading.Lock()

    def write(self, batch: BatchId, number: int, before: bytes, entry: Entry) -> EntryName:
        """An entry, durable but not in the chain yet."""
        header = journal.decode_header(entry.head)
        name = names.entry(entry.seq, before, entry.hash, header.commit_id)
        packed = _encode((entry.chain, entry.seq, entry.head, entry.body, entry.hash))
        self._shelf.put(names.entries(batch, number) + str(name), packed)
        return name

    def read(self, batch: BatchId, number: int, name: EntryName) -> Entry:
        where = names.entries(batch, number) + str(name)
        try:
            chain, seq, head, body, hash_ = _decode(self._shelf.fetch(where))
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise Damaged(
                f"{self._shelf.where(where)} does not hold what was written ({error}): put back a backup"
            ) from None
        return Entry(chain=chain, seq=seq, head=head, body=body, hash=hash_)

    def follow(self, batch: BatchId, number: int, seq: int, head: bytes) -> list[EntryName]:
        """The names of the entries up to the head, in order."""
        wanted = head.hex()[: names.HASH_CHARS]
        with self._lock:
            known = self._known.pop((batch, number), [])
            if known and len(known) == seq and known[-1].hash == wanted:
                self._known[batch, number] = known
                return known
        if len(known) > seq or (len(known) == seq and known and known[-1].hash != wanted):
            known = []  # this is an earlier head, or another history: a bucket that was set back
        found = known + self._beyond(batch, number, known, seq, wanted)
        if 0 < len(known) < len(found) and found[len(known)].before != known[-1].hash:
            found = self._beyond(batch, number, [], seq, wanted)
        with self._lock:
            self._known[batch, number] = found
            while len(self._known) > KNOWN_CHAINS:
                del self._known[next(iter(self._known))]
        return found

    def _beyond(self, batch: BatchId, number: int, known: list[EntryName], seq: int, head: str) -> list[EntryName]:
        if len(known) == seq:
            return []
        folder = names.entries(batch, number)
        at: dict[int, list[EntryName]] = defaultdict(list)
        for listed in self._shelf.names(folder, f"{folder}{known[-1]}" if known else ""):
            name = names.parse_entry(listed.name)
            if len(known) < name.seq <= seq:
                at[name.seq].append(name)
        found: list[EntryName] = []
        for place in range(seq, len(known), -1):
            name_there = next((name for name in at[place] if name.hash == head), None)
            if name_there is None:
                raise self._shelf.missing(f"{folder}{place:08}-…")
            found.append(name_there)
            head = name_there.before
        return found[::-1]
