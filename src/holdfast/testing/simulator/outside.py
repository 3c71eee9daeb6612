"""The world outside of the store: what handlers made there, whether or not it was recorded, and what of it is broken.

A handler that finished left something behind, even if its process died before the commit: whoever comes next in the
same epoch finds it and need not pay again. What was recorded can be lost out there: then it does not hold, and nobody
may rest on it any more.
"""

from holdfast.core.journal import Spend
from holdfast.core.model import BatchId, Output, State, StoredItem
from holdfast.stores.base import Store

Effect = tuple[int, int, int]
"""An item at a stage in an epoch."""
RESTING = (State.DONE, State.PENDING)
"""Items that rest on the outputs of the stages behind them; nobody asks for those of the others any more."""


class Outside:
    """What is out there."""

    def __init__(self, store: Store, batch: BatchId) -> None:
        self._store, self._batch = store, batch
        self.made: dict[Effect, Spend | None] = {}
        """What exists, with what it cost to make it."""
        self.broken: set[Effect] = set()
        """What was there and does not hold any more."""

    def make(self, effect: Effect, spend: Spend | None) -> None:
        """What is there stays: whoever comes second, not knowing, changes nothing."""
        self.made.setdefault(effect, spend)

    def has(self, effect: Effect) -> bool:
        """Whether a worker that looks finds what it is about to make."""
        return effect in self.made and effect not in self.broken

    def broken_below(self, n: int, stage: int) -> int | None:
        """The first stage before that one whose recorded output does not hold."""
        outputs = self._store.outputs(self._batch, lo=n, hi=n + 1) if self.broken else ()
        return next((each.stage for each in outputs if each.stage < stage and self.is_broken(each)), None)

    def rests_on_broken(self, n: int, stage: int) -> bool:
        """Whether the input of a stage is gone, whatever was looked at."""
        inputs = self._store.outputs(self._batch, lo=n, hi=n + 1, stage=stage - 1) if self.broken and stage else ()
        return any(self.is_broken(each) for each in inputs)

    def is_broken(self, output: Output) -> bool:
        return (int(output.n), output.stage, output.epoch) in self.broken

    def does_not_hold(self, item: StoredItem) -> int | None:
        """The first stage of an item whose recorded output does not hold, where the item rests on it."""
        return self.broken_below(item.n, item.place.stage) if item.place.state in RESTING else None

    def all_that_do_not_hold(self) -> list[tuple[StoredItem, int]]:
        """Every item that rests on what does not hold, with the stage it has to go back to."""
        if not self.broken:
            return []
        items = self._store.items(self._batch)
        return [(item, stage) for item in items if (stage := self.does_not_hold(item)) is not None]
