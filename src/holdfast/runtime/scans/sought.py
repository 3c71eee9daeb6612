"""How far the search for borders in a large file has come, kept with the batch: a run that is killed in it resumes."""

import time
from typing import Any

from holdfast.core import canonical, journal
from holdfast.core.course import to_note
from holdfast.runtime.journal import backward
from holdfast.stores import owners
from holdfast.stores.base import Store

KIND = "borders_sought"
"""The kind of the entry that tells it."""
TELL_SECONDS = 10.0
"""How often it is written down."""


class Sought:
    """The search of one batch, written down now and then."""

    def __init__(self, store: Store, batch: str) -> None:
        self._store, self._name = store, batch
        self._told_at = time.monotonic()
        self._owner = owners.new_owner()

    def last(self) -> dict[str, Any] | None:
        """How far a run before this one came; None where none did."""
        batch = self._store.batch(self._name)
        return None if batch is None else next((each.note for each in backward(self._store, batch, KIND)), None)

    def tell(self, so_far: dict[str, Any]) -> None:
        """Write it down, if it is time."""
        batch = self._store.batch(self._name) if time.monotonic() - self._told_at >= TELL_SECONDS else None
        if batch is None:
            return
        self._told_at = time.monotonic()
        body = journal.Acted(reason=f"borders are sought: at byte {so_far['at']:,}", note=canonical.encode(so_far))
        self._store.amend(batch.id, to_note(KIND, journal.encode_body(body)), actor=self._owner)
