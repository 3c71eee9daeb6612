"""What was handed to a worker and not begun: it is not lost behind a handler that hangs, not begun after an interrupt,
and not held back by neighbours that turn slow."""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.limits import SUSPECT
from holdfast.core.model import BatchId, ChunkId, Claim, ClaimRequest, Commit, Item, ItemNo, ItemState, Lease, Receipt
from holdfast.runtime.engine.assignment import PATIENCE as PATIENCE_TOGETHER
from holdfast.runtime.engine.assignment import Assignment
from holdfast.runtime.engine.desk import Desk
from holdfast.runtime.engine.exchange import Wait
from holdfast.runtime.engine.hold import Hold
from holdfast.runtime.engine.runner import CARRIED_BYTES, StageRunner
from holdfast.stores import owners
from holdfast.stores.sqlite import SqliteStore
from tests.runtime.support import ONCE, Calls, Crowd, codes, outputs, run

PATIENCE = 60.0
SLOW = range(1500, 1505)


@pytest.mark.parametrize(("hanging", "items", "workers"), [(1, 2, 1), (3, 4, 1), (2, 4, 2), (5, 6, 3)])
@pytest.mark.promise("A7")
def test_what_waits_behind_a_handler_that_hangs_is_begun_by_another_thread(
    book: hf.Pipeline, hanging: int, items: int, workers: int
) -> None:
    ends = threading.Event()

    @book.stage(timeout="50ms", retry=ONCE)
    def read(number: int) -> int:
        if number < hanging:
            ends.wait(PATIENCE)
        return number

    report = run(book, range(items), workers=workers)
    ends.set()
    assert codes(report) == dict.fromkeys(range(hanging), "timeout")
    assert report.counts.done == items - hanging


def test_threads_that_hang_are_replaced_one_by_one_and_no_more_than_that(book: hf.Pipeline) -> None:
    ends, crowd = threading.Event(), Crowd()

    @book.stage(timeout="50ms", retry=ONCE)
    def read(number: int) -> int:
        if number % 5 == 0:
            ends.wait(PATIENCE)
        with crowd:
            threading.Event().wait(0.005)
        return number

    report = run(book, range(30), workers=2)
    assert (report.counts.done, report.counts.dead) == (24, 6)
    assert crowd.most <= 2
    ends.set()


@pytest.mark.promise("A7")
def test_an_interrupt_ends_a_run_whose_items_wait_in_a_pool_of_the_users(restart: Callable[..., hf.Pipeline]) -> None:
    calls = Calls()

    def define(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int, ctx: hf.Context) -> int:
            if calls(number) and len(calls) == 1:
                os.kill(os.getpid(), signal.SIGINT)
                while not ctx.stopping:
                    threading.Event().wait(0.001)
            return number

    with ThreadPoolExecutor(1) as pool:
        report = run(restart(define), range(40), workers=4, executor=pool)
        assert (report.state, report.counts.done, len(calls)) == ("interrupted", 1, 1)
        assert run(restart(define), range(40), workers=4, executor=pool).is_complete
    assert sorted(calls.seen) == list(range(40)), "nothing was begun twice"


