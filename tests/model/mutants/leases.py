"""Broken leases: fences that do not grow, chunks taken too soon or never, blame on the wrong item, budgets overrun."""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core import acts, journal, lease, sections
from holdfast.core.model import BatchId, Chunk, ClaimRequest, Commit, Counts, Kind, Lease
from holdfast.stores.base import chunk_of
from holdfast.stores.memory import MemoryStore
from tests.model.mutants.register import Patch, answering, committing, conformance, simulation, wrapped

replace = msgspec.structs.replace


@simulation
def a_grant_does_not_raise_the_fence() -> Patch:
    def flat(grant: Any, chunk: Chunk, *args: Any, **named: Any) -> Any:
        given = grant(chunk, *args, **named)
        return replace(given, chunk=replace(given.chunk, fence=max(1, chunk.fence)))

    return wrapped(lease, "grant", flat)


@simulation
def a_release_lowers_the_fence() -> Patch:
    def forgetful(commit_one: Any, store: MemoryStore, commit: Commit) -> Any:
        receipt = commit_one(store, commit)
        if receipt.landed and commit.release:
            store._chunks[commit.chunk] = replace(store._chunks[commit.chunk], fence=0)
        return receipt

    return committing(forgetful)


@simulation
def a_lease_is_taken_before_it_expired() -> Patch:
    return wrapped(lease, "may_claim", lambda may, chunk, **named: may(chunk, **{**named, "owner_is_dead": True}))


@simulation
def an_expired_lease_is_never_taken() -> Patch:
    return wrapped(lease, "may_claim", lambda may, chunk, **named: may(replace(chunk, expires=1e18), **named))


@simulation
def a_renewal_changes_nothing() -> Patch:
    return wrapped(MemoryStore, "renew", lambda _renew, _store, leases, _seconds: list(leases))


@conformance
def a_process_takes_its_own_work_out_of_its_hands() -> Patch:
    def careless(claim: Any, store: MemoryStore, want: ClaimRequest) -> Any:
        return claim(store, replace(want, keeps=frozenset()))

    return wrapped(MemoryStore, "claim", careless)


@conformance
def a_renewal_does_not_look_at_the_fence() -> Patch:
    def blind(renew: Any, store: MemoryStore, leases: Sequence[Lease], seconds: float) -> Any:
        chunks = [store._chunks[held.chunk] for held in leases]
        current = [Lease(chunk=c.id, fence=c.fence, owner=c.owner or "", expires=0.0, grant=c.grant) for c in chunks]
        return renew(store, current, seconds)

    return wrapped(MemoryStore, "renew", blind)


@conformance
def a_dead_owner_keeps_its_lease() -> Patch:
    return wrapped(lease, "may_claim", lambda may, chunk, **named: may(chunk, **{**named, "owner_is_dead": False}))


# -- cutting and blame --------------------------------------------------------------------------------------------


@simulation
def deaths_in_company_condemn_an_item() -> Patch:
    def blamed(_blamed: Any, chunk: Chunk) -> int:
        return 0 if chunk.progressed else chunk.blame + (chunk.owner is not None)

    return wrapped(lease, "blamed", blamed)


@simulation
def a_death_before_the_start_is_a_strike() -> Patch:
    def blamed(blamed: Any, chunk: Chunk) -> int:
        deaths = 0 if chunk.progressed else chunk.blame + (chunk.owner is not None)
        return deaths if chunk.pending == 1 else blamed(chunk)

    return wrapped(lease, "blamed", blamed)


def judging(right: lease.Trial, wrong: lease.Trial) -> Patch:
    """Takes one kind of trial for another."""

    def judged(trial_of: Any, *facts: int) -> lease.Trial:
        found: lease.Trial = trial_of(*facts)
        return wrong if found is right else found

    return wrapped(lease, "trial_of", judged)


@simulation
def a_suspect_is_started_without_a_word() -> Patch:
    return judging(lease.Trial.ON_TRIAL, lease.Trial.SUSPECT)


@simulation
def a_start_is_taken_for_progress() -> Patch:
    def generous(commit_one: Any, store: MemoryStore, commit: Commit) -> Any:
        receipt = commit_one(store, commit)
        if receipt.landed and commit.kind == journal.STARTED:
            store._chunks[commit.chunk] = replace(store._chunks[commit.chunk], progressed=True, blame=0)
        return receipt

    return committing(generous)


