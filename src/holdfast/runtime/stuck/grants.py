"""Who last had a chunk, and since when: the newest `claimed` entry of its chain."""

from dataclasses import dataclass

from holdfast.core import journal
from holdfast.core.model import Chunk
from holdfast.stores.base import Store

LOOK_BACK = 16


@dataclass(frozen=True, slots=True)
class LastGrant:
    """The newest grant of a chunk."""

    owner: str
    at: float


def last_grant(store: Store, chunk: Chunk) -> LastGrant | None:
    """The newest grant of the chunk itself; None where nobody ever had it."""
    upto = chunk.seq
    while upto > 0:
        after = max(0, upto - LOOK_BACK)
        for entry in reversed(store.entries(chunk.id, after=after, limit=upto - after)):
            header = journal.decode_header(entry.head)
            if header.kind == "claimed":
                return LastGrant(header.actor, header.at)
        upto = after
    return None
