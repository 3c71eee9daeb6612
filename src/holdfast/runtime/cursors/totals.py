"""Whether the total of a range is made of every row once: told from the journal, and stored nowhere.

A person who sets a cursor may leave rows out of a total, or have some counted twice. That is allowed, and it is said:
before it is done, and from then on wherever the batch is told of.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.core import canonical, cursor, passes, tally
from holdfast.core.cursor import Standing
from holdfast.core.model import Batch, Checkpoint
from holdfast.core.passes import Mark, Story
from holdfast.core.tally import Tally
from holdfast.runtime.cursors.history import Past, history
from holdfast.runtime.cursors.planting import CLONED, IMPORTED, PLANTED
from holdfast.runtime.cursors.standing import is_scan, standings
from holdfast.runtime.journal import forward
from holdfast.runtime.text import when
from holdfast.stores import owners
from holdfast.stores.base import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """What there is to know of the total of a partition."""

    key: Any
    tally: Tally
    act: Past
    """When a person set its cursor, the last time."""

    def __str__(self) -> str:
        why = f": {self.act.reason}" if self.act.reason else ""
        what = "was reset" if self.act.kind == "reset" else f"was {self.act.kind.replace('_', ' ')}"
        who = f"by {owners.short(self.act.actor)} on {when(self.act.at)}{why}"
        return f"partition {self.key} {what} {who}; {self.tally.standing()}"

    def as_dict(self) -> dict[str, Any]:
        told = {"partition": self.key, "by": self.act.actor, "at": self.act.at, "reason": self.act.reason}
        return {**told, **self.tally.as_dict(), "text": str(self)}


def story_of(store: Store, batch: Batch, at: Standing, more: Iterable[Mark] = ()) -> Story:
    """What became of the rows of a partition, and would with some marks more."""

    def marks() -> Iterator[Mark]:
        for past in history(store, batch, at.n):
            yield mark_of(past)
        yield from more

    return passes.story(marks, at.after, at.until)


def mark_of(past: Past) -> Mark:
    return Mark(at=cursor.decode(past.cursor) if past.cursor else None, rows=past.rows, acc=past.digest,
                is_act=past.is_act, is_end=past.is_end,
                is_uncounted=past.kind == IMPORTED and not past.rows)  # fmt: skip


def tally_after(store: Store, batch: Batch, at: Standing, to: Checkpoint) -> Tally:
    """What the total would leave out and count twice if the partition went on from a checkpoint."""
    place = cursor.decode(to.cursor) if to.cursor else None
    mark = Mark(at=place, rows=to.rows, acc=canonical.digest_of_acc(at.salt, to.acc), is_act=True)
    return tally.tally(story_of(store, batch, at, [mark]))


def remarks(store: Store, batch: Batch) -> list[Remark]:
    """Every partition whose total does not count every row once, because of what a person did. The journal is read of
    those only whose cursor may have been set."""
    if not is_scan(batch):
        return []
    found, begun_with = [], _begun_with(store, batch)
    for at in standings(store, batch):
        if at.place.epoch == 0:
            continue
        acts = [past for past in history(store, batch, at.n) if past.is_act]
        if not acts:
            continue
        seen = begun_with.get(canonical.key_text(at.key)) if acts[-1].kind == CLONED else None
        seen = seen or tally.tally(story_of(store, batch, at))
        if not seen.is_whole:
            found.append(Remark(key=at.key, tally=seen, act=acts[-1]))
    return found


def for_a_clone(found: Iterable[Remark]) -> list[dict[str, Any]]:
    """What a clone is told of the totals it begins with, for its journal."""
    return [{"partition": each.key, "text": str(each), "tally": msgspec.to_builtins(each.tally)} for each in found]


def _begun_with(store: Store, batch: Batch) -> dict[str, Tally]:
    """What is amiss with the totals that a clone began with, by the key of the partition."""
    for entry in forward(store, batch, PLANTED):
        told = entry.note.get("totals", ())
        return {canonical.key_text(each["partition"]): msgspec.convert(each["tally"], Tally) for each in told}
    return {}
