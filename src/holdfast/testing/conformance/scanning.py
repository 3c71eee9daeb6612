"""Scans: chunks of partitions and of rows, and checkpoints: how far a partition has been read."""

from msgspec.structs import replace

from holdfast.core import canonical, commitments, journal
from holdfast.core.model import Checkpoint, ChunkId, CommitRefusal, ItemNo, Kind, Receipt
from holdfast.core.sections import decode
from holdfast.stores.base import chunk_of, each_item
from holdfast.testing.conformance.kit import DEFINITION, Kit, done, failed, new_item, proves, reset

LANDED = [Receipt(landed=True)]
LOST = [Receipt(landed=False, reason=CommitRefusal.LOST)]


@proves("B1", "B10", "C1")
def cursor_count_and_accumulator_move_in_one_commit(kit: Kit) -> None:
    kit.admit("part")
    claim = kit.claim()
    (item,) = kit.load(claim)
    assert kit.store.checkpoints(kit.batch) == []
    kit.clock.advance(5)
    written = kit.reach(claim, item, 200, acc=b"[200]")
    assert kit.store.commit([written]) == LANDED
    (at,) = kit.store.checkpoints(kit.batch)
    assert at == replace(written.checkpoints[0], at=kit.clock(), salt=at.salt)
    body = kit.last(claim.lease.chunk)
    assert isinstance(body, journal.Checkpointed)
    digest = commitments.accumulator(claim.uid, 0, 200, at.salt, b"[200]")
    (position,) = body.positions
    assert position == journal.Position(0, 200, at.cursor, digest, mark=position.mark)
    kit.check()


@proves("B1", "C10")
def the_next_owner_begins_at_the_last_checkpoint(kit: Kit) -> None:
    kit.admit("part")
    claim = kit.claim("ann")
    (item,) = kit.load(claim)
    for version, rows in enumerate((200, 400, 600)):
        assert kit.store.commit([kit.reach(claim, item, rows, version=version, acc=b"%d" % rows)]) == LANDED
    kit.clock.advance(31)
    kit.claim("bob")
    (at,) = kit.store.checkpoints(kit.batch)
    assert (at.rows, at.acc) == (600, b"600")
    kit.check()


@proves("B4", "C8", "C13")
def a_refused_commit_moves_no_checkpoint(kit: Kit) -> None:
    kit.admit("part")
    claim = kit.claim("ann")
    (item,) = kit.load(claim)
    assert kit.store.commit([kit.reach(claim, item, 200)]) == LANDED
    kit.clock.advance(31)
    kit.claim("bob")
    before = kit.everything()
    assert kit.store.commit([kit.reach(claim, item, 400, version=1)]) == [
        Receipt(landed=False, reason=CommitRefusal.LOST)
    ]
    assert kit.everything() == before


@proves("B15")
def a_checkpoint_of_a_chunk_that_is_finished_or_unknown_changes_nothing(kit: Kit) -> None:
    kit.admit("part")
    claim = kit.claim()
    (item,) = kit.load(claim)
    kit.finish(claim)
    before = kit.everything()
    late = kit.reach(claim, item, 200, version=kit.store.chunks(kit.batch)[0].version)
    unknown = replace(late, chunk=ChunkId(late.chunk + 1_000), id=kit.new_id())
    assert kit.store.commit([late]) == LOST
    assert kit.store.commit([unknown]) == LOST
    assert kit.everything() == before


@proves("B7", "C12")
def a_checkpoint_that_is_sent_twice_lands_once(kit: Kit) -> None:
    kit.admit("part")
    claim = kit.claim()
    (item,) = kit.load(claim)
    written = kit.reach(claim, item, 200, acc=b"1")
    assert kit.store.commit([written]) == kit.store.commit([written]) == LANDED
    assert kit.kinds(claim.lease.chunk) == ["claimed", "checkpoint"]
    kit.check()


@proves("B18", "C1", "C12")
def an_older_checkpoint_never_overtakes_a_newer_one(kit: Kit) -> None:
    """Check a checkpoint that comes too early, and a delayed copy of an old one."""
    kit.admit("part")
    claim = kit.claim()
    (item,) = kit.load(claim)
    made = [kit.reach(claim, item, rows, version=n, acc=b"%d" % rows) for n, rows in enumerate((200, 400, 600))]
    before = kit.everything()
    for early in made[:0:-1]:
        assert [receipt.landed for receipt in kit.store.commit([early])] == [False]
    assert kit.everything() == before
    for each in made:
        assert kit.store.commit([each]) == LANDED
    after = kit.everything()
    for late in made:
        kit.store.commit([late])
        stranger = replace(late, id=kit.new_id())
        assert [receipt.landed for receipt in kit.store.commit([stranger])] == [False]
    assert kit.everything() == after
    (at,) = kit.store.checkpoints(kit.batch)
    assert (at.rows, at.acc) == (600, b"600")
    kit.check()