@simulation
def a_suspect_is_never_condemned() -> Patch:
    return judging(lease.Trial.CONDEMNED, lease.Trial.SUSPECT)


@simulation
def a_chunk_with_settled_items_is_never_cut() -> Patch:
    def whole(share: Any, chunk: Chunk, *args: Any, **named: Any) -> Any:
        return chunk.pending if chunk.counts.settled else share(chunk, *args, **named)

    return wrapped(lease, "share", whole)


@conformance
def a_suspect_is_handed_out_whole_after_each_death() -> Patch:
    def whole(share: Any, chunk: Chunk, want: ClaimRequest, **named: Any) -> Any:
        return share(replace(chunk, owner=None, blame=lease.blamed(chunk)), want, **named)

    return wrapped(lease, "share", whole)


@conformance
def what_carries_blame_is_claimed_ahead() -> Patch:
    def greedy(share: Any, chunk: Chunk, want: ClaimRequest, **named: Any) -> Any:
        return share(chunk, replace(want, at_once=None), **named)

    return wrapped(lease, "share", greedy)


@conformance
def lifting_blame_changes_nothing() -> Patch:
    return answering(acts, "_lifted", answer=[])


@conformance
def one_item_of_a_suspect_is_handed_out_with_its_neighbours() -> Patch:
    def whole(share: Any, chunk: Chunk, want: ClaimRequest, **named: Any) -> Any:
        return chunk.pending if want.only is not None else share(chunk, want, **named)

    return wrapped(lease, "share", whole)


@conformance
def settled_items_count_as_standing_before_the_one_that_is_wanted() -> Patch:
    def all_of_them(ahead: Any, chunk: Chunk, want: ClaimRequest, states: Any) -> Any:
        return ahead(replace(chunk, counts=Counts()), want, states)

    return wrapped(lease, "ahead", all_of_them)


@simulation
def a_child_does_not_link_its_parent() -> Patch:
    return wrapped(lease, "_child", lambda child, *args: replace(child(*args), head=journal.GENESIS))


@simulation
def a_child_does_not_take_its_totals_along() -> Patch:
    return wrapped(lease, "find_cut", lambda find, *args: replace(find(*args), tail=Counts()))


@simulation
def a_claim_tells_of_no_attempts() -> Patch:
    def silent(encode: Any, body: Any, *place: Any) -> Any:
        return encode(replace(body, snapshots=[]) if isinstance(body, journal.Claimed) else body, *place)

    return wrapped(sections, "encode", silent)


@conformance
def what_is_cut_off_a_chunk_forgets_its_kind() -> Patch:
    def forgetful(child: Any, *args: Any) -> Any:
        return replace(child(*args), kind=Kind.ITEMS)

    return wrapped(lease, "_child", forgetful)


@conformance
def a_claim_does_not_say_of_which_kind_it_is() -> Patch:
    return wrapped(lease.Grant, "claim", lambda claim, *args: replace(claim(*args), kind=Kind.ITEMS))


@conformance
def items_that_come_again_change_the_kind_of_their_chunk() -> Patch:
    def careless(add: Any, store: MemoryStore, batch: BatchId, items: Any, **named: Any) -> Any:
        answer = add(store, batch, items, **named)
        for n, _ in store.known(batch, items).values():
            chunk = chunk_of(store, batch, n)
            store._chunks[chunk.id] = replace(chunk, kind=named.get("kind", Kind.ITEMS))
        return answer

    return wrapped(MemoryStore, "add_items", careless)


# -- budgets ------------------------------------------------------------------------------------------------------


@simulation
def the_budget_of_the_batch_is_not_kept() -> Patch:
    return answering(lease, "affordable", answer=None)


@simulation
def what_others_set_aside_is_not_counted() -> Patch:
    return wrapped(lease, "affordable", lambda affordable, **named: affordable(**{**named, "reserved": 0}))


@conformance
def a_grant_sets_nothing_aside() -> Patch:
    def careless(grant: Any, *args: Any, **named: Any) -> Any:
        given = grant(*args, **named)
        return replace(given, chunk=replace(given.chunk, reserved=0))

    return wrapped(lease, "grant", careless)
