"""Commits land once, under the right fence and version, or leave no trace."""

import threading

import msgspec
import pytest

from holdfast.core.errors import HoldfastError, UsageError
from holdfast.core.journal import Checkpointed, decode_header
from holdfast.core.model import ChunkId, Claim, CommitRefusal, Counts, Receipt, State
from holdfast.stores.base import has_landed
from holdfast.testing.conformance.kit import LEASE, Kit, deferred, done, failed, output_of, proves, reset, skipped


@proves("C1", "B8", "E12")
def a_commit_writes_outputs_places_totals_and_one_entry_together(kit: Kit) -> None:
    kit.admit(*"abcd")
    claim = kit.claim("ann")
    a, b, c, d = kit.load(claim)
    written = kit.land(claim, [done(a, usd=5), failed(b, usd=3), skipped(c), failed(d, transient=False)])
    assert [(o.n, o.stage, o.epoch, o.data) for o in kit.store.outputs(kit.batch)] == [(0, 0, 0, output_of(a))]
    assert kit.states() == [State.PENDING, State.PENDING, State.SKIPPED, State.DEAD]
    assert [kit.place(n).attempt for n in range(4)] == [0, 1, 0, 1]
    chunk = kit.chunk(claim.lease.chunk)
    assert chunk.counts == Counts(skipped=1, dead=1, attempts=4, spent=8, tokens=7, seconds=2.0)
    assert (chunk.pending, chunk.version, chunk.owner) == (2, 1, "ann")
    assert kit.kinds(chunk.id) == ["claimed", "checkpoint"]
    entry = kit.chain(chunk.id)[-1]
    header = decode_header(entry.head)
    assert (header.actor, header.fence, header.commit_id, header.at) == ("ann", 1, written.id, kit.clock())
    assert (header.uid, header.chain, header.grant) == (claim.uid, claim.number, claim.lease.grant)
    kit.check()


@proves("P1", "P8")
def done_items_are_counted_when_their_last_stage_is_committed(kit: Kit) -> None:
    kit.admit("a", "b")
    claim = kit.claim()
    kit.land(claim, [done(item) for item in kit.load(claim)])
    assert kit.chunk(claim.lease.chunk).counts.done == 0
    kit.land(claim, [done(item) for item in kit.load(claim)], version=1)
    assert kit.chunk(claim.lease.chunk).counts.done == 2
    assert kit.states() == [State.DONE, State.DONE]
    assert kit.place(0).stage == 2
    assert kit.load(claim) == []
    kit.check()


@proves("C1", "A2")
def a_commit_that_speaks_of_items_of_another_chunk_is_refused(kit: Kit) -> None:
    kit.admit("a")
    kit.admit("b")
    own, other = kit.claim("ann"), kit.claim("bob")
    before = kit.everything()
    for outcome in (done(kit.load(other)[0]), failed(kit.load(other)[0])):
        wrong = kit.commit_of(own, [outcome])
        with pytest.raises(UsageError, match="names items 1 to 1"):
            kit.store.commit([kit.commit_of(other, []), wrong])
        assert kit.everything() == before
    kit.check()


@proves("C8", "C13")
def a_stale_fence_cannot_commit(kit: Kit) -> None:
    kit.admit("a")
    zombie = kit.claim("ann")
    item = kit.load(zombie)[0]
    kit.clock.advance(LEASE + 1)
    kit.claim("bob")
    before = kit.everything()
    assert kit.store.commit([kit.commit_of(zombie, [done(item)])]) == [Receipt(landed=False, reason=CommitRefusal.LOST)]
    assert kit.everything() == before


@proves("C8")
def a_stale_fence_cannot_commit_after_the_chunk_was_released(kit: Kit) -> None:
    kit.admit("a")
    zombie = kit.claim("ann")
    item = kit.load(zombie)[0]
    kit.clock.advance(LEASE + 1)
    kit.land(kit.claim("bob"), release=True)
    before = kit.everything()
    assert kit.store.commit([kit.commit_of(zombie, [done(item)])]) == [Receipt(landed=False, reason=CommitRefusal.LOST)]
    assert kit.everything() == before


