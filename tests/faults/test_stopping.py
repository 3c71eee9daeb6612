"""Told to stop, a run comes to its next checkpoint and says how to go on; told twice, it ends at once."""

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.runtime.define.options import Options
from holdfast.runtime.engine.session import Session
from tests.faults import hanging
from tests.faults.chance import Story
from tests.faults.scene import Scene
from tests.forkserver import PATH, PATIENCE, ROOT, ForkServer, Process

RUN_AGAIN = 75
WAYS = ["threads", "async", "blocked", "inline", "processes"]
BUSY = {"threads": 4, "async": 4, "blocked": 1, "inline": hanging.QUICK + 1, "processes": 4}
"""How many items are begun when all that can hang does."""


class Stage:
    """One folder in which the hanging pipeline runs."""

    def __init__(self, forkserver: ForkServer, folder: Path) -> None:
        self.forkserver = forkserver
        self.folder = folder

    def start(self, way: str, *, timeout: str = "", fault: str = "", **options: object) -> Process:
        environment = {"HANG": way, **({"HANG_TIMEOUT": timeout} if timeout else {})}
        command = [json.dumps(options)] if options else []
        return self.forkserver.start("tests.faults.hanging", command, cwd=self.folder, env=environment, fault=fault)

    def let_go(self) -> None:
        (self.folder / hanging.GO).touch()

    def told(self, word: str) -> Counter[int]:
        """How often each item was told to have begun, or ended."""
        log = self.folder / hanging.LOG
        lines = [line.rsplit(" ", 2) for line in log.read_text().splitlines()] if log.exists() else []
        return Counter(int(number) for said, number, _ in lines if said == word)

    def pids(self) -> set[int]:
        return {int(line.rsplit(" ", 1)[1]) for line in (self.folder / hanging.LOG).read_text().splitlines()}

    def wait_for(self, word: str, count: int) -> None:
        eventually(lambda: sum(self.told(word).values()) >= count, f"{count} items {word}")

    def finish(self, way: str) -> Process:
        self.let_go()
        process = self.start(way)
        assert process.wait() == 0, process.err
        assert process.report["counts"]["done"] == process.report["counts"]["expected"]
        return process


