"""Acts: changes to items outside of a lease, by a person or by the runtime in a person's place.

Whoever acts gathers items and decides about each; here it is written, in groups, and counted: what changed, what was
left alone and why, and what moved on before the write. Each change is guarded by the place it was decided for.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain, islice
from typing import Any, ClassVar, TypeVar

from holdfast.core.errors import UsageError
from holdfast.core.limits import ACT_ITEMS
from holdfast.core.model import Act, Batch, Change, Event, ItemNo
from holdfast.core.plain import Plain, plain
from holdfast.stores.base import Store

MEANWHILE = "it moved on meanwhile"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class By:
    """Who acts, and why: the journal keeps both."""

    actor: str
    reason: str

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise UsageError('the journal keeps the reason of every act: pass reason="…"')
        if not self.actor.strip():
            raise UsageError("name who acts: the journal keeps the actor of every act")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview(Plain):
    """What an act would do, before it is done: for machines what `keys` names, for people titles, rows and examples."""

    batch: str
    keys: str
    """What machines are told, in order: counts, facts, or fields of this."""
    items: int
    """How many would change."""
    counts: Mapping[str, int]
    """By what they are, or what would become of them."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    in_flight: int = 0
    """Items in the hands of an owner that is alive."""
    owners: tuple[str, ...] = ()
    """Those owners: what they do would not be committed."""
    usd: Decimal | None = None
    """What was paid for work that would be done again."""
    seconds: float | None = None
    """What it took."""
    first: tuple[Any, ...] = ()
    """The first of the items: their keys, or a row for each under `columns`."""
    columns: tuple[str, ...] = ()
    left_alone: Mapping[str, int] = field(default_factory=dict)
    """Why others would not change, and how many."""
    titles: tuple[str, ...] = ()
    rows: tuple[tuple[str, str], ...] = ()
    remark: str = ""
    warning: str = ""
    """What would keep the items from going on: the end of their batch has come."""

    def __getitem__(self, key: str) -> Any:
        for told in (self.counts, self.facts):
            if key in told:
                return told[key]
        return getattr(self, key)

    def as_dict(self) -> dict[str, Any]:
        return {key: plain(self[key]) for key in self.keys.split()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActResult(Plain):
    """What an act did."""

    _tells: ClassVar[str] = "kind batch changed left_alone=_left buried? warning?"

    kind: str
    batch: str
    changed: int
    left_alone: tuple[tuple[str, int], ...] = ()
    """(why, how many) of the items that were looked at and not changed."""
    buried: int = 0
    """Of those changed, how many became dead letters instead, because they had been re-enqueued too often."""
    warning: str = ""
    """What keeps the items from going on, and what to do: the end of their batch has come."""

    @property
    def _left(self) -> dict[str, int]:
        return dict(self.left_alone)


class Acts:
    """What somebody does to the items of a batch, and what it has come to so far."""

    def __init__(self, store: Store, batch: Batch, by: By) -> None:
        self._store, self._batch, self._by = store, batch, by
        self.changed = 0
        self.left = Counter[str]()
        """Why items were left alone, and how many."""

    def carry_out(
        self, kind: str, decided: Iterable[Change | str], *, seize: bool = False, body: bytes = b"", beyond: int = 0
    ) -> "Acts":
        """Write what was decided, so many items at a time: memory stays flat, and no transaction is long. Text is the
        reason for which an item is left alone."""
        for group in grouped(decided):
            self.left.update(why for why in group if isinstance(why, str))
            changes = [change for change in group if isinstance(change, Change)]
            self.write(kind, changes, seize=seize, body=body, beyond=beyond)
        return self

    def write(
        self, kind: str, changes: Sequence[Change], *, seize: bool = False, lifts: bool = False, body: bytes = b"",
        beyond: int = 0, events: Sequence[Event] = (),
    ) -> list[ItemNo]:  # fmt: skip
        """Write some changes as one act, with one entry in the journal for each chunk; return the items that changed.
        The others have moved on since it was decided."""
        if not changes:
            return []
        by = self._by
        landed = self._store.act(
            Act(id=os.urandom(16), batch=self._batch.id, kind=kind, actor=by.actor, reason=by.reason,
                at_items=tuple(changes), body=body, seize=seize, lifts=lifts, beyond=beyond, events=tuple(events))
        )  # fmt: skip
        self.changed += len(landed)
        self.left[MEANWHILE] += len(changes) - len(landed)
        return landed

    def result(self, kind: str, *, buried: int = 0, warning: str = "") -> ActResult:
        """Tell what was done, and what was left alone."""
        left = tuple((+self.left).items())
        return ActResult(kind=kind, batch=self._batch.name, changed=self.changed, left_alone=left, buried=buried,
                      warning=warning)  # fmt: skip


def grouped(each: Iterable[T]) -> Iterator[list[T]]:
    """Yield as many at a time as one act may change, read as they are needed."""
    rest = iter(each)
    for first in rest:
        yield list(chain([first], islice(rest, ACT_ITEMS - 1)))
