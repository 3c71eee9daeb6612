"""Holdfast with one decision removed at a time. Each version must be caught, or the proofs prove nothing.

A mutant is a context manager that breaks the core, the memory store or the simulated worker in one place.
`catch` runs worlds of the simulator until one of them fails; `checks_failed` runs the suite for stores, for
what no worker can see. A mutant that is not caught is a hole in the tests.
"""

import contextlib
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from holdfast.core.errors import HoldfastError
from holdfast.core import acts, ingest, journal, lease, retry, settle, states
from holdfast.core.model import Admitted, Chunk, Commit, Counts, ItemNo, NewItem, Place
from holdfast.core.states import Step
from holdfast.stores.base import Receipt
from holdfast.stores.memory import MemoryStore
from holdfast.testing.simulator import simulate
from holdfast.testing.simulator.process import Process

replace = msgspec.structs.replace
Mutation = Callable[[], contextlib.AbstractContextManager[None]]

BY_SIMULATION: dict[str, Mutation] = {}
"""Mutants that the simulator catches."""
BY_CONFORMANCE: dict[str, Mutation] = {}
"""Mutants that only the suite for stores can see."""


CAUGHT = (AssertionError, HoldfastError)
"""How a broken version shows: by an oracle, an assertion or a refusal. Any other error is a bug of the mutant."""


class Catch(msgspec.Struct, frozen=True):
    """How a mutant was caught."""

    seeds: int
    """How many it took."""
    why: str


def catch(mutation: Mutation, limit: int, first: int = 0) -> Catch | None:
    """Simulate world after world until the mutant is caught; None when `limit` do not suffice."""
    with mutation():
        for count in range(limit):
            try:
                simulate(first + count)
            except CAUGHT as error:
                return Catch(count + 1, f"{type(error).__name__}: {error}")
    return None


def checks_failed(mutation: Mutation) -> list[str]:
    """The checks of the suite for stores that a mutant fails."""
    from holdfast.testing.conformance import Kit, checks  # noqa: PLC0415 - needs pytest, and only here

    failed = []
    with mutation():
        for check in checks(durable=False):
            with tempfile.TemporaryDirectory() as place:
                try:
                    check(Kit(lambda _, clock, is_dead: MemoryStore(clock=clock, is_dead=is_dead), Path(place)))
                except CAUGHT:
                    failed.append(check.__name__)
    return failed


def _mutant(register: dict[str, Mutation]) -> Callable[[Callable[[], Iterator[None]]], Mutation]:
    def add(mutation: Callable[[], Iterator[None]]) -> Mutation:
        made = contextmanager(mutation)
        register[mutation.__name__] = made
        return made

    return add


simulation, conformance = _mutant(BY_SIMULATION), _mutant(BY_CONFORMANCE)


def _wrapped(owner: Any, name: str, wrapper: Callable[..., Any]) -> Any:
    """Put `wrapper(original, …)` in the place of a function."""
    original = getattr(owner, name)
    return mock.patch.object(owner, name, lambda *args, **named: wrapper(original, *args, **named))


# -- commits ------------------------------------------------------------------------------------------------------


@simulation
def a_commit_is_taken_whatever_its_fence() -> Iterator[None]:
    def careless(commit_one: Any, store: MemoryStore, commit: Commit) -> Receipt:
        chunk = store._chunks[commit.chunk]
        return commit_one(store, replace(commit, fence=chunk.fence) if not store.landed(commit) else commit)

    with _wrapped(MemoryStore, "_commit_one", careless):
        yield


@simulation
def a_commit_is_taken_whatever_its_version() -> Iterator[None]:
    def careless(commit_one: Any, store: MemoryStore, commit: Commit) -> Receipt:
        return commit_one(store, replace(commit, version=store._chunks[commit.chunk].version))

    with _wrapped(MemoryStore, "_commit_one", careless):
        yield


@simulation
def a_commit_that_landed_is_not_remembered() -> Iterator[None]:
    with mock.patch.object(MemoryStore, "landed", lambda _store, _commit: False):
        yield


@simulation
def a_commit_does_not_say_what_it_released() -> Iterator[None]:
    def silent(link: Any, store: MemoryStore, chunk: Chunk, kind: str, *rest: Any) -> None:
        if kind != "released":
            link(store, chunk, kind, *rest)

    with _wrapped(MemoryStore, "_link_chunk", silent):
        yield


