"""Acts: changes to items outside of a lease, by a person or by the runtime on a person's behalf.

The caller gathers items and decides about each; here the changes are written, in groups, and counted: what changed,
what was left alone and why, and what moved on before the write. Each change is guarded by the place for which it was
decided.
"""

import os
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import chain, islice
from typing import Any, ClassVar, Literal, TypeVar, overload

from holdfast.core import canonical
from holdfast.core.errors import UsageError
from holdfast.core.limits import ACT_ITEMS, MESSAGE_CHARS
from holdfast.core.model import Act, Batch, Change, Event, ItemNo, StoredItem
from holdfast.core.plain import Plain, plain
from holdfast.stores import owners
from holdfast.stores.base import Store

MEANWHILE = "it moved on meanwhile"
MOVED = "it has advanced since the preview: pause the batch or break its lease, and try again"
T = TypeVar("T")


def check_words(text: str, what: str) -> str:
    """Return a text that the journal is to keep; refuse anything else, and one that is too long."""
    if not isinstance(text, str):
        raise UsageError(f"{what}={text!r}: pass a text; nothing was changed")
    if len(text) > MESSAGE_CHARS or text != canonical.storable(text):
        raise UsageError(f"the {what} has to be text of at most {MESSAGE_CHARS:,} characters; nothing was changed")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """The person or program that acts, and the reason: the journal keeps both."""

    name: str
    reason: str

    def __post_init__(self) -> None:
        if not check_words(self.reason, "reason").strip():
            raise UsageError('the journal keeps the reason of every act: pass reason="…"')
        if not check_words(self.name, "actor").strip():
            raise UsageError("pass an actor: the journal keeps the actor of every act")


class PreviewedItems:
    """The items that a preview showed, each with the state it had: 16 bytes an item, however many there are."""

    def __init__(self) -> None:
        self._numbers, self._states = array("Q"), array("q")
        self._in_order = True

    def add(self, n: int, state: Hashable) -> None:
        """Add an item, with everything that has to be the same when the act is carried out."""
        self._in_order = self._in_order and (not self._numbers or self._numbers[-1] < n)
        self._numbers.append(n)
        self._states.append(hash(state))

    def has(self, n: int, state: Hashable) -> bool:
        """Return whether the item was shown, in this very state."""
        if not self._in_order:  # they came chunk by chunk, and a chunk that was cut off another one comes last
            self._sort()
        at = bisect_left(self._numbers, n)
        return at < len(self._numbers) and self._numbers[at] == n and self._states[at] == hash(state)

    def _sort(self) -> None:
        order = sorted(range(len(self._numbers)), key=self._numbers.__getitem__)
        self._numbers = array("Q", (self._numbers[at] for at in order))
        self._states = array("q", (self._states[at] for at in order))
        self._in_order = True

    def guard(self, decide: Callable[[StoredItem], Change | str]) -> Callable[[StoredItem], Change | str]:
        """Return a decision that leaves alone every item that was not shown as it is now."""

        def guarded(item: StoredItem) -> Change | str:
            decided = decide(item)
            return decided if isinstance(decided, str) or self.has(item.n, item.place) else MEANWHILE

        return guarded


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
    """Other facts about the act, such as the stage that items begin at."""
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
    """The headings of `first`, if it has rows."""
    more: int = 0
    """How many further rows there are."""
    left_alone: Mapping[str, int] = field(default_factory=dict)
    """How many items would not change, by reason."""
    titles: tuple[str, ...] = ()
    """The act in sentences."""
    rows: tuple[tuple[str, str], ...] = ()
    """Details, each with a label."""
    remark: str = ""
    """A remark at the end."""
    warning: str = ""
    """Why the items could not continue: their batch has ended."""
    question: str = ""
    """The question for a person: the act in a few words."""
    nothing_to_do: bool | None = None
    """Whether nothing would change; None means that the number of items decides."""
    perform: Callable[[Actor, PreviewedItems | None], "ActResult"] | None = field(
        default=None, repr=False, compare=False
    )
    """Carries out the act on the items that were shown; on all that are there now if it is given None."""
    previewed: PreviewedItems | None = field(default=None, repr=False, compare=False)
    """The items that are shown, for acts that choose their items again when they are carried out."""

    def __str__(self) -> str:
        details = [f"  {label}: {text}" for label, text in self.rows]
        return "\n".join(filter(None, [*self.titles, *details, self.remark, self.warning]))

    @property
    def is_idle(self) -> bool:
        """Whether nothing would change."""
        return not self.items if self.nothing_to_do is None else self.nothing_to_do

    def carry_out(self, *, reason: str, actor: str = "") -> "ActResult":
        """Carry out the act. Items that have changed since the preview are left alone."""
        assert self.perform is not None
        return self.perform(Actor(name=actor_named(actor), reason=reason), self.previewed)

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

    def __str__(self) -> str:
        left = "".join(f"\n  left alone: {count:,} ({why})" for why, count in self.left_alone)
        return f"{self.kind}: {self.changed:,} {self.noun}{'s' * (self.changed != 1)} of {self.batch}{left}"

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


def actor_named(name: str) -> str:
    """Return the name of who acts; that of this process, if none is given."""
    return check_words(name, "actor") if name else owners.short(owners.new_owner())


class Acts:
    """The acts on the items of a batch, and their results so far."""

    def __init__(self, store: Store, batch: Batch, by: Actor) -> None:
        self._store, self._batch, self._by = store, batch, by
        self.changed = 0
        self.left = Counter[str]()
        """Why items were left alone, and how many."""

    def carry_out(
        self, kind: str, decided: Iterable[Change | str], *, seize: bool = False, body: bytes = b"", beyond: int = 0
    ) -> "Acts":
        """Write the decisions, so many items at a time: memory stays flat, and no transaction is long. A text is the
        reason why an item is left alone."""
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
        The others have moved on since the decision."""
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
        """Return what was done, and what was left alone."""
        left = tuple((+self.left).items())
        return ActResult(kind=kind, batch=self._batch.name, changed=self.changed, left_alone=left, buried=buried,
                         warning=warning, noun=noun)  # fmt: skip


def grouped(each: Iterable[T]) -> Iterator[list[T]]:
    """Yield groups of as many as one act may change, read as they are needed."""
    rest = iter(each)
    for first in rest:
        yield list(chain([first], islice(rest, ACT_ITEMS - 1)))


@overload
def act(look: Callable[[], Preview], reason: str, actor: str, dry_run: Literal[True]) -> Preview: ...


@overload
def act(look: Callable[[], Preview], reason: str, actor: str, dry_run: Literal[False]) -> ActResult: ...


@overload
def act(look: Callable[[], Preview], reason: str, actor: str, dry_run: bool) -> Preview | ActResult: ...


def act(look: Callable[[], Preview], reason: str, actor: str, dry_run: bool) -> Preview | ActResult:
    """Return what an act would do; or do it to all that is there now, and return what it did."""
    preview = look()
    return preview if dry_run else replace(preview, previewed=None).carry_out(reason=reason, actor=actor)
