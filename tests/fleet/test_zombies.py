"""A worker is stopped past its lease, another takes over, and the first one wakes up: what it still does counts for
nothing, and it ends well. At every named point, after a take-over that is finished and in the middle of one.

It is stopped between two transactions. A process that is stopped inside one holds up every writer, which is a limit of
an embedded database: those points are in `test_stopped_writers.py`.
"""

import signal
import time
from collections.abc import Callable

import pytest

from holdfast.stores.faults import POINTS
from tests.faults.scene import ELSEWHERE, Scene
from tests.fleet.test_stopped_writers import INSIDE
from tests.forkserver import Process

pytestmark = pytest.mark.slow  # test_stopped_writers is its quick part

Make = Callable[..., Scene]

LEASE = ("--lease", "0.3s")
LASTING = ("--pace", "0.1")
"""Handlers that take so long that the heartbeat beats."""
OPERATOR = ("act.before", "act.after")
BETWEEN = tuple(point for point in POINTS if point not in INSIDE + OPERATOR and not point.startswith(ELSEWHERE))
HOLDING = tuple(p for p in BETWEEN if p.startswith(("stage.", "sink.", "commit.", "renew.")))
"""Where it has items in its hands."""
OFTEN = tuple(p for p in BETWEEN if p.startswith(("claim.", "stage.", "sink.", "commit.")))
"""What a run reaches more than once."""


def stop_at(scene: Scene, point: str, hit: int = 1) -> Process:
    """A process that stands still there, and must be counted as dead by all others, sooner or later."""
    if point.startswith("migrate."):  # before there is a store whose lock could be asked for
        zombie = scene.start(*LEASE, fault=f"{point}:{hit}:stop")
        assert zombie.wait_until_stopped(), f"{point} was not reached"
        scene.crashed.add(zombie.pid)
        return zombie
    stopped = scene.stop(f"{point}:{hit}", *LEASE, *(LASTING if point.startswith("renew.") else ()))
    assert stopped is not None, f"{point} was not reached {hit} times"
    return stopped


def wake(zombie: Process) -> None:
    """Let it go on, and see it end as any other worker does."""
    zombie.signal(signal.SIGCONT)
    status = zombie.wait()
    assert status == 0, f"the zombie ended with {status}\n{zombie.err}"
    assert zombie.report["counts"]["pending"] == 0
    assert "Traceback" not in zombie.err


def wake_in_vain(scene: Scene, zombie: Process) -> None:
    """Let it go on when everything is done: not one item, output, total, fence or entry of a chunk may change."""
    before, told = scene.ledger(), scene.kinds()
    wake(zombie)
    assert scene.ledger() == before
    later = scene.kinds()[len(told) :]
    assert set(later) <= {"stage_completed", "reconciled"}, later  # whoever sees the end may write that down


def test_every_point_between_two_transactions_is_here() -> None:
    others = {point for point in POINTS if point.startswith(ELSEWHERE)}
    assert set(BETWEEN) | set(INSIDE) | set(OPERATOR) | others == set(POINTS)
    assert {point.partition(".")[2] for point in BETWEEN} == {"before", "after", "temp", "staged", "published"}


@pytest.mark.promise("C1", "C3", "C8", "C11", "C13", "B7", "P8")
@pytest.mark.parametrize("point", BETWEEN)
def test_a_zombie_that_wakes_after_the_work_was_finished_changes_nothing(
    point: str, scene: Scene, tally: Callable[..., None]
) -> None:
    zombie = stop_at(scene, point)
    finish_and_wake(scene, zombie)
    assert ("another worker continues with it" in zombie.err) == (point in HOLDING), zombie.err
    tally(zombies=1)


@pytest.mark.promise("C1", "C3", "C8", "C11", "C13", "B7", "P8")
@pytest.mark.parametrize("point", [point for point in BETWEEN if not point.startswith("note.")])  # then all is done
def test_a_zombie_that_wakes_in_the_middle_of_the_take_over_changes_nothing(
    point: str, scene: Scene, tally: Callable[..., None]
) -> None:
    """The heir is stopped half-way, too: each takes over from the other, and both wake up in the end."""
    zombie = stop_at(scene, point, 2 if point in OFTEN else 1)
    heir = scene.stop("commit.before:4", *LEASE)
    assert heir is not None
    wake(zombie)
    wake_in_vain(scene, heir)
    scene.check()
    tally(zombies=2)


@pytest.mark.parametrize("way", ["unfenced_commit", "fence_not_raised"])
@pytest.mark.parametrize("hit", [1, 3])
def test_a_zombie_that_may_commit_is_noticed(way: str, hit: int, scenes: Make) -> None:
    scene = scenes(sabotage=way)
    zombie = stop_at(scene, "commit.before", hit)
    with pytest.raises(AssertionError):
        finish_and_wake(scene, zombie)


def finish_and_wake(scene: Scene, zombie: Process) -> None:
    scene.finish(*LEASE)
    wake_in_vain(scene, zombie)
    scene.check()


@pytest.mark.promise("C3", "C7", "C8", "C13")
def test_an_owner_that_sees_its_lease_lost_does_not_even_try_to_commit(scenes: Make) -> None:
    """Its handlers take so long after the wake-up that the heartbeat comes first."""
    scene = scenes(items=1)
    zombie = scene.stop("stage.before:2", *LEASE, "--pace", "1")
    assert zombie is not None
    finish_and_wake(scene, zombie)
    assert "the lease was lost; another worker continues with it" in zombie.err
    assert "refused" not in zombie.err


@pytest.mark.promise("C3", "C4", "A7")
@pytest.mark.parametrize(
    "point", ["claim.before", "claim.after", "stage.before", "stage.after", "commit.before", "commit.after"]
)
def test_a_lone_worker_that_slept_past_its_lease_goes_on_as_if_nothing_had_happened(point: str, scene: Scene) -> None:
    """A laptop that was closed for the night: nobody took over, so nothing is repeated, nothing paid twice."""
    sleeper = scene.stop(f"{point}:3", *LEASE)
    assert sleeper is not None
    expired = max(chunk.expires for chunk in scene.chunks())
    while time.time() <= expired:
        time.sleep(0.02)
    wake(sleeper)
    scene.last = sleeper
    scene.crashed.clear()
    scene.check()


@pytest.mark.promise("C1", "C3", "E12", "P8")
@pytest.mark.parametrize("point", OPERATOR)
def test_an_operator_who_was_away_while_another_did_the_same_harms_nobody(point: str, scene: Scene) -> None:
    scene.finish()
    away = scene.start("--code", "busy", what="redrive", fault=f"{point}:1:stop")
    assert away.wait_until_stopped()
    other = scene.start("--code", "busy", what="redrive")
    assert other.wait() == 0, other.err
    assert other.report["changed"] == (1 if point == "act.before" else 0)
    away.signal(signal.SIGCONT)
    assert away.wait() == 0, away.err
    assert away.report["changed"] == (0 if point == "act.before" else 1), "one of the two did it"
    scene.finish()
    scene.check()
