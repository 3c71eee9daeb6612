"""The audit: an untouched store verifies from end to end, and whatever is changed is found and named."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import apsw
import msgspec
import pytest

from holdfast.core import journal
from holdfast.core.acts import Strategy, requeued
from holdfast.core.model import (
    Act,
    BatchId,
    Change,
    Chunk,
    ChunkId,
    ClaimRequest,
    Item,
    ItemNo,
    ItemState,
    State,
    StoredItem,
)  # fmt: skip
from holdfast.core.outcome import Outcome
from holdfast.core.states import Transition, move
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate import audit, operations, resolution, steer
from holdfast.runtime.operate.replay import AdmittedGroup, Projection
from holdfast.stores.base import Idle
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from tests.operations.world import OWNER, Clock, World, deferred, done, failed, skipped

Deed = Callable[[Item], Outcome]
BY = Actor(name="ada", reason="because")


def live_a_little(world: World, seed: int, items: int = 60, *, to_the_end: bool = False) -> None:
    """Everything that can happen to items, at random: cuts, retries, deferrals, dead letters, acts, take-overs; and how
    they end in other hands: as orphans, or cancelled."""
    rng = random.Random(seed)
    deeds = [done, done, done, failed, skipped, deferred, lambda item: failed(item, transient=False)]
    for start in range(0, items, 20):
        world.add(*range(start, start + 20), ended=start + 20 >= items)
        world.add_invalid(f"bad-{start}")
    for step in range(200):
        want = ClaimRequest(batch=world.id, owner=f"{OWNER}{rng.random()}", limit=rng.choice([1, 3, 50]), seconds=30.0)
        claim = world.store.claim(want)
        if isinstance(claim, Idle):
            if not claim.pending:
                break
            world.clock.advance(120.0)
            continue
        if rng.random() < 0.1:
            continue
        some = [item for item in world.items(claim) if rng.random() < 0.8]
        world.commit(claim, [rng.choice(deeds)(item) for item in some], release=rng.random() < 0.8)
        if rng.random() < 0.2:
            act = rng.choice([operations.redrive, operations.discard, operations.reset])
            act(world.store, world.batch, BY)
        if to_the_end and rng.random() < 0.05:
            world.clock.advance(3 * 3600.0)
            resolution.resolve_orphans(world.store, world.batch, BY, rng.choice(list(Strategy)))
        if rng.random() < 0.1:
            dead = world.store.items(world.id, state=operations.State.DEAD, limit=1)
            for item in dead:
                operations.resolve(
                    world.store, world.batch, BY, f"#{item.n}", output=rng.choice([None, b'{"by":"hand"}'])
                )
        if to_the_end and step > 25 and rng.random() < 0.05:
            steer.clear(world.store, world.batch, BY, code="cancelled", at_once=rng.random() < 0.5)


@pytest.mark.promise("E12", "P1")
@pytest.mark.parametrize("seed", range(40))
def test_whatever_happened_the_journal_verifies_and_explains_every_item(seed: int) -> None:
    clock = Clock()
    world = World(MemoryStore(clock=clock), clock)
    live_a_little(world, seed, to_the_end=seed % 2 == 0)
    found = audit.verify(world.store, world.batch)
    assert found.findings == ()
    assert (found.items, found.busy) == (63, 0)
    assert found.chains == 1 + len(world.store.chunks(world.id))


@pytest.mark.promise("E12")
def test_every_store_verifies(world: World) -> None:
    live_a_little(world, 7)
    found = audit.verify(world.store, world.batch)
    assert found.holds
    assert found.entries > 20
    assert found.outputs > 20


def test_an_empty_batch_verifies(world: World) -> None:
    found = audit.verify(world.store, world.batch)
    assert (found.holds, found.chains, found.entries) == (True, 1, 1)


def changed(world: World, kind: str, item: StoredItem, after: ItemState) -> None:
    change = Change(n=item.n, state=item.place.state, epoch=item.place.epoch, place=after)
    act = Act(id=os.urandom(16), batch=world.id, kind=kind, actor="ada", reason="so", at_items=(change,), seize=True)
    assert world.store.act(act) == [item.n]


@pytest.mark.promise("E12")
def test_an_item_that_failed_and_then_went_back_too_often_verifies(world: World) -> None:
    world.add("a")
    world.work(done)
    world.work(failed)
    (item,) = world.store.items(world.id)
    assert item.place.attempt == 1
    gone = move(item.place, Transition.EXHAUST, stage=0, stages=2, code="rewound_too_often", reason="gone")
    changed(world, "rewound", item, gone)
    assert audit.verify(world.store, world.batch).findings == ()


@pytest.mark.promise("A13", "E12")
def test_how_often_an_item_was_sent_on_its_way_again_is_held_against_the_journal(world: World) -> None:
    world.add("a")
    world.work(failed)
    for count in (1, 2):
        (item,) = world.store.items(world.id)
        changed(world, "requeued", item, requeued(item.place, 2, reason="so"))
        assert world.store.items(world.id)[0].place.requeues == count
    assert audit.verify(world.store, world.batch).findings == ()
    world.work(done)
    assert world.store.items(world.id)[0].place.requeues == 0
    assert audit.verify(world.store, world.batch).findings == ()


@pytest.mark.promise("A11")
def test_what_was_decided_before_an_item_was_sent_on_its_way_again_does_not_set_the_count_back(world: World) -> None:
    world.add("a")
    (seen,) = world.store.items(world.id)
    changed(world, "requeued", seen, move(seen.place, Transition.REQUEUE, stages=2))
    late = Change(n=seen.n, state=seen.place.state, epoch=0, place=move(seen.place, Transition.CANCEL, stages=2))
    act = Act(id=bytes(16), batch=world.id, kind="cancelled", actor="ada", reason="so", at_items=(late,))
    assert world.store.act(act) == []
    assert world.store.items(world.id)[0].place.requeues == 1


@pytest.mark.promise("E12")
@pytest.mark.parametrize("wait", [deferred, failed], ids=["deferred", "in back-off"])
def test_items_that_waited_when_their_batch_was_cancelled_verify(world: World, wait: Deed) -> None:
    world.add("a", "b")
    world.work(wait)
    assert all(item.place.due > world.clock() for item in world.store.items(world.id))
    steer.clear(world.store, world.batch, BY, code="cancelled")
    assert [item.place.state for item in world.store.items(world.id)] == [State.CANCELLED] * 2
    assert audit.verify(world.store, world.batch).findings == ()


@pytest.mark.promise("E12")
def test_a_settled_item_that_kept_what_it_waited_for_verifies_as_well(world: World) -> None:
    """Older files have such items: an act settled them and left their time."""
    world.add("a")
    world.work(deferred)
    (item,) = world.store.items(world.id)
    buried = move(item.place, Transition.BURY, stages=2, code="orphaned", reason="so")
    changed(world, "buried", item, msgspec.structs.replace(buried, due=item.place.due))
    assert audit.verify(world.store, world.batch).findings == ()


def test_a_finding_about_an_item_or_a_chunk_is_told_in_words() -> None:
    body = journal.Ingested(lo=0, hi=2, digests=bytes(64), chunk=1, end=2)
    projection = Projection(AdmittedGroup(body, 1, 2, 2, b""), stages=2, uid=b"", numbers={1: 1})
    item = StoredItem(n=ItemNo(0), key="a", place=ItemState(attempt=1, due=1_700_000_000.5), payload=b"", salt=b"")
    assert projection.difference(item) == (
        "it has had 1 attempt, but its journal says 0 attempts; "
        "it is due at 2023-11-14 22:13:20.500000+00:00, but its journal says at once"
    )
    chunk = Chunk(id=ChunkId(1), batch=BatchId(1), number=1, lo=ItemNo(0), hi=ItemNo(1), owner="host-a", end=2,
                  origin=2)  # fmt: skip
    assert projection.chunk_difference(chunk) == (
        "it covers items 0 to 0, but its journal says items 0 to 1; it is held by host-a, but its journal says no owner"
    )


def test_a_batch_in_flight_verifies(world: World) -> None:
    world.add(*range(10))
    claim = world.claim(4)
    world.commit(claim, [done(item) for item in world.items(claim)[:2]], release=False)
    assert audit.verify(world.store, world.batch).holds


def test_progress_is_told(world: World) -> None:
    world.add(*range(5))
    told: list[tuple[int, int]] = []
    audit.verify(world.store, world.batch, progress=lambda checked, total: told.append((checked, total)))
    assert told == [(5, 5)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store on disk with a finished batch, closed."""
    clock, path = Clock(), tmp_path_factory.mktemp("finished") / "state.db"
    store = SqliteStore(path, clock=clock)
    world = World(store, clock)
    live_a_little(world, 3)
    world.add("last")
    world.finish()
    assert audit.verify(store, world.batch).holds
    store.close()
    return path


