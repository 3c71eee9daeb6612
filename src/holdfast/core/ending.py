"""How a batch ended, derived from facts: its course, its end, what its items came to.

cancelled                     a person called it off
stopped                       its end came while there was work left, or items that were expected never came
complete with dead letters    every item is settled, some of them are dead
complete                      every item is settled, and none is dead
"""

from enum import StrEnum

from holdfast.core.model import Course

ENDED = "ended"
"""The code of items that were cancelled because the end of their batch had come."""
CANCELLED = "cancelled"
"""And of those whose batch was cancelled."""


class End(StrEnum):
    """The end of a batch."""

    COMPLETE = "complete"
    WITH_DEAD = "complete with dead letters"
    STOPPED = "stopped"
    CANCELLED = "cancelled"


def end_of(
    course: Course, *, over: bool, was_read: bool, pending: int, dead: int, cut_short: bool = False,
    short: bool = False,
) -> End | None:  # fmt: skip
    """The end of a batch, or None while it may still go on. `over`: its end has come; `was_read`: its source was read
    to its end, or it was closed; `cut_short`: items were cancelled because its end had come; `short`: it has fewer
    items than were expected."""
    if course is Course.CANCELLED:
        return End.CANCELLED
    if over and (pending or cut_short or not was_read):
        return End.STOPPED
    if pending or not was_read:
        return None
    if short:
        return End.STOPPED
    return End.WITH_DEAD if dead else End.COMPLETE
