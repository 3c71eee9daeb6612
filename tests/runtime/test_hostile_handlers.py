"""Handlers that do what no handler should: exit, fork, print, end the process, ruin their surroundings."""

import sys
import threading
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.stores.sqlite import SqliteStore
from tests.runtime.support import App, Calls, codes, outputs, run

HEAD = """
import asyncio, os, sys, threading, time
import holdfast as hf

book = hf.Pipeline("book")
"""

TAIL = """
if __name__ == "__main__":
    report = book.run(range(24), workers=4, progress=False)
    print(report)
    sys.exit(report.exit_code)
"""


def stored(folder: Path) -> hf.Pipeline:
    """The store of a program, looked at from here."""
    book = hf.Pipeline("book", store=SqliteStore(folder / ".holdfast" / "state.db"))
    book.stage(lambda number: number, name="read")
    return book


@pytest.mark.promise("A7", "A15")
@pytest.mark.parametrize(
    "last",
    [
        "os._exit(9)",
        pytest.param("os.kill(os.getpid(), 9)", marks=pytest.mark.slow),
        pytest.param("os.abort()", marks=pytest.mark.slow),
    ],
)
def test_an_item_that_kills_the_process_is_found_and_buried_and_the_others_finish(folder: Path, last: str) -> None:
    app = App(
        folder,
        HEAD
        + f"""
@book.stage
def read(number: int) -> int:
    if number == 13:
        {last}
    time.sleep(0.002)
    return number
"""
        + TAIL,
    )
    died = 0
    for _ in range(25):
        if (ended := app.run()).returncode in (0, 1):
            break
        died += 1
    assert ended.returncode == 1, ended.stderr
    assert 3 <= died <= 12, "isolating one item takes a few deaths of the process, not many"
    report = stored(folder).report()
    assert report.counts.done == 23
    assert codes(report) == {13: "killed_process"}
    assert "while it was handled alone" in report.dead[0].reason


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_child_that_a_handler_forks_does_not_go_on_with_the_work(folder: Path, kind: str) -> None:
    app = App(
        folder,
        HEAD
        + f"""
@book.stage
{kind} read(number: int) -> int:
    with open("ran.txt", "a") as file:
        file.write(f"{{number}}\\n")
    if number == 5:
        os.fork()
    return number
"""
        + TAIL,
    )
    ended = app.run()
    assert ended.returncode == 0, ended.stderr
    assert "forked while handling item 5" in ended.stderr
    assert stored(folder).report().counts.done == 24
    ran = (folder / "ran.txt").read_text().split()
    assert sorted(ran, key=int) == [str(n) for n in range(24)]
    assert ended.stdout.count("complete") == 1


