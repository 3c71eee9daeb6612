"""How worker processes end with their run: they finish what is theirs, leave nothing behind, keep nobody waiting."""

import os
import signal
from pathlib import Path

import pytest

from tests.runtime.support import App, wait_for
from tests.runtime.test_dying_processes import HEAD, program, told

RUN_AGAIN = 75


@pytest.fixture(autouse=True)
def _buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed waits in memory, as it does for most people."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


def test_what_handlers_print_in_their_processes_is_not_lost_at_the_end(folder: Path) -> None:
    stage = """
import atexit

@book.stage(executor="processes")
def read(number: int) -> int:
    print("handled", number)
    return number

if __name__ != "__main__":
    atexit.register(tell, "left", 1)
"""
    ended = program(folder, stage).run()
    assert handled(ended.stdout) == list(range(12)), ended.stderr
    assert told(folder, "left")[1] >= 1


def handled(out: str) -> list[int]:
    return sorted(int(line.split()[1]) for line in out.splitlines() if line.startswith("handled"))


def test_one_that_the_program_forked_does_not_keep_its_processes_from_ending(folder: Path) -> None:
    """It has their lines open, so that they would wait for more until they are ended by force."""
    stage = """
@book.stage(executor="processes")
def read(number: int) -> int:
    print("handled", number)
    Path("ready").touch()
    return number

def source():
    yield 0
    wait_for("ready")
    if os.fork() == 0:
        os.closerange(0, 3)  # what the test reads ends with the program
        os.close(resource_tracker._resource_tracker._fd)
        wait_for("go")
        os._exit(0)
    yield 1

if __name__ == "__main__":
    report = book.run(source(), workers=1, progress=False)
    sys.exit(report.exit_code)
"""
    at_start = """
from multiprocessing import resource_tracker
from holdfast.runtime.engine import processes
processes.FAREWELL_SECONDS = 40.0
"""
    process = App(folder, HEAD + at_start + stage).start()
    out, err = process.communicate(timeout=30)  # less than the time it would be waited for
    (folder / "go").touch()
    assert process.returncode == 0, err
    assert handled(out) == [0, 1]


def test_a_thread_that_a_handler_left_behind_keeps_nobody_waiting_and_what_was_printed_is_there(folder: Path) -> None:
    stage = """
import multiprocessing, threading

@book.stage(executor="processes")
def read(number: int) -> int:
    threading.Thread(target=wait_for, args=("never",)).start()
    print("handled", number)
    return number

if __name__ == "__main__":
    from holdfast.runtime.engine import processes
    processes.FAREWELL_SECONDS = 0.2
    report = book.run(range(4), workers=1, progress=False)
    assert not multiprocessing.active_children(), "nothing of them is left"
    sys.exit(report.exit_code)
"""
    ended = App(folder, HEAD + stage).run(seconds=30.0)
    assert ended.returncode == 0, ended.stderr
    assert handled(ended.stdout) == [0, 1, 2, 3]


@pytest.mark.promise("A7")
def test_an_interrupt_while_processes_start_ends_the_run_quietly(folder: Path) -> None:
    """Ctrl-C at a terminal reaches them all: also one that is just importing the program, which nobody waits for."""
    stage = """
@book.stage(executor="processes")
def read(number: int) -> int:
    return number

if __name__ != "__main__":
    Path("importing").touch()
    wait_for("go")
"""
    process = program(folder, stage).start()
    wait_for((folder / "importing").exists)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == RUN_AGAIN, err
    assert "Traceback" not in err
    assert out.split() == ["0", "0"]
    (folder / "go").touch()
    assert program(folder, stage).run().stdout.split() == ["12", "0"]


