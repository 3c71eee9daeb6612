"""Killed while items go back to a stage whose code changed, or while that is remembered: the same command again comes
to the same end, and nobody goes back twice."""

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from holdfast.runtime import lookup
from holdfast.runtime.operate.audit import verify
from holdfast.stores.open import open_store
from tests.faults import editions
from tests.forkserver import ForkServer

POINTS = ("act.before", "act.written", "act.after", "open_batch.before", "open_batch.written", "open_batch.after")
HITS = [(point, hit) for point in POINTS for hit in ((1, 2) if point.startswith("act.") else (1,))]


def run(forkserver: ForkServer, folder: Path, edition: int, fault: str = "") -> tuple[int, str]:
    process = forkserver.start("tests.faults.editions", ["--edition", str(edition)], cwd=folder, fault=fault)
    return process.wait(), process.out


@pytest.mark.promise("A1", "A7", "E12")
@pytest.mark.parametrize(("point", "hit"), HITS)
def test_killed_between_going_back_and_remembering_it(
    point: str, hit: int, forkserver: ForkServer, tmp_path: Path
) -> None:
    assert run(forkserver, tmp_path, 1)[0] == 0
    assert run(forkserver, tmp_path, 2, f"{point}:{hit}:kill")[0] == -signal.SIGKILL
    status, out = run(forkserver, tmp_path, 2)
    assert status == 0
    assert json.loads(out) == {str(n): n * 20 + 1 for n in range(editions.COUNT)}
    lines = (tmp_path / editions.EFFECTS).read_text().splitlines()
    calls = Counter(tuple(json.loads(line)) for line in lines)
    expected = {(1, "first"), (1, "second"), (1, "third"), (2, "second"), (2, "third")}
    assert {(edition, stage) for edition, stage, _ in calls} == expected
    assert set(calls.values()) == {1}, "each stage once in each edition"
    store = open_store(tmp_path / editions.STORE)
    batch = lookup.batch_named(store, "book")
    assert {item.place.epoch for item in store.items(batch.id)} == {1}
    assert verify(store, batch, full=True).holds
    store.close()
