"""What the tests of the runtime share: short runs, restarts, faster clocks, programs in processes of their own."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import apsw

import holdfast as hf
from holdfast.core.model import State
from holdfast.stores.base import find_batch
from holdfast.stores.sqlite import SqliteStore
from tests.forkserver import Process, shared

SOON = hf.Retry(attempts=3, wait=("1ms", "2ms"))
ONCE = hf.Retry(attempts=1)


def walk_of(name: str, source: Any, *, follow: bool = False, **options: Any) -> Any:
    """A scan, or one that follows its source."""
    return (hf.Follow if follow else hf.Scan)(name, source, **options)


def run(pipeline: hf.Pipeline, items: Iterable[Any] | None = None, **options: Any) -> hf.Report:
    """A run that shows no progress, and gives its report after Ctrl-C, too."""
    return pipeline.run(items, **{"progress": False, "signals": "report", **options})


def run_until(
    happened: Callable[[], Any], pipeline: hf.Pipeline, items: Iterable[Any] | None = None, **options: Any
) -> hf.Report:
    """Run until something has happened, however long that takes; then tell the run to end."""
    over, trouble = threading.Event(), []

    def end() -> None:
        try:
            wait_for(lambda: over.is_set() or (callable(signal.getsignal(signal.SIGTERM)) and happened()))
        except BaseException as error:  # noqa: BLE001 - raised below, on the thread of the test
            trouble.append(error)
        if not over.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    heard = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one that comes when the run is over
    ends = threading.Thread(target=end)
    ends.start()
    try:
        report = run(pipeline, items, **options)
    finally:
        over.set()
        ends.join()
        signal.signal(signal.SIGTERM, heard)
    if trouble:
        raise trouble[0]
    return report


def run_until_all_wait(pipeline: hf.Pipeline, items: Iterable[Any] | None = None, **options: Any) -> hf.Report:
    """Run until every item is settled, waits for its next attempt, or was deferred."""
    return run_until(lambda: _all_wait(pipeline.store, options.get("batch", pipeline.name)), pipeline, items, **options)


def _all_wait(store: Any, name: str) -> bool:
    batch = find_batch(store, name)
    if batch is None or batch.ingested_at is None:
        return False
    places, now = [item.place for item in store.items(batch.id)], store.now()
    return not any(at.state is State.PENDING and at.due <= (now if at.attempt else 0) for at in places)


def outputs(pipeline: hf.Pipeline, batch: str | None = None) -> dict[Any, Any]:
    """Key -> output of everything that is done."""
    return {result.key: result.output for result in pipeline.results(batch)}


def codes(report: hf.Report) -> dict[Any, str]:
    """Key -> code of the dead letters."""
    return {letter.key: letter.code for letter in report.dead}


class Calls:
    """Counts what handlers were called with, from whatever thread."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self._lock = threading.Lock()

    def __call__(self, value: Any) -> int:
        """Note a call; returns how often there was one with this value."""
        with self._lock:
            self.seen.append(value)
            return self.seen.count(value)

    def clear(self) -> None:
        with self._lock:
            self.seen.clear()

    def __len__(self) -> int:
        return len(self.seen)


class Crowd:
    """How many are inside at the same time, at most."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1


class FasterClock:
    """A clock on which waits of seconds end after milliseconds; leases must be long enough for it."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.began = time.monotonic()
        self.ahead = 0.0

    def __call__(self) -> float:
        return 1_700_000_000.0 + self.ahead + (time.monotonic() - self.began) * self.factor

    def advance(self, seconds: float) -> None:
        self.ahead += seconds


class SlowStore(SqliteStore):
    """A store whose every commit takes a while."""

    seconds = 0.0

    def commit(self, commits: Any) -> Any:
        time.sleep(self.seconds)
        return super().commit(commits)


class App:
    """A program of a user's, run as `python app.py` in a folder of its own, and of its own session. The interpreter is
    warm, and so are those of its worker processes: see `tests.forkserver`. With `cold` all of them are new."""

    def __init__(self, folder: Path, source: str, name: str = "app.py", *, cold: bool = False) -> None:
        self.folder = folder
        self.file = folder / name
        self.file.write_text(textwrap.dedent(source), encoding="utf-8")
        self.cold = cold
        self.spawns = "processes" in source

    def start(self, *arguments: str, **environment: str) -> Process:
        env = {**os.environ, **environment}
        return shared().program(self.file, *arguments, cwd=self.folder, env=env, spawns=self.spawns)

    def run(self, *arguments: str, seconds: float = 60.0) -> "subprocess.CompletedProcess[str]":
        if not self.cold:
            return self.start(*arguments).completed(seconds)
        command = [sys.executable, str(self.file), *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=self.folder, timeout=seconds, check=False)

    @property
    def store(self) -> Path:
        return self.folder / ".holdfast" / "state.db"


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Until it is true; a test that waits for something never takes longer than that takes."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "what the test waits for did not happen"
        time.sleep(0.005)


def stop_between_two_writes(process: Process, store: Path) -> None:
    """Stop a process while the store's write lock is held here: one that stands still inside a transaction would hold
    up every writer."""
    database = apsw.Connection(str(store))
    database.set_busy_timeout(60_000)
    database.execute("BEGIN IMMEDIATE")
    process.signal(signal.SIGSTOP)
    assert process.wait_until_stopped()
    database.execute("ROLLBACK")
    database.close()