@pytest.fixture
def file(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, to be edited."""
    return Path(shutil.copy(finished, tmp_path / "state.db"))


def tamper(file: Path, *statements: str) -> audit.Audit:
    """Edit the file behind the store's back, then audit it."""
    db = apsw.Connection(str(file))
    for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
        db.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        db.execute(statement)
    assert db.total_changes() > 0, "the test changed nothing"
    db.close()
    store = SqliteStore(file)
    (batch,) = store.batches("moby-dick")
    try:
        return audit.verify(store, batch)
    finally:
        store.close()


def where(found: audit.Audit, kind: str) -> list[str]:
    return [finding.where for finding in found.findings if finding.kind == kind]


LAST = "(SELECT max(id) FROM items)"
FLIP = "CAST(hex(body) AS BLOB)"
EMPTY = "CAST(substr({}, 1, 16) || '{{}}' AS BLOB)"
OF_LAST = "(SELECT id FROM chunks WHERE hi = 64)"
SET_BACK = f"""
    UPDATE chunks SET seq = seq - 1,
        head = (SELECT hash FROM journal WHERE chain = id ORDER BY seq DESC LIMIT 1 OFFSET 1)
    WHERE id = {OF_LAST};
    DELETE FROM journal WHERE chain = {OF_LAST} AND seq > (SELECT seq FROM chunks WHERE id = {OF_LAST});
"""

TAMPERINGS = {
    "a changed body": (f"UPDATE journal SET body = {FLIP} WHERE chain = 1 AND seq = 2", "chain", "entry 2 of chunk 1"),
    "a changed header": (
        "UPDATE journal SET head = CAST(hex(head) AS BLOB) WHERE chain = 1 AND seq = 2", "chain", "entry 2 of chunk 1",
    ),
    "a changed hash": (
        "UPDATE journal SET hash = zeroblob(32) WHERE chain = 1 AND seq = 1", "chain", "entry 1 of chunk 1",
    ),
    "a removed entry": ("DELETE FROM journal WHERE chain = 1 AND seq = 2", "chain", "entry 2 of chunk 1"),
    "a cut-off end": (
        "DELETE FROM journal WHERE chain = 1 AND seq = (SELECT seq FROM chunks WHERE id = 1)", "chain", "of chunk 1",
    ),
    "an entry of the batch": (
        f"UPDATE journal SET body = {FLIP} WHERE chain = -1 AND seq = 2", "chain", "entry 2 of batch 1",
    ),
    "a payload": (f"UPDATE items SET payload = {EMPTY.format('payload')} WHERE id = {LAST}", "payload", "('last')"),
    "a salt": (
        f"UPDATE items SET payload = CAST(zeroblob(16) || substr(payload, 17) AS BLOB) WHERE id = {LAST}", "payload",
        "('last')",
    ),
    "an output": (f"UPDATE outputs SET data = {EMPTY.format('data')} WHERE id = {LAST} * 64 + 1", "output", "('last')"),
    "a removed output": (f"DELETE FROM outputs WHERE id = {LAST} * 64", "output", "('last')"),
    "a removed item": (f"DELETE FROM items WHERE id = {LAST}", "payload", "item 63"),
    "a place": ("UPDATE places SET state = 'dead' WHERE state = 'done'", "place", "item"),
    "totals": ("UPDATE chunks SET spent = spent + 1 WHERE id = 1", "totals", "chunk 1"),
    "a chunk's head": ("UPDATE chunks SET seq = seq - 1 WHERE id = 1", "chain", "of chunk 1"),
    "an older head and nothing behind it": (SET_BACK, "totals", "chunk"),
    "an item's key": (f"UPDATE items SET key = 'lost' WHERE id = {LAST}", "key", "('lost')"),
    "the keys of two items": (
        f"UPDATE items SET key = iif(id = {LAST}, 'bad-0', 'last') WHERE key IN ('last', 'bad-0')", "key", "('bad-0')",
    ),
    "where a key leads": ("UPDATE keys SET n = n - 1 WHERE n = 63", "key", "('last')"),
    "a key that leads nowhere": ("DELETE FROM keys WHERE n = 63", "key", "('last')"),
    "an owner": ("UPDATE chunks SET owner = 'mallory' WHERE id = 1", "chunk", "chunk 1"),
    "a fence": ("UPDATE chunks SET fence = fence - 1 WHERE id = 1", "chunk", "chunk 1"),
    "when a chunk is due": ("UPDATE chunks SET due = 9e12 WHERE id = 1", "chunk", "chunk 1"),
    "a chunk's number": ("UPDATE chunks SET number = number + 1000 WHERE id = 1", "chain", "chunk 1"),
    "the first stage of a chunk": ("UPDATE chunks SET first = 1 WHERE id = 1", "chunk", "chunk 1"),
    "the end of a chunk": ('UPDATE chunks SET "end" = 3 WHERE id = 1', "chunk", "chunk 1"),
    "the leg of a chunk": ("UPDATE chunks SET leg = 1 WHERE id = 1", "chunk", "chunk 1"),
    "the kind of a chunk": ("UPDATE chunks SET kind = 'rows' WHERE id = 1", "chunk", "chunk 1"),
    "what admitted a chunk": ("UPDATE chunks SET origin = origin + 1 WHERE id = 1", "chunk", "chunk 1"),
    "the parent of a chunk": ("UPDATE chunks SET parent = 1 WHERE id = 2", "chunk", "chunk 2"),
    "the uid of the batch": ("UPDATE batches SET uid = zeroblob(16)", "chain", "entry 1 of batch 1"),
    "the parent of an item": (f"UPDATE items SET parent = 3 WHERE id = {LAST}", "payload", "('last')"),
    "that validation changed an item": (
        f"UPDATE items SET raw = zeroblob(16) WHERE id = {LAST}", "payload", "('last')",
    ),
    "another revision": (
        f"INSERT INTO revisions (id, revision, payload) SELECT id, 1, payload FROM items WHERE id = {LAST}", "payload",
        "('last')",
    ),
    "a word of an entry": (
        "UPDATE texts SET frame = CAST(frame || 'x' AS BLOB) WHERE chain = (SELECT min(chain) FROM texts)", "text",
        "entry",
    ),
    "where the last chunk ends": ("UPDATE chunks SET hi = hi + 1 WHERE hi = 64", "chunk", "chunk"),
    "the definition": (
        """UPDATE batches SET definition = CAST('{"stages":[{"name":"ocr"},{"name":"c0rrect"}]}' AS BLOB)""", "batch",
        "'moby-dick'",
    ),
    "a definition that nobody can read": ("UPDATE batches SET definition = zeroblob(3)", "batch", "'moby-dick'"),
    "the pipeline": ("UPDATE batches SET pipeline = 'brook'", "batch", "'moby-dick'"),
    "how many items there are": ("UPDATE batches SET admitted = admitted + 1", "batch", "'moby-dick'"),
    "that the source was read to its end": ("UPDATE batches SET ingested_at = NULL", "batch", "'moby-dick'"),
    "how many items are expected": ("UPDATE batches SET expected = 64", "batch", "'moby-dick'"),
    "that it was closed": ("UPDATE batches SET closed_at = 1.0", "batch", "'moby-dick'"),
    "how often an item was tried": ("UPDATE places SET attempt = attempt + 1 WHERE state = 'skipped'", "place", "item"),
    "when an item is due": ("UPDATE places SET due = 9e12 WHERE state = 'skipped'", "place", "item"),
    "why an item was skipped": ("UPDATE places SET reason = 'lazy' WHERE code = 'skipped'", "place", "item"),
}  # fmt: skip


@pytest.mark.promise("E12")
@pytest.mark.parametrize("what", TAMPERINGS)
def test_what_is_changed_is_found_and_named(file: Path, what: str) -> None:
    statement, kind, named = TAMPERINGS[what]
    found = tamper(file, statement)
    assert not found.holds
    assert any(named in each for each in where(found, kind)), found.findings


@pytest.mark.promise("E12")
def test_two_swapped_entries_are_both_named(file: Path) -> None:
    found = tamper(
        file,
        "UPDATE journal SET seq = 1000 WHERE chain = 1 AND seq = 1",
        "UPDATE journal SET seq = 1 WHERE chain = 1 AND seq = 2",
        "UPDATE journal SET seq = 2 WHERE chain = 1 AND seq = 1000",
    )
    assert {"entry 1 of chunk 1", "entry 2 of chunk 1"} <= set(where(found, "chain"))


@pytest.mark.promise("E12", "E4")
def test_exchanged_keys_are_found_although_the_index_agrees(file: Path) -> None:
    one, other = "(SELECT min(id) FROM items)", LAST
    found = tamper(
        file,
        f"CREATE TEMP TABLE kept AS SELECT id, key FROM items WHERE id IN ({one}, {other})",
        f"UPDATE items SET key = (SELECT key FROM kept WHERE kept.id <> items.id) WHERE id IN ({one}, {other})",
        "CREATE TEMP TABLE found AS SELECT batch, number, n FROM keys WHERE n IN (0, (SELECT max(n) FROM keys))",
        "UPDATE keys SET n = (SELECT n FROM found WHERE found.number <> keys.number) "
        "WHERE number IN (SELECT number FROM found)",
    )
    assert not where(found, "key"), "the index leads to the exchanged items"
    assert len(where(found, "payload")) == 2


@pytest.mark.promise("C3")
def test_a_fence_that_goes_back_is_found(clock: Clock) -> None:
    store = MemoryStore(clock=clock)
    world = World(store, clock)
    world.add("a")
    claim = world.claim()
    world.commit(claim, [failed(world.items(claim)[0])])
    (chunk,) = store.chunks(world.id)
    store._chunks[chunk.id] = msgspec.structs.replace(chunk, fence=0)
    world.clock.advance(60.0)
    world.claim()
    (finding,) = audit.verify(store, world.batch).findings
    assert "a fence never goes back" in finding.message
    assert finding.where == journal.name(chunk.id, chunk.seq + 1)
