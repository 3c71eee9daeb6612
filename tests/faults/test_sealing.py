"""Killed around the seal, or too late for it: the batch is sealed once, told once, and does not change any more."""

import signal
from collections.abc import Callable

import pytest

from holdfast.core.canonical import decode
from holdfast.stores.base import find_batch
from holdfast.stores.faults import POINTS
from holdfast.stores.open import open_store
from tests.faults import app
from tests.faults.scene import Scene

Make = Callable[..., Scene]

SEALING = tuple(point for point in POINTS if point.startswith("seal."))
REOPENING = tuple(point for point in POINTS if point.startswith("reopen."))
AROUND = ("note.written", "note.after", *SEALING)
"""The end is noted and published, then the batch is sealed."""


def told(scene: Scene) -> list[str]:
    return [event.kind for event in scene.events()]


def check_sealed(scene: Scene, seals: int = 1) -> None:
    kinds = scene.kinds()
    assert kinds.count("sealed") == seals
    assert told(scene).count("batch.finished") == 1
    store = open_store(scene.folder / app.STORE)
    batch = find_batch(store, app.BATCH)
    store.close()
    assert batch is not None
    assert batch.sealed_at is not None
    scene.check()


def test_every_point_around_the_seal_is_reached(scenes: Make) -> None:
    scene = scenes()
    assert set(scene.count_points("--seal")) >= set(AROUND)
    (scene.folder / "points.txt").unlink()
    assert set(scene.count_points(what="reopen")) >= set(REOPENING)


@pytest.mark.promise("A14", "A7", "A8", "B7", "E12")
@pytest.mark.parametrize("point", AROUND)
def test_killed_around_the_seal_and_run_again_it_is_sealed_once(
    point: str, scenes: Make, tally: Callable[..., None]
) -> None:
    hits = scenes().count_points("--seal")[point]  # the last note is that of the reconciliation
    scene = scenes()
    assert scene.crash(f"{point}:{hits}:kill", "--seal"), f"{point} was not reached"
    scene.finish("--seal")
    check_sealed(scene)
    before = scene.ledger(), scene.kinds(), told(scene)
    scene.finish("--seal")
    assert (scene.ledger(), scene.kinds(), told(scene)) == before
    tally(kills=1)


@pytest.mark.promise("A14", "B7")
@pytest.mark.parametrize("point", REOPENING)
def test_an_operator_is_killed_while_reopening_and_tries_again(point: str, scene: Scene) -> None:
    scene.finish("--seal")
    assert scene.crash(f"{point}:1:kill", what="reopen")
    again = scene.start(what="reopen")
    assert (again.wait() == 0) == (point != "reopen.after"), again.err
    scene.finish("--seal")
    check_sealed(scene, seals=2)


@pytest.mark.promise("A14", "C8", "C13")
@pytest.mark.parametrize("point", ["commit.before", "stage.after"])
def test_a_zombie_that_wakes_after_the_seal_is_refused_and_reported(
    point: str, scene: Scene, tally: Callable[..., None]
) -> None:
    lease = ("--lease", "0.3s")
    zombie = scene.stop(f"{point}:2", *lease)
    assert zombie is not None
    scene.finish("--seal", *lease)
    before = scene.ledger()
    zombie.signal(signal.SIGCONT)
    assert zombie.wait() == 0, zombie.err
    assert scene.ledger() == before
    late = [decode(event.body) for event in scene.events() if event.kind == "warning"]
    assert scene.kinds().count("late") == len(late)
    if point == "commit.before":
        assert late[0]["code"] == "late_commit"
        assert "came after the batch was sealed" in zombie.err
        assert any("sealed" in warning for warning in zombie.report["warnings"])
    check_sealed(scene)
    tally(zombies=1)
