"""Acts of operators, guarded by what they saw; an owner at work is left alone, or fenced."""

import msgspec
import pytest

from holdfast.core import commitments
from holdfast.core.errors import UsageError
from holdfast.core.journal import Acted, Moved, decode_header
from holdfast.core.model import Act, BatchId, Change, CommitRefusal, ItemNo, Output, Receipt, State
from holdfast.core.sections import decode
from holdfast.core.states import Transition, move
from holdfast.testing.conformance.kit import STAGES, Kit, answer, cancel, done, failed, new_item, proves, redrive, reset


def _with_dead(kit: Kit, *keys: str) -> None:
    """Admit items and bury all of them, and release their chunk."""
    kit.admit(*keys)
    claim = kit.claim("ann")
    kit.land(claim, [failed(item, transient=False) for item in kit.load(claim)], release=True)


@proves("E12", "A13")
def an_act_changes_items_and_totals_and_tells_who_what_and_why(kit: Kit) -> None:
    _with_dead(kit, "a", "b")
    kit.clock.advance(5)
    assert kit.act("redriven", redrive(0, kit.place(0))) == [0]
    assert kit.states() == [State.PENDING, State.DEAD]
    (chunk,) = kit.store.chunks(kit.batch)
    assert (chunk.counts.dead, chunk.pending, chunk.touched_at) == (1, 1, kit.clock())
    entry = kit.chain(chunk.id)[-1]
    header = decode_header(entry.head)
    assert (header.kind, header.actor, header.at) == ("redriven", "operator", kit.clock())
    assert kit.last(chunk.id) == Acted(reason="because", items=[Moved(0, State.DEAD, State.PENDING, 0, 0, 0)])
    kit.check()


@proves("A11")
def acting_twice_on_what_was_seen_once_changes_nothing(kit: Kit) -> None:
    _with_dead(kit, "a")
    change = redrive(0, kit.place(0))
    assert kit.act("redriven", change) == [0]
    before = kit.everything()
    assert kit.act("redriven", change) == []
    assert kit.everything() == before


@proves("A11")
def the_same_act_sent_again_changes_nothing_though_its_item_came_round(kit: Kit) -> None:
    """The item was requeued, died, and was redriven: it is in the same place, and only the id distinguishes the
    acts."""
    kit.admit("a", "b", "c")
    place = kit.place(2)
    after = move(place, Transition.REQUEUE, stages=STAGES)
    change = Change(n=ItemNo(2), state=place.state, epoch=place.epoch, place=after)
    act = Act(id=kit.new_id(), batch=kit.batch, kind="requeued", actor="operator", reason="because",
              at_items=(change,), seize=True)  # fmt: skip
    assert kit.store.act(act) == [2]
    kit.finish(kit.claim(limit=1))  # which cuts the others off
    claim = kit.claim()
    kit.land(claim, [failed(item, transient=False) for item in kit.load(claim)], release=True)
    again = msgspec.structs.replace(redrive(2, kit.place(2)), place=place)
    redriven = msgspec.structs.replace(act, id=kit.new_id(), kind="redriven", at_items=(again,), seize=False)
    assert kit.store.act(redriven) == [2]
    assert kit.place(2) == place
    before = kit.everything()
    assert kit.store.act(act) == []
    assert kit.everything() == before
    decided = msgspec.structs.replace(act, id=kit.new_id())
    assert kit.store.act(decided) == [2], "decided again, it lands"
    kit.check()


@proves()
def an_item_named_twice_in_one_act_is_changed_once(kit: Kit) -> None:
    _with_dead(kit, "a", "b")
    change = redrive(0, kit.place(0))
    assert kit.act("redriven", change, change) == [0]
    assert [chunk.counts.dead for chunk in kit.store.chunks(kit.batch)] == [1]
    kit.check()


@proves("C1")
def an_act_is_guarded_by_the_epoch(kit: Kit) -> None:
    _with_dead(kit, "a")
    stale = reset(0, kit.place(0))
    kit.act("reset", reset(0, kit.place(0)))
    claim = kit.claim("bob")
    kit.land(claim, [failed(kit.load(claim)[0], transient=False)], release=True)
    before = kit.everything()
    assert kit.act("reset", stale) == []
    assert kit.everything() == before


