"""A world whose store is a bucket: every process has its own handle and clocks, and between any two requests others may
act, the process may die, or sleep for longer than its lease. Each document that lands is compared with the one it
replaces."""

import hashlib
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Any, TypeVar
from unittest import mock

import msgspec

from holdfast.core.errors import StoreError
from holdfast.core.model import BatchId, BatchMode, Checkpoint, Chunk, Claim, Commit, ItemNo, StoredItem
from holdfast.stores.bucket import BucketStore, names
from holdfast.stores.bucket import grants as bucket_grants
from holdfast.stores.bucket.documents import BatchDocument, ChunkDocument, Document, Root, checkpoint_of, decode
from holdfast.stores.buckets.base import Found, ListedObject, ObjectMark, WriteLost
from holdfast.testing.clock import START
from holdfast.testing.replay import Violation
from holdfast.testing.simulator.network import BucketConnection
from holdfast.testing.simulator.plan import LEASE, WorldPlan
from holdfast.testing.simulator.world import Behavior, Died, World

KINDS: dict[str, type[Document]] = {"root.json": Root, "batch.json": BatchDocument}
HALF = 0.5
"""Seconds by which the arithmetic of clocks may be off."""
Ended = Callable[[str, str, float], bool]
"""(writer, owner, seconds since the owner last wrote) -> whether its chunk may be taken over."""


class WatchedBucket:
    """The objects of a bucket, shared by all actors of a world."""

    def __init__(self, clock: Callable[[], float], may_take_over: Ended) -> None:
        self._clock, self._may_take_over = clock, may_take_over
        self._objects: dict[str, Found] = {}
        self._names: list[str] = []
        self._documents: dict[str, Document] = {}
        self._since: dict[str, float] = {}
        """When the owner of a document last wrote."""
        self._beats: dict[str, int] = {}
        self._writes: set[str] = set()
        self._holders: dict[tuple[int, int], str] = {}
        """(chunk, fence) -> its owner."""
        self.swaps = 0

    @property
    def batch(self) -> BatchDocument:
        """The only batch."""
        document = self._documents[names.batch(BatchId(1))]
        assert isinstance(document, BatchDocument)
        return document

    def is_silent(self, chunk: Chunk, now: float) -> bool:
        """Return whether the owner of a chunk wrote nothing for the length of its lease."""
        return now - self._since[names.chunk(chunk.batch, names.number_of(chunk.id))] > LEASE

    def documents_of(self, n: int) -> list[ChunkDocument]:
        """Return the documents of the chunks that have an item, found from the groups of the batch through the chunks
        that were cut off."""
        first = [group.chunk for group in self.batch.groups if group.lo <= n < group.hi]
        return [each for each in self._reachable(first) if each.chunk.lo <= n < each.chunk.hi]

    def _reachable(self, numbers: Iterable[int]) -> Iterator[ChunkDocument]:
        """Yield the documents of chunks, and of those that were cut off them."""
        batch, waiting = self.batch.batch.id, list(numbers)
        while waiting:
            document = self._documents.get(names.chunk(batch, waiting.pop()))
            if isinstance(document, ChunkDocument):
                waiting += document.children
                yield document

    def adds_an_entry(self, name: str, data: bytes) -> bool:
        """Return whether a new document of a chunk has a longer chain: a heartbeat does not extend it."""
        now = self._documents[name]
        assert isinstance(now, ChunkDocument)
        return decode(ChunkDocument, data, name).chunk.seq > now.chunk.seq

    def held_by(self, owner: str) -> set[int]:
        """Return the chunks of an owner, without those of lost races."""
        documents = self._reachable(group.chunk for group in self.batch.groups)
        return {int(document.chunk.id) for document in documents if document.chunk.owner == owner}

    def has_landed(self, commit: Commit) -> bool:
        """Return whether the entry of a commit is in the chain, followed by names from the head of its document
        back."""
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
        """Compare and swap. The mark is that of the content, as with S3: the same bytes have the same one."""
        there = self._objects.get(name)
        if (mark is None) != (there is None) or (there is not None and there.mark != mark):
            raise WriteLost(f"{name}: another process was first")
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
            raise Violation(f"{name}: its groups of items were changed, not extended")
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
            raise Violation(f"{name}: {chunk.owner} has it under the fence {chunk.fence} of {was.owner}")
        if chunk.fence == was.fence and chunk.version not in (was.version, was.version + 1):
            raise Violation(f"{name}: version {chunk.version} was written after {was.version}")

    def _look_at_grant(self, name: str, before: ChunkDocument, chunk: Chunk, who: str) -> None:
        was, at = before.chunk, (int(chunk.id), chunk.fence)
        holder = self._holders.setdefault(at, chunk.owner or "")
        if holder != chunk.owner:
            raise Violation(f"{name}: {chunk.owner} was granted fence {chunk.fence}, which {holder} already has")
        if was.owner is None or was.owner == chunk.owner:
            return
        heard = self._clock() - self._since[name]
        if not self._may_take_over(who, was.owner, heard + HALF):
            raise Violation(f"{name}: {chunk.owner} took it from {was.owner}, which wrote {heard:.1f} s before")

    def _must_have_entry(self, name: str, folder: str, seq: int, head: bytes) -> None:
        """Check that an entry is in the bucket before the document that makes it the last of the chain."""
        if seq and not any(
            f"-{head.hex()[: names.HASH_CHARS]}-" in each.name for each in self.list(f"{folder}{seq:08}-")
        ):
            raise Violation(f"{name}: its entry {seq} does not exist")

    def _must_have(self, name: str, wanted: str) -> None:
        if wanted not in self._objects:
            raise Violation(f"{name} refers to {wanted}, which does not exist")


