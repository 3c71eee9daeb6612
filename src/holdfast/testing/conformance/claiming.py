"""Claiming, cutting, releasing and taking over chunks; blame."""

import msgspec

from holdfast.core.course import Barrier, to_steer
from holdfast.core.journal import LIFTED, Claimed, Snapshot
from holdfast.core.lease import Trial, trial_of
from holdfast.core.limits import BLAME, SUSPECT
from holdfast.core.model import Act, BatchMode, Change, Claim, ItemNo, Receipt, State
from holdfast.stores.base import Idle
from holdfast.testing.conformance.kit import (
    LEASE,
    Kit,
    deferred,
    done,
    failed,
    proves,
    reset,
)


@proves("C1", "E6")
def a_claim_is_granted_with_its_entry(kit: Kit) -> None:
    kit.admit("a", "b")
    claim = kit.claim("ann")
    assert (claim.lo, claim.hi, claim.pending, claim.version, claim.blame) == (0, 2, 2, 0, 0)
    assert (claim.lease.owner, claim.lease.fence, claim.lease.expires) == ("ann", 1, kit.clock() + LEASE)
    chunk = kit.chunk(claim.lease.chunk)
    assert (chunk.owner, chunk.fence, chunk.expires) == ("ann", 1, claim.lease.expires)
    assert kit.last(chunk.id) == Claimed(lo=0, hi=2, expires=claim.lease.expires)
    kit.check()


@proves("C1")
def nobody_else_is_granted_a_held_chunk(kit: Kit) -> None:
    kit.admit("a", "b")
    claim = kit.claim("ann")
    assert kit.idle("bob") == Idle(pending=2, next_due=claim.lease.expires, held=1)


@proves()
def where_nothing_is_there_the_answer_is_idle(kit: Kit) -> None:
    assert kit.idle() == Idle(pending=0)
    kit.admit("a")
    kit.finish(kit.claim())
    assert kit.idle() == Idle(pending=0)


@proves("C1")
def small_chunks_that_are_granted_together_are_grants_like_others(kit: Kit) -> None:
    for keys in "ab", "cd", "ef", "ghi", "jk":
        kit.admit(*keys)
    claim = kit.store.claim(msgspec.structs.replace(kit.want(limit=7), chunks=10))
    assert isinstance(claim, Claim)
    granted = [claim, *claim.more]
    assert sum(each.pending for each in granted) <= 7, "the limit applies to all together"
    assert len({each.lease.chunk for each in granted}) == len(granted)
    assert [each.lo for each in granted[1:]] == [each.hi for each in granted[:-1]]
    whole = msgspec.structs.replace(claim, hi=granted[-1].hi)
    assert [item.n for item in kit.load(whole)] == list(range(claim.lo, whole.hi)), "they can be read as one"
    for each in granted:
        assert (each.lease.owner, each.lease.fence, each.version) == ("ann", 1, 0)
        assert kit.last(each.lease.chunk) == Claimed(lo=each.lo, hi=each.hi, expires=each.lease.expires)
        kit.finish(each)
    left = kit.idle("bob") if sum(each.pending for each in granted) == 11 else kit.claim("bob")
    assert isinstance(left, Claim)
    kit.check()


@proves("P7", "E12")
def a_claim_cuts_off_what_is_more_than_wanted(kit: Kit) -> None:
    kit.admit(*"abcde")
    first, second, third = kit.claim("ann", 2), kit.claim("bob", 2), kit.claim("cid", 2)
    assert [(c.lo, c.hi, c.pending) for c in (first, second, third)] == [(0, 2, 2), (2, 4, 2), (4, 5, 1)]
    assert [(c.lo, c.hi) for c in kit.store.chunks(kit.batch)] == [(0, 2), (2, 4), (4, 5)]
    body = kit.last(first.lease.chunk)
    assert isinstance(body, Claimed)
    assert body.child == (second.lease.chunk, 2, 5)
    assert kit.chunk(second.lease.chunk).parent == first.lease.chunk
    assert kit.idle().pending == 5
    kit.check()


