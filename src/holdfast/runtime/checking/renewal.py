"""An item that came again with another payload, where the user passed `changed="rerun"`: it begins again with it."""

import os

from msgspec import structs

from holdfast.core import canonical, events, ingest
from holdfast.core.acts import change_of
from holdfast.core.limits import LISTED_NAMES
from holdfast.core.model import Act, Batch, ItemNo, Key, NewItem, Place, State
from holdfast.core.states import Transition, go_back
from holdfast.runtime.commands import command
from holdfast.stores.base import Store


class LeftAlone:
    """Dead letters that came again with another payload: only a person decides about them."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[str] = []

    def note(self, key: Key) -> None:
        self.count += 1
        if len(self._first) < LISTED_NAMES:
            self._first.append(canonical.key_text(key))

    def warning(self, batch: str) -> str:
        """How many there were, and how a person gets the new payload in."""
        what = "1 dead letter" if self.count == 1 else f"{self.count:,} dead letters"
        more = ", …" if self.count > len(self._first) else ""
        return (
            f"{what} of {batch} came with another payload and {'was' if self.count == 1 else 'were'} left alone "
            f"({', '.join(self._first)}{more}): a person decides about dead letters. To take the new payload in, give "
            f"the old one up with `{command('dead discard', batch, 'KEY', options='--reason …')}`, then run again with "
            'changed="rerun"'
        )


def renew(store: Store, batch: Batch, n: ItemNo, item: NewItem, left: LeftAlone, *, actor: str) -> State | None:
    """Replace the stored payload and send the item to the first stage in a new epoch; an owner at work is fenced.
    Return the state that it leaves; None for a dead letter, which is left alone with its payload."""
    stored = store.items(batch.id, lo=n, hi=n + 1)[0]
    if stored.place.state is State.DEAD:
        left.note(stored.key)
        return None
    stages = len(canonical.decode(batch.definition)["stages"])
    reason = _reason(stored.payload, item.payload)
    place = go_back(stored.place, Transition.RESET, 0, stages, reason=reason)
    if item.place.state is State.DEAD:
        place = Place(state=State.DEAD, epoch=place.epoch, code=item.place.code, reason=item.place.reason)
    change = structs.replace(change_of(n, stored.place, place), renewed=item)
    store.act(
        Act(
            id=os.urandom(16),
            batch=batch.id,
            kind="renewed",
            actor=actor,
            reason=reason,
            at_items=(change,),
            seize=True,
            events=(events.item_dead(n, stored.key, place),) if place.state is State.DEAD else (),
        )
    )
    return stored.place.state


def _reason(before: bytes, after: bytes) -> str:
    """What the journal keeps: which fields differ, and nothing of what is in them."""
    names = ingest.changed_fields(before, after)
    more = f" and {len(names) - LISTED_NAMES} more" if len(names) > LISTED_NAMES else ""
    said = f": {', '.join(names[:LISTED_NAMES])}{more} differ" if names else ""
    return f"came again with another payload{said}"
