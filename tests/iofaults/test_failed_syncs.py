"""A sync fails, and later the power does: what the next process was told is durable must be.

After a failed sync the system shows what was written and has given up writing it. A process that comes later sees it,
too, and would build on sand. So pages that were never synced are taken away when that process has done some work.
"""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.forkserver import ForkServer
from tests.iofaults import life, shim, siege
from tests.iofaults.shim import Call

LOG_FILE = "state.db-wal"
A_WHILE = 90
"""Calls of the next process before the power is cut: some transactions are durable by then, and it is not done."""


def syncs_of(calls: list[Call]) -> list[Call]:
    """The syncs by which transactions become durable: each follows upon a write to the log."""
    log = [call for call in calls if call.file == LOG_FILE]
    return [call for before, call in pairwise(log) if (before.kind, call.kind) == ("write", "sync")]


def fail_go_on_and_cut(forkserver: ForkServer, place: Path, sync: Call, *broken: str) -> tuple[bool, list[str]]:
    """Returns whether anything was taken away, and the complaints of the life after it."""
    victim = siege.start(forkserver, place, "gone", *broken, fault=f"{sync.n}:eio")
    assert victim.wait() != 0
    unsynced = never_synced(shim.read_log(place), sync.n)
    (place / shim.LOG).unlink()
    later = siege.start(forkserver, place, fault=f"{A_WHILE}:kill")
    later.wait()
    is_cut = cut_the_power(place / life.DISK / LOG_FILE, unsynced, shim.read_log(place))
    heir = siege.start(forkserver, place, "check", "three")
    if heir.wait() != 0:
        return is_cut, [f"the life after it ended with {heir.wait()}: {heir.out} {heir.err}"]
    return is_cut, [str(each) for each in heir.report["complaints"]]


def never_synced(calls: list[Call], failed: int) -> list[tuple[int, int]]:
    """(offset, length) of what was written to the log before the sync that failed, and after the last that did not."""
    found: list[tuple[int, int]] = []
    for call in (call for call in calls if call.file == LOG_FILE):
        if call.kind == "unlink":
            return []
        if call.n < failed:
            found = [] if call.kind == "sync" else [*found, *[(call.offset, call.length)] * (call.kind == "write")]
    return found


def cut_the_power(log: Path, unsynced: list[tuple[int, int]], calls: list[Call]) -> bool:
    """Empty what was never synced, unless it was written again since."""
    again = {(call.offset, call.length) for call in calls if (call.kind, call.file) == ("write", LOG_FILE)}
    lost = [each for each in unsynced if each not in again]
    if not log.exists() or any(call.kind == "unlink" and call.file == LOG_FILE for call in calls):
        return False
    with log.open("r+b") as file:
        for offset, length in lost:
            file.seek(offset)
            file.write(bytes(length))
    return bool(lost)


@pytest.mark.promise("B7", "C9")
def test_what_was_never_synced_is_not_built_upon(
    calls: list[Call], forkserver: ForkServer, place: Path, tally: Callable[..., None]
) -> None:
    syncs = syncs_of(calls)
    assert len(syncs) > 5
    for sync in syncs:
        _, complaints = fail_go_on_and_cut(forkserver, place / str(sync.n), sync)
        assert not complaints, "\n".join([str(sync), *complaints])
    tally(faults=len(syncs), power_cuts=len(syncs))


def test_a_version_that_leaves_such_a_log_behind_is_found_out(
    calls: list[Call], forkserver: ForkServer, place: Path
) -> None:
    told = [fail_go_on_and_cut(forkserver, place / str(s.n), s, "log_left_unsynced") for s in syncs_of(calls)]
    assert any(is_cut for is_cut, _ in told)
    assert any(complaints for _, complaints in told)
