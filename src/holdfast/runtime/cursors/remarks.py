"""The lasting remark on a partition whose cursor a person set: its total may not be made of every row once.

It is told from the journal, and stored nowhere: a state that the partition was in before takes it away again, and so
does the beginning.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.core import canonical, cursor
from holdfast.core.cursor import Cursor, Standing
from holdfast.core.model import Batch
from holdfast.runtime.cursors.history import CLONED, IMPORTED, PLANTED, Past, history
from holdfast.runtime.cursors.standing import is_scan, standings
from holdfast.runtime.journal import forward
from holdfast.runtime.text import when
from holdfast.stores import owners
from holdfast.stores.base import Store

MISCOUNTS = "its total may leave rows out or count them twice"
PASSES_BY = "rows may have been passed by and never handled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """What there is to know of the total of a partition."""

    key: Any
    act: Past
    """When a person set its cursor: since then it is so."""
    accumulates: bool
    """False where there is no total, and rows may be left out of the work itself."""
    text: str

    def __str__(self) -> str:
        return self.text

    def as_dict(self) -> dict[str, Any]:
        return {"partition": self.key, "by": self.act.actor, "at": self.act.at, "reason": self.act.reason,
                "text": self.text}  # fmt: skip


def remarks(store: Store, batch: Batch, partition: str | None = None) -> list[Remark]:
    """Return a remark for every partition that has one, or for the one that is named. The journal is read of those
    only whose cursor may have been set."""
    if not is_scan(batch):
        return []
    found, begun_with = [], _begun_with(store, batch)
    for at in standings(store, batch, partition):
        before = begun_with.get(canonical.key_text(at.key), "")
        if at.place.epoch and (made := _remark(store, batch, at, before)) is not None:
            found.append(made)
    return found


def for_a_clone(found: Iterable[Remark]) -> list[dict[str, Any]]:
    """Return what a clone is told of the totals it begins with, for its journal."""
    return [{"partition": each.key, "text": each.text} for each in found]


def _begun_with(store: Store, batch: Batch) -> dict[str, str]:
    """Return what was known of the totals that a clone began with, by the key of the partition."""
    for entry in forward(store, batch, PLANTED):
        return {canonical.key_text(each["partition"]): each["text"] for each in entry.note.get("totals", ())}
    return {}


def _remark(store: Store, batch: Batch, at: Standing, before: str) -> Remark | None:
    """Read the journal twice: first for the states that a person set, then for which of them it was in before."""
    states = {_state(past) for past in history(store, batch, at.n) if past.is_act}
    since, accumulates = _set_at(history(store, batch, at.n), at.after, states, before) if states else (None, False)
    if since is None:
        return None
    why = f": {since.reason}" if since.reason else ""
    what = f"was {since.kind.replace('_', ' ')}" if since.kind in (CLONED, IMPORTED) else "was reset"
    follows = before if before and since.kind == CLONED else MISCOUNTS if accumulates else PASSES_BY
    text = f"partition {at.key} {what} by {owners.short(since.actor)} on {when(since.at)}{why}; {follows}"
    return Remark(key=at.key, act=since, accumulates=accumulates, text=text)


State = tuple[int, bytes, bytes]


def _state(past: Past) -> State:
    return past.rows, past.cursor, past.digest


def _set_at(pasts: Iterator[Past], begin: Cursor | None, states: set[State], before: str) -> tuple[Past | None, bool]:
    """Return the act since which the total may be wrong, if there is one, and whether there is a total at all. Without
    one, rows are passed by where the cursor is set beyond the furthest place that was walked to."""
    since: Past | None = None
    known, furthest, accumulates = set[State](), begin, False
    for past in pasts:
        place = cursor.decode(past.cursor) if past.cursor else begin
        accumulates |= bool(past.digest)
        if past.is_act and past.kind == CLONED:
            since = past if before else None
        elif past.is_act:
            is_fine = _state(past) in known if accumulates else cursor.compare(place, furthest) in (0, -1)
            if is_fine or not past.cursor:
                since = None
            elif since is None and past.kind != IMPORTED:  # a state from elsewhere says what was handled there
                since = past
        if since is None:
            known |= {_state(past)} & states
            furthest = furthest if cursor.compare(place, furthest) == -1 else place
    return since, accumulates
