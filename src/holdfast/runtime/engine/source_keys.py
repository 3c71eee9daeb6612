"""The keys of a source compared with those of a batch: items that were never admitted, and items that the source does
not have."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from holdfast.core import canonical
from holdfast.core.errors import UsageError
from holdfast.core.model import Batch, NewItem
from holdfast.core.verify import Finding, Reconciliation, What
from holdfast.runtime.define import definition
from holdfast.runtime.define.options import KeyFrom
from holdfast.runtime.define.schema import Schema
from holdfast.runtime.define.stage import sinks_among
from holdfast.runtime.engine.ingester import Ingester
from holdfast.runtime.report.reconcile import reconcile
from holdfast.stores.base import Store, each_item
from holdfast.stores.seen_keys import SeenKeys

if TYPE_CHECKING:
    from holdfast.runtime.define.pipeline import PipelineDefinition


GROUP = 2_000
"""Keys that are looked up at once."""


class SourceKeys:
    """Reads a source in groups, by key. Keeps one bit for each item that was seen."""

    def __init__(self, store: Store, batch: Batch, schema: Schema, items: Iterable[Any], key: KeyFrom) -> None:
        self._store, self._batch, self._items = store, batch, items
        identity = definition.remembered_identity(batch)
        if identity == "new":
            raise UsageError(f"every item of batch {batch.name!r} is new each time it is read: its source cannot be "
                             "compared with it; do not pass a source")  # fmt: skip
        found = definition.remembered_key(batch, key, identity)
        definition.check_key(batch, found, identity)
        self._ingester = Ingester(store, batch, schema, key=found, identity=identity, changed="keep", owner="",
                                  rerun=lambda n, item, origin: None)  # fmt: skip
        self.keys = 0

    def findings(self) -> Iterator[Finding]:
        seen, strangers = bytearray((self._batch.admitted + 7) // 8), SeenKeys()
        try:
            for group in self._ingester.groups(self._items, GROUP):
                known = self._store.known(self._batch.id, group)
                for n, _ in known.values():
                    if n < self._batch.admitted:
                        self.keys += not seen[n >> 3] & 1 << (n & 7)
                        seen[n >> 3] |= 1 << (n & 7)
                fresh = [item for index, item in enumerate(group) if index not in known]
                first = [item for item, sight in zip(fresh, strangers.look(fresh), strict=True) if sight == "new"]
                self.keys += len(first)
                yield from map(_never_created, first)
        finally:
            strangers.close()
        yield from self._unknown(seen)

    def _unknown(self, seen: bytearray) -> Iterator[Finding]:
        if self.keys_seen(seen) == self._batch.admitted:
            return
        for item in each_item(self._store, self._batch.id, hi=self._batch.admitted):
            if not seen[item.n >> 3] & 1 << (item.n & 7):
                why = "it was admitted, but the source does not have it"
                yield Finding(what=What.UNKNOWN, n=item.n, key=item.key, why=why)

    @staticmethod
    def keys_seen(seen: bytearray) -> int:
        return int.from_bytes(seen, "little").bit_count()


def _never_created(item: NewItem) -> Finding:
    why = "the source has it, but it was never admitted"
    return Finding(what=What.NEVER_CREATED, key=canonical.key_text(item.key), why=why)


def compare_with_pipeline(
    pipeline: "PipelineDefinition", batch: Batch, items: Iterable[Any] | None, key: KeyFrom, *, full: bool, given: bool
) -> Reconciliation:
    """Return the reconciliation. `given`: the user passed the items, so it is an error if they cannot be compared."""
    store, stages = pipeline.store, pipeline.stages
    identity = definition.remembered_identity(batch)
    keyed = definition.keyed_by(definition.remembered_key(batch, key, identity), identity)
    definition.check(batch, pipeline.name, definition.describe(pipeline.name, stages, keyed), reads_items=False)
    source = None
    if items is not None and (given or identity != "new"):
        source = SourceKeys(store, batch, stages[0].input, items, key)
    return reconcile(store, batch, sinks=sinks_among(stages), how="full" if full else "quick", source=source)
