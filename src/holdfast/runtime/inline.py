"""One stage of one item, run where `process()` was called: on the calling thread, or beside it where a time limit must
be able to break in."""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from holdfast.core.outcome import Outcome
from holdfast.runtime.asking import here
from holdfast.runtime.assignment import Assignment, clock
from holdfast.runtime.runner import StageRunner


class Inline:
    """Runs stages one at a time. Coroutines share one event loop, which lasts as long as this."""

    def __init__(self) -> None:
        self._loop: asyncio.Runner | None = None

    def close(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and _is_looping():
            _ends_within(loop.close, math.inf)
        elif loop is not None:
            loop.close()

    def run(self, runner: StageRunner, work: Assignment, deadline: float) -> Outcome | None:
        """The outcome of the item; None where it was not begun, or did not end before the deadline (monotonic)."""
        stage = runner.stage
        timeout = stage.timeout if stage.timeout is not None and not stage.is_async else math.inf
        limit = min(timeout, deadline - time.monotonic())
        call = self._coroutine(runner, work) if stage.is_async else lambda: runner.run(work)
        began, handled_here = clock(), here.batch
        if limit == math.inf and not (stage.is_async and _is_looping()):
            try:
                call()
            finally:
                here.batch = handled_here
        elif not _ends_within(call, limit):
            return self._give_up(runner, work, began, timed_out=clock() - began >= timeout)
        return work.outcomes[0] if work.outcomes else None

    def _coroutine(self, runner: StageRunner, work: Assignment) -> Callable[[], None]:
        if self._loop is None:
            self._loop = asyncio.Runner()
        loop = self._loop.get_loop()  # not its run(): that would make an interrupt look like the handler's own failure

        def call() -> None:
            if not runner.may_not_begin(work):
                outcome = loop.run_until_complete(runner.attempt_async(work.items[0], work, clock()))
                if not work.abandoned:
                    work.outcomes.append(outcome)

        return call

    def _give_up(self, runner: StageRunner, work: Assignment, began: float, *, timed_out: bool) -> Outcome | None:
        """Whatever the handler still does is ignored. Its loop is left to it."""
        work.abandoned = True
        if runner.stage.is_async:
            self._loop = None
        if work.outcomes:
            return work.outcomes[0]
        return runner.timed_out(work.items[0], work, began, work.ctx) if timed_out else None


def _is_looping() -> bool:
    """Whether the calling thread runs an event loop already, which cannot run another one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _ends_within(call: Callable[[], Any], seconds: float) -> bool:
    """Run beside this thread; False when it did not end in time."""
    thread = threading.Thread(target=call, name="holdfast-inline", daemon=True)
    thread.start()
    thread.join(None if seconds == math.inf else max(0.0, seconds))
    return not thread.is_alive()
