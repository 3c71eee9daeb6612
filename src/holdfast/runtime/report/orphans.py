"""Owners of chunks, present and last; orphans; and the blame that dead owners leave."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, ClassVar

from holdfast.core import acts as core
from holdfast.core import canonical, journal, lease, retry
from holdfast.core.acts import OrphanFacts, OrphanKind
from holdfast.core.course import stage_names
from holdfast.core.limits import BLAME_ENTRIES, ORPHAN_GRACE, SUSPECT
from holdfast.core.model import START, Batch, BatchMode, Chunk, ChunkId, ItemState, Key, State, StoredItem
from holdfast.core.plain import Plain
from holdfast.runtime import lookup
from holdfast.runtime.define.definition import Patience
from holdfast.runtime.journal import JournalEntry, backward, forward, forward_over
from holdfast.runtime.text import command, many
from holdfast.stores import owners
from holdfast.stores.base import Store, each_item
from holdfast.stores.owners import IsDead


@dataclass(frozen=True, slots=True)
class LastGrant:
    """The newest grant of a chunk."""

    owner: str
    at: float


def last_grant(store: Store, chunk: Chunk) -> LastGrant | None:
    """Return the newest grant of the chunk itself; None if it was never claimed."""
    grants = (LastGrant(entry.actor, entry.at) for entry in backward(store, chunk, "claimed"))
    return next(grants, None)


class Burials:
    """The times at which the dead letters of a batch were buried. Chains are read once, family by family: a family is
    one ingested group, with every chunk that was cut from it."""

    def __init__(self, store: Store, batch: Batch) -> None:
        self._store, self._batch = store, batch
        self._admissions: list[tuple[int, int, float]] | None = None

    def of(self, family: Sequence[Chunk]) -> dict[int, float]:
        """Return, for every item that was ever buried in these chunks, its number and when it was last buried."""
        found: dict[int, float] = {}
        for entry in forward_over(self._store, family):
            buried = list(_buried(entry.body))
            if buried:
                found.update(dict.fromkeys(buried, entry.at))
        return found

    def admitted_at(self, n: int) -> float:
        """Return when an item was admitted: a dead letter without a burial was invalid from the start."""
        if self._admissions is None:
            self._admissions = list(self._read_admissions())
        return next((at for lo, hi, at in self._admissions if lo <= n < hi), self._batch.opened_at)

    def _read_admissions(self) -> Iterator[tuple[int, int, float]]:
        for entry in forward(self._store, self._batch):
            body = entry.body
            if isinstance(body, journal.Ingested) and body.hi > body.lo:
                yield body.lo, body.hi, entry.at


def families(chunks: Sequence[Chunk]) -> Iterator[list[Chunk]]:
    """Yield groups of chunks that were one chunk when they were ingested, in the order of their items."""
    roots: dict[ChunkId, ChunkId] = {}
    for chunk in sorted(chunks, key=lambda chunk: chunk.id):
        roots[chunk.id] = chunk.id if chunk.parent is None else roots.get(chunk.parent, chunk.id)
    by_root: dict[ChunkId, list[Chunk]] = {}
    for chunk in chunks:
        by_root.setdefault(roots[chunk.id], []).append(chunk)
    yield from by_root.values()


def _buried(body: journal.Body) -> Iterator[int]:
    if isinstance(body, journal.Checkpointed):
        yield from (attempt.n for attempt in body.attempts if attempt.outcome == "bury")
    elif isinstance(body, journal.Acted):
        yield from (moved.n for moved in body.items if moved.after == State.DEAD)


Grants = Callable[[Chunk], LastGrant | None]


class Activity:
    """The facts about the pending items of a batch, at one moment."""

    def __init__(
        self,
        chunks: Sequence[Chunk],
        *,
        now: float,
        grace: float = ORPHAN_GRACE,
        course: BatchMode = BatchMode.OPEN,
        is_dead: IsDead = owners.is_dead,
        last_grant: Grants = lambda chunk: None,
    ) -> None:
        self.now, self.grace = now, grace
        self._chunks, self._course, self._is_dead, self._last_grant = chunks, course, is_dead, last_grant

    @staticmethod
    def of(
        store: Store, batch: Batch, chunks: Sequence[Chunk], *, now: float, is_dead: IsDead = owners.is_dead
    ) -> "Activity":
        """Return the activity of a batch, with the patience of its last run."""
        return Activity(
            chunks, now=now, grace=Patience.of(batch).orphan_after, course=batch.course, is_dead=is_dead,
            last_grant=lambda chunk: last_grant(store, chunk),
        )  # fmt: skip

    def facts(self, chunk: Chunk, place: ItemState | None = None) -> OrphanFacts:
        """Return the facts about the pending items of a chunk, or about one at `place`."""
        return OrphanFacts(
            state=State.PENDING,
            course=self._course,
            progressed_at=chunk.touched_at,
            due=max(retry.chunk_waits_until(chunk, self.now), retry.item_waits_until(place or START, self.now)),
            was_claimed=self._was_claimed(chunk),
            is_held=owners.is_live(chunk, self.now, self._is_dead),
            written_at=self._written_at,
        )

    def _was_claimed(self, chunk: Chunk) -> bool:
        """Return whether the chunk was claimed since it last made progress."""
        if chunk.seq == 0 or self.now - chunk.touched_at <= self.grace:  # never claimed, or within the grace period
            return False
        if not _is_seized(chunk):
            return not chunk.progressed
        grant = self._last_grant(chunk)
        return grant is not None and grant.at >= chunk.touched_at

    @cached_property
    def _written_at(self) -> float:
        """When anything was last written in the batch: by the rows of its chunks, and if those are old, by its
        claims."""
        newest = max((chunk.touched_at for chunk in self._chunks), default=0.0)
        if self.now - newest <= self.grace:
            return newest
        claimed = [chunk for chunk in self._chunks if chunk.seq and (not chunk.progressed or _is_seized(chunk))]
        found = [grant.at for grant in map(self._last_grant, claimed) if grant is not None]
        return max([newest, *found])


def _is_seized(chunk: Chunk) -> bool:
    """Return whether an act took the chunk from its owner since the last grant, or only an act ever touched it."""
    return chunk.owner is None and chunk.version == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan(Plain):
    """An item that is stuck and waits for a person."""

    _tells: ClassVar[str] = (
        "batch key n stage kind since owner held=is_held error attempts=place.attempt "
        "epoch=place.epoch requeues=place.requeues begun=was_begun usd"
    )

    batch: str
    n: int
    key: Key
    stage: str
    kind: OrphanKind
    since: float
    """Since when it is stuck: its last progress, the end of its wait, or the last write in its batch; for a dead
    letter, when it was buried."""
    owner: str
    """Its owner, or its last one; empty if it was never claimed."""
    is_held: bool
    """True if that owner is alive and its lease has not expired."""
    place: ItemState
    chunk: int
    was_begun: bool = True
    """True if it was ever claimed."""

    @property
    def usd(self) -> Decimal:
        return canonical.to_usd(self.place.spent)

    @property
    def error(self) -> str:
        """Its last error, as far as its place has it."""
        place = self.place
        return f"{place.code}: {place.reason}" if place.code and place.reason != place.code else place.code


def find(store: Store, batch: Batch, *, is_dead: IsDead = owners.is_dead) -> Iterator[Orphan]:
    """Yield every orphan of the batch, in the order of the items of each chunk."""
    eye = OrphanFinder(store, batch, is_dead=is_dead)
    for family in families(eye.chunks):
        yield from eye.look(family)


class OrphanFinder:
    """A search for orphans in a batch at one moment."""

    def __init__(self, store: Store, batch: Batch, *, is_dead: IsDead = owners.is_dead) -> None:
        self._store, self._batch = store, batch
        self.now, self.chunks = store.now(), store.chunks(batch.id)
        self._activity = Activity.of(store, batch, self.chunks, now=self.now, is_dead=is_dead)
        self._patience = Patience.of(batch)
        self._names = stage_names(batch)
        self._burials = Burials(store, batch)

    def look(self, family: list[Chunk]) -> Iterator[Orphan]:
        """Yield the orphans in some chunks of one family."""
        buried: dict[int, float] | None = None
        for chunk in family:
            if chunk.pending:
                yield from self._pending(chunk)
            if chunk.counts.dead and self._may_be_unanswered():
                buried = self._burials.of(family) if buried is None else buried
                yield from self._dead(chunk, buried)

    def at(self, item: StoredItem) -> Orphan | str:
        """Return the item as an orphan; as text, why it is not one."""
        family = next(f for f in families(self.chunks) if any(c.lo <= item.n < c.hi for c in f))
        chunk = next(c for c in family if c.lo <= item.n < c.hi)
        if item.place.state is State.DEAD:
            at = self._buried_at(item, self._burials.of(family))
            found = self._judge(item, chunk, core.OrphanFacts(state=State.DEAD, progressed_at=at), "")
            return found if found is not None else "a dead letter: see `holdfast dead`"
        if item.place.state is not State.PENDING:
            return f"{item.place.state}, not pending"
        found = self._judge(item, chunk, self._activity.facts(chunk, item.place), self._owner(chunk))
        return found if found is not None else "not an orphan: it, or its batch, made progress within the grace period"

    def _pending(self, chunk: Chunk) -> Iterator[Orphan]:
        if self._kind(self._activity.facts(chunk)) is None:
            return
        owner = self._owner(chunk)
        for item in each_item(self._store, self._batch.id, state=State.PENDING, lo=chunk.lo, hi=chunk.hi):
            found = self._judge(item, chunk, self._activity.facts(chunk, item.place), owner)
            if found is not None:
                yield found

    def _dead(self, chunk: Chunk, buried: dict[int, float]) -> Iterator[Orphan]:
        for item in each_item(self._store, self._batch.id, state=State.DEAD, lo=chunk.lo, hi=chunk.hi):
            facts = core.OrphanFacts(state=State.DEAD, progressed_at=self._buried_at(item, buried))
            found = self._judge(item, chunk, facts, "")
            if found is not None:
                yield found

    def _buried_at(self, item: StoredItem, buried: dict[int, float]) -> float:
        at = buried.get(item.n)
        return self._burials.admitted_at(item.n) if at is None else at

    def _may_be_unanswered(self) -> bool:
        return self.now - self._batch.opened_at > self._patience.dead_after

    def _owner(self, chunk: Chunk) -> str:
        """Return the owner of the chunk, or its last one."""
        if chunk.owner is not None:
            return chunk.owner
        grant = last_grant(self._store, chunk)
        return "" if grant is None else grant.owner

    def _kind(self, facts: core.OrphanFacts) -> OrphanKind | None:
        grace, dead_after = self._patience.orphan_after, self._patience.dead_after
        return core.judge_orphan(facts, now=self.now, grace=grace, dead_after=dead_after)

    def _judge(self, item: StoredItem, chunk: Chunk, facts: core.OrphanFacts, owner: str) -> Orphan | None:
        kind = self._kind(facts)
        if kind is None:
            return None
        return Orphan(
            batch=self._batch.name,
            n=item.n,
            key=item.key,
            stage=lookup.stage_title(self._names, item.place.stage),
            kind=kind,
            since=facts.progressed_at if kind is OrphanKind.UNANSWERED else core.still_since(facts),
            owner=owners.short(owner),
            is_held=facts.is_held,
            place=item.place,
            chunk=chunk.id,
            was_begun=core.begun(chunk, item.place),
        )


LOOKED_AT = 16
"""The most chunks with blame whose deaths are counted in the journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame(Plain):
    """The blame in a batch: deaths of owners without a commit."""

    _tells: ClassVar[str] = "parts items deaths suspected=is_suspected"

    batch: str
    parts: int
    items: int
    deaths: int
    """The most owners of one chunk in a row that died without a commit."""
    is_suspected: bool
    """True if a chunk of it is already granted in halves."""

    @property
    def brief(self) -> str:
        """The blame in short, for a progress line."""
        return f"careful: {many(self.items, 'item')} whose last {_owners(self.deaths)} died"

    @property
    def note(self) -> str:
        """The deaths, and what follows from them."""
        small = ", and that chunk is run in halves, with nothing beside it" if self.is_suspected else ""
        return (
            f"the last {_owners(self.deaths)} of a chunk died before a commit: no more is claimed than can be started "
            f"at once{small}, until something of it is committed"
        )

    def __str__(self) -> str:
        return f"{many(self.items, 'item')} in {many(self.parts, 'chunk')}: {self.note} ({lifting(self.batch)})"


