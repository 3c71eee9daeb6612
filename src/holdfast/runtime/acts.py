"""Acts: changes to items outside of a lease, by a person or by the runtime in a person's place.

Whoever acts gathers items and decides about each; here it is written, in groups, and counted: what changed, what was
left alone and why, and what moved on before the write. Each change is guarded by the place it was decided for.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain, islice
from typing import Any, ClassVar, TypeVar

from holdfast.core.errors import UsageError
from holdfast.core.limits import ACT_ITEMS
from holdfast.core.model import Act, Batch, Change, Event, ItemNo
from holdfast.core.plain import Plain, plain
from holdfast.stores import owners
from holdfast.stores.base import Store

MEANWHILE = "it moved on meanwhile"
MOVED = "it came further since this was looked at: pause the batch or break its lease, and look again"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Who acts, and why: the journal keeps both."""

    name: str
    reason: str

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise UsageError('the journal keeps the reason of every act: pass reason="…"')
        if not self.name.strip():
            raise UsageError("name who acts: the journal keeps the actor of every act")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview(Plain):
    """What an act would do. `carry_out()` does it; `as_dict()` has it as data."""

    batch: str
    """The name of the batch."""
    keys: str
    """The keys of `as_dict()`, in order: counts, facts, or fields."""
    items: int
    """How many items would change."""
    counts: Mapping[str, int]
    """How many items there are of each kind, or would have each fate."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    in_flight: int = 0
    """How many of the items a living owner is working on."""
    owners: tuple[str, ...] = ()
    """Those owners. They could not commit their work any more."""
    usd: Decimal | None = None
    """The cost so far of work that would be done again."""
    seconds: float | None = None
    """The time that work took."""
    first: tuple[Any, ...] = ()
    """The first items: their keys, or a row for each under `columns`."""
    columns: tuple[str, ...] = ()
    more: int = 0
    """How many further rows there are."""
    left_alone: Mapping[str, int] = field(default_factory=dict)
    """How many items would not change, by reason."""
    titles: tuple[str, ...] = ()
    rows: tuple[tuple[str, str], ...] = ()
    remark: str = ""
    warning: str = ""
    """Why the items could not continue: their batch has ended."""
    question: str = ""
    """The question for a person: the act in a few words."""
    nothing_to_do: bool | None = None
    """Whether nothing would change; None means that the number of items decides."""
    perform: Callable[[Actor], "ActResult"] | None = field(default=None, repr=False, compare=False)
    """Carries out what is shown, if the items have not changed since."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing would change."""
        return not self.items if self.nothing_to_do is None else self.nothing_to_do

    def carry_out(self, *, reason: str, actor: str = "") -> "ActResult":
        """Carry out the act. Items that have changed since the preview are left alone."""
        assert self.perform is not None
        return self.perform(Actor(name=actor if actor else this_process(), reason=reason))

    def __getitem__(self, key: str) -> Any:
        for told in (self.counts, self.facts):
            if key in told:
                return told[key]
        return getattr(self, key)

    def as_dict(self) -> dict[str, Any]:
        return {key: plain(self[key]) for key in self.keys.split()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActResult(Plain):
    """The result of an act on items."""

    _tells: ClassVar[str] = "kind batch changed left_alone=_left buried? warning?"

    kind: str
    """What was done: `redriven`, `discarded`, `reset` …"""
    batch: str
    """The name of the batch."""
    changed: int
    """How many items changed."""
    left_alone: tuple[tuple[str, int], ...] = ()
    """Reasons why items were not changed, each with a number of items."""
    buried: int = 0
    """How many of the changed items became dead letters because they had been requeued too often."""
    warning: str = ""
    """Why the items cannot continue, and what to do: their batch has ended."""
    noun: str = "item"
    """What was changed: items, partitions or rows."""

    @property
    def overtaken(self) -> int:
        """How many items were left alone because they had changed since the preview."""
        return sum(count for why, count in self.left_alone if why in (MEANWHILE, MOVED))

    @property
    def _left(self) -> dict[str, int]:
        return dict(self.left_alone)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChange(Plain):
    """The result of an act on a batch as a whole, and the batch after it."""

    _tells: ClassVar[str] = "act batch changed mode expected closed_at sealed_at admitted end unexplained"

    act: str
    """paused, unpaused, expected, closed, sealed or reopened"""
    batch: str
    """The name of the batch."""
    changed: bool
    """False if nothing had to be changed."""
    mode: str
    """`open`, `paused` or `cancelled`."""
    expected: int | None
    """How many items the batch has in total, if that was recorded."""
    closed_at: float | None
    """When it was closed to new items, in seconds since 1970."""
    sealed_at: float | None
    """When it was sealed."""
    admitted: int
    """How many items it has."""
    end: str | None = None
    """How the batch ended, if this act ended it."""
    unexplained: tuple[str, ...] = ()
    """What does not add up at its end."""


def this_process() -> str:
    """Return who acts where nobody is named: this process."""
    return owners.short(owners.new_owner())


class Acts:
    """What somebody does to the items of a batch, and what it has come to so far."""

    def __init__(self, store: Store, batch: Batch, by: Actor) -> None:
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
            Act(id=os.urandom(16), batch=self._batch.id, kind=kind, actor=by.name, reason=by.reason,
                at_items=tuple(changes), body=body, seize=seize, lifts=lifts, beyond=beyond, events=tuple(events))
        )  # fmt: skip
        self.changed += len(landed)
        self.left[MEANWHILE] += len(changes) - len(landed)
        return landed

    def result(self, kind: str, *, buried: int = 0, warning: str = "", noun: str = "item") -> ActResult:
        """Tell what was done, and what was left alone."""
        left = tuple((+self.left).items())
        return ActResult(kind=kind, batch=self._batch.name, changed=self.changed, left_alone=left, buried=buried,
                         warning=warning, noun=noun)  # fmt: skip


def grouped(each: Iterable[T]) -> Iterator[list[T]]:
    """Yield as many at a time as one act may change, read as they are needed."""
    rest = iter(each)
    for first in rest:
        yield list(chain([first], islice(rest, ACT_ITEMS - 1)))