@proves("E12")
def a_child_links_the_head_its_parent_had_before_the_cut(kit: Kit) -> None:
    kit.admit(*"abc")
    (whole,) = kit.store.chunks(kit.batch)
    parent = kit.claim("ann", 1)
    child = next(chunk for chunk in kit.store.chunks(kit.batch) if chunk.parent == parent.lease.chunk)
    assert (child.head, child.seq) == (whole.head, 0)
    kit.finish(parent)
    kit.finish(kit.claim("bob", 1))
    kit.finish(kit.claim("cid", 1))
    kit.check()


@proves("P7")
def a_chunk_with_settled_items_is_cut_by_what_is_pending(kit: Kit) -> None:
    kit.admit(*"abcdefgh")
    claim = kit.claim("ann")
    items = kit.load(claim)
    kit.land(claim, [done(items[0]), done(items[6])])
    again = {int(item.n): item for item in kit.load(claim)}
    kit.land(
        claim,
        [done(again[0]), done(again[6]), *(failed(items[n], transient=False) for n in (1, 3))],
        version=1,
        release=True,
    )
    first = kit.claim("bob", 2)
    assert (first.lo, first.hi, first.pending) == (0, 5, 2)
    assert [item.key for item in kit.load(first)] == ["c", "e"]
    second = kit.claim("cid", 2)
    assert [item.key for item in kit.load(second)] == ["f", "h"]
    assert [(chunk.counts.done, chunk.counts.dead) for chunk in kit.store.chunks(kit.batch)] == [(1, 2), (1, 0)]
    kit.check()


@proves("C3")
def the_fence_grows_over_release_expiry_and_death(kit: Kit) -> None:
    kit.admit("a")
    fences = []
    for owner in "abcdef":
        claim = kit.claim(owner)
        fences.append(claim.lease.fence)
        if owner in "ad":
            kit.land(claim, release=True)
        elif owner in "be":
            kit.clock.advance(LEASE + 1)
        else:
            kit.dead.add(owner)
    assert fences == sorted(set(fences)), fences
    kit.check()


@proves("C3", "C15")
def the_fence_grows_when_an_operator_seizes(kit: Kit) -> None:
    kit.admit("a")
    first = kit.claim("ann")
    kit.act("reset", reset(0, kit.place(0)), seize=True)
    assert kit.chunk(first.lease.chunk).fence > first.lease.fence
    second = kit.claim("bob")
    assert second.lease.fence > first.lease.fence + 1
    kit.check()


@proves("C3")
def a_child_is_granted_under_a_higher_fence_than_any_before_the_cut(kit: Kit) -> None:
    kit.admit(*"abcd")
    zombie = kit.claim("ann")
    kit.clock.advance(LEASE + 1)
    head, tail = kit.claim("bob", 2), kit.claim("cid", 2)
    assert min(head.lease.fence, tail.lease.fence) > zombie.lease.fence


@proves("C3", "C4")
def a_lease_is_taken_over_after_it_expired_and_not_at_the_bound(kit: Kit) -> None:
    kit.admit("a")
    kit.claim("ann")
    kit.clock.advance(LEASE)
    kit.idle("bob")
    kit.clock.advance(0.001)
    claim = kit.claim("bob")
    assert claim.lease.fence == 2
    body = kit.last(claim.lease.chunk)
    assert isinstance(body, Claimed)
    assert body.taken_from == "ann"


@proves("C3", "C4")
def what_a_claimer_keeps_is_granted_to_others_and_not_to_itself(kit: Kit) -> None:
    """The process was stopped until its lease had ended, and continues: if its chunk were granted to it again, its work
    would be lost."""
    kit.admit(*"abc")
    first = kit.claim("ann", 1)
    second = kit.claim("ann", 1)
    kit.clock.advance(LEASE + 1)
    keeps = frozenset({first.lease.chunk, second.lease.chunk})
    assert kit.claim("ann", keeps=keeps).lo == 2
    assert kit.idle("ann", keeps=keeps).pending == 3
    assert kit.idle("ann", only=0, keeps=keeps).pending == 1
    kit.finish(first)
    assert kit.claim("bob").lease.chunk == second.lease.chunk
    kit.check()


