"""What a bucket holds in a simulated world, and what must be true of every write to it.

Whoever writes and whatever is lost on the way, each document that lands is held against the one it replaces: its
revision is the next, its fence never falls, one fence has one holder, a lease is taken over only after it has ended,
and what a document speaks of was written before it.
"""

import hashlib
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from holdfast.core.model import BatchId, Chunk, Commit
from holdfast.stores.bucket import names
from holdfast.stores.bucket.documents import BatchDocument, ChunkDocument, Document, Root, decode
from holdfast.stores.buckets.base import Found, ListedObject, ObjectMark, WriteLost
from holdfast.testing.replay import Violation
from holdfast.testing.simulator.plan import LEASE

KINDS: dict[str, type[Document]] = {"root.json": Root, "batch.json": BatchDocument}
HALF = 0.5
"""Of seconds: what the arithmetic of clocks may be off."""
Ended = Callable[[str, str, float], bool]
"""(writer, owner, seconds since the owner was last heard) -> whether it may be taken over."""


class Vault:
    """The objects of a bucket, shared by all who act in a world."""

    def __init__(self, clock: Callable[[], float], may_take_over: Ended) -> None:
        self._clock, self._may_take_over = clock, may_take_over
        self._objects: dict[str, Found] = {}
        self._names: list[str] = []
        self._documents: dict[str, Document] = {}
        self._since: dict[str, float] = {}
        """When the owner of a document was last heard."""
        self._beats: dict[str, int] = {}
        self._writes: set[str] = set()
        self._holders: dict[tuple[int, int], str] = {}
        """(chunk, fence) -> who was granted it."""
        self.swaps = 0

    @property
    def batch(self) -> BatchDocument:
        """The only batch there is."""
        document = self._documents[names.batch(BatchId(1))]
        assert isinstance(document, BatchDocument)
        return document

    def is_silent(self, chunk: Chunk, now: float) -> bool:
        """Whether nothing was heard of the owner of a chunk for the length of its lease."""
        return now - self._since[names.chunk(chunk.batch, names.number_of(chunk.id))] > LEASE

    def documents_of(self, n: int) -> list[ChunkDocument]:
        """The documents of the chunks that have an item, found from the groups of the batch down to what was cut."""
        batch = self.batch
        found: list[ChunkDocument] = []
        waiting = [group.chunk for group in batch.groups if group.lo <= n < group.hi]
        while waiting:
            document = self._documents.get(names.chunk(batch.batch.id, waiting.pop()))
            if isinstance(document, ChunkDocument):
                waiting += document.children
                if document.chunk.lo <= n < document.chunk.hi:
                    found.append(document)
        return found

    def adds_an_entry(self, name: str, data: bytes) -> bool:
        """Whether the document of a chunk would have a longer chain with this: a heartbeat adds nothing to it."""
        now = self._documents[name]
        assert isinstance(now, ChunkDocument)
        return decode(ChunkDocument, data, name).chunk.seq > now.chunk.seq

    def held_by(self, owner: str) -> set[int]:
        """The chunks that somebody holds."""
        documents = [each for each in self._documents.values() if isinstance(each, ChunkDocument)]
        return {int(document.chunk.id) for document in documents if document.chunk.owner == owner}

    def has_landed(self, commit: Commit) -> bool:
        """Whether the entry of a commit is in the chain, followed by names from the head of its document back."""
        batch, number = names.batch_of(commit.chunk), names.number_of(commit.chunk)
        document = self._documents[names.chunk(batch, number)]
        assert isinstance(document, ChunkDocument)
        head = document.chunk.head.hex()[: names.HASH_CHARS]
        for seq in range(document.chunk.seq, 0, -1):
            folder = names.entries(batch, number)
            entries = [names.parse_entry(each.name) for each in self.list(folder, f"{folder}{seq:08}")]
            entry = next(each for each in entries if each.seq == seq and each.hash == head)
            if entry.commit == names.commit(commit.id):
                return True
            head = entry.before
        return False

    def get(self, name: str) -> Found | None:
        return self._objects.get(name)

    def list(self, prefix: str, after: str = "") -> Iterator[ListedObject]:
        at = bisect_left(self._names, max(prefix, after))
        found = []
        while at < len(self._names) and self._names[at].startswith(prefix):
            name = self._names[at]
            if name > after:
                found.append(ListedObject(name, self._objects[name].mark.etag))
            at += 1
        return iter(found)

    def put(self, name: str, data: bytes, mark: ObjectMark | None, who: str) -> ObjectMark:
        """Compare and swap. The mark is of the content, as with S3: the same bytes have the same one."""
        there = self._objects.get(name)
        if (mark is None) != (there is None) or (there is not None and there.mark != mark):
            raise WriteLost(f"{name}: someone else was first")
        if there is None:
            insort(self._names, name)
        self._objects[name] = found = Found(data, ObjectMark(hashlib.md5(data, usedforsecurity=False).hexdigest()))
        if name.endswith(".json") and (name == names.ROOT or name.startswith("b/")):
            self._look_at(name, data, who)
        return found.mark

    def delete(self, name: str) -> None:
        if self._objects.pop(name, None) is not None:
            self._names.remove(name)

    # -- what must be true of every document ----------------------------------------------------------------------

    def _look_at(self, name: str, data: bytes, who: str) -> None:
        document = decode(KINDS.get(name.rpartition("/")[2], ChunkDocument), data, name)
        before = self._documents.get(name)
        revision = 0 if before is None else before.revision
        if document.revision != revision + 1:
            raise Violation(f"{name}: revision {document.revision} was written after {revision}")
        if document.write in self._writes or not document.write:
            raise Violation(f"{name}: write {document.write!r} landed twice")
        self.swaps += 1
        self._writes.add(document.write)
        self._documents[name] = document
        if isinstance(document, ChunkDocument):
            self._look_at_chunk(name, before if isinstance(before, ChunkDocument) else None, document, who)
        elif isinstance(document, BatchDocument):
            self._look_at_batch(name, before if isinstance(before, BatchDocument) else None, document)
        if name not in self._since or _beat(document) != self._beats.get(name):
            self._since[name], self._beats[name] = self._clock(), _beat(document)

    def _look_at_batch(self, name: str, before: BatchDocument | None, now: BatchDocument) -> None:
        batch = now.batch
        self._must_have_entry(name, names.entries(batch.id, 0), batch.seq, batch.head)
        groups = [] if before is None else before.groups
        if now.groups[: len(groups)] != groups or batch.admitted != sum(each.hi - each.lo for each in now.groups):
            raise Violation(f"{name}: its groups of items were not added to, but changed")
        for group in now.groups[len(groups) :]:
            for wanted in (names.chunk(batch.id, group.chunk), f"{group.name}.keys", f"{group.name}.data"):
                self._must_have(name, wanted)

    def _look_at_chunk(self, name: str, before: ChunkDocument | None, now: ChunkDocument, who: str) -> None:
        chunk, number = now.chunk, names.number_of(now.chunk.id)
        if before is None:
            return
        was = before.chunk
        self._must_have_entry(name, names.entries(chunk.batch, number), chunk.seq, chunk.head)
        if chunk.fence < was.fence or chunk.seq < was.seq:
            raise Violation(f"{name}: fence {was.fence} fell to {chunk.fence}, or entry {was.seq} to {chunk.seq}")
        for child in now.children[len(before.children) :]:
            self._must_have(name, names.chunk(chunk.batch, child))
        if chunk.fence != was.fence and chunk.owner is not None:
            self._look_at_grant(name, before, chunk, who)
        elif (chunk.owner, chunk.fence) != (was.owner, was.fence) and chunk.owner is not None:
            raise Violation(f"{name}: {chunk.owner} holds it under the fence {chunk.fence} of {was.owner}")
        if chunk.fence == was.fence and chunk.version not in (was.version, was.version + 1):
            raise Violation(f"{name}: version {chunk.version} was written after {was.version}")

    def _look_at_grant(self, name: str, before: ChunkDocument, chunk: Chunk, who: str) -> None:
        was, at = before.chunk, (int(chunk.id), chunk.fence)
        holder = self._holders.setdefault(at, chunk.owner or "")
        if holder != chunk.owner:
            raise Violation(f"{name}: {chunk.owner} was granted fence {chunk.fence}, which {holder} was")
        if was.owner is None or was.owner == chunk.owner:
            return
        heard = self._clock() - self._since[name]
        if not self._may_take_over(who, was.owner, heard + HALF):
            raise Violation(f"{name}: {chunk.owner} took it from {was.owner}, which was heard {heard:.1f} s before")

    def _must_have_entry(self, name: str, folder: str, seq: int, head: bytes) -> None:
        """An entry is in the bucket before the document that makes it the last of the chain."""
        if seq and not any(
            f"-{head.hex()[: names.HASH_CHARS]}-" in each.name for each in self.list(f"{folder}{seq:08}-")
        ):
            raise Violation(f"{name}: its entry {seq} is not there")

    def _must_have(self, name: str, wanted: str) -> None:
        if wanted not in self._objects:
            raise Violation(f"{name} speaks of {wanted}, which is not there")


def _beat(document: Document) -> int:
    """What changes when the owner of a chunk is heard; in a document that does not say, every revision."""
    return int(getattr(document, "beat", document.revision))
