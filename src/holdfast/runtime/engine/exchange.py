"""The messages between the desk of a run and its driver: rules, orders and deadlines, effects, events.

The desk is a generator. It yields effects, and is sent the result of each.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from holdfast.core.limits import CLAIM_CHUNKS, LOAD_ITEMS
from holdfast.core.model import Checkpoint, Claim, ClaimRequest, Commit, Item, Kind, Lease
from holdfast.core.outcome import Outcome
from holdfast.core.settle import Reached, Settled
from holdfast.runtime.engine.hold import Hold, Saving

IDLE_SECONDS = 0.25
"""The longest wait before the next claim, when there was nothing to claim."""
LOOK_SECONDS = 0.5
"""How often the batch is read again."""


SHARE = 0.25
"""At most this share of the time is given up to end cleanly before the deadline."""
SHARE_IN_THE_DARK = 0.1
"""This share is given up if it is unknown how long items in flight take."""
LEAST_SECONDS = 0.05
"""With less time left than this, nothing begins that must end in time."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a run, a message or a tick must end: a moment on the monotonic clock, infinite if none was set."""

    at: float = math.inf
    began: float = 0.0
    """The moment at which the time began."""

    @staticmethod
    def of(at: float | None, moment: float) -> "Deadline":
        """Return the deadline of something that begins now."""
        return NEVER if at is None else Deadline(at, moment)

    def left(self, moment: float) -> float:
        return self.at - moment

    def is_over(self, moment: float) -> bool:
        return moment >= self.at

    def has_time(self, moment: float, seconds: float) -> bool:
        """Return whether something that takes so long would end before the deadline."""
        return self.at - moment > seconds

    def is_near(self, moment: float, slowest: float | None = None) -> bool:
        """Return whether to begin nothing more, so that items in flight end cleanly: `slowest` is how long they take,
        if known."""
        if self.at == math.inf:
            return False
        whole = self.at - self.began
        early = SHARE_IN_THE_DARK * whole if slowest is None else min(SHARE * whole, LEAST_SECONDS + 1.5 * slowest)
        return moment >= self.at - early

    def stops(self, moment: float, slowest: float | None = None) -> tuple[bool, bool]:
        """Return whether to begin nothing more, and whether to stop waiting for items in flight as well."""
        is_over = self.is_over(moment)
        return is_over or self.is_near(moment, slowest), is_over


NEVER = Deadline()
"""The deadline for work that has none."""


class Orders:
    """The orders to a run, as all of its threads see them: plain values."""

    def __init__(self, workers: int, deadline: Deadline = NEVER) -> None:
        self.workers = workers
        self.deadline = deadline
        self.ingested = False
        """The source was read to its end."""
        self.comparing = False
        """Stored payloads may be replaced by those of the source: the worker gives back what it holds, and claims
        nothing."""
        self.signalled = False
        """A signal asked the run to stop: a handler that fails from now on may have received the same signal."""
        self.stopping = False
        """Nothing new begins."""
        self.at_once = False
        """Items in flight are not waited for either."""
        self.crowded = True
        """Handlers on other threads need the interpreter all the time; assumed until it is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules that do not change during a run."""

    request: ClaimRequest
    """The claim request, except for its size."""
    name: str
    """The name of the batch."""
    grace: float
    """How long a lease is renewed without progress."""
    guarded: frozenset[int] = frozenset()
    """Stages whose inputs a verifier checks first."""
    page: int = LOAD_ITEMS
    chunks: int = CLAIM_CHUNKS
    """How many chunks may be claimed in one write."""
    idle_seconds: float = IDLE_SECONDS
    look_seconds: float = LOOK_SECONDS


class Portion:
    """Some items of one stage under one fence, on their way to their handlers and back."""

    __slots__ = (
        "at",
        "blame",
        "fence",
        "fresh",
        "hold",
        "inline",
        "is_condemned",
        "items",
        "kind",
        "left",
        "lone",
        "outcomes",
        "reached",
        "ready_at",
        "resumed",
        "slots",
        "stage",
    )

    def __init__(
        self, stage: int, items: list[Item], fence: int, ready_at: float, hold: Any, resumed: bool = False
    ) -> None:
        self.stage = stage
        self.items = items
        self.fence = fence
        self.ready_at = ready_at
        self.hold = hold
        self.resumed = resumed
        """Another grant may have tried the items: if their stage has an adopter, it is called first."""
        self.outcomes: list[Outcome] = []
        self.left = len(items)
        """The number of items that did not come back."""
        self.slots = 0
        """Slots it occupies until it is committed; none on the committing thread, which finishes it before it
        commits."""
        self.inline = False
        """It runs on the committing thread."""
        self.fresh = False
        """A process died under its one item, which gets a new process."""
        self.lone = False
        """Nothing else is in flight beside it: if that process dies as well, its item is to blame."""
        self.kind = Kind.ITEMS
        self.at: Checkpoint | None = None
        """The checkpoint of its item, if it has checkpoints."""
        self.blame = 0
        """How often a process died under this item."""
        self.is_condemned = False
        """Processes died too often under this item."""
        self.reached: Reached | None = None
        """How far its item had come at the end, if it has checkpoints: written with its outcome."""


