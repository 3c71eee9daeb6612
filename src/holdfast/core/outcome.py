"""What happened to an item in one stage, as an executor reports it. Facts only: `settle` decides what follows."""

import msgspec

from holdfast.core.journal import Spend
from holdfast.core.model import Item


class Done(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The handler answered, and the answer is valid."""

    item: Item
    output: bytes
    digest: bytes
    queued: float
    seconds: float
    spend: Spend | None = None
    file: bytes | None = None
    """The record of the file that holds the output, where the stage has a sink."""
    adopted: bool = False
    """The output was found, not made."""


class Skipped(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The handler raised Skip."""

    item: Item
    why: str
    queued: float
    seconds: float
    spend: Spend | None = None


class Deferred(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The handler raised Defer: try again later, at no cost of an attempt."""

    item: Item
    wait: float
    why: str
    queued: float
    seconds: float
    spend: Spend | None = None
    trouble: bool = False
    """It was not the handler's wish: the output could not be written, and the run shall stop."""
    by_breaker: bool = False
    """Nor was it: its stage pauses."""
    excused: bool = False
    """Nor was it: the attempt failed for a reason that is not the item's, such as a run that was told to stop."""
    told: bool = False
    """The other side said how long to wait: that concerns the whole stage."""


class Failed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The attempt failed."""

    item: Item
    transient: bool
    code: str
    message: str
    draw: float
    """A random number in [0, 1) for the jitter, drawn where the failure was met."""
    queued: float
    seconds: float
    after: float | None = None
    """The least wait in seconds that the other side asked for."""
    trace: str = ""
    spend: Spend | None = None


class Lost(msgspec.Struct, frozen=True, tag=True, gc=False):
    """What the stage rests on is gone or damaged: the item goes back to the stage that made it."""

    item: Item
    to_stage: int
    why: str


Outcome = Done | Skipped | Deferred | Failed | Lost


def excuse(outcome: Outcome, why: str) -> Outcome:
    """Return a failure that costs its item nothing: no attempt, and no time. What was paid for it is kept."""
    if not isinstance(outcome, Failed):
        return outcome
    told = f"{why}: {outcome.code}: {outcome.message}"
    return Deferred(outcome.item, 0.0, told, outcome.queued, outcome.seconds, outcome.spend, excused=True)
