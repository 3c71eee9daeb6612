"""Which items are stuck and in which way, and what becomes of one when somebody decides.

An orphan is pending, waits for nothing, and made no progress for longer than the grace period; and either it was begun
and dropped, which is to say that its chunk was claimed since it last made progress and nobody alive holds it, or
nothing at all was written in its batch for that long. So an item in line behind others is not an orphan while anybody
works on its batch. In a cancelled batch nothing takes an item any more, so there it is one at once. A dead letter is
never an orphan, but is shown with them when nobody answered it for longer than its age limit: all three wait for a
person.
"""

from enum import StrEnum
from typing import assert_never

import msgspec

from holdfast.core.canonical import storable
from holdfast.core.limits import REQUEUES
from holdfast.core.model import START, Chunk, Course, Place, State
from holdfast.core.states import Transition, move


class Kind(StrEnum):
    """In which way an item is stuck."""

    STUCK = "stuck"
    """No progress: nobody works on it, or its owner hangs."""
    STRANDED = "stranded"
    """In flight or pending in a batch that was cancelled."""
    UNANSWERED = "unanswered"
    """A dead letter that is open past its age limit."""


class Strategy(StrEnum):
    """What can be done about an orphan."""

    REQUEUE = "requeue"
    FAIL = "fail"
    REVIEW = "review"


ORPHANED = "orphaned"
REVIEW = "review"
REQUEUED_TOO_OFTEN = "requeued_too_often"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about an item when it is judged."""

    state: State
    course: Course = Course.OPEN
    progressed_at: float
    """When its chunk last made progress; of a dead letter, when it was buried."""
    due: float = 0.0
    """Until when it waits."""
    was_claimed: bool = False
    """Whether its chunk was claimed since it last made progress."""
    is_held: bool = False
    """Whether somebody who is alive holds its chunk."""
    written_at: float = 0.0
    """When anything was last written in its batch: a commit, a claim, an admission."""


def still_since(facts: Facts) -> float:
    """Return since when nothing happened that should have: to a dropped item its own progress, to one in line
    anything in its batch. A wait that is planned is not standing still."""
    own = max(facts.progressed_at, facts.due)
    return own if facts.was_claimed and not facts.is_held else max(own, facts.written_at)


def begun(chunk: Chunk, place: Place) -> bool:
    """Return whether anybody ever took the item: its chunk has a chain of its own, or it left the start. The fence
    does not tell, because a part that is cut off inherits it."""
    return chunk.seq > 0 or place != START


def judge(facts: Facts, *, now: float, grace: float, dead_after: float) -> Kind | None:
    """In which way an item is stuck, or None. At exactly the bound it is not, yet."""
    if facts.state is State.DEAD:
        return Kind.UNANSWERED if now - facts.progressed_at > dead_after else None
    if facts.state is not State.PENDING:
        return None
    if facts.course is Course.CANCELLED:
        return Kind.STRANDED
    return Kind.STUCK if now - still_since(facts) > grace else None


def resolve(place: Place, strategy: Strategy, *, stages: int, reason: str, course: Course = Course.OPEN) -> Place | str:
    """Where an orphan stands once it is resolved; as text, why it cannot be in this way."""
    match strategy:
        case Strategy.REQUEUE if course is Course.CANCELLED:
            return "its batch was cancelled, so nothing would take it: fail it, or send it to review"
        case Strategy.REQUEUE:
            return requeued(place, stages, reason=reason)
        case Strategy.FAIL:
            return move(place, Transition.BURY, stages=stages, code=ORPHANED, reason=storable(reason))
        case Strategy.REVIEW:
            return move(place, Transition.BURY, stages=stages, code=REVIEW, reason=storable(reason))
        case _:
            assert_never(strategy)


def requeued(place: Place, stages: int, *, reason: str) -> Place:
    """On its way again from its checkpoint; when that led nowhere too often, buried."""
    if place.requeues >= REQUEUES:
        why = f"{storable(reason)} (re-enqueued {place.requeues} times without progress)"
        return move(place, Transition.BURY, stages=stages, code=REQUEUED_TOO_OFTEN, reason=why)
    return move(place, Transition.REQUEUE, stages=stages, due=0.0, wait=0.0, used=0.0, requeues=place.requeues + 1)