@proves("C3")
def a_claimer_that_forgot_what_it_held_is_granted_it_anew(kit: Kit) -> None:
    kit.admit("a")
    before = kit.claim("ann")
    kit.clock.advance(LEASE + 1)
    after = kit.claim("ann")
    assert (after.lease.chunk, after.lease.fence) == (before.lease.chunk, 2)


@proves("C3")
def what_a_dead_process_held_is_taken_over_at_once(kit: Kit) -> None:
    kit.admit("a")
    kit.claim("ann")
    kit.dead.add("ann")
    assert kit.claim("bob").lease.fence == 2


@proves()
def what_is_free_is_granted_before_what_a_dead_process_held(kit: Kit) -> None:
    kit.admit("a", "b")
    kit.claim("ann", 1)
    kit.dead.add("ann")
    assert [kit.claim("bob", 1).lo for _ in range(2)] == [1, 0]


@proves("E7")
def a_released_chunk_waits_until_it_is_due_and_then_comes_first(kit: Kit) -> None:
    kit.admit("a")
    kit.admit("b")
    claim = kit.claim("ann")
    due = kit.clock() + 60
    kit.land(claim, release=True, due=due)
    assert kit.chunk(claim.lease.chunk).owner is None
    fresh = kit.claim("bob")
    assert fresh.lo == 1
    kit.land(fresh, release=True)
    kit.clock.advance(59)
    assert kit.claim("cid").lo == 1
    kit.idle("dan")
    kit.clock.advance(1)
    assert kit.claim("dan").lo == 0


@proves("E7")
def what_waited_comes_before_what_is_fresh(kit: Kit) -> None:
    for key in "abc":
        kit.admit(key)
    first, second = kit.claim("ann"), kit.claim("ann")
    kit.land(first, release=True, due=kit.clock() + 20)
    kit.land(second, release=True, due=kit.clock() + 10)
    kit.clock.advance(20)
    assert [kit.claim("bob").lo for _ in range(3)] == [1, 0, 2]


@proves()
def idle_says_when_to_look_again(kit: Kit) -> None:
    kit.admit("a")
    kit.admit("b")
    first, second = kit.claim("ann"), kit.claim("bob")
    kit.land(first, release=True, due=kit.clock() + 90)
    assert kit.idle() == Idle(pending=2, next_due=second.lease.expires, held=1)
    kit.land(second, release=True, due=kit.clock() + 120)
    assert kit.idle() == Idle(pending=2, next_due=kit.clock() + 90)


@proves()
def idle_speaks_of_the_chunk_of_the_item_that_was_wanted(kit: Kit) -> None:
    for key in "abc":
        kit.admit(key)
    first, second, third = kit.claim("ann"), kit.claim("bob"), kit.claim("cid")
    kit.land(first, release=True, due=kit.clock() + 90)
    kit.finish(third)
    assert kit.idle("dan", only=0) == Idle(pending=1, next_due=kit.clock() + 90)
    assert kit.idle("dan", only=1) == Idle(pending=1, next_due=second.lease.expires, held=1)
    assert kit.idle("dan", only=2) == Idle(pending=0)
    kit.store.amend(kit.batch, to_steer(BatchMode.PAUSED, reason="later"), actor="operator")
    assert kit.idle("dan", only=0) == Idle(pending=1, next_due=kit.clock() + 90, why=Barrier.PAUSED)


@proves("E6")
def the_entry_of_a_claim_has_a_snapshot_of_every_attempt_it_may_repeat(kit: Kit) -> None:
    kit.admit(*"abcd")
    claim = kit.claim("ann")
    a, b, c, d = kit.load(claim)
    kit.land(claim, [failed(a), deferred(b), failed(c, transient=False), done(d)], release=True)
    kit.act("reset", reset(2, kit.place(2)))
    kit.clock.advance(60)
    body = kit.last(kit.claim("bob").lease.chunk)
    assert isinstance(body, Claimed)
    used = kit.place(0).used
    assert body.snapshots == [
        Snapshot(0, stage=0, epoch=0, attempt=1, code="http_503", used=used),
        Snapshot(2, stage=0, epoch=1, attempt=0),
    ]
    kit.check()


