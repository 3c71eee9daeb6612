"""Broken slices: handlers on the thread of a run that keep it, are run twice, or whose items are forgotten."""

from typing import Any
from unittest import mock

from holdfast.core.model import Item
from holdfast.runtime.engine import desk
from holdfast.runtime.engine.assignment import Assignment
from holdfast.runtime.engine.dispatch import StageQueue
from holdfast.runtime.engine.exchange import Portion
from holdfast.runtime.engine.hold import Hold
from tests.model.mutants.register import Patch, simulation, wrapped


@simulation
def a_slice_that_was_split_is_answered_as_a_whole() -> Patch:
    return mock.patch.object(Assignment, "owed", property(lambda work: (0, len(work.items))))


@simulation
def what_was_not_begun_of_a_slice_is_forgotten() -> Patch:
    def forgetful(put_back: Any, hold: Hold, stage: int, items: list[Item], at: float, *, resumed: bool) -> None:
        put_back(hold, stage, items[1:], at, resumed=resumed)

    return wrapped(Hold, "put_back", forgetful)


@simulation
def a_slow_item_is_no_surprise() -> Patch:
    return wrapped(StageQueue, "surprise", lambda _surprise, queue, work: queue.occupy(work, 1))


@simulation
def a_slow_item_has_no_slot() -> Patch:
    def free(surprise: Any, queue: StageQueue, work: Portion) -> None:
        surprise(queue, work)
        queue.occupy(work, -1)

    return wrapped(StageQueue, "surprise", free)


@simulation
def a_run_does_not_come_to_its_commits_for_quick_handlers() -> Patch:
    return mock.patch.object(desk, "INLINE_SECONDS", 1e9)


@simulation
def a_suspect_is_run_on_the_thread_of_the_run() -> Patch:
    return wrapped(StageQueue, "inline", lambda _inline, queue, _hold: queue.is_inline)
