"""Worker processes that die: under an item, beside others, while another is started, or before they are ready."""

from collections import Counter
from pathlib import Path

import pytest

from tests.runtime.support import App

RUN_AGAIN = 75

HEAD = """
import os, sys, time
from pathlib import Path
import holdfast as hf

book = hf.Pipeline("book", store="state.db")

def tell(word, number):
    handle = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, f"{word} {number}\\n".encode())
    os.close(handle)

def wait_for(name):
    ends = time.monotonic() + 60
    while not Path(name).exists():
        if time.monotonic() > ends: os._exit(3)
        time.sleep(0.002)
"""

TAIL = """
if __name__ == "__main__":
    report = book.run(range({items}), workers=2, progress=False, signals="report")
    dead = [f"{{each.key}}: {{each.code}} {{each.reason}}" for each in report.dead]
    print(report.counts.done, report.counts.dead, *dead)
    sys.exit(report.exit_code)
"""

SLOW_START = """
import contextlib
from multiprocessing import popen_spawn_posix

launch, started = popen_spawn_posix.Popen._launch, []

def slowly(popen, process):
    launch(popen, process)
    started.append(popen.pid)
    if len(started) > 1:
        Path("starting").touch()
        with contextlib.suppress(ChildProcessError):  # another thread has waited for it
            os.waitid(os.P_PID, started[0], os.WEXITED | os.WNOWAIT)

popen_spawn_posix.Popen._launch = slowly
"""

NO_ROOM = """
import errno
from multiprocessing import popen_spawn_posix

launch, started = popen_spawn_posix.Popen._launch, []

def crowded(popen, process):
    if len(started) >= {room}:
        raise BlockingIOError(errno.EAGAIN, "no more processes")
    started.append(1)
    launch(popen, process)

popen_spawn_posix.Popen._launch = crowded
"""


def program(folder: Path, stage: str, *, items: int = 12, at_start: str = "") -> App:
    return App(folder, HEAD + stage + at_start + TAIL.format(items=items))


def told(folder: Path, word: str = "began") -> Counter[int]:
    lines = [line.split() for line in (folder / "log").read_text().splitlines()]
    return Counter(int(number) for said, number in lines if said == word)


@pytest.mark.promise("A7", "P10")
def test_what_a_process_had_finished_before_it_died_is_not_done_again(folder: Path) -> None:
    """Quick items travel together; the one it died at is known, and nobody else pays for it."""
    stage = """
@book.stage(executor="processes")
def read(number: int) -> int:
    tell("began", number)
    if number == 1150 and not Path("died").exists():
        Path("died").touch()
        os._exit(1)
    return number
"""
    ended = program(folder, stage, items=1500).run()
    assert ended.stdout.split() == ["1500", "0"], ended.stderr
    again = {number: times for number, times in told(folder).items() if times != 1}
    assert again == {1150: 2}


@pytest.mark.promise("A7")
def test_a_process_that_dies_leaves_its_neighbours_alone(folder: Path) -> None:
    stage = """
@book.stage(executor="processes")
def read(number: int) -> int:
    tell("began", number)
    if number == 0 and not Path("died").exists():
        wait_for("beside")
        Path("died").touch()
        os._exit(1)
    if number == 0:
        Path("again").touch()
    if number == 1:
        Path("beside").touch()
        wait_for("again")
    return number
"""
    ended = program(folder, stage, items=2).run()
    assert ended.stdout.split() == ["2", "0"], ended.stderr
    assert told(folder) == {0: 2, 1: 1}


@pytest.mark.promise("A7")
def test_a_process_that_dies_while_another_is_started_does_not_keep_the_program_from_ending(folder: Path) -> None:
    stage = """
@book.stage(executor="processes")
def read(number: int) -> int:
    tell("began", number)
    if not Path("died").exists():
        wait_for("starting")
        Path("died").touch()
        os._exit(1)
    return number
"""
    ended = program(folder, stage, at_start=SLOW_START).run()
    assert ended.stdout.split() == ["12", "0"], ended.stderr


@pytest.mark.promise("A7", "A15")
def test_one_that_was_forked_by_a_process_does_not_hide_its_death(folder: Path) -> None:
    stage = """
from multiprocessing import resource_tracker

@book.stage(executor="processes", retry=hf.Retry(attempts=1))
def read(number: int) -> int:
    if number == 3:
        if os.fork() == 0:
            os.closerange(0, 3)  # what the test reads ends with the program
            os.close(resource_tracker._resource_tracker._fd)
            wait_for("go")
            os._exit(0)
        os._exit(7)
    return number
"""
    ended = program(folder, stage).run()
    (folder / "go").touch()
    assert ended.stdout.startswith("11 1 3: process_died its worker process died (exit status 7)"), ended.stderr


def test_a_dead_process_is_told_with_the_signal_that_ended_it(folder: Path) -> None:
    stage = """
@book.stage(executor="processes", retry=hf.Retry(attempts=1))
def read(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), 9)
    return number
"""
    ended = program(folder, stage).run()
    assert "3: process_died its worker process died (SIGKILL)" in ended.stdout, ended.stderr


