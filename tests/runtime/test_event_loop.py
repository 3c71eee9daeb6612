"""One event loop for the whole process: it outlives runs, and a run ends only what it began there."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

import holdfast as hf
from holdfast.runtime import event_loop
from holdfast.testing.rows import Rows
from tests.runtime.support import ONCE, codes, run, wait_for


class Client:
    """Like a client of a library: bound to the loop it was first used on, with a coroutine of its own there."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.pump: asyncio.Task[None] | None = None

    async def ask(self, number: int) -> int:
        loop = asyncio.get_running_loop()
        if self.loop is None:
            self.loop, self.pump = loop, loop.create_task(asyncio.sleep(3600))
        assert self.pump is not None
        if self.loop is not loop or self.pump.done():
            raise RuntimeError("Event loop is closed")
        await asyncio.sleep(0)
        return number

    def close(self) -> None:
        if self.loop is not None and self.pump is not None:
            self.loop.call_soon_threadsafe(self.pump.cancel)


@pytest.fixture
def client() -> Iterator[Client]:
    made = Client()
    yield made
    made.close()


@pytest.mark.promise("P11")
def test_a_client_of_the_module_works_in_the_second_run(book: hf.Pipeline, client: Client) -> None:
    @book.stage(retry=ONCE)
    async def ask(number: int) -> int:
        return await client.ask(number)

    assert run(book, range(8), batch="one").counts.done == 8
    assert run(book, range(8), batch="two").counts.done == 8
    assert book.process(99, batch="three").state == "done"
    with book.processor("three", deadline="60s") as processor:
        assert processor.process(100).state == "done"
    assert run(book, range(8), batch="four").counts.done == 8


class Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_an_httpx_client_of_the_module_works_in_the_second_run(book: hf.Pipeline, address: str) -> None:
    web = httpx.AsyncClient(trust_env=False)

    @book.stage(retry=ONCE)
    async def ask(number: int) -> str:
        return (await web.get(address)).text

    for batch in ("one", "two"):
        report = run(book, range(8), batch=batch)
        assert report.counts.done == 8, codes(report)
    event_loop.shared().run(web.aclose())


def test_a_run_that_ends_cancels_nothing_of_another(folder: Any) -> None:
    first, second = (hf.Pipeline(name, store="memory:") for name in ("first", "second"))
    waits, reports = threading.Event(), []
    goes_on: asyncio.Event | None = None

    @second.stage(retry=ONCE)
    async def wait(number: int) -> int:
        nonlocal goes_on
        goes_on = asyncio.Event()
        waits.set()
        await goes_on.wait()
        return number

    @first.stage(retry=ONCE)
    async def quick(number: int) -> int:
        assert goes_on is not None
        return number

    other = threading.Thread(target=lambda: reports.append(run(second, [1])), daemon=True)
    other.start()
    assert waits.wait(60)
    assert run(first, range(5)).is_complete

    third = hf.Pipeline("third", store="memory:")

    @third.stage
    async def release(number: int) -> int:
        assert goes_on is not None
        goes_on.set()
        return number

    assert run(third, [1]).is_complete
    other.join(60)
    assert [report.counts.done for report in reports] == [1]


def test_what_a_handler_left_on_the_loop_lives_on_and_what_the_run_began_does_not(book: hf.Pipeline) -> None:
    left: list[asyncio.Task[None]] = []
    cancelled = threading.Event()

    @book.stage(retry=ONCE, timeout="60s")
    async def read(number: int) -> int:
        if number == 0:
            left.append(asyncio.create_task(asyncio.sleep(3600)))
            return number
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)  # the second ends it at once
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return number

    run(book, [0])
    run(book, [0, 1])
    assert cancelled.wait(60)
    assert not left[0].done()
    left[0].get_loop().call_soon_threadsafe(left[0].cancel)
    wait_for(left[0].done)


def test_a_loop_that_is_blocked_for_good_is_left_and_the_next_run_gets_another(book: hf.Pipeline) -> None:
    ends = threading.Event()
    blocks = True
    loops = []

    @book.stage(timeout="100ms", retry=ONCE)
    async def read(number: int) -> int:
        loops.append(asyncio.get_running_loop())
        if blocks:
            ends.wait(60)
        return number

    with pytest.raises(hf.UsageError, match="handler of item 1 blocks the event loop"):
        run(book, [1])
    blocks = False
    assert run(book, [1]).is_complete
    assert run(book, [1, 2]).is_complete
    ends.set()
    assert loops[0] is not loops[1]
    assert loops[1] is loops[2]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_has_a_loop_of_its_own(book: hf.Pipeline) -> None:
    @book.stage
    async def read(number: int) -> int:
        await asyncio.sleep(0)
        return number

    assert run(book, range(3)).is_complete
    child = os.fork()
    if child == 0:
        code = 1
        try:
            other = hf.Pipeline("other", store="memory:")
            other.stage(name="read")(read.function)
            code = 0 if run(other, range(3)).is_complete else 1
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run(book, range(5)).is_complete


