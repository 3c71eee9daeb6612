"""The results of a batch: what the last stage made of every item that is done, in order."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import UsageError
from holdfast.core.model import Key, State
from holdfast.runtime.records.outputs import value_of
from holdfast.stores.base import each_item

if TYPE_CHECKING:
    from holdfast.runtime.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class Result:
    """One finished item."""

    key: Key
    output: Any
    number: int


def results(pipeline: "Pipeline", name: str) -> Iterator[Result]:
    """Every result, validated against the annotation of the last stage; read in pages, so memory stays flat."""
    store = pipeline.store
    batch = store.batch(name)
    if batch is None:
        raise UsageError(f"there is no batch {name!r} in {store.url}")
    last = len(pipeline.stages) - 1
    stage = pipeline.stages[last]
    for record in each_item(store, batch.id, state=State.DONE):
        outputs = store.outputs(batch.id, lo=record.n, hi=record.n + 1, stage=last, limit=1)
        if not outputs:
            continue
        yield Result(record.key, value_of(stage, outputs[0], name, record), record.n)
