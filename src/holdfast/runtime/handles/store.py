"""A store, for operators: its batches, its orphans and its events."""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from holdfast.core.limits import EVENTS_PAGE
from holdfast.core.model import BatchId
from holdfast.runtime import lookup
from holdfast.runtime.acts import ActResult, Preview, act
from holdfast.runtime.handles.batch import BatchHandle
from holdfast.runtime.handles.checks import check_whole
from holdfast.runtime.report import status
from holdfast.stores.base import Store, outbox_of
from holdfast.stores.open import is_there, open_store

if TYPE_CHECKING:
    from holdfast.runtime.events import Target
    from holdfast.runtime.handles.items import FoundOrphans
    from holdfast.runtime.operate.audit import AuditFinding


class NumberedEvent(NamedTuple):
    """A stored event: its number in the store, its kind, and the CloudEvent that is delivered."""

    number: int
    """Its number in the store."""
    kind: str
    """Its kind, such as `item.dead`."""
    envelope: dict[str, Any]
    """The CloudEvent."""


class Delivered(NamedTuple):
    """The number of events that a receiver got."""

    receiver: str
    """Its name for people, without secrets."""
    events: int


class StoreHandle:
    """An open store. `store["moby-dick"]` is a batch; `for batch in store` yields all of them, oldest first; `in` and
    `len()` work as expected."""

    def __init__(self, store: Store, *, owned: bool) -> None:
        self._store, self._owned = store, owned
        self.url = store.url

    def __repr__(self) -> str:
        return f"<store {self.url}>"

    def __enter__(self) -> "StoreHandle":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the store, unless it was open when it was passed in."""
        if self._owned:
            self._store.close()

    def __getitem__(self, name: str) -> BatchHandle:
        """Return the batch of that name; raises UsageError, with what there is instead, where there is none."""
        return BatchHandle(self._store, lookup.batch_named(self._store, name).name)

    def __contains__(self, name: object) -> bool:
        return bool(lookup.batches_named(self._store, name))

    def __iter__(self) -> Iterator[BatchHandle]:
        return iter(self.batches())

    def __len__(self) -> int:
        return len(self._store.batches())

    def batches(self, *, newest: int | None = None) -> list[BatchHandle]:
        """Return its batches in the order in which they were opened: all of them, or only the newest."""
        found = self._store.batches()
        if newest is not None:
            check_whole(newest, "newest")
            found = found[max(0, len(found) - newest) :]
        return [BatchHandle(self._store, batch.name) for batch in found]

    def orphans(self, *, limit: int = 50, actor: str = "") -> "FoundOrphans":
        """Return the orphans of all batches. Those found for the first time become events."""
        from holdfast.runtime.handles.items import look_for_orphans

        return look_for_orphans(self._store, self._store.batches(), limit, actor)

    def flaws(self) -> "tuple[AuditFinding, ...]":
        """Return findings of an audit that belong to no batch, such as rows of a batch that is gone."""
        from holdfast.runtime.operate import audit

        return audit.flaws(self._store)

    def set_back(self) -> str:
        """Return a warning if the store was restored from an older copy; else an empty text."""
        return status.set_back_note(self._store)

    # -- events -----------------------------------------------------------------------------------------------------

    def events(self, *, after: int = 0, batch: str | None = None) -> Iterator[NumberedEvent]:
        """Yield the events after a number, in order: of all batches, or of one."""
        check_whole(after, "after")
        return self._events(after, None if batch is None else lookup.batch_named(self._store, batch).id)

    def _events(self, after: int, only: BatchId | None) -> Iterator[NumberedEvent]:
        from holdfast.runtime.events import Envelopes

        made, outbox = Envelopes(self._store), outbox_of(self._store)
        while page := outbox.events(after, limit=EVENTS_PAGE):
            for event in page:
                if only in (None, event.batch):
                    yield NumberedEvent(event.id, event.kind, made.make(event))
            after = page[-1].id

    def deliver(self, target: "Target") -> "Delivered":
        """Deliver pending events to a receiver: a URL, `file:PATH`, `-` or a function. If the receiver does not accept
        one, it raises `hf.Undelivered`, and the event stays pending."""
        from holdfast.runtime.events import Undelivered, deliver_all, receiver

        to = receiver(target)
        try:
            return Delivered(to.title, deliver_all(self._store, to))
        except Undelivered as error:
            error.receiver = to.title
            raise

    # -- copies of batches ------------------------------------------------------------------------------------------

    @overload
    def open_copy(self, file: str | Path, *, reason: str = "", actor: str = "", dry_run: Literal[True]) -> Preview: ...
    @overload
    def open_copy(self, file: str | Path, *, reason: str, actor: str = "",
                  dry_run: Literal[False] = False) -> ActResult: ...  # fmt: skip
    def open_copy(self, file: str | Path, *, reason: str = "", actor: str = "",
                  dry_run: bool = False) -> Preview | ActResult:  # fmt: skip
        """Open a batch that `BatchHandle.copy` wrote in another store. It is paused here: continue it with `unpause`,
        and only in one place."""
        from holdfast.runtime.operate import copies

        return act(lambda: copies.preview(self._store, copies.CopyFile(Path(file))), reason, actor, dry_run)

    # -- imported cursors ---------------------------------------------------------------------------------------------

    @overload
    def import_cursors(self, name: str, file: str | Path, *, reason: str = "", actor: str = "",
                       dry_run: Literal[True]) -> Preview: ...  # fmt: skip
    @overload
    def import_cursors(self, name: str, file: str | Path, *, reason: str, actor: str = "",
                       dry_run: Literal[False] = False) -> ActResult: ...  # fmt: skip
    def import_cursors(self, name: str, file: str | Path, *, reason: str = "", actor: str = "",
                       dry_run: bool = False) -> Preview | ActResult:  # fmt: skip
        """Restore a document that `cursors.document()` returned: into the same partitions, or as a new batch."""
        from holdfast.runtime.handles import cursors

        return cursors.import_cursors(self._store, name, cursors.read(file), str(file), reason, actor, dry_run)


def open(store: str | Path | Store | None = None, *, must_exist: bool = True) -> StoreHandle:  # noqa: A001 - hf.open
    """Open a store for everything that the `holdfast` command can do.

    Args:
        store: A path, a URL or an open store. The default is `$HOLDFAST_STORE`, else `.holdfast/state.db`.
        must_exist: False to create the store if it does not exist.
    """
    is_open = store is not None and not isinstance(store, str | Path)
    return StoreHandle(open_store(store, must_exist=must_exist), owned=not is_open)


def check_copy(file: str | Path) -> None:
    """Refuse a file that is not a copy of a batch. Nothing is changed."""
    from holdfast.runtime.operate import copies

    copies.CopyFile(Path(file))


def exists(store: str | Path | None = None) -> bool:
    """Return whether there is a store to open. Nothing is created."""
    return is_there(store)
