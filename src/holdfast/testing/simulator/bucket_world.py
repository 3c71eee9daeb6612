"""A world whose store is a bucket: every process has a handle and clocks of its own, and between any two requests
others may act, the process may die, or sleep for longer than its lease."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar
from unittest import mock

import msgspec

from holdfast.core.errors import StoreError
from holdfast.core.model import BatchId, Checkpoint, Chunk, Claim, Commit, Course, ItemNo, StoredItem
from holdfast.stores.bucket import BucketStore, names
from holdfast.stores.bucket import store as bucket_store
from holdfast.stores.bucket.documents import ChunkDocument
from holdfast.testing.clock import START
from holdfast.testing.replay import Violation
from holdfast.testing.simulator.door import Door
from holdfast.testing.simulator.plan import LEASE, Plan
from holdfast.testing.simulator.vault import Vault
from holdfast.testing.simulator.world import Actor, Died, World

DEPTH = 3
"""So many actors at most wait for each other in the middle of a verb."""
WINDOW = 0.5
"""Seconds that a request takes at most, unless somebody sleeps."""
TRIES = 5
A = TypeVar("A")


class BucketWorld(World):
    """One simulation on a bucket."""

    loses_commits = False

    def __init__(self, plan: Plan, trace: list[str] | None = None) -> None:
        self._depth = 0
        self._rates: dict[str, float] = {}
        """How fast the monotonic clock of each runs."""
        self._opened: set[BatchId] = set()
        self._doors: dict[str, Door] = {}
        self._rows: dict[int, StoredItem] = {}
        self._granted: set[tuple[int, int]] = set()
        self._desks: dict[str, tuple[Door, BucketStore]] = {}
        super().__init__(plan, self._open, trace)

    def _open(self, clock: Callable[[], float], is_dead: Callable[[str], bool]) -> BucketStore:
        """The vault, and the handle of who looks at everything and meets no fault."""
        self.vault = Vault(clock, self._may_take_over)
        return BucketStore(Door(self, self.vault, "observer"), clock=clock, monotonic=clock, is_dead=is_dead, at_once=1)

    def connect(self, process: Any) -> BucketStore:
        door = self._doors[process.name] = Door(self, self.vault, process.name)
        door.process = process
        rate = self._rates[process.name] = 1 + (self.chance() * 2 - 1) * self.plan.drift
        clock, dead = self.clock, self.dead
        offset = self.chance() * 1e6
        store = BucketStore(door, clock=process.now, monotonic=lambda: offset + (clock.now - START) * rate,
                            is_dead=dead.__contains__, at_once=1)  # fmt: skip
        self._admit(door, store)
        return store

    def _admit(self, door: Door, store: BucketStore) -> None:
        """From here on requests go wrong, and who waits between two of them lets others act."""
        door.is_quiet = False
        vars(store._documents)["_pause"] = lambda seconds: self._wait(door, seconds)

    def _wait(self, door: Door, seconds: float) -> None:
        if self._depth < DEPTH:
            self._keep_waiting(door.process, self.clock.now + seconds)
        if door.process is not None and not door.process.alive:
            raise Died

    def _may_take_over(self, who: str, owner: str, heard: float) -> bool:
        """What was seen for the whole length of a lease on a clock that runs so fast; or its process is dead."""
        return owner in self.dead or heard * self._rates.get(who, 1.0) >= LEASE

    def check_told(self, commit: Commit, *, landed: bool) -> None:
        """What a store says of a commit is held against the chain."""
        if landed != self.vault.has_landed(commit):
            raise Violation(
                f"commit {commit.id.hex()} {'is not' if landed else 'is'} in the chain, the store denies it"
            )

    def check_denied(self, who: str, commit: Commit) -> None:
        """Neither has it landed, nor may it land yet: then nobody could know."""
        super().check_denied(who, commit)
        door, name = self._doors[who], names.chunk(names.batch_of(commit.chunk), names.number_of(commit.chunk))
        there = self.vault.get(name)
        for data, (late, mark) in door.late.items():
            if late == name and there is not None and there.mark == mark and self.vault.adds_an_entry(name, data):
                raise Violation(f"{who} is told that commit {commit.id.hex()} did not land, and it may land yet")

    def check_held(self, process: Any, held: set[int]) -> None:
        """What was granted to a process is in its hands: nobody else can have it until its lease has ended."""
        forgotten = self.vault.held_by(process.name) - held
        if forgotten and not process.unsure:
            raise Violation(f"{process.name} holds chunks {forgotten} and knows nothing of it")

    def choice(self, free: list[A]) -> A:
        """What the store takes at random, the same for every run of a seed."""
        return free[int(self.chance() * len(free))]

    def run(self) -> None:
        with mock.patch.object(bucket_store, "random", self):
            super().run()

    def course_there(self) -> Course:
        return self.vault.batch.batch.course

    def is_closed(self) -> bool:
        batch = self.vault.batch.batch
        return batch.sealed_at is not None or batch.course is Course.CANCELLED

    # -- what is true, read from the documents: asking the store takes too long ----------------------------------

    def _document_of(self, n: int) -> ChunkDocument:
        found = self.vault.documents_of(n)
        if len(found) != 1:
            raise Violation(f"item {n} is in {len(found)} chunks")
        return found[0]

    def chunk_of(self, n: int) -> Chunk:
        return self._document_of(n).chunk

    def row_of(self, n: int) -> StoredItem:
        if n not in self._rows:
            self._rows[n] = super().row_of(n)
        document = self._document_of(n)
        return msgspec.structs.replace(self._rows[n], place=document.place(n, document.columns(), self.stages))

    def checkpoint_of(self, n: ItemNo) -> Checkpoint:
        at = self._document_of(n).checkpoints.get(n)
        return Checkpoint(n, 0, b"") if at is None else Checkpoint(n, at.rows, at.cursor, at.acc, at.at)

    def is_live(self, chunk: Chunk, now: float) -> bool:
        """By observation: the time that an owner wrote down may be an hour off."""
        return chunk.owner is not None and chunk.owner not in self.dead and not self.vault.is_silent(chunk, now)

    def _check_fences(self, claim: Claim, fence: int) -> None:
        """Who slept while it was granted a chunk hears of it late; that fences grow is seen in the vault."""
        for n in range(claim.lo, claim.hi):
            if (n, fence) in self._granted:
                raise Violation(f"item {n} is granted twice under fence {fence}")
            self._granted.add((n, fence))

    # -- between two requests -----------------------------------------------------------------------------------

    def meanwhile(self, door: Door) -> None:
        """Others act, or the process dies or sleeps."""
        plan, process = self.plan, door.process
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
        """Others act while a process waits; where one of them sleeps, that may take longer than a lease."""
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

    def trouble(self, door: Door, what: str, name: str) -> None:
        """Something went wrong on the way to the bucket."""
        self.counts["requests in trouble"] += 1
        if door.process is not None:
            door.process.shaken = True
        self.say(door.who, what, name)

    # -- who opens a batch --------------------------------------------------------------------------------------

    def others(self) -> Iterable[Actor]:
        return [self._opener(f"opener{number}") for number in range(self.plan.openers)]

    def _opener(self, who: str) -> Actor:
        """Opens a batch that is not there yet, while others do: one of them makes it, and all have the same."""
        yield self.chance() * WINDOW
        body = self.batch.definition
        opened = self.on_behalf(who, lambda store: store.open_batch("other", "simulated", body, actor=who))
        self._opened.add(opened.id)
        named = [batch.id for batch in self.store.batches() if batch.name == "other"]
        if len(self._opened) != 1 or named != list(self._opened):
            raise Violation(f"one batch was opened by several, and they have {self._opened}; there are {named}")

    # -- people -------------------------------------------------------------------------------------------------

    def on_behalf(self, who: str, do: Callable[[Any], A]) -> A:
        """People have handles of their own, and try again when they get no answer."""
        if who not in self._desks:
            door = Door(self, self.vault, who)
            store = BucketStore(door, clock=self.clock, monotonic=self.clock, at_once=1)
            self._desks[who] = door, store
            self._admit(door, store)
        door, store = self._desks[who]
        for turn in range(TRIES + 1):
            door.is_quiet = turn == TRIES
            try:
                return do(store)
            except StoreError as error:
                self.say(who, f"tries again: {error}")
        raise AssertionError("a bucket without faults does not answer")
