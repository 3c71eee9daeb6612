"""Rows that cannot be handled: each becomes a dead letter, before the checkpoint moves past it.

A buried row is an item of the batch: a partition of that one row. So it is listed, reported, discarded and redriven
like any other dead letter, and it records between which two cursors it was. A row that kills its process is found by
halving its group with every death.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.core import canonical, cursor, ingest
from holdfast.core.cursor import Cursor
from holdfast.core.errors import UsageError
from holdfast.core.limits import BLAME, DEADLY_ROWS, PAYLOAD_BYTES
from holdfast.core.model import Admitted, Batch, Key, Kind, NewItem, State
from holdfast.runtime.engine.hold import killed_text
from holdfast.runtime.scan.rows import Passed
from holdfast.stores import owners
from holdfast.stores.base import Store, find_batch

ROW = "row "
"""The prefix of the keys of buried rows, as people use them."""
GONE = "it is not in the source any more: it was deleted, or has another cursor and comes with the scan"
"""Why a redriven row is skipped."""
KEY_CHARS = 200
"""The text of a cursor that is longer than this is replaced by its digest."""


class Seen(msgspec.Struct, frozen=True):
    """The partition that found a row, and its checkpoint then."""

    range: Key
    after: Cursor | None
    rows: int


class Buried(msgspec.Struct, frozen=True, kw_only=True):
    """A row, its position, and why it cannot be handled."""

    row: Any
    before: Cursor | None
    """The cursor before it: of the last row behind the checkpoint, or of a row after that."""
    at: Cursor
    code: str
    reason: str
    seen: Seen | None = None


class Burial:
    """Buries rows of one batch."""

    def __init__(self, store: Store, batch: str, heard: Callable[[Admitted], None] | None = None) -> None:
        self._store, self._name, self._heard = store, batch, heard
        self._batch: Batch | None = None
        self._owner = owners.new_owner()
        self.count = 0
        """Rows that were buried here."""

    def bury(self, rows: Sequence[Buried]) -> None:
        """Make dead letters of some rows. A row that is a dead letter already stays unchanged, so this can be
        repeated."""
        if rows:
            self.admit([dead_letter(each) for each in rows])

    def admit(self, letters: Sequence[NewItem]) -> None:
        """Write the dead letters of some rows."""
        admitted = self._store.add_items(self._found().id, letters, kind=Kind.ROWS, actor=self._owner)
        self.count += admitted.added
        if self._heard is not None:
            self._heard(admitted)

    def buried(self, places: Sequence[Cursor]) -> set[int]:
        """Return the indexes of those rows that are dead letters already."""
        batch = self._found()
        known = self._store.known(batch.id, [_named(at) for at in places])
        found = {index: self._store.items(batch.id, lo=n, hi=n + 1, limit=1) for index, (n, _) in known.items()}
        return {index for index, (item,) in found.items() if item.place.state is State.DEAD}

    def highest_fence(self) -> int:
        """Return the highest fence that was granted in the batch."""
        return max(chunk.fence for chunk in self._store.chunks(self._found().id))

    def _found(self) -> Batch:
        if self._batch is None:
            self._batch = find_batch(self._store, self._name)
        if self._batch is None:
            raise UsageError(f"there is no batch {self._name!r} to bury rows of")
        return self._batch


def row_key(at: Cursor) -> str:
    """Return the key of a row as an item."""
    tie = at.tiebreaker
    ties = list(tie.values()) if isinstance(tie, dict) else [] if tie is None else [tie]
    text = ROW + "/".join(canonical.storable(str(each)) for each in (at.value, *ties))
    return text if len(text) <= KEY_CHARS else f"{ROW}{canonical.fingerprint(cursor.to_plain(at))}"


def _named(at: Cursor) -> NewItem:
    return NewItem(row_key(at), b"")


def malformed(passed: Passed, seen: Seen) -> Buried:
    """Return a malformed row, with the same code and text as in a pipeline. In a file it is named by the byte at which
    it begins, which is the same for any block size."""
    row, before, at = passed
    if row.byte is not None:
        before, at = Cursor("byte", row.byte, 0), Cursor("byte", row.byte, 1)
    try:
        raw: Any = row.raw.decode()
    except UnicodeDecodeError:
        raw = row.raw
    return Buried(row=raw, before=before, at=at, code="invalid", reason=row.reason, seen=seen)


def dead_letter(buried: Buried) -> NewItem:
    """Return a row as an item that is dead from the beginning: a partition of that one row, with the row beside it."""
    span = {
        "range": row_key(buried.at),
        "after": None if buried.before is None else cursor.to_plain(buried.before),
        "until": cursor.to_plain(buried.at),
        "rows": 1,
        "seen": None if buried.seen is None else _plain(buried.seen),
    }
    try:
        payload = canonical.encode({**span, "row": canonical.to_plain(buried.row, "the row")})
    except UsageError:
        payload = canonical.encode({**span, "row": canonical.storable(repr(buried.row))})
    if len(payload) > PAYLOAD_BYTES:  # the source still has it
        payload = canonical.encode(span)
    return ingest.refuse(span["range"], payload, buried.code, buried.reason)


def _plain(seen: Seen) -> dict[str, Any]:
    return {
        "range": seen.range,
        "after": None if seen.after is None else cursor.to_plain(seen.after),
        "rows": seen.rows,
    }


class DeadlyGroup:
    """Rows among which one kills its process: halved with every death, until one is left that killed several processes
    alone."""

    def __init__(self, whole: int) -> None:
        self._whole = whole
        self.size = 0
        """Rows to handle between two checkpoints; 0 for the normal interval."""
        self.window = 0
        """For how many rows this size applies."""
        self.condemned = ""
        """Why the next row is buried without being tried."""
        self.trouble = ""
        """Why no row is to blame."""
        self._deaths = self._strikes = self._in_a_row = 0
        self._from = self._last = -1
        """Rows behind the last checkpoint: at the last death, and when a row was last condemned."""

    def died(self, rows: int) -> None:
        """Narrow the group down: a process died with so many rows behind its last checkpoint."""
        self._deaths += 1
        if self.condemned and rows == self._last:
            self.trouble = f"its worker process died {self._deaths:,} times before it reached a row"
            return
        self.condemned = ""
        within = rows < self._from + self.window
        if within and self.size == 1:
            self._strikes = self._strikes + 1 if rows == self._from else 1
            self.window = 1
        else:
            self._strikes = 0
            self.window = self.size if within else self._whole
            self.size = (self.window + 1) // 2
        self._from = rows
        if self._strikes >= BLAME:
            self._condemn(rows)

    def _condemn(self, rows: int) -> None:
        self._in_a_row = self._in_a_row + 1 if rows == self._last + 1 else 1
        self._last, self._strikes = rows, 0
        if self._in_a_row > DEADLY_ROWS:
            self.trouble = f"its worker process died at {self._in_a_row:,} rows in a row: no row is to blame"
        else:
            self.condemned = killed_text(BLAME, "its worker process")
