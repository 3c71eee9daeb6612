"""What people and the checker decide about an item: where it goes back to, and whether it is sent on its way again."""

from msgspec.structs import replace

from holdfast.core import events
from holdfast.core.limits import REQUEUES, REWINDS
from holdfast.core.model import Change, Event, Place, State, StoredItem
from holdfast.core.states import Transition, go_back, move


def rewound(place: Place, stage: int, stages: int) -> Place:
    """The place of an item whose output of a stage does not hold; one that went back too often is buried."""
    after = go_back(place, Transition.REWIND, stage, stages, reason="gone")
    if place.rewinds < REWINDS:
        return after
    return replace(after, state=State.DEAD, code="rewound_too_often", reason="gone", rewinds=place.rewinds)


def requeued(place: Place, stages: int) -> Place:
    """The place of an item that made no progress, once it is sent on its way again; too often, and it is buried."""
    if place.requeues >= REQUEUES:
        return move(place, Transition.BURY, stages=stages, code="requeued_too_often", reason="stuck")
    return move(place, Transition.REQUEUE, stages=stages, due=0.0, since=0.0, requeues=place.requeues + 1)


def change_of(item: StoredItem, after: Place) -> Change:
    return Change(n=item.n, state=item.place.state, epoch=item.place.epoch, place=after)


def burial(item: StoredItem, after: Place) -> tuple[Event, ...]:
    """What others hear of it."""
    return (events.item_dead(item.n, item.key, after),) if after.state is State.DEAD else ()
