"""Leases on a bucket are judged by observation: no clock but one's own has to be right, and that only in its pace."""

import pytest

from holdfast.core.model import Claim, ClaimRequest
from holdfast.core.settle import NOTHING, commit
from holdfast.runtime.report import status
from holdfast.stores import owners
from holdfast.stores.base import Idle
from holdfast.stores.bucket import BucketStore
from holdfast.stores.buckets.memory import MemoryBucket
from holdfast.testing.clock import START, ManualClock
from holdfast.testing.conformance.kit import DEFINITION, LEASE, holder_of, new_item
from tests.buckets.worker import store_on

HOUR = 3600.0


class Host:
    """A machine with a wall clock that may be wrong and a monotonic one that began when it was switched on."""

    def __init__(self, bucket: MemoryBucket, *, skew: float = 0.0, uptime: float = 0.0) -> None:
        self.wall, self.monotonic = ManualClock(START + skew), ManualClock(uptime)
        self.store: BucketStore = store_on(bucket, self.wall, monotonic=self.monotonic)

    def claim(self, owner: str) -> Claim | Idle:
        batch = self.store.open_batch("book", "pages", DEFINITION, actor=owner).id
        return self.store.claim(ClaimRequest(batch=batch, owner=owner, limit=10, seconds=LEASE))


def pass_time(seconds: float, *hosts: Host) -> None:
    for host in hosts:
        host.wall.advance(seconds)
        host.monotonic.advance(seconds)


def two_hosts(skew: float) -> tuple[Host, Host, Claim]:
    """Ann holds a chunk; Bob, whose clock is elsewhere, comes by for the first time."""
    bucket = MemoryBucket()
    ann, bob = Host(bucket), Host(bucket, skew=skew, uptime=77.0)
    batch = ann.store.open_batch("book", "pages", DEFINITION, actor="ann").id
    ann.store.add_items(batch, [new_item("a")])
    held = ann.claim("ann")
    assert isinstance(held, Claim)
    return ann, bob, held


@pytest.mark.promise("C3", "C4")
@pytest.mark.parametrize("skew", [-HOUR, 0.0, HOUR])
def test_a_lease_is_taken_over_after_its_whole_length_whatever_the_clocks_say(skew: float) -> None:
    ann, bob, held = two_hosts(skew)
    assert isinstance(bob.claim("bob"), Idle)
    pass_time(LEASE, ann, bob)
    assert isinstance(bob.claim("bob"), Idle)
    pass_time(0.5, ann, bob)
    taken = bob.claim("bob")
    assert isinstance(taken, Claim)
    assert taken.lease.fence == held.lease.fence + 1


@pytest.mark.promise("C4")
@pytest.mark.parametrize("skew", [-HOUR, 0.0, HOUR])
def test_who_renews_is_never_taken_over(skew: float) -> None:
    ann, bob, held = two_hosts(skew)
    lease = held.lease
    for _ in range(10):
        assert isinstance(bob.claim("bob"), Idle)
        pass_time(LEASE / 3, ann, bob)
        (lease,) = ann.store.renew([lease], LEASE)


@pytest.mark.promise("C4")
def test_a_wall_clock_that_jumps_neither_ends_a_lease_nor_lengthens_it() -> None:
    ann, bob, held = two_hosts(0.0)
    assert isinstance(bob.claim("bob"), Idle)
    bob.wall.advance(24 * HOUR)
    assert isinstance(bob.claim("bob"), Idle)
    ann.wall.now -= HOUR
    (renewed,) = ann.store.renew([held.lease], LEASE)
    assert isinstance(bob.claim("bob"), Idle)
    pass_time(LEASE + 1, ann, bob)
    assert isinstance(bob.claim("bob"), Claim)
    assert ann.store.renew([renewed], LEASE) == []


@pytest.mark.promise("C4")
def test_when_to_look_again_is_told_on_the_own_clock() -> None:
    _, bob, _ = two_hosts(HOUR)
    answer = bob.claim("bob")
    assert isinstance(answer, Idle)
    assert answer.next_due == bob.wall() + LEASE


@pytest.mark.promise("C3")
def test_who_has_just_arrived_waits_a_whole_lease_but_not_for_a_process_known_to_be_dead() -> None:
    ann, bob, _ = two_hosts(0.0)
    pass_time(100 * LEASE, ann, bob)
    assert isinstance(bob.claim("bob"), Idle), "bob has not seen how long ann was silent"
    bob.store._chunks._is_dead = lambda owner: owner == "ann"
    assert isinstance(bob.claim("bob"), Claim)


def told_of(host: Host) -> bool:
    """Whether an operator on that host is told that somebody holds the chunk."""
    (chunk,) = host.store.chunks(host.store.batches()[0].id)
    return owners.is_live(chunk, host.store.now(), is_dead=lambda _: False)


@pytest.mark.parametrize("skew", [-HOUR, 0.0, HOUR])
def test_who_was_seen_at_work_is_told_of_as_alive_whatever_the_clocks_say(skew: float) -> None:
    ann, bob, held = two_hosts(skew)
    told_of(bob)
    pass_time(LEASE / 3, ann, bob)
    (lease,) = ann.store.renew([held.lease], LEASE)
    assert told_of(bob)
    pass_time(LEASE - 1, ann, bob)
    assert told_of(bob)
    pass_time(2, ann, bob)
    assert not told_of(bob)
    ann.store.renew([lease], LEASE)
    assert told_of(bob)


@pytest.mark.parametrize("skew", [-HOUR, 0.0, HOUR])
def test_who_was_silent_for_a_whole_lease_is_told_of_as_gone(skew: float) -> None:
    ann, bob, _ = two_hosts(skew)
    told_of(bob)
    pass_time(LEASE + 1, ann, bob)
    assert not told_of(bob)


def test_a_lease_that_was_seen_once_is_told_of_by_its_owners_clock_and_said_to_be() -> None:
    ann, bob, _ = two_hosts(HOUR)
    assert not told_of(bob)
    assert told_of(ann)
    (lease,) = status.snapshot(bob.store, bob.store.batches()[0]).leases
    assert lease.by_its_clock


@pytest.mark.promise("C4")
def test_a_commit_under_a_clock_that_was_set_back_lengthens_no_lease() -> None:
    ann, bob, held = two_hosts(0.0)
    ann.wall.now -= HOUR
    holder = holder_of(held, 0, LEASE)
    assert ann.store.commit([commit(holder, NOTHING, commit_id=b"1" * 16)])[0].landed
    assert isinstance(bob.claim("bob"), Idle)
    pass_time(LEASE + 1, ann, bob)
    assert isinstance(bob.claim("bob"), Claim)