@proves("A1", "C1")
def what_was_decided_for_an_earlier_stage_or_attempt_is_left_alone(kit: Kit) -> None:
    kit.admit("a", "b")
    seen = [kit.place(n) for n in range(2)]
    claim = kit.claim("ann")
    a, b = kit.load(claim)
    kit.land(claim, [done(a), failed(b)], release=True)
    before = kit.everything()
    assert kit.act("cancelled", cancel(0, seen[0]), cancel(1, seen[1])) == []
    assert kit.everything() == before
    assert kit.act("cancelled", cancel(0, kit.place(0)), cancel(1, kit.place(1))) == [0, 1]
    kit.check()


@proves("A1", "C1")
def a_dead_letter_that_died_again_further_on_is_not_redriven_where_it_died_before(kit: Kit) -> None:
    _with_dead(kit, "a")
    stale = redrive(0, kit.place(0))
    kit.act("redriven", stale)
    claim = kit.claim("bob")
    kit.land(claim, [done(kit.load(claim)[0])])
    kit.land(claim, [failed(kit.load(claim)[0], transient=False)], version=1, release=True)
    before = kit.everything()
    assert kit.act("redriven", stale) == []
    assert kit.everything() == before


@proves("E5", "E13")
def a_renewed_item_has_another_payload_in_the_next_epoch(kit: Kit) -> None:
    kit.admit("a", payload=b"1")
    kit.finish(kit.claim("ann"))
    renewed = new_item("a", b"2")
    change = msgspec.structs.replace(reset(0, kit.place(0)), renewed=renewed)
    assert kit.act("renewed", change) == [0]
    (item,) = kit.load(kit.claim("bob"))
    assert (item.input, item.revision, item.place.epoch) == (b"2", 1, 1)
    assert kit.admit("a", payload=b"2") == answer(added=0, lo=1, known=1)
    (chunk,), (row,), uid = kit.store.chunks(kit.batch), kit.store.items(kit.batch), kit.store.batches()[0].uid
    acted = decode(kit.chain(chunk.id)[-2])
    assert isinstance(acted, Acted)
    assert [(m.digest, m.revision) for m in acted.items] == [(commitments.payload(uid, "a", 1, row.salt, b"2"), 1)]
    kit.check()


@proves("C1")
def of_an_act_on_several_items_only_the_part_that_still_holds_is_done(kit: Kit) -> None:
    _with_dead(kit, "a", "b", "c")
    changes = [redrive(n, kit.place(n)) for n in range(3)]
    kit.act("redriven", changes[1])
    assert kit.act("redriven", *changes) == [0, 2]
    kit.check()


@proves()
def a_finished_item_of_a_held_chunk_can_be_changed_without_disturbing_the_owner(kit: Kit) -> None:
    kit.admit("a", "b")
    claim = kit.claim("ann")
    a, b = kit.load(claim)
    kit.land(claim, [failed(a, transient=False)])
    assert kit.act("redriven", redrive(0, kit.place(0))) == [0]
    assert kit.chunk(claim.lease.chunk).fence == claim.lease.fence
    kit.land(claim, [done(b)], version=1, release=True)
    assert kit.claim("bob").pending == 2
    kit.check()


@proves()
def an_item_in_flight_is_left_alone_unless_it_is_seized(kit: Kit) -> None:
    kit.admit("a", "b")
    claim = kit.claim("ann")
    a, b = kit.load(claim)
    kit.land(claim, [failed(b, transient=False)])
    before = kit.everything()
    assert kit.act("cancelled", cancel(0, kit.place(0))) == []
    assert kit.everything() == before
    assert kit.act("cancelled", cancel(0, kit.place(0)), redrive(1, kit.place(1))) == [1]
    kit.land(claim, [done(a)], version=1)
    kit.check()


