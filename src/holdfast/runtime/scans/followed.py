"""Running what is new of a source that is followed: a walk that comes to the end of what is there, not to an end."""

from collections.abc import Callable
from typing import Any

from holdfast.core.model import Checkpoint, Item
from holdfast.core.outcome import Done
from holdfast.runtime.engine.assignment import Assignment
from holdfast.runtime.engine.pools import Finished
from holdfast.runtime.scans.burial import Burial
from holdfast.runtime.scans.feed import Feed
from holdfast.runtime.scans.interval import Careful, Interval
from holdfast.runtime.scans.runner import RangeRunner
from holdfast.runtime.scans.stage import RangeStage
from holdfast.runtime.scans.walk import Walk


class FollowRunner(RangeRunner):
    """Walks over a feed that was opened before, and leaves in the assignment how far it came."""

    def __init__(self, stage: RangeStage, *, pipeline: str, batch: str, stopping: Callable[[], bool],
                 now: Callable[[], float], finished: Finished, burial: Burial, feed: Feed, at: Checkpoint | None,
                 careful: bool, condemned: str) -> None:  # fmt: skip
        super().__init__(stage, pipeline=pipeline, batch=batch, stopping=stopping, now=now, finished=finished,
                         burial=burial)  # fmt: skip
        self._feed, self._at = feed, at
        self._careful, self._condemned = careful, condemned

    def _walk(self, work: Assignment, item: Item, ctx: Any) -> Walk:
        every = self.ranges.every
        interval = Careful(every) if self._careful else Interval(every)
        return self.walk_over(self._feed, interval, work, ctx, self._at, condemned=self._condemned)

    def _done(self, walk: Walk, result: Any, work: Assignment, ctx: Any, began: float) -> Done | None:
        """What is there was handled: the last checkpoint and the release are one commit."""
        self.refuse_rows_left(walk)
        work.reached = walk.reached(is_last=True)
        return None
