"""Reconciling a batch with the pipeline at hand: its sinks, and its source where that can be read again."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from holdfast.core.reconcile import Reconciliation
from holdfast.runtime import definition, lookup, sealing
from holdfast.runtime.ingester import KeyFrom
from holdfast.runtime.reconciler import reconcile, sinks_among
from holdfast.runtime.source_keys import SourceKeys
from holdfast.stores import owners

if TYPE_CHECKING:
    from holdfast.runtime.pipeline import Pipeline


def compare(
    pipeline: "Pipeline", name: str, items: Iterable[Any] | None, key: KeyFrom, *, full: bool, given: bool
) -> Reconciliation:
    """The reconciliation, noted in the journal once the batch has ended. `given`: the items were given by hand, so
    that not being able to compare them is an error."""
    store, stages = pipeline.store, pipeline.stages
    batch = lookup.batch_named(store, name)
    identity = definition.remembered_identity(batch)
    keyed = definition.keyed_by(definition.remembered_key(batch, key, identity), identity)
    definition.check(batch, pipeline.name, definition.describe(pipeline.name, stages, keyed), reads_items=False)
    source = None
    if items is not None and (given or identity != "new"):
        source = SourceKeys(store, batch, stages[0].input, items, key)
    found = reconcile(store, batch, sinks=sinks_among(stages), how="full" if full else "quick", source=source)
    sealing.publish_end(store, batch, found, actor=owners.new_owner())
    return found
