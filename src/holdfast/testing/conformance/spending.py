"""The budget of a batch: what claims reserve, what is spent, and when a reservation ends."""

from holdfast.core.course import Barrier
from holdfast.testing.conformance.kit import LEASE, Kit, done, failed, needs, proves


@proves("P13")
@needs("budget")
def a_claim_takes_no_more_items_than_the_budget_allows(kit: Kit) -> None:
    kit.admit(*range(10))
    first = kit.claim("ann", reserve=10, cap=35)
    assert (first.pending, kit.chunk(first.lease.chunk).reserved) == (3, 30)
    assert kit.idle("bob", reserve=10, cap=35).why is Barrier.BUDGET
    second = kit.claim("bob", reserve=10, cap=45)
    assert second.pending == 1


@proves("P13")
@needs("budget")
def a_reservation_ends_with_its_grant_and_spending_stays(kit: Kit) -> None:
    kit.admit(*range(10))
    claim = kit.claim("ann", 2, reserve=10, cap=20)
    a, b = kit.load(claim)
    kit.land(claim, [done(a, usd=4)], reserved=10)
    assert kit.idle("bob", reserve=10, cap=20).why is Barrier.BUDGET
    kit.land(claim, [done(b, usd=5)], version=1, release=True)
    after = kit.claim("bob", reserve=10, cap=20)
    assert after.pending == 1
    assert kit.idle("cid", reserve=10, cap=20).why is Barrier.BUDGET
    kit.clock.advance(LEASE + 1)
    assert kit.idle("cid", reserve=10, cap=18).why is Barrier.BUDGET
    kit.check()


@proves("P13")
@needs("budget")
def what_a_claimer_keeps_stays_set_aside(kit: Kit) -> None:
    kit.admit(*range(3))
    held = kit.claim("ann", 1, reserve=10, cap=20)
    kit.clock.advance(LEASE + 1)
    keeps = frozenset({held.lease.chunk})
    assert kit.claim("ann", reserve=10, cap=20, keeps=keeps).pending == 1
    assert kit.idle("ann", reserve=10, cap=20, keeps=keeps).why is Barrier.BUDGET


@proves("P13")
@needs("budget")
def what_an_ended_grant_had_set_aside_is_free_again(kit: Kit) -> None:
    kit.admit(*range(4))
    kit.claim("ann", 1, reserve=10, cap=20)
    kit.claim("bob", 1, reserve=10, cap=20)
    assert kit.idle("cid", reserve=10, cap=20).why is Barrier.BUDGET
    kit.dead.add("ann")
    kit.claim("cid", 1, reserve=10, cap=20)
    assert kit.idle("dan", reserve=10, cap=20).why is Barrier.BUDGET
    kit.clock.advance(LEASE + 1)
    kit.claim("dan", 1, reserve=10, cap=20)
    kit.check()


@proves("P13")
@needs("budget")
def the_budget_cuts_chunks_with_settled_items_too(kit: Kit) -> None:
    kit.admit(*range(10))
    claim = kit.claim("ann")
    kit.land(claim, [failed(kit.load(claim)[0], transient=False, usd=10)], release=True)
    again = kit.claim("bob", reserve=10, cap=40)
    assert (again.pending, kit.chunk(again.lease.chunk).reserved) == (3, 30)
    kit.check()


@proves("P13")
@needs("budget")
def without_a_cap_there_is_no_budget_and_without_a_reserve_it_ends_when_it_is_spent(kit: Kit) -> None:
    kit.admit(*range(4))
    claim = kit.claim("ann", 1, reserve=10)
    kit.land(claim, [failed(kit.load(claim)[0], transient=False, usd=7)], release=True)
    rest = kit.claim("ann", cap=8)
    assert rest.pending == 3
    assert kit.idle("bob", cap=7).why is None
    kit.land(rest, release=True)
    assert kit.idle("bob", cap=7).why is Barrier.BUDGET