def blame_of(
    store: Store,
    batch: Batch,
    chunks: Sequence[Chunk],
    *,
    now: float,
    is_dead: IsDead = owners.is_dead,
    only: ChunkId | None = None,
) -> Blame | None:
    """Return the blame in a batch, or of one of its chunks; None if there is none."""
    asked = chunks if only is None else [chunk for chunk in chunks if chunk.id == only]
    blamed = find_carriers(asked, now=now, is_dead=is_dead)
    if not blamed:
        return None
    known = {chunk.id: chunk for chunk in chunks}
    worst = sorted(blamed, key=lambda chunk: -chunk.blame)[:LOOKED_AT]
    return Blame(
        batch=batch.name,
        parts=len(blamed),
        items=sum(chunk.pending for chunk in blamed),
        deaths=max(count_deaths(store, chunk, known, now=now, is_dead=is_dead) for chunk in worst),
        is_suspected=any(_weight(chunk, now, is_dead) >= SUSPECT for chunk in blamed),
    )


def find_carriers(chunks: Sequence[Chunk], *, now: float, is_dead: IsDead = owners.is_dead) -> list[Chunk]:
    """Return the chunks that carry blame."""
    fresh = [chunk for chunk in chunks if not chunk.progressed]
    return [each for each in fresh if lease.carries_blame(each, is_held=owners.is_live(each, now, is_dead))]


