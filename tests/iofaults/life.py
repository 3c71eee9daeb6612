"""Every verb of the store and of the file sink in the order of an item's life, on one thread and so in the same order
each time. Run again after a crash, it goes on from wherever things stand.

What a verb answered is written down outside of the disk that fails: an oracle holds the store against it. A verb may
fail with an error of Holdfast's own that says what to do, and the sink with an OSError; anything else is a complaint.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.core import canonical, course, journal
from holdfast.core.course import to_note
from holdfast.core.errors import HoldfastError
from holdfast.core.model import Batch, Claim, ClaimRequest, Item
from holdfast.core.outcome import Done, Failed, Outcome
from holdfast.core.retry import Policy
from holdfast.core.settle import Holder, commit, settle
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate import operations
from holdfast.runtime.report import lifecycle
from holdfast.runtime.sinks import Evidence, Files, Provenance
from holdfast.stores import owners
from holdfast.stores.base import each_entry, find_batch
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite import file as sqlite_file
from holdfast.testing.conformance.kit import new_item
from tests.iofaults import shim

DISK = "disk"
STORE = f"{DISK}/state.db"
OUT = f"{DISK}/out"
ACKS = "acks.jsonl"
EFFECTS = "effects.jsonl"
KEYS = (1, 2)
MORTAL = 2
"""This item is buried at first, and then redriven by an operator."""
STAGES = ("read", "bind")
POLICIES = [Policy()] * len(STAGES)
COST = 7
RECEIVER = "clerk"
TOLD = (course.BATCH_OPENED, course.ITEM_DEAD, course.BATCH_FINISHED)
LONG = 600
"""Makes a payload longer than a page of the file is likely to have room for."""
TYPED = 70
SINK = 71


class SinkFailed(Exception):
    """A verb of the sink raised what its contract says."""


class Life:
    """One process's part in the life of the batch."""

    def __init__(self) -> None:
        self.sink = Files(f"{OUT}/{{key}}.json")
        self.owner = owners.new_owner()
        self.definition = canonical.encode(
            {"stages": [{"name": STAGES[0]}, {"name": STAGES[1], "sink": self.sink.describe()}]}
        )
        self.commits = 0
        self.wrote_back = False
        self.store: SqliteStore | None = None

    def live(self) -> None:
        with self.verb("open"):
            self.store = store = SqliteStore(STORE)
        with self.verb("open_batch"):
            batch = store.open_batch("life", "life", self.definition, actor=self.owner)
        with self.verb("add_items"):
            items = [new_item(key, canonical.encode({"key": key, "text": "x" * LONG})) for key in KEYS]
            store.add_items(batch.id, items, ended=True, actor=self.owner)
        self.ack("admitted", keys=KEYS)
        self.work(store, batch)
        if not was_redriven(store, batch):
            with self.verb("act"):
                by = Actor(name="operator", reason="it lives")
                done = operations.redrive(store, batch, by).changed
            self.ack("redriven", count=done)
            self.work(store, batch)
        with self.verb("note"):
            store.amend(batch.id, to_note(lifecycle.STAGE_COMPLETED, COMPLETED, once=True), actor=self.owner)
        self.ack("noted")
        self.end(store, batch)
        with self.verb("close"):
            store.close()
        self.reopen()

    def end(self, store: SqliteStore, batch: Batch) -> None:
        """The batch is sealed, once, and a receiver hears of all there was."""
        with self.verb("seal"):
            (row,) = store.batches()
            if row.sealed_at is None:
                store.seal(
                    batch.id,
                    actor=self.owner,
                    reconciliation=b"{}",
                    events=[course.batch_finished("complete", {"done": 2})],
                )
        self.ack("sealed")
        with self.verb("delivered"):
            told = store.events()
            heard = store.delivered(RECEIVER, told[-1].id)
        self.ack("delivered", up_to=heard)

    def reopen(self) -> None:
        """A look at what is there, by a store that does not know it yet."""
        with self.verb("reopen"):
            self.store = store = SqliteStore(STORE)
        with self.verb("read"):
            (batch,) = store.batches("life")
            outputs = store.outputs(batch.id)
        for output in outputs:
            if output.file is not None:
                with self.verb("check", sink=True):
                    trouble = self.sink.check(Evidence.decode(output.file), full=True)
                assert trouble is None, trouble
        with self.verb("close"):
            store.close()
        self.ack("ended")

    def work(self, store: SqliteStore, batch: Batch) -> None:
        while isinstance(claim := self.claim(store, batch), Claim):
            self.ack("granted", fence=claim.lease.fence)
            self.sink.look_again()
            with self.verb("load"):
                items = store.load(claim, None, 100, 1 << 20)
            version = 0
            while items:
                items = self.advance(store, batch, claim, items, version)
                version += 1

    def claim(self, store: SqliteStore, batch: Batch) -> Any:
        with self.verb("claim"):
            return store.claim(ClaimRequest(batch=batch.id, owner=self.owner, limit=1, seconds=30.0))

    def advance(self, store: SqliteStore, batch: Batch, claim: Claim, items: list[Item], version: int) -> list[Item]:
        """All items one stage further, in one commit; returns those that go on."""
        outcomes = [self.handle(store, batch, claim, item) for item in items]
        staged = [Evidence.decode(o.file) for o in outcomes if isinstance(o, Done) and o.file is not None]
        with self.verb("sync_folders", sink=True):
            self.sink.sync_folders(staged)
        settled = settle(outcomes, stages=len(STAGES), policies=POLICIES, now=store.now())
        held = claim.lease
        holder = Holder(batch=batch.id, uid=claim.uid, chunk=held.chunk, number=claim.number, fence=held.fence,
                        grant=held.grant, version=version, seconds=30.0)  # fmt: skip
        self.commits += 1
        name = f"{os.getpid()}-{self.commits}".encode().rjust(16, b"0")
        written = commit(holder, settled, commit_id=name, release=not settled.onward)
        with self.verb("commit with files" if staged else "commit"), self.log_written_back(store, bool(staged)):
            receipts = store.commit([written])
        assert receipts[0].landed, receipts
        self.ack("landed", commit=name.decode())
        with self.verb("publish", sink=True):
            self.sink.publish(staged)
        if staged:
            self.ack("published", files=[each.final for each in staged])
        return settled.onward

    def handle(self, store: SqliteStore, batch: Batch, claim: Claim, item: Item) -> Outcome:
        place = Provenance(
            pipeline="life", batch="life", stage=STAGES[item.place.stage], n=item.n, epoch=item.place.epoch,
            fence=claim.lease.fence, input_digest=canonical.digest(item.input), key=int(item.key),
        )  # fmt: skip
        has_file = item.place.stage == 1
        if has_file:
            with self.verb("find", sink=True):
                found = self.sink.find(place)
            if found is not None:
                output = self.sink.read(found)
                return Done(item, output, 0.0, 0.0, spend(item), found.encode(), True)
        append(EFFECTS, key=item.key, stage=item.place.stage)
        if int(item.key) == MORTAL and not has_file and not was_redriven(store, batch):
            return Failed(item, False, "mortal", "not yet", 0.5, 0.0, 0.0, spend=spend(item))
        output = output_of(int(item.key), item.place.stage)
        file = None
        if has_file:
            with self.verb("stage", sink=True):
                file = self.sink.stage(place, output).encode()
        return Done(item, output, 0.0, 0.0, spend(item), file)

    @contextmanager
    def log_written_back(self, store: SqliteStore, wanted: bool) -> Iterator[None]:
        """The first commit that wants it also writes the log back into the file, as one in thousands does."""
        wanted, self.wrote_back = wanted and not self.wrote_back, self.wrote_back or wanted
        if wanted:
            store._file._db.pragma("wal_autocheckpoint", 1)
        yield
        if wanted:
            store._file._db.pragma("wal_autocheckpoint", sqlite_file.CHECKPOINT_PAGES)

    @contextmanager
    def verb(self, name: str, *, sink: bool = False) -> Iterator[None]:
        """A part of the log of calls; errors of the sink get a name."""
        shim.mark(name)
        try:
            yield
        except OSError as error:
            if sink:
                raise SinkFailed(name) from error
            raise

    def ack(self, word: str, **facts: Any) -> None:
        append(ACKS, word=word, **facts)

    def try_on(self) -> str:
        """What the same store says to further calls after one has failed."""
        shim.mark("further calls")
        if self.store is None:
            return "nothing is open"
        try:
            batch = find_batch(self.store, "life")
            if batch is not None:
                self.store.amend(batch.id, to_note(lifecycle.STAGE_COMPLETED, COMPLETED, once=True), actor=self.owner)
                self.ack("noted")
        except HoldfastError as error:
            return f"refused: {error}"
        return "answered"

    def close(self) -> str:
        """How it went to close the store after something has failed."""
        shim.mark("closing")
        try:
            if self.store is not None:
                self.store.close()
        except HoldfastError as error:
            return f"refused: {error}"
        return ""


