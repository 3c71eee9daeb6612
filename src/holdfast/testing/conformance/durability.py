"""For stores that last: what was answered is there when the store is opened again."""

from holdfast.core.model import Claim
from holdfast.stores.base import has_landed
from holdfast.testing.conformance.kit import DEFINITION, Kit, done, failed, new_item, proves, reset


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
