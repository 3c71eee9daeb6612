"""The one table of legal transitions, and the only place an item's state changes.

pending ──checkpoint──▶ pending (next stage)      within an epoch the stage only grows, one at a time
   │ ├──progress──────▶ pending (same stage, further on in its range)
   │ ├──retry, defer──▶ pending (same stage, later)
   │ ├──requeue───────▶ pending (same stage, at once)   by a person
   │ ├──finish────────▶ done
   │ ├──skip──────────▶ skipped
   │ ├──bury──────────▶ dead
   │ └──cancel────────▶ cancelled
dead ───redrive───────▶ pending (where it stopped)
dead ───resolve───────▶ done or skipped            by a person
dead ───discard───────▶ cancelled                  by a person
pending ──recover─────▶ done, or pending at a later stage: its output was found, all else about it is lost
any ────reset, rewind─▶ pending (an earlier stage or the same, in the next epoch)
"""

from enum import StrEnum
from typing import Any

import msgspec

from holdfast.core.errors import Permanent, UsageError
from holdfast.core.model import Place, State

RESOLVED = "resolved"
"""The code of an item that a person settled."""


class Transition(StrEnum):
    """What moves an item."""

    CHECKPOINT = "checkpoint"
    PROGRESS = "progress"
    FINISH = "finish"
    RETRY = "retry"
    DEFER = "defer"
    REQUEUE = "requeue"
    SKIP = "skip"
    BURY = "bury"
    CANCEL = "cancel"
    REDRIVE = "redrive"
    RESOLVE = "resolve"
    DISCARD = "discard"
    RECOVER = "recover"
    RESET = "reset"
    REWIND = "rewind"


TABLE: dict[Transition, tuple[frozenset[State], frozenset[State]]] = {
    Transition.CHECKPOINT: (frozenset({State.PENDING}), frozenset({State.PENDING})),
    Transition.PROGRESS: (frozenset({State.PENDING}), frozenset({State.PENDING})),
    Transition.FINISH: (frozenset({State.PENDING}), frozenset({State.DONE})),
    Transition.RETRY: (frozenset({State.PENDING}), frozenset({State.PENDING})),
    Transition.DEFER: (frozenset({State.PENDING}), frozenset({State.PENDING})),
    Transition.REQUEUE: (frozenset({State.PENDING}), frozenset({State.PENDING})),
    Transition.SKIP: (frozenset({State.PENDING}), frozenset({State.SKIPPED})),
    Transition.BURY: (frozenset({State.PENDING}), frozenset({State.DEAD})),
    Transition.CANCEL: (frozenset({State.PENDING}), frozenset({State.CANCELLED})),
    Transition.REDRIVE: (frozenset({State.DEAD}), frozenset({State.PENDING})),
    Transition.RESOLVE: (frozenset({State.DEAD}), frozenset({State.DONE, State.SKIPPED})),
    Transition.DISCARD: (frozenset({State.DEAD}), frozenset({State.CANCELLED})),
    Transition.RECOVER: (frozenset({State.PENDING}), frozenset({State.PENDING, State.DONE})),
    Transition.RESET: (frozenset(State), frozenset({State.PENDING})),
    Transition.REWIND: (
        frozenset({State.PENDING, State.DONE, State.SKIPPED, State.DEAD}),
        frozenset({State.PENDING}),
    ),
}

NEW_EPOCH = frozenset({Transition.RESET, Transition.REWIND})
ONWARD = frozenset({Transition.CHECKPOINT, Transition.FINISH})


def move(
    place: Place,
    transition: Transition,
    *,
    to: State | None = None,
    stage: int | None = None,
    stages: int,
    **facts: Any,
) -> Place:
    """The place after a transition, or an error when the table does not allow it; `stages` is how many there are."""
    before, after = TABLE[transition]
    if place.state not in before:
        raise UsageError(f"cannot {transition} an item that is {place.state}: only {_either(before)} can")
    if to is None and len(after) > 1:
        raise UsageError(f"{transition} leads to {_either(after)}: give one of them")
    state = next(iter(after)) if to is None else to
    if state not in after:
        raise UsageError(f"{transition} leads to {_either(after)}, not to {state}")
    target = place.stage if stage is None else stage
    _check_stage(place, transition, state, target, stages)
    epoch = place.epoch + 1 if transition in NEW_EPOCH else place.epoch
    if state is not State.PENDING:
        facts["due"] = facts["wait"] = 0.0  # a settled item waits for nothing
    return msgspec.structs.replace(place, state=state, stage=target, epoch=epoch, **facts)


def keeps_outputs(place: Place) -> bool:
    """Whether the outputs of the stages that an item has passed are expected to be there: not of one that was called
    off, nor of one that a person settled without them."""
    if place.state is State.SKIPPED:
        return place.code != RESOLVED
    return place.state is not State.CANCELLED


def checkpoint(place: Place, reached: int, stages: int) -> Place:
    """The place once the stage before `reached` has its output. Reaching what was reached before changes nothing."""
    if reached <= place.stage:
        return place
    if reached != place.stage + 1 or reached > stages:
        raise Permanent(
            "illegal_jump",
            f"an item at stage {place.stage} cannot jump to stage {reached}: each stage has one successor",
        )
    if reached == stages:
        return move(place, Transition.FINISH, stage=reached, stages=stages, **_FRESH)
    return move(place, Transition.CHECKPOINT, stage=reached, stages=stages, **_FRESH)


_FRESH: dict[str, Any] = {"attempt": 0, "due": 0.0, "used": 0.0, "wait": 0.0, "spent": 0, "requeues": 0,
                           "deferred": 0.0, "code": "", "reason": ""}  # fmt: skip


def progress(place: Place, stages: int) -> Place:
    """The place of an item that came further within its stage: what it met before is behind it. Its money is not."""
    return move(place, Transition.PROGRESS, stages=stages, **{**_FRESH, "spent": place.spent})


def go_back(place: Place, transition: Transition, stage: int, stages: int, *, reason: str) -> Place:
    """The place of an item that begins again at `stage`, in the next epoch, with no attempts used."""
    rewinds = place.rewinds + 1 if transition is Transition.REWIND else 0
    return move(place, transition, stage=stage, stages=stages, **{**_FRESH, "reason": reason, "rewinds": rewinds})


def redriven(place: Place, stages: int) -> Place:
    """The place of a dead letter that is tried again where it stopped, with no attempts used."""
    return move(place, Transition.REDRIVE, stages=stages, **_FRESH)


def _check_stage(place: Place, transition: Transition, state: State, target: int, stages: int) -> None:
    if not 0 <= target <= stages or (state is State.PENDING and target == stages):
        raise UsageError(f"there is no stage {target}: this pipeline has {stages}, counted from 0")
    if transition in NEW_EPOCH:
        legal = target <= place.stage
    elif transition in ONWARD:
        legal = target == place.stage + 1
    elif transition is Transition.RECOVER:
        legal = target > place.stage and (state is State.DONE) == (target == stages)
    else:
        legal = target == place.stage or (transition is Transition.RESOLVE and state is State.DONE and target == stages)
    if not legal:
        raise UsageError(f"{transition} cannot lead from stage {place.stage} to stage {target}")


def _either(states: frozenset[State]) -> str:
    return " or ".join(sorted(states))
