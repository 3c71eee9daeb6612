"""Several processes on one file share its items, lose none and double none, whoever dies among them."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.stores.open import open_store
from tests.faults import app
from tests.faults.scene import Scene
from tests.faults.world import read_effects
from tests.forkserver import PATH, PATIENCE, ROOT, Process

Make = Callable[..., Scene]
PACE = ("--pace", "0.005")


def who_did_what(scene: Scene) -> Counter[int]:
    """How many handlers each process called."""
    return Counter(effect.pid for effect in read_effects(scene.folder / app.EFFECTS))


def wait_for_effects(scene: Scene, count: int) -> None:
    """Until so many handlers were called, by whomever."""
    limit = time.monotonic() + PATIENCE
    while len(read_effects(scene.folder / app.EFFECTS)) < count:
        assert time.monotonic() < limit, "nothing happens"
        time.sleep(0.002)


def end_well(processes: list[Process]) -> None:
    for process in processes:
        assert process.wait() == 0, process.err
        counts = process.report["counts"]
        assert counts["pending"] == 0, counts


@pytest.mark.promise("P3", "P7", "P8", "C1", "C4")
@pytest.mark.parametrize("count", [2, 4])
def test_processes_started_together_on_a_fresh_file_share_its_items(
    count: int, scenes: Make, tally: Callable[..., None]
) -> None:
    scene = scenes(items=60)
    processes = [scene.start(*PACE) for _ in range(count)]
    end_well(processes)
    scene.last = processes[-1]
    scene.check()
    assert len(who_did_what(scene)) > 1, "one of them did everything"
    tally(processes=count)


@pytest.mark.promise("C1", "P7")
def test_a_fresh_file_is_made_once_however_many_come_at_the_same_moment(
    scenes: Make, tally: Callable[..., None]
) -> None:
    rounds = 5
    for _ in range(rounds):
        scene = scenes(items=3)
        end_well([scene.start() for _ in range(4)])
        scene.check()
    tally(processes=4 * rounds)


@pytest.mark.promise("P3", "P7")
def test_two_interpreters_started_from_the_shell_share_the_items(scene: Scene) -> None:
    command = [sys.executable, str(ROOT / "tests" / "faults" / "app.py"), "run", "--items", "20", *PACE]
    environment = {**os.environ, "PYTHONPATH": PATH}
    both = [subprocess.Popen(command, cwd=scene.folder, env=environment, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(PATIENCE) for process in both] == [0, 0]
    scene.check()


@pytest.mark.promise("A7", "B7", "C3", "P3", "P7")
def test_when_one_is_killed_the_other_takes_over_at_once_and_finishes(scenes: Make, tally: Callable[..., None]) -> None:
    scene = scenes(items=60)
    victim, heir = scene.start("--pace", "0.02", "--lease", "1h"), scene.start("--pace", "0.02", "--lease", "1h")
    wait_for_effects(scene, 30)
    scene.kill(victim)
    end_well([heir])
    scene.last = heir
    scene.check()
    tally(kills=1)


@pytest.mark.promise("A7", "B7", "P3")
def test_a_process_that_dies_during_ingestion_doubles_and_loses_nothing(
    scenes: Make, tally: Callable[..., None]
) -> None:
    """The source is longer than the first groups, and others read it at the same time."""
    kills = 0
    for hit in (1, 2, 3):
        for point in ("add_items.before", "add_items.written", "add_items.after"):
            scene = scenes(items=INGESTED)
            killed = scene.start("--only-read", fault=f"{point}:{hit}:kill")
            other = scene.start("--only-read")
            status = killed.wait()
            scene.crashed |= {killed.pid} if status else set()
            kills += status == -signal.SIGKILL
            assert other.wait() == 0, other.err
            keys = all_keys(scene.folder)
            assert Counter(keys) == Counter(str(raw["number"]) for raw in app.source(INGESTED))
    assert kills >= 3
    tally(kills=kills)


INGESTED = 256 + 1024 + 500
"""Three groups."""


def all_keys(folder: Path) -> list[str]:
    store = open_store(folder / app.STORE)
    try:
        (batch,) = store.batches(app.BATCH)
        assert batch.ingested_at is not None
        found = store.items(batch.id, limit=10_000)
        chunks = [n for chunk in store.chunks(batch.id) for n in range(chunk.lo, chunk.hi)]
        assert chunks == [record.n for record in found]
        return [str(record.key) for record in found]
    finally:
        store.close()


@pytest.mark.slow
@pytest.mark.promise("A7", "B7", "P3", "P7")
def test_of_four_three_are_killed_at_random_and_the_last_one_finishes(scenes: Make, tally: Callable[..., None]) -> None:
    kills = 0
    for seed in range(8):
        chance = random.Random(seed)
        scene = scenes(items=60)
        processes = [scene.start("--pace", "0.005") for _ in range(4)]
        for victim in processes[:3]:
            wait_for_effects(scene, chance.randrange(120))
            kills += victim.is_running
            scene.kill(victim)
        end_well(processes[3:])
        scene.last = processes[3]
        assert not (found := scene.complaints()), f"seed {seed}: {found}"
    tally(kills=kills)
