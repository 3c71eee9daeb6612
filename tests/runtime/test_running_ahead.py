"""A worker goes on with its next item while the disk is still busy with the last: one item ahead and no further, not
where money decides, and not once the run is told to stop."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.core.model import Commit, Receipt
from holdfast.stores.sqlite import SqliteStore
from tests.runtime.support import Calls, run

PATIENCE = 60.0
SLOW = 0.011
"""Slow enough for items to travel alone: of faster handlers, a worker takes a few milliseconds' worth at once."""


class SlowDisk(SqliteStore):
    """Its first commits take as long as a test wants."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.may_end = threading.Event()
        self.committed = 0

    def commit(self, commits: Sequence[Commit]) -> list[Receipt]:
        if any(each.counts.settled for each in commits):
            self.may_end.wait(PATIENCE)
        receipts = super().commit(commits)
        self.committed += sum(each.counts.settled for each in commits)
        return receipts


def ahead(store: SlowDisk, workers: int, enough: int, kind: str = "threads", **options: object) -> int:
    """How many items were begun and not committed, at most, when the disk answers only once `enough` are."""
    most, lock, started = 0, threading.Lock(), Calls()
    pipeline = hf.Pipeline("ahead", store=store)

    def note(number: int) -> None:
        nonlocal most
        with lock:
            started(number)
            most = max(most, len(started) - store.committed)
        if len(started) >= enough:
            store.may_end.set()

    if kind == "loop":

        @pipeline.stage(name="read")
        async def wait(number: int) -> int:
            note(number)
            await asyncio.sleep(SLOW)
            return number

    else:

        @pipeline.stage
        def read(number: int, ctx: hf.Context) -> int:
            note(number)
            ctx.spend(usd="0.01")
            threading.Event().wait(SLOW)
            return number

    assert run(pipeline, range(30), workers=workers, **options).is_complete
    return most


@pytest.mark.parametrize("kind", ["threads", "loop"])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.promise("P10")
def test_while_the_disk_is_busy_each_worker_begins_one_more_item_and_no_further(
    tmp_path: Path, workers: int, kind: str
) -> None:
    assert ahead(SlowDisk(tmp_path / "state.db"), workers, enough=2 * workers, kind=kind) == 2 * workers


@pytest.mark.promise("P10")
def test_with_a_budget_nothing_is_begun_before_the_last_cost_is_known(tmp_path: Path) -> None:
    assert ahead(SlowDisk(tmp_path / "state.db"), 3, enough=3, budget=hf.Budget(usd=100, item="0.01")) <= 3


@pytest.mark.parametrize("kind", ["threads", "loop"])
@pytest.mark.promise("A7")
def test_after_an_interrupt_nothing_that_waits_for_a_worker_is_begun(
    restart: Callable[..., hf.Pipeline], kind: str
) -> None:
    calls = Calls()

    def define(book: hf.Pipeline) -> None:
        @book.stage(name="read")
        def on_thread(number: int, ctx: hf.Context) -> int:
            calls(number)
            if len(calls) == 5:
                os.kill(os.getpid(), signal.SIGINT)
            while len(calls) == 5 and not ctx.stopping:
                threading.Event().wait(0.001)
            return number

    def define_loop(book: hf.Pipeline) -> None:
        @book.stage(name="read")
        async def on_loop(number: int, ctx: hf.Context) -> int:
            calls(number)
            if len(calls) == 5:
                os.kill(os.getpid(), signal.SIGINT)
            while len(calls) == 5 and not ctx.stopping:  # noqa: ASYNC110 - a flag that another thread sets
                await asyncio.sleep(0.001)
            return number

    defined = define if kind == "threads" else define_loop
    report = run(restart(defined), range(40), workers=1)
    assert (report.state, report.counts.done, len(calls)) == ("interrupted", 5, 5)
    assert run(restart(defined), range(40), workers=1).is_complete
    assert sorted(calls.seen) == list(range(40)), "nothing was begun twice"