@simulation
def outputs_are_written_but_places_are_not() -> Iterator[None]:
    with _wrapped(
        MemoryStore, "_store", lambda store_, store, batch, outputs, _moves: store_(store, batch, outputs, ())
    ):
        yield


@simulation
def the_worker_goes_on_before_its_commit_is_written() -> Iterator[None]:
    def hasty(_write: Any, process: Process, commits: list[Commit]) -> Generator[float, None, list[Receipt]]:
        process.world.begin(lambda: process.world.store.commit(commits), process.world.chance() * 10)
        yield 0.001
        return [Receipt(landed=True)] * len(commits)

    with _wrapped(Process, "_write", hasty):
        yield


@simulation
def a_lost_reply_is_taken_for_success() -> Iterator[None]:
    def trusting(_write: Any, process: Process, commits: list[Commit]) -> Generator[float, None, list[Receipt]]:
        receipts = yield from process.wire.send(process.name, commits)
        process.shaken = process.shaken or receipts is None
        return [Receipt(landed=True)] * len(commits) if receipts is None else receipts

    with _wrapped(Process, "_write", trusting):
        yield


@simulation
def a_lost_reply_is_answered_by_committing_again_under_another_id() -> Iterator[None]:
    def stubborn(_write: Any, process: Process, commits: list[Commit]) -> Generator[float, None, list[Receipt]]:
        receipts = yield from process.wire.send(process.name, commits)
        if receipts is None:
            process.shaken = True
            chunks = {chunk.id: chunk for chunk in process.world.store.chunks(process.world.batch.id)}
            return process.world.store.commit(
                [replace(c, id=process.world.new_id(), version=chunks[c.chunk].version) for c in commits]
            )
        return receipts

    with _wrapped(Process, "_write", stubborn):
        yield


# -- leases -------------------------------------------------------------------------------------------------------


@simulation
def a_grant_does_not_raise_the_fence() -> Iterator[None]:
    def flat(grant: Any, chunk: Chunk, *args: Any, **named: Any) -> lease.Grant:
        given = grant(chunk, *args, **named)
        return replace(given, chunk=replace(given.chunk, fence=max(1, chunk.fence)))

    with _wrapped(lease, "grant", flat):
        yield


@simulation
def a_release_lowers_the_fence() -> Iterator[None]:
    def forgetful(commit_one: Any, store: MemoryStore, commit: Commit) -> Receipt:
        receipt = commit_one(store, commit)
        if receipt.landed and commit.release:
            store._chunks[commit.chunk] = replace(store._chunks[commit.chunk], fence=0)
        return receipt

    with _wrapped(MemoryStore, "_commit_one", forgetful):
        yield


@simulation
def a_lease_is_taken_before_it_expired() -> Iterator[None]:
    with _wrapped(lease, "may_claim", lambda may, chunk, **named: may(chunk, **{**named, "owner_is_dead": True})):
        yield


@simulation
def an_expired_lease_is_never_taken() -> Iterator[None]:
    with _wrapped(lease, "may_claim", lambda may, chunk, **named: may(replace(chunk, expires=1e18), **named)):
        yield


@simulation
def a_renewal_changes_nothing() -> Iterator[None]:
    with mock.patch.object(MemoryStore, "renew", lambda _store, leases, _seconds: list(leases)):
        yield


@conformance
def a_renewal_does_not_look_at_the_fence() -> Iterator[None]:
    def blind(renew: Any, store: MemoryStore, leases: Sequence[Any], seconds: float) -> Any:
        now = [
            replace(held, fence=store._chunks[held.chunk].fence, owner=store._chunks[held.chunk].owner or "")
            for held in leases
        ]
        return renew(store, now, seconds)

    with _wrapped(MemoryStore, "renew", blind):
        yield


@conformance
def a_dead_owner_keeps_its_lease() -> Iterator[None]:
    with _wrapped(lease, "may_claim", lambda may, chunk, **named: may(chunk, **{**named, "owner_is_dead": False})):
        yield


@conformance
def a_commit_is_no_heartbeat() -> Iterator[None]:
    def mute(commit_one: Any, store: MemoryStore, commit: Commit) -> Receipt:
        return commit_one(store, replace(commit, extend=0.0))

    with _wrapped(MemoryStore, "_commit_one", mute):
        yield


