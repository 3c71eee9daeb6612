"""When a stage is complete: its `after` hooks run once, and what they return is kept in the batch's journal."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from holdfast.core import canonical, journal
from holdfast.core.model import Batch, BatchId, State, chain_of_batch
from holdfast.runtime.reports import statistics
from holdfast.runtime.schema import raw_bytes
from holdfast.runtime.stage import Stage
from holdfast.stores.base import Store, each_entry, each_item

KIND = "stage_completed"


def completed_stages(store: Store, batch: BatchId) -> dict[str, dict[str, Any]]:
    """What is recorded about complete stages, the newest for each."""
    found: dict[str, dict[str, Any]] = {}
    for entry in each_entry(store, chain_of_batch(batch)):
        header = journal.decode_header(entry.head)
        if header.kind == KIND:
            body = journal.decode_body(entry.body)
            assert isinstance(body, journal.Acted)
            facts = canonical.decode(body.note)
            found[facts.pop("stage")] = facts
    return found


def complete_stages(store: Store, batch: Batch, stages: Sequence[Stage], actor: str) -> None:
    """Run the `after` hooks of every stage that has nothing left to do and was not recorded as complete before."""
    if not any(stage.hooks.after for stage in stages) or batch.ingested_at is None:
        return
    first_open = min((r.place.stage for r in each_item(store, batch.id, state=State.PENDING)), default=len(stages))
    known = completed_stages(store, batch.id)
    facts = statistics.collect(store, batch)
    for index, stage in enumerate(stages[:first_open]):
        if known.get(stage.name, {}).get("items") == batch.admitted:
            continue
        returned = [value for value in stage.hooks.after.call(facts.stages[index]) if value is not None]
        note = {
            "stage": stage.name,
            "items": batch.admitted,
            "completed_at": datetime.fromtimestamp(time.time(), UTC).isoformat(),
            "metadata": canonical.decode(raw_bytes(returned[0] if len(returned) == 1 else returned))
            if returned
            else None,
        }
        body = journal.encode_body(journal.Acted(reason="complete", note=canonical.encode(note)))
        store.note(batch.id, KIND, body, actor=actor)
