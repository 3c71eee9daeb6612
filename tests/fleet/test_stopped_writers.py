"""A process that is stopped inside a transaction holds up every writer: what is promised then, at each such point.

Those who only read go on, but for one case: while a claim is being written nobody opens the file, since only its end
tells whether the file is the one that it was. Those who write wait; when they have waited long enough they end with an
error that names the process and says what to do, and nothing is lost or changed. When it goes on, or is ended, so does
everybody else.
"""

import signal
from collections.abc import Callable

import pytest

from holdfast.stores.faults import POINTS
from holdfast.stores.sqlite import file as sqlite_file
from holdfast.stores.sqlite import safety
from tests.faults.scene import ELSEWHERE, Scene
from tests.forkserver import Process

INSIDE = tuple(
    point
    for point in POINTS
    if point.endswith((".written", ".begun", ".outputs", ".statement")) and not point.startswith(ELSEWHERE)
)
LEASE = ("--lease", "0.3s")
IMPATIENT = ("--busy-ms", "200")


def stop_inside(scene: Scene, point: str) -> Process:
    """A process that stands still in the middle of a transaction."""
    fault = f"{point}:1:stop"
    if point.startswith("act."):
        scene.finish()
        stopped = scene.start("--code", "busy", what="redrive", fault=fault)
    else:
        stopped = scene.start(*LEASE, *(("--pace", "0.1") if point.startswith("renew.") else ()), fault=fault)
    assert stopped.wait_until_stopped(), f"{point} was not reached\n{stopped.err}"
    scene.crashed.add(stopped.pid)
    return stopped


def ask_in_vain(scene: Scene, point: str, holder: Process) -> None:
    """Somebody else wants to write: an operator, or a run."""
    what = ("--code", "no_address") if point.startswith("act.") else LEASE
    waiting = scene.start(*what, *IMPATIENT, what="redrive" if point.startswith("act.") else "run")
    scene.crashed.add(waiting.pid)
    assert waiting.wait() not in (0, 75)
    assert "StoreUnavailable" in waiting.err, waiting.err
    told = safety.LOCKS.exists()
    assert (f"process {holder.pid}, which is stopped" if told else "fuser") in waiting.err, waiting.err


@pytest.mark.promise("B7", "C4", "C9")
@pytest.mark.parametrize("then", ["woken", "ended"])
@pytest.mark.parametrize("point", INSIDE)
def test_a_process_stopped_inside_a_transaction_holds_others_up_and_harms_nobody(
    point: str, then: str, scene: Scene, tally: Callable[..., None]
) -> None:
    holder = stop_inside(scene, point)
    ask_in_vain(scene, point, holder)
    waiting = scene.start(*LEASE)
    scene.crashed.add(waiting.pid)  # while it waits, its own leases may run out
    holder.signal(signal.SIGCONT if then == "woken" else signal.SIGKILL)
    assert holder.wait() == (0 if then == "woken" else -signal.SIGKILL), holder.err
    # A redrive that lands behind the last look of the other run leaves work for the next one: that says 75.
    assert waiting.wait() in ((0, 75) if point.startswith("act.") else (0,)), waiting.err
    scene.finish()
    scene.check()
    tally(stopped_writers=1)


@pytest.mark.promise("B7")
@pytest.mark.parametrize("point", ["commit.begun", "commit.outputs", "commit.written", "renew.written", "act.written"])
def test_who_only_reads_is_not_held_up(point: str, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = stop_inside(scene, point)
    monkeypatch.setattr(sqlite_file, "BUSY_MS", 1)
    items, *_ = scene.ledger()
    assert items, "whatever was admitted by then is read while the other holds the file"
    holder.kill()
    scene.finish()
    scene.check()
