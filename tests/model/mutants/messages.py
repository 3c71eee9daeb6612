"""Broken deliveries: messages that are run twice, too early or not to their end, or that keep what they claimed."""

from typing import Any

from holdfast.runtime.engine.driver import LoneHold
from holdfast.runtime.engine.handover import Handover
from tests.model.mutants.register import Patch, answering, simulation, wrapped


@simulation
def a_message_is_left_after_each_stage() -> Patch:
    def lazy(next_move: Any, each: Handover, *args: Any) -> Any:
        return next_move(each, *args)._replace(goes_on=False)

    return wrapped(Handover, "next_move", lazy)


@simulation
def a_message_goes_on_though_its_commit_gave_the_chunk_back() -> Patch:
    def eager(write: Any, hold: LoneHold, settled: Any, **named: Any) -> Any:
        return write(hold, settled, **named | {"release": True})

    return wrapped(LoneHold, "write", eager)


@simulation
def a_message_runs_a_suspect_without_a_word() -> Patch:
    return answering(LoneHold, "start", answer=None)


@simulation
def a_refused_commit_of_a_message_is_no_reason_to_stop() -> Patch:
    return wrapped(LoneHold, "lose", lambda _lose, _hold: None)


@simulation
def a_message_works_on_with_the_version_it_was_given() -> Patch:
    def stale(put: Any, hold: LoneHold, written: Any) -> Any:
        before = hold.hold.version
        receipt = put(hold, written)
        hold.hold.version = before
        return receipt

    return wrapped(LoneHold, "put", stale)