def test_a_child_that_ends_by_itself_is_the_handlers_own_affair(folder: Path) -> None:
    app = App(
        folder,
        HEAD
        + """
@book.stage
def read(number: int) -> int:
    child = os.fork()
    if child == 0:
        os._exit(number)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
        + TAIL,
    )
    ended = app.run()
    assert ended.returncode == 0, ended.stderr
    assert "forked while" not in ended.stderr
    assert outputs(stored(folder)) == {n: n for n in range(24)}


def test_a_handler_may_print_and_log_as_it_likes(folder: Path) -> None:
    app = App(
        folder,
        HEAD
        + """
import logging
logging.basicConfig(level="DEBUG")

@book.stage
def read(number: int, ctx: hf.Context) -> int:
    print("printed", number)
    print("to stderr", number, file=sys.stderr)
    ctx.log.info("logged %d", number)
    sys.stdout.write("\\x00 no end of line")
    return number
"""
        + TAIL,
    )
    ended = app.run()
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("printed") == ended.stderr.count("logged") == 24


HARMS = """
sys.exit(3)
raise KeyboardInterrupt
raise BaseException("whatever")
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
os.environ.clear()
os.umask(0o777)
os.chdir("/")
sys.setrecursionlimit(200)
threading.excepthook = sys.excepthook = print
asyncio.set_event_loop(None)
import gc; gc.disable()
import warnings; warnings.simplefilter("error")
import decimal; decimal.getcontext().prec = 1
import locale; locale.setlocale(locale.LC_ALL, "C")
import logging; logging.disable(); logging.shutdown()
import random; random.seed(0)
import signal; signal.alarm(0); signal.setitimer(signal.ITIMER_REAL, 0)
sys.modules.pop("holdfast"); sys.path.clear()
sys.stdout.close(); sys.stdin = None
"""


def test_what_a_handler_does_to_its_surroundings_loses_nothing(folder: Path) -> None:
    app = App(
        folder,
        HEAD
        + f"""
harms = {HARMS.split(chr(10))[1:-1]!r}

@book.stage
def read(number: int, ctx: hf.Context) -> int:
    ctx.spend(usd="0.123456789")
    if number == 3:
        exec(harms[int(ctx.batch)])
    return number

if __name__ == "__main__":
    for index, harm in enumerate(harms):
        report = book.run(range(8), batch=str(index), workers=4, progress=False)
        assert (report.counts.expected, report.counts.done + report.counts.dead) == (8, 8), harm
        assert report.counts.done == (7 if index < 3 else 8), (harm, report.dead)
        assert str(report.totals.usd) == "0.987654312", harm
""",
    )
    ended = app.run()
    assert ended.returncode == 0, ended.stderr


def test_a_handler_that_forgets_its_threads_does_not_keep_the_program_from_ending(folder: Path) -> None:
    app = App(
        folder,
        HEAD
        + """
@book.stage(timeout="50ms", retry=hf.Retry(attempts=1))
def read(number: int) -> int:
    if number == 3:
        time.sleep(1000)
    return number
"""
        + TAIL,
    )
    assert app.run(seconds=30).returncode == 1


def test_recursion_without_end_is_a_failure_of_its_item(book: hf.Pipeline) -> None:
    @book.stage
    def read(number: int) -> int:
        return read(number) if number == 3 else number

    report = run(book, range(10))
    assert codes(report) == {3: "RecursionError"}


def test_a_handler_that_raises_what_is_caught_inside_threads_ends_no_thread(book: hf.Pipeline) -> None:
    before = threading.active_count()

    @book.stage
    def read(number: int) -> int:
        sys.exit(number)

    assert run(book, range(50), workers=2, tolerate="100%").counts.dead == 50
    assert threading.active_count() <= before + 6


def test_an_item_may_define_and_run_other_pipelines(folder: Path, book: hf.Pipeline) -> None:
    inner = hf.Pipeline("inner", store=folder / "state.db")
    inner.stage(lambda number: number * 10, name="ten")

    @book.stage
    def outer(number: int) -> int:
        run(inner, [number], batch=f"inner-{number}")
        return outputs(inner, f"inner-{number}")[number]

    run(book, range(6), workers=3)
    assert outputs(book) == {n: n * 10 for n in range(6)}


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_handler_that_runs_its_own_batch_is_told_that_it_would_wait_for_itself(book: hf.Pipeline, kind: str) -> None:
    if kind == "sync":

        @book.stage
        def again(number: int) -> int:
            return run(book, [number]).counts.done

    else:

        @book.stage(name="again")
        async def again_later(number: int) -> int:
            return run(book, [number]).counts.done

    report = run(book, [1, 2])
    assert set(codes(report).values()) == {"UsageError"}
    assert "wait for itself" in report.dead[0].reason


def test_slow_handlers_after_quick_ones_are_spread_over_the_workers(book: hf.Pipeline) -> None:
    """Quick handlers run where the commits are made; that must not hold when they turn slow."""
    barrier = threading.Barrier(4, timeout=20)

    @book.stage
    def read(number: int) -> int:
        if number >= 2000:
            barrier.wait()
        return number

    @book.stage
    def finish(number: int) -> int:
        return number

    calls = Calls()
    report = run(book, range(2000), workers=4)
    report = run(book, range(2004), workers=4)
    assert report.counts.done == 2004, calls.seen
