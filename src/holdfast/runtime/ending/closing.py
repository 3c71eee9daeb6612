"""How a run closes: it reconciles what it can vouch for, publishes the end of the batch, and seals it if asked to."""

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.core import course
from holdfast.core.ending import End
from holdfast.core.errors import Refused
from holdfast.core.model import Batch, Chunk, Course
from holdfast.core.reconcile import How, Reconciliation
from holdfast.runtime import lookup
from holdfast.runtime.commands import command
from holdfast.runtime.ending import sealing
from holdfast.runtime.ingester import KeyFrom
from holdfast.runtime.options import Options, allowed
from holdfast.runtime.reconciling.reconciler import reconcile, sinks_among
from holdfast.runtime.reconciling.source_keys import SourceKeys
from holdfast.runtime.stage import Stage
from holdfast.stores.base import Store


class Closing:
    """Remembers how the chains ended when the run began; the rest happens at its end."""

    def __init__(self, store: Store, stages: Sequence[Stage], options: Options, actor: str) -> None:
        self._store, self._stages, self._options, self._actor = store, stages, options, actor
        self._heads = b""
        self.warnings: list[str] = []

    def begin(self, chunks: Sequence[Chunk]) -> None:
        """Before what is recorded is checked."""
        self._heads = course.cover(chunks)

    def end(self, batch: Batch, *, read: bool) -> Reconciliation | None:
        """Once nothing is in flight any more: reconcile, publish, seal. None while there is something left to do.
        `read`: this run came to the end of its source."""
        found = sealing.conclude(self._store, batch, lambda: self._compare(batch.name, read=read), actor=self._actor)
        if self._options.seal and found is not None:
            self._seal(batch, found, read=read)
        return found

    def _compare(self, name: str, *, read: bool) -> Reconciliation | None:
        batch = lookup.batch_named(self._store, name)
        chunks = self._store.chunks(batch.id)
        is_over = batch.course is Course.CANCELLED or course.has_ended(batch, self._store.now())
        has_ended = is_over or (read and batch.ingested_at is not None)
        if not has_ended or any(chunk.pending for chunk in chunks):
            return None
        return reconcile(self._store, batch, sinks=sinks_among(self._stages), how=self._depth(course.cover(chunks)),
                         allow_empty=self._options.allow_empty)  # fmt: skip

    def _depth(self, heads: bytes) -> How:
        """How closely to look: not at files that the check at the beginning has just looked at, where nothing has
        happened since; and not at all at files that nobody wants to have looked at."""
        if self._options.seal:
            return "quick"
        if not sinks_among(self._stages) or self._options.verify == "none" or heads == self._heads:
            return "sums"
        return "files"

    def _seal(self, batch: Batch, found: Reconciliation, *, read: bool) -> None:
        tolerated = allowed(self._options.tolerate, found.expected.admitted)
        if batch.sealed_at is not None:
            return
        if found.end not in (End.COMPLETE, End.WITH_DEAD) and found.is_explained:
            as_it_is = f"to seal it as it is: `{command('reconcile', batch.name, options='--seal')}`"
            self.warnings.append(f"not sealed: it was {found.end} before it was complete; {as_it_is}")
            return
        if not read:
            self.warnings.append("not sealed: its end came before its source was read to its end")
            return
        if found.exit_code(tolerated):
            dead = f"{found.recorded.dead:,} dead, tolerated are {tolerated:,}"
            self.warnings.append(f"not sealed: {', '.join(found.unexplained) or dead}")
            return
        sealing.seal(self._store, batch, found, actor=self._actor, tolerated=tolerated)

    def again(self, batch: Batch, items: Iterable[Any] | None, key: KeyFrom) -> Reconciliation:
        """A sealed batch was asked to run and be sealed once more, as after a crash behind the seal: that is fine if
        it is what it was and the source brings nothing new."""
        keys = SourceKeys(self._store, batch, self._stages[0].input, items, key) if items is not None else None
        found = reconcile(self._store, batch, sinks=sinks_among(self._stages), source=keys)
        if found.is_explained:
            return found
        try:
            sealing.check_open(self._store, batch)
        except Refused as refused:
            raise Refused(f"{refused}; and it is not what it was: {', '.join(found.unexplained)}") from None
        return found
