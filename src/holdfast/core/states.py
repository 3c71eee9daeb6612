"""The table of transitions: every way in which the state of an item changes, and the only code that changes it.

`docs/architecture.md` shows it as a table and a drawing; `tools/states.py` makes both from the rows below.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TypedDict, Unpack

import msgspec

from holdfast.core.errors import Permanent, UsageError
from holdfast.core.model import ItemState, State

RESOLVED = "resolved"
"""The error code of an item that an operator settled."""


class Transition(StrEnum):
    """The name of a transition."""

    ADMIT = "admit"
    REFUSE = "refuse"
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
    RENEW = "renew"
    REWIND = "rewind"
    EXHAUST = "exhaust"


class Leads(StrEnum):
    """The target of a transition, relative to the item's current stage or epoch."""

    SAME = "same"
    NEXT = "next"
    FIRST = "first"
    END = "end"
    BACK = "same or earlier"
    LATER = "later"


class ItemFacts(TypedDict, total=False):
    """The facts stored about an item besides its state, stage and epoch."""

    attempt: int
    due: float
    used: float
    wait: float
    spent: int
    rewinds: int
    requeues: int
    deferred: float
    code: str
    reason: str


WAIT: ItemFacts = {"due": 0.0, "wait": 0.0}
"""Facts of a settled item, which waits for nothing."""
UNSPENT: ItemFacts = {"attempt": 0, "due": 0.0, "used": 0.0, "wait": 0.0, "requeues": 0, "deferred": 0.0, "code": "",
                      "reason": ""}  # fmt: skip
FRESH: ItemFacts = {**UNSPENT, "spent": 0}
"""Facts of an item without attempts, waits, code or reason."""
NEVER_BACK: ItemFacts = {**FRESH, "rewinds": 0}
SAID = frozenset({"code", "reason"})
ANY = frozenset(State)
PENDING, DEAD = frozenset({State.PENDING}), frozenset({State.DEAD})
NOT_THERE: frozenset[State] = frozenset()
"""A new item has no previous state."""


class TransitionRule(msgspec.Struct, frozen=True):
    """One row of the table."""

    transition: Transition
    from_: frozenset[State]
    to: State
    when: str
    stage: Leads = Leads.SAME
    epoch: Leads = Leads.SAME
    resets: ItemFacts = {}
    """Facts that are reset, with their new values."""
    counts: str = ""
    """The fact that grows by one."""
    takes: frozenset[str] = frozenset()
    """Facts that the caller passes."""
    plain: bool = False
    """An item that has only moved by such rows is on the plain way: its place is not stored, because its last output
    implies it (`on_plain_way`)."""


_T, _R = Transition, TransitionRule
TABLE = (
    _R(_T.ADMIT, NOT_THERE, State.PENDING, "it is admitted", plain=True),
    _R(_T.REFUSE, NOT_THERE, State.DEAD, "it is invalid or too large to be admitted", takes=SAID),
    _R(_T.CHECKPOINT, PENDING, State.PENDING, "its stage has an output", Leads.NEXT, resets=FRESH, plain=True),
    _R(_T.FINISH, PENDING, State.DONE, "its last stage has an output", Leads.NEXT, resets=FRESH, plain=True),
    _R(_T.PROGRESS, PENDING, State.PENDING, "its partition was read further; its money stays spent", resets=UNSPENT),
    _R(_T.RETRY, PENDING, State.PENDING, "an attempt failed and another follows",
       takes=SAID | {"attempt", "due", "wait", "used", "spent", "deferred"}),
    _R(_T.DEFER, PENDING, State.PENDING, "it is tried later; no attempt is counted",
       takes=SAID | {"due", "wait", "spent", "deferred"}),
    _R(_T.REQUEUE, PENDING, State.PENDING, "an operator makes it ready at once", resets={**WAIT, "used": 0.0},
       counts="requeues"),
    _R(_T.SKIP, PENDING, State.SKIPPED, "its handler found nothing to do", resets=WAIT, takes=SAID),
    _R(_T.BURY, PENDING, State.DEAD, "its last attempt failed, or an operator gave it up", resets=WAIT,
       takes=SAID | {"attempt", "used", "spent"}),
    _R(_T.CANCEL, PENDING, State.CANCELLED, "its batch was cancelled or ended", resets=WAIT, takes=SAID),
    _R(_T.REDRIVE, DEAD, State.PENDING, "an operator retries it at the stage where it stopped", resets=FRESH),
    _R(_T.RESOLVE, DEAD, State.DONE, "an operator supplies its output", Leads.END, resets=WAIT, takes=SAID),
    _R(_T.RESOLVE, DEAD, State.SKIPPED, "an operator accepts it without an output", resets=WAIT, takes=SAID),
    _R(_T.DISCARD, DEAD, State.CANCELLED, "an operator gives it up", resets=WAIT),
    _R(_T.RECOVER, PENDING, State.PENDING, "its output was found; its other facts are lost", Leads.LATER, takes=SAID),
    _R(_T.RECOVER, PENDING, State.DONE, "its last output was found", Leads.END, resets=WAIT, takes=SAID),
    _R(_T.RESET, ANY, State.PENDING, "it begins again", Leads.BACK, Leads.NEXT, NEVER_BACK,
       takes=frozenset({"reason"})),
    _R(_T.RENEW, ANY - DEAD, State.PENDING, "it came with a different payload", Leads.FIRST, Leads.NEXT, NEVER_BACK,
       takes=frozenset({"reason"})),
    _R(_T.RENEW, ANY - DEAD, State.DEAD, "it came again with a payload that is refused", Leads.FIRST, Leads.NEXT,
       NEVER_BACK, takes=SAID),
    _R(_T.REWIND, ANY - {State.CANCELLED}, State.PENDING, "an output it needs is gone", Leads.BACK, Leads.NEXT, FRESH,
       counts="rewinds", takes=frozenset({"reason"})),
    _R(_T.EXHAUST, ANY - {State.CANCELLED}, State.DEAD, "an output it needs is gone, once too often", Leads.BACK,
       Leads.NEXT, FRESH, takes=SAID),
)  # fmt: skip
RULES: Mapping[Transition, Mapping[State, TransitionRule]] = {
    transition: {rule.to: rule for rule in TABLE if rule.transition is transition} for transition in Transition
}