# -- blame ------------------------------------------------------------------------------------------------------


@proves("A15")
def only_a_grant_that_ended_without_commit_and_release_is_blamed(kit: Kit) -> None:
    kit.admit("a", "b")
    kit.land(kit.claim("ann"), release=True)
    released = kit.claim("bob")
    assert released.blame == 0
    kit.clock.advance(LEASE + 1)
    died = kit.claim("cid")
    assert died.blame == 1
    kit.land(died, [failed(kit.load(died)[0])])
    kit.dead.add("cid")
    assert kit.claim("dan").blame == 0
    kit.check()


@proves("A15")
def a_death_before_the_start_is_not_held_against_a_lone_item(kit: Kit) -> None:
    kit.admit("a")
    for owner in ("ann", "bob", *(f"worker-{n}" for n in range(2 * BLAME))):
        assert kit.claim(owner).blame == min(SUSPECT, len(kit.dead))
        kit.dead.add(owner)
    suspect = kit.claim("cid")
    assert trial_of(suspect.pending, suspect.blame) is Trial.ON_TRIAL
    kit.finish(suspect)
    kit.check()


@proves("A15")
def a_start_is_a_strike_and_moves_nothing(kit: Kit) -> None:
    kit.admit("a")
    for owner in ("ann", "bob"):
        kit.claim(owner)
        kit.dead.add(owner)
    first = kit.claim("cid", reserve=10)
    before, touched = kit.place(0), kit.chunk(first.lease.chunk).touched_at
    kit.clock.advance(1)
    written = kit.start(first)
    assert kit.store.commit([written]) == [Receipt(landed=True)], "sent twice, it lands once"
    chunk = kit.chunk(first.lease.chunk)
    assert (chunk.version, chunk.blame, chunk.reserved, chunk.touched_at) == (1, SUSPECT + 1, 10, touched)
    assert (chunk.expires, kit.place(0)) == (kit.clock() + LEASE, before)
    assert kit.kinds(chunk.id)[-1] == "started"
    kit.dead.add("cid")
    second = kit.claim("dan")
    assert second.blame == SUSPECT + 1
    assert kit.store.commit([kit.commit_of(first, version=1)])[0].reason == "lost"
    kit.start(second)
    kit.land(second, [failed(kit.load(second)[0])], version=1)
    assert kit.chunk(chunk.id).blame == 0, "it came to something: no strike is left"
    kit.check()


@proves("A15")
def an_item_that_kills_its_process_is_found_by_halving(kit: Kit) -> None:
    kit.admit(*range(16))
    assert _run_until_condemned(kit, killer=11) <= SUSPECT + 4 + BLAME
    assert kit.states() == [State.DONE] * 11 + [State.PENDING] + [State.DONE] * 4
    kit.check()


@proves("A15")
def of_what_carries_blame_only_so_much_is_granted_and_each_death_halves_it(kit: Kit) -> None:
    kit.admit(*range(40))
    sizes = []
    for turn in range(5):
        answer = kit.store.claim(msgspec.structs.replace(kit.want(f"worker-{turn}", limit=20), at_once=8))
        assert isinstance(answer, Claim)
        sizes.append(answer.pending)
        kit.dead.add(f"worker-{turn}")
        kit.clock.advance(LEASE + 1)
    assert sizes == [20, 8, 4, 2, 1], "the claim, as many as can be started at once, then halves"
    fresh = next(chunk for chunk in kit.store.chunks(kit.batch) if chunk.lo == 20)
    assert (fresh.seq, fresh.blame) == (0, 0), "a chunk that was never granted has no blame"
    kit.check()


