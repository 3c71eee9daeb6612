"""A worker is stopped past its lease, another takes over, and the first one wakes up: what it still does counts for
nothing, and it ends well.

It is stopped between two transactions, wherever that can be: a process that is stopped inside one holds up every
writer, which is a limit of an embedded database. That case is here too.
"""

import signal
import time
from collections.abc import Callable

import pytest

from tests.faults.nursery import Process
from tests.faults.scene import Scene

Make = Callable[..., Scene]

LEASE = ("--lease", "0.3s")
POINTS = (
    "open_batch.after", "add_items.before", "add_items.after", "claim.before", "claim.after", "stage.before",
    "stage.after", "sink.temp", "sink.staged", "commit.before", "commit.after", "sink.published",
)  # fmt: skip
INSIDE = ("claim.written", "commit.begun", "commit.outputs", "commit.written", "add_items.written")


def wake(zombie: Process) -> None:
    """Let it go on, and see it end as any other worker does."""
    zombie.signal(signal.SIGCONT)
    status = zombie.wait()
    assert status == 0, f"the zombie ended with {status}\n{zombie.err}"
    assert zombie.report["counts"]["pending"] == 0
    assert "Traceback" not in zombie.err


@pytest.mark.promise("C1", "C3", "C8", "C11", "C13", "B7", "P8")
@pytest.mark.parametrize("point", POINTS)
def test_a_zombie_that_wakes_after_the_work_was_finished_changes_nothing(
    point: str, scene: Scene, tally: Callable[..., None]
) -> None:
    zombie = scene.stop(f"{point}:1", *LEASE)
    assert zombie is not None, f"{point} was not reached"
    scene.finish(*LEASE)
    before = scene.journal_size()
    wake(zombie)
    scene.check()
    noted = 3  # both complete the stages at the end, and both may write that down
    assert scene.journal_size() - before <= noted
    tally(zombies=1)


@pytest.mark.promise("C1", "C3", "C8", "C11", "C13", "B7", "P8")
@pytest.mark.parametrize("point", [point for point in POINTS if point not in ("open_batch.after", "add_items.before")])
def test_a_zombie_that_wakes_in_the_middle_of_the_take_over_changes_nothing(
    point: str, scene: Scene, tally: Callable[..., None]
) -> None:
    """The heir is stopped half-way, too: each takes over from the other, and both wake up in the end."""
    zombie = scene.stop(f"{point}:2", *LEASE) if "add_items" not in point else scene.stop(f"{point}:1", *LEASE)
    if zombie is None:
        zombie = scene.stop(f"{point}:1", *LEASE)
    assert zombie is not None, f"{point} was not reached"
    heir = scene.stop("commit.before:4", *LEASE)
    assert heir is not None
    wake(zombie)
    wake(heir)
    scene.check()
    tally(zombies=2)


@pytest.mark.promise("C3", "C7", "C8", "C13")
def test_an_owner_that_sees_its_lease_lost_does_not_even_try_to_commit(scenes: Make) -> None:
    """Its handlers take so long after the wake-up that the heartbeat comes first."""
    scene = scenes(items=1)
    zombie = scene.stop("stage.before:2", *LEASE, "--pace", "1")
    assert zombie is not None
    scene.finish(*LEASE)
    wake(zombie)
    assert "the lease was lost; another worker goes on with it" in zombie.err
    assert "refused" not in zombie.err
    scene.check()


@pytest.mark.promise("C3", "C7", "C8")
@pytest.mark.parametrize("point", ["renew.before", "renew.after"])
def test_a_heartbeat_that_stood_still_does_not_bring_a_lost_lease_back(point: str, scene: Scene) -> None:
    zombie = scene.stop(f"{point}:1", *LEASE, "--pace", "0.1")
    assert zombie is not None
    scene.finish(*LEASE)
    wake(zombie)
    scene.check()


@pytest.mark.promise("C3", "C4", "A7")
@pytest.mark.parametrize("point", ["claim.after", "stage.before", "stage.after", "commit.before", "commit.after"])
def test_a_lone_worker_that_slept_past_its_lease_goes_on_as_if_nothing_had_happened(point: str, scene: Scene) -> None:
    """A laptop that was closed for the night: nobody took over, so nothing is repeated, nothing paid twice."""
    sleeper = scene.stop(f"{point}:3", "--lease", "1s")
    assert sleeper is not None
    expired = time.time() + 1.2
    while time.time() <= expired:
        time.sleep(0.05)
    wake(sleeper)
    scene.last = sleeper
    scene.crashed.clear()
    scene.check()


@pytest.mark.promise("C4", "B7")
@pytest.mark.parametrize("point", INSIDE)
def test_a_process_stopped_inside_a_transaction_holds_others_up_and_harms_nobody(point: str, scene: Scene) -> None:
    zombie = scene.start(*LEASE, fault=f"{point}:1:stop")
    assert zombie.wait_until_stopped()
    scene.crashed.add(zombie.pid)
    waiting = scene.start(*LEASE)
    assert not waiting.has_ended_within(0.5)
    scene.crashed.add(waiting.pid)  # while it waits, its own leases may run out
    wake(zombie)
    assert waiting.wait() == 0, waiting.err
    scene.last = waiting
    scene.check()


@pytest.mark.promise("C9")
def test_who_waits_too_long_for_a_stopped_process_is_told_what_to_look_for(scene: Scene) -> None:
    zombie = scene.start(fault="commit.written:2:stop")
    assert zombie.wait_until_stopped()
    waiting = scene.start("--busy-ms", "300")
    assert waiting.wait() not in (0, 75)
    assert "fuser" in waiting.err
    assert "StoreUnavailable" in waiting.err
    zombie.signal(signal.SIGCONT)
    assert zombie.wait() == 0
    scene.last = zombie
    scene.crashed.add(waiting.pid)
    scene.check()
