"""An item that kills its process again and again is found, alone, and buried; nobody else is."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import hanging
from tests.faults.scene import KILLED as BY_SIGKILL
from tests.faults.scene import Scene
from tests.faults.world import KILLED
from tests.forkserver import ForkServer

Make = Callable[..., Scene]
RUNS = 30
"""More than it takes: two deaths make a group suspect, each further one halves it, three alone condemn."""


@pytest.mark.promise("A7", "A15", "B7")
@pytest.mark.parametrize("killer", [0, 6, 13, 19])
def test_the_item_that_kills_its_process_is_buried_and_no_other(
    killer: int, scenes: Make, tally: Callable[..., None]
) -> None:
    scene = scenes()
    for _ in range(RUNS):
        process = scene.start("--killer", str(killer))
        status = process.wait()
        if status == 0:
            break
        assert status == BY_SIGKILL, process.err
        scene.crashed.add(process.pid)
    else:
        pytest.fail(f"after {RUNS} runs it still kills")
    dead = {letter["key"]: letter["code"] for letter in process.report["dead"]}
    assert dead.pop(killer) == KILLED
    assert KILLED not in dead.values(), "an innocent item was buried with it"
    scene.last = process
    scene.check()
    tally(kills=len(scene.crashed))


@pytest.mark.promise("A7", "B7")
def test_worker_processes_that_die_under_their_items_cost_no_item(forkserver: ForkServer, tmp_path: Path) -> None:
    """Every one of them is killed at its second item, whichever that is."""
    (tmp_path / hanging.GO).touch()
    process = forkserver.start(
        "tests.faults.hanging", [], cwd=tmp_path, env={"HANG": "processes"}, fault="stage.after:2:kill"
    )
    assert process.wait() == 0, process.err
    assert process.report["counts"]["done"] == hanging.ITEMS
