"""Durable stores: acknowledged work is there when the store is opened again."""

import threading
from unittest import mock

from msgspec.structs import replace

from holdfast.core import lease
from holdfast.core.model import Claim, ItemNo, ItemOrigin, Kind, NewItem
from holdfast.stores import faults
from holdfast.stores.base import Idle, Store, has_landed
from holdfast.testing.conformance.kit import DEFINITION, Kit, done, failed, needs, new_item, proves, reset


@proves("B7", "C10")
def everything_is_the_same_when_the_store_is_opened_again(kit: Kit) -> None:
    kit.admit(*"abcde", None)
    claim = kit.claim("ann", 3)
    a, b, c = kit.load(claim)
    written = kit.land(claim, [done(a, usd=5), failed(b), failed(c, transient=False)])
    kit.act("reset", reset(2, kit.place(2)))
    before, waiting = kit.everything(), kit.load(claim)
    kit.store.close()
    kit.store = kit.open_again()
    assert kit.everything() == before
    assert kit.load(claim) == waiting
    assert has_landed(kit.store, written)
    kit.land(claim, [done(a) for a in kit.load(claim)[:1]], version=1)
    kit.check()


@proves("P13")
@needs("budget")
def two_who_claim_under_a_cap_never_both_have_the_last_of_it(kit: Kit) -> None:
    """Check both interleavings: one reads before the other has written, or both run at once."""
    other = kit.open_again()
    try:
        kit.admit(*range(40))
        _claim_between(kit, other)
        _claim_at_once(kit, other)
    finally:
        other.close()
    kit.check()


def _claim_between(kit: Kit, other: Store) -> None:
    """Let the second claim between the read and the write of the first, if the store has a fault point there."""
    between: list[Claim | Idle] = []
    come: list[str] = []

    def overtake(point: str) -> None:
        if point == "claim.before" and not come:
            come.append(point)
            between.append(other.claim(kit.want("bob", 1, reserve=10, cap=10)))

    with faults.overheard(overtake):
        last = kit.store.claim(kit.want("ann", 1, reserve=10, cap=10))
    between = between or [other.claim(kit.want("bob", 1, reserve=10, cap=10))]
    assert sum(isinstance(answer, Claim) for answer in (last, *between)) == 1


def _claim_at_once(kit: Kit, other: Store) -> None:
    """Let each take one item after the other until the budget is used up."""
    granted: list[Claim] = []

    def take(store: Store, owner: str) -> None:
        while isinstance(claim := store.claim(kit.want(owner, 1, reserve=10, cap=200)), Claim):
            granted.append(claim)

    threads = [threading.Thread(target=take, args=each) for each in ((kit.store, "cid"), (other, "dan"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == 19, "one of the twenty was granted before"
    assert sum(chunk.reserved for chunk in kit.store.chunks(kit.batch)) == 200


@proves("C1", "P7")
def two_handles_see_one_state(kit: Kit) -> None:
    other = kit.open_again()
    try:
        kit.admit("a", "b")
        assert other.open_batch("book", "pages", DEFINITION, actor="bob").id == kit.batch
        assert other.add_items(kit.batch, [new_item("a"), new_item("c")]).known == 1
        first, second = kit.claim("ann", 1), other.claim(kit.want("bob", 1))
        assert isinstance(second, Claim)
        assert first.lo != second.lo
        kit.land(first, [done(item) for item in kit.load(first)])
        assert [o.n for o in other.outputs(kit.batch)] == [first.lo]
        kit.check()
    finally:
        other.close()


@proves("E5", "E13")
def revisions_parents_and_ended_chains_are_the_same_when_the_store_is_opened_again(kit: Kit) -> None:
    raw = NewItem("a", b"1", raw=b'"1"')
    child = NewItem("b", b"2", parent=ItemNo(0))
    kit.store.add_items(kit.batch, [raw, child], origin=ItemOrigin(source="x", schema="y"))
    claim = kit.claim("ann", 1)
    kit.land(claim, [failed(kit.load(claim)[0])], release=True)
    renewed = replace(reset(0, kit.place(0)), renewed=NewItem("a", b"3", raw=b'"3"'))
    kit.act("renewed", renewed)
    kit.admit("feed", kind=Kind.PARTITIONS)
    with mock.patch.object(lease, "CHAIN_ENTRIES", 1):
        for turn in range(3):
            claim = kit.claim("ann", only=2)
            (item,) = kit.load(claim)
            assert kit.store.commit([kit.reach(claim, item, turn + 1, acc=b"[1]")])[0].landed
            kit.land(claim, version=1, release=True)
    before = (kit.everything(), [kit.store.revisions(kit.batch, ItemNo(n)) for n in range(3)])
    kit.store.close()
    kit.store = kit.open_again()
    assert (kit.everything(), [kit.store.revisions(kit.batch, ItemNo(n)) for n in range(3)]) == before
    assert [row.raw_salt != b"" for row in kit.store.items(kit.batch)] == [True, False, False]
    kit.check()


@proves()
def who_finds_nothing_hears_that_others_have_written(kit: Kit) -> None:
    """Check, if a store has marks, that they count from the moment at which nothing was found, not later."""
    other = kit.open_again()
    try:
        kit.admit("a")
        held = other.claim(kit.want("bob"))
        idle = kit.store.claim(kit.want("ann"))
        assert isinstance(held, Claim)
        assert isinstance(idle, Idle)
        assert kit.store.mark(kit.batch) == idle.mark, "nothing was written since"
        assert other.commit([kit.commit_of(held, release=True)])[0].landed
        assert idle.mark is None or kit.store.mark(kit.batch) != idle.mark
        assert isinstance(kit.store.claim(kit.want("ann")), Claim)
    finally:
        other.close()
