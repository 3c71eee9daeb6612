"""Batches, items and stages by the names that people type; if there is none, an error that lists the existing ones."""

import difflib
import re
from collections.abc import Iterable, Sequence
from itertools import islice

from holdfast.core import canonical, course
from holdfast.core.errors import UsageError
from holdfast.core.limits import LISTED_NAMES, SEARCHED_NAMES
from holdfast.core.model import Batch, ItemNo, Key, StoredItem
from holdfast.stores.base import Store, each_item, find_item

NUMBER = re.compile("[0-9]{1,18}")
"""The number of an item or a stage, as it is typed; no store has more."""


def batch_named(store: Store, name: str) -> Batch:
    """Return the batch of that name."""
    found = batches_named(store, name)
    if not found:
        known = [batch.name for batch in reversed(store.batches())]
        raise UsageError(
            f"there is no batch {name!r} in {store.url}: {_instead(str(name), known, 'it has no batch yet')}"
        )
    return found[0]


def batches_named(store: Store, name: object) -> list[Batch]:
    """Return the batch of that name, if there is one. A name that no store can hold is not looked up."""
    return store.batches(name) if isinstance(name, str) and name == canonical.storable(name) else []


def item_named(store: Store, batch: Batch, name: Key) -> StoredItem:
    """Return the item with that key, or `#7` for the item with that number."""
    text = canonical.key_text(name)
    number = find_item(store, batch.id, text)
    if number is None and text.startswith("#") and NUMBER.fullmatch(text[1:]):
        number = ItemNo(int(text[1:]))
    found = item_of(store, batch, number) if number is not None else None
    if found is None:
        keys = [canonical.key_text(each.key) for each in islice(each_item(store, batch.id), SEARCHED_NAMES)]
        raise UsageError(f"batch {batch.name!r} has no item {text!r}: {_instead(text, keys, 'it has no items yet')}")
    return found


def item_of(store: Store, batch: Batch, number: int) -> StoredItem | None:
    """Return the item with that number, if there is one."""
    return next(iter(store.items(batch.id, lo=number, hi=number + 1, limit=1)), None)


def stage_numbered(batch: Batch, which: str | int) -> int:
    """Return the index of a stage, from its name or its index."""
    names = course.stage_names(batch)
    if isinstance(which, str) and which in names:
        return names.index(which)
    if NUMBER.fullmatch(str(which)) and int(which) < len(names):
        return int(which)
    raise UsageError(f"batch {batch.name!r} has no stage {which!r}: {_instead(str(which), names, 'it has none')}")


def stage_title(names: Sequence[str], stage: int) -> str:
    """Return the name of a stage for people; an item that passed the last stage is at the end."""
    return names[stage] if stage < len(names) else "end"


def _instead(name: str, known: Iterable[str], nothing: str) -> str:
    names = list(known)
    if not names:
        return nothing
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    shown = ", ".join(map(repr, names[:LISTED_NAMES]))
    return f"there is {shown}" + (" and more" if len(names) > LISTED_NAMES else "")
