"""Broken deadlines: runs that begin what will be cut off, end late, or forget what was at work."""

from typing import Any

from holdfast.runtime.engine.desk import Desk
from holdfast.runtime.engine.dispatch import StageQueue
from holdfast.runtime.engine.exchange import Deadline
from tests.model.mutants.register import Patch, answering, simulation, wrapped


@simulation
def what_the_deadline_will_cut_off_is_begun() -> Patch:
    return answering(StageQueue, "is_too_late", answer=False)


@simulation
def a_run_waits_for_what_is_in_flight_past_its_deadline() -> Patch:
    return answering(Deadline, "is_over", answer=False)


@simulation
def a_run_sleeps_past_its_deadline() -> Patch:
    return answering(Desk, "_time_left", answer=1e9)


@simulation
def what_was_at_work_when_a_run_ended_at_once_is_forgotten() -> Patch:
    def deaf(receive: Any, desk: Desk, events: Any) -> Any:
        return receive(desk, [] if desk.orders.at_once else events)

    return wrapped(Desk, "_receive", deaf)
