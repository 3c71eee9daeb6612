"""Who may have a chunk, how much of it, and who is to blame."""

import itertools
import math
from collections import Counter, deque
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import acts, journal, sections
from holdfast.core.errors import UsageError
from holdfast.core.lease import (
    Grant,
    Trial,
    affordable,
    blamed,
    carries_blame,
    check_times,
    find_cut,
    grant,
    may_claim,
    share,
    snapshots,
    trial_of,
)
from holdfast.core.limits import BLAME, SUSPECT
from holdfast.core.model import Act, BatchId, Change, Chunk, ChunkId, Counts, ItemNo, ItemState, State
from tests.core.made import GRANT, NOW, PROPERTY, STATES, UID, chunk, seeded, want

replace = msgspec.structs.replace
PENDING, DONE, SKIPPED, DEAD, CANCELLED = State


def granted(
    one: Chunk, limit: int = 100, *, owner: str = "ann", now: float = NOW, child: int = 99, **more: Any
) -> Grant:
    """A grant whose child, if it has one, has its number."""
    found = grant(one, want(limit, owner=owner, **more), GRANT, now=now, states=list)
    return found if found.child is None else found.with_child(ChunkId(child), child)


# -- when -------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("C3", "C4")
def test_a_held_chunk_is_free_only_after_its_lease_has_expired() -> None:
    held = chunk(owner="ann", expires=NOW, fence=1)
    assert not may_claim(held, now=math.nextafter(NOW, 0))
    assert not may_claim(held, now=NOW)
    assert may_claim(held, now=math.nextafter(NOW, math.inf))


@pytest.mark.promise("C4")
def test_who_waited_for_his_turn_gives_the_owner_as_much_time() -> None:
    held = chunk(owner="ann", expires=NOW, fence=1)
    assert not may_claim(held, now=NOW + 5.0, waited=5.0)
    assert not may_claim(held, now=NOW + 5.0, waited=60.0)
    assert may_claim(held, now=NOW + 5.1, waited=5.0)


@pytest.mark.promise("C3")
def test_a_released_chunk_and_one_of_a_dead_process_are_free_at_once() -> None:
    assert may_claim(chunk(fence=1), now=NOW)
    assert may_claim(chunk(owner="ann", expires=NOW + 1e9), now=NOW, owner_is_dead=True)
    assert not may_claim(chunk(owner="ann", expires=NOW + 1e9), now=NOW)


@pytest.mark.parametrize("owner", [None, "ann"])
def test_a_chunk_is_not_claimed_before_it_is_due(owner: str | None) -> None:
    waiting = chunk(due=NOW, owner=owner, expires=NOW - 50)
    assert not may_claim(waiting, now=math.nextafter(NOW, 0))
    assert may_claim(waiting, now=NOW)
    assert not may_claim(waiting, now=NOW - 1, owner_is_dead=True)


def test_a_chunk_in_which_all_is_settled_is_not_claimed() -> None:
    assert may_claim(chunk(0, 4, done=1, skipped=1, dead=1), now=NOW)
    assert not may_claim(chunk(0, 4, done=1, skipped=1, dead=1, cancelled=1), now=NOW, owner_is_dead=True)


@pytest.mark.promise("C5")
@pytest.mark.parametrize(("lease", "heartbeat"), [(30, 10), (30, 14.999), (0.1, 0.01)])
def test_a_heartbeat_under_half_of_the_lease_is_fine(lease: float, heartbeat: float) -> None:
    check_times(lease, heartbeat)


@pytest.mark.promise("C5")
@pytest.mark.parametrize(
    ("lease", "heartbeat"), [(30, 15), (30, 16), (30, 30), (30, 0), (30, -1), (0, 0), (-1, -1), (30, math.nan)]
)
def test_a_heartbeat_that_could_miss_a_lease_is_refused(lease: float, heartbeat: float) -> None:
    with pytest.raises(UsageError, match="lease"):
        check_times(lease, heartbeat)


@pytest.mark.promise("C5")
def test_a_lease_of_no_known_length_is_refused() -> None:
    with pytest.raises(UsageError, match="lease"):
        check_times(math.nan, 1)