COMPLETED = journal.Acted(reason="complete", note=canonical.encode({"stage": STAGES[0]}))


def spend(item: Item) -> journal.Spend:
    return journal.Spend(item.n, usd=COST, tokens=1)


def output_of(key: int, stage: int) -> bytes:
    return canonical.encode({"key": key, "stage": STAGES[stage], "text": "y" * (LONG + key)})


def was_redriven(store: SqliteStore, batch: Batch) -> bool:
    return any(
        journal.decode_header(entry.head).kind == "redriven"
        for chunk in store.chunks(batch.id)
        for entry in each_entry(store, chunk.id)
    )


def append(path: str, **facts: Any) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, json.dumps({**facts, "pid": os.getpid(), "at": time.time()}).encode() + b"\n")
    os.close(handle)


def main(argv: list[str]) -> int:
    """Live on, and leave without ceremony. `check` also looks at the end of it, which took two runs, or `three`; with
    `gone` a failure is the end at once. Other words are ways to be broken."""
    for way in argv:
        if way not in ("check", "three", "gone"):
            from tests.iofaults import sabotage

            sabotage.WAYS[way]()
    Path(DISK).mkdir(exist_ok=True)
    shim.arm()
    life = Life()
    said: dict[str, Any] = {}
    try:
        life.live()
        status = 0
    except (HoldfastError, SinkFailed) as error:
        status = SINK if isinstance(error, SinkFailed) else TYPED
        met = error.__cause__ if isinstance(error, SinkFailed) else error
        said = {"error": type(met).__name__, "message": str(met)}
        if "gone" not in argv:
            said |= {"afterwards": life.try_on(), "closed": life.close()}
    if status == 0 and "check" in argv:
        from tests.iofaults import inquest

        said["complaints"] = inquest.hold(Path(), 3 if "three" in argv else 2)
    print(json.dumps(said), flush=True)  # noqa: T201 - what the test reads
    os._exit(status)  # taking an interpreter down costs more than a life
