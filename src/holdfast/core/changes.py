"""Changes since the last run of a batch: of its stages, items and source, and their consequences."""

from collections.abc import Sequence
from enum import StrEnum
from shlex import quote
from typing import Any

import msgspec

from holdfast.core import canonical, journal, retry
from holdfast.core.acts import change_of
from holdfast.core.canonical import decode, encode
from holdfast.core.errors import DefinitionChanged, FingerprintChanged
from holdfast.core.limits import REWINDS
from holdfast.core.model import Batch, Change, ItemState, NewItem, State, StoredItem
from holdfast.core.states import RESOLVED, Transition, move

UNDECIDED = "undecided"
"""The field of a definition that lists changes with which a run continued although no choice was made about them."""


class StageChange(msgspec.Struct, frozen=True, kw_only=True):
    """The difference of a stage: its code, a schema, its sink."""

    index: int
    stage: str
    what: tuple[str, ...]
    difference: str

    def __str__(self) -> str:
        return f"the {' and the '.join(self.what)} of stage {self.stage!r} changed"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The consequence of changes of a pipeline."""

    definition: bytes
    """The definition that the batch stores from now on."""
    changes: tuple[StageChange, ...] = ()
    """New changes, and those about which no choice was made."""
    news: bool = False
    """True if some are new, so that the user should be warned."""
    rerun: StageChange | None = None
    """Items that passed this stage go back to it."""


def compare(before: bytes, after: bytes) -> list[StageChange]:
    """Return the differences between two definitions of the same stages; their retry policies do not matter."""
    pairs = zip(decode(before)["stages"], decode(after)["stages"], strict=True)
    return [change for index, (old, new) in enumerate(pairs) if (change := _difference(index, old, new)) is not None]


def makers(definition: bytes) -> list[str]:
    """Return the journal's name of each stage as it is defined, from everything that makes it a different stage."""
    return [journal.maker(stage) for stage in decode(definition)["stages"]]


def decide_changes(name: str, before: bytes, after: bytes, choice: str | None) -> Decision:
    """Return what to store, what to warn about, and where items go back to. `choice` None means that no choice was
    made: the run continues, and the question stays open."""
    new = compare(before, after)
    everything = _together(_undecided(before), new)
    if not everything or choice == "keep":
        return Decision(definition=after, changes=tuple(everything))
    if choice == "refuse":
        raise DefinitionChanged(
            f"batch {name!r} was run with another pipeline: {'; '.join(each.difference for each in everything)}. "
            f"{ways_on(name, after)}"
        )
    if choice == "rerun":
        return Decision(definition=after, changes=tuple(everything), news=bool(new), rerun=everything[0])
    asked = {**decode(after), UNDECIDED: [[each.index, each.what, each.difference] for each in everything]}
    return Decision(definition=encode(asked), changes=tuple(everything), news=bool(new))


def is_affected(place: ItemState, stage: int) -> bool:
    """Return whether an item depends on the output, or the missing output, of a stage. Operators' decisions, made or
    pending, are left alone: dead letters, items given up, items settled by hand."""
    if place.state in (State.DEAD, State.CANCELLED) or place.code == RESOLVED:
        return False
    return place.stage >= stage if place.state is State.SKIPPED else place.stage > stage


def send_back(item: StoredItem, stage: int, stages: int, *, reason: str) -> Change:
    """Return the change that makes an item begin again at a stage, in a new epoch."""
    place = item.place
    after = move(place, Transition.RESET, stage=stage, stages=stages, reason=reason)
    return change_of(item.n, place, after)


def changes_warning(name: str, decision: Decision) -> str:
    """Return the warning for a user who made no choice."""
    return (
        f"{'; '.join(map(str, decision.changes))}: finished work is kept, the remaining work runs with the new "
        f"pipeline. {ways_on(name, decision.definition)}"
    )


def ways_on(name: str, definition: bytes) -> str:
    """Return the choices of the user. Partitions of a scan are at checkpoints: a reset makes them begin again."""
    again = (
        f"`holdfast reset {quote(name)} --from-start` to handle all rows again with it"
        if any("source" in stage for stage in decode(definition)["stages"])
        else 'on_code_change="rerun" to run the affected items again'
    )
    return f'Pass on_code_change="keep" to keep finished work, or {again}'


