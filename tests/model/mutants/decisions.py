"""Broken decisions: what settles, waits, is buried, goes back, is admitted or changed by an operator."""

from collections.abc import Sequence
from typing import Any
from unittest import mock

import msgspec

from holdfast.core import acts, ingest, journal, retry, settle, states
from holdfast.core.model import Admitted, Chunk, ItemNo, ItemState, NewItem
from holdfast.core.states import Transition
from holdfast.runtime.engine.hold import Hold
from tests.model.mutants.register import Patch, answering, conformance, simulation, wrapped

replace = msgspec.structs.replace


def _moving(kind: Transition, **wrong: Any) -> Patch:
    """Settling with other facts after one kind of move; a function is given the place before."""

    def wrongly(move: Any, place: ItemState, taken: Transition, **named: Any) -> Any:
        after = move(place, taken, **named)
        if taken is not kind:
            return after
        return replace(after, **{name: value(place) for name, value in wrong.items()})

    return wrapped(settle, "move", wrongly)


def _deciding(**other: Any) -> Patch:
    """Retries decided under another policy."""

    def wrongly(decide: Any, place: ItemState, failed: Any, policy: retry.Policy, **named: Any) -> Any:
        return decide(place, failed, replace(policy, **other), **named)

    return wrapped(retry, "decide", wrongly)


# -- retries ------------------------------------------------------------------------------------------------------


@simulation
def attempts_are_not_counted() -> Patch:
    return _moving(Transition.RETRY, attempt=lambda place: place.attempt)


@simulation
def deferring_costs_an_attempt() -> Patch:
    return _moving(Transition.DEFER, attempt=lambda place: place.attempt + 1)


@simulation
def attempts_are_not_limited() -> Patch:
    return _deciding(attempts=10**9)


@simulation
def the_time_of_an_item_is_not_limited() -> Patch:
    return _deciding(within=1e9)


@simulation
def the_time_of_an_item_begins_anew_with_every_attempt() -> Patch:
    return _moving(Transition.RETRY, used=lambda _place: 0.0)


@simulation
def the_money_of_an_item_is_not_limited() -> Patch:
    return _deciding(money=None)


@simulation
def waits_fall_below_the_minimum() -> Patch:
    return wrapped(retry, "backoff", lambda backoff, *args: backoff(*args) * 0.5)


@simulation
def what_is_permanent_is_tried_again() -> Patch:
    def hopeful(decide: Any, place: ItemState, failed: Any, *args: Any, **named: Any) -> Any:
        return decide(place, replace(failed, transient=True), *args, **named)

    return wrapped(retry, "decide", hopeful)


@simulation
def a_waiting_item_is_run_before_it_is_due() -> Patch:
    return wrapped(
        Hold, "take_in", lambda take_in, hold, items, _now, moment, **named: take_in(hold, items, 1e18, moment, **named)
    )


# -- totals -------------------------------------------------------------------------------------------------------


def _tallying(name: str, wrong: Any) -> Patch:
    """Settling with another total after one kind of outcome: `wrong(tally before, tally after)` changes the latter."""

    def wrongly(original: Any, ledger: Any, *args: Any) -> None:
        before = dict(ledger.tally)
        original(ledger, *args)
        ledger.tally.update(wrong(before, ledger.tally))

    return wrapped(settle._Ledger, name, wrongly)


@simulation
def a_retry_changes_the_totals() -> Patch:
    return _tallying("_failed", lambda before, _after: {"dead": before["dead"] + 1})


@simulation
def a_skipped_item_is_not_counted() -> Patch:
    return _tallying("unfinished", lambda _before, _after: {"skipped": 0})


@simulation
def what_was_spent_is_counted_twice() -> Patch:
    return _tallying("_spend", lambda before, after: {"spent": 2 * after["spent"] - before["spent"]})


@simulation
def what_a_failed_attempt_cost_is_forgotten() -> Patch:
    return _tallying("unfinished", lambda before, _after: {"spent": before["spent"]})


@simulation
def what_was_spent_is_told_twice() -> Patch:
    def twice(spend: Any, ledger: Any, stage: int, spent: journal.Spend) -> None:
        spend(ledger, stage, spent)
        spend(ledger, stage, spent)

    return wrapped(settle._Ledger, "_spend", twice)


# -- positions ----------------------------------------------------------------------------------------------------


def _reaching(wrong: Any) -> Patch:
    """Checkpoints that lead elsewhere: `wrong(stage, stages)`."""

    def wrongly(checkpoint: Any, place: ItemState, reached: int, stages: int) -> Any:
        after = checkpoint(place, reached, stages)
        return after if reached == stages else replace(after, stage=wrong(after.stage, stages))

    return wrapped(settle, "checkpoint", wrongly)


@simulation
def a_checkpoint_jumps_over_a_stage() -> Patch:
    return _reaching(lambda stage, stages: min(stage + 1, stages - 1))


@simulation
def a_checkpoint_leads_back() -> Patch:
    return _reaching(lambda _stage, _stages: 0)


@simulation
def going_back_keeps_the_epoch() -> Patch:
    same = {
        transition: {to: replace(rule, epoch=states.Leads.SAME) for to, rule in ends.items()}
        for transition, ends in states.RULES.items()
    }
    return mock.patch.object(states, "RULES", same)


# -- operators and ingestion --------------------------------------------------------------------------------------


@simulation
def an_act_does_not_look_at_what_it_was_decided_for() -> Patch:
    return answering(acts, "_holds", answer=True)


@simulation
def an_act_does_not_look_at_the_stage() -> Patch:
    def loose(_holds: Any, change: Any, place: ItemState) -> bool:
        return bool((change.state, change.epoch) == (place.state, place.epoch))

    return wrapped(acts, "_holds", loose)


@simulation
def an_act_changes_what_is_in_flight() -> Patch:
    def rude(apply: Any, act: Any, chunk: Chunk, *args: Any) -> Any:
        return apply(act, replace(chunk, owner=None), *args)

    return wrapped(acts, "apply", rude)


@simulation
def seizing_does_not_raise_the_fence() -> Patch:
    def gentle(apply: Any, act: Any, chunk: Chunk, *args: Any) -> Any:
        return replace(apply(act, chunk, *args), fence=chunk.fence)

    return wrapped(acts, "apply", gentle)


@simulation
def a_known_key_is_admitted_again() -> Patch:
    def everything(_sort: Any, items: Sequence[NewItem], _known: Any, lo: int) -> Any:
        return list(items), Admitted(added=len(items), lo=ItemNo(lo))

    return wrapped(ingest, "sort_out", everything)


@conformance
def a_changed_payload_is_not_reported() -> Patch:
    def silent(sort: Any, *args: Any) -> Any:
        fresh, answer = sort(*args)
        return fresh, replace(answer, changed=())

    return wrapped(ingest, "sort_out", silent)
