"""How many handlers run at the same time, and where."""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.runtime.engine.dispatch import PoolKind, Slots
from holdfast.runtime.engine.exchange import Portion
from holdfast.stores.base import find_batch
from tests.runtime.rehearsal import held, item, queue_of
from tests.runtime.support import ONCE, Calls, Crowd, SlowStore, codes, outputs, run


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_as_many_threads_as_there_are_workers_and_no_more(book: hf.Pipeline, workers: int) -> None:
    crowd = Crowd()

    @book.stage
    def read(number: int) -> int:
        with crowd:
            time.sleep(0.005)
        return number

    run(book, range(60), workers=workers)
    assert crowd.most == workers


def test_the_workers_are_shared_by_all_stages(book: hf.Pipeline) -> None:
    crowd = Crowd()

    @book.stage
    def first(number: int) -> int:
        with crowd:
            time.sleep(0.003)
        return number

    @book.stage
    async def second(number: int) -> int:
        with crowd:
            await asyncio.sleep(0.003)
        return number

    @book.stage
    def third(number: int) -> int:
        with crowd:
            time.sleep(0.003)
        return number

    assert run(book, range(60), workers=4).is_complete
    assert 2 <= crowd.most <= 4


@pytest.mark.parametrize("kind", ["threads", "loop"])
@pytest.mark.parametrize("seconds", [0.0, 0.003])
def test_a_stage_keeps_to_its_own_limit(book: hf.Pipeline, kind: str, seconds: float) -> None:
    narrow, wide = Crowd(), Crowd()

    @book.stage
    def before(number: int) -> int:
        with wide:
            time.sleep(seconds)
        return number

    if kind == "threads":

        @book.stage(name="limited", concurrency=2)
        def limited(number: int) -> int:
            with narrow:
                time.sleep(seconds)
            return number

    else:

        @book.stage(name="limited", concurrency=2)
        async def limited_loop(number: int) -> int:
            with narrow:
                await asyncio.sleep(seconds)
            return number

    assert run(book, range(100), workers=8).is_complete
    assert narrow.most <= 2
    if seconds:
        assert narrow.most == 2


def test_async_handlers_run_on_one_loop_and_one_thread(book: hf.Pipeline) -> None:
    seen = set()
    crowd = Crowd()

    async def look(number: int) -> int:
        seen.add((id(asyncio.get_running_loop()), threading.get_ident()))
        with crowd:
            await asyncio.sleep(0.002)
        return number

    book.stage(name="first")(look)
    book.stage(name="second")(look)
    run(book, range(100), workers=50)
    assert len(seen) == 1
    assert crowd.most > 16


def test_async_handlers_may_share_what_belongs_to_their_loop(book: hf.Pipeline) -> None:
    lock = None

    @book.stage
    async def look(number: int) -> int:
        nonlocal lock
        if lock is None:
            lock = asyncio.Lock()
        async with lock:
            await asyncio.sleep(0)
        return number

    assert run(book, range(50)).is_complete


def test_a_slow_stage_does_not_hold_up_a_quick_one(book: hf.Pipeline) -> None:
    order: list[str] = []

    @book.stage
    def quick(number: int) -> int:
        order.append("quick")
        return number

    @book.stage(concurrency=1)
    def slow(number: int) -> int:
        time.sleep(0.005)
        order.append("slow")
        return number

    run(book, range(30), workers=4)
    assert order.index("slow") < 29, "the slow stage began before the quick one was at its end"
    assert order[:20].count("quick") > 10


def test_later_stages_come_first_so_that_items_finish_early(book: hf.Pipeline) -> None:
    open_items = most = 0
    lock = threading.Lock()

    @book.stage
    def first(number: int) -> int:
        nonlocal open_items, most
        with lock:
            open_items += 1
            most = max(most, open_items)
        time.sleep(0.002)
        return number

    @book.stage
    def second(number: int) -> int:
        nonlocal open_items
        time.sleep(0.002)
        with lock:
            open_items -= 1
        return number

    run(book, range(200), workers=4)
    assert most < 100


def test_a_thread_pool_of_the_users_is_used_and_left_open(book: hf.Pipeline) -> None:
    names = set()

    @book.stage
    def read(number: int) -> int:
        names.add(threading.current_thread().name)
        return number

    with ThreadPoolExecutor(3, thread_name_prefix="mine") as pool:
        assert run(book, range(40), executor=pool).is_complete
        assert pool.submit(lambda: 7).result() == 7
    assert all(name.startswith("mine") for name in names)


