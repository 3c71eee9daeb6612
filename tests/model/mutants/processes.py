"""Broken care for processes that die: innocent items are blamed for them, or the guilty never is."""

from typing import Any
from unittest import mock

from holdfast.runtime.engine.desk import Desk
from holdfast.runtime.engine.dispatch import StageQueue
from holdfast.runtime.engine.exchange import Portion
from holdfast.runtime.engine.hold import Hold
from tests.model.mutants.register import Patch, answering, simulation, wrapped


@simulation
def who_is_accused_is_tried_beside_others() -> Patch:
    return answering(StageQueue, "_pool_is_idle", answer=True)


@simulation
def others_are_begun_beside_who_is_accused() -> Patch:
    return mock.patch.object(Hold, "is_accused", property(lambda _hold: False))


@simulation
def the_first_death_of_a_process_counts_against_its_item() -> Patch:
    def harsh(suspect: Any, hold: Hold, numbers: Any) -> None:
        numbers = list(numbers)
        suspect(hold, numbers)
        suspect(hold, numbers)

    return wrapped(Hold, "suspect", harsh)


@simulation
def a_process_that_died_accuses_nobody() -> Patch:
    return answering(Hold, "suspect", answer=None)


@simulation
def a_suspect_is_tried_in_an_old_process() -> Patch:
    def old(begin: Any, queue: StageQueue, work: Portion) -> None:
        work.fresh = work.lone
        begin(queue, work)

    return wrapped(StageQueue, "begin", old)


@simulation
def what_was_made_before_a_process_died_is_not_looked_for() -> Patch:
    def blind(broken: Any, desk: Desk, event: Any) -> Any:
        adopting, desk._adopting = desk._adopting, frozenset()
        yield from broken(desk, event)
        desk._adopting = adopting

    return wrapped(Desk, "_broken", blind)


@simulation
def suspects_travel_with_others() -> Patch:
    def loose(how_many: Any, queue: StageQueue, hold: Hold, inline: bool) -> int:
        before, hold.suspects = hold.suspects, {}
        many = how_many(queue, hold, inline)
        hold.suspects = before
        return many if hold.suspects else int(many)

    return wrapped(StageQueue, "how_many", loose)


@simulation
def what_a_process_finished_before_it_died_is_forgotten() -> Patch:
    def forgetful(broken: Any, desk: Desk, event: Any) -> Any:
        event.work.outcomes.clear()
        return broken(desk, event)

    return wrapped(Desk, "_broken", forgetful)
