"""Broken endings: batches that go on though they were paused or cancelled, empty seals, events without facts."""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core import course
from holdfast.core.model import Batch, BatchId, BatchMode, Commit, DeadLimit
from holdfast.stores.base import has_landed
from holdfast.stores.memory import MemoryStore
from tests.model.mutants.register import Patch, answering, committing, conformance, simulation, wrapped

replace = msgspec.structs.replace


def _as_if(name: str, **facts: Any) -> Patch:
    """A verb that takes every batch for another one while it is at work."""

    def mistaken(verb: Any, store: MemoryStore, *args: Any, **named: Any) -> Any:
        rows = dict(store._batches)
        store._batches.update({number: replace(row, **facts) for number, row in rows.items()})
        try:
            return verb(store, *args, **named)
        finally:
            for number, row in rows.items():
                store._batches[number] = replace(store._batches[number], **{fact: getattr(row, fact) for fact in facts})

    return wrapped(MemoryStore, name, mistaken)


# -- paused and cancelled -----------------------------------------------------------------------------------------


@simulation
def a_paused_batch_is_worked_on() -> Patch:
    return _as_if("claim", course=BatchMode.OPEN)


@simulation
def a_cancelled_batch_takes_items() -> Patch:
    return _as_if("add_items", course=BatchMode.OPEN)


@simulation
def a_cancelled_batch_goes_on() -> Patch:
    def lenient(steer: Any, batch: Batch, *args: Any, **named: Any) -> Any:
        return steer(replace(batch, course=BatchMode.PAUSED), *args, **named)

    return wrapped(course, "steer", lenient)


@simulation
def steering_leaves_no_entry() -> Patch:
    return _silent("steered")


def _silent(*kinds: str) -> Patch:
    def silent(link: Any, store: MemoryStore, batch: BatchId, kind: str, *rest: Any) -> Any:
        return link(store, batch, kind, *rest) if kind not in kinds else b""

    return wrapped(MemoryStore, "_link_batch", silent)


@conformance
def an_end_is_noted_of_a_batch_that_has_changed() -> Patch:
    return answering(course, "check_unchanged", answer=None)


@conformance
def an_end_is_noted_though_more_items_are_expected() -> Patch:
    def narrow(basis: Any, batch: Batch, chunks: Any) -> Any:
        return basis(replace(batch, expected=None), chunks)

    return wrapped(course, "basis", narrow)


# -- seals --------------------------------------------------------------------------------------------------------


@simulation
def a_batch_is_sealed_with_pending_items() -> Patch:
    return answering(course, "obstacle", answer=None)


@simulation
def a_batch_is_sealed_before_its_source_ended() -> Patch:
    def hasty(obstacle: Any, batch: Batch, *rest: Any, **at: Any) -> Any:
        return obstacle(replace(batch, ingested_at=1.0), *rest, **at)

    return wrapped(course, "obstacle", hasty)


@simulation
def a_commit_is_taken_after_the_seal() -> Patch:
    return _as_if("commit", sealed_at=None)


@simulation
def an_act_is_taken_after_the_seal() -> Patch:
    return _as_if("act", sealed_at=None)


@simulation
def items_are_taken_after_the_seal() -> Patch:
    return _as_if("add_items", sealed_at=None)


@simulation
def a_sealed_batch_is_steered() -> Patch:
    def lenient(steer: Any, batch: Batch, *args: Any, **named: Any) -> Any:
        return steer(replace(batch, sealed_at=None), *args, **named)

    return wrapped(course, "steer", lenient)


@simulation
def the_seal_does_not_cover_the_heads() -> Patch:
    return answering(course, "cover", answer=bytes(32))


@simulation
def the_seal_covers_the_first_chunk_only() -> Patch:
    return wrapped(course, "cover", lambda cover, chunks: cover(chunks[:1]))


@simulation
def a_seal_is_lifted_without_an_entry() -> Patch:
    return _silent("reopened")


# -- events -------------------------------------------------------------------------------------------------------


@simulation
def an_event_is_written_without_its_fact() -> Patch:
    def hasty(commit_one: Any, store: MemoryStore, commit: Commit) -> Any:
        receipt = commit_one(store, commit)
        if not receipt.landed:
            store._tell(commit.batch, commit.events)
        return receipt

    return committing(hasty)


@simulation
def an_event_is_written_again_when_its_commit_comes_again() -> Patch:
    def hasty(commit_one: Any, store: MemoryStore, commit: Commit) -> Any:
        if has_landed(store, commit):
            store._tell(commit.batch, commit.events)
        return commit_one(store, commit)

    return committing(hasty)


@simulation
def a_fact_has_no_event() -> Patch:
    def silent(commit_one: Any, store: MemoryStore, commit: Commit) -> Any:
        return commit_one(store, replace(commit, events=()))

    return committing(silent)


@simulation
def an_act_tells_of_items_that_it_left_alone() -> Patch:
    def loud(act_on: Any, store: MemoryStore, act: Any) -> Any:
        changed = act_on(store, replace(act, events=()))
        store._tell(act.batch, act.events)
        return changed

    return wrapped(MemoryStore, "act", loud)


@simulation
def a_seal_tells_nobody() -> Patch:
    return wrapped(
        MemoryStore, "seal", lambda seal, store, batch, **named: seal(store, batch, **{**named, "events": ()})
    )


@simulation
def a_receiver_goes_back() -> Patch:
    def forgetful(delivered: Any, store: MemoryStore, receiver: str, up_to: int = 0) -> Any:
        if up_to:
            store._delivered[receiver] = up_to
        return delivered(store, receiver)

    return wrapped(MemoryStore, "delivered", forgetful)


@simulation
def a_receiver_misses_what_came_meanwhile() -> Patch:
    def generous(delivered: Any, store: MemoryStore, receiver: str, up_to: int = 0) -> Any:
        return delivered(store, receiver, len(store._events) if up_to else 0)

    return wrapped(MemoryStore, "delivered", generous)


# -- what is tolerated --------------------------------------------------------------------------------------------


@simulation
def a_claim_does_not_judge_the_tolerance() -> Patch:
    return answering(course, "is_exceeded", answer=False)


@simulation
def one_dead_letter_more_than_tolerated_is_tolerated() -> Patch:
    return _judging(lambda tolerance, dead: (tolerance, dead - 1))


@simulation
def a_share_is_not_tolerated_or_not() -> Patch:
    return _judging(lambda tolerance, dead: (replace(tolerance, share=None), dead))


def _judging(other: Any) -> Patch:
    def wrongly(is_exceeded: Any, tolerance: DeadLimit | None, dead: int, batch: Batch) -> Any:
        judged: Sequence[Any] = other(tolerance, dead) if tolerance is not None else (None, dead)
        return is_exceeded(*judged, batch)

    return wrapped(course, "is_exceeded", wrongly)