# -- how much ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pending", "limit", "affords", "size"),
    [
        (10, 100, None, 10),
        (10, 3, None, 3),
        (10, 0, None, 1),
        (10, -5, None, 1),
        (10, 8, 4, 4),
        (10, 3, 4, 3),
        (1, 1, 9, 1),
    ],
)
def test_a_share_is_what_is_wanted_there_and_paid_for(pending: int, limit: int, affords: int | None, size: int) -> None:
    assert share(chunk(0, pending), want(limit), affordable=affords) == size


@PROPERTY
@given(cap=st.integers(0, 200), reserve=st.integers(1, 50), spent=st.integers(0, 300), reserved=st.integers(0, 100))
def test_no_more_is_set_aside_than_the_budget_has_and_no_less(
    cap: int, reserve: int, spent: int, reserved: int
) -> None:
    count = affordable(cap=cap, reserve=reserve, spent=spent, reserved=reserved)
    assert count is not None
    left = max(0, cap - spent - reserved)
    assert count * reserve <= left < (count + 1) * reserve


def test_without_a_budget_or_a_price_there_is_no_limit_until_the_money_is_gone() -> None:
    assert affordable(cap=None, reserve=5, spent=10**18, reserved=0) is None
    assert affordable(cap=10, reserve=0, spent=9, reserved=0) is None
    assert affordable(cap=10, reserve=0, spent=10, reserved=0) == 0
    assert affordable(cap=10, reserve=0, spent=4, reserved=6) == 0


@pytest.mark.promise("P13")
@PROPERTY
@given(cap=st.integers(1, 60), reserve=st.integers(1, 9), size=st.integers(1, 40), limit=st.integers(1, 40))
def test_grants_never_set_aside_more_than_the_budget(cap: int, reserve: int, size: int, limit: int) -> None:
    free, held, number = deque([chunk(0, size)]), [], 1
    while free:
        reserved = sum(each.reserved for each in held)
        count = affordable(cap=cap, reserve=reserve, spent=0, reserved=reserved)
        if not count:
            assert cap - reserved < reserve
            break
        number += 1
        assert number < 10_000, "this never ends"
        given_ = grant(
            free.popleft(),
            want(limit, reserve=reserve),
            GRANT,
            now=NOW,
            affordable=count,
            states=list,
        )
        assert given_.chunk.reserved == reserve * given_.chunk.pending
        held.append(given_.chunk)
        free += [given_.child] if given_.child is not None else []
    assert sum(each.reserved for each in held) <= cap


# -- where to cut -----------------------------------------------------------------------------------------------------


@PROPERTY
@given(states=st.lists(STATES, min_size=1, max_size=30), lo=st.integers(0, 1000), data=st.data())
def test_a_cut_leaves_the_wanted_items_in_front_and_every_item_on_one_side(
    states: list[State], lo: int, data: st.DataObject
) -> None:
    counted = Counter(states)
    if counted[PENDING] < 2:
        return
    size = data.draw(st.integers(1, counted[PENDING] - 1))
    one = chunk(lo, lo + len(states), fence=4, head=b"h" * 32, due=NOW - 9, touched_at=NOW - 7,
                **{name.value: counted[name] for name in (DONE, SKIPPED, DEAD, CANCELLED)})  # fmt: skip
    cut = find_cut(one, size, states)
    given_ = grant(one, want(size), GRANT, now=NOW, states=lambda: states)
    head, tail = given_.chunk, given_.child
    assert tail is not None
    assert (head.lo, head.hi, tail.lo, tail.hi) == (one.lo, cut.at, cut.at, one.hi)
    assert (head.pending, tail.pending) == (size, counted[PENDING] - size)
    for part in (head, tail):
        inside = Counter(states[part.lo - lo : part.hi - lo])
        counts = part.counts
        assert (counts.done, counts.skipped, counts.dead, counts.cancelled) == (
            inside[DONE], inside[SKIPPED], inside[DEAD], inside[CANCELLED],
        )  # fmt: skip
    assert states[tail.lo - lo] is PENDING
    assert (tail.parent, tail.head, tail.due, tail.touched_at) == (one.id, one.head, one.due, one.touched_at)


def test_what_was_spent_stays_with_the_head() -> None:
    one = replace(chunk(0, 4), counts=Counts(done=1, attempts=5, spent=7, tokens=9, seconds=2.5))
    given_ = grant(one, want(1), GRANT, now=NOW, states=lambda: [PENDING, DONE, PENDING, PENDING])
    assert given_.child is not None
    assert given_.chunk.counts == one.counts
    assert given_.child.counts == Counts()


