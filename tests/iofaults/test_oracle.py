"""The inquest fails on every broken version, and is content with the real one under the same faults."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.forkserver import ForkServer
from tests.iofaults import sabotage, siege
from tests.iofaults.shim import Call
from tests.iofaults.siege import Case

Choose = Callable[[Call], str]
"""How a call is to fail; empty for calls that are left alone."""


def dead_after_a_commit(call: Call) -> str:
    is_next = call.verb in ("commit", "find", "stage", "commit with files")
    return "kill" if is_next and call.kind in ("write", "create") else ""


def no_sync_of_the_log(call: Call) -> str:
    return "eio" if call.kind == "sync" and call.file == "state.db-wal" and call.verb.startswith("commit") else ""


def torn_outputs(call: Call) -> str:
    return "torn_kill" if call.kind == "write" and call.file.startswith("out/") else ""


def short_outputs(call: Call) -> str:
    return "short" if call.kind == "write" and call.file.startswith("out/") else ""


def lost_outputs(call: Call) -> str:
    return "lost" if call.kind == "sync" and call.verb == "stage" else ""


def full_disk(call: Call) -> str:
    return "full" if call.kind == "write" and call.verb == "commit" else ""


FAULTS: dict[str, Choose] = {
    "acknowledge_before_commit": dead_after_a_commit,
    "failed_sync_ignored": no_sync_of_the_log,
    "failed_sync_forgotten": no_sync_of_the_log,
    "outputs_in_place": torn_outputs,
    "short_writes_ignored": short_outputs,
    "output_syncs_ignored": lost_outputs,
    "full_disk_is_success": full_disk,
}
FEW = 4


def some(calls: Iterable[Call], choose: Choose) -> list[Case]:
    """A few cases, spread over all that the choice offers."""
    cases = [Case(call.n, choose(call), call) for call in calls if choose(call)]
    return cases[:: max(1, len(cases) // FEW)]


@pytest.mark.parametrize("way", FAULTS)
def test_the_inquest_notices_a_version_with(way: str, forkserver: ForkServer, place: Path) -> None:
    broken = siege.survey(forkserver, place / "survey", way)
    laid = siege.Siege(forkserver, place / "siege", sabotage=way).lay(some(broken, FAULTS[way]))
    assert laid.counts["faults"]
    assert laid.complaints


@pytest.mark.parametrize("choose", dict.fromkeys(FAULTS.values()))
def test_the_inquest_is_content_when_nothing_is_broken_and(
    choose: Choose, calls: list[Call], forkserver: ForkServer, place: Path
) -> None:
    laid = siege.Siege(forkserver, place).lay(some(calls, choose))
    assert laid.counts["faults"]
    assert not laid.complaints, "\n".join(laid.complaints)


def test_every_broken_version_is_tried() -> None:
    elsewhere = {"log_left_unsynced"}  # needs a power cut: test_failed_syncs.py
    assert set(FAULTS) | elsewhere == set(sabotage.WAYS)
