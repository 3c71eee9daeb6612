"""Broken breakers: stages that do not pause, or not long enough, or at the cost of their items."""

from typing import Any
from unittest import mock

from holdfast.core import retry
from holdfast.core.retry import Circuit
from holdfast.runtime.engine.dispatch import StageBreaker
from tests.model.mutants.register import Patch, answering, simulation, wrapped


@simulation
def a_stage_that_pauses_begins_items_all_the_same() -> Patch:
    return answering(StageBreaker, "blocks", answer=False)


@simulation
def several_items_are_tried_after_a_pause() -> Patch:
    return wrapped(StageBreaker, "blocks", lambda blocks, breaker, now, _in_flight: blocks(breaker, now, 0))


@simulation
def a_failure_during_a_pause_costs_an_attempt() -> Patch:
    return wrapped(StageBreaker, "_defer", lambda _defer, _breaker, failed, _now: failed)


@simulation
def failures_in_a_row_are_not_counted() -> Patch:
    return wrapped(retry, "breaker_failed", lambda _failed, circuit, *_: circuit)


@simulation
def an_answer_from_before_a_pause_ends_it() -> Patch:
    return wrapped(retry, "breaker_answered", lambda _answered, circuit, _now: Circuit(waited=circuit.waited))


@simulation
def who_asks_to_be_left_alone_is_not() -> Patch:
    return answering(StageBreaker, "_was_left_alone", answer=True)


@simulation
def a_run_never_gives_a_stage_up() -> Patch:
    return mock.patch.object(StageBreaker, "is_hopeless", property(lambda _breaker: False))


@simulation
def a_pause_is_shorter_than_its_rule_says() -> Patch:
    def hasty(opened: Any, circuit: Circuit, pause: float, now: float) -> Circuit:
        return opened(circuit, pause / 2, now)  # type: ignore[no-any-return]

    return wrapped(retry, "_open", hasty)