@proves("B8")
def a_checkpoint_touches_no_output_and_an_output_no_checkpoint(kit: Kit) -> None:
    kit.admit("part")
    claim = kit.claim()
    (item,) = kit.load(claim)
    kit.land(claim, [done(item)])
    outputs = kit.store.outputs(kit.batch)
    (item,) = kit.load(claim)
    assert kit.store.commit([kit.reach(claim, item, 200, version=1, acc=b"1")]) == LANDED
    assert kit.store.outputs(kit.batch) == outputs
    reached = kit.store.checkpoints(kit.batch)
    kit.land(claim, [done(item)], version=2, release=True)
    assert kit.store.checkpoints(kit.batch) == reached
    kit.check()


@proves("B12")
def a_failed_attempt_keeps_the_checkpoint(kit: Kit) -> None:
    kit.admit("part")
    claim = kit.claim()
    (item,) = kit.load(claim)
    assert kit.store.commit([kit.reach(claim, item, 200, outcomes=[failed(item)], release=True)]) == LANDED
    assert kit.place(0).attempt == 1
    assert [at.rows for at in kit.store.checkpoints(kit.batch)] == [200]
    kit.check()


@proves("B7", "B12")
def a_checkpoint_puts_failed_attempts_behind_it(kit: Kit) -> None:
    kit.admit("part")
    claim = kit.claim()
    (item,) = kit.load(claim)
    kit.land(claim, [failed(item)], release=True)
    kit.clock.advance(60)
    claim = kit.claim()
    (item,) = kit.load(claim)
    assert item.place.attempt == 1
    assert kit.store.commit([kit.reach(claim, item, 200)]) == LANDED
    assert kit.place(0) == replace(item.place, attempt=0, used=0.0, wait=0.0, due=0.0, code="", reason="")
    kit.check()


@proves("B12", "C15")
def an_act_can_set_another_checkpoint_and_fences_the_owner(kit: Kit) -> None:
    kit.admit("part")
    claim = kit.claim()
    (item,) = kit.load(claim)
    assert kit.store.commit([kit.reach(claim, item, 200, acc=b"1")]) == LANDED
    begin = Checkpoint(item.n, 0, b"")
    assert kit.act("reset", replace(reset(0, kit.place(0)), checkpoint=begin), seize=True) == [0]
    assert kit.store.checkpoints(kit.batch) == [replace(begin, at=kit.clock())]
    assert kit.store.commit([kit.reach(claim, item, 400, version=1)]) == [
        Receipt(landed=False, reason=CommitRefusal.LOST)
    ]
    body = kit.last(claim.lease.chunk)
    assert isinstance(body, journal.Acted)
    assert body.items[0].position == journal.Position(0, 0)
    kit.check()


@proves("B12")
def an_act_without_a_checkpoint_keeps_it(kit: Kit) -> None:
    kit.admit("part")
    claim = kit.claim()
    (item,) = kit.load(claim)
    assert kit.store.commit([kit.reach(claim, item, 200, acc=b"1", release=True)]) == LANDED
    before = kit.store.checkpoints(kit.batch)
    assert kit.act("reset", reset(0, kit.place(0))) == [0]
    assert kit.store.checkpoints(kit.batch) == before
    kit.check()


@proves("B11")
def every_checkpoint_has_one_entry_that_stays(kit: Kit) -> None:
    kit.admit("part")
    claim = kit.claim()
    (item,) = kit.load(claim)
    for version in range(5):
        assert kit.store.commit([kit.reach(claim, item, 200 * (version + 1), version=version)]) == LANDED
    bodies = [decode(entry) for entry in kit.chain(claim.lease.chunk)[1:]]
    told = [body.positions for body in bodies if isinstance(body, journal.Checkpointed)]
    assert [p.rows for positions in told for p in positions] == [200, 400, 600, 800, 1000]


@proves()
def checkpoints_are_read_in_order_and_by_range(kit: Kit) -> None:
    kit.admit("a", "b", "c")
    claim = kit.claim()
    for version, item in enumerate(reversed(kit.load(claim))):
        assert kit.store.commit([kit.reach(claim, item, 10 + item.n, version=version)]) == LANDED
    read = [(at.n, at.rows) for at in kit.store.checkpoints(kit.batch)]
    assert read == [(0, 10), (1, 11), (2, 12)]
    assert [at.n for at in kit.store.checkpoints(kit.batch, lo=1, hi=2)] == [ItemNo(1)]
    assert [at.n for at in kit.store.checkpoints(kit.batch, limit=2)] == [0, 1]