@conformance
def a_chunk_is_released_without_its_due_time() -> Iterator[None]:
    def at_once(commit_one: Any, store: MemoryStore, commit: Commit) -> Receipt:
        return commit_one(store, replace(commit, due=0.0))

    with _wrapped(MemoryStore, "_commit_one", at_once):
        yield


@simulation
def deaths_in_company_condemn_an_item() -> Iterator[None]:
    def blamed(chunk: Chunk) -> int:
        return 0 if chunk.progressed else chunk.blame + (chunk.owner is not None)

    with mock.patch.object(lease, "blamed", blamed):
        yield


@simulation
def a_suspect_is_never_condemned() -> Iterator[None]:
    with mock.patch.object(lease, "condemned", lambda _pending, _blame: False):
        yield


@simulation
def a_chunk_with_settled_items_is_never_cut() -> Iterator[None]:
    def whole(share: Any, chunk: Chunk, *args: Any, **named: Any) -> int:
        return chunk.pending if chunk.counts.settled else share(chunk, *args, **named)

    with _wrapped(lease, "share", whole):
        yield


@simulation
def a_child_does_not_link_its_parent() -> Iterator[None]:
    with _wrapped(lease, "_child", lambda child, *args: replace(child(*args), head=journal.GENESIS)):
        yield


@simulation
def a_child_does_not_take_its_totals_along() -> Iterator[None]:
    with _wrapped(lease, "find_cut", lambda find, *args: replace(find(*args), tail=Counts())):
        yield


@simulation
def a_claim_tells_of_no_attempts() -> Iterator[None]:
    def silent(encode: Any, body: Any) -> bytes:
        return encode(replace(body, snapshots=[]) if isinstance(body, journal.Claimed) else body)

    with _wrapped(journal, "encode_body", silent):
        yield


# -- money --------------------------------------------------------------------------------------------------------


@simulation
def the_budget_of_the_batch_is_not_kept() -> Iterator[None]:
    with mock.patch.object(lease, "affordable", lambda **_: None):
        yield


@simulation
def what_others_set_aside_is_not_counted() -> Iterator[None]:
    with _wrapped(lease, "affordable", lambda affordable, **named: affordable(**{**named, "reserved": 0})):
        yield


@simulation
def what_was_spent_is_counted_twice() -> Iterator[None]:
    def twice(spend: Any, ledger: Any, stage: int, spent: journal.Spend) -> None:
        spend(ledger, stage, spent)
        ledger.tally["spent"] += spent.usd

    with _wrapped(settle._Ledger, "_spend", twice):
        yield


@simulation
def what_a_failed_attempt_cost_is_forgotten() -> Iterator[None]:
    def forgetful(unfinished: Any, ledger: Any, outcome: Any) -> None:
        spent = dict(ledger.tally)["spent"]
        unfinished(ledger, outcome)
        ledger.tally["spent"] = spent

    with _wrapped(settle._Ledger, "unfinished", forgetful):
        yield


@simulation
def the_money_of_an_item_is_not_limited() -> Iterator[None]:
    with _wrapped(
        retry, "decide", lambda decide, p, f, policy, **named: decide(p, f, replace(policy, money=None), **named)
    ):
        yield


# -- retries ------------------------------------------------------------------------------------------------------


@simulation
def attempts_are_not_counted() -> Iterator[None]:
    def flat(move: Any, place: Place, step: Step, **named: Any) -> Place:
        return move(place, step, **{**named, "attempt": place.attempt} if step is Step.RETRY else named)

    with _wrapped(settle, "move", flat):
        yield


@simulation
def deferring_costs_an_attempt() -> Iterator[None]:
    def dear(move: Any, place: Place, step: Step, **named: Any) -> Place:
        return move(place, step, **{**named, "attempt": place.attempt + 1} if step is Step.DEFER else named)

    with _wrapped(settle, "move", dear):
        yield


@simulation
def attempts_are_not_limited() -> Iterator[None]:
    with _wrapped(
        retry, "decide", lambda decide, p, f, policy, **named: decide(p, f, replace(policy, attempts=10**9), **named)
    ):
        yield


@simulation
def the_time_of_an_item_is_not_limited() -> Iterator[None]:
    with _wrapped(
        retry, "decide", lambda decide, p, f, policy, **named: decide(p, f, replace(policy, within=1e9), **named)
    ):
        yield


@simulation
def the_time_of_an_item_begins_anew_with_every_attempt() -> Iterator[None]:
    def anew(move: Any, place: Place, step: Step, **named: Any) -> Place:
        return move(place, step, **{**named, "since": named["due"]} if step is Step.RETRY else named)

    with _wrapped(settle, "move", anew):
        yield


