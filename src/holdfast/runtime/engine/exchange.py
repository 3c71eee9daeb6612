"""What the desk of a run and whoever drives it tell each other: rules, orders and deadlines, effects, events.

The desk is a generator. It yields effects, and is sent what came of each.
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
"""The longest wait before looking again for work that others may have left."""
LOOK_SECONDS = 0.5
"""How often the batch is looked at."""


SHARE = 0.25
"""At most this share of all the time is given up to end cleanly before the deadline."""
SHARE_IN_THE_DARK = 0.1
"""This share of it, where nobody knows how long what is in flight takes."""
LEAST_SECONDS = 0.05
"""With less time than this left, nothing is begun that has to end in time."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a run, a message or a tick has to come to its end: a moment on the monotonic clock, infinitely far away
    where nobody set one."""

    at: float = math.inf
    began: float = 0.0
    """Since when there was time."""

    @staticmethod
    def of(at: float | None, moment: float) -> "Deadline":
        """Return the deadline of something that begins now."""
        return NEVER if at is None else Deadline(at, moment)

    def left(self, moment: float) -> float:
        return self.at - moment

    def is_over(self, moment: float) -> bool:
        return moment >= self.at

    def has_time(self, moment: float, seconds: float) -> bool:
        """Return whether something that takes so long would end before it."""
        return self.at - moment > seconds

    def is_near(self, moment: float, slowest: float | None = None) -> bool:
        """Return whether to begin nothing more, so that what is in flight ends cleanly: `slowest` is what that takes,
        where it is known."""
        if self.at == math.inf:
            return False
        whole = self.at - self.began
        early = SHARE_IN_THE_DARK * whole if slowest is None else min(SHARE * whole, LEAST_SECONDS + 1.5 * slowest)
        return moment >= self.at - early

    def stops(self, moment: float, slowest: float | None = None) -> tuple[bool, bool]:
        """Return whether to begin nothing more, and whether not to wait for what is in flight either."""
        is_over = self.is_over(moment)
        return is_over or self.is_near(moment, slowest), is_over


NEVER = Deadline()
"""The deadline of what has none."""


class Orders:
    """What a run was told, as all of its threads see it: plain values."""

    def __init__(self, workers: int, deadline: Deadline = NEVER) -> None:
        self.workers = workers
        self.deadline = deadline
        self.ingested = False
        """The source was read to its end."""
        self.comparing = False
        """Stored payloads may be replaced by those of the source: the worker gives back what it holds, and claims
        nothing."""
        self.signalled = False
        """A signal told the run to stop: what fails from now on may have got the same signal."""
        self.stopping = False
        """Nothing new is begun."""
        self.at_once = False
        """Nor is what is in flight waited for."""
        self.crowded = True
        """Handlers on other threads need the interpreter all the time; taken for granted until they are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What does not change during a run."""

    request: ClaimRequest
    """What is asked for, but for how much of it."""
    name: str
    """Of the batch."""
    grace: float
    """How long a lease is renewed without progress."""
    guarded: frozenset[int] = frozenset()
    """Stages before which a verifier is asked."""
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
        """Another grant may have tried the items: where their stage has an adopter, it is asked first."""
        self.outcomes: list[Outcome] = []
        self.left = len(items)
        """Items that did not come back."""
        self.slots = 0
        """Slots it holds until they are committed; none on the committing thread, which is done before it commits."""
        self.inline = False
        """It runs on the committing thread."""
        self.fresh = False
        """A process died under its one item, which gets a new one."""
        self.lone = False
        """And nothing else is in flight beside it: if that process dies, too, its item is to blame."""
        self.kind = Kind.ITEMS
        self.at: Checkpoint | None = None
        """Where its item stands, where it has checkpoints."""
        self.blame = 0
        """How often its process died under such an item."""
        self.is_condemned = False
        """And that was too often."""
        self.reached: Reached | None = None
        """How far its item had come at the end, where it has checkpoints: written with its outcome."""


# -- events: what happened ------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """Outcomes on their way back: of a whole portion or of a part of it."""

    work: Any
    outcomes: list[Outcome]
    unrun: Sequence[Item] = ()
    """Items that come back as they went: they were not begun."""


class Broken(NamedTuple):
    """A process died under a portion, or an executor failed."""

    work: Any
    error: object
    suspect: Item | None = None
    """What it died of, as far as can be told; without one, each of its items may be it."""
    final: bool = False
    """The pool cannot be made again: it was the user's."""


class CheckpointReached(NamedTuple):
    """A handler came to a checkpoint of its range, and waits until that is durable."""

    work: Any
    saving: Saving


