"""Whole runs of a pipeline, with handlers on threads and a file sink, on a disk that fails in the middle of them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.forkserver import ForkServer
from tests.iofaults import shim, siege
from tests.iofaults.besieged import Besieged
from tests.iofaults.doubling import COUNT
from tests.iofaults.shim import Call

CALM = 5
"""A run in trouble may make so many times the usual number of calls: it comes to an end and does not go in circles."""


def strike(forkserver: ForkServer, place: Path, case: siege.Case, usual: int) -> tuple[int, list[str]]:
    """One fault in a run, then one without; returns how the first ended, and every complaint."""
    scene = Besieged(forkserver, place)
    status, complaints = scene.fail(case.mode, fault=f"{case.n}:{case.mode}")
    made = len(shim.read_log(scene.outside))
    if made > CALM * usual:
        complaints.append(f"it went on and on: {made:,} calls, {usual:,} are usual")
    scene.finish()
    return status, complaints + scene.complaints(spared=1)


@pytest.mark.slow
@pytest.mark.promise("A7", "A8", "B7", "C1", "C9", "C11", "P6", "P10")
@pytest.mark.parametrize("seed", range(3))
def test_a_run_on_a_failing_disk_ends_with_a_reason_and_the_next_goes_on(
    seed: int, calls_of_a_run: list[Call], forkserver: ForkServer, place: Path, tally: Callable[..., None]
) -> None:
    ends = []
    for case in siege.sample(calls_of_a_run, seed, 8):
        status, complaints = strike(forkserver, place / f"{case.n}-{case.mode}", case, len(calls_of_a_run))
        assert not complaints, "\n".join([f"seed {seed}, {case}", *complaints[:10]])
        ends.append(status)
    tally(faults=len(ends), kills=sum(end < 0 for end in ends), errors=sum(end > 0 for end in ends))


@pytest.mark.promise("B7", "C9")
@pytest.mark.parametrize("share", [0.2, 0.5, 0.7, 0.9])
def test_a_disk_that_stays_full_ends_the_run_and_space_is_all_it_takes_to_go_on(
    share: float, calls_of_a_run: list[Call], forkserver: ForkServer, place: Path, tally: Callable[..., None]
) -> None:
    writes = [call for call in calls_of_a_run if call.kind == "write"]
    struck = writes[int(share * len(writes))]
    _, complaints = strike(forkserver, place, siege.Case(struck.n, "full", struck), len(calls_of_a_run))
    assert not complaints, "\n".join([str(struck), *complaints[:10]])
    tally(faults=1)


@pytest.mark.promise("C9")
def test_the_command_says_that_the_disk_is_full_and_a_second_one_finishes(forkserver: ForkServer, place: Path) -> None:
    def command(folder: Path, fault: str = "") -> tuple[int, str]:
        (folder / "disk").mkdir(parents=True, exist_ok=True)
        (folder / shim.LOG).unlink(missing_ok=True)
        argv = ["command", "run", "tests.iofaults.doubling:doubling", "--no-progress"]
        env = shim.plan(folder, folder / "disk", fault)
        process = forkserver.start("tests.iofaults.pipeline", argv, cwd=folder, env=env)
        return process.wait(), process.err

    assert command(place / "good")[0] == 0
    writes = [call for call in shim.read_log(place / "good") if call.kind == "write" and call.file == "state.db-wal"]
    for share in (0.3, 0.7, 0.9):
        status, at = 0, int(share * len(writes))
        while not status:  # how commits group themselves differs from run to run: it may be over before it is full
            assert at, "no run met the full disk"
            folder = place / f"{share}-{at}"
            status, said = command(folder, f"{writes[at].n}:full")
            at = at * 2 // 3
        assert status in (1, 75), said
        assert "Traceback" not in said
        assert any(what in said for what in ("free some space", "see to the disk", "check the disk")), said
        assert command(folder)[0] == 0
        assert len(list((folder / "disk/out").glob("*.json"))) == COUNT