def eventually(holds: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < limit, f"it never came to this: {what}"
        time.sleep(0.005)


@pytest.fixture
def stage(forkserver: ForkServer, tmp_path: Path) -> Iterator[Stage]:
    yield Stage(forkserver, tmp_path)
    (tmp_path / hanging.GO).touch()
    forkserver.clear()


def interrupted(process: Process) -> None:
    """It ended as a run does that wants to be run again, and says so."""
    assert process.wait() == RUN_AGAIN, process.err
    assert process.report["state"] == "interrupted", process.report
    assert "run again" in process.report["why"]
    assert process.report["exit_code"] == RUN_AGAIN


@pytest.mark.promise("A7", "B7", "P10")
@pytest.mark.parametrize(
    ("way", "number"), [*((way, signal.SIGINT) for way in WAYS), ("threads", signal.SIGTERM)], ids=str
)
def test_a_signal_drains_to_the_next_checkpoint_and_nothing_in_flight_is_lost(
    way: str, number: int, stage: Stage
) -> None:
    process = stage.start(way)
    stage.wait_for("began", BUSY[way])
    process.signal(number)
    assert not process.has_ended_within(0.3), "it did not wait for what was in flight"
    begun = stage.told("began")
    stage.let_go()
    interrupted(process)
    if way != "blocked":  # whose items were all handed over, and stood in line
        assert stage.told("began") == begun, "something new was started after the signal"
    assert process.report["counts"]["done"] == len(stage.told("ended")), "what was in flight is lost"
    stage.finish(way)
    assert set(stage.told("began").values()) == {1}, "something was done twice"


@pytest.mark.promise("A7", "B7")
@pytest.mark.parametrize("way", WAYS)
def test_a_second_signal_ends_it_at_once_whatever_hangs(way: str, stage: Stage) -> None:
    process = stage.start(way)
    stage.wait_for("began", BUSY[way])
    process.signal(signal.SIGINT)
    assert not process.has_ended_within(0.1)
    process.signal(signal.SIGTERM)
    interrupted(process)
    assert not stage.told("ended").keys() - set(range(hanging.QUICK))
    stage.finish(way)
    assert max(stage.told("began").values()) <= 2


@pytest.mark.promise("A7", "A15")
@pytest.mark.parametrize("way", WAYS)
def test_a_deadline_ends_the_run_whatever_hangs_and_says_to_run_again(way: str, stage: Stage) -> None:
    process = stage.start(way, deadline="2s")
    interrupted(process)
    assert stage.told("began") or way == "processes"  # which may take as long to start
    assert "time was up" in process.report["why"]
    stage.finish(way)


@pytest.mark.promise("A7", "C7")
@pytest.mark.parametrize("way", ["polite", "polite processes"])
def test_a_handler_that_asks_is_told_that_the_run_ends(way: str, stage: Stage) -> None:
    process = stage.start(way)
    stage.wait_for("began", 4)
    process.signal(signal.SIGINT)
    interrupted(process)
    assert len(stage.told("was asked to end")) == 4


@pytest.mark.promise("A7", "A15")
@pytest.mark.parametrize("way", ["threads", "async", "processes"])
def test_a_handler_that_hangs_past_its_timeout_is_buried_and_holds_up_nobody(way: str, stage: Stage) -> None:
    process = stage.start(way, timeout="0.5s")
    assert process.wait() == 1, process.err
    report = process.report
    assert (report["counts"]["done"], report["counts"]["dead"]) == (hanging.ITEMS - 1, 1), report
    assert report["dead"][0]["key"] == hanging.HUNG
    assert "did not answer within 0.5 s" in report["dead"][0]["reason"]
    assert report["dead"][0]["attempts"] == 2


@pytest.mark.promise("A7", "B7")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_breaks_in_on_a_source_that_blocks(number: int, stage: Stage) -> None:
    process = stage.start("source")
    stage.wait_for("reading", 1)
    stage.wait_for("ended", 1)
    process.signal(number)
    interrupted(process)
    assert process.report["counts"]["done"] == len(stage.told("ended"))
    stage.finish("source")
    assert set(stage.told("began").values()) == {1}


@pytest.mark.promise("A7", "A15")
def test_a_deadline_breaks_in_on_a_source_that_blocks(stage: Stage) -> None:
    process = stage.start("source", deadline="1s")
    interrupted(process)
    stage.finish("source")


@pytest.mark.promise("A7")
def test_worker_processes_end_with_the_process_that_was_killed(stage: Stage) -> None:
    process = stage.start("processes")
    stage.wait_for("began", 4)
    workers = stage.pids() - {process.pid}
    assert workers
    process.kill()
    eventually(lambda: not any(is_alive(pid) for pid in workers), "the worker processes are gone")
    stage.finish("processes")


@pytest.mark.promise("A7")
def test_worker_processes_end_with_a_run_that_was_stopped_at_once(stage: Stage) -> None:
    process = stage.start("processes")
    stage.wait_for("began", 4)
    workers = stage.pids() - {process.pid}
    process.signal(signal.SIGINT)
    process.signal(signal.SIGTERM)
    interrupted(process)
    eventually(lambda: not any(is_alive(pid) for pid in workers), "the worker processes are gone")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.promise("A7")
def test_the_command_ends_with_75_when_it_is_interrupted_and_with_0_when_it_is_run_again(stage: Stage) -> None:
    target = str(ROOT / "tests" / "faults" / "hanging.py") + ":hanging"
    command = [str(Path(sys.executable).parent / "holdfast"), "run", target, "--workers", "2", "--json"]
    environment = {**os.environ, "PYTHONPATH": PATH}
    process = subprocess.Popen(command, cwd=stage.folder, env=environment, stdout=subprocess.PIPE, text=True)
    stage.wait_for("began", 2)
    process.send_signal(signal.SIGINT)
    stage.let_go()
    told = json.loads(process.communicate(timeout=PATIENCE)[0])
    assert process.returncode == RUN_AGAIN
    assert told["state"] == "interrupted"
    again = subprocess.run(
        command, cwd=stage.folder, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["counts"]["done"] == hanging.ITEMS
    assert set(stage.told("began").values()) == {1}


@pytest.mark.promise("A7", "B7", "P10")
def test_interrupted_at_random_moments_nothing_is_ever_done_twice(
    scenes: Callable[..., Scene], tally: Callable[..., None]
) -> None:
    """One signal drains: not a single handler is called in vain, in however many pieces the batch is done."""
    seed = secrets.randbelow(1 << 32)
    scene = scenes(items=60)
    story = Story(scene, seed)
    for _ in range(8):
        story.interrupt()
    scene.finish()
    assert not (found := scene.complaints(spared=story.cut_short)), f"seed {seed}: {found}"
    tally(signals=story.counts["signals"])


@pytest.mark.promise("A7")
def test_a_signal_takes_no_lock_whatever_it_interrupts() -> None:
    """It comes on the main thread in the middle of anything, even while that thread holds a lock of ours."""
    book = hf.Pipeline("p", store="memory:")
    run = Session(book, an_hour(), book.store, "owner")
    with run.control._room._cond:
        caught = threading.Thread(target=run.interrupts.on_signal, args=(signal.SIGINT, None), daemon=True)
        caught.start()
        caught.join(PATIENCE)
        assert not caught.is_alive()
    assert run.control.stopping


@pytest.mark.promise("A7")
@pytest.mark.parametrize("reason", ["", "budget", "deadline", "trouble"])
def test_the_second_signal_counts_whatever_else_had_begun_to_end_the_run(reason: str) -> None:
    book = hf.Pipeline("p", store="memory:")
    run = Session(book, an_hour(), book.store, "owner")
    if reason:
        run.control.stop(reason)
    run.interrupts.on_signal(signal.SIGINT, None)
    assert not run.control.at_once
    run.interrupts.on_signal(signal.SIGTERM, None)
    assert run.control.at_once


def an_hour() -> Options:
    return Options.check(
        batch="b", key=None, workers=1, budget=None, tolerate=0, deadline="1h", lease="30s", verify="quick",
        executor=None, progress=False, identity="key", changed="refuse",
    )  # fmt: skip
