"""When a stage pauses, for how long, and when it goes on."""

import pytest

from holdfast.core.retry import (
    Circuit,
    Phase,
    Rule,
    breaker_answered,
    breaker_failed,
    breaker_is_hopeless,
    breaker_phase,
)
from tests.core.made import NOW

RULE = Rule(failures=3, pause=30.0, longest=100.0, in_all=200.0)


def opened(at: float = NOW) -> Circuit:
    circuit = Circuit()
    for n in range(3):
        circuit = breaker_failed(circuit, n, RULE, at)
    return circuit


def test_so_many_items_in_a_row_open_it_for_the_pause() -> None:
    circuit = breaker_failed(breaker_failed(Circuit(), 1, RULE, NOW), 2, RULE, NOW)
    assert breaker_phase(circuit, NOW) is Phase.CLOSED
    circuit = breaker_failed(circuit, 3, RULE, NOW)
    assert breaker_phase(circuit, NOW + 29.9) is Phase.OPEN
    assert breaker_phase(circuit, NOW + 30) is Phase.HALF_OPEN


def test_one_item_that_fails_again_and_again_is_no_storm() -> None:
    circuit = Circuit()
    for _ in range(100):
        circuit = breaker_failed(circuit, 7, RULE, NOW)
    assert breaker_phase(circuit, NOW) is Phase.CLOSED


def test_an_answer_begins_the_row_anew() -> None:
    circuit = breaker_failed(breaker_failed(Circuit(), 1, RULE, NOW), 2, RULE, NOW)
    circuit = breaker_failed(breaker_failed(breaker_answered(circuit, NOW), 3, RULE, NOW), 4, RULE, NOW)
    assert breaker_phase(circuit, NOW) is Phase.CLOSED


def test_an_answer_to_what_was_tried_closes_it() -> None:
    assert breaker_phase(breaker_answered(opened(), NOW + 30), NOW + 30) is Phase.CLOSED


def test_an_answer_that_comes_while_it_is_open_is_old_news() -> None:
    assert breaker_phase(breaker_answered(opened(), NOW + 1), NOW + 2) is Phase.OPEN


def test_failures_of_what_was_in_flight_do_not_prolong_the_pause() -> None:
    circuit = opened()
    assert breaker_failed(circuit, 9, RULE, NOW + 10) == circuit


def test_each_pause_is_twice_as_long_up_to_the_longest() -> None:
    circuit, now, pauses = opened(), NOW, []
    for n in range(4):
        pauses.append(circuit.pause)
        now = circuit.until
        circuit = breaker_failed(circuit, n, RULE, now)
    assert pauses == [30.0, 60.0, 100.0, 100.0]


@pytest.mark.promise("A15")
def test_all_pauses_together_are_bounded_even_if_it_is_answered_now_and_then() -> None:
    circuit, now, waited = Circuit(), NOW, 0.0
    while not breaker_is_hopeless(circuit, RULE):
        waited = circuit.waited
        if breaker_phase(circuit, now) is Phase.HALF_OPEN:
            circuit = breaker_answered(circuit, now)
        for n in range(3):
            circuit = breaker_failed(circuit, n, RULE, now)
        now = circuit.until
    assert 0 < waited <= 200.0
