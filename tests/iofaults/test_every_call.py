"""A fault at every call that the store and the file sink make, in every way: nothing is lost, nothing is doubled."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.forkserver import ForkServer
from tests.iofaults import siege
from tests.iofaults.shim import Call

VERBS = {
    "open": {"write", "sync", "create", "map", "truncate", "unlink"},
    "add_items": {"write", "sync"},
    "claim": {"write", "sync"},
    "commit": {"write", "sync"},
    "commit with files": {"write", "sync"},
    "stage": {"create", "write", "sync", "rename"},
    "sync_folders": {"sync"},
    "publish": {"rename", "sync"},
    "act": {"write", "sync"},
    "note": {"write", "sync"},
    "close": {"write", "sync", "unlink"},
    "reopen": {"create", "map"},
}
"""What each verb does to the disk, at the least. If the shim did not see it, it could not make it fail."""
MODES = sorted({mode for modes in siege.MODES.values() for mode in modes})


def test_the_shim_sees_what_the_verbs_do_to_the_disk(calls: list[Call]) -> None:
    seen = {verb: {call.kind for call in calls if call.verb == verb} for verb in VERBS}
    blind = {verb: kinds - seen[verb] for verb, kinds in VERBS.items() if kinds - seen[verb]}
    assert not blind, f"of the calls of these verbs some kinds go past the shim: {blind}"
    written_back = [call for call in calls if call.verb.startswith("commit") and call.file == "state.db"]
    assert {"write", "sync"} <= {call.kind for call in written_back}, "no commit wrote the log back into the file"


@pytest.mark.slow
@pytest.mark.promise("A7", "A8", "B7", "C1", "C9", "C11", "P6", "P10")
@pytest.mark.parametrize("mode", MODES)
def test_one_call_fails_and_the_next_run_comes_to_the_same_end(
    mode: str, calls: list[Call], forkserver: ForkServer, place: Path, tally: Callable[..., None]
) -> None:
    cases = [case for case in siege.chosen(calls) if case.mode == mode]
    laid = siege.Siege(forkserver, place).lay(cases)
    assert not laid.complaints, "\n".join(laid.complaints[:10])
    assert laid.counts["not met"] <= len(cases) // 20, "the calls are not those that were surveyed"
    tally(faults=laid.counts["faults"], kills=laid.counts["killed"], errors=laid.counts["told"])


def test_a_seed_draws_the_same_faults_again(calls: list[Call]) -> None:
    assert siege.sample(calls, 7, 20) == siege.sample(calls, 7, 20)
    drawn = siege.sample(calls, 8, 400)
    assert len(set(drawn)) == 400
    assert len(Counter(case.mode for case in drawn)) > 8