def test_a_grant_begins_with_a_clean_slate() -> None:
    one = chunk(0, 4, owner="bob", expires=NOW - 1, version=8, due=NOW - 2, reserved=5, fence=6)
    given_ = granted(one, owner="ann")
    after = given_.chunk
    assert (after.owner, after.expires, after.version, after.due, after.fence) == ("ann", NOW + 30.0, 0, 0.0, 7)
    assert (after.progressed, given_.taken_from, given_.child) == (False, "bob", None)
    assert granted(chunk(0, 4)).taken_from == ""


def test_states_are_read_only_where_a_chunk_with_settled_items_is_cut() -> None:
    def read() -> list[State]:
        asked.append(True)
        return [DONE, PENDING, PENDING, PENDING]

    asked: list[bool] = []
    for one, limit, reads in ((chunk(0, 4), 2, 0), (chunk(0, 4, done=1), 3, 0), (chunk(0, 4, done=1), 2, 1)):
        grant(one, want(limit), GRANT, now=NOW, states=read)
        assert len(asked) == reads


def test_a_grant_is_told_by_its_entry_and_its_claim() -> None:
    one = chunk(0, 4, number=5, fence=7, owner="bob", expires=NOW - 1, head=b"h" * 32, seq=3)
    given_ = grant(one, want(1, owner="ann"), GRANT, now=NOW, states=list, floor=20).with_child(ChunkId(9), 6)
    tried = [
        (0, ItemState(attempt=2, code="http_503", used=1.5)),
        (1, ItemState()),
        (2, ItemState(state=DEAD, attempt=3)),
    ]
    entry = given_.entry(UID, snapshots(tried), NOW, seeded())
    header, body = journal.check(entry, one.head, journal.Chain(UID, 5, one.id), one.batch), sections.decode(entry)
    assert (header.chain, header.seq, header.kind, header.actor, header.fence) == (5, 4, "claimed", "ann", 21)
    assert (header.uid, header.grant, entry.chain) == (UID, GRANT, one.id)
    encoded = journal.Encoded(entry.body, header.sections)
    assert entry.hash == journal.link(one.head, journal.Chain(UID, 5, one.id), seq=4, kind="claimed", at=NOW,
                                      actor="ann", fence=21, grant=GRANT, encoded=encoded).hash  # fmt: skip
    assert isinstance(body, journal.Claimed)
    assert (body.lo, body.hi, body.taken_from, body.child) == (0, 1, "bob", (6, 1, 4)), "by its number in the batch"
    assert body.snapshots == [journal.Snapshot(0, stage=0, epoch=0, attempt=2, code="http_503", used=1.5)]
    claim = given_.claim(UID)
    assert (claim.lease.chunk, claim.lease.fence, claim.lease.owner) == (one.id, 21, "ann")
    assert (claim.uid, claim.number, claim.lease.grant) == (UID, 5, GRANT)
    assert (claim.lo, claim.hi, claim.version, claim.pending, claim.lease.expires) == (0, 1, 0, 1, body.expires)


# -- fences -----------------------------------------------------------------------------------------------------------


class Shelf:
    """All chunks of a batch, in the hands of workers and operators who do whatever comes to their minds."""

    def __init__(self, size: int) -> None:
        self.chunks = {1: chunk(0, size)}
        self.now = NOW
        self.fences: dict[int, list[int]] = {n: [] for n in range(size)}
        """The fences under which each item was ever granted, or taken away."""

    def claim(self, one: Chunk, limit: int, owner: str) -> None:
        is_dead = one.owner == "dead"
        if not may_claim(one, now=self.now, owner_is_dead=is_dead):
            return
        given_ = granted(one, limit, owner=owner, now=self.now, child=len(self.chunks) + 1)
        self.put(given_.chunk)
        if given_.child is not None:
            self.chunks[given_.child.id] = given_.child

    def release(self, one: Chunk) -> None:
        self.chunks[one.id] = replace(one, owner=None, expires=0.0, reserved=0)

    def commit(self, one: Chunk) -> None:
        if one.owner is not None:
            self.chunks[one.id] = replace(one, version=one.version + 1, progressed=True, blame=0)

    def seize(self, one: Chunk) -> None:
        places = {ItemNo(n): ItemState() for n in range(one.lo, one.hi)}
        change = Change(n=one.lo, state=PENDING, epoch=0, place=ItemState(epoch=1))
        act = Act(id=b"", batch=BatchId(1), kind="reset", actor="op", reason="why", at_items=(change,), seize=True)
        effect = acts.apply(act, one, [change], places)
        assert effect.seized == (one.owner is not None)
        if effect.seized:
            self.put(replace(one, fence=effect.fence, version=0, owner=None, progressed=True))

    def put(self, one: Chunk) -> None:
        self.chunks[one.id] = one
        for n in range(one.lo, one.hi):
            self.fences[n].append(one.fence)


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["claim", "claim", "claim", "release", "commit", "seize", "wait", "die"]),
        st.integers(0, 30),
        st.integers(1, 6),
        st.sampled_from([1.0, 29.0, 30.0, 31.0]),
    ),
    max_size=40,
)