def test_a_thread_pool_of_the_users_that_is_closed_says_so(book: hf.Pipeline) -> None:
    @book.stage
    def read(number: int) -> int:
        return number

    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(hf.UsageError, match="executor passed to run"):
        run(book, range(5), executor=pool)
    assert run(book, range(5)).is_complete


def test_a_pool_of_the_users_that_is_closed_while_it_works_loses_nothing(book: hf.Pipeline) -> None:
    pool = ThreadPoolExecutor(1)

    @book.stage
    def read(number: int) -> int:
        if number == 5:
            pool.shutdown(wait=False, cancel_futures=True)
        return number

    with pytest.raises(hf.UsageError, match="executor passed to run"):
        run(book, range(50), executor=pool)
    report = run(book, range(50))
    assert (report.counts.done, report.counts.dead) == (50, 0)


def test_a_stage_may_choose_threads_while_the_run_chooses_otherwise(book: hf.Pipeline) -> None:
    names = set()

    @book.stage(executor="threads")
    def read(number: int) -> int:
        names.add(threading.current_thread().name)
        return number

    with ThreadPoolExecutor(1, thread_name_prefix="mine") as pool:
        run(book, range(4), executor=pool)
    assert not [name for name in names if name.startswith("mine")]


@pytest.mark.promise("P7", "P8")
def test_two_runs_of_one_pipeline_at_the_same_time_share_the_items(book: hf.Pipeline) -> None:
    calls = Calls()

    @book.stage
    def read(number: int) -> int:
        calls(number)
        time.sleep(0.001)
        return number

    reports: list[hf.Report] = []
    threads = [threading.Thread(target=lambda: reports.append(run(book, range(300), workers=4))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [report.counts.done for report in reports] == [300] * 3
    assert sorted(calls.seen) == list(range(300))
    assert sum(report.this_run.done for report in reports) == 300


def test_several_batches_of_one_pipeline_run_at_the_same_time(book: hf.Pipeline) -> None:
    @book.stage
    async def read(number: int) -> int:
        await asyncio.sleep(0.001)
        return number

    threads = [threading.Thread(target=run, args=(book, range(40)), kwargs={"batch": f"b{n}"}) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [book.report(f"b{n}").counts.done for n in range(6)] == [40] * 6


def test_a_run_may_be_started_on_any_thread(book: hf.Pipeline) -> None:
    @book.stage
    def read(number: int) -> int:
        return number

    with ThreadPoolExecutor(1) as pool:
        report = pool.submit(run, book, range(20)).result(60)
    assert report.is_complete


def test_hundreds_of_small_batches_leave_nothing_behind(book: hf.Pipeline) -> None:
    @book.stage
    async def first(number: int) -> int:
        return number

    @book.stage
    def second(number: int) -> int:
        return number

    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    run(book, [1], batch="warm")
    files, threads = open_files(), threading.active_count()
    for number in range(100):
        assert run(book, [number], batch=f"batch {number}").is_complete
    deadline = time.monotonic() + 20
    while (threading.active_count() > threads + 2 or open_files() > files + 4) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= threads + 2
    assert open_files() <= files + 4


@pytest.mark.promise("C9", "B7")
def test_commits_that_take_longer_than_the_lease_do_each_item_once(folder: Path) -> None:
    store = SlowStore(folder / "state.db")
    store.seconds = 0.12
    book = hf.Pipeline("book", store=store)
    calls = Calls()

    @book.stage
    def read(number: int) -> int:
        calls(number)
        time.sleep(0.01)
        return number

    report = run(book, range(60), workers=8, lease="50ms")
    assert report.counts.done == 60
    assert sorted(calls.seen) == list(range(60))


@pytest.mark.promise("C6", "B4")
def test_a_store_that_fails_stops_the_run_and_the_next_one_goes_on_at_once(folder: Path) -> None:
    class Failing(SlowStore):
        commits = 0

        def commit(self, commits: object) -> object:
            self.commits += 1
            if self.commits == 3:
                raise hf.StoreUnavailable("the disk is full; free some space and run again")
            return super().commit(commits)

    book = hf.Pipeline("book", store=Failing(folder / "state.db"))

    @book.stage
    def read(number: int) -> int:
        time.sleep(0.002)
        return number

    with pytest.raises(hf.StoreUnavailable, match="the disk is full"):
        run(book, range(50), workers=2)
    began = time.monotonic()
    assert run(book, range(50)).counts.done == 50
    assert time.monotonic() - began < 10, "it did not wait for the lease of the run that failed"


@pytest.mark.promise("C7")
def test_a_handler_is_told_when_its_lease_is_lost(folder: Path, restart: Callable[..., hf.Pipeline]) -> None:
    from holdfast.core.model import Act, Change, ItemState, State

    started, told = threading.Event(), threading.Event()

    def define(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int, ctx: hf.Context) -> str:
            if started.is_set():
                return "second"
            started.set()
            while not ctx.stopping:
                time.sleep(0.002)
            told.set()
            return "first"

    book = restart(define)

    def seize() -> None:
        assert started.wait(20)
        batch = find_batch(book.store, "book")
        change = Change(n=0, state=State.PENDING, epoch=0, place=ItemState(epoch=1))
        act = Act(
            id=b"x" * 16,
            batch=batch.id,
            kind="reset",
            actor="me",
            reason="because",
            at_items=(change,),
            seize=True,
        )
        book.store.act(act)

    thread = threading.Thread(target=seize)
    thread.start()
    report = run(book, [1], lease="300ms", workers=2)
    thread.join()
    assert told.is_set()
    assert report.counts.done == 1
    assert outputs(book) == {1: "second"}


class Inline(ThreadPoolExecutor):
    """An executor that is not what it says: it runs everything at once, in the caller."""

    def submit(self, function: Callable[..., object], /, *args: object, **kwargs: object) -> "Future[object]":
        future: Future[object] = Future()
        future.set_result(function(*args, **kwargs))
        return future


def test_an_executor_that_runs_everything_at_once_will_do(book: hf.Pipeline) -> None:
    @book.stage
    def read(number: int) -> int:
        return number

    assert run(book, range(20), executor=Inline(1)).is_complete


def test_a_hundred_workers_on_a_store_with_one_writer(book: hf.Pipeline) -> None:
    @book.stage(retry=ONCE)
    def read(number: int) -> int:
        time.sleep(0.001)
        return number

    def slowly() -> Iterator[int]:
        for number in range(1000):
            if number % 100 == 0:
                time.sleep(0.005)
            yield number

    report = run(book, slowly(), workers=100)
    assert (report.counts.done, codes(report)) == (1000, {})


def test_a_system_that_gives_no_more_threads_makes_do_with_those_it_gave(
    book: hf.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("holdfast-") and thread.name[9:].isdigit() and int(thread.name[9:]) > 3:
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    crowd = Crowd()

    @book.stage
    def read(number: int) -> int:
        with crowd:
            time.sleep(0.002)
        return number

    assert run(book, range(100), workers=16).is_complete
    assert crowd.most == 3


def test_the_slot_of_what_travels_together_is_free_when_all_of_it_came_back() -> None:
    slots = Slots(1)
    queue, work = queue_of(slots), Portion(0, [item(n) for n in range(3)], 1, 0.0, held(3))
    queue.begin(work)
    queue.finish(work, 2)
    assert (slots.free, queue.used) == (0, 1), "the third is still at it"
    queue.finish(work, 1)
    assert (slots.free, queue.used) == (1, 0)


def test_a_stage_that_has_begun_as_many_as_it_may_begins_no_more() -> None:
    queue, hold = queue_of(Slots(8), concurrency=2), held(5)
    hold.take_in([item(n) for n in range(5)], 0.0, 0.0, from_store=True)
    begun = []
    while queue.can_start(hold, 0.0, math.inf):
        begun.append(Portion(0, hold.take(0, 1)[1], 1, 0.0, hold))
        queue.begin(begun[-1])
    assert len(begun) == 2
    queue.finish(begun[0], 1)
    assert queue.can_start(hold, 0.0, math.inf)


def test_an_event_loop_is_given_no_more_items_than_may_run_there() -> None:
    queue, hold = queue_of(Slots(8), kind=PoolKind.LOOP, concurrency=3), held(5)
    hold.take_in([item(n) for n in range(5)], 0.0, 0.0, from_store=True)
    assert queue.how_many(hold, inline=False) == 3
