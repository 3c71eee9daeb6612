"""The tests of the example of a store: `pytest examples/own_store`."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from examples.own_store.log_store import LogStore
from holdfast.testing import in_folders, search
from holdfast.testing.comparison import comparison
from holdfast.testing.conformance import conformance

HERE = Path(__file__).parent


def make(place, *, clock, is_dead, draw):
    """Open the store of a folder: empty if the folder is, else another handle on the same store."""
    return LogStore(place / "store.log", clock=clock, is_dead=is_dead, draw=draw)


test_every_check = conformance(make)


def test_it_answers_as_the_memory_store_does():
    machine = comparison(make)
    run_state_machine_as_test(machine, settings=settings(max_examples=20, stateful_step_count=30, deadline=None))


def test_every_promise_holds_in_every_world(tmp_path):
    assert search(range(50), in_folders(make, tmp_path))["worlds"] == 50


@pytest.mark.parametrize("fault", ["claim.written:1:kill", "commit.written:2:kill", "commit.written:1:raise"])
def test_what_is_killed_is_finished_by_the_next_run(fault, tmp_path):
    command = [sys.executable, str(HERE / "app.py")]
    armed = {**os.environ, "HOLDFAST_FAULT": fault}
    first = subprocess.run(command, cwd=tmp_path, env=armed, capture_output=True, check=False)
    assert first.returncode == (-signal.SIGKILL if fault.endswith("kill") else 1)
    second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "10 = 10 done" in second.stdout
