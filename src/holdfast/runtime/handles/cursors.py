"""The cursors of a scan, for operators: where its partitions are, have been, and resume."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, overload

from holdfast.core import canonical, cursor
from holdfast.core.cursor import Accumulated, CursorValue
from holdfast.core.errors import UsageError
from holdfast.core.model import Batch, ItemNo, Key
from holdfast.runtime import lookup
from holdfast.runtime.acts import ActResult, Preview, act
from holdfast.runtime.handles.checks import check_kind
from holdfast.runtime.operate import clones, cursor_audit, cursors, state_document
from holdfast.runtime.operate.cursor_audit import CursorAudit
from holdfast.runtime.operate.cursors import CursorPlan
from holdfast.runtime.partitions import IMPORTED, PastCheckpoint, cost_words, history, standings
from holdfast.runtime.scan.scan import SourceWalk
from holdfast.runtime.text import many, when
from holdfast.stores import owners
from holdfast.stores.base import Store

NOTHING_CHANGED = "nothing was changed"
CURSOR_TYPES = cursor.TYPES
"""The types of the value of a cursor, as `reset(type_name=…)` takes them."""


def spoken(plain: Any) -> str:
    """Return a stored value in readable form: a Decimal as a number, a time as a time."""
    return cursor.in_words(canonical.from_plain(plain))


def short_owner(owner: str) -> str:
    """Return an owner for people: host and process."""
    return owners.short(owner)


def past_line(past: PastCheckpoint, key: Key) -> str:
    """Return one line about a checkpoint: when, where, how many rows, who, and the reason if a person set it."""
    at = "at its beginning" if not past.cursor else f"after {cursor.decode(past.cursor)}"
    why = f": {past.reason}" if past.reason else ""
    cost = "" if past.spend is None else cost_words(past.spend)
    rows = many(past.rows, "row") + (f"  {cost}" if cost else "")
    who = owners.short(past.actor)
    return f"{when(past.at)}  partition {key}  {rows}  {at}  {past.kind} by {who}, fence {past.fence}{why}"


class CursorHandle:
    """The cursors of a scan's partitions. A partition is named by its key; without one, a method applies to all."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self.name = store, name

    def __repr__(self) -> str:
        return f"<cursors of {self.name!r} in {self._store.url}>"

    @property
    def _batch(self) -> Batch:
        return lookup.batch_named(self._store, self.name)

    def document(self, partition: Key | None = None) -> dict[str, Any]:
        """Return cursor, rows, accumulator and lease of every partition, or of one, as a document. `reset(to_file=…)`
        and `StoreHandle.import_cursors` read it."""
        return state_document.document(self._store, self._batch, key_named(partition))

    def history(self, partition: Key | None = None) -> Iterator[tuple[PastCheckpoint, Key]]:
        """Yield every checkpoint since the beginning, oldest first, with the key of its partition."""
        batch, named = self._batch, key_named(partition)
        keys = {at.n: at.key for at in standings(self._store, batch, named)}
        only = None if named is None else next(iter(keys))
        return ((past, keys.get(ItemNo(past.n), f"#{past.n}")) for past in history(self._store, batch, only))

    def audit(self, scan: SourceWalk) -> CursorAudit:
        """Compare the rows of the source with the rows that were delivered, and report gaps."""
        return cursor_audit.audit(self._store, self._batch, scan.source)

    # -- acts -----------------------------------------------------------------------------------------------------

    @overload
    def reset(self, partition: Key | None = None, *, to_beginning: bool = False, to_cursor: CursorValue | None = None,
              key: Sequence[CursorValue] = (), type_name: str | None = None, acc: Accumulated | None = None,
              to_file: str | Path | None = None, reason: str = "", actor: str = "",
              dry_run: Literal[True]) -> Preview: ...  # fmt: skip
    @overload
    def reset(self, partition: Key | None = None, *, to_beginning: bool = False, to_cursor: CursorValue | None = None,
              key: Sequence[CursorValue] = (), type_name: str | None = None, acc: Accumulated | None = None,
              to_file: str | Path | None = None, reason: str, actor: str = "",
              dry_run: Literal[False] = False) -> ActResult: ...  # fmt: skip
    def reset(self, partition: Key | None = None, *, to_beginning: bool = False, to_cursor: CursorValue | None = None,
              key: Sequence[CursorValue] = (), type_name: str | None = None, acc: Accumulated | None = None,
              to_file: str | Path | None = None, reason: str = "", actor: str = "",
              dry_run: bool = False) -> Preview | ActResult:  # fmt: skip
        """Move cursors, so that partitions resume somewhere else. Give one of `to_beginning`, `to_cursor` and
        `to_file`.

        Args:
            partition: The key of a partition; by default all of them.
            to_beginning: True to resume before the first row.
            to_cursor: Resume after the row with this value.
            key: The key of that row, if several rows have the value.
            type_name: The type of the value, if it cannot be inferred.
            acc: `"keep"` or `"drop"` the accumulator.
            to_file: Resume where this file, written by `document`, says.
            reason: Why; the journal keeps it.
            actor: Who; by default this process.
            dry_run: True to return an `hf.Preview` and change nothing.
        """
        if sum((to_beginning, to_cursor is not None, to_file is not None)) != 1:
            raise UsageError(f"pass exactly one of to_beginning, to_cursor and to_file; {NOTHING_CHANGED}")
        if to_cursor is None and (key or type_name or acc):
            raise UsageError(f"key, type_name and acc need to_cursor; {NOTHING_CHANGED}")
        if acc not in (None, "keep", "drop"):
            raise UsageError(f"acc={acc!r}: pass keep or drop; {NOTHING_CHANGED}")
        text = None if to_cursor is None else cursor.spelled(to_cursor, "to_cursor")
        keys = [cursor.spelled(each, "key") for each in key]
        batch, named = self._batch, key_named(partition)

        def plan() -> CursorPlan:
            if to_beginning:
                return cursors.to_beginning(self._store, batch, named)
            if text is not None:
                return cursors.to_cursor(self._store, batch, named, text, keys, type_name=type_name, acc=acc)
            assert to_file is not None
            return cursors.to_state(self._store, batch, read(to_file), str(to_file), named)

        return act(lambda: _shown(self._store, batch, plan, "Reset"), reason, actor, dry_run)

    @overload
    def resume(self, partition: Key | None = None, *, from_start: bool = False, reason: str = "", actor: str = "",
               dry_run: Literal[True]) -> Preview: ...  # fmt: skip
    @overload
    def resume(self, partition: Key | None = None, *, from_start: bool = False, reason: str, actor: str = "",
               dry_run: Literal[False] = False) -> ActResult: ...  # fmt: skip
    def resume(self, partition: Key | None = None, *, from_start: bool = False, reason: str = "", actor: str = "",
               dry_run: bool = False) -> Preview | ActResult:  # fmt: skip
        """Let failed partitions resume at their checkpoint with all their attempts, or with `from_start` at their first
        row. A finished one is left alone unless it is named."""
        batch, named = self._batch, key_named(partition)
        return act(lambda: cursors.preview_retry(self._store, batch, named, from_start=from_start),
                   reason, actor, dry_run)  # fmt: skip

    @overload
    def settle(self, partition: Key, *, result: bytes | None = None, reason: str = "", actor: str = "",
               dry_run: Literal[True]) -> Preview: ...  # fmt: skip
    @overload
    def settle(self, partition: Key, *, result: bytes | None = None, reason: str, actor: str = "",
               dry_run: Literal[False] = False) -> ActResult: ...  # fmt: skip
    def settle(self, partition: Key, *, result: bytes | None = None, reason: str = "", actor: str = "",
               dry_run: bool = False) -> Preview | ActResult:  # fmt: skip
        """Settle a partition by hand: as done with this JSON as its result, or without one as skipped. No more of its
        rows are read."""
        if result is not None:
            check_kind(result, bytes, "result", "JSON as bytes, such as b'5'")
        data = None if result is None else cursors.check_result(result, "the result")
        return act(lambda: cursors.preview_settle(self._store, self._batch, canonical.key_text(partition), data),
                   reason, actor, dry_run)  # fmt: skip

    @overload
    def break_lease(self, partition: Key | None = None, *, reason: str = "", actor: str = "",
                    dry_run: Literal[True]) -> Preview: ...  # fmt: skip
    @overload
    def break_lease(self, partition: Key | None = None, *, reason: str, actor: str = "",
                    dry_run: Literal[False] = False) -> ActResult: ...  # fmt: skip
    def break_lease(self, partition: Key | None = None, *, reason: str = "", actor: str = "",
                    dry_run: bool = False) -> Preview | ActResult:  # fmt: skip
        """Take partitions from their owners: another process can resume them, and the owners cannot commit any more."""
        batch, named = self._batch, key_named(partition)
        return act(lambda: _shown(self._store, batch, lambda: cursors.to_same(self._store, batch, named),
                                  "Break the lease of"), reason, actor, dry_run)  # fmt: skip

    @overload
    def clone(self, new_name: str, *, reason: str = "", actor: str = "", dry_run: Literal[True]) -> Preview: ...
    @overload
    def clone(self, new_name: str, *, reason: str, actor: str = "", dry_run: Literal[False] = False) -> ActResult: ...
    def clone(self, new_name: str, *, reason: str = "", actor: str = "", dry_run: bool = False) -> Preview | ActResult:
        """Create a new batch of the same scan that begins where this one is now. The two are independent."""
        store = self._store
        return act(lambda: clones.preview_make(store, clones.clone(store, self._batch, new_name)),
                   reason, actor, dry_run)  # fmt: skip