@pytest.mark.promise("C3")
@PROPERTY
@given(size=st.integers(1, 12), moves=MOVES)
def test_fences_only_grow_whatever_happens_to_a_chunk(size: int, moves: list[tuple[str, int, int, float]]) -> None:
    shelf = Shelf(size)
    for move, which, limit, seconds in moves:
        before = dict(shelf.chunks)
        one = list(before.values())[which % len(before)]
        match move:
            case "claim":
                shelf.claim(one, limit, f"worker-{limit}")
            case "release":
                shelf.release(one)
            case "commit":
                shelf.commit(one)
            case "seize":
                shelf.seize(one)
            case "wait":
                shelf.now += seconds
            case "die" if one.owner is not None:
                shelf.chunks[one.id] = replace(one, owner="dead")
        for number, old in before.items():
            rise = shelf.chunks[number].fence - old.fence
            changed_hands = move in ("claim", "seize") and shelf.chunks[number] != old
            assert rise == (1 if changed_hands else 0)
    assert all(later > earlier for told in shelf.fences.values() for earlier, later in itertools.pairwise(told))
    covered = sorted((each.lo, each.hi) for each in shelf.chunks.values())
    assert [lo for lo, _ in covered] == [0, *(hi for _, hi in covered[:-1])]
    assert covered[-1][1] == size


@pytest.mark.promise("C3")
def test_what_was_cut_off_begins_above_every_fence_its_items_ever_had() -> None:
    given_ = granted(chunk(0, 10, fence=8), 4)
    assert given_.child is not None
    assert granted(given_.child).chunk.fence == 9


# -- blame ------------------------------------------------------------------------------------------------------------


def test_a_grant_that_ended_without_a_commit_and_without_a_release_is_blamed() -> None:
    first = granted(chunk(0, 1)).chunk
    assert (first.blame, first.progressed) == (0, False)
    second = granted(first).chunk
    assert second.blame == 1
    assert granted(second).chunk.blame == SUSPECT


def test_from_then_on_only_a_start_counts_and_only_against_a_lone_item() -> None:
    suspect = granted(granted(granted(chunk(0, 1)).chunk).chunk).chunk
    assert trial_of(suspect.pending, suspect.blame) is Trial.ON_TRIAL
    for _ in range(5):
        assert granted(suspect).chunk.blame == SUSPECT
    started = replace(suspect, blame=SUSPECT + 1)
    assert granted(started).chunk.blame == SUSPECT + 1
    assert granted(granted(started).chunk).chunk.blame == SUSPECT + 1


@pytest.mark.parametrize("ended", [{"owner": None}, {"progressed": True}])
def test_a_release_and_a_commit_are_no_death(ended: dict[str, Any]) -> None:
    assert granted(replace(granted(chunk(0, 1)).chunk, **ended)).chunk.blame == 0


def test_a_release_without_progress_keeps_the_blame_of_before() -> None:
    twice = granted(granted(granted(chunk(0, 1)).chunk).chunk).chunk
    assert granted(replace(twice, owner=None)).chunk.blame == 2


def test_among_several_items_deaths_only_make_suspects() -> None:
    assert blamed(chunk(0, 1, owner="ann", progressed=False, blame=9)) == 9
    assert blamed(chunk(0, 2, owner="ann", progressed=False, blame=9)) == SUSPECT


