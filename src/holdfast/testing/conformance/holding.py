"""Loading by the owner of a chunk, and the duration of its lease."""

from holdfast.core.journal import Claimed
from holdfast.testing.conformance.kit import (
    LEASE,
    Kit,
    cancel,
    done,
    failed,
    needs,
    output_of,
    proves,
    redrive,
    reset,
)

# -- loading ----------------------------------------------------------------------------------------------------


@proves("A4", "P11")
def items_are_loaded_where_their_outputs_say_they_stand(kit: Kit) -> None:
    kit.admit(*"abc")
    claim = kit.claim("ann")
    a, b, c = kit.load(claim)
    assert [item.place.stage for item in (a, b, c)] == [0, 0, 0]
    kit.land(claim, [done(b)], release=True)
    again = kit.load(kit.claim("bob"))
    assert [(item.key, item.place.stage, item.plain) for item in again] == [
        ("a", 0, True),
        ("b", 1, True),
        ("c", 0, True),
    ]
    assert again[1].input == output_of(b)
    assert again[0] == a


@proves("P3", "P11")
def only_pending_items_are_loaded(kit: Kit) -> None:
    kit.admit(*"abcde")
    claim = kit.claim("ann")
    a, b, c, d, _ = kit.load(claim)
    kit.land(claim, [done(a), failed(b, transient=False), failed(c), done(d)])
    kit.land(claim, [done(kit.load(claim)[0])], version=1, release=True)
    kit.act("cancelled", cancel(3, kit.place(3)))
    kit.clock.advance(60)
    again = kit.load(kit.claim("bob"))
    assert [(item.key, item.place.attempt, item.plain) for item in again] == [("c", 1, False), ("e", 0, True)]


@proves("E5")
def a_waiting_item_and_one_that_went_back_keep_their_input(kit: Kit) -> None:
    kit.admit(*"ab")
    claim = kit.claim("ann")
    a, b = kit.load(claim)
    kit.land(claim, [done(a), done(b)])
    a1, b1 = kit.load(claim)
    kit.land(claim, [failed(a1), failed(b1, transient=False)], version=1, release=True)
    kit.act("reset", reset(1, kit.place(1)))
    kit.clock.advance(60)
    a2, b2 = kit.load(kit.claim("bob"))
    assert (a2.input, a2.key, a2.place.stage) == (a1.input, "a", 1)
    assert (b2.input, b2.key, b2.place.stage) == (b.input, "b", 0)


@proves()
def items_are_loaded_in_pages_of_a_number_and_of_bytes(kit: Kit) -> None:
    kit.admit(*"abcde", payload=b"12345678")
    claim = kit.claim("ann")
    assert [item.n for item in kit.store.load(claim, None, 2, 1000)] == [0, 1]
    assert [item.n for item in kit.store.load(claim, claim.lo, 2, 1000)] == [1, 2]
    assert [item.n for item in kit.store.load(claim, kit.load(claim)[3].n, 2, 1000)] == [4]
    assert kit.store.load(claim, kit.load(claim)[4].n, 2, 1000) == []
    assert [item.n for item in kit.store.load(claim, None, 10, 9)] == [0, 1]
    assert [item.n for item in kit.store.load(claim, None, 10, 1)] == [0]
    kit.land(claim, [done(kit.load(claim)[0])])
    assert [item.n for item in kit.store.load(claim, None, 10, 9)] == [0]


# -- renewing ---------------------------------------------------------------------------------------------------


@proves("C4")
def a_renewed_lease_lasts_longer(kit: Kit) -> None:
    kit.admit("a")
    claim = kit.claim("ann")
    kit.clock.advance(20)
    (renewed,) = kit.store.renew([claim.lease], LEASE)
    assert (renewed.expires, renewed.fence, renewed.chunk) == (
        kit.clock() + LEASE,
        claim.lease.fence,
        claim.lease.chunk,
    )
    kit.clock.advance(LEASE)
    kit.idle("bob")


@proves("C1")
def an_own_commit_is_no_conflict_for_a_renewal(kit: Kit) -> None:
    kit.admit("a", "b")
    claim = kit.claim("ann")
    kit.land(claim, [done(kit.load(claim)[0])])
    assert len(kit.store.renew([claim.lease], LEASE)) == 1
    kit.land(claim, [done(kit.load(claim)[0])], version=1)
    kit.check()


@proves("C7", "C13")
def a_lease_that_was_taken_over_or_released_is_not_renewed(kit: Kit) -> None:
    kit.admit("a")
    kit.admit("b")
    kit.admit("c")
    lost, released, kept = kit.claim("ann"), kit.claim("ann"), kit.claim("ann")
    kit.land(released, release=True, due=kit.clock() + 300)
    kit.store.renew([kept.lease], 2 * LEASE)
    kit.clock.advance(LEASE + 1)
    taken = kit.claim("bob")
    assert taken.lo == lost.lo
    renewed = kit.store.renew([lost.lease, released.lease, kept.lease], LEASE)
    assert [lease.chunk for lease in renewed] == [kept.lease.chunk]
    assert kit.chunk(taken.lease.chunk).expires == taken.lease.expires


@proves("C7")
def a_lease_that_its_own_owner_claimed_again_is_renewed_under_its_new_fence_only(kit: Kit) -> None:
    kit.admit("a")
    before = kit.claim("ann")
    kit.clock.advance(LEASE + 1)
    again = kit.claim("ann")
    assert again.lease.chunk == before.lease.chunk
    assert kit.store.renew([before.lease], LEASE) == []
    assert [lease.fence for lease in kit.store.renew([again.lease], LEASE)] == [before.lease.fence + 1]


@proves("E4")
def a_grant_tells_of_the_attempts_of_its_own_items_only(kit: Kit) -> None:
    kit.admit("a", "b", "c")
    claim = kit.claim("ann")
    _, b, c = kit.load(claim)
    kit.land(claim, [failed(b), failed(c)], release=True)
    kit.clock.advance(300)
    for n in range(3):
        granted = kit.last(kit.claim("bob", limit=1).lease.chunk)
        assert isinstance(granted, Claimed)
        assert [each.n for each in granted.snapshots] == [n] * (n > 0)
    kit.check()


@proves("C4")
@needs("one_clock")
def a_lease_is_held_to_the_very_moment_it_ends(kit: Kit) -> None:
    kit.admit("a")
    kit.claim("ann")
    kit.clock.advance(LEASE)
    kit.idle("bob")
    kit.clock.advance(0.001)
    kit.claim("bob")


@proves()
def an_expired_lease_that_nobody_took_can_be_renewed(kit: Kit) -> None:
    kit.admit("a")
    claim = kit.claim("ann")
    kit.clock.advance(LEASE + 1)
    assert len(kit.store.renew([claim.lease], LEASE)) == 1
    kit.idle("bob")


@proves("C3")
def a_redriven_item_makes_its_chunk_claimable_at_once(kit: Kit) -> None:
    kit.admit("a", "b")
    claim = kit.claim("ann")
    a, b = kit.load(claim)
    kit.land(claim, [failed(a, transient=False), failed(b)], release=True, due=kit.clock() + 60)
    kit.act("redriven", redrive(0, kit.place(0)))
    assert kit.claim("bob").pending == 2
