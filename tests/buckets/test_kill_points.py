"""Killed at every durable step of a store in a bucket, then resumed: the oracle finds nothing to complain about."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.stores.faults import POINTS
from holdfast.stores.open import open_store
from tests.buckets import app as bucket_app
from tests.faults import app, oracle
from tests.faults.scene import Scene, few, kill_and_resume
from tests.forkserver import ForkServer, Process

Make = Callable[[], "BucketScene"]
ITEMS = 9
NEVER = ("commit.outputs", "note.", "delivered.", "migrate.", "sink.", "stage.", "amend.", "steer.", "reopen.")
"""Points that a bucket does not have, or that stand elsewhere than in the store; notes have no run to resume."""
RUN = tuple(point for point in POINTS if not point.startswith((*NEVER, "act.", "renew.", "seal.", "bucket.sealing")))
SEAL = tuple(point for point in POINTS if point.startswith(("seal.", "bucket.sealing")))
OPERATOR = tuple(point for point in POINTS if point.startswith("act."))
HEARTBEAT = tuple(point for point in POINTS if point.startswith("renew."))
SLOW_RUN = ("--lease", "0.3s", "--pace", "0.02")


class BucketScene(Scene):
    """A batch in a folder, its state in a bucket there."""

    def start(self, *argv: str, fault: str = "", what: str = "run", sabotage: str | None = None) -> Process:
        items = ["--items", str(self.items)] if what == "run" else []
        return self.forkserver.start("tests.buckets.app", [what, *items, *argv], cwd=self.folder, fault=fault)


@pytest.fixture
def make(forkserver: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    made = 0

    def scene() -> BucketScene:
        nonlocal made
        made += 1
        folder = tmp_path / f"{made:03}"
        folder.mkdir()
        monkeypatch.setattr(app, "STORE", bucket_app.url_in(folder))
        return BucketScene(forkserver, folder, items=ITEMS)

    monkeypatch.setattr(oracle, "SqliteStore", open_store)
    yield scene
    forkserver.clear()


@pytest.fixture(scope="session")
def points(forkserver: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    return BucketScene(forkserver, tmp_path_factory.mktemp("counted"), items=ITEMS).count_points()


@pytest.mark.quick
@pytest.mark.parametrize("point", RUN)
def test_killed_once_at_a_point_and_resumed(point: str, make: Make, points: Counter[str]) -> None:
    kill_and_resume(make, point, few(points[point])[:2][-1:])


@pytest.mark.slow
@pytest.mark.promise("A4", "A7", "A8", "B7", "C1", "C10", "C11", "E6", "E12", "P1", "P6", "P10")
@pytest.mark.parametrize("point", RUN)
def test_killed_at_a_point_and_resumed(point: str, make: Make, points: Counter[str],
                                       tally: Callable[..., None]) -> None:  # fmt: skip
    tally(kills=kill_and_resume(make, point, few(points[point])))


@pytest.mark.promise("A7", "A14", "B7")
@pytest.mark.parametrize("point", SEAL)
def test_killed_while_sealing_and_sealed_again(point: str, make: Make, tally: Callable[..., None]) -> None:
    scene = make()
    scene.finish()
    assert scene.crash(f"{point}:1:kill", "--seal"), f"{point} was not reached"
    if point != "seal.after":
        scene.finish("--seal")
    scene.check()
    tally(kills=1)


@pytest.mark.promise("A7", "B7", "E12")
@pytest.mark.parametrize("point", OPERATOR)
def test_an_operator_is_killed_and_tries_again(point: str, make: Make, tally: Callable[..., None]) -> None:
    make().kill_operator(point)
    tally(kills=1)


@pytest.mark.promise("A7", "B7", "C1")
@pytest.mark.parametrize("point", HEARTBEAT)
def test_killed_by_the_heartbeat_and_resumed(point: str, make: Make, tally: Callable[..., None]) -> None:
    tally(kills=kill_and_resume(make, point, [1], *SLOW_RUN))


@pytest.mark.slow
@pytest.mark.promise("A7", "B7", "C10", "P10")
def test_killed_again_and_again_it_still_comes_to_its_end(make: Make, tally: Callable[..., None]) -> None:
    scene = make()
    for point in RUN:
        scene.crash(f"{point}:2:kill")
    scene.finish()
    scene.finish("--verify", "full")
    scene.check()
    tally(kills=len(scene.crashed))


@pytest.mark.promise("P7", "C1", "C3")
def test_several_processes_share_one_directory_and_double_nothing(make: Make) -> None:
    scene = make()
    scene.items = 40
    processes = [scene.start("--pace", "0.001") for _ in range(3)]
    for process in processes:
        assert process.wait() == 0, process.err
    scene.finish()
    scene.check()
