"""Scans that come to an end, and their leases: who has lost one is stopped, and commits nothing."""

import asyncio
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.rows import Rows
from tests.runtime.support import SOON, App, stop_between_two_writes, wait_for
from tests.runtime.test_following import Deaf, _break_lease


@pytest.fixture
def store(folder: Path) -> SqliteStore:
    return SqliteStore(folder / "state.db")


class Stopped:
    """A scan whose handler never comes to its checkpoint, unless it may; how it was stopped, and under which fences."""

    def __init__(self, store: Any, kind: str) -> None:
        self.began, self.ended, self.may = threading.Event(), threading.Event(), threading.Event()
        self.fences: list[int] = []
        self.scan = hf.Scan("orders", Rows(list(range(5000)), page=10), store=store, every=5000, retry=SOON)
        self.scan.handler(self.thread if kind == "thread" else self.coroutine)

    def thread(self, part: Any, ctx: hf.Context) -> Any:
        self.fences.append(ctx.fence)
        count = 0
        try:
            for _ in part:
                count += 1
                self.began.set()
                time.sleep(0 if self.may.is_set() else 0.005)
            yield count
        except hf.LeaseLost:
            self.ended.set()
            raise

    async def coroutine(self, rows: list[Any], acc: int, ctx: hf.Context) -> int:
        self.fences.append(ctx.fence)
        self.began.set()
        try:
            if ctx.fence == 1 and not self.may.is_set():
                await asyncio.sleep(600)
        except asyncio.CancelledError:
            self.ended.set()
            raise
        return acc + len(rows)


@pytest.mark.promise("C6", "C7")
@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_a_lost_lease_ends_the_handler_and_its_range_is_done_under_the_next_fence(
    store: SqliteStore, folder: Path, kind: str
) -> None:
    it = Stopped(store, kind)
    told: list[Any] = []
    thread = threading.Thread(target=lambda: told.append(it.scan.run(progress=False, lease="500ms")))
    thread.start()
    assert it.began.wait(20)
    other = SqliteStore(folder / "state.db")
    _break_lease(other, "orders")
    other.close()
    assert it.ended.wait(20)
    it.may.set()
    thread.join(60)
    (report,) = told
    assert (report.result, report.rows, report.exit_code) == (5000, 5000, 0)
    assert it.fences == sorted(it.fences)
    assert len(set(it.fences)) >= 2


@pytest.mark.promise("C6", "C7")
@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_after_three_failed_renewals_the_run_stops_its_handlers_and_commits_nothing(
    store: SqliteStore, kind: str
) -> None:
    deaf = Deaf(store)
    it = Stopped(deaf, kind)
    with pytest.raises(hf.HoldfastError, match="3 heartbeats in a row failed"):
        it.scan.run(progress=False, lease="600ms")
    assert it.ended.wait(20)
    assert deaf.calls.count("renew") == 3
    assert "commit" not in deaf.calls
    assert store.checkpoints(store.batches()[0].id) == []
    it.may.set()
    again = Stopped(store, kind)
    again.may.set()
    assert again.scan.run(progress=False).result == 5000
    assert again.fences[0] > it.fences[-1]


@pytest.mark.promise("C5")
def test_a_heartbeat_that_could_miss_the_lease_is_refused_before_anything_happens(store: SqliteStore) -> None:
    it = Stopped(store, "thread")
    it.may.set()
    for heartbeat in ("15s", "30s", "1h", 0):
        with pytest.raises(hf.UsageError, match="under half of it"):
            it.scan.run(progress=False, lease="30s", heartbeat=heartbeat)
    assert store.batches() == []
    assert it.scan.run(progress=False, lease="30s", heartbeat="14s").result == 5000


PROGRAM = """
    import os, sys, time
    import holdfast as hf
    from holdfast.testing.rows import Rows

    scan = hf.Scan("orders", Rows(list(range(20)), page=4), store="state.db", every=5)

    @scan.handler(executor=None if "threads" in sys.argv or os.environ.get("HERE") else "processes")
    def keep(rows, acc: int) -> int:
        with open("seen", "a") as file: file.write("".join(f"{os.getpid()} {row}\\n" for row in rows))
        if 7 in rows and os.path.exists("hang"):
            with open("hanging", "w") as file: file.write(str(os.getpid()))
            while not os.path.exists("go"): time.sleep(0.01)
        return acc + len(rows)

    if __name__ == "__main__":
        if "threads" in sys.argv: os.environ["HERE"] = "1"
        told = scan.run(progress=False, lease="500ms")
        print(told.result, told.rows)
        sys.exit(told.exit_code)
"""


@pytest.mark.slow
@pytest.mark.promise("C3", "C7", "C13")
@pytest.mark.parametrize("where", ["threads", "processes"])
def test_a_zombie_commits_nothing_after_another_took_over(folder: Path, where: str) -> None:
    """Its process stands still in the middle of a range; another one does the range, and then the first wakes up."""
    app = App(folder, PROGRAM)
    (folder / "hang").touch()
    zombie = app.start(where)
    wait_for(lambda: (folder / "hanging").exists() and bool((folder / "hanging").read_text()))
    child = int((folder / "hanging").read_text())
    stop_between_two_writes(zombie, folder / "state.db")
    (folder / "hang").unlink()
    other = app.run(where)
    assert other.stdout.split() == ["20", "20"], other.stderr
    store = SqliteStore(folder / "state.db")
    before = store.checkpoints(1), store.chunks(1)[0].fence
    assert before[1] == 2
    os.kill(zombie.pid, signal.SIGCONT)
    if where == "processes":
        wait_for(lambda: not Path(f"/proc/{child}").exists() or _is_dead(child))  # killed though it hangs
    (folder / "go").touch()
    out, err = zombie.communicate(timeout=30)
    assert out.split() == ["20", "20"], err  # it tells how the batch stands, which the other one has finished
    assert (store.checkpoints(1), store.chunks(1)[0].fence) == before
    store.close()


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
