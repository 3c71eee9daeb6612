"""A store with a life behind it, its bytes to be spoilt, and what must be read from it or not be read at all."""

import os
import random
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from holdfast.core.canonical import key_text
from holdfast.core.course import batch_finished, to_steer
from holdfast.core.errors import HoldfastError
from holdfast.core.journal import Spend
from holdfast.core.model import Act, Batch, BatchMode, Change, Chunk, Claim, ClaimRequest, ItemState, State, StoredItem
from holdfast.core.states import Transition, move
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate import audit, doctor, operations
from holdfast.stores.base import find_batch, find_items
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.safety import Epoch
from tests.operations.world import OWNER, Clock, World, deferred, done, failed, skipped

FILES = ("", "-wal", "-fence")
PAGE = 4096
FRAME = 24 + PAGE
LOG_HEADER = 32
BY = Actor(name="ada", reason="because")
Facts = dict[Any, Any]


class Original(msgspec.Struct, frozen=True):
    """The files of a store by what is added to its name, and everything that it tells."""

    files: dict[str, bytes]
    facts: Facts
    undone: list[Facts]
    """What it told before its last grant, and after it, before the commit that was its last transaction."""
    granted: int
    """Where the transaction of that grant begins in the log."""
    last: int
    """Where that of the commit begins, with the frame before it, which ends the grant: that another follows shows that
    the grant was durable."""
    older_log: bytes
    """Its log, as it was long before."""


def make(folder: Path, *, closed: bool) -> Original:
    """A store that was closed, or one whose process died and left a log behind. Its bytes are the same every time, but
    for the numbers that SQLite draws for its log: a flip that was found once is found again."""
    with (
        mock.patch.object(os, "urandom", random.Random(2).randbytes),
        mock.patch.object(Epoch, "_identity", return_value="that of another file"),
    ):
        return _make(folder, closed)


def _make(folder: Path, closed: bool) -> Original:
    folder.mkdir()
    path, clock = folder / "state.db", Clock()
    store = SqliteStore(path, clock=clock)
    world = World(store, clock)
    live(world)
    end(World(store, clock, batch="typee"))
    older = log_of(path)
    work_on(world)
    undone, sizes = [facts(store)], [len(log_of(path))]
    claim = world.claim(3)
    undone, sizes = [*undone, facts(store)], [*sizes, len(log_of(path)) - FRAME]
    world.commit(claim, [done(item) for item in world.items(claim)])
    truth = facts(store)
    assert audit.verify(store, world.batch).holds
    if closed:
        store.close()
    files = {suffix: Path(f"{path}{suffix}").read_bytes() for suffix in FILES if Path(f"{path}{suffix}").exists()}
    if not closed:
        store.close()
    (folder / "next").mkdir()
    return Original(files, truth | next_claim(restore(files, folder / "next")), undone, *sizes, older)


def written(original: Original, file: str) -> list[int]:
    """Where something is written. The headers of a log are, whatever numbers SQLite drew for them."""
    data = original.files[file]
    if file == "-wal":
        return [
            at for at, byte in enumerate(data) if byte or at < LOG_HEADER or (at - LOG_HEADER) % FRAME < FRAME - PAGE
        ]
    return [at for at, byte in enumerate(data) if byte]


def log_of(path: Path) -> bytes:
    return Path(f"{path}-wal").read_bytes()


def live(world: World) -> None:
    world.add(*(f"page-{n}" for n in range(60)))
    world.add_invalid("bad")
    world.add(*range(100, 130))
    work_on(world)


def work_on(world: World) -> None:
    rng, clock = random.Random(4), world.clock
    for turn in range(7):
        clock.advance(61.0)
        claim = world.claim(rng.choice([2, 5, 9]))
        deeds = [done, done, failed, skipped, deferred, lambda item: failed(item, transient=False)]
        outcomes = [
            done(item, spend=Spend(n=item.n, usd=1_000, tokens=7)) if turn % 3 else rng.choice(deeds)(item)
            for item in world.items(claim)
        ]
        world.commit(claim, outcomes, release=turn % 4 > 0)
    operations.redrive(world.store, world.batch, BY, code="http_503")
    operations.discard(world.store, world.batch, BY)
    operations.reset(world.store, world.batch, BY, f"page-{rng.randrange(9)}")
    send_on_its_way(world, world.store.items(world.id, state=State.PENDING)[-1])


def send_on_its_way(world: World, item: StoredItem) -> None:
    after = move(item.place, Transition.REQUEUE, stages=len(world.stages))
    change = Change(n=item.n, state=item.place.state, epoch=item.place.epoch, place=after)
    world.store.act(Act(id=os.urandom(16), batch=world.id, kind="requeued", actor="ada", reason="so",
                        at_items=(change,), seize=True))  # fmt: skip


def end(world: World) -> None:
    """A batch of which nothing is left: given an end, paused, finished, cancelled, sealed; and heard of."""
    store = world.store
    world.add(*range(4))
    for course, ends_at in ((BatchMode.OPEN, 1.8e9), (BatchMode.PAUSED, 1.8e9), (BatchMode.OPEN, 1.8e9)):
        store.amend(world.id, to_steer(course, reason="so", ends_at=ends_at), actor="ada")
    world.finish()
    store.amend(world.id, to_steer(BatchMode.CANCELLED, reason="so", ends_at=1.9e9), actor="ada")
    store.seal(world.id, actor="ada", reconciliation=b"{}", events=[batch_finished("cancelled", {"done": 4})])
    store.delivered("clerk", 3)


