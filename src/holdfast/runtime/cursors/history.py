"""Every checkpoint that a range ever had, from the journal: one entry each, in order, never rewritten."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from holdfast.core import canonical, cursor, journal
from holdfast.core.model import Batch, Chunk
from holdfast.runtime.journal import JournalEntry, backward_of, forward, forward_of
from holdfast.stores.base import Store

BEGUN, PLANTED = "planting", "planted"
"""Entries of a batch that begins in the middle: before its first item, and when it is whole."""
CLONED, IMPORTED = "cloned", "imported"
"""What such a batch is: the other half of one that is here, or one that comes from elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """A checkpoint as the journal has it: written by a commit, or set by a person."""

    at: float
    n: int
    rows: int
    cursor: bytes
    kind: str
    """`checkpoint`, or what a person did."""
    actor: str
    fence: int
    commit_id: str
    entry: str
    reason: str = ""
    digest: bytes = b""
    """Of what is accumulated; empty where nothing is."""
    is_end: bool = False
    """The range was done with it."""
    spend: journal.Spend | None = None
    """What its rows cost and measured, as their handler said."""

    @property
    def usd(self) -> Decimal:
        return canonical.to_usd(0 if self.spend is None else self.spend.usd)

    @property
    def is_act(self) -> bool:
        return self.kind != "checkpoint"

    @property
    def position(self) -> journal.Position:
        return journal.Position(self.n, self.rows, self.cursor, self.digest)

    def as_dict(self, key: Any) -> dict[str, Any]:
        at = None if not self.cursor else cursor.to_plain(cursor.decode(self.cursor))
        plain = {
            "at": self.at, "partition": key, "rows": self.rows, "cursor": at, "kind": self.kind, "actor": self.actor,
            "fence": self.fence, "commit_id": self.commit_id, "entry": self.entry,
        }  # fmt: skip
        plain |= {"reason": self.reason} if self.reason else {}
        return plain if self.spend is None else plain | cost_facts(self.spend)


def cost_facts(said: journal.Spend) -> dict[str, Any]:
    """Write what was spent and measured as plain values."""
    return {
        "usd": format(canonical.to_usd(said.usd), "f"), "tokens": said.tokens, "model": said.model, "usage": said.usage,
        "metrics": said.metrics,
    }  # fmt: skip


def cost_words(said: journal.Spend) -> str:
    """Write what was spent for a person; empty where nothing was."""
    parts = [
        f"${canonical.to_usd(said.usd)}" if said.usd else "",
        f"{said.tokens:,} tokens" if said.tokens else "",
        said.model,
    ]
    return ", ".join(part for part in parts if part)


def history(store: Store, batch: Batch, n: int | None = None) -> Iterator[Past]:
    """The checkpoints of one range, or of all, oldest first; read as a stream."""
    chunks = store.chunks(batch.id)
    if n is not None:
        return (past for entry in forward_of(store, chunks, n) for past in _told(entry) if past.n == n)
    streams = [_of_chunk(store, chunk) for chunk in chunks]
    return heapq.merge(*streams, key=lambda past: past.at)


def last_two(store: Store, chunks: list[Chunk], n: int) -> list[Past]:
    """The newest checkpoint of a range and the one before it, as far as there are any."""
    found: list[Past] = []
    for entry in backward_of(store, chunks, n):
        found += [past for past in _told(entry) if past.n == n]
        if len(found) >= 2:
            return found[:2]
    return found


def _of_chunk(store: Store, chunk: Chunk) -> Iterator[Past]:
    for entry in forward(store, chunk):
        yield from _told(entry)


def _told(entry: JournalEntry) -> Iterator[Past]:
    header, body = entry.header, entry.body
    if isinstance(body, journal.Checkpointed):
        for position in body.positions:
            ended = any(group.finished and position.n in group.items for group in body.advanced)
            spend = next((said for _, said in body.spends if said.n == position.n), None)
            yield _past(header, position, is_end=ended, spend=spend)
    elif isinstance(body, journal.Acted):
        for moved in body.items:
            if moved.position is not None:
                yield _past(header, moved.position, body.reason)


def _past(header: journal.Header, position: journal.Position, reason: str = "", *, is_end: bool = False,
          spend: journal.Spend | None = None) -> Past:  # fmt: skip
    return Past(at=header.at, n=position.n, rows=position.rows, cursor=position.cursor, kind=header.kind,
                actor=header.actor, fence=header.fence, commit_id=header.commit_id.hex(),
                entry=journal.name(header.chain, header.seq), reason=reason,
                digest=position.digest, is_end=is_end, spend=spend)  # fmt: skip