@simulation
def waits_fall_below_the_minimum() -> Iterator[None]:
    with _wrapped(retry, "backoff", lambda backoff, *args: backoff(*args) * 0.5):
        yield


@simulation
def what_is_permanent_is_tried_again() -> Iterator[None]:
    with _wrapped(
        retry, "decide", lambda decide, p, f, policy, **named: decide(p, replace(f, transient=True), policy, **named)
    ):
        yield


@simulation
def a_waiting_item_is_run_before_it_is_due() -> Iterator[None]:
    from holdfast.testing.simulator.process import Hand  # noqa: PLC0415 - patched here only

    with _wrapped(Hand, "take_in", lambda take_in, hand, items, _now: take_in(hand, items, 1e18)):
        yield


@simulation
def a_retry_changes_the_totals() -> Iterator[None]:
    def wrong(failed: Any, ledger: Any, *args: Any) -> None:
        dead = ledger.tally["dead"]
        failed(ledger, *args)
        ledger.tally["dead"] = dead + 1

    with _wrapped(settle._Ledger, "_failed", wrong):
        yield


@simulation
def a_skipped_item_is_not_counted() -> Iterator[None]:
    def forgetful(unfinished: Any, ledger: Any, outcome: Any) -> None:
        unfinished(ledger, outcome)
        ledger.tally["skipped"] = 0

    with _wrapped(settle._Ledger, "unfinished", forgetful):
        yield


# -- positions ----------------------------------------------------------------------------------------------------


@simulation
def a_checkpoint_jumps_over_a_stage() -> Iterator[None]:
    def far(checkpoint: Any, place: Place, reached: int, stages: int) -> Place:
        after = checkpoint(place, reached, stages)
        return replace(after, stage=after.stage + 1) if reached + 1 < stages else after

    with _wrapped(settle, "checkpoint", far):
        yield


@simulation
def a_checkpoint_leads_back() -> Iterator[None]:
    def back(checkpoint: Any, place: Place, reached: int, stages: int) -> Place:
        after = checkpoint(place, reached, stages)
        return replace(after, stage=0) if reached < stages else after

    with _wrapped(settle, "checkpoint", back):
        yield


@simulation
def going_back_keeps_the_epoch() -> Iterator[None]:
    with (
        mock.patch.object(states, "NEW_EPOCH", frozenset()),
        mock.patch.object(states, "_check_stage", lambda *_: None),
    ):
        yield


# -- operators and ingestion --------------------------------------------------------------------------------------


@simulation
def an_act_does_not_look_at_what_it_was_decided_for() -> Iterator[None]:
    with mock.patch.object(acts, "_holds", lambda _change, _place: True):
        yield


@simulation
def an_act_does_not_look_at_the_stage() -> Iterator[None]:
    with mock.patch.object(
        acts, "_holds", lambda change, place: (change.state, change.epoch) == (place.state, place.epoch)
    ):
        yield


@simulation
def an_act_changes_what_is_in_flight() -> Iterator[None]:
    def apply(original: Any, act: Any, chunk: Chunk, *args: Any) -> acts.Effect:
        return original(act, replace(chunk, owner=None), *args)

    with _wrapped(acts, "apply", apply):
        yield


@simulation
def seizing_does_not_raise_the_fence() -> Iterator[None]:
    def apply(original: Any, act: Any, chunk: Chunk, *args: Any) -> acts.Effect:
        return replace(original(act, chunk, *args), fence=chunk.fence)

    with _wrapped(acts, "apply", apply):
        yield


@simulation
def a_known_key_is_admitted_again() -> Iterator[None]:
    def everything(_sort: Any, items: Sequence[NewItem], _known: Any, lo: int) -> tuple[list[NewItem], Admitted]:
        return list(items), Admitted(added=len(items), lo=ItemNo(lo))

    with _wrapped(ingest, "sort_out", everything):
        yield


@conformance
def a_changed_payload_is_not_reported() -> Iterator[None]:
    def silent(sort: Any, *args: Any) -> tuple[list[NewItem], Admitted]:
        fresh, answer = sort(*args)
        return fresh, replace(answer, changed=())

    with _wrapped(ingest, "sort_out", silent):
        yield


MUTANTS: dict[str, Mutation] = {**BY_SIMULATION, **BY_CONFORMANCE}
