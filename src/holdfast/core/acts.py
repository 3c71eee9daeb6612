"""An operator's act on one chunk: which items change, what the totals become, whether an owner is fenced; orphans."""

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
    """What is written for one chunk."""

    changes: list[Change]
    delta: Counts
    seized: bool
    fence: int
    revived: bool
    """Whether an item resumes from here: then its chunk counts as having made progress just now."""
    body: bytes


def change_of(n: ItemNo, before: ItemState, after: ItemState) -> Change:
    """Return what an act does to one item, guarded by where it stood when that was decided."""
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
    """Return whether items can come to stand once more where the act changes them, without a new epoch: what was buried
    is redriven, what was redriven dies. Then only its id tells that it was done before."""
    around = (State.PENDING, State.DEAD)
    return any(c.epoch == c.place.epoch and c.state in around and c.place.state in around for c in act.at_items)


def apply(act: Act, chunk: Chunk, changes: Sequence[Change], places: Mapping[ItemNo, ItemState]) -> Effect:
    """Return the part of an act that still holds: an item that moved on since it was decided is left alone, and so is
    one that the act has changed already."""
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
        body=journal.encode_body(journal.Acted(reason=act.reason, seized=seized, note=act.body, items=moved)),
    )


def _lifted(chunk: Chunk, changes: Sequence[Change], places: Mapping[ItemNo, ItemState]) -> list[Change]:
    """Return the one item that names a chunk whose blame is lifted, as it stands; nothing where there is no blame."""
    return [] if chunk.progressed else [change_of(c.n, places[c.n], places[c.n]) for c in changes[:1]]


def _moved(change: Change, stage_before: int) -> journal.Moved:
    """Return what the journal says of one item."""
    after = change.place
    return journal.Moved(
        n=change.n,
        before=change.state,
        after=after.state,
        stage_before=stage_before,
        stage_after=after.stage,
        epoch=after.epoch,
        digest=change.renewed.digest if change.renewed is not None else b"",
        output_digest=change.output_digest,
        position=_position(change),
    )


def _difference(changes: Sequence[Change]) -> Counts:
    """Return what becomes of the totals."""
    delta = Counter(change.place.state for change in changes)
    delta.subtract(change.state for change in changes)
    return Counts(
        done=delta[State.DONE],
        skipped=delta[State.SKIPPED],
        dead=delta[State.DEAD],
        cancelled=delta[State.CANCELLED],
    )


def _position(change: Change) -> journal.Position | None:
    at = change.checkpoint
    return None if at is None else journal.Position(at.n, at.rows, at.cursor, change.acc_digest)


def heard(act: Act, changed: Sequence[ItemNo]) -> list[Event]:
    """Return the events of an act that came true."""
    landed = set(changed)
    return [event for event in act.events if landed and (event.n is None or event.n in landed)]


def _holds(change: Change, place: ItemState) -> bool:
    """Return whether the item still stands where it stood when the change was decided. Within an epoch nothing leads
    back: not to a stage that was passed since, and for a pending item not to an attempt or a re-enqueueing before the
    last. What stands as it shall stand is left alone: it was done before."""
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
    """In which way an item is stuck."""

    STUCK = "stuck"
    """No progress: nobody works on it, or its owner hangs."""
    STRANDED = "stranded"
    """In flight or pending in a batch that was cancelled."""
    UNANSWERED = "unanswered"
    """A dead letter that is open past its age limit."""


class Strategy(StrEnum):
    """What can be done about an orphan."""

    REQUEUE = "requeue"
    FAIL = "fail"
    REVIEW = "review"


ORPHANED = "orphaned"
REVIEW = "review"
REQUEUED_TOO_OFTEN = "requeued_too_often"


class OrphanFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about an item when it is judged."""

    state: State
    course: BatchMode = BatchMode.OPEN
    progressed_at: float
    """When its chunk last made progress; of a dead letter, when it was buried."""
    due: float = 0.0
    """Until when it waits."""
    was_claimed: bool = False
    """Whether its chunk was claimed since it last made progress."""
    is_held: bool = False
    """Whether somebody who is alive holds its chunk."""
    written_at: float = 0.0
    """When anything was last written in its batch: a commit, a claim, an admission."""


def still_since(facts: OrphanFacts) -> float:
    """Return since when nothing happened that should have: to a dropped item its own progress, to one in line
    anything in its batch. A wait that is planned is not standing still."""
    own = max(facts.progressed_at, facts.due)
    return own if facts.was_claimed and not facts.is_held else max(own, facts.written_at)


def begun(chunk: Chunk, place: ItemState) -> bool:
    """Return whether anybody ever took the item: its chunk has a chain of its own, or it left the start. The fence
    does not tell, because a part that is cut off inherits it."""
    return chunk.seq > 0 or place != START


def judge_orphan(facts: OrphanFacts, *, now: float, grace: float, dead_after: float) -> OrphanKind | None:
    """In which way an item is stuck, or None. At exactly the bound it is not, yet."""
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
    """Return where an orphan stands once it is resolved; as text, why it cannot be in this way."""
    match strategy:
        case Strategy.REQUEUE if course is BatchMode.CANCELLED:
            return "its batch was cancelled, so nothing would take it: fail it, or send it to review"
        case Strategy.REQUEUE:
            return requeued(place, stages, reason=reason)
        case Strategy.FAIL:
            return move(place, Transition.BURY, stages=stages, code=ORPHANED, reason=storable(reason))
        case Strategy.REVIEW:
            return move(place, Transition.BURY, stages=stages, code=REVIEW, reason=storable(reason))
        case _:
            assert_never(strategy)


def requeued(place: ItemState, stages: int, *, reason: str) -> ItemState:
    """On its way again from its checkpoint; when that led nowhere too often, buried."""
    if place.requeues >= REQUEUES:
        why = f"{storable(reason)} (re-enqueued {place.requeues} times without progress)"
        return move(place, Transition.BURY, stages=stages, code=REQUEUED_TOO_OFTEN, reason=why)
    return move(place, Transition.REQUEUE, stages=stages)