# -- events: what happened ------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """Outcomes on their way back: of a whole portion or of a part."""

    work: Any
    outcomes: list[Outcome]
    unrun: Sequence[Item] = ()
    """Items that come back unchanged: they were not begun."""


class Broken(NamedTuple):
    """A process died under a portion, or an executor failed."""

    work: Any
    error: object
    suspect: Item | None = None
    """The item that probably caused the death; if None, it may be any item."""
    final: bool = False
    """The pool cannot be made again: it belongs to the user."""


class CheckpointReached(NamedTuple):
    """A handler reached a checkpoint of its partition, and waits until that is durable."""

    work: Any
    saving: Saving


class Question(NamedTuple):
    """Items of one hold whose inputs must be verified."""

    hold: Hold
    items: list[Item]
    known_lost: Mapping[int, str]
    """Why the input of some items is known to be gone."""


class InputAnswer(NamedTuple):
    """The answer to a question: items that may continue, and outcomes of those that may not."""

    question: Question
    cleared: list[Item]
    outcomes: list[Outcome]
    error: BaseException | None = None
    """The error if the store or the disk gave no answer."""


class Beat(NamedTuple):
    """The results of heartbeats: leases that were renewed, and leases that are lost."""

    kept: Sequence[Lease]
    lost: Sequence[Lease]


class Woken(NamedTuple):
    """There may be something to claim."""

    by_others: bool = False
    """Another process has written; it is not known what."""


Event = Answer | Broken | CheckpointReached | InputAnswer | Beat | Woken


# -- effects: what is asked for -------------------------------------------------------------------------------------


class Wait(msgspec.Struct, frozen=True):
    """Wait for events, at most so long; the answer is a list of events."""

    seconds: float
    for_others: bool = False
    """There was nothing to claim, so a write by another process ends the wait as well."""


class CutOff(msgspec.Struct, frozen=True):
    """Give up running handlers; the answer is the resulting events."""


class Renew(msgspec.Struct, frozen=True):
    """Renew all leases at once; the answer is events."""


class Written(msgspec.Struct, frozen=True):
    """The commit of one hold."""

    hold: Hold
    settled: Settled
    commit: Commit


class Write(msgspec.Struct, frozen=True):
    """Write all commits in one transaction, each with its own guard; the answer is a receipt for each."""

    group: list[Written]


class AskFor(msgspec.Struct, frozen=True):
    """Claim; the answer is a claim, the reason why there is none, or None if the store gave no answer."""

    request: ClaimRequest


class Read(msgspec.Struct, frozen=True):
    """Read a page of items; the answer is the items, or None if the store gave no answer."""

    claim: Claim
    after: Any
    most: int


class ReadCheckpoints(msgspec.Struct, frozen=True):
    """Read how far the partitions of a claim have come; the answer is checkpoints."""

    claim: Claim


class Taken(msgspec.Struct, frozen=True):
    """A hold was made from a claim: its lease must be renewed from now on."""

    hold: Hold


class Begin(msgspec.Struct, frozen=True):
    """Run the items of a portion; the answer comes as an event, for an inline portion before this returns."""

    work: Any


class Inspect(msgspec.Struct, frozen=True):
    """Ask the verifiers; the answer comes as an event."""

    question: Question


class Reply(msgspec.Struct, frozen=True):
    """Tell handlers what became of their checkpoints."""

    savings: Sequence[Saving]
    landed: bool


class CameFurther(msgspec.Struct, frozen=True):
    """The number of rows of partitions that became durable."""

    rows: int


class Leave(msgspec.Struct, frozen=True):
    """A hold is over: it was released, or it was dropped for a reason."""

    hold: Hold
    why: str = ""


class Look(StrEnum):
    """Something to be read from the store; the answer is its value."""

    BATCH = "the batch, or None"
    CHUNKS = "its chunks, or None"
    BLAME = "whether any chunk carries blame"


class LookAt(msgspec.Struct, frozen=True):
    what: Look


class StopRun(msgspec.Struct, frozen=True):
    """Stop the run, for a reason or because of an error that is raised to its caller."""

    reason: str
    error: BaseException | None = None


class TellPause(msgspec.Struct, frozen=True):
    """A stage pauses because its breaker opened, or because the service asked for it."""

    stage: int
    message: str
    until: float | None = None
    """When the pause ends, if the breaker opened; an event is written then."""


class GiveBack(msgspec.Struct, frozen=True):
    """Begin nothing more: hand back items that were handed over and not begun."""


class Abandon(msgspec.Struct, frozen=True):
    """Stop waiting for items in flight."""


class TakeTurns(msgspec.Struct, frozen=True):
    """Whether the committing thread runs handlers itself, so that the reading of the source takes turns with it."""

    busy: bool


class Rest(msgspec.Struct, frozen=True):
    """Hold nothing while payloads are compared."""


Effect = (
    Wait | CutOff | Renew | Write | AskFor | Read | ReadCheckpoints | Taken | Begin | Inspect | Reply | CameFurther
    | Leave | LookAt | StopRun | TellPause | GiveBack | Abandon | TakeTurns | Rest
)  # fmt: skip