@proves("C8")
def a_lease_that_expired_but_was_not_taken_may_still_commit(kit: Kit) -> None:
    kit.admit("a")
    claim = kit.claim("ann")
    kit.clock.advance(10 * LEASE)
    kit.land(claim, [done(kit.load(claim)[0])])
    kit.check()


@proves("C1", "C8")
def a_stale_version_cannot_commit(kit: Kit) -> None:
    kit.admit("a", "b")
    claim = kit.claim("ann")
    a, b = kit.load(claim)
    kit.land(claim, [done(a)])
    before = kit.everything()
    for version in (0, 2):
        refused = kit.store.commit([kit.commit_of(claim, [done(b)], version=version)])
        assert refused == [Receipt(landed=False, reason=CommitRefusal.STALE)]
    assert kit.everything() == before


@proves("C8")
def nothing_is_committed_after_an_own_release(kit: Kit) -> None:
    kit.admit("a")
    claim = kit.claim("ann")
    item = kit.load(claim)[0]
    kit.land(claim, release=True)
    before = kit.everything()
    assert not kit.store.commit([kit.commit_of(claim, [done(item)], version=1)])[0].landed
    assert kit.everything() == before


@proves("C12", "P8")
def a_commit_lands_once_however_often_it_is_sent(kit: Kit) -> None:
    kit.admit("a", "b")
    claim = kit.claim("ann")
    written = kit.commit_of(claim, [done(kit.load(claim)[0], usd=5)])
    assert not has_landed(kit.store, written)
    assert kit.store.commit([written]) == [Receipt(landed=True)]
    before = kit.everything()
    assert has_landed(kit.store, written)
    assert kit.store.commit([written, written]) == [Receipt(landed=True)] * 2
    assert kit.everything() == before


@proves("C12")
def a_commit_twice_in_one_group_lands_once(kit: Kit) -> None:
    kit.admit("a", "b")
    claim = kit.claim("ann")
    written = kit.commit_of(claim, [done(kit.load(claim)[0], usd=5)])
    assert kit.store.commit([written, written]) == [Receipt(landed=True)] * 2
    assert kit.chunk(claim.lease.chunk).counts.attempts == 1
    kit.check()


@proves("C1", "C12")
def commits_of_one_chunk_are_judged_one_after_the_other(kit: Kit) -> None:
    kit.admit("a", "b")
    claim = kit.claim("ann")
    a, b = kit.load(claim)
    first, second = kit.commit_of(claim, [done(a)]), kit.commit_of(claim, [done(b)], version=1)
    stale, third = kit.commit_of(claim, [failed(b)], version=1), kit.commit_of(claim, version=2)
    receipts = kit.store.commit([first, second, stale, third, first])
    assert [receipt.reason for receipt in receipts] == [None, None, CommitRefusal.STALE, None, None]
    assert [kit.place(n).attempt for n in range(2)] == [0, 0]
    assert (kit.chunk(claim.lease.chunk).version, len(kit.chain(claim.lease.chunk))) == (3, 4)
    kit.check()


@proves("C8")
def a_commit_behind_a_release_of_its_own_group_is_refused(kit: Kit) -> None:
    kit.admit("a", "b")
    claim = kit.claim("ann")
    a, b = kit.load(claim)
    release, late = kit.commit_of(claim, [done(a)], release=True), kit.commit_of(claim, [done(b)], version=1)
    receipts = kit.store.commit([release, late])
    assert [receipt.reason for receipt in receipts] == [None, CommitRefusal.LOST]
    assert [kit.place(n).stage for n in range(2)] == [1, 0]
    kit.check()


@proves("C1")
def nothing_of_a_group_is_written_if_one_of_it_makes_no_sense(kit: Kit) -> None:
    kit.admit("a")
    kit.admit("b")
    first, second = kit.claim("ann"), kit.claim("bob")
    item = kit.load(second)[0]
    before = kit.everything()
    with pytest.raises((AssertionError, HoldfastError)):
        kit.store.commit([kit.commit_of(first, release=True), kit.commit_of(second, [skipped(item), skipped(item)])])
    assert kit.everything() == before


