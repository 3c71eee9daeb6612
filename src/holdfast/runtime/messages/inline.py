"""One stage of one item, run where `process()` was called: on the calling thread, or beside it where a time limit must
be able to break in."""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from holdfast.core.outcome import Outcome
from holdfast.runtime.checking.asking import here
from holdfast.runtime.working.assignment import Assignment, clock
from holdfast.runtime.working.runner import StageRunner

LEAST_WAIT = 0.01
"""How soon, at the earliest, a handler is looked at again."""


class Inline:
    """Runs stages one at a time. Coroutines share one event loop, which lasts as long as this."""

    def __init__(self) -> None:
        self._loop: asyncio.Runner | None = None

    def close(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and _is_looping():
            _beside(loop.close).join()
        elif loop is not None:
            loop.close()

    def run(self, runner: StageRunner, work: Assignment, deadline: float) -> Outcome | None:
        """The outcome of the item; None where it was not begun, or did not end before the deadline (monotonic)."""
        stage = runner.stage
        timeout = stage.timeout if stage.timeout is not None and not stage.is_async else math.inf
        call = self._coroutine(runner, work) if stage.is_async else lambda: runner.run(work)
        handled_here = here.batch
        if min(timeout, deadline) == math.inf and not (stage.is_async and _is_looping()):
            try:
                call()
            finally:
                here.batch = handled_here
        else:
            began = _watch(call, work, timeout, deadline)
            if began is not None:
                return self._give_up(runner, work, began)
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

    def _give_up(self, runner: StageRunner, work: Assignment, began: float) -> Outcome | None:
        """Whatever the handler still does is ignored. Its loop is left to it. `began` is 0 where it had no timeout, or
        was still within it."""
        work.abandoned = True
        if runner.stage.is_async:
            self._loop = None
        if work.outcomes:
            return work.outcomes[0]
        return runner.timed_out(work.items[0], work, began, work.ctx) if began else None


def _is_looping() -> bool:
    """Whether the calling thread runs an event loop already, which cannot run another one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _watch(call: Callable[[], Any], work: Assignment, timeout: float, deadline: float) -> float | None:
    """Run beside this thread. None when it ended; when the handler did not answer within its timeout, the moment it
    began; 0 when the deadline (monotonic) came first. Only the handler has a timeout: what is done before and after it,
    by verifiers, adopters and the sink, takes the time it takes."""
    thread = _beside(call)
    while thread.is_alive():
        began, now = work.started, clock()
        if began and now - began > timeout:
            return began
        left = deadline - time.monotonic()
        if left <= 0:
            return 0.0
        wait = min(left, max(LEAST_WAIT, began + timeout - now) if began else max(LEAST_WAIT, timeout))
        thread.join(None if wait == math.inf else min(wait, threading.TIMEOUT_MAX))
    return None


def _beside(call: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=call, name="holdfast-inline", daemon=True)
    thread.start()
    return thread
