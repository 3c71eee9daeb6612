"""The hooks of a run: of items that were buried, after that is durable, and of stages that are complete."""

import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from holdfast.core import canonical, journal
from holdfast.core.course import to_note
from holdfast.core.model import Batch, ItemNo, State
from holdfast.runtime.define.context import DeadLetter
from holdfast.runtime.define.schema import raw_bytes
from holdfast.runtime.define.stage import HookList, Stage
from holdfast.runtime.report import lifecycle, statistics
from holdfast.stores.base import Store, each_item

if TYPE_CHECKING:
    from holdfast.runtime.define.pipeline import PipelineDefinition


log = logging.getLogger("holdfast.run")


class FailureHooks:
    """The `on_failure` hooks of one run."""

    def __init__(self, pipeline: "PipelineDefinition", store: Store, batch: str, warnings: list[str]) -> None:
        self._store, self._stages, self._batch = store, pipeline.stages, batch
        self._everywhere = pipeline.hooks.on_failure
        self._warnings = warnings
        """Where it is noted what a hook raised."""

    def tell(self, buried: list[ItemNo]) -> None:
        """Tell of each item, and take it off the list."""
        if buried and not self._everywhere and not any(stage.hooks.on_failure for stage in self._stages):
            buried.clear()
        while buried:
            (batch,) = self._store.batches(self._batch)
            n = buried.pop(0)
            found = self._store.items(batch.id, lo=n, hi=n + 1)[0]
            stage, place = self._stages[min(found.place.stage, len(self._stages) - 1)], found.place
            letter = DeadLetter(found.key, n, stage.name, place.code, place.reason, place.attempt)
            for hook in (stage.hooks.on_failure, self._everywhere):
                self._call(hook, letter)

    def _call(self, hook: HookList, letter: DeadLetter) -> None:
        try:
            hook.call(letter)
        except Exception as error:  # noqa: BLE001 - a hook that fails must not undo what it was told about
            self._warnings.append(f"{hook.what} raised {type(error).__name__} for item {letter.key!r}: {error}")
            log.warning(self._warnings[-1])


def complete_stages(store: Store, batch: Batch, stages: Sequence[Stage], actor: str) -> list[str]:
    """Run the `after` hooks of every stage that has nothing left to do, unless what became of its items is recorded
    already. Return what went wrong in hooks: their stages are not recorded, and the next run calls them again."""
    failed: list[str] = []
    if not any(stage.hooks.after.functions for stage in stages) or batch.ingested_at is None:
        return failed
    first_open = min((r.place.stage for r in each_item(store, batch.id, state=State.PENDING)), default=len(stages))
    known = lifecycle.completed_stages(store, batch)
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
        store.amend(batch.id, to_note(lifecycle.STAGE_COMPLETED, body), actor=actor)
    return failed


def hook_failure(what: str, error: Exception) -> str:
    """Return what a report says of a hook that raised."""
    log.error("%s failed", what, exc_info=error)
    return f"{what} failed: {type(error).__name__}: {error}; the work is recorded, and the next run calls it again"


def _is_recorded(known: dict[str, Any], items: int, standing: dict[str, Any]) -> bool:
    """Whether the stage was complete with these items and what has become of them; records of older versions have only
    the number of items."""
    return known.get("items") == items and known.get("standing", standing) == standing
