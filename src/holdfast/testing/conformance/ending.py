"""Pausing, cancelling, sealing and reopening a batch, with their events."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.core.canonical import encode
from holdfast.core.course import Amended, Barrier, basis, cover, to_note, to_reopen, to_steer
from holdfast.core.errors import Conflict, Refused, UsageError
from holdfast.core.journal import Acted, Reopened, Sealed, Steered
from holdfast.core.model import Act, BatchId, BatchMode, Event, ItemNo, Receipt
from holdfast.stores.base import chunk_of, is_settled, outbox_of
from holdfast.testing.conformance.kit import Kit, done, needs, proves, reset

NOBODY = BatchId(99)


def heard(kit: Kit) -> list[tuple[str, int | None]]:
    """Return the events without the first one, that the batch was opened."""
    return [(event.kind, event.n) for event in outbox_of(kit.store).events()[1:]]


def event(kind: str, n: int | None = None) -> Event:
    return Event(kind=kind, body=encode({"said": kind}), n=None if n is None else ItemNo(n))


def finished(kit: Kit, *keys: str) -> None:
    """Complete the batch: every item is done and the source was read to the end."""
    kit.admit(*keys, ended=True)
    kit.finish(kit.claim())


def state(kit: Kit) -> bytes:
    """Return the basis of an end of the batch."""
    return basis(kit.store.batches()[0], kit.store.chunks(kit.batch))


def is_overtaken(kit: Kit, seen: bytes) -> bool:
    """Return whether a note of an end is refused because the batch has changed."""
    try:
        kit.store.amend(
            kit.batch, to_note("ended", Acted(reason="so"), once=True, events=[event("told")], basis=seen), actor="ann"
        )
    except Conflict:
        return True
    return False


# -- the course -------------------------------------------------------------------------------------------------------


@proves("A15")
def a_paused_batch_hands_out_nothing_until_it_goes_on(kit: Kit) -> None:
    kit.admit("a", "b")
    held = kit.claim("ann", limit=1)
    paused = kit.store.amend(
        kit.batch, to_steer(BatchMode.PAUSED, reason="the service is down"), actor="operator"
    ).batch
    assert (paused.course, kit.idle("bob").why) == (BatchMode.PAUSED, Barrier.PAUSED)
    kit.land(held, [done(kit.load(held)[0])])
    assert kit.last() == Steered(course="paused", reason="the service is down")
    kit.store.amend(kit.batch, to_steer(BatchMode.OPEN, reason="it is up"), actor="operator")
    kit.claim("bob")
    kit.check()


@proves("A15")
def a_cancelled_batch_takes_no_items_and_does_not_go_on(kit: Kit) -> None:
    kit.admit("a")
    held = kit.claim("ann")
    kit.store.amend(kit.batch, to_steer(BatchMode.CANCELLED, reason="wrong book"), actor="operator")
    assert kit.idle("bob").why is Barrier.CANCELLED
    with pytest.raises(Refused, match="was cancelled"):
        kit.admit("b")
    with pytest.raises(UsageError, match="was cancelled, which cannot be undone"):
        kit.store.amend(kit.batch, to_steer(BatchMode.OPEN, reason="after all"), actor="operator")
    kit.land(held, [done(kit.load(held)[0])])
    kit.check()


@proves("A15")
def steering_where_a_batch_goes_already_changes_nothing(kit: Kit) -> None:
    kit.store.amend(kit.batch, to_steer(BatchMode.OPEN, reason="an end", ends_at=kit.clock() + 60), actor="operator")
    before = kit.everything()
    kit.store.amend(kit.batch, to_steer(BatchMode.OPEN, reason="again", ends_at=kit.clock() + 60), actor="operator")
    assert kit.everything() == before
    assert kit.store.batches()[0].ends_at == kit.clock() + 60
    with pytest.raises(UsageError):
        kit.store.amend(NOBODY, to_steer(BatchMode.PAUSED, reason="nobody there"), actor="operator")


# -- how many there are -----------------------------------------------------------------------------------------------


@proves("A14")
def the_last_expected_item_says_that_all_are_there(kit: Kit) -> None:
    kit.admit("a")
    assert kit.expect(3).ingested_at is None
    kit.admit("a", "b")
    assert kit.store.batches()[0].ingested_at is None
    kit.admit("c")
    assert kit.store.batches()[0].ingested_at == kit.clock()
    kit.admit("d")  # more than expected are accepted: a reconciliation reports them
    assert kit.store.batches()[0].admitted == 4
    kit.check()


@proves("A14")
def a_number_that_was_reached_already_says_it_at_once_and_a_greater_one_takes_it_back(kit: Kit) -> None:
    kit.admit("a", "b", ended=True)
    assert kit.expect(2).ingested_at is not None
    assert kit.expect(3, reason="one more").ingested_at is None
    kit.admit("c")
    assert kit.store.batches()[0].ingested_at is not None
    assert kit.expect(2, reason="one too many").ingested_at is not None
    assert kit.last() == Steered(course="open", reason="one too many", expected=2)
    kit.check()


@proves("A14")
def another_number_needs_a_reason_and_the_same_one_changes_nothing(kit: Kit) -> None:
    kit.expect(3)
    before = kit.everything()
    kit.expect(3)
    with pytest.raises(UsageError, match="needs a reason"):
        kit.expect(4)
    assert kit.everything() == before
    with pytest.raises(UsageError):
        kit.store.amend(NOBODY, to_steer(None, reason="so", expected=1), actor="operator")


@proves("A14")
def a_closed_batch_refuses_new_keys_and_takes_known_ones(kit: Kit) -> None:
    kit.admit("a", "b")
    kit.expect(3)
    closed = kit.store.amend(kit.batch, to_steer(None, reason="that was all", close=True), actor="operator").batch
    assert (closed.closed_at, closed.ingested_at) == (kit.clock(), kit.clock())
    before = kit.everything()
    for keys in (["c"], ["a", "c"]):
        with pytest.raises(Refused, match="was closed"):
            kit.admit(*keys)
    assert kit.admit("b", "a").known == 2
    kit.store.amend(kit.batch, to_steer(None, reason="again", close=True), actor="operator")
    assert kit.everything() == before
    kit.finish(kit.claim())
    kit.check()


@proves("A14")
def steering_otherwise_keeps_the_number_and_the_close(kit: Kit) -> None:
    kit.admit("a")
    kit.expect(1)
    kit.store.amend(kit.batch, to_steer(None, reason="that was all", close=True), actor="operator")
    paused = kit.store.amend(
        kit.batch, to_steer(BatchMode.PAUSED, reason="later", ends_at=kit.clock() + 60), actor="operator"
    ).batch
    assert (paused.expected, paused.closed_at) == (1, kit.clock())
    kit.store.amend(kit.batch, to_steer(None, reason="2 after all", expected=2), actor="operator")
    found = kit.store.batches()[0]
    assert (found.course, found.ends_at, found.expected) == (BatchMode.PAUSED, kit.clock() + 60, 2)
    assert found.ingested_at is not None  # closed: no more come, whatever the expected number
    kit.check()


@proves("A14")
def a_batch_is_settled_while_nothing_is_pending(kit: Kit) -> None:
    assert is_settled(kit.store, kit.batch)
    kit.admit("a", "b")
    held = kit.claim()
    assert not is_settled(kit.store, kit.batch)
    kit.land(held, [done(item) for item in kit.load(held)[:1]])
    assert not is_settled(kit.store, kit.batch)
    kit.finish(held, version=1)
    assert is_settled(kit.store, kit.batch)


@proves("A14")
def the_chunk_of_an_item_is_found(kit: Kit) -> None:
    kit.admit("a", "b", "c")
    kit.claim(limit=1)
    for chunk in kit.store.chunks(kit.batch):
        assert [chunk_of(kit.store, kit.batch, ItemNo(n)) for n in range(chunk.lo, chunk.hi)] == [chunk] * chunk.size
    with pytest.raises(UsageError):
        chunk_of(kit.store, kit.batch, ItemNo(3))
    with pytest.raises(UsageError):
        chunk_of(kit.store, BatchId(99), ItemNo(0))


@proves("A14")
def chunks_with_pending_items_are_found(kit: Kit) -> None:
    kit.admit(*"abcdef")
    held = [kit.claim(owner, limit=2) for owner in ("ann", "bob", "cid")]
    kit.finish(held[1])
    every = kit.store.chunks(kit.batch)
    left = [chunk for chunk in every if chunk.pending]
    assert kit.store.chunks(kit.batch, pending=True) == left == [every[0], every[2]]
    assert [chunk in left for chunk in kit.store.chunks(kit.batch, pending=True, limit=1)] == [True]
    assert [chunk in every for chunk in kit.store.chunks(kit.batch, limit=2)] == [True, True]
    assert kit.store.chunks(kit.batch, of=ItemNo(2), pending=True) == []
    assert kit.store.chunks(kit.batch, of=ItemNo(4), pending=True) == [every[2]]
    assert kit.store.chunks(BatchId(99)) == kit.store.chunks(BatchId(99), pending=True) == []


@proves("A15")
def nothing_is_handed_out_from_the_end_of_a_batch_on(kit: Kit) -> None:
    kit.admit("a", "b")
    held = kit.claim("ann", limit=1)
    kit.store.amend(kit.batch, to_steer(BatchMode.OPEN, reason="an end", ends_at=kit.clock() + 10), actor="run")
    kit.clock.advance(9.0)
    kit.claim("bob")
    kit.clock.advance(1.0)
    kit.admit("c")
    assert kit.idle("cid").why is Barrier.UNTIL
    kit.land(held, [done(kit.load(held)[0])])
    kit.store.amend(kit.batch, to_steer(BatchMode.OPEN, reason="a later end", ends_at=kit.clock() + 60), actor="run")
    kit.claim("cid")
    kit.check()


# -- the note of an end -----------------------------------------------------------------------------------------------


@proves("A14", "A15")
def an_end_is_noted_of_the_state_that_was_looked_at(kit: Kit) -> None:
    finished(kit, "a", "b")
    seen = state(kit)
    kit.store.amend(kit.batch, to_note("warned", Acted(reason="hm")), actor="ann")
    assert kit.store.amend(
        kit.batch, to_note("ended", Acted(reason="so"), once=True, events=[event("told")], basis=seen), actor="ann"
    ).written
    assert not kit.store.amend(
        kit.batch, to_note("ended", Acted(reason="so"), once=True, events=[event("told")], basis=seen), actor="bob"
    ).written
    assert kit.kinds()[-2:] == ["warned", "ended"]
    assert heard(kit) == ([("told", None)] if kit.store.capabilities.events else [])


@proves("A14", "A15")
def an_end_is_not_noted_once_anything_that_it_rests_on_has_changed(kit: Kit) -> None:
    finished(kit, "a", "b")
    now = kit.clock()

    def steer(to: BatchMode | None, reason: str, **facts: Any) -> Amended:
        return kit.store.amend(kit.batch, to_steer(to, reason=reason, **facts), actor="run")

    changes: list[Callable[[], object]] = [
        lambda: kit.act("reset", reset(0, kit.place(0))),
        kit.claim,
        lambda: kit.admit("c"),
        lambda: kit.expect(3),
        lambda: kit.expect(4, reason="one more"),
        lambda: steer(BatchMode.OPEN, "an end", ends_at=now + 60),
        lambda: steer(BatchMode.PAUSED, "later", ends_at=now + 60),
        lambda: steer(None, "that was all", close=True),
        lambda: steer(BatchMode.CANCELLED, "never mind", ends_at=now + 60),
    ]
    for change in changes:
        seen = state(kit)
        change()
        before = kit.everything()
        assert is_overtaken(kit, seen)
        assert kit.everything() == before
        assert heard(kit) == []


@proves("A14")
def a_batch_that_is_expected_to_have_another_number_is_not_sealed(kit: Kit) -> None:
    finished(kit, "a")
    kit.store.amend(kit.batch, to_steer(None, reason="that was all", close=True, expected=1), actor="operator")
    told = encode({"heads": cover(kit.store.chunks(kit.batch)).hex(), "expected": 1})
    kit.expect(2, reason="one was forgotten")
    with pytest.raises(Refused, match="changed while it was reconciled"):
        kit.store.seal(kit.batch, actor="run", reconciliation=told)
    kit.expect(1, reason="no")
    kit.store.seal(kit.batch, actor="run", reconciliation=told)
    kit.check()


# -- the seal ---------------------------------------------------------------------------------------------------------


@proves("A14")
def a_batch_is_sealed_only_when_nothing_is_open(kit: Kit) -> None:
    kit.admit("a")
    with pytest.raises(Refused, match="not read to its end"):
        kit.store.seal(kit.batch, actor="run", reconciliation=b"")
    kit.admit("b", ended=True)
    with pytest.raises(Refused, match="2 of its items are pending"):
        kit.store.seal(kit.batch, actor="run", reconciliation=b"")
    before = kit.everything()
    with pytest.raises(UsageError):
        kit.store.seal(NOBODY, actor="run", reconciliation=b"")
    assert kit.everything() == before


@proves("A14", "A15")
def a_batch_whose_end_has_come_is_sealed_though_its_source_was_not_read(kit: Kit) -> None:
    kit.admit("a")
    kit.store.amend(kit.batch, to_steer(BatchMode.OPEN, reason="tonight", ends_at=kit.clock() + 60), actor="run")
    kit.finish(kit.claim())
    with pytest.raises(Refused, match="not read to its end"):
        kit.store.seal(kit.batch, actor="run", reconciliation=b"")
    kit.clock.advance(60)
    assert kit.store.seal(kit.batch, actor="run", reconciliation=b"").sealed_at == kit.clock()
    kit.check()


@proves("A14", "E12")
def the_seal_covers_the_heads_of_all_chains_and_tells_it(kit: Kit) -> None:
    kit.admit("a")
    finished(kit, "b", "c")
    kit.finish(kit.claim())
    sealed = kit.store.seal(kit.batch, actor="run", reconciliation=b"{}", reason="done", events=[event("finished")])
    assert sealed.sealed_at == kit.clock()
    body = kit.last()
    assert isinstance(body, Sealed)
    chunks = kit.store.chunks(kit.batch)
    assert (body.heads, body.chunks, body.expected, body.done) == (cover(chunks), len(chunks), 3, 3)
    assert (body.reconciliation, body.reason) == (b"{}", "done")
    assert heard(kit) == ([("finished", None)] if kit.store.capabilities.events else [])
    with pytest.raises(Refused, match="sealed already"):
        kit.store.seal(kit.batch, actor="run", reconciliation=b"")
    kit.check()


@proves("A14", "C8")
def a_sealed_batch_refuses_what_comes_late(kit: Kit) -> None:
    kit.admit("a")
    zombie = kit.claim("ann")
    late = kit.commit_of(zombie, [done(kit.load(zombie)[0])])
    kit.clock.advance(1000.0)
    finished(kit, "b")
    kit.finish(kit.claim("bob"))
    kit.store.seal(kit.batch, actor="run", reconciliation=b"")
    before = kit.everything()
    (answer,) = kit.store.commit([late])
    assert not answer.landed
    with pytest.raises(Refused):
        kit.admit("c")
    with pytest.raises(Refused):
        kit.act("reset", reset(0, kit.place(0)))
    with pytest.raises(Refused):
        kit.store.amend(kit.batch, to_steer(BatchMode.PAUSED, reason="too late"), actor="operator")
    assert kit.everything() == before


@proves("A14")
def what_changes_nothing_is_refused_by_no_seal(kit: Kit) -> None:
    finished(kit, "a", "b")
    kit.store.seal(kit.batch, actor="run", reconciliation=b"")
    before = kit.everything()
    assert kit.store.add_items(kit.batch, []).added == 0
    assert kit.admit("b", "a").known == 2
    assert kit.everything() == before


@proves("C12")
def a_commit_that_landed_before_the_seal_is_known_after_it(kit: Kit) -> None:
    kit.admit("a", ended=True)
    claim = kit.claim()
    first = kit.land(claim, [done(kit.load(claim)[0])])
    last = kit.land(claim, [done(kit.load(claim)[0])], version=1, release=True)
    kit.store.seal(kit.batch, actor="run", reconciliation=b"")
    assert kit.store.commit([first, last]) == [Receipt(landed=True)] * 2


@proves("A14")
def a_seal_can_be_lifted_and_made_again(kit: Kit) -> None:
    finished(kit, "a")
    with pytest.raises(UsageError, match="not sealed"):
        kit.store.amend(kit.batch, to_reopen("too early"), actor="operator")
    kit.store.seal(kit.batch, actor="run", reconciliation=b"")
    assert kit.store.amend(kit.batch, to_reopen("one more"), actor="operator").batch.sealed_at is None
    assert kit.last() == Reopened(reason="one more")
    kit.admit("b", ended=True)
    kit.finish(kit.claim())
    kit.store.seal(kit.batch, actor="run", reconciliation=b"")
    assert kit.kinds()[-1] == "sealed"
    kit.check()


# -- the outbox -------------------------------------------------------------------------------------------------------


@proves("A12")
@needs("events")
def events_become_durable_with_what_they_tell_and_in_order(kit: Kit) -> None:
    kit.admit("a", "b")
    claim = kit.claim()
    items = kit.load(claim)
    told = msgspec.structs.replace(kit.commit_of(claim, [done(items[0])]), events=(event("one", 0), event("two")))
    assert kit.store.commit([told]) == [Receipt(landed=True)]
    assert kit.store.commit([told]) == [Receipt(landed=True)], "it has landed already"
    stale = msgspec.structs.replace(kit.commit_of(claim, [done(items[1])]), events=(event("three", 1),))
    assert kit.store.commit([stale])[0].reason == "stale"
    assert heard(kit) == [("one", 0), ("two", None)]
    opened, first, second = outbox_of(kit.store).events()
    assert opened.id < first.id < second.id
    assert (first.batch, first.at, first.body) == (kit.batch, kit.clock(), encode({"said": "one"}))
    assert outbox_of(kit.store).events(first.id) == [second]
    assert outbox_of(kit.store).events(limit=1) == [opened]


@proves("A12", "A13")
@needs("events")
def an_act_tells_of_the_items_that_it_changed(kit: Kit) -> None:
    kit.admit("a", "b")
    wanted = kit.place(0)
    changes = [reset(0, wanted), reset(1, msgspec.structs.replace(wanted, epoch=7))]
    events = (event("moved", 0), event("moved", 1), event("acted"))
    act = Act(id=kit.new_id(), batch=kit.batch, kind="reset", actor="operator", reason="because",
              at_items=tuple(changes), events=events)  # fmt: skip
    assert kit.store.act(act) == [0]
    assert heard(kit) == [("moved", 0), ("acted", None)]
    nothing = msgspec.structs.replace(act, at_items=(changes[1],), events=(event("moved", 1), event("acted")))
    assert kit.store.act(nothing) == []
    assert len(heard(kit)) == 2


@proves("A12")
@needs("events")
def how_far_a_receiver_is_never_goes_back(kit: Kit) -> None:
    assert outbox_of(kit.store).delivered("webhook") == 0
    assert outbox_of(kit.store).delivered("webhook", 7) == 7
    assert outbox_of(kit.store).delivered("webhook", 3) == 7
    assert outbox_of(kit.store).delivered("webhook") == 7
    assert outbox_of(kit.store).delivered("a file") == 0
