"""What a run would do with an item, and why: decided from the same facts as the run itself decides from."""

from enum import StrEnum

import msgspec

from holdfast.core import changes, wait
from holdfast.core.limits import REWINDS
from holdfast.core.model import NewItem, Place, State


class Fate(StrEnum):
    """What a run would do with an item."""

    RUN = "run"
    REWIND = "rewind"
    ADOPT = "adopt"
    BURY = "bury"
    SKIP = "skip"
    REFUSE = "refuse"


class Reason(StrEnum):
    """Why."""

    NEW = "new"
    CHANGED_INPUT = "changed input"
    CHANGED_CODE = "changed code"
    FAILED_VERIFICATION = "failed verification"
    REDRIVEN = "redriven"
    SENT_BACK = "sent back"
    WAITING = "waiting"
    RETRY = "to be tried again"
    PENDING = "pending"
    STAGED = "its output waits"
    FOUND = "found by its adopter"
    INVALID = "invalid"
    TOO_OFTEN = "rewound too often"
    RUNNING = "running elsewhere"
    DONE = "done"
    SKIPPED = "skipped"
    DEAD = "dead"
    CANCELLED = "cancelled"


class Outlook(msgspec.Struct, frozen=True):
    """What would become of an item: from which stage on, and why."""

    fate: Fate
    stage: int
    reason: Reason


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a stored item."""

    place: Place
    now: float
    rerun: int | None = None
    """The stage from which on everything is run again, because it changed."""
    bad: int | None = None
    """The first stage whose output does not hold."""
    held: bool = False
    """Somebody else is at work on it."""
    staged: bool = False
    """An output of its next stage was made, and never recorded."""
    found: bool = False
    """The adopter of its next stage finds an output that counts."""
    redriven: bool = False


SETTLED = {
    State.DONE: Reason.DONE,
    State.SKIPPED: Reason.SKIPPED,
    State.DEAD: Reason.DEAD,
    State.CANCELLED: Reason.CANCELLED,
}


def begins_at(place: Place, rerun: int | None) -> int:
    """The stage at which an item would stand before anything is verified."""
    return rerun if rerun is not None and changes.is_affected(place, rerun) else place.stage


def outlook(facts: Facts) -> Outlook:
    """What a run would do with a stored item."""
    place = facts.place
    back = facts.rerun is not None and changes.is_affected(place, facts.rerun)
    if facts.held and place.state is State.PENDING and not back:
        return Outlook(Fate.SKIP, place.stage, Reason.RUNNING)
    if facts.bad is not None:
        if place.rewinds >= REWINDS and not back:
            return Outlook(Fate.BURY, facts.bad, Reason.TOO_OFTEN)
        return Outlook(Fate.REWIND, facts.bad, Reason.FAILED_VERIFICATION)
    if back:
        return Outlook(Fate.RUN, begins_at(place, facts.rerun), Reason.CHANGED_CODE)
    if place.state is not State.PENDING:
        return Outlook(Fate.SKIP, place.stage, SETTLED[place.state])
    if facts.staged:
        return Outlook(Fate.ADOPT, place.stage, Reason.STAGED)
    if facts.found:
        return Outlook(Fate.ADOPT, place.stage, Reason.FOUND)
    return Outlook(Fate.RUN, place.stage, _why_pending(facts))


def outlook_of_new(item: NewItem) -> Outlook:
    """What a run would do with an item whose key it does not know."""
    if item.place.state is State.DEAD:
        return Outlook(Fate.BURY, 0, Reason.INVALID)
    return Outlook(Fate.RUN, 0, Reason.NEW)


def outlook_of_changed(item: NewItem, before: Outlook, changed: str) -> Outlook:
    """What a run would do with a known item that comes with another payload."""
    if changed == "keep":
        return before
    if changed == "refuse":
        return Outlook(Fate.REFUSE, 0, Reason.CHANGED_INPUT)
    if before.reason is Reason.DEAD:
        return before
    if item.place.state is State.DEAD:
        return Outlook(Fate.BURY, 0, Reason.INVALID)
    return Outlook(Fate.RUN, 0, Reason.CHANGED_INPUT)


def _why_pending(facts: Facts) -> Reason:
    place = facts.place
    if not wait.is_over(place.due, place.wait, facts.now):
        return Reason.WAITING
    if place.attempt:
        return Reason.RETRY
    if facts.redriven:
        return Reason.REDRIVEN
    return Reason.SENT_BACK if place.epoch and place.reason else Reason.PENDING
