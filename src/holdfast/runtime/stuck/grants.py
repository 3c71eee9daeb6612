"""Who has a chunk, who last had it, and since when: its lease, and the newest `claimed` entry of its chain."""

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.core import journal
from holdfast.core.model import Chunk
from holdfast.stores import owners
from holdfast.stores.base import Store, newest_entries

IsDead = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class LastGrant:
    """The newest grant of a chunk."""

    owner: str
    at: float


def is_live(chunk: Chunk, now: float, is_dead: IsDead = owners.is_dead) -> bool:
    """Whether somebody holds the chunk: under a lease that has not ended, in a process not known to be dead."""
    return chunk.owner is not None and chunk.expires >= now and not is_dead(chunk.owner)


def last_grant(store: Store, chunk: Chunk) -> LastGrant | None:
    """The newest grant of the chunk itself; None where nobody ever had it."""
    for entry in newest_entries(store, chunk.id, chunk.seq):
        header = journal.decode_header(entry.head)
        if header.kind == "claimed":
            return LastGrant(header.actor, header.at)
    return None