@pytest.mark.promise("A15")
@pytest.mark.parametrize(("pending", "size"), [(10, 5), (7, 3), (3, 1), (2, 1), (1, 1)])
def test_each_death_of_a_suspect_s_owner_halves_what_is_granted_of_it(pending: int, size: int) -> None:
    suspect = chunk(0, pending, owner="gone", blame=SUSPECT, progressed=False)
    assert share(suspect, want(100)) == size
    assert share(replace(suspect, owner=None), want(100)) == pending  # what was cut off did not kill anybody since
    given_ = granted(suspect)
    assert given_.chunk.blame == SUSPECT
    if given_.child is not None:
        assert (given_.child.blame, given_.child.progressed) == (SUSPECT, False)


@pytest.mark.promise("A15")
def test_of_what_carries_blame_no_more_is_granted_than_can_be_started_at_once() -> None:
    once = chunk(0, 100, owner="gone", progressed=False)
    assert share(once, replace(want(50), at_once=16)) == 16
    assert share(once, replace(want(50), at_once=None)) == 50
    assert share(once, replace(want(50), at_once=0)) == 1
    assert share(chunk(0, 100), replace(want(50), at_once=16)) == 50
    twice = granted(once, 16).chunk
    assert share(twice, replace(want(50), at_once=16)) == 8


def test_blame_is_carried_until_something_is_committed_and_not_while_the_first_owner_lives() -> None:
    first = granted(chunk(0, 4)).chunk
    assert not carries_blame(first, is_held=True)
    assert carries_blame(first, is_held=False)
    assert carries_blame(granted(first).chunk, is_held=True)
    assert not carries_blame(replace(granted(first).chunk, progressed=True), is_held=False)
    assert not carries_blame(chunk(0, 4), is_held=False)
    assert not carries_blame(replace(first, counts=Counts(done=4)), is_held=False)


@pytest.mark.parametrize(
    ("pending", "blame", "guilty"),
    [(1, SUSPECT + BLAME, True), (1, SUSPECT + BLAME - 1, False), (2, SUSPECT + BLAME, False), (0, 99, False)],
)
def test_only_a_lone_item_is_condemned_and_only_after_enough_deaths(pending: int, blame: int, guilty: bool) -> None:
    assert (trial_of(pending, blame) is Trial.CONDEMNED) == guilty


@pytest.mark.promise("A15")
@PROPERTY
@given(size=st.integers(1, 70), killers=st.sets(st.integers(0, 69), max_size=3), limit=st.integers(1, 80))
def test_items_that_kill_their_process_are_found_and_nobody_else_is_buried(
    size: int, killers: set[int], limit: int
) -> None:
    killers = {killer for killer in killers if killer < size}
    free, number, deaths, buried, done = deque([chunk(0, size)]), 1, 0, set(), set()
    while free:
        number += 1
        assert number < 10_000, "this never ends"
        given_ = granted(free.popleft(), limit, child=number)
        free += [given_.child] if given_.child is not None else []
        one = given_.chunk
        inside = set(range(one.lo, one.hi))
        if trial_of(one.pending, one.blame) is Trial.CONDEMNED:
            buried |= inside
        elif inside & killers:
            deaths += 1
            free.append(replace(one, blame=one.blame + (trial_of(one.pending, one.blame) is Trial.ON_TRIAL)))
        else:
            done |= inside
    assert buried == killers
    assert done == set(range(size)) - killers
    assert deaths <= len(killers) * (SUSPECT + math.ceil(math.log2(size)) + BLAME)


@pytest.mark.promise("A15")
@PROPERTY
@given(states=st.lists(STATES, min_size=1, max_size=12), data=st.data())
def test_one_item_of_a_suspect_stands_alone_after_two_grants_at_most(states: list[State], data: st.DataObject) -> None:
    wanted = data.draw(st.integers(0, len(states) - 1))
    states[wanted] = PENDING
    settled = Counter(state for state in states if state is not PENDING)
    one = replace(
        chunk(0, len(states), blame=SUSPECT, progressed=False),
        counts=Counts(done=settled[DONE], skipped=settled[SKIPPED], dead=settled[DEAD], cancelled=settled[CANCELLED]),
    )
    only = replace(want(1), only=ItemNo(wanted))
    for _ in range(2):
        inside = states[one.lo : one.hi]
        given_ = grant(one, only, GRANT, now=NOW, states=inside.copy)
        if wanted < given_.chunk.hi:
            break
        assert given_.child is not None
        one = given_.child
    mine = [n for n in range(given_.chunk.lo, given_.chunk.hi) if states[n] is PENDING]
    assert (mine, trial_of(given_.chunk.pending, given_.chunk.blame)) == ([wanted], Trial.ON_TRIAL)
