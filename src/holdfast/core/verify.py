"""What must hold before an item continues, and where it goes back to if it does not.

Each output that is looked at gets a verdict: it holds, it does not hold, or nothing can be said about it. What cannot
be said never sends an item back: a check that raised, hung or could not read says nothing about the output.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from holdfast.core.limits import REWINDS, UNDO_ITEMS
from holdfast.core.model import Place, State
from holdfast.core.states import Transition, go_back


class Verdict(StrEnum):
    """What a look at an output says about it."""

    HOLDS = "holds"
    FAILS = "fails"
    UNKNOWN = "unknown"


class Seen(msgspec.Struct, frozen=True):
    """One look at the output of one stage."""

    stage: int
    verdict: Verdict
    why: str = ""
    error: BaseException | None = None
    """What a check raised, where it said nothing."""


class Stays(msgspec.Struct, frozen=True):
    """The item may resume from where it stands."""


class GoesBack(msgspec.Struct, frozen=True):
    """The item begins again at `stage`: what that stage rests on holds."""

    stage: int
    why: str


class Unclear(msgspec.Struct, frozen=True):
    """Nothing can be decided before this one is known."""

    seen: Seen


Decision = Stays | GoesBack | Unclear


def next_to_ask(at: int, seen: Sequence[Seen]) -> int | None:
    """Which output is looked at next for an item that stands at stage `at`: from there downward, as long as they do
    not hold."""
    if not seen:
        return at - 1 if at > 0 else None
    last = seen[-1]
    return last.stage - 1 if last.verdict is Verdict.FAILS and last.stage > 0 else None


def decide(seen: Sequence[Seen]) -> Decision:
    """Where an item belongs. It goes back to the lowest stage whose output does not hold, so that everything that does
    not hold is made again, provided that what this stage rests on is known to hold."""
    verdicts = {each.stage: each for each in seen}
    failed = [each for each in seen if each.verdict is Verdict.FAILS]
    if not failed:
        unknown = [each for each in seen if each.verdict is Verdict.UNKNOWN]
        return Unclear(max(unknown, key=lambda each: each.stage)) if unknown else Stays()
    lowest = min(failed, key=lambda each: each.stage)
    below = verdicts.get(lowest.stage - 1)
    if below is not None and below.verdict is Verdict.UNKNOWN:
        return Unclear(below)
    return GoesBack(lowest.stage, lowest.why)


def rewound(place: Place, stage: int, stages: int, *, reason: str) -> Place:
    """The place of an item that goes back; one that went back too often is buried instead."""
    after = go_back(place, Transition.REWIND, stage, stages, reason=reason)
    if place.rewinds < REWINDS:
        return after
    why = f"{reason} (rewound {place.rewinds} times)"
    return msgspec.structs.replace(after, state=State.DEAD, code="rewound_too_often", reason=why, rewinds=place.rewinds)


def may_have_been_tried(place: Place, *, resumed: bool) -> bool:
    """Whether somebody may have run the handler for this item at this stage before: under another grant, in an earlier
    attempt, or in an earlier epoch."""
    return resumed or place.attempt > 0 or place.epoch > 0


def is_too_much(bad: int, looked_at: int, allowed: float) -> bool:
    """Whether so many items would be undone that a wrong folder or database is likelier than damage. `allowed` is a
    number of items, or a share of those looked at; a share is not judged below `limits.UNDO_ITEMS`."""
    if isinstance(allowed, int):
        return bad > allowed
    return bad >= UNDO_ITEMS and bad > allowed * looked_at


def is_enough_to_judge(looked_at: int, allowed: float) -> bool:
    """Whether a look at so many items suffices to undo the bad ones before the others were looked at."""
    return isinstance(allowed, int) or allowed * looked_at >= UNDO_ITEMS or allowed >= 1
