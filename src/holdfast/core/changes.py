"""What changed about the stages of a batch since it was last run, and what follows from what the user wants done."""

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

import msgspec

from holdfast.core.acts import change_of
from holdfast.core.canonical import decode, encode, fingerprint
from holdfast.core.errors import DefinitionChanged, UsageError
from holdfast.core.model import Change, Place, State, StoredItem
from holdfast.core.states import RESOLVED, Transition, go_back

UNDECIDED = "undecided"
"""Where a definition names the changes that a run continued with, though nobody said what to do about them."""
CHOICES = ("keep", "rerun", "refuse")


class StageChange(msgspec.Struct, frozen=True, kw_only=True):
    """What is different about a stage: its code, a schema, its sink."""

    index: int
    stage: str
    what: tuple[str, ...]
    difference: str

    def __str__(self) -> str:
        return f"the {' and the '.join(self.what)} of stage {self.stage!r} changed"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from the changes of a pipeline."""

    definition: bytes
    """What the batch remembers from now on."""
    changes: tuple[StageChange, ...] = ()
    """Those that are new, and those nobody decided about."""
    news: bool = False
    """Some of them are new, so that the user should hear of them."""
    rerun: StageChange | None = None
    """Items that passed this stage go back to it."""


def check_choice(code: str | None) -> None:
    """Refuse words we do not know."""
    if code is not None and code not in CHOICES:
        raise UsageError(f'code={code!r}: use "keep", "rerun" or "refuse"')


def compare(before: bytes, after: bytes) -> list[StageChange]:
    """What differs between two definitions of the same stages; how they are tried again does not matter."""
    pairs = zip(decode(before)["stages"], decode(after)["stages"], strict=True)
    return [change for index, (old, new) in enumerate(pairs) if (change := _difference(index, old, new)) is not None]


def makers(definition: bytes) -> list[str]:
    """Return what the journal calls each stage as it is defined, by everything that makes it another one."""
    return [maker(stage) for stage in decode(definition)["stages"]]


def maker(described: Mapping[str, Any]) -> str:
    """Return what the journal calls a stage that is described like that."""
    return fingerprint([described.get(part) for part in ("code", "input", "output", "shapes", "sink")])[:16]


def decide(name: str, before: bytes, after: bytes, choice: str | None) -> Decision:
    """What to remember, what to say, and where items go back to. `choice` None means that nobody said anything: the run
    continues, and the question stays open."""
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


def is_affected(place: Place, stage: int) -> bool:
    """Whether an item rests on what a stage made, or did not make, of it. What a person decided, or has to decide, is
    left alone: dead letters, what was given up, what was settled by hand."""
    if place.state in (State.DEAD, State.CANCELLED) or place.code == RESOLVED:
        return False
    return place.stage >= stage if place.state is State.SKIPPED else place.stage > stage


def send_back(item: StoredItem, stage: int, stages: int, *, reason: str) -> Change:
    """An item begins again at a stage, in a new epoch."""
    place = item.place
    after = go_back(place, Transition.RESET, stage, stages, reason=reason)
    return change_of(item.n, place, after)


def warning(name: str, decision: Decision) -> str:
    """What a person hears who said nothing about it."""
    return (
        f"{'; '.join(map(str, decision.changes))}: what was done before is kept, what is left runs with the new "
        f"pipeline. {ways_on(name, decision.definition)}"
    )


def ways_on(name: str, definition: bytes) -> str:
    """What a person can choose. Ranges of a scan stand at checkpoints: they are begun again by a reset."""
    again = (
        f"`holdfast reset {quote(name)} --from-start` to handle all rows again with it"
        if any("source" in stage for stage in decode(definition)["stages"])
        else 'code="rerun" to run again what that affects'
    )
    return f'Pass code="keep" to keep what is done, or {again}'


def _difference(index: int, old: dict[str, Any], new: dict[str, Any]) -> StageChange | None:
    """Only what both know is compared: a definition from before something was remembered says nothing about it."""
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
    """One for each stage, in order."""
    found: dict[int, StageChange] = {}
    for change in (each for some in lists for each in some):
        known = found.get(change.index)
        what = change.what if known is None else tuple(dict.fromkeys((*known.what, *change.what)))
        found[change.index] = msgspec.structs.replace(change, what=what)
    return [found[index] for index in sorted(found)]
