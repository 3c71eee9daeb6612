"""The pool of async stages: a run's part of the event loop of the process."""

import asyncio
import logging
import threading
from collections import deque
from typing import Any, NamedTuple

from holdfast.core.model import Item
from holdfast.core.outcome import Outcome
from holdfast.runtime import event_loop
from holdfast.runtime.define.calls import here
from holdfast.runtime.event_loop import EventLoop
from holdfast.runtime.working.assignment import Answer, Assignment, clock
from holdfast.runtime.working.pools import Finished, Unable
from holdfast.runtime.working.runner import StageRunner

log = logging.getLogger("holdfast.loop")

CANCEL_SECONDS = 2.0
"""What a run waits at its end for what it has cancelled on the loop."""
LOOK_LONGEST = 1.0
"""What counts, at most, of the time between two looks at a loop that does not turn."""


class Loop:
    """The async stages of a run on the event loop. Answers are handed over once per turn of the loop."""

    def __init__(self, size: int, finished: Finished, home: EventLoop) -> None:
        self._free = size
        self._finished = finished
        self._home = home
        self._loop = self._home.loop
        self._waiting: deque[tuple[StageRunner, Assignment, Item]] = deque()
        self._answers: dict[int, _Gathering] = {}
        self._running: dict[int, dict[int, tuple[asyncio.Task[None], Item]]] = {}
        self._cancelled: set[asyncio.Task[None]] = set()
        """Given up, and perhaps still at work."""
        self._has_turned = True
        """Since it was last asked to."""
        self._at_hand: asyncio.Task[Any] | None = None
        """What the loop was at when it was last looked at, and has not turned since."""
        self._held = self._looked = 0.0
        """For how long it was seen at that, and when it was last looked at."""
        self._is_blocked = False
        """By a handler of this run, which was named."""
        self._has_warned = False

    def submit(self, runner: StageRunner, work: Assignment) -> None:
        self._loop.call_soon_threadsafe(self._start, runner, work)

    def abandon(self, work: Assignment) -> None:
        self._loop.call_soon_threadsafe(self._cancel, work)

    def give_back(self) -> None:
        """Hand back what the loop has not begun."""
        self._loop.call_soon_threadsafe(self._empty)

    def close(self) -> None:
        """Cancel what this run has on the loop, and nothing else. A loop that one of its handlers blocks is left to
        that; whoever needs one next gets a new one."""
        ended = threading.Event()
        self._home.soon(self._wind_up, ended)
        if not self._is_blocked and ended.wait(CANCEL_SECONDS):
            return
        if self._is_blocked or asyncio.current_task(self._loop) in self._all_running():
            event_loop.abandon(self._home)

    def _wind_up(self, ended: threading.Event) -> None:
        self._waiting.clear()
        left = self._all_running()
        for each in left:
            each.cancel()
        waiting = self._loop.create_task(_end_of(left, ended))
        self._cancelled.add(waiting)  # the loop itself holds no strong reference to it

    def _all_running(self) -> "set[asyncio.Task[None]]":
        ours = {each for running in [*self._running.values()] for each, _ in [*running.values()]}
        return ours | {each for each in [*self._cancelled] if not each.done()}

    def _start(self, runner: StageRunner, work: Assignment) -> None:
        here.batch = (runner.pipeline, runner.batch)  # for every coroutine that begins here, or when one of those ends
        self._waiting.extend([(runner, work, item) for item in work.items])
        self._fill()

    def _fill(self) -> None:
        """Begin as many items as may run together."""
        while self._free and self._waiting:
            runner, work, item = self._waiting.popleft()
            if runner.may_not_begin(work):
                self._answer(work).unrun.append(item)
                continue
            self._free -= 1
            running = self._running.setdefault(id(work), {})
            running[item.n] = self._loop.create_task(self._one(runner, work, item)), item

    def _empty(self) -> None:
        for _, work, item in self._waiting:
            self._answer(work).unrun.append(item)
        self._waiting.clear()

    async def _one(self, runner: StageRunner, work: Assignment, item: Item) -> None:
        try:
            if runner.is_short(work):
                outcome = await runner.attempt_plain(item, work, clock())
            else:
                outcome = await runner.attempt_async(item, work, clock())
        except BaseException as error:  # noqa: BLE001 - a resource of this thread cannot be opened: no item's fault
            self._finished.put(Unable(error, Answer(work, [], [item])))
            return
        running = self._running.get(id(work))
        if running is not None:
            running.pop(item.n, None)
            if not running:
                del self._running[id(work)]
        if not work.abandoned:
            self._answer(work).outcomes.append(outcome)
        runner.learn((outcome,))
        self._free += 1
        self._fill()

    def _answer(self, work: Assignment) -> "_Gathering":
        if not self._answers:
            self._loop.call_soon(self._flush)
        found = self._answers.get(id(work))
        if found is None:
            found = self._answers[id(work)] = _Gathering(work, [], [])
        return found

    def _flush(self) -> None:
        answers, self._answers = self._answers, {}
        for work, outcomes, unrun in answers.values():
            self._finished.put(Answer(work, outcomes, unrun))

    def at_work(self, work: Assignment) -> list[Item]:
        """Return the items of an assignment whose handlers are at work; another thread may ask."""
        return [item for _, item in [*self._running.get(id(work), {}).values()]]

    def _cancel(self, work: Assignment) -> None:
        work.abandoned = True
        for running, _ in self._running.pop(id(work), {}).values():
            running.cancel()
            self._cancelled.add(running)
            running.add_done_callback(self._cancelled.discard)

    def blocked_by(self, seconds: float) -> Item | None:
        """The item whose handler has kept the loop from turning for that long; looked at again and again. Only what
        was at hand at every look counts, and of a long time between two looks only a part: the process may have stood
        still."""
        if self._has_turned:
            self._has_turned, self._at_hand = False, None
            self._loop.call_soon_threadsafe(self.turned)
            return None
        at_hand, now = asyncio.current_task(self._loop), clock()
        if at_hand is None or at_hand is not self._at_hand:
            self._at_hand, self._held, self._looked = at_hand, 0.0, now
            return None
        self._held += min(now - self._looked, LOOK_LONGEST)
        self._looked = now
        if self._held <= seconds or self._has_turned:
            return None
        found = self._item_of(at_hand)
        if found is not None:
            self._is_blocked = True
        elif not self._has_warned:
            self._has_warned = True
            log.warning("the event loop is blocked by something that is not a handler of this run: %r", at_hand)
        return found

    def _item_of(self, at_hand: "asyncio.Task[Any]") -> Item | None:
        all_running = [pair for running in [*self._running.values()] for pair in [*running.values()]]
        return next((item for running, item in all_running if running is at_hand), None)

    def turned(self) -> None:
        """Called by the loop, when it comes to it."""
        self._has_turned = True


async def _end_of(left: "set[asyncio.Task[None]]", ended: threading.Event) -> None:
    if left:
        await asyncio.wait(left, timeout=CANCEL_SECONDS)
    ended.set()


class _Gathering(NamedTuple):
    """What one turn of the loop has to say about an assignment."""

    work: Assignment
    outcomes: list[Outcome]
    unrun: list[Item]
