"""Fixtures of the layer in which the disk fails."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forkserver import ForkServer
from tests.iofaults import shim, siege
from tests.iofaults.besieged import Besieged
from tests.iofaults.shim import Call
from tests.needed import missing


@pytest.fixture(scope="session")
def forkserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """Processes with the shim in them; on a laptop without a C compiler there are none, and CI fails."""
    try:
        ready = siege.forkserver(tmp_path_factory.mktemp("shim"))
    except shim.CannotBuild as error:
        missing(str(error))
    with ready as started:
        yield started


@pytest.fixture(scope="session")
def calls(forkserver: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> list[Call]:
    """The calls of a life on a good disk."""
    return siege.survey(forkserver, tmp_path_factory.mktemp("survey"))


@pytest.fixture(scope="session")
def calls_of_a_run(forkserver: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> list[Call]:
    """What a whole run of the app does to a good disk. Its threads do it in another order each time."""
    scene = Besieged(forkserver, tmp_path_factory.mktemp("run"))
    scene.finish()
    return [call for call in shim.read_log(scene.outside) if call.kind not in ("read", "lock", "open")]


@pytest.fixture
def place(forkserver: ForkServer, tmp_path: Path) -> Iterator[Path]:
    """An empty folder; what runs in it ends with the test."""
    yield tmp_path
    forkserver.clear()
