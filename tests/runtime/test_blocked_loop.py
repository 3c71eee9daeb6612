"""Which handler is said to block the event loop: the one that does, and no other, whatever the moment of the look."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.model import Item, ItemNo, ItemState
from holdfast.runtime import event_loop
from holdfast.runtime.engine import pools as loop_module
from holdfast.runtime.engine.assignment import Assignment
from holdfast.runtime.engine.pools import LOOK_LONGEST, Finished, Loop
from holdfast.runtime.engine.runner import StageRunner

LIMIT = 62.0


class Moved:
    """A clock that only the test moves; it begins late, as that of a machine that is up for long."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Moved:
    moved = Moved()
    monkeypatch.setattr(loop_module, "clock", moved)
    return moved


@pytest.fixture
def loop() -> Iterator[Loop]:
    opened = Loop(8, Finished(), event_loop.shared())
    yield opened
    opened.close()


class Blocking:
    """A handler that keeps the loop from turning, between two moments that the test knows of."""

    def __init__(self) -> None:
        self.begun = [threading.Event() for _ in range(3)]
        self.ends = [threading.Event() for _ in range(3)]

    async def __call__(self, number: int) -> int:
        self.begun[number].set()
        assert self.ends[number].wait(60)
        return number

    def end(self) -> None:
        for event in self.ends:
            event.set()


def submit(loop: Loop, handler: Callable[..., Any], *numbers: int) -> None:
    stage = hf.Pipeline("book", store="memory:").stage(name="read", timeout="60s")(handler)
    runner = StageRunner(stage, None, pipeline="book", batch="book", stopping=lambda: False)
    items = [Item(ItemNo(n), n, str(n).encode(), ItemState(), True) for n in numbers]
    loop.submit(runner, Assignment(0, items, 1, 0.0, None))


def looks(loop: Loop, clock: Moved, seconds: float, step: float = 0.25) -> Item | None:
    """Look again and again while time goes by, as the worker does."""
    found = None
    for _ in range(int(seconds / step)):
        clock.now += step
        found = found or loop.blocked_by(LIMIT)
    return found


@pytest.mark.promise("A7")
def test_a_loop_that_turns_while_it_is_asked_is_not_taken_for_a_blocked_one(
    loop: Loop, clock: Moved, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop answers before the question is out, and is at a handler when it is looked at."""
    handler, ask = Blocking(), asyncio.BaseEventLoop.call_soon_threadsafe

    def answered_at_once(asked: Any, *args: Any) -> Any:
        handle = ask(asked, *args)
        if args[0] == loop.turned:
            monkeypatch.undo()
            submit(loop, handler, 1)
            assert handler.begun[1].wait(60)
        return handle

    monkeypatch.setattr(asyncio.BaseEventLoop, "call_soon_threadsafe", answered_at_once)
    try:
        assert loop.blocked_by(LIMIT) is None
        assert handler.begun[1].is_set(), "the moment that this is about was not reached"
    finally:
        handler.end()


def test_a_handler_that_blocks_is_named_once_it_did_so_for_long_enough(loop: Loop, clock: Moved) -> None:
    handler = Blocking()
    submit(loop, handler, 1)
    assert handler.begun[1].wait(60)
    try:
        assert looks(loop, clock, LIMIT) is None
        found = looks(loop, clock, 1.0)
        assert found is not None
        assert found.key == 1
    finally:
        handler.end()


def test_a_process_that_stood_still_accuses_nobody(loop: Loop, clock: Moved) -> None:
    """Stopped, or on a machine that slept: neither the handler nor whoever looks could do anything meanwhile."""
    handler = Blocking()
    submit(loop, handler, 1)
    assert handler.begun[1].wait(60)
    try:
        assert looks(loop, clock, 1.0) is None
        clock.now += 3600.0
        assert loop.blocked_by(LIMIT) is None
        assert looks(loop, clock, LIMIT - LOOK_LONGEST - 2.0) is None
        assert looks(loop, clock, 5.0) is not None
    finally:
        handler.end()


def test_many_handlers_that_take_a_while_each_are_not_one_that_blocks(loop: Loop, clock: Moved) -> None:
    """All of them were ready when the loop was asked to turn, so it comes to that after the last."""
    handler = Blocking()
    submit(loop, handler, 0, 1, 2)
    try:
        for number in range(3):
            assert handler.begun[number].wait(60)
            assert looks(loop, clock, LIMIT - 2.0) is None
            handler.ends[number].set()
    finally:
        handler.end()