@proves("A15", "A13")
def blame_is_lifted_by_an_act_that_changes_nothing_else(kit: Kit) -> None:
    kit.admit("a", "b", "c", "d")
    for owner in ("ann", "bob", "cid"):
        held = kit.claim(owner)
        kit.dead.add(owner)
        kit.clock.advance(LEASE + 1)
    assert (held.pending, held.blame) == (2, SUSPECT)
    before = [kit.place(n) for n in range(4)]
    named = [Change(n=ItemNo(n), state=kit.place(n).state, epoch=0, place=kit.place(n)) for n in (0, 2)]
    act = Act(id=kit.new_id(), batch=kit.batch, kind=LIFTED, actor="ada", reason="spot", at_items=tuple(named),
              seize=True, lifts=True)  # fmt: skip
    assert kit.store.act(act) == [0, 2]
    assert kit.store.act(msgspec.structs.replace(act, id=kit.new_id())) == [], "there is nothing left to lift"
    assert [kit.place(n) for n in range(4)] == before
    assert kit.store.commit([kit.commit_of(held)])[0].reason == "lost"
    assert kit.kinds(held.lease.chunk)[-1] == LIFTED
    assert [kit.claim(owner).blame for owner in ("dan", "eve")] == [0, 0]
    kit.check()


@proves("A15")
def it_is_found_among_settled_items_too(kit: Kit) -> None:
    kit.admit(*range(9))
    claim = kit.claim("first")
    items = kit.load(claim)
    kit.land(claim, [failed(items[n], transient=False) for n in (0, 2, 8)])
    kit.dead.add("first")
    assert _run_until_condemned(kit, killer=4) <= SUSPECT + 3 + BLAME
    assert [n for n, state in enumerate(kit.states()) if state is not State.DONE] == [0, 2, 4, 8]
    kit.check()


def _run_until_condemned(kit: Kit, killer: int) -> int:
    """Run workers that die of the killer and finish everything else; return how many died before it was condemned."""
    found, alone = None, 0
    for deaths in range(100):
        owner = f"worker-{deaths}"
        while isinstance(claim := kit.store.claim(kit.want(owner)), Claim):
            items = [item.n for item in kit.load(claim)]
            if trial_of(claim.pending, claim.blame) is Trial.CONDEMNED:
                assert (items, alone, claim.blame) == ([killer], BLAME, SUSPECT + BLAME)
                found = deaths
                continue
            if killer in items:
                if trial_of(claim.pending, claim.blame) is Trial.ON_TRIAL:
                    kit.start(claim)
                    alone += 1
                break
            kit.finish(claim)
        if found is not None:
            return found
        kit.dead.add(owner)
    raise AssertionError(f"item {killer} was never found")


@proves("A15")
def who_wants_one_item_of_a_suspect_gets_it_alone(kit: Kit) -> None:
    """Otherwise an item that kills its process would never be condemned if only single items are claimed."""
    kit.admit(*range(9))
    first = kit.claim("first")
    items = kit.load(first)
    kit.land(first, [failed(items[n], transient=False) for n in (0, 3)], release=True)
    for owner in ("ann", "bob"):
        assert kit.claim(owner, only=5).pending == 7, "not a suspect yet: its whole chunk is granted"
        kit.dead.add(owner)
    before = kit.claim("cid", only=5)
    assert [item.n for item in kit.load(before)] == [1, 2, 4]
    kit.land(before, release=True)
    for strikes in range(BLAME):
        alone = kit.claim(f"worker-{strikes}", only=5)
        assert ([item.n for item in kit.load(alone)], alone.blame) == ([5], SUSPECT + strikes)
        kit.start(alone)
        kit.dead.add(f"worker-{strikes}")
    last = kit.claim("dan", only=5)
    assert trial_of(last.pending, last.blame) is Trial.CONDEMNED
    kit.land(last, [failed(kit.load(last)[0], transient=False)], release=True)
    neighbour = kit.claim("eve", only=6)
    assert ([item.n for item in kit.load(neighbour)], neighbour.blame) == ([6], SUSPECT), "it has no strikes"
    kit.finish(neighbour)
    assert kit.claim("fay", only=4).pending == 3, "the items before it are not suspects any more"
    kit.check()