@proves("C12", "C10")
def that_a_commit_landed_is_known_after_release_and_takeover(kit: Kit) -> None:
    kit.admit("a")
    claim = kit.claim("ann")
    first = kit.land(claim, [done(kit.load(claim)[0])])
    kit.clock.advance(LEASE + 1)
    taken = kit.claim("bob")
    assert kit.load(taken)[0].place.stage == 1
    second = kit.land(taken, [done(kit.load(taken)[0])], release=True)
    before = kit.everything()
    assert has_landed(kit.store, first)
    assert has_landed(kit.store, second)
    assert kit.store.commit([first, second]) == [Receipt(landed=True)] * 2
    assert kit.everything() == before


@proves("C12")
def that_a_commit_did_not_land_is_known_too(kit: Kit) -> None:
    kit.admit("a")
    claim = kit.claim("ann")
    lost = kit.commit_of(claim, [done(kit.load(claim)[0])])
    kit.clock.advance(LEASE + 1)
    taken = kit.claim("bob")
    kit.land(taken, [done(kit.load(taken)[0])])
    assert not has_landed(kit.store, lost)


@proves("C1")
def one_stale_commit_of_a_group_rolls_back_nobody_else(kit: Kit) -> None:
    for key in "abc":
        kit.admit(key)
    claims = [kit.claim(owner) for owner in ("ann", "bob", "cid")]
    commits = [kit.commit_of(claim, [done(kit.load(claim)[0])], version=claim.lo == 1) for claim in claims]
    receipts = kit.store.commit(commits)
    assert [receipt.landed for receipt in receipts] == [True, False, True]
    assert receipts[1].reason == "stale"
    assert [kit.place(n).stage for n in range(3)] == [1, 0, 1]
    kit.check()


@proves("C13")
def a_commit_to_a_chunk_that_does_not_exist_is_refused_and_others_land(kit: Kit) -> None:
    """As after a restore: the store does not know the chunk, which was cut off after the copy was made."""
    kit.admit("a")
    claim = kit.claim("ann")
    good = kit.commit_of(claim, [done(kit.load(claim)[0])])
    unknown = msgspec.structs.replace(good, chunk=ChunkId(99), id=kit.new_id())
    receipts = kit.store.commit([unknown, good])
    assert [(receipt.landed, receipt.reason) for receipt in receipts] == [(False, CommitRefusal.LOST), (True, None)]
    kit.check()


@proves("P8")
def no_commit_settles_more_items_than_there_are(kit: Kit) -> None:
    kit.admit("a")
    claim = kit.claim("ann")
    item = kit.load(claim)[0]
    before = kit.everything()
    with pytest.raises((AssertionError, HoldfastError)):
        kit.store.commit([kit.commit_of(claim, [skipped(item), skipped(item)])])
    assert kit.everything() == before
    kit.land(claim, [skipped(item)])


@proves("C10")
def a_release_frees_the_chunk_at_once(kit: Kit) -> None:
    kit.admit("a")
    claim = kit.claim("ann", reserve=10)
    kit.land(claim, release=True)
    chunk = kit.chunk(claim.lease.chunk)
    assert (chunk.owner, chunk.reserved, chunk.due) == (None, 0, 0)
    assert kit.kinds(chunk.id) == ["claimed", "released"]
    body = kit.last(chunk.id)
    assert isinstance(body, Checkpointed)
    assert body.released
    assert kit.claim("bob").lease.fence == 2
    kit.check()