@proves("C3", "C15")
def setting_a_checkpoint_raises_the_fence_though_nobody_is_at_work(kit: Kit) -> None:
    kit.admit("part")
    claim = kit.claim()
    (item,) = kit.load(claim)
    assert kit.store.commit([kit.reach(claim, item, 200, release=True)]) == LANDED
    before = kit.chunk(claim.lease.chunk)
    assert before.owner is None
    begin = replace(reset(0, kit.place(0)), checkpoint=Checkpoint(item.n, 0, b""))
    assert kit.act("reset", begin, seize=True) == [0]
    assert kit.chunk(before.id).fence == before.fence + 1
    assert kit.claim("bob").lease.fence == before.fence + 2
    kit.check()


@proves("C3", "C15")
def a_fence_rises_above_one_that_comes_from_elsewhere(kit: Kit) -> None:
    kit.admit("part")
    begin = replace(reset(0, kit.place(0)), checkpoint=Checkpoint(ItemNo(0), 0, b""))
    assert kit.act("imported", begin, seize=True, beyond=41) == [0]
    (chunk,) = kit.store.chunks(kit.batch)
    assert chunk.fence >= 42
    again = replace(reset(0, kit.place(0)), checkpoint=Checkpoint(ItemNo(0), 5, b""))
    assert kit.act("imported", again, seize=True, beyond=7) == [0]
    (later,) = kit.store.chunks(kit.batch)
    assert later.fence == chunk.fence + 1, "a lower one lowers nothing"
    assert kit.claim().lease.fence > later.fence
    kit.check()


@proves("A1", "E12")
def a_chunk_is_of_the_kind_it_was_admitted_as(kit: Kit) -> None:
    for kind in Kind:
        kit.admit(f"{kind}-1", f"{kind}-2", kind=kind)
    assert kit.store.add_items(kit.batch, [new_item("plain")]).added == 1
    assert [chunk.kind for chunk in kit.store.chunks(kit.batch)] == [*Kind, Kind.ITEMS]
    assert {chunk_of(kit.store, kit.batch, ItemNo(n)).kind for n in (2, 3)} == {Kind.PARTITIONS}
    claims = [kit.claim(owner, only=2 * n) for n, owner in enumerate(("ann", "bob", "cid"))]
    assert [claim.kind for claim in claims] == [*Kind]
    kit.check()


@proves("A1")
def keys_that_are_known_do_not_change_the_kind_of_their_chunk(kit: Kit) -> None:
    kit.admit("part", kind=Kind.PARTITIONS)
    kit.admit("part", "row 7", kind=Kind.ROWS)
    kit.admit("row 7", kind=Kind.ITEMS)
    assert [(chunk.lo, chunk.hi, chunk.kind) for chunk in kit.store.chunks(kit.batch)] == [
        (0, 1, Kind.PARTITIONS), (1, 2, Kind.ROWS),
    ]  # fmt: skip
    kit.check()


@proves("A1", "C10")
def a_chunk_keeps_its_kind_however_it_is_cut_granted_and_given_back(kit: Kit) -> None:
    kit.admit("a", "b", "c", "d", kind=Kind.PARTITIONS)
    first, second = kit.claim("ann", limit=1), kit.claim("bob", limit=1)
    (item,) = kit.load(first)
    assert kit.store.commit([kit.reach(first, item, 200, acc=b"1", release=True)]) == LANDED
    kit.clock.advance(31)
    again = kit.claim("cid", limit=1)
    third = kit.claim("dan", limit=1)
    assert {each.kind for each in (first, second, again, third)} == {Kind.PARTITIONS}
    assert {chunk.kind for chunk in kit.store.chunks(kit.batch)} == {Kind.PARTITIONS}
    kit.check()


@proves("A1", "C10")
def a_chunk_keeps_its_kind_when_items_are_reset_and_the_batch_is_redefined(kit: Kit) -> None:
    kit.admit("row 1", "row 2", kind=Kind.ROWS)
    kit.finish(kit.claim())
    kit.act("reset", reset(1, kit.place(1)), seize=True)
    kit.store.open_batch("book", "pages", canonical.encode({**canonical.decode(DEFINITION), "edition": 2}), actor="ann")
    assert kit.claim("bob").kind is Kind.ROWS
    assert {chunk.kind for chunk in kit.store.chunks(kit.batch)} == {Kind.ROWS}
    kit.check()


@proves("A1")
def items_of_one_kind_are_read_without_the_others(kit: Kit) -> None:
    kit.admit("a", "b", kind=Kind.PARTITIONS)
    kit.admit("row 1", kind=Kind.ROWS)
    kit.admit("c", kind=Kind.PARTITIONS)
    kit.admit("row 2", "row 3", kind=Kind.ROWS)
    kit.claim(limit=1)
    found = {kind: [item.key for item in each_item(kit.store, kit.batch, kind=kind)] for kind in Kind}
    assert found == {Kind.ITEMS: [], Kind.PARTITIONS: ["a", "b", "c"], Kind.ROWS: ["row 1", "row 2", "row 3"]}
    some = each_item(kit.store, kit.batch, kind=Kind.ROWS, lo=1, hi=5)
    assert [item.key for item in some] == ["row 1", "row 2"]