def count_deaths(
    store: Store,
    chunk: Chunk,
    known: Mapping[ChunkId, Chunk],
    *,
    now: float,
    is_dead: IsDead = owners.is_dead,
) -> int:
    """Return how many owners in a row died without a commit, by the chains of the chunk and its parents."""
    claims = 0
    for header in _backwards(store, chunk, known):
        if header.kind == "claimed":
            claims += 1
        elif header.kind != journal.STARTED:
            break
    return max(1, claims - owners.is_live(chunk, now, is_dead))


def lifting(batch: str) -> str:
    """Return the command that lifts the blame."""
    return f"{command('reset', batch, options='--blame')} lifts that"


def _weight(chunk: Chunk, now: float, is_dead: IsDead) -> int:
    return chunk.blame if owners.is_live(chunk, now, is_dead) else lease.blamed(chunk)


def _owners(count: int) -> str:
    return "owner" if count == 1 else f"{count:,} owners"


def _backwards(store: Store, chunk: Chunk, known: Mapping[ChunkId, Chunk]) -> Iterator[journal.Header]:
    """Yield the headers of a chain, newest first, then those of its parent from before it was cut. A parent's chain may
    have grown long since, so the number of entries is limited."""
    cut: Chunk | None = None
    left = BLAME_ENTRIES
    while left > 0:
        for entry in backward(store, chunk, most=left):
            left -= 1
            if cut is None:
                yield entry.header
            elif _is_cut(entry, cut):
                cut = None
        if chunk.parent is None or chunk.parent not in known:
            return
        cut, chunk = chunk, known[chunk.parent]


def _is_cut(entry: JournalEntry, chunk: Chunk) -> bool:
    """Return whether a chunk was made by this entry of its parent: it was cut off, or succeeds it."""
    body, number = entry.body, chunk.id if entry.header.format == 1 else chunk.number
    if isinstance(body, journal.ChainEnded):
        return body.successor == number
    return isinstance(body, journal.Claimed) and body.child is not None and body.child[0] == number


def context_of(note: bytes, n: int) -> dict[str, Any]:
    """Return what an item was doing when it was resolved, from the note of the entry; empty if there is none."""
    said = canonical.decode(note) if note else {}
    items = said.get("items", []) if isinstance(said, dict) else []
    return next((dict(each) for each in items if isinstance(each, dict) and each.get("n") == n), {})
