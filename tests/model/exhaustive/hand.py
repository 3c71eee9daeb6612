"""One worker as the search sees it: what it holds in memory, and what each thing that happens to it makes of that.

These are the rules of the runtime's worker, without threads and time: claim, load, run, settle, commit, wait for the
reply, and when none comes read back. A worker that is paused is one that does nothing for a while, so every pause and
every waking is among the orders in which things can happen.
"""

from enum import StrEnum

import msgspec

from holdfast.core import lease, settle
from holdfast.core.model import BatchId, ChunkId, Claim, Commit, Item, ItemNo, StoredItem
from holdfast.core.outcome import Done, Failed, Lost, Outcome, Skipped
from holdfast.core.settle import Holder
from holdfast.testing.clock import START
from holdfast.testing.replay import Violation
from tests.model.exhaustive.scope import Scope
from tests.model.exhaustive.shelf import LEASE, Raised

replace = msgspec.structs.replace


class Phase(StrEnum):
    """What a worker is about."""

    IDLE = "idle"
    GRANTED = "granted"
    HOLDING = "holding"
    WAITING = "waiting"
    UNSURE = "unsure"


class Hand(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker knows."""

    phase: Phase = Phase.IDLE
    chunk: ChunkId = ChunkId(0)
    overtaken: bool = False
    """Whether its chunk was granted or seized since. The worker does not know: this is for judging it."""
    behind: int = 0
    """Its fence is that much below the fence of its chunk; 1 stands for everything above."""
    version: int = 0
    lo: ItemNo = ItemNo(0)
    hi: ItemNo = ItemNo(0)
    pending: int = 0
    condemned: bool = False
    on_trial: bool = False
    """Its item is run only after it is durable that it starts."""
    ready: tuple[Item, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    letter: int = -1
    """The commit whose reply it waits for."""
    commit: Commit | None = None
    onward: tuple[Item, ...] = ()
    """What goes on once that commit is durable."""


IDLE = Hand()


def granted(claim: Claim) -> Hand:
    trial = lease.trial_of(claim.pending, claim.blame)
    return Hand(
        phase=Phase.GRANTED,
        chunk=claim.lease.chunk,
        lo=claim.lo,
        hi=claim.hi,
        version=claim.version,
        pending=claim.pending,
        condemned=trial is lease.Trial.CONDEMNED,
        on_trial=trial is lease.Trial.ON_TRIAL,
    )


def loaded(hand: Hand, items: tuple[Item, ...]) -> Hand:
    """An item that killed its process too often is not run again."""
    held = replace(hand, phase=Phase.HOLDING, lo=ItemNo(0), hi=ItemNo(0), pending=0, condemned=False)
    if hand.condemned:
        return replace(held, outcomes=tuple(outcome_of(item, "killed_process") for item in items))
    return replace(held, ready=items)


def ran(hand: Hand, fate: str) -> Hand:
    """The first item that is ready was run."""
    return replace(hand, ready=hand.ready[1:], outcomes=(*hand.outcomes, outcome_of(hand.ready[0], fate)))


def outcome_of(item: Item, fate: str) -> Outcome:
    if fate == "done":
        output = item.input + b"|%d" % item.place.stage
        return Done(item, output, 0.0, 0.0)
    if fate == "skip":
        return Skipped(item, "blank", 0.0, 0.0)
    if fate == "lost":
        return Lost(item, item.place.stage - 1, "its input is gone")
    return Failed(item, fate == "transient", fate, "no", 0.0, 0.0, 0.0)


def may_run(hand: Hand) -> bool:
    return bool(hand.ready) and not hand.on_trial


def may_send(hand: Hand, scope: Scope) -> bool:
    """Whether it has something to commit: outcomes, the start of an item on trial, or that nothing is left."""
    return hand.phase is Phase.HOLDING and bool(hand.outcomes or hand.on_trial or not hand.ready or scope.lets_go)


def sent(hand: Hand, letter: int, scope: Scope) -> tuple[Hand, Commit]:
    """Everything that is finished goes into one commit; when nothing is left, the chunk is released with it."""
    holder = Holder(batch=BatchId(0), uid=b"", chunk=hand.chunk, number=0, fence=0, grant=b"", version=hand.version,
                    seconds=LEASE)  # fmt: skip
    if hand.on_trial and hand.ready:
        commit, onward = settle.start(holder, commit_id=b""), hand.ready
    elif hand.outcomes:
        settled = settle.settle(hand.outcomes, stages=scope.stages, policies=scope.policies, now=START)
        onward = (*hand.ready, *settled.onward)
        commit = settle.commit(holder, settled, commit_id=b"", release=not onward)
    else:
        onward = ()
        commit = settle.commit(holder, settle.NOTHING, commit_id=b"", release=True)
    return replace(hand, phase=Phase.WAITING, letter=letter, commit=commit, onward=onward), commit


def answered(hand: Hand, landed: bool) -> Hand:
    """What is durable goes on; what is not is somebody else's, or will be."""
    if not landed or not hand.onward:
        return IDLE
    return Hand(
        phase=Phase.HOLDING,
        chunk=hand.chunk,
        overtaken=hand.overtaken,
        behind=hand.behind,
        version=hand.version + 1,
        ready=hand.onward,
    )


def left_alone(hand: Hand) -> Hand:
    """No reply came."""
    return replace(hand, phase=Phase.UNSURE)


def read_back(hand: Hand, landed: bool) -> Hand:
    """What the store says of a commit whose reply never came decides, and nothing else."""
    return answered(hand, landed)


def overtake(hand: Hand, raised: Raised) -> Hand:
    """Somebody else was granted a chunk, or an operator seized it."""
    chunk, by = raised
    if hand.chunk != chunk:
        return hand
    return replace(hand, overtaken=True, behind=min(1, hand.behind + by))


def check(hand: Hand, items: tuple[StoredItem, ...]) -> None:
    """What a worker goes on from is durable; and an owner that was not overtaken sees what the store has."""
    if hand.phase is not Phase.HOLDING:
        return
    for item in (*hand.ready, *(outcome.item for outcome in hand.outcomes)):
        place, stored = item.place, items[item.n].place
        if (stored.epoch, stored.stage) < (place.epoch, place.stage):
            raise Violation(
                f"a worker goes on with item {item.n} at stage {place.stage}, which is not durable: the store has it "
                f"at stage {stored.stage}"
            )
        if not hand.overtaken and stored != place:
            raise Violation(f"item {item.n} moved from {place} to {stored} in the hands of its owner")
