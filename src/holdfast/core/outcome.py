"""The outcome of one stage for an item, as an executor reports it. Facts only: `settle` decides what follows."""

import msgspec

from holdfast.core.journal import Spend
from holdfast.core.model import Item


class Done(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The handler returned a valid output."""

    item: Item
    output: bytes
    queued: float
    seconds: float
    spend: Spend | None = None
    file: bytes | None = None
    """Evidence of the file that holds the output, if the stage has a sink."""
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
    """The handler raised Defer: try again later, without counting an attempt."""

    item: Item
    wait: float
    why: str
    queued: float
    seconds: float
    spend: Spend | None = None
    trouble: bool = False
    """The handler did not ask for it: the output could not be written, and the run must stop."""
    by_breaker: bool = False
    """The handler did not ask for it: its stage is paused."""
    excused: bool = False
    """The handler did not ask for it: the attempt failed for a reason unrelated to the item, such as a stop signal."""
    told: bool = False
    """The service set the wait, so it applies to the whole stage."""


class Failed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The attempt failed."""

    item: Item
    transient: bool
    code: str
    message: str
    draw: float
    """A random number in [0, 1) for the jitter, drawn when the failure occurred."""
    queued: float
    seconds: float
    after: float | None = None
    """The minimum wait in seconds that the service asked for."""
    trace: str = ""
    spend: Spend | None = None


class Lost(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The input of the stage is missing or damaged: the item goes back to the stage that made it."""

    item: Item
    to_stage: int
    why: str


Outcome = Done | Skipped | Deferred | Failed | Lost


def excuse(outcome: Outcome, why: str) -> Outcome:
    """Return a failure as a deferral that costs its item no attempt and no time. Money spent on it is kept."""
    if not isinstance(outcome, Failed):
        return outcome
    told = f"{why}: {outcome.code}: {outcome.message}"
    return Deferred(outcome.item, 0.0, told, outcome.queued, outcome.seconds, outcome.spend, excused=True)
