"""When a stage is complete: its `after` hooks run once, and what they return is kept in the batch's journal."""

import logging
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
log = logging.getLogger("holdfast.run")


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


def complete_stages(store: Store, batch: Batch, stages: Sequence[Stage], actor: str) -> list[str]:
    """Run the `after` hooks of every stage that has nothing left to do, unless what became of its items is recorded
    already. Return what went wrong in hooks: their stages are not recorded, and the next run calls them again."""
    failed: list[str] = []
    if not any(stage.hooks.after for stage in stages) or batch.ingested_at is None:
        return failed
    first_open = min((r.place.stage for r in each_item(store, batch.id, state=State.PENDING)), default=len(stages))
    known = completed_stages(store, batch.id)
    facts = statistics.collect(store, batch)
    for index, stage in enumerate(stages[:first_open]):
        told = facts.stages[index]
        standing = {"runs": told.runs, "outcomes": dict(sorted(told.outcomes.items()))}
        if _is_recorded(known.get(stage.name, {}), batch.admitted, standing):
            continue
        try:
            returned = [value for value in stage.hooks.after.call(told) if value is not None]
        except Exception as error:  # noqa: BLE001 - a hook of the user's may raise anything
            failed.append(hook_failure(f"the hook after stage {stage.name!r}", error))
            continue
        note = {
            "stage": stage.name,
            "items": batch.admitted,
            "standing": standing,
            "completed_at": datetime.fromtimestamp(time.time(), UTC).isoformat(),
            "metadata": canonical.decode(raw_bytes(returned[0] if len(returned) == 1 else returned))
            if returned
            else None,
        }
        body = journal.encode_body(journal.Acted(reason="complete", note=canonical.encode(note)))
        store.note(batch.id, KIND, body, actor=actor)
    return failed


def hook_failure(what: str, error: Exception) -> str:
    """Return what a report says of a hook that raised."""
    log.error("%s failed", what, exc_info=error)
    return f"{what} failed: {type(error).__name__}: {error}; the work is recorded, and the next run calls it again"


def _is_recorded(known: dict[str, Any], items: int, standing: dict[str, Any]) -> bool:
    """Whether the stage was complete with these items and what has become of them; records of older versions have only
    the number of items."""
    return known.get("items") == items and known.get("standing", standing) == standing
