"""The blame that parts of a batch carry: whose owners died before a commit, how often, and what follows from it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core import journal, lease
from holdfast.core.limits import BLAME_ENTRIES
from holdfast.core.model import Batch, Chunk, ChunkId
from holdfast.runtime.journal import backward
from holdfast.runtime.report import orphans
from holdfast.runtime.text import command, many
from holdfast.stores import owners
from holdfast.stores.base import Store

LOOKED_AT = 16
"""Of parts that carry blame, those whose deaths are counted in the journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """What deaths weigh on a batch."""

    batch: str
    parts: int
    items: int
    deaths: int
    """In a row, of owners of one part, with nothing of it committed: the most there are."""
    is_suspected: bool
    """Whether a part of it is handed out in halves already."""

    @property
    def brief(self) -> str:
        """For a progress line."""
        return f"careful: {many(self.items, 'item')} whose last {_owners(self.deaths)} died"

    @property
    def note(self) -> str:
        """Who died, and what follows."""
        small = ", and that part is run in halves, with nothing beside it" if self.is_suspected else ""
        return (
            f"the last {_owners(self.deaths)} of a part died before a commit: no more is claimed than can be "
            f"started at once{small}, until something of it is committed"
        )

    def __str__(self) -> str:
        return f"{many(self.items, 'item')} in {many(self.parts, 'part')}: {self.note} ({lifting(self.batch)})"

    def as_dict(self) -> dict[str, Any]:
        return {"parts": self.parts, "items": self.items, "deaths": self.deaths, "suspected": self.is_suspected}


def of(
    store: Store,
    batch: Batch,
    chunks: Sequence[Chunk],
    *,
    now: float,
    is_dead: orphans.IsDead = owners.is_dead,
    only: ChunkId | None = None,
) -> Blame | None:
    """The blame in a batch, or on one chunk of it; None where there is none."""
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
        deaths=max(deaths(store, chunk, known, now=now, is_dead=is_dead) for chunk in worst),
        is_suspected=any(lease.is_suspect(_weight(chunk, now, is_dead)) for chunk in blamed),
    )


def find_carriers(chunks: Sequence[Chunk], *, now: float, is_dead: orphans.IsDead = owners.is_dead) -> list[Chunk]:
    """The chunks that carry blame."""
    fresh = [chunk for chunk in chunks if not chunk.progressed]
    return [each for each in fresh if lease.carries_blame(each, is_held=orphans.is_live(each, now, is_dead))]


def deaths(
    store: Store,
    chunk: Chunk,
    known: Mapping[ChunkId, Chunk],
    *,
    now: float,
    is_dead: orphans.IsDead = owners.is_dead,
) -> int:
    """How many owners in a row died with nothing committed, as the chains of the chunk and its parents tell."""
    claims = 0
    for header in _backwards(store, chunk, known):
        if header.kind == "claimed":
            claims += 1
        elif header.kind != journal.STARTED:
            break
    return max(1, claims - orphans.is_live(chunk, now, is_dead))


def lifting(batch: str) -> str:
    """The command that lifts it."""
    return f"{command('reset', batch, options='--blame')} lifts that"


def _weight(chunk: Chunk, now: float, is_dead: orphans.IsDead) -> int:
    return chunk.blame if orphans.is_live(chunk, now, is_dead) else lease.blamed(chunk)


def _owners(count: int) -> str:
    return "owner" if count == 1 else f"{count:,} owners"


def _backwards(store: Store, chunk: Chunk, known: Mapping[ChunkId, Chunk]) -> Iterator[journal.Header]:
    """The headers of a chain, newest first; behind its first those of its parent's from before it was cut off. A
    parent may have come a long way since: only so many entries are read."""
    cut: ChunkId | None = None
    left = BLAME_ENTRIES
    while left > 0:
        for entry in backward(store, chunk, most=left):
            left -= 1
            if cut is None:
                yield entry.header
            elif _child(entry.body) == cut:
                cut = None
        if chunk.parent is None or chunk.parent not in known:
            return
        cut, chunk = chunk.id, known[chunk.parent]


def _child(body: journal.Body) -> int | None:
    return body.child[0] if isinstance(body, journal.Claimed) and body.child is not None else None