@proves("C4")
def a_commit_counts_as_a_heartbeat_and_never_shortens_the_lease(kit: Kit) -> None:
    kit.admit("a", "b", "c")
    claim = kit.claim("ann")
    kit.clock.advance(20)
    items = kit.load(claim)
    kit.land(claim, [done(items[0])])
    assert kit.chunk(claim.lease.chunk).expires == kit.clock() + LEASE
    kit.store.renew([claim.lease], 10 * LEASE)
    kit.land(claim, [done(items[1])], version=1)
    assert kit.chunk(claim.lease.chunk).expires == kit.clock() + 10 * LEASE


@proves("E8")
def retries_and_deferrals_change_no_total_but_attempts(kit: Kit) -> None:
    kit.admit("a", "b")
    claim = kit.claim("ann")
    a, b = kit.load(claim)
    kit.land(claim, [failed(a), deferred(b)])
    counts = kit.chunk(claim.lease.chunk).counts
    assert (counts.settled, counts.attempts) == (0, 2)
    assert (kit.place(0).attempt, kit.place(1).attempt) == (1, 0)
    assert kit.place(1).due == kit.clock() + 60
    assert kit.place(0).due > kit.clock()
    kit.check()


@proves("E7")
def the_third_strike_buries(kit: Kit) -> None:
    kit.admit("a")
    claim = kit.claim("ann", seconds=1000)
    for strike in range(3):
        kit.land(claim, [failed(kit.load(claim)[0])], version=strike)
        kit.clock.advance(30)
    assert (kit.place(0).state, kit.place(0).attempt, kit.place(0).code) == (State.DEAD, 3, "http_503")
    kit.check()


@proves("A1", "A3")
def an_output_of_a_later_epoch_takes_the_place_of_the_earlier_one(kit: Kit) -> None:
    kit.admit("a")
    kit.finish(kit.claim("ann"))
    kit.act("reset", reset(0, kit.place(0)))
    claim = kit.claim("bob")
    item = kit.load(claim)[0]
    assert (item.place.stage, item.place.epoch, item.plain) == (0, 1, False)
    kit.land(claim, [done(item)])
    assert [(o.stage, o.epoch) for o in kit.store.outputs(kit.batch)] == [(0, 1), (1, 0)]
    assert kit.place(0).stage == 1
    kit.land(claim, [done(kit.load(claim)[0])], version=1, release=True)
    assert kit.states() == [State.DONE]
    assert [(o.stage, o.epoch) for o in kit.store.outputs(kit.batch)] == [(0, 1), (1, 1)]
    kit.check()


@proves()
def an_output_may_be_the_record_of_a_file(kit: Kit) -> None:
    kit.admit("a")
    claim = kit.claim("ann")
    outcome = msgspec.structs.replace(done(kit.load(claim)[0]), file=b'{"path": "a.md"}')
    kit.land(claim, [outcome])
    (output,) = kit.store.outputs(kit.batch)
    assert (output.data, output.file) == (None, b'{"path": "a.md"}')
    (item,) = kit.load(claim)
    assert (item.place.stage, item.source_file, item.input) == (1, b'{"path": "a.md"}', b"")


@proves("P7", "C1")
def threads_that_work_at_once_lose_and_double_nothing(kit: Kit) -> None:
    kit.admit(*range(40))
    errors: list[BaseException] = []

    def work(owner: str) -> None:
        try:
            while isinstance(claim := kit.store.claim(kit.want(owner, 3)), Claim):
                kit.finish(claim)
        except BaseException as error:  # noqa: BLE001 - reported below, in the thread of the test
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"thread-{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert kit.states() == [State.DONE] * 40
    story = kit.check()
    assert set(story.attempts.values()) == {1}


@proves("E12", "B11")
def every_commit_that_landed_has_exactly_one_entry(kit: Kit) -> None:
    kit.admit(*"abcd")
    claim = kit.claim("ann")
    written = [kit.land(claim, [done(item)], version=version) for version, item in enumerate(kit.load(claim))]
    kit.store.commit([kit.commit_of(claim, version=9)])
    kit.store.commit(written)
    ids = [decode_header(entry.head).commit_id for entry in kit.chain(claim.lease.chunk)]
    assert ids == [b"", *(commit.id for commit in written)]
    kit.check()