def test_a_coroutine_may_run_another_pipeline_and_wait_for_it(book: hf.Pipeline) -> None:
    inner = hf.Pipeline("inner", store="memory:")

    @inner.stage
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    @inner.before
    async def begin() -> None:
        await asyncio.sleep(0)

    @book.stage(retry=ONCE)
    async def read(number: int) -> int:
        run(inner, [number], batch=f"inner {number}")
        return int(inner.process(number, batch=f"message {number}").output)

    report = run(book, [1, 2])
    assert report.counts.done == 2, codes(report)


def test_a_coroutine_that_would_wait_for_its_own_batch_is_told_whatever_runs_beside_it(book: hf.Pipeline) -> None:
    """Both are on one thread: which batch is at hand is known of the coroutine, not of the thread."""
    other = hf.Pipeline("other", store="memory:")
    begun, told = threading.Event(), []
    ready: asyncio.Event | None = None

    @book.stage(retry=ONCE)
    async def read(number: int) -> int:
        nonlocal ready
        ready = asyncio.Event()
        begun.set()
        await ready.wait()
        try:
            run(book, [number])
        except hf.UsageError as error:
            told.append(str(error))
        return number

    @other.stage
    async def disturb(number: int) -> int:
        assert ready is not None
        ready.set()
        return number

    thread = threading.Thread(target=lambda: run(book, [1]), daemon=True)
    thread.start()
    assert begun.wait(60)
    assert run(other, [1]).is_complete
    thread.join(60)
    assert "was run from one of its own handlers" in told[0]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_coroutine_that_ends_its_program_does_not_end_the_loop(
    book: hf.Pipeline, error: Callable[[], BaseException]
) -> None:
    kept = []

    @book.stage(retry=ONCE)
    async def read(number: int) -> int:
        async def leave() -> None:
            raise error()

        kept.append(asyncio.create_task(leave()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return number

    assert run(book, range(3)).is_complete
    assert run(book, range(6)).is_complete
    assert all(isinstance(each.exception(), error) for each in kept)  # type: ignore[arg-type]


def _inner(store: str = "memory:") -> hf.Pipeline:
    """A pipeline of which something async begins on a thread of its own."""
    inner = hf.Pipeline("inner", store=store)

    @inner.stage
    def double(number: int) -> int:
        return 2 * number

    @double.before
    async def begin() -> None:
        await asyncio.sleep(0)

    return inner


def _within(seconds: float, outer: hf.Pipeline, items: list[int]) -> Any:
    """The report of a run, on a thread that is left alone where it hangs; then its loop is, too."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(run(outer, items, signals="ignore")), daemon=True)
    thread.start()
    thread.join(seconds)
    if not found:
        event_loop.abandon(event_loop.shared())
        pytest.fail("the run hangs")
    return found[0]


def test_a_coroutine_may_run_a_pipeline_whose_stage_has_an_async_hook(book: hf.Pipeline) -> None:
    inner = _inner()

    @book.stage(retry=ONCE)
    async def read(number: int) -> int:
        return run(inner, [number], batch=f"inner {number}", signals="ignore").counts.done

    report = _within(20, book, [1, 2])
    assert report.counts.done == 2, codes(report)


@pytest.mark.parametrize("follows", [False, True])
def test_a_coroutine_may_run_a_scan_whose_handler_is_async(book: hf.Pipeline, follows: bool) -> None:
    scan = (hf.Follow if follows else hf.Scan)("rows", Rows(range(30)), every=10, store="memory:")
    loops = set()

    @scan.handler
    async def add(rows: list[int]) -> None:
        loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0)

    @book.stage(retry=ONCE)
    async def read(number: int) -> int:
        return scan.tick(signals="ignore").rows if follows else scan.run(progress=False, signals="ignore").counts.done

    report = _within(20, book, [1])
    assert report.counts.done == 1, codes(report)
    assert len(loops) == 1  # one for the whole run


@pytest.mark.parametrize("middle_is_async", [False, True])
def test_a_run_within_a_run_within_a_coroutine_does_not_wait_for_it(book: hf.Pipeline, middle_is_async: bool) -> None:
    inner, middle = _inner(), hf.Pipeline("middle", store="memory:")

    def go(number: int) -> int:
        return run(inner, [number], batch=f"inner {number}", signals="ignore").counts.done

    async def go_async(number: int) -> int:
        return go(number)

    middle.stage(name="go", retry=ONCE)(go_async if middle_is_async else go)

    @book.stage(retry=ONCE)
    async def read(number: int) -> int:
        return run(middle, [number], batch=f"middle {number}", signals="ignore").counts.done

    report = _within(20, book, [1])
    assert report.counts.done == 1, codes(report)
