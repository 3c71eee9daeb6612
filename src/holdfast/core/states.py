"""The one table of legal transitions, and the only place an item's state changes.

pending ──checkpoint──▶ pending (next stage)      within an epoch the stage only grows, one at a time
   │ ├──retry, defer──▶ pending (same stage, later)
   │ ├──finish────────▶ done
   │ ├──skip──────────▶ skipped
   │ ├──bury──────────▶ dead
   │ └──cancel────────▶ cancelled
dead ───redrive───────▶ pending (where it stopped)
dead ───resolve───────▶ done or skipped            by a person
dead ───discard───────▶ cancelled                  by a person
any ────reset, rewind─▶ pending (an earlier stage or the same, in the next epoch)
"""

from enum import StrEnum
from typing import Any

import msgspec

from holdfast.core.errors import Permanent, UsageError
from holdfast.core.model import Place, State


class Step(StrEnum):
    """What moves an item."""

    CHECKPOINT = "checkpoint"
    FINISH = "finish"
    RETRY = "retry"
    DEFER = "defer"
    SKIP = "skip"
    BURY = "bury"
    CANCEL = "cancel"
    REDRIVE = "redrive"
    RESOLVE = "resolve"
    DISCARD = "discard"
    RESET = "reset"
    REWIND = "rewind"


TABLE: dict[Step, tuple[frozenset[State], frozenset[State]]] = {
    Step.CHECKPOINT: (frozenset({State.PENDING}), frozenset({State.PENDING})),
    Step.FINISH: (frozenset({State.PENDING}), frozenset({State.DONE})),
    Step.RETRY: (frozenset({State.PENDING}), frozenset({State.PENDING})),
    Step.DEFER: (frozenset({State.PENDING}), frozenset({State.PENDING})),
    Step.SKIP: (frozenset({State.PENDING}), frozenset({State.SKIPPED})),
    Step.BURY: (frozenset({State.PENDING}), frozenset({State.DEAD})),
    Step.CANCEL: (frozenset({State.PENDING}), frozenset({State.CANCELLED})),
    Step.REDRIVE: (frozenset({State.DEAD}), frozenset({State.PENDING})),
    Step.RESOLVE: (frozenset({State.DEAD}), frozenset({State.DONE, State.SKIPPED})),
    Step.DISCARD: (frozenset({State.DEAD}), frozenset({State.CANCELLED})),
    Step.RESET: (frozenset(State), frozenset({State.PENDING})),
    Step.REWIND: (frozenset({State.PENDING, State.DONE}), frozenset({State.PENDING})),
}

NEW_EPOCH = frozenset({Step.RESET, Step.REWIND})
ONWARD = frozenset({Step.CHECKPOINT, Step.FINISH})


def move(
    place: Place, step: Step, *, to: State | None = None, stage: int | None = None, stages: int, **facts: Any
) -> Place:
    """The place after a step, or an error when the table does not allow it. `stages` is how many the pipeline has."""
    before, after = TABLE[step]
    if place.state not in before:
        raise UsageError(f"cannot {step} an item that is {place.state}: only {_either(before)} can")
    state = to if to is not None else next(iter(after))
    if state not in after:
        raise UsageError(f"{step} leads to {_either(after)}, not to {state}")
    target = place.stage if stage is None else stage
    _check_stage(place, step, state, target, stages)
    epoch = place.epoch + 1 if step in NEW_EPOCH else place.epoch
    return msgspec.structs.replace(place, state=state, stage=target, epoch=epoch, **facts)


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
        return move(place, Step.FINISH, stage=reached, stages=stages, **_FRESH)
    return move(place, Step.CHECKPOINT, stage=reached, stages=stages, **_FRESH)


_FRESH: dict[str, Any] = {"attempt": 0, "due": 0.0, "since": 0.0, "spent": 0, "code": "", "reason": ""}


def go_back(place: Place, step: Step, stage: int, stages: int, *, reason: str) -> Place:
    """The place of an item that begins again at `stage`, in the next epoch, with no attempts used."""
    rewinds = place.rewinds + 1 if step is Step.REWIND else 0
    return move(place, step, stage=stage, stages=stages, **{**_FRESH, "reason": reason, "rewinds": rewinds})


def _check_stage(place: Place, step: Step, state: State, target: int, stages: int) -> None:
    if not 0 <= target <= stages or (state is State.PENDING and target == stages):
        raise UsageError(f"there is no stage {target}: this pipeline has {stages}, counted from 0")
    if step in NEW_EPOCH:
        legal = target <= place.stage
    elif step in ONWARD:
        legal = target == place.stage + 1
    else:
        legal = target == place.stage or (step is Step.RESOLVE and state is State.DONE and target == stages)
    if not legal:
        raise UsageError(f"{step} cannot lead from stage {place.stage} to stage {target}")


def _either(states: frozenset[State]) -> str:
    return " or ".join(sorted(states))
