"""A batch in a folder, and what happens to it: crashes, zombies, lost replies, and a clean run at the end."""

import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import journal
from holdfast.core.model import Batch, Chunk, Output, StoredEvent, StoredItem, chain_of_batch
from holdfast.stores.base import Store, each_entry, each_item, each_output, find_batch
from holdfast.stores.open import open_store
from tests.faults import app, ending_oracle, oracle
from tests.forkserver import ForkServer, Process

KILLED = -signal.SIGKILL
ELSEWHERE = ("amend.", "steer.", "seal.", "reopen.", "delivered.", "bucket.")
"""Points that no plain run and no redrive reaches: each has tests of its own."""


ITEMS = 12
"""Enough for every fate of the script, few enough to be killed at every hit."""


def few(hits: int) -> list[int]:
    """The first, one in the middle and the last."""
    return sorted({1, (hits + 1) // 2, hits} - {0})


def kill_and_resume(make: "Callable[[], Scene]", point: str, hits: Iterable[int], *argv: str) -> int:
    """For every hit: killed there, resumed, checked. Returns how many processes were killed."""
    kills = 0
    for hit in hits:
        scene = make()
        killed = scene.crash(f"{point}:{hit}:kill", *argv)
        kills += killed
        assert killed or hit > 1, f"{point} was not reached"
        scene.finish(*(each for each in argv if each == "--seal"))
        scene.check()
    return kills


class Scene:
    """Runs the app in one folder and remembers which of its processes did not end well."""

    def __init__(self, forkserver: ForkServer, folder: Path, *, items: int = 20, sabotage: str = "") -> None:
        self.forkserver = forkserver
        self.folder = folder
        self.items = items
        self.sabotage = sabotage
        self.crashed: set[int] = set()
        self.last: Process | None = None

    def start(self, *argv: str, fault: str = "", what: str = "run", sabotage: str | None = None) -> Process:
        """A process of the app."""
        items = ["--items", str(self.items)] if what == "run" else []
        way = self.sabotage if sabotage is None else sabotage
        broken = ["--sabotage", way] if way else []
        return self.forkserver.start("tests.faults.app", [what, *items, *broken, *argv], cwd=self.folder, fault=fault)

    def crash(self, fault: str, *argv: str, what: str = "run") -> bool:
        """Run with a fault armed; False when it came to its end without meeting it."""
        process = self.start(*argv, fault=fault, what=what)
        status = process.wait()
        if status == 0:
            return False
        self.crashed.add(process.pid)
        if fault.endswith(":kill"):
            assert status == KILLED, f"{fault}: it ended with {status}\n{process.err}"
        return True

    def kill_operator(self, point: str) -> None:
        """Somebody redrives, is killed at a point, and tries again: it happens once."""
        self.finish()
        assert self.crash(f"{point}:1:kill", "--code", "busy", what="redrive")
        again = self.start("--code", "busy", what="redrive")
        assert again.wait() == 0, again.err
        assert again.report["changed"] == (0 if point == "act.after" else 1)
        self.finish()
        self.check()

    def kill(self, process: Process) -> None:
        """A real kill -9 at whatever moment this is."""
        self.crashed.add(process.pid)
        process.kill()

    def stop(self, at: str, *argv: str) -> Process | None:
        """A process that stopped itself at a point, between two writes; None when it ended without coming there."""
        process = self.start("--stop", at, *argv)
        if not process.wait_until_stopped():
            return None
        self.crashed.add(process.pid)
        return process

    def finish(self, *argv: str) -> Process:
        """A clean run to the end."""
        process = self.start(*argv)
        status = process.wait()
        assert status == 0, f"the clean run ended with {status}\n{process.err}"
        self.last = process
        return process

    def end(self) -> list[str]:
        """The end of the small batch, undisturbed; returns what its oracle has to say."""
        process = self.start(what="end")
        status = process.wait()
        assert status == 0, f"the clean end ended with {status}\n{process.err}"
        return ending_oracle.check(self.folder, crashes=len(self.crashed))

    def complaints(self, **facts: Any) -> list[str]:
        """What the oracle has to say."""
        report = self.last.report if self.last is not None else None
        return oracle.check(self.folder, items=self.items, crashed=self.crashed, report=report, **facts)

    def check(self, **facts: Any) -> None:
        found = self.complaints(**facts)
        assert not found, "\n".join([f"{self.folder}:", *found[:20]])

    def count_points(self, *argv: str, what: str = "run") -> Counter[str]:
        """How often each point is reached in a run that nothing disturbs."""
        target = self.folder / "points.txt"
        process = self.start("--count", str(target), *argv, what=what)
        assert process.wait() == 0, process.err
        return Counter(target.read_text().split())

    @property
    def has_batch(self) -> bool:
        """Whether it got so far."""
        store = open_store(self.folder / app.STORE)
        try:
            return find_batch(store, app.BATCH) is not None
        finally:
            store.close()

    def ledger(self) -> tuple[list[StoredItem], list[Output], list[Chunk]]:
        """All that is recorded: equal before and after means that nothing of it changed, no total and no entry."""
        with self._batch() as (store, batch):
            return [*each_item(store, batch.id)], [*each_output(store, batch.id)], store.chunks(batch.id)

    def chunks(self) -> list[Chunk]:
        with self._batch() as (store, batch):
            return store.chunks(batch.id)

    def events(self) -> list[StoredEvent]:
        """What others hear of the batch."""
        with self._batch() as (store, batch):
            return [event for event in store.events(limit=10_000) if event.batch == batch.id]

    def kinds(self) -> list[str]:
        """What the chain of the batch itself tells, entry by entry."""
        with self._batch() as (store, batch):
            return [journal.decode_header(entry.head).kind for entry in each_entry(store, chain_of_batch(batch.id))]

    @contextmanager
    def _batch(self) -> Iterator[tuple[Store, Batch]]:
        store = open_store(self.folder / app.STORE)
        try:
            (batch,) = store.batches(app.BATCH)
            yield store, batch
        finally:
            store.close()


@pytest.fixture(scope="session")
def hits(forkserver: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    """How often each point is reached in a plain run of ITEMS."""
    return Scene(forkserver, tmp_path_factory.mktemp("counted"), items=ITEMS).count_points()


@pytest.fixture
def scene(forkserver: ForkServer, tmp_path: Path) -> Iterator[Scene]:
    """An empty folder to run the app in."""
    yield Scene(forkserver, tmp_path)
    forkserver.clear()


@pytest.fixture
def scenes(forkserver: ForkServer, tmp_path: Path) -> Iterator[Any]:
    """As many of them as a test wants."""
    made = 0

    def make(**facts: Any) -> Scene:
        nonlocal made
        made += 1
        folder = tmp_path / f"{made:04d}"
        folder.mkdir()
        return Scene(forkserver, folder, **facts)

    yield make
    forkserver.clear()
