"""Tells the hooks of a pipeline and its stages about items that were buried, after that is durable."""

import logging
from typing import TYPE_CHECKING

from holdfast.core.model import ItemNo
from holdfast.runtime.hooks import HookList
from holdfast.runtime.reports.report import DeadLetter

if TYPE_CHECKING:
    from holdfast.runtime.pipeline import Pipeline

log = logging.getLogger("holdfast.run")


class FailureHooks:
    """The `on_failure` hooks of one run."""

    def __init__(self, pipeline: "Pipeline", batch: str, warnings: list[str]) -> None:
        self._store, self._stages, self._batch = pipeline.store, pipeline.stages, batch
        self._everywhere = pipeline.hooks.on_failure
        self._warnings = warnings
        """Where it is noted what a hook raised."""

    def tell(self, buried: list[ItemNo]) -> None:
        """Tell of each item, and take it off the list."""
        if not self._everywhere and not any(stage.hooks.on_failure for stage in self._stages):
            buried.clear()
        while buried:
            batch = self._store.batch(self._batch)
            assert batch is not None
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
