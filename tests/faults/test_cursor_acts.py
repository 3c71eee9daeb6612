"""A person's act on cursors, killed at every durable step: done or not done, and the same command again finishes it."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.errors import Refused
from holdfast.core.model import BatchMode
from holdfast.runtime.operate import audit, state_document
from holdfast.runtime.partitions import standings
from holdfast.stores import faults
from holdfast.stores.base import Store, find_batch
from holdfast.stores.open import open_store
from tests.faults.cursor_acts import ACTS, PARTS, ROWS
from tests.forkserver import ForkServer
from tests.operations.scanned import Totals

APP = "tests.faults.cursor_acts"
VERBS = {"clone": ("open_batch", "add_items", "act", "amend", "steer", "note"), "reset": ("act",), "retry": ("act",),
         "settle": ("act",)}  # fmt: skip
"""What each act is written by."""


def strikes(act: str, kind: str) -> Iterator[tuple[str, int]]:
    """Where to kill it: at each step of each verb, and on a bucket at each document it writes."""
    points = [f"{verb}.{step}" for verb in VERBS[act] for step in ("before", "written", "after")]
    for point in [*points, *(["bucket.named", "bucket.durable"] if kind == "bucket" else [])]:
        if point in faults.POINTS:
            yield from ((point, hit) for hit in ((1, 2, 5) if point.startswith("bucket") else (1, 2)))


def begin(forkserver: ForkServer, folder: Path, url: str) -> None:
    """In a process of its own: this one has nothing of it open."""
    process = forkserver.start(APP, ["begin", url], cwd=folder)
    assert process.wait() == 0, process.err


def killed(forkserver: ForkServer, folder: Path, url: str, act: str, strike: str) -> bool:
    """Whether a process that does it was killed at that point."""
    process = forkserver.start(APP, [act, url], cwd=folder, fault=f"{strike}:kill")
    assert process.wait() in (0, -signal.SIGKILL), process.err
    return process.wait() == -signal.SIGKILL


def rows(store: Store, name: str) -> list[int]:
    (found,) = store.batches(name)
    return [at.rows for at in standings(store, found)]


@pytest.mark.slow
@pytest.mark.promise("C15", "C3", "B7", "B12")
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("kind", ["sqlite", "bucket"])
def test_an_act_that_was_killed_is_finished_by_the_same_command(
    tmp_path: Path, forkserver: ForkServer, kind: str, act: str
) -> None:
    kills = 0
    for number, (point, hit) in enumerate(strikes(act, kind)):
        where = tmp_path / str(number)
        url = str(where) if kind == "sqlite" else f"file://{where}"
        begin(forkserver, tmp_path, url)
        if not killed(forkserver, tmp_path, url, act, f"{point}:{hit}"):
            continue
        kills += 1
        store = open_store(url)
        before = {chunk.id: chunk.fence for chunk in store.chunks(store.batches()[0].id)}
        halfway = find_batch(store, "copy")
        if halfway is not None and halfway.admitted and rows(store, "copy") != [200, 200, 200, 100, 200]:
            assert halfway.course is BatchMode.PAUSED, "a run would take up what is half made"
        try:
            ACTS[act](store)
        except Refused:
            assert act == "clone"  # it was whole, and only the answer was lost
        check(store, act, f"{point}:{hit}")
        assert all(chunk.fence >= before.get(chunk.id, 0) for chunk in store.chunks(store.batches()[0].id))
        store.close()
    assert kills >= 3


def check(store: Store, act: str, where: str) -> None:
    expected = {"reset": [0] * PARTS}.get(act, [200, 200, 200, 100, 200])
    name = "copy" if act == "clone" else "totals"
    assert rows(store, name) == expected, where
    (found,) = store.batches(name)
    assert found.course is BatchMode.OPEN, where
    assert state_document.document(store, found)["partitions"]
    assert all(audit.verify(store, each).holds for each in store.batches()), where
    totals = Totals(store, ROWS, partitions=PARTS)
    report = totals.run(name)
    left = {"reset": 1000, "settle": 0}.get(act, 100)
    assert len(totals.seen) == left, where
    assert report.result == (sum(ROWS) if act != "settle" else sum(ROWS) - sum(range(600, 800)) + 7), where
