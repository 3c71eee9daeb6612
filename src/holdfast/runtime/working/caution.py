"""Caution: a worker takes no more than it can start at once while any part of its batch carries blame.

Whatever a process had in its hands when it died is blamed for that, begun or not. So that a second death blames
nothing that only stood in line, nothing is claimed ahead until no chunk carries blame any more.
"""

import time
from collections.abc import Sequence

from holdfast.core.model import Batch, Chunk, Claim
from holdfast.runtime.report import orphans
from holdfast.runtime.working.ledger import Ledger
from holdfast.stores.base import Store

LOOK_SECONDS = 1.0
"""How often the chunks are looked at again while some carry blame."""
LOOK_SHARE = 20
"""Between two looks at many chunks passes at least so many times as long as one takes."""


class Caution:
    """Whether to be careful: known from the chunks as the run found them, and from what it claims."""

    def __init__(self, store: Store, batch: Batch, ledger: Ledger, chunks: Sequence[Chunk]) -> None:
        self._store, self._batch, self._ledger = store, batch, ledger
        self._look_at = 0.0
        self._is_careful = False
        self._judge(chunks)

    @property
    def is_careful(self) -> bool:
        if self._is_careful and time.monotonic() >= self._look_at:
            self._judge(self._store.chunks(self._batch.id))
        return self._is_careful

    def met(self, claim: Claim) -> None:
        """A chunk was granted: it may be one whose owner died meanwhile."""
        if claim.blame and not self._is_careful:
            self._judge(self._store.chunks(self._batch.id))

    def _judge(self, chunks: Sequence[Chunk]) -> None:
        began = time.monotonic()
        found = orphans.blame_of(self._store, self._batch, chunks, now=self._store.now())
        self._is_careful = found is not None
        self._ledger.careful = "" if found is None else found.brief
        if found is not None and found.is_suspected and found.note not in self._ledger.notes:
            self._ledger.notes.append(found.note)
        took = time.monotonic() - began
        self._look_at = began + took + max(LOOK_SECONDS, LOOK_SHARE * took)