def test_a_process_that_dies_before_it_is_ready_is_replaced(folder: Path) -> None:
    """Once one was ready: whoever dies while it starts was not given anything yet."""
    stage = """
@book.stage(executor="processes")
def read(number: int) -> int:
    tell("began", number)
    if number == 0:
        wait_for("late")
    return number

if __name__ != "__main__" and Path("log").exists() and not Path("late").exists():
    Path("late").touch()
    os._exit(1)
"""
    ended = program(folder, stage).run()
    assert ended.stdout.split() == ["12", "0"], ended.stderr
    assert (folder / "late").exists()
    assert set(told(folder).values()) == {1}


def test_with_room_for_one_process_only_that_one_does_it(folder: Path) -> None:
    stage = """
@book.stage(executor="processes")
def read(number: int) -> int:
    return os.getpid()
"""
    ended = program(folder, stage, at_start=NO_ROOM.format(room=1)).run()
    assert ended.stdout.split() == ["12", "0"], ended.stderr


def test_a_system_without_room_for_processes_is_told(folder: Path) -> None:
    stage = """
@book.stage(executor="processes")
def read(number: int) -> int:
    return number
"""
    ended = program(folder, stage, at_start=NO_ROOM.format(room=0)).run()
    assert ended.returncode == 1
    assert "worker processes cannot start" in ended.stderr
    assert "no more processes" in ended.stderr


@pytest.mark.promise("A7")
def test_processes_that_somebody_else_waits_for_are_no_trouble(folder: Path) -> None:
    """A program may have the system throw its dead children away, as servers do."""
    stage = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)

@book.stage(executor="processes")
def read(number: int) -> int:
    if number == 3 and not Path("died").exists():
        Path("died").touch()
        os._exit(1)
    return number
"""
    ended = program(folder, stage).run()
    assert ended.stdout.split() == ["12", "0"], ended.stderr


@pytest.mark.promise("A7", "A15")
def test_processes_that_die_of_each_other_bury_nobody(folder: Path) -> None:
    """Each item has room in memory alone, two have not: the system ends whoever asks for more."""
    stage = """
import fcntl

def take(share):
    with open("memory", "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        used = int(file.read() or 0) + share
        if used > 100:
            os.kill(os.getpid(), 9)
        file.truncate(0)
        file.write(str(used))

@book.stage(executor="processes", retry=hf.Retry(attempts=1))
def read(number: int) -> int:
    take(60)
    time.sleep(0.7)  # as long as the next process takes to come
    take(-60)
    return number
"""
    ended = program(folder, stage, items=5).run()
    assert ended.stdout.split() == ["5", "0"], ended.stderr


@pytest.mark.promise("A9")
def test_before_the_second_try_the_adopter_looks_for_what_the_dead_process_did(folder: Path) -> None:
    stage = """
@book.stage(executor="processes")
def pay(number: int) -> int:
    tell("paid", number)
    if number == 1 and not Path("died").exists():
        Path("died").touch()
        os._exit(1)
    return number

@pay.adopt
def found(number: int, ctx: hf.Context) -> int | None:
    return number if f"paid {number}\\n" in Path("log").read_text() else None
"""
    ended = program(folder, stage, items=3).run()
    assert ended.stdout.split() == ["3", "0"], ended.stderr
    assert told(folder, "paid") == {0: 1, 1: 1, 2: 1}


@pytest.mark.promise("A7")
@pytest.mark.parametrize("size", [1, 3_000_000], ids=["small", "large"])
def test_an_idle_process_that_died_and_left_a_child_is_noticed_at_the_next_item(folder: Path, size: int) -> None:
    stage = f"""
import threading

@book.stage(executor="processes")
def read(text: str) -> int:
    if text == "first":
        if os.fork() == 0:
            os.closerange(0, 3)
            wait_for("go")
            os._exit(0)
        threading.Timer(0.1, lambda: (Path("gone").touch(), os._exit(1))).start()
    return len(text)

def texts():
    yield "first"
    wait_for("gone")
    yield "x" * {size}
    yield "y" * {size}

if __name__ == "__main__":
    report = book.run(texts(), workers=1, progress=False)
    Path("go").touch()
    print(report.counts.done)
"""
    ended = App(folder, HEAD + stage).run()
    assert ended.stdout.split() == ["3"], ended.stderr


@pytest.mark.parametrize("kind", ["pipeline", "scan", "tick"])
def test_where_no_process_may_be_started_the_run_ends_with_that(folder: Path, kind: str) -> None:
    """As in a worker of a pool of the user's, which may have no children."""
    source = """
import multiprocessing
from holdfast.testing.rows import Rows

@book.stage(executor="processes")
def read(number: int) -> int:
    return number

scan = (hf.Follow if KIND == "tick" else hf.Scan)("scan", Rows([1, 2, 3]), store="state.db")

@scan.handler(executor="processes")
def keep(rows):
    pass

def inside():
    if KIND == "pipeline":
        book.run(range(3), workers=2, progress=False)
    elif KIND == "scan":
        scan.run(progress=False)
    else:
        scan.tick()

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=inside, daemon=True)
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""
    ended = App(folder, HEAD + f"KIND = {kind!r}\n" + source).run()
    assert ended.returncode == 1
    assert "daemonic processes are not allowed to have children" in ended.stderr
