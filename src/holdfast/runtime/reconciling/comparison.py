"""Reconciling a batch with the pipeline at hand: its sinks, and its source where that can be read again."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from holdfast.core.model import Batch
from holdfast.core.reconcile import Reconciliation
from holdfast.runtime import definition
from holdfast.runtime.ingester import KeyFrom
from holdfast.runtime.reconciling.reconciler import reconcile, sinks_among
from holdfast.runtime.reconciling.source_keys import SourceKeys

if TYPE_CHECKING:
    from holdfast.runtime.pipeline import Pipeline


def compare(
    pipeline: "Pipeline", batch: Batch, items: Iterable[Any] | None, key: KeyFrom, *, full: bool, given: bool
) -> Reconciliation:
    """The reconciliation. `given`: the items were given by hand, so that it is an error if they cannot be compared."""
    store, stages = pipeline.store, pipeline.stages
    identity = definition.remembered_identity(batch)
    keyed = definition.keyed_by(definition.remembered_key(batch, key, identity), identity)
    definition.check(batch, pipeline.name, definition.describe(pipeline.name, stages, keyed), reads_items=False)
    source = None
    if items is not None and (given or identity != "new"):
        source = SourceKeys(store, batch, stages[0].input, items, key)
    return reconcile(store, batch, sinks=sinks_among(stages), how="full" if full else "quick", source=source)