def _beat(document: Document) -> int:
    """Return the number that changes when the owner of a chunk writes; for other documents, the revision."""
    return int(getattr(document, "beat", document.revision))


DEPTH = 3
"""The most actors that wait for each other in the middle of a verb."""
WINDOW = 0.5
"""The most seconds that a request takes, unless a process sleeps."""
TRIES = 5
A = TypeVar("A")


class BucketWorld(World):
    """One simulation on a bucket."""

    loses_commits = False

    def __init__(self, plan: WorldPlan, trace: list[str] | None = None) -> None:
        self._depth = 0
        self._rates: dict[str, float] = {}
        """The speed of each monotonic clock."""
        self._opened: set[BatchId] = set()
        self._connections: dict[str, BucketConnection] = {}
        self._rows: dict[int, StoredItem] = {}
        self._draw = Random(plan.seed + 2).randbytes  # noqa: S311 - the same world again, not a secret
        self._granted: set[tuple[int, int]] = set()
        self._handles: dict[str, tuple[BucketConnection, BucketStore]] = {}
        super().__init__(plan, self._open, trace)

    def _open(self, clock: Callable[[], float], is_dead: Callable[[str], bool]) -> BucketStore:
        """Return the handle of the observer, which sees everything and meets no faults."""
        self.bucket = WatchedBucket(clock, self._may_take_over)
        return BucketStore(
            BucketConnection(self, self.bucket, "observer"), clock=clock, monotonic=clock, is_dead=is_dead, at_once=1,
            draw=self._draw,
        )  # fmt: skip

    def connect(self, process: Any) -> BucketStore:
        connection = self._connections[process.name] = BucketConnection(self, self.bucket, process.name)
        connection.process = process
        rate = self._rates[process.name] = 1 + (self.chance() * 2 - 1) * self.plan.drift
        clock, dead = self.clock, self.dead
        offset = self.chance() * 1e6
        store = BucketStore(connection, clock=process.now, monotonic=lambda: offset + (clock.now - START) * rate,
                            is_dead=dead.__contains__, at_once=1, draw=self._draw)  # fmt: skip
        self._admit(connection, store)
        return store

    def _admit(self, connection: BucketConnection, store: BucketStore) -> None:
        """Let requests fail from now on, and let other actors run between two of them."""
        connection.is_quiet = False
        vars(store._documents)["_pause"] = lambda seconds: self._wait(connection, seconds)

    def _wait(self, connection: BucketConnection, seconds: float) -> None:
        if self._depth < DEPTH:
            self._keep_waiting(connection.process, self.clock.now + seconds)
        if connection.process is not None and not connection.process.alive:
            raise Died

    def _may_take_over(self, who: str, owner: str, heard: float) -> bool:
        """Return whether the owner was observed for the whole length of a lease on such a fast clock, or is dead."""
        return owner in self.dead or heard * self._rates.get(who, 1.0) >= LEASE

    def check_told(self, commit: Commit, *, landed: bool) -> None:
        """Check the store's answer about a commit against the chain."""
        if landed != self.bucket.has_landed(commit):
            raise Violation(
                f"commit {commit.id.hex()} {'is not' if landed else 'is'} in the chain, but the store says otherwise"
            )

    def check_denied(self, who: str, commit: Commit) -> None:
        """Check that a commit has neither landed nor can still land: otherwise its result is unknown."""
        super().check_denied(who, commit)
        name = names.chunk(names.batch_of(commit.chunk), names.number_of(commit.chunk))
        there = self.bucket.get(name)
        for data, (late, mark) in self._connections[who].late.items():
            if late == name and there is not None and there.mark == mark and self.bucket.adds_an_entry(name, data):
                raise Violation(f"{who} is told that commit {commit.id.hex()} did not land, but it may still land")

    def check_held(self, process: Any, granted: Sequence[Claim]) -> None:
        """Check that a process knows of every chunk it was granted: no other process can claim it until its lease
        ends."""
        held = {int(lease.chunk) for lease in (*process.leases(), *(claim.lease for claim in granted))}
        forgotten = self.bucket.held_by(process.name) - held
        if forgotten and not process.unsure:
            raise Violation(f"{process.name} owns chunks {forgotten} without knowing it")

    def choice(self, free: list[A]) -> A:
        """Return the store's random choice, the same in every run of a seed."""
        return free[int(self.chance() * len(free))]

    def run(self) -> None:
        with mock.patch.object(bucket_grants, "random", self):
            super().run()

    def course_there(self) -> BatchMode:
        return self.bucket.batch.batch.course

    def is_closed(self) -> bool:
        batch = self.bucket.batch.batch
        return batch.sealed_at is not None or batch.course is BatchMode.CANCELLED

    # -- what is true, read from the documents: asking the store takes too long ----------------------------------

    def _document_of(self, n: int) -> ChunkDocument:
        found = self.bucket.documents_of(n)
        if len(found) != 1:
            raise Violation(f"item {n} is in {len(found)} chunks")
        return found[0]

    def chunk_of(self, n: int) -> Chunk:
        return self._document_of(n).chunk

    def row_of(self, n: int) -> StoredItem:
        if n not in self._rows:
            self._rows[n] = super().row_of(n)
        document = self._document_of(n)
        return msgspec.structs.replace(self._rows[n], place=document.place(n, document.columns()))

    def checkpoint_of(self, n: ItemNo) -> Checkpoint:
        at = self._document_of(n).checkpoints.get(n)
        return Checkpoint(n, 0, b"") if at is None else checkpoint_of(n, at, at.acc)

    def is_live(self, chunk: Chunk, now: float) -> bool:
        """Return whether an owner is alive by observation: the time that it wrote may be an hour off."""
        return chunk.owner is not None and chunk.owner not in self.dead and not self.bucket.is_silent(chunk, now)

    def _check_fences(self, claim: Claim, fence: int) -> None:
        """Check that no fence is granted twice. A process that slept gets its grant late; that fences grow is checked
        in the bucket."""
        for n in range(claim.lo, claim.hi):
            if (n, fence) in self._granted:
                raise Violation(f"item {n} is granted twice under fence {fence}")
            self._granted.add((n, fence))

    # -- between two requests -----------------------------------------------------------------------------------

    def meanwhile(self, connection: BucketConnection) -> None:
        """Let other actors run, or let the process die or sleep."""
        plan, process = self.plan, connection.process
        if process is not None and self.faulty and process.alive:
            if plan.crash and self.chance() < plan.crash / 4:
                process.die("crashes between two requests")
            if plan.pause and self.chance() < plan.pause / 4 and self._depth < DEPTH:
                process.sleep()
                self._let_others(process.asleep_until)
        if plan.races and self._depth < DEPTH and self.chance() < plan.races:
            self._keep_waiting(process, self.clock.now + WINDOW * self.chance(), 1 + int(self.chance() * 3))
        if process is not None and not process.alive:
            raise Died

    def _keep_waiting(self, process: Any, until: float, most: int = 10**6) -> None:
        """Let other actors run while a process waits; if one of them sleeps, that may take longer than a lease."""
        if process is None:
            self._let_others(until, most)
            return
        process.waits_since.append(self.clock.now)
        self._let_others(until, most)
        process.shaken = process.is_shaken
        process.waits_since.pop()

    def _let_others(self, until: float, most: int = 10**6) -> None:
        self._depth += 1
        self.counts["races"] += 1
        self.go_on(until, most)
        self._depth -= 1
        self.clock.now = max(self.clock.now, until)

    def trouble(self, connection: BucketConnection, what: str, name: str) -> None:
        """Note a fault on the way to the bucket."""
        self.counts["requests in trouble"] += 1
        if connection.process is not None:
            connection.process.shaken = True
        self.say(connection.who, what, name)

    # -- who opens a batch --------------------------------------------------------------------------------------

    def others(self) -> Iterable[Behavior]:
        return [self._opener(f"opener{number}") for number in range(self.plan.openers)]

    def _opener(self, who: str) -> Behavior:
        """Open a batch that does not exist yet, while others do: one of them creates it, and all get the same."""
        yield self.chance() * WINDOW
        body = self.batch.definition
        opened = self.on_behalf(who, lambda store: store.open_batch("other", "simulated", body, actor=who))
        self._opened.add(opened.id)
        named = [batch.id for batch in self.store.batches() if batch.name == "other"]
        if len(self._opened) != 1 or named != list(self._opened):
            raise Violation(f"one batch was opened by several, but they got {self._opened}; there are {named}")

    # -- people -------------------------------------------------------------------------------------------------

    def on_behalf(self, who: str, do: Callable[[Any], A]) -> A:
        """Call the store for an operator, who has a handle of its own and retries when there is no answer."""
        if who not in self._handles:
            connection = BucketConnection(self, self.bucket, who)
            store = BucketStore(connection, clock=self.clock, monotonic=self.clock, at_once=1, draw=self._draw)
            self._handles[who] = connection, store
            self._admit(connection, store)
        connection, store = self._handles[who]
        for turn in range(TRIES + 1):
            connection.is_quiet = turn == TRIES
            try:
                return do(store)
            except StoreError as error:
                self.say(who, f"tries again: {error}")
        raise AssertionError("a bucket without faults does not answer")
