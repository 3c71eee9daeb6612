"""How a batch ended, derived from facts: its course, its end, what its items came to; and the word that every screen
shows for it.

cancelled                     a person called it off
stopped                       its end came while there was work left, or items that were expected never came
complete with dead letters    every item is settled, some of them are dead
complete                      every item is settled, and none is dead
finished with findings        the same as either, but something does not agree, or could not be verified
empty                         its source gave nothing, and nobody said that this is fine: not an end
paused                        not an end: a person, the budget or a breaker keeps it from going on
over tolerance                not an end: more died than is tolerated
"""

from enum import StrEnum

from holdfast.core.model import Course

ENDED = "ended"
"""The code of items that were cancelled because the end of their batch had come."""
CANCELLED = "cancelled"
"""And of those whose batch was cancelled."""
EMPTY = "empty"
"""The word for a batch to which its source gave nothing, where nobody said that this is fine."""
FINDINGS = "finished with findings"
PAUSED = "paused"
OVER_TOLERANCE = "over tolerance"
HALTS = {"budget": PAUSED, "breaker": PAUSED, "tolerance": OVER_TOLERANCE}
"""The word for a batch whose last run ended for that reason: running again changes nothing by itself."""


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
    """Return the end of a batch, or None while it may continue. `over`: its end has come; `was_read`: its source was
    read to its end, or it was closed; `cut_short`: items were cancelled because its end had come; `short`: it has fewer
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


def word_of(
    end: End | None, *, empty: bool = False, findings: bool = False, paused: bool = False, halted: str = ""
) -> str:
    """Return one word for a batch that has ended, or that does not continue before somebody acts; nothing while it may
    continue as it is. `halted`: why its last run ended, where that is on record."""
    if end in (End.CANCELLED, End.STOPPED):
        return end
    if empty:
        return EMPTY
    if end is not None:
        return FINDINGS if findings else end
    return PAUSED if paused else HALTS.get(halted, "")