def import_cursors(
    store: Store, name: str, data: bytes, file: str, reason: str, actor: str, dry_run: bool
) -> Preview | ActResult:
    """Import a document that `CursorHandle.document` returned: into the same partitions, or as a new batch."""
    state_document.read(data, file)
    found = next(iter(store.batches(name)), None)
    if found is None or not found.admitted:
        return act(lambda: clones.preview_make(store, clones.from_state(store, data, file, name)),
                   reason, actor, dry_run)  # fmt: skip
    batch = found
    return act(lambda: _shown(store, batch, lambda: cursors.to_state(store, batch, data, file, kind=IMPORTED),
                              "Import"), reason, actor, dry_run)  # fmt: skip


def _shown(store: Store, batch: Batch, plan: Callable[[], CursorPlan], verb: str) -> Preview:
    made = plan()
    question = f"{verb} {many(made.concerned, 'partition')} of {batch.name}"
    return cursors.shown(made, question, lambda by, _: cursors.carry_out(store, batch, made, by))


def check_document(file: str | Path) -> None:
    """Refuse a file that is not a document of cursors."""
    state_document.read(read(file), str(file))


def read(file: str | Path) -> bytes:
    """Return the content of a file; raise UsageError if it cannot be read."""
    try:
        return Path(file).read_bytes()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{file}: {why}; {NOTHING_CHANGED}") from None


def key_named(partition: Key | None) -> str | None:
    """Return the text that identifies a partition."""
    return None if partition is None else canonical.key_text(partition)
