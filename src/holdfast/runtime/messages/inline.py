"""One stage of one item, run where `process()` was called: on the calling thread, or beside it where a time limit must
be able to break in."""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from holdfast.core.outcome import Outcome
from holdfast.runtime.define.calls import here
from holdfast.runtime.engine.assignment import Assignment, clock
from holdfast.runtime.engine.resources import Resources
from holdfast.runtime.engine.runner import StageRunner

TURN_SECONDS = 0.5
"""How long a coroutine that was given up may keep the loop from turning before the loop is left to it."""
LEAST_WAIT = 0.01
"""How soon, at the earliest, a handler is looked at again."""


class Inline:
    """Runs stages one at a time; coroutines on the event loop of the process."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._at_work: asyncio.Task[Any] | None = None

    def run(self, runner: StageRunner, work: Assignment, deadline: float) -> Outcome | None:
        """The outcome of the item; None where it was not begun, or did not end before the deadline (monotonic)."""
        stage = runner.stage
        timeout = stage.timeout if stage.timeout is not None and not stage.is_async else math.inf
        call = self._coroutine(runner, work) if stage.is_async else lambda: runner.run(work)
        handled_here = here.batch
        if min(timeout, deadline) == math.inf:
            try:
                call()
            finally:
                here.batch = handled_here
        else:
            began = _watch(_Beside(call, self._resources.leave_thread), work, timeout, deadline)
            if began is not None:
                return self._give_up(runner, work, began)
        return work.outcomes[0] if work.outcomes else None

    def _coroutine(self, runner: StageRunner, work: Assignment) -> Callable[[], None]:
        home = self._resources.home

        async def attempt() -> Outcome:
            self._at_work = asyncio.current_task()
            here.batch = (runner.pipeline, runner.batch)
            return await runner.attempt_async(work.items[0], work, clock())

        def call() -> None:
            if not runner.may_not_begin(work):
                outcome = home.run(attempt())
                if not work.abandoned:
                    work.outcomes.append(outcome)

        return call

    def _give_up(self, runner: StageRunner, work: Assignment, began: float) -> Outcome | None:
        """Whatever the handler still does is ignored; a coroutine is cancelled, and where it blocks the loop, that is
        left to it. `began` is 0 where it had no timeout, or was still within it."""
        work.abandoned = True
        if runner.stage.is_async and self._at_work is not None:
            self._leave(self._at_work)
        if work.outcomes:
            return work.outcomes[0]
        if began:
            return runner.timed_out(work.items[0], work, began)
        is_begun = work.started > 0 or work.items[0].n in work.contexts
        return runner.cut_off(work.items[0], work, work.started or work.ready_at) if is_begun else None

    def _leave(self, at_work: "asyncio.Task[Any]") -> None:
        home = self._resources.home
        home.soon(at_work.cancel)
        if not home.turns(TURN_SECONDS) and asyncio.current_task(home.loop) is at_work:
            self._resources.lose_home()


def _watch(thread: "_Beside", work: Assignment, timeout: float, deadline: float) -> float | None:
    """Run beside this thread. None when it ended; when the handler did not answer within its timeout, the moment it
    began; 0 when the deadline (monotonic) came first. Only the handler has a timeout: what is done before and after it,
    by verifiers, adopters and the sink, takes the time it takes."""
    thread.start()
    while thread.is_alive():
        began, now = work.started, clock()
        if began and now - began > timeout:
            return began
        left = deadline - time.monotonic()
        if left <= 0:
            return 0.0
        wait = min(left, max(LEAST_WAIT, began + timeout - now) if began else max(LEAST_WAIT, timeout))
        thread.join(None if wait == math.inf else min(wait, threading.TIMEOUT_MAX))
    if thread.trouble is not None:
        raise thread.trouble
    return None


class _Beside(threading.Thread):
    """One call on a thread of its own, with the resources of that thread."""

    def __init__(self, call: Callable[[], Any], leave: Callable[[], None]) -> None:
        super().__init__(name="holdfast-inline", daemon=True)
        self._call, self._leave = call, leave
        self.trouble: BaseException | None = None

    def run(self) -> None:
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001 - whoever waits raises it
            self.trouble = error
        finally:
            self._leave()
