"""What a store lives through while its disk is recorded, and how it goes on after the power came back."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from holdfast.core import canonical, ingest, journal
from holdfast.core.course import batch_finished, to_note, to_reopen, to_steer
from holdfast.core.model import Act, BatchMode, Change, Claim, ClaimRequest, State
from holdfast.core.states import Transition, move
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate import operations
from holdfast.stores import faults
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite import file as sqlite_file
from tests.operations.world import OWNER, Clock, World, deferred, done, failed, skipped
from tests.powerloss.recorder import BASE, Ignores, Op, ignore_nothing, recording

BY = Actor(name="ada", reason="because")
BATCH = "moby-dick"
KEYS = 110
OTHER = "typee"
TABLES = ("batches", "chunks", "items", "keys", "places", "outputs", "journal", "events", "receivers")
"""Everything but `meta`, which tells a file from its copies."""


class Story(msgspec.Struct, frozen=True):
    """What was done to the disk, and what the store held after each thing that it acknowledged."""

    ops: list[Op]
    contents: list[bytes]
    """The first stands for a file in which nothing was written yet."""


def tell(folder: Path, patch: pytest.MonkeyPatch, ignores: Ignores = ignore_nothing) -> Story:
    """Let a store live on a recorded disk. Its log is made small, so that it is copied back and begun again often;
    its cache is made smaller than a large group, so that parts of it reach the log before the commit."""
    folder.mkdir()
    path = folder / "state.db"
    patch.setitem(sqlite_file.SETTINGS, "wal_autocheckpoint", 40)
    patch.setitem(sqlite_file.SETTINGS, "cache_size", -20)
    contents = [b""]
    with recording(path, ignores) as disk:

        def look(point: str) -> None:
            if point.endswith(".after"):
                disk.note(Op("committed"))
                contents.append(content_of(path))

        faults.arm(look)
        try:
            live(lambda clock: SqliteStore(path, clock=clock, is_dead=nobody_is_dead))
        finally:
            faults.arm(None)
    return Story(disk.ops, contents)


def nobody_is_dead(owner: str) -> bool:
    return False


def live(opened: Callable[[Clock], SqliteStore]) -> None:
    """Everything that the store can be asked for, in two sessions: a closed file loses its log."""
    clock, rng = Clock(), random.Random(1)
    store = opened(clock)
    world = World(store, clock, batch=BATCH)
    add(world, 0, 20)
    world.add_invalid("bad")
    held = world.claim(8)
    world.commit(held, [done(item) for item in world.items(held)[:4]], release=False)
    store.renew([held.lease], 60.0)
    world.commit(held, [failed(item) for item in world.items(held)[-3:]], version=1)
    world.work(lambda item: skipped(item) if item.n % 2 else deferred(item), limit=3)
    world.work(lambda item: failed(item, transient=False), limit=3)
    operations.redrive(store, world.batch, BY)
    store.close()

    store = opened(clock)
    world = World(store, clock, batch=BATCH)
    add(world, 20, KEYS, size=700)
    for _ in range(12):
        clock.advance(61.0)
        claim = world.claim(rng.choice([1, 4, 15]))
        world.commit(claim, [done(item) for item in world.items(claim)], release=rng.random() < 0.7)
    operations.reset(store, world.batch, BY, "#1")
    operations.discard(store, world.batch, BY)
    note = journal.Acted(reason="complete", note=b"{}")
    store.amend(world.id, to_note("stage_completed", note), actor="test")
    end(World(store, clock, batch=OTHER))
    store.close()


def end(world: World) -> None:
    """A small batch that is paused, resumed, worked on, cancelled, sealed, reopened and sealed again; and heard of."""
    store = world.store
    world.add(1, 2)
    for course in (BatchMode.PAUSED, BatchMode.OPEN):
        store.amend(world.id, to_steer(course, reason="because"), actor="ada")
    world.work(lambda item: failed(item, transient=False), limit=1)
    store.amend(world.id, to_steer(BatchMode.CANCELLED, reason="because"), actor="ada")
    (left,) = store.items(world.id, state=State.PENDING)
    gone = move(left.place, Transition.CANCEL, stages=len(world.stages))
    change = Change(n=left.n, state=left.place.state, epoch=left.place.epoch, place=gone)
    store.act(Act(id=bytes(16), batch=world.id, kind="cancelled", actor="ada", reason="because", at_items=(change,)))
    for turn in range(2):
        told = [batch_finished("cancelled", {"turn": turn})]
        store.seal(world.id, actor="ada", reconciliation=b"{}", events=told)
        if not turn:
            store.amend(world.id, to_reopen("because"), actor="ada")
    for event in store.events():
        store.delivered("clerk", event.id)


def add(world: World, first: int, last: int, *, size: int = 10) -> None:
    items = [ingest.admit(key, canonical.encode({"page": "x" * size})) for key in range(first, last)]
    world.store.add_items(world.id, items, ended=last == KEYS, actor="test")


def content_of(path: Path) -> bytes:
    """Every row of a file, read beside the store and past the recorder."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs=BASE)
    try:
        return rows(db)
    finally:
        db.close()


def rows(db: Any) -> bytes:
    return msgspec.msgpack.encode([list(db.execute(f"SELECT * FROM {table}")) for table in TABLES])


def go_on(store: SqliteStore, clock: Clock) -> list[int]:
    """Do the rest of the work to its end; returns the fences that were given out."""
    clock.advance(3600.0)
    world = World(store, clock, batch=BATCH)
    add(world, 0, KEYS)
    world.add_invalid("bad")
    fences: list[int] = []
    while True:
        answer = store.claim(ClaimRequest(batch=world.id, owner=OWNER, limit=50, seconds=30.0))
        if isinstance(answer, Claim):
            fences.append(answer.lease.fence)
            assert world.commit(answer, [done(item) for item in world.items(answer)]).landed
        elif answer.pending:
            clock.advance(3600.0)
        else:
            return fences