class Question(NamedTuple):
    """Some items of one hold whose inputs are to be verified."""

    hold: Hold
    items: list[Item]
    known_lost: Mapping[int, str]
    """Why the input of some of them is known to be gone."""


class GateAnswer(NamedTuple):
    """What came of a question: items that may go on, and outcomes of those that may not."""

    question: Question
    cleared: list[Item]
    outcomes: list[Outcome]
    error: BaseException | None = None
    """The store, or the disk, gave no answer."""


class Beat(NamedTuple):
    """What heartbeats found: leases that were renewed, and those that are gone."""

    kept: Sequence[Lease]
    lost: Sequence[Lease]


class Woken(NamedTuple):
    """There may be something to claim."""

    by_others: bool = False
    """Somebody else has written: what that was is not known."""


Event = Answer | Broken | CheckpointReached | GateAnswer | Beat | Woken


# -- effects: what is asked for -------------------------------------------------------------------------------------


class Wait(msgspec.Struct, frozen=True):
    """Wait for events, at most so long; answered with a list of them."""

    seconds: float
    for_others: bool = False
    """There was nothing to claim, so it is also worth knowing that others have written."""


class CutOff(msgspec.Struct, frozen=True):
    """Give up what is at work; answered with the events that come of it."""


class Renew(msgspec.Struct, frozen=True):
    """Renew all leases at once; answered with events."""


class Written(msgspec.Struct, frozen=True):
    """What is written of one hold."""

    hold: Hold
    settled: Settled
    commit: Commit


class Write(msgspec.Struct, frozen=True):
    """Write, each commit with its own guard, all in one transaction; answered with a receipt for each."""

    group: list[Written]


class AskFor(msgspec.Struct, frozen=True):
    """Claim; answered with a claim, with why there is none, or with None where the store gave no answer."""

    request: ClaimRequest


class Read(msgspec.Struct, frozen=True):
    """Read a page of items; answered with them, or with None where the store gave no answer."""

    claim: Claim
    after: Any
    most: int


class ReadCheckpoints(msgspec.Struct, frozen=True):
    """Read how far the ranges of a claim have come; answered with checkpoints."""

    claim: Claim


class Taken(msgspec.Struct, frozen=True):
    """A hold was made of a claim: its lease is to be renewed from now on."""

    hold: Hold


class Begin(msgspec.Struct, frozen=True):
    """Run the items of a portion; an answer comes as an event, for a portion that is inline before this returns."""

    work: Any


class Inspect(msgspec.Struct, frozen=True):
    """Ask the verifiers; the answer comes as an event."""

    question: Question


class Reply(msgspec.Struct, frozen=True):
    """Tell handlers what became of their checkpoints."""

    savings: Sequence[Saving]
    landed: bool


class CameFurther(msgspec.Struct, frozen=True):
    """So many rows of ranges are durable."""

    rows: int


class Leave(msgspec.Struct, frozen=True):
    """A hold is over: it was released, or it was dropped for a reason."""

    hold: Hold
    why: str = ""


class Look(StrEnum):
    """Something that is looked at in the store; answered with what it is."""

    BATCH = "the batch, or None"
    CHUNKS = "its chunks, or None"
    BLAME = "whether any chunk carries blame"


class LookAt(msgspec.Struct, frozen=True):
    what: Look


class StopRun(msgspec.Struct, frozen=True):
    """The run stops, for a reason or because of an error that its caller shall see."""

    reason: str
    error: BaseException | None = None


class TellPause(msgspec.Struct, frozen=True):
    """A stage pauses, or waits because it was asked to."""

    stage: int
    message: str
    until: float | None = None
    """When the pause ends, where the breaker opened; others shall hear of that."""


class GiveBack(msgspec.Struct, frozen=True):
    """Nothing more is begun: hand back what was handed over and not begun."""


class Abandon(msgspec.Struct, frozen=True):
    """Nobody waits for what is in flight any more."""


class TakeTurns(msgspec.Struct, frozen=True):
    """Whether the committing thread runs handlers itself, and the reading of the source shall wait its turn."""

    busy: bool


class Rest(msgspec.Struct, frozen=True):
    """Nothing is held while payloads are compared."""


Effect = (
    Wait | CutOff | Renew | Write | AskFor | Read | ReadCheckpoints | Taken | Begin | Inspect | Reply | CameFurther
    | Leave | LookAt | StopRun | TellPause | GiveBack | Abandon | TakeTurns | Rest
)  # fmt: skip