@pytest.mark.promise("A7")
def test_a_request_to_end_that_reaches_every_process_lets_them_finish(folder: Path) -> None:
    """As service managers send it: to all of them."""
    stage = """
@book.stage(executor="processes")
def read(number: int, ctx: hf.Context) -> int:
    tell("began", number)
    while not ctx.stopping:
        time.sleep(0.002)
    return number
"""
    process = program(folder, stage).start()
    wait_for(lambda: (folder / "log").exists() and len(told(folder)) == 2)
    os.killpg(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == RUN_AGAIN, err
    assert out.split() == ["2", "0"], "what was begun is finished"


@pytest.mark.slow
@pytest.mark.promise("A7", "E2")
@pytest.mark.parametrize(
    ("executor", "number"), [("threads", signal.SIGINT), ("threads", signal.SIGTERM), ("processes", signal.SIGTERM)]
)
def test_programs_that_die_of_a_signal_to_everybody_bury_no_items(folder: Path, executor: str, number: int) -> None:
    stage = f"""
import subprocess

@book.stage(executor={executor!r})
def read(number: int) -> int:
    if not Path("go").exists():
        subprocess.run(["sh", "-c", f"touch program-{{number}}; exec sleep 60"], check=True)
    return number
"""
    process = program(folder, stage).start()
    wait_for(lambda: len(list(folder.glob("program-*"))) == 2)
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == RUN_AGAIN, err
    assert out.split() == ["0", "0"], "nothing is done, and nobody is buried"
    (folder / "go").touch()
    assert program(folder, stage).run().stdout.split() == ["12", "0"]


@pytest.mark.promise("A7")
def test_a_suspect_that_is_killed_while_the_run_stops_is_not_to_blame(folder: Path) -> None:
    stage = """
@book.stage(executor="processes", retry=hf.Retry(attempts=1))
def read(number: int, ctx: hf.Context) -> int:
    tell("began", number)
    if number == 1 and len(Path("log").read_text().split("began 1\\n")) <= 3:
        os.kill(os.getpid(), 9)
    if number == 1 and not Path("go").exists():
        Path("alone").touch()
        while not ctx.stopping:
            time.sleep(0.002)
        os.kill(os.getpid(), 9)
    return number
"""
    process = program(folder, stage, items=3).start()
    wait_for((folder / "alone").exists)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == RUN_AGAIN, err
    assert out.split()[1] == "0", "nobody is buried"
    (folder / "go").touch()
    assert program(folder, stage, items=3).run().stdout.split() == ["3", "0"]


@pytest.mark.promise("A7")
def test_a_run_that_is_left_alone_on_its_thread_ends_with_the_program(folder: Path) -> None:
    stage = """
import threading

@book.stage(executor="processes")
def read(number: int) -> int:
    tell("began", number)
    Path("begun").touch()
    wait_for("never")
    return number

if __name__ == "__main__":
    options = {"workers": 2, "progress": False}
    threading.Thread(target=book.run, args=(range(12),), kwargs=options, daemon=True).start()
    wait_for("begun")
"""
    ended = App(folder, HEAD + stage).run(seconds=30.0)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "process object is closed" not in ended.stderr


SCAN = """
import threading
from holdfast.testing.rows import Rows

scan = hf.Scan("scan", Rows(list(range(20))), store="state.db", every=5, partitions=2)
"""


def test_what_handlers_of_a_scan_print_in_their_processes_is_not_lost(folder: Path) -> None:
    """Also where the program lets the system throw its dead children away."""
    source = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)

@scan.handler(executor="processes")
def keep(rows):
    print(*(f"handled {row}\\n" for row in rows), sep="", end="")

if __name__ == "__main__":
    sys.exit(scan.run(progress=False).exit_code)
"""
    ended = App(folder, HEAD + SCAN + source).run()
    assert ended.returncode == 0, ended.stderr
    assert handled(ended.stdout) == list(range(20))


@pytest.mark.promise("A7")
def test_a_scan_that_is_left_alone_on_its_thread_ends_with_the_program(folder: Path) -> None:
    source = """
@scan.handler(executor="processes")
def keep(rows):
    Path("begun").touch()
    wait_for("never")

if __name__ == "__main__":
    threading.Thread(target=scan.run, kwargs={"progress": False}, daemon=True).start()
    wait_for("begun")
"""
    ended = App(folder, HEAD + SCAN + source).run(seconds=30.0)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
