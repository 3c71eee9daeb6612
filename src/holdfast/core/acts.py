"""An operator's act on one chunk: the items that change, the new totals, whether an owner is fenced; orphans."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import assert_never

import msgspec

from holdfast.core import journal
from holdfast.core.canonical import storable
from holdfast.core.limits import REQUEUES
from holdfast.core.model import START, Act, BatchMode, Change, Chunk, Counts, Event, ItemNo, ItemState, State
from holdfast.core.states import Transition, move


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """The changes written for one chunk."""

    changes: list[Change]
    delta: Counts
    seized: bool
    fence: int
    revived: bool
    """True if an item resumes from here: then its chunk counts as having made progress just now."""
    body: journal.Acted
    """Without commitments: the store makes them when it writes the content."""


def change_of(n: ItemNo, before: ItemState, after: ItemState) -> Change:
    """Return the change that an act makes to one item, guarded by the place for which it was decided."""
    return Change(n=n, state=before.state, epoch=before.epoch, place=after)


def by_chunk(act: Act, chunk_of: Callable[[ItemNo], Chunk]) -> Iterator[tuple[Chunk, list[Change]]]:
    """Yield the changes of an act, chunk by chunk."""
    chunk: Chunk | None = None
    changes: list[Change] = []
    for change in sorted(act.at_items, key=lambda change: change.n):
        if chunk is None or change.n >= chunk.hi:
            if chunk is not None:
                yield chunk, changes
            chunk, changes = chunk_of(change.n), []
        changes.append(change)
    if chunk is not None:
        yield chunk, changes


def may_come_again(act: Act) -> bool:
    """Return whether items can return, without a new epoch, to the state in which the act changes them: a buried item
    is redriven, a redriven item dies. Then only the id of the act shows that it was done before."""
    around = (State.PENDING, State.DEAD)
    return any(c.epoch == c.place.epoch and c.state in around and c.place.state in around for c in act.at_items)


def apply(act: Act, chunk: Chunk, changes: Sequence[Change], places: Mapping[ItemNo, ItemState]) -> Effect:
    """Return the part of an act that still applies: an item that has moved since the decision is left alone, and so is
    one that the act has already changed."""
    once = {change.n: change for change in reversed(changes)}
    held = [c for c in once.values() if _holds(c, places[c.n])][::-1]
    if act.lifts:
        held = _lifted(chunk, changes, places)
    in_flight = chunk.owner is not None and any(c.state is State.PENDING for c in held)
    if in_flight and not act.seize:
        held = [c for c in held if c.state is not State.PENDING]
    seized = (act.seize and (in_flight or any(c.checkpoint is not None for c in held))) or (act.lifts and bool(held))
    moved = [_moved(c, places[c.n].stage) for c in held] if not act.lifts else []
    return Effect(
        changes=held,
        delta=_difference(held),
        seized=seized,
        fence=max(chunk.fence, act.beyond) + 1 if seized else chunk.fence,
        revived=any(change.place.state is State.PENDING for change in held),
        body=journal.Acted(reason=act.reason, seized=seized, note=act.body, items=moved),
    )


def _lifted(chunk: Chunk, changes: Sequence[Change], places: Mapping[ItemNo, ItemState]) -> list[Change]:
    """Return the one item that names a chunk whose blame is lifted, unchanged; nothing if there is no blame."""
    return [] if chunk.progressed else [change_of(c.n, places[c.n], places[c.n]) for c in changes[:1]]


def _moved(change: Change, stage_before: int) -> journal.Moved:
    """Return the journal's record of one item."""
    after, renewed = change.place, change.renewed
    return journal.Moved(
        n=change.n,
        before=change.state,
        after=after.state,
        stage_before=stage_before,
        stage_after=after.stage,
        epoch=after.epoch,
        source=change.origin.source,
        schema=change.origin.schema,
        refused=renewed.place.code if renewed is not None else "",
    )


def _difference(changes: Sequence[Change]) -> Counts:
    """Return the change of the totals."""
    delta = Counter(change.place.state for change in changes)
    delta.subtract(change.state for change in changes)
    return Counts(
        done=delta[State.DONE],
        skipped=delta[State.SKIPPED],
        dead=delta[State.DEAD],
        cancelled=delta[State.CANCELLED],
    )


