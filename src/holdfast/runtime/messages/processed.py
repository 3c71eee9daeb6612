"""What became of one item that was handed to `process()`."""

from dataclasses import dataclass
from typing import Any

from holdfast.core.model import Batch, Key, State, StoredItem
from holdfast.runtime.define.stage import Stage
from holdfast.runtime.verify.inspector import value_of
from holdfast.stores.base import Store

WAITING, RUNNING, AGAIN = "waiting", "running", "again"
FINISHED = frozenset({State.DONE, State.SKIPPED, State.DEAD, State.CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """How an item stands after it was handed to `process()`."""

    key: Key
    number: int
    state: str
    """done, skipped, dead, cancelled; or waiting (see `due`), running (another process has it in hand), again (it was
    not finished here, and may be at once: its time was up, or it was taken over)."""
    output: Any = None
    """Of the last stage, validated, where it is done."""
    stage: str = ""
    """Where it stands, while it is not done."""
    code: str = ""
    why: str = ""
    due: float | None = None
    """When it may be tried again, in seconds since 1970, while it waits."""

    @property
    def is_finished(self) -> bool:
        """Whether the message has done its work: the item is done, skipped, dead or cancelled, and that is recorded."""
        return self.state in FINISHED

    @property
    def run_again(self) -> bool:
        """Whether the item is to be handed over again, now or later."""
        return not self.is_finished


def describe(
    stored: StoredItem, stages: list[Stage], *, state: str | None = None, output: Any = None, why: str = "",
    due: float | None = None,
) -> Processed:  # fmt: skip
    """The answer for an item as it is stored; `state` where that says more than what is stored."""
    place = stored.place
    stage = stages[place.stage].name if place.stage < len(stages) else ""
    return Processed(
        key=stored.key, number=stored.n, state=state if state is not None else str(place.state), output=output,
        stage=stage, code=place.code, why=why if why else place.reason, due=due,
    )  # fmt: skip


def output_of(store: Store, batch: Batch, stored: StoredItem, stages: list[Stage]) -> Any:
    """The recorded output of the last stage, validated. Raises as `value_of`."""
    last = len(stages) - 1
    outputs = store.outputs(batch.id, lo=stored.n, hi=stored.n + 1, stage=last, limit=1)
    if not outputs:
        return None
    return value_of(stages[last], outputs[0], batch.name, stored)
