"""Whether a source is still what it was when a scan of it began: asked before another row is read."""

from collections.abc import Iterator

from holdfast.core.errors import HoldfastError, SourceChanged
from holdfast.core.model import Batch, State
from holdfast.runtime.scans.stage import span_of
from holdfast.runtime.sources.base import Identified, Readable, Span
from holdfast.runtime.words import many
from holdfast.stores.base import Store


def refuse_changed(source: Readable, span: Span, what: str) -> None:
    """Raise SourceChanged, with the difference, if a half-done scan would go on in something else."""
    if span.identity is None or not isinstance(source, Identified):
        return
    difference = source.changed(span.identity)
    if difference is not None:
        raise SourceChanged(
            f"{what}: {source!r} is not what it was when the scan began: {difference}. Its checkpoints mean nothing in "
            "another file: put the old one back, or scan the new one under a new batch name"
        )


def refuse_changed_batch(source: Readable, store: Store, batch: Batch) -> None:
    """The same for a batch that is not done, before anything is claimed."""
    for item in store.items(batch.id, state=State.PENDING, limit=1):
        if item.payload:
            refuse_changed(source, span_of(item.payload), f"batch {batch.name!r}")


def grown(source: Readable, store: Store, batch: Batch) -> Iterator[str]:
    """What was appended to a source after it was divided into ranges that come to an end: no range has it."""
    if not isinstance(source, Identified):
        return
    item = next(iter(store.items(batch.id, limit=1)), None)
    span = span_of(item.payload) if item is not None and item.payload else None
    if span is None or span.until is None or not isinstance(span.identity, dict):
        return
    try:
        more = source.identity()["size"] - span.identity["size"]
    except (HoldfastError, KeyError, TypeError):
        return  # it is gone, or has no size
    if more > 0:
        yield (
            f"{source!r} has grown by {many(more, 'byte')} since batch {batch.name!r} began: they are in none of its "
            "partitions; scan it under a new batch name, or follow it, to read them"
        )