def move(
    place: ItemState,
    transition: Transition,
    *,
    to: State | None = None,
    stage: int | None = None,
    stages: int,
    **facts: Unpack[ItemFacts],
) -> ItemState:
    """Return the place after a transition. Raise `UsageError` when the table does not allow it.

    `to` is required if a transition has two targets, `stage` if the rule leaves a choice; `stages` is the number of
    stages of the pipeline.
    """
    rule = _rule(place, transition, to)
    target = _target(rule, place.stage, stage, stages)
    if not facts.keys() <= rule.takes:
        raise UsageError(f"{transition} does not set {', '.join(sorted(facts.keys() - rule.takes))}")
    changed: ItemFacts = {**rule.resets, **facts}
    if rule.counts:
        changed[rule.counts] = getattr(place, rule.counts) + 1  # type: ignore[literal-required]
    epoch = place.epoch if rule.epoch is Leads.SAME else place.epoch + 1
    return msgspec.structs.replace(place, state=rule.to, stage=target, epoch=epoch, **changed)


def refused(*, code: str, reason: str) -> ItemState:
    """Return the place of an item that is a dead letter from the beginning."""
    return ItemState(state=State.DEAD, code=code, reason=reason)


def on_plain_way(stage: int, stages: int) -> ItemState:
    """Return the place of an item that reached a stage and never failed, waited or went back."""
    return ItemState(stage=stage) if stage < stages else ItemState(stage=stage, state=State.DONE)


def checkpoint(place: ItemState, reached: int, stages: int) -> ItemState:
    """Return the place once the stage before `reached` has its output. Reaching a stage again changes nothing."""
    if reached <= place.stage:
        return place
    if reached != place.stage + 1 or reached > stages:
        raise Permanent(
            "illegal_jump",
            f"an item at stage {place.stage} cannot jump to stage {reached}: each stage has one successor",
        )
    return move(place, Transition.FINISH if reached == stages else Transition.CHECKPOINT, stages=stages)


def keeps_outputs(place: ItemState) -> bool:
    """Return whether the outputs of the stages that an item has passed are expected to exist. They are not if the item
    was cancelled, or if an operator settled it without them."""
    if place.state is State.SKIPPED:
        return place.code != RESOLVED
    return place.state is not State.CANCELLED


def _rule(place: ItemState, transition: Transition, to: State | None) -> TransitionRule:
    """Return the row for a transition from the state of an item."""
    ends = RULES[transition]
    if to is None and len(ends) > 1:
        raise UsageError(f"{transition} leads to {_either(ends)}: pass to=")
    rule = next(iter(ends.values())) if to is None else ends.get(to)
    if rule is None:
        raise UsageError(f"{transition} leads to {_either(ends)}, not to {to}")
    if place.state not in rule.from_:
        raise UsageError(f"cannot {transition} an item that is {place.state}: only {_either(rule.from_)} can")
    return rule


ONLY: Mapping[Leads, Callable[[int, int], int]] = {
    Leads.SAME: lambda here, _stages: here,
    Leads.NEXT: lambda here, _stages: here + 1,
    Leads.FIRST: lambda _here, _stages: 0,
    Leads.END: lambda _here, stages: stages,
}
"""The stage that a row leads to, if it leaves no choice."""


def _target(rule: TransitionRule, here: int, stage: int | None, stages: int) -> int:
    """Return the stage that a row leads to. An item is past its last stage if and only if it is done."""
    only = ONLY.get(rule.stage)
    target = only(here, stages) if only is not None and stage is None else stage
    if target is None:
        raise UsageError(f"{rule.transition} leads to a stage that is {rule.stage}: pass stage=")
    is_end, is_done = target == stages, rule.to is State.DONE
    if not 0 <= target <= stages or (is_end and not is_done):
        raise UsageError(f"there is no stage {target}: this pipeline has {stages} stages, counted from 0")
    if only is not None:
        legal = target == only(here, stages)
    else:
        legal = target <= here if rule.stage is Leads.BACK else target > here
    if not legal or is_done is not is_end:
        raise UsageError(f"{rule.transition} cannot lead from stage {here} to stage {target}")
    return target


def _either(states: Mapping[State, object] | frozenset[State]) -> str:
    return " or ".join(sorted(states)) or "a new one"