def heard(act: Act, changed: Sequence[ItemNo]) -> list[Event]:
    """Return the events of an act whose changes were made."""
    landed = set(changed)
    return [event for event in act.events if landed and (event.n is None or event.n in landed)]


def _holds(change: Change, place: ItemState) -> bool:
    """Return whether the item is still in the place for which the change was decided. Within an epoch nothing leads
    back: not to a stage that has been passed since, and for a pending item not to an earlier attempt or requeue. An
    item that already has the new place is left alone: the change was made before."""
    after = change.place
    if (place.state, place.epoch) != (change.state, change.epoch) or after == place:
        return False
    if after.epoch != place.epoch:
        return True
    if place.state is State.PENDING and change.output is None:
        requeues = place.requeues + (after.state is State.PENDING)
        return (after.stage, after.attempt, after.requeues) == (place.stage, place.attempt, requeues)
    return after.stage >= place.stage


class OrphanKind(StrEnum):
    """The way in which an item is stuck."""

    STUCK = "stuck"
    """No progress: no process works on it, or its owner hangs."""
    STRANDED = "stranded"
    """In flight or pending in a batch that was cancelled."""
    UNANSWERED = "unanswered"
    """A dead letter that is open past its age limit."""


class Strategy(StrEnum):
    """A way to resolve an orphan."""

    REQUEUE = "requeue"
    FAIL = "fail"
    REVIEW = "review"


ORPHANED = "orphaned"
REVIEW = "review"
REQUEUED_TOO_OFTEN = "requeued_too_often"


class OrphanFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts by which an item is judged to be an orphan or not."""

    state: State
    course: BatchMode = BatchMode.OPEN
    progressed_at: float
    """When its chunk last made progress; for a dead letter, when it was buried."""
    due: float = 0.0
    """The end of its wait."""
    was_claimed: bool = False
    """True if its chunk was claimed since it last made progress."""
    is_held: bool = False
    """True if a live owner holds its chunk."""
    written_at: float = 0.0
    """When anything was last written in its batch: a commit, a claim, an admission."""


def still_since(facts: OrphanFacts) -> float:
    """Return the time since which nothing has happened that should have: to a dropped item, its own progress; to an
    item whose turn has not come, any write in its batch. A planned wait does not count."""
    own = max(facts.progressed_at, facts.due)
    return own if facts.was_claimed and not facts.is_held else max(own, facts.written_at)


def begun(chunk: Chunk, place: ItemState) -> bool:
    """Return whether the item was ever taken: its chunk has a chain, or it left the start. The fence does not show
    this, because a chunk that is cut off another inherits it."""
    return chunk.seq > 0 or place != START


def judge_orphan(facts: OrphanFacts, *, now: float, grace: float, dead_after: float) -> OrphanKind | None:
    """Return the way in which an item is stuck, or None. At exactly the bound it is not stuck yet."""
    if facts.state is State.DEAD:
        return OrphanKind.UNANSWERED if now - facts.progressed_at > dead_after else None
    if facts.state is not State.PENDING:
        return None
    if facts.course is BatchMode.CANCELLED:
        return OrphanKind.STRANDED
    return OrphanKind.STUCK if now - still_since(facts) > grace else None


def resolve_orphan(
    place: ItemState, strategy: Strategy, *, stages: int, reason: str, course: BatchMode = BatchMode.OPEN
) -> ItemState | str:
    """Return the place of an orphan once it is resolved, or a text that explains why this strategy is not possible."""
    match strategy:
        case Strategy.REQUEUE if course is BatchMode.CANCELLED:
            return "its batch was cancelled, so no worker would claim it: fail it, or send it to review"
        case Strategy.REQUEUE:
            return requeued(place, stages, reason=reason)
        case Strategy.FAIL:
            return move(place, Transition.BURY, stages=stages, code=ORPHANED, reason=storable(reason))
        case Strategy.REVIEW:
            return move(place, Transition.BURY, stages=stages, code=REVIEW, reason=storable(reason))
        case _:
            assert_never(strategy)


def requeued(place: ItemState, stages: int, *, reason: str) -> ItemState:
    """Return the place of an item that starts again from its checkpoint; after too many requeues without progress, bury
    it."""
    if place.requeues >= REQUEUES:
        why = f"{storable(reason)} (requeued {place.requeues} times without progress)"
        return move(place, Transition.BURY, stages=stages, code=REQUEUED_TOO_OFTEN, reason=why)
    return move(place, Transition.REQUEUE, stages=stages)