def facts(store: SqliteStore) -> Facts:
    """Everything that a store tells, but for what no journal proves: see `plain_batch` and the others."""
    told: Facts = {}
    for batch in store.batches():
        told["batch", batch.id] = plain_batch(batch)
        told["named", batch.name] = find_batch(store, batch.name) is not None
        for state in State:
            told["items", batch.id, state] = [item.n for item in store.items(batch.id, state=state, limit=10_000)]
        for chunk in store.chunks(batch.id):
            told["chunk", batch.id, chunk.id] = plain_chunk(chunk)
        items = store.items(batch.id, limit=10_000)
        found = find_items(store, batch.id, [key_text(item.key) for item in items])
        for item, leads_to in zip(items, found, strict=True):
            told["item", batch.id, item.n] = (item.key, item.payload, item.salt, plain_place(item.place))
            told["found", batch.id, item.n] = leads_to
        for output in store.outputs(batch.id, limit=10_000):
            told["output", batch.id, output.n, output.stage] = output
    return told


def next_claim(path: Path) -> Facts:
    store = SqliteStore(path, clock=Clock())
    try:
        return claimed(store)
    finally:
        store.close()


def claimed(store: SqliteStore) -> Facts:
    """What a worker is given that comes now: the way there leads through an index of its own."""
    wants = [ClaimRequest(batch=batch.id, owner=OWNER, limit=3, seconds=30.0) for batch in store.batches()]
    claims = [answer for want in wants if isinstance(answer := store.claim(want), Claim)]
    return {("claim", claim.batch): (claim.lo, claim.hi, claim.pending) for claim in claims}


def plain_batch(batch: Batch) -> Batch:
    """Without times: whether the source ended and the batch is sealed is proved, and not when."""
    ended, sealed = (None if at is None else 1.0 for at in (batch.ingested_at, batch.sealed_at))
    return msgspec.structs.replace(batch, opened_at=0.0, ingested_at=ended, sealed_at=sealed)


def plain_chunk(chunk: Chunk) -> Chunk:
    """Without what only a running worker uses (lease, version, blame, reserve), times, and the parent; and without
    the fence of a chunk that was never granted, and the grant of one that nobody holds."""
    fence, grant = chunk.fence if chunk.seq else 0, chunk.grant if chunk.owner is not None else b""
    counts = msgspec.structs.replace(chunk.counts, seconds=round(float(chunk.counts.seconds), 4))
    return msgspec.structs.replace(
        chunk, version=0, expires=0.0, blame=0, progressed=True, reserved=0, touched_at=0.0, parent=None, fence=fence,
        grant=grant, counts=counts,
    )  # fmt: skip


def plain_place(place: ItemState) -> ItemState:
    """Without what it used of its time budget, its planned wait, the money, the rewinds and the deferrals of its
    stage; the words of an act."""
    known = place.attempt > 0 or place.due > 0
    return msgspec.structs.replace(
        place,
        used=0.0,
        wait=0.0,
        spent=0,
        rewinds=0,
        deferred=0.0,
        code=place.code if known else "",
        reason=place.reason if known else "",
    )


def verdict(original: Original, spoilt: dict[str, bytes], folder: Path) -> str:
    """What a user is told who opens the spoilt files: `whole` (it tells the truth), `refused`, `found` by the audit,
    `reported` by the doctor; `undone` where the last transaction is gone as after a power cut; else `silent`."""
    path = restore(spoilt, folder)
    try:
        store = SqliteStore(path, clock=Clock())
    except HoldfastError as error:
        return "refused" if str(path) in str(error) else f"refused, but nobody knows which file: {error}"
    try:
        told = facts(store)
        if not told.items() <= original.facts.items() and not holds(store):
            return "found"  # before a claim writes over it
        if told | claimed(store) == original.facts:
            return "whole"
        if not holds(store):
            return "found"
    except HoldfastError as error:
        return "refused" if str(path) in str(error) else f"refused, but nobody knows which file: {error}"
    finally:
        store.close()
    if is_reported(path):
        return "reported"
    return "undone" if told in original.undone else f"silent: {difference(original.facts, told)}"


def holds(store: SqliteStore) -> bool:
    return all(audit.verify(store, batch).holds for batch in store.batches())


def is_reported(path: Path) -> bool:
    """Whether the doctor says that something is wrong, or that it cannot even look."""
    try:
        return any(check.level is not doctor.Level.OK for check in doctor.check_content(path))
    except HoldfastError as error:
        return str(path) in str(error)


def restore(files: dict[str, bytes], folder: Path) -> Path:
    path = folder / "state.db"
    for suffix in (*FILES, "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    for suffix, data in files.items():
        Path(f"{path}{suffix}").write_bytes(data)
    return path


def difference(truth: Facts, told: Facts) -> str:
    wrong = [key for key in truth if told.get(key) != truth[key]] + [key for key in told if key not in truth]
    return "; ".join(f"{key} is {told.get(key)}, the truth is {truth.get(key)}" for key in wrong[:3])
