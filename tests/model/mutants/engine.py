"""Broken engines: holds and desks that start, commit, keep or let go what they should not."""

from collections.abc import Generator
from typing import Any

from holdfast.runtime.engine import exchange as ex
from holdfast.runtime.engine.desk import Desk
from holdfast.runtime.engine.hold import Hold
from tests.model.mutants.register import Patch, answering, simulation, wrapped


@simulation
def a_commit_does_not_move_the_version_of_its_hold() -> Patch:
    return wrapped(Hold, "written", lambda written, hold, moment: None)


@simulation
def an_item_goes_on_before_its_checkpoint_is_durable() -> Patch:
    def hasty(settle: Any, hold: Hold, policies: Any, now: float) -> Any:
        settled = settle(hold, policies, now)
        hold.take_in(settled.onward, now, now, from_store=False)
        return settled

    return wrapped(Hold, "settle", hasty)


@simulation
def a_chunk_is_given_back_with_items_left() -> Patch:
    return wrapped(
        Hold, "commit", lambda commit, hold, *args, **named: commit(hold, *args, **named | {"release": True})
    )


@simulation
def a_refused_commit_is_no_reason_to_drop_its_hold() -> Patch:
    def stubborn(_drop: Any, _desk: Desk, _hold: Hold, _why: str) -> Generator[ex.Effect, Any, None]:
        yield from ()

    return wrapped(Desk, "_drop", stubborn)


@simulation
def what_a_process_holds_is_not_told_with_its_claims() -> Patch:
    return answering(Hold, "is_kept", answer=False)


@simulation
def an_item_is_begun_twice() -> Patch:
    def twice(take: Any, hold: Hold, stage: int, most: int) -> Any:
        at, items, resumed = take(hold, stage, most)
        for item in items if hold.running < 3 else ():
            hold.ready[stage].add(item, at)
        return at, items, resumed

    return wrapped(Hold, "take", twice)


@simulation
def what_waits_is_never_woken() -> Patch:
    return answering(Hold, "wake", answer=None)


@simulation
def an_item_on_trial_is_run_without_a_word() -> Patch:
    def silent(_note: Any, _desk: Desk, suspect: Hold) -> Generator[ex.Effect, Any, None]:
        suspect.on_trial = False
        yield from ()

    return wrapped(Desk, "_note_start", silent)


@simulation
def a_run_ends_while_it_holds_something() -> Patch:
    def early(_let_go: Any, _desk: Desk) -> Generator[ex.Effect, Any, None]:
        yield from ()

    return wrapped(Desk, "release_all", early)