def _difference(index: int, old: dict[str, Any], new: dict[str, Any]) -> StageChange | None:
    """Return the difference of a stage. Only fields that both definitions have are compared: an older one may lack
    some."""
    parts: dict[str, str] = {}
    if old.get("code", new["code"]) != new["code"]:
        parts["code"] = "its code changed"
    shapes = zip(("input", "output"), old.get("shapes", new["shapes"]), new["shapes"], strict=True)
    for side, was, now in shapes:
        if was != now or old[side] != new[side]:
            other = f" from {old[side]} to {new[side]}" if old[side] != new[side] else ""
            parts[f"{side} schema"] = f"its {side} schema changed{other}"
    if old.get("sink") != new.get("sink"):
        parts["sink"] = f"its sink changed from {_sink(old.get('sink'))} to {_sink(new.get('sink'))}"
    if not parts:
        return None
    text = f"stage {new['name']!r}: {', '.join(parts.values())}"
    return StageChange(index=index, stage=new["name"], what=tuple(parts), difference=text)


def _sink(described: dict[str, Any] | None) -> str:
    return "the store" if described is None else str(described.get("template", encode(described).decode()))


def _undecided(definition: bytes) -> list[StageChange]:
    known = decode(definition)
    return [
        StageChange(index=index, stage=known["stages"][index]["name"], what=tuple(what), difference=difference)
        for index, what, difference in known.get(UNDECIDED, ())
    ]


def _together(*lists: Sequence[StageChange]) -> list[StageChange]:
    """Return one change for each stage, in order."""
    found: dict[int, StageChange] = {}
    for change in (each for some in lists for each in some):
        known = found.get(change.index)
        what = change.what if known is None else tuple(dict.fromkeys((*known.what, *change.what)))
        found[change.index] = msgspec.structs.replace(change, what=what)
    return [found[index] for index in sorted(found)]


class PlannedFate(StrEnum):
    """The fate of an item in a planned run."""

    RUN = "run"
    REWIND = "rewind"
    ADOPT = "adopt"
    BURY = "bury"
    SKIP = "skip"
    REFUSE = "refuse"


class Reason(StrEnum):
    """The reason for a planned fate."""

    NEW = "new"
    CHANGED_INPUT = "changed input"
    CHANGED_CODE = "changed code"
    FAILED_VERIFICATION = "failed verification"
    REDRIVEN = "redriven"
    SENT_BACK = "sent back"
    WAITING = "waiting"
    RETRY = "to be tried again"
    PENDING = "pending"
    STAGED = "its output waits"
    FOUND = "found by its adopter"
    INVALID = "invalid"
    TOO_OFTEN = "rewound too often"
    RUNNING = "running elsewhere"
    DONE = "done"
    SKIPPED = "skipped"
    DEAD = "dead"
    CANCELLED = "cancelled"


class PlannedItem(msgspec.Struct, frozen=True):
    """The planned fate of an item: from which stage, and why."""

    fate: PlannedFate
    stage: int
    reason: Reason


class StoredFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a stored item."""

    place: ItemState
    now: float
    rerun: int | None = None
    """The stage from which everything is run again because it changed."""
    bad: int | None = None
    """The first stage whose output does not hold."""
    held: bool = False
    """True if another process works on it."""
    staged: bool = False
    """True if an output of its next stage was made but never recorded."""
    found: bool = False
    """True if the adopter of its next stage finds an output that counts."""
    redriven: bool = False


SETTLED = {
    State.DONE: Reason.DONE,
    State.SKIPPED: Reason.SKIPPED,
    State.DEAD: Reason.DEAD,
    State.CANCELLED: Reason.CANCELLED,
}


def begins_at(place: ItemState, rerun: int | None) -> int:
    """Return the stage of an item before anything is verified."""
    return rerun if rerun is not None and is_affected(place, rerun) else place.stage


def outlook(facts: StoredFacts) -> PlannedItem:
    """Return the planned fate of a stored item."""
    place = facts.place
    back = facts.rerun is not None and is_affected(place, facts.rerun)
    if facts.held and place.state is State.PENDING and not back:
        return PlannedItem(PlannedFate.SKIP, place.stage, Reason.RUNNING)
    if facts.bad is not None:
        if place.rewinds >= REWINDS and not back:
            return PlannedItem(PlannedFate.BURY, facts.bad, Reason.TOO_OFTEN)
        return PlannedItem(PlannedFate.REWIND, facts.bad, Reason.FAILED_VERIFICATION)
    if back:
        return PlannedItem(PlannedFate.RUN, begins_at(place, facts.rerun), Reason.CHANGED_CODE)
    if place.state is not State.PENDING:
        return PlannedItem(PlannedFate.SKIP, place.stage, SETTLED[place.state])
    if facts.staged:
        return PlannedItem(PlannedFate.ADOPT, place.stage, Reason.STAGED)
    if facts.found:
        return PlannedItem(PlannedFate.ADOPT, place.stage, Reason.FOUND)
    return PlannedItem(PlannedFate.RUN, place.stage, _why_pending(facts))


def outlook_of_new(item: NewItem) -> PlannedItem:
    """Return the planned fate of an item with an unknown key."""
    if item.place.state is State.DEAD:
        return PlannedItem(PlannedFate.BURY, 0, Reason.INVALID)
    return PlannedItem(PlannedFate.RUN, 0, Reason.NEW)


def outlook_of_changed(item: NewItem, before: PlannedItem, changed: str) -> PlannedItem:
    """Return the planned fate of a known item that comes with a different payload."""
    if changed == "keep":
        return before
    if changed == "refuse":
        return PlannedItem(PlannedFate.REFUSE, 0, Reason.CHANGED_INPUT)
    if before.reason is Reason.DEAD:
        return before
    if item.place.state is State.DEAD:
        return PlannedItem(PlannedFate.BURY, 0, Reason.INVALID)
    return PlannedItem(PlannedFate.RUN, 0, Reason.CHANGED_INPUT)


def _why_pending(facts: StoredFacts) -> Reason:
    place = facts.place
    if not retry.wait_is_over(place.due, place.wait, facts.now):
        return Reason.WAITING
    if place.attempt:
        return Reason.RETRY
    if facts.redriven:
        return Reason.REDRIVEN
    return Reason.SENT_BACK if place.epoch and place.reason else Reason.PENDING


ACCEPTED = "source_accepted"
"""The kind of the entry that records why a different source was accepted."""


def source_of(definition: bytes) -> dict[str, Any] | None:
    """Return the source that a definition names; None if it names none."""
    stages = canonical.decode(definition)["stages"]
    found: dict[str, Any] | None = stages[0].get("source") if stages else None
    return found


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the differences between two descriptions of a source, in words."""
    names = [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]
    return [f"{name}: {_shown(before.get(name))} became {_shown(after.get(name))}" for name in names]


def source_changes(batch: Batch, now: dict[str, Any]) -> list[str]:
    """Return the changes of the source since the batch began."""
    before = source_of(batch.definition)
    return differences(before, canonical.decode(canonical.encode(now))) if before is not None and batch.admitted else []


def check_source(batch: Batch, now: dict[str, Any], accepted: str | None, *, resets: bool = False) -> list[str]:
    """Return the changes of the source of a batch. Raise FingerprintChanged unless a reason to accept them is given.
    `resets`: a reset would help as well; partitions whose borders are rows of the old source cannot begin again in
    another."""
    changed = source_changes(batch, now)
    if changed and not accepted:
        reset = f"reset it with `holdfast cursor reset {quote(batch.name)} --to-beginning`, " if resets else ""
        raise FingerprintChanged(
            f"batch {batch.name!r} was begun with another source: {'; '.join(changed)}. Its cursor may mean nothing "
            'there: pass accept_source="why that is fine" to continue anyway, '
            f'{reset}or read the new source under another batch name (batch="NAME"); nothing was run'
        )
    return changed


def check_source_still(ours: dict[str, Any], now: Batch) -> None:
    """Refuse to resume if another source was accepted after this process, which follows a source, began."""
    theirs = source_of(now.definition)
    changed = differences(canonical.decode(canonical.encode(ours)), theirs) if theirs is not None else []
    if changed:
        raise FingerprintChanged(
            f"batch {now.name!r} follows another source since this process began ({'; '.join(changed)}): its cursor "
            "may mean nothing here, and nothing was handled. End this process, or start it with the new source"
        )


def _shown(value: Any) -> str:
    text = "nothing" if value is None else canonical.encode(value).decode()
    return text if len(text) <= 200 else text[:199] + "…"
