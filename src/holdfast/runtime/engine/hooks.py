"""The hooks that are called for buried items, once the burial is durable."""

import logging
from typing import TYPE_CHECKING

from holdfast.core.model import ItemNo
from holdfast.runtime.define.context import DeadLetter
from holdfast.runtime.define.stage import HookList
from holdfast.stores.base import Store

if TYPE_CHECKING:
    from holdfast.runtime.define.pipeline import PipelineDefinition


log = logging.getLogger("holdfast.run")


def tell_buried(pipeline: "PipelineDefinition", store: Store, batch: str, buried: list[ItemNo]) -> list[str]:
    """Call the `on_failure` hooks for each item, and remove it from the list. Return the errors of hooks."""
    stages, everywhere = pipeline.stages, pipeline.hooks.on_failure
    if not everywhere and not any(stage.hooks.on_failure for stage in stages):
        buried.clear()
    raised: list[str] = []
    while buried:
        (found,) = store.batches(batch)
        n = buried.pop(0)
        (item,) = store.items(found.id, lo=n, hi=n + 1)
        stage, place = stages[min(item.place.stage, len(stages) - 1)], item.place
        letter = DeadLetter(item.key, n, stage.name, place.code, place.reason, place.attempt)
        for hook in (stage.hooks.on_failure, everywhere):
            raised += _call(hook, letter)
    return raised


def _call(hook: HookList, letter: DeadLetter) -> list[str]:
    try:
        hook.call(letter)
    except Exception as error:  # noqa: BLE001 - a hook that fails must not undo what it was called for
        text = f"{hook.what} raised {type(error).__name__} for item {letter.key!r}: {error}"
        log.warning("%s", text)
        return [text]
    return []