@proves("C15", "A11", "C8")
def seizing_fences_the_owner(kit: Kit) -> None:
    kit.admit("a", "b")
    claim = kit.claim("ann", reserve=10)
    a, b = kit.load(claim)
    kit.land(claim, [done(a)], reserved=20)
    assert kit.act("reset", reset(0, kit.place(0)), seize=True) == [0]
    chunk = kit.chunk(claim.lease.chunk)
    assert (chunk.owner, chunk.reserved, chunk.fence) == (None, 0, claim.lease.fence + 1)
    before = kit.everything()
    assert kit.store.commit([kit.commit_of(claim, [done(b)], version=1)]) == [
        Receipt(landed=False, reason=CommitRefusal.LOST)
    ]
    assert kit.store.renew([claim.lease], 30) == []
    assert kit.everything() == before
    taken = kit.claim("bob")
    assert (taken.lease.fence, taken.blame) == (claim.lease.fence + 2, 0)
    assert [(item.place.stage, item.place.epoch) for item in kit.load(taken)] == [(0, 1), (0, 0)]
    kit.check()


@proves()
def seizing_what_nobody_holds_raises_no_fence(kit: Kit) -> None:
    kit.admit("a")
    kit.act("reset", reset(0, kit.place(0)), seize=True)
    assert [chunk.fence for chunk in kit.store.chunks(kit.batch)] == [0]
    kit.admit("b")
    claim = kit.claim("ann")
    kit.finish(claim)
    held = kit.claim("ann")
    kit.act("reset", reset(0, kit.place(0)), seize=True)
    assert kit.chunk(held.lease.chunk).owner == "ann"
    kit.check()


@proves("E12")
def an_act_writes_one_entry_for_each_chunk_concerned(kit: Kit) -> None:
    _with_dead(kit, "a", "b", "c")
    _with_dead(kit, "d", "e")
    kit.admit("f")
    lengths = [len(kit.chain(chunk.id)) for chunk in kit.store.chunks(kit.batch)]
    assert kit.act("redriven", *(redrive(n, kit.place(n)) for n in (3, 0, 2))) == [0, 2, 3]
    after = [len(kit.chain(chunk.id)) for chunk in kit.store.chunks(kit.batch)]
    assert [b - a for a, b in zip(lengths, after, strict=True)] == [1, 1, 0]
    kit.check()


@proves("A1")
def a_reset_begins_a_new_epoch(kit: Kit) -> None:
    kit.admit("a")
    kit.finish(kit.claim("ann"))
    assert kit.act("reset", reset(0, kit.place(0), stage=1)) == [0]
    place = kit.place(0)
    assert (place.state, place.stage, place.epoch, place.attempt) == (State.PENDING, 1, 1, 0)
    assert [chunk.counts.done for chunk in kit.store.chunks(kit.batch)] == [0]
    kit.finish(kit.claim("bob"))
    story = kit.check()
    assert sorted(story.advanced) == [(0, 0, 0), (0, 1, 0), (0, 1, 1)]


@proves()
def an_act_may_bring_the_output_of_a_resolved_item(kit: Kit) -> None:
    kit.admit("a")
    claim = kit.claim("ann")
    kit.land(claim, [failed(kit.load(claim)[0], transient=False)], release=True)
    place = kit.place(0)
    after = move(place, Transition.RESOLVE, to=State.DONE, stages=STAGES, reason="typed by hand")
    output = Output(ItemNo(0), STAGES - 1, 0, b"by hand")
    kit.act("resolved", Change(n=ItemNo(0), state=place.state, epoch=place.epoch, place=after, output=output))
    (stored,) = kit.store.outputs(kit.batch)
    assert stored == msgspec.structs.replace(output, salt=stored.salt)
    assert kit.states() == [State.DONE]
    assert [chunk.counts.done for chunk in kit.store.chunks(kit.batch)] == [1]
    kit.check()


@proves()
def an_act_on_an_unknown_item_or_batch_is_refused_whole(kit: Kit) -> None:
    _with_dead(kit, "a")
    _with_dead(kit, "b")
    change, place = redrive(0, kit.place(0)), kit.place(0)
    before = kit.everything()
    with pytest.raises(UsageError):
        kit.act("redriven", change, *(redrive(n, place) for n in (1, 7)))
    with pytest.raises(UsageError):
        kit.store.act(
            Act(id=b"x", batch=BatchId(99), kind="redriven", actor="operator", reason="r", at_items=(change,))
        )
    assert kit.everything() == before