@pytest.mark.promise("A7")
def test_after_an_interrupt_nothing_of_what_travels_together_is_begun(
    restart: Callable[..., hf.Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, told = Calls(), threading.Event()
    drop = Desk._drop_what_is_ready

    def dropped(desk: Desk) -> Any:
        yield from drop(desk)
        told.set()

    monkeypatch.setattr(Desk, "_drop_what_is_ready", dropped)

    def define(book: hf.Pipeline) -> None:
        @book.stage(timeout=PATIENCE)
        def read(number: int) -> int:
            if calls(number) and number == 1500:
                os.kill(os.getpid(), signal.SIGINT)
                told.wait(PATIENCE)
            return number

    report = run(restart(define), range(3000), workers=1)
    assert (report.state, report.counts.done, len(calls)) == ("interrupted", 1501, 1501)


class Noting(SqliteStore):
    """Knows what it has committed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.changed = threading.Condition()
        self.kept: set[int] = set()

    def commit(self, commits: Sequence[Commit]) -> list[Receipt]:
        receipts = super().commit(commits)
        with self.changed:
            self.kept.update(output.n for each in commits for output in each.outputs)
            self.changed.notify_all()
        return receipts

    def has(self, n: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: n in self.kept, PATIENCE / 4)


@pytest.mark.parametrize("kind", ["threads", "context", "pool"])
@pytest.mark.promise("P10")
def test_of_handlers_that_travel_together_and_turn_slow_each_is_committed_before_the_next(
    folder: Path, kind: str
) -> None:
    """With a timeout, quick handlers run on threads, many at a time: turned slow, they do not wait for each other."""
    store = Noting(folder / "state.db")
    book = hf.Pipeline("book", store=store)

    def handle(number: int) -> bool:
        if number in SLOW:
            threading.Event().wait(2 * PATIENCE_TOGETHER)
        return number not in SLOW or number == SLOW.start or store.has(number - 1)

    if kind == "context":

        @book.stage(name="read", timeout=PATIENCE)
        def read_with_context(number: int, ctx: hf.Context) -> bool:
            return handle(number)

    else:

        @book.stage(name="read", timeout=PATIENCE)
        def read(number: int) -> bool:
            return handle(number)

    with ThreadPoolExecutor(1) as pool:
        assert run(book, range(3000), workers=1, executor=pool if kind == "pool" else None).is_complete
    assert all(outputs(book).values())


class Paused(SqliteStore):
    """Of a process that stood still: its heartbeat is too late, and its lease runs out."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.at_end = threading.Event()

    def renew(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        if threading.current_thread().name == "holdfast-heartbeat":
            self.at_end.wait(PATIENCE)
        return super().renew(leases, seconds)


@pytest.mark.parametrize("kind", ["threads", "loop"])
@pytest.mark.promise("C7")
def test_what_waits_for_a_worker_is_not_begun_once_another_process_has_taken_it_over(folder: Path, kind: str) -> None:
    store, other = Paused(folder / "state.db"), SqliteStore(folder / "state.db")
    book = hf.Pipeline("book", store=store)
    begun: list[tuple[int, int]] = []
    taken: list[int] = []

    def take_over(number: int, fence: int) -> None:
        begun.append((number, fence))
        if len(begun) > 1:
            return
        while any(chunk.owner is None for chunk in other.chunks(BatchId(1))):
            threading.Event().wait(0.001)
        while len(taken) < 2:
            claim = other.claim(ClaimRequest(batch=BatchId(1), owner=owners.new_owner(), limit=9, seconds=1.0))
            if isinstance(claim, Claim):
                taken.append(claim.lease.fence)

    if kind == "threads":

        @book.stage(name="read")
        def read(number: int, ctx: hf.Context) -> int:
            take_over(number, ctx.fence)
            return number

    else:

        @book.stage(name="read")
        async def read_async(number: int, ctx: hf.Context) -> int:
            take_over(number, ctx.fence)
            return number

    assert run(book, range(2), workers=1, lease="100ms").is_complete
    store.at_end.set()
    assert sorted(number for number, _ in begun) == [0, 0, 1]
    assert min(fence for _, fence in begun[1:]) > max(taken), "nothing more under the leases that were lost"


def test_beside_an_item_on_trial_the_worker_waits_and_does_not_spin(
    restart: Callable[..., hf.Pipeline], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    looked, wait = threading.Event(), Desk._wait

    def noted(desk: Desk) -> Wait:
        found = wait(desk)
        if any(hold.alone and hold.running and not hold.outcomes for hold in desk.holds):
            waits.append(found.seconds)
            looked.set()
        return found

    def define(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int, ctx: hf.Context) -> int:
            if number == 0:
                os.kill(os.getpid(), signal.SIGINT)
                while not ctx.stopping:
                    threading.Event().wait(0.001)
            else:
                looked.wait(PATIENCE)
            return number

    looked.set()
    assert run(restart(define), range(2), workers=1).counts.pending == 1
    looked.clear()
    store = SqliteStore(folder / "state.db")
    for _ in range(SUSPECT + 1):
        assert isinstance(store.claim(ClaimRequest(batch=BatchId(1), owner=dead_owner(), limit=9, seconds=30.0)), Claim)
    monkeypatch.setattr(Desk, "_wait", noted)
    assert run(restart(define), range(2), workers=2).is_complete
    assert waits
    assert min(waits) > 0.0


def test_an_item_that_waited_in_the_store_past_its_first_stage_is_verified_when_it_is_due() -> None:
    claim = Claim(
        lease=Lease(chunk=ChunkId(1), fence=2, owner="ann", expires=0.0),
        batch=BatchId(1), uid=bytes(16), number=1, lo=ItemNo(0), hi=ItemNo(2), version=0, pending=2, blame=0, end=2,
    )  # fmt: skip
    hold = Hold(claim, 2, 30.0, moment=0.0, guarded=frozenset({1}), adopting=frozenset({1}))
    hold.take_in(
        [Item(ItemNo(n), str(n), b"1", ItemState(stage=1, due=due), False) for n, due in enumerate((0.0, 5.0))],
        now=1.0,
        moment=0.0,
        from_store=True,
    )
    hold.wake(6.0, 5.0)
    assert [item.n for item in hold.unasked] == [0, 1]
    assert hold.ready[1].count == 0
    assert hold.resumed == {0, 1}
    hold.clear_for_stage([hold.unasked.popleft()], 5.0)
    assert hold.ready[1].count == 1


@pytest.mark.parametrize("kind", ["threads", "loop"])
def test_a_large_input_from_a_file_does_not_stay_in_memory_while_its_item_waits(
    book: hf.Pipeline, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    sizes: list[int] = []
    take_in, calls = Hold.take_in, Calls()

    def noted(hold: Hold, items: Sequence[Item], now: float, moment: float, *, from_store: bool) -> None:
        sizes.extend(len(item.input) for item in items if item.place.stage == 1)
        take_in(hold, items, now, moment, from_store=from_store)

    monkeypatch.setattr(Hold, "take_in", noted)

    @book.stage(sink=hf.Files(folder / "{key}.txt"))
    def write(number: int) -> str:
        return "x" * 2 * CARRIED_BYTES

    if kind == "threads":

        @book.stage(name="read")
        def read(text: str, ctx: hf.Context) -> int:
            if calls(ctx.key) == 1:
                raise hf.Defer(seconds=0.001)
            return len(text)

    else:

        @book.stage(name="read")
        async def read_async(text: str, ctx: hf.Context) -> int:
            if calls(ctx.key) == 1:
                raise hf.Defer(seconds=0.001)
            return len(text)

    assert run(book, range(4), workers=2).is_complete
    assert set(outputs(book).values()) == {2 * CARRIED_BYTES}
    assert len(sizes) == 8
    assert max(sizes) == 0


def dead_owner() -> str:
    """The name of a process of this host that is known to have ended: it has our number, and began at another time."""
    parts = owners.new_owner().split("/")
    return "/".join([*parts[:4], "1", parts[5]])


@pytest.mark.parametrize("whose", ["ours", "the user's"])
def test_what_goes_wrong_around_a_handler_ends_the_run_instead_of_keeping_it_waiting(
    book: hf.Pipeline, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    @book.stage(timeout=PATIENCE)
    def read(number: int) -> int:
        return number

    def fails(runner: StageRunner, work: Assignment) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(StageRunner, "run", fails)
    with ThreadPoolExecutor(1) as pool, pytest.raises(MemoryError, match="no room"):
        run(book, range(3), executor=pool if whose == "the user's" else None)
