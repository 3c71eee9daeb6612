"""One file and several processes: other users, forked children, a race for a fresh file, a disk without room."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.stores import owners
from holdfast.stores.sqlite import SqliteStore
from tests.forkserver import ForkServer
from tests.stores.elsewhere import RACERS, ROUNDS


class Elsewhere:
    """Deeds in other processes."""

    def __init__(self, forkserver: ForkServer, folder: Path) -> None:
        self._forkserver, self._folder = forkserver, folder

    def do(self, deed: str, path: Path) -> Any:
        process = self._forkserver.start("tests.stores.elsewhere", [deed, str(path)], cwd=self._folder)
        assert process.wait() == 0, process.err
        return process.report


@pytest.fixture
def elsewhere(forkserver: ForkServer, tmp_path: Path) -> Iterator[Elsewhere]:
    yield Elsewhere(forkserver, tmp_path)
    forkserver.clear()


@pytest.fixture
def visible() -> Iterator[Path]:
    """A folder that others may look into, but not write to."""
    with tempfile.TemporaryDirectory(prefix="holdfast-") as name:
        folder = Path(name)
        folder.chmod(0o755 if os.getuid() == 0 else 0o555)
        yield folder
        folder.chmod(0o755)


def test_a_place_without_rights_is_refused_with_what_to_do(elsewhere: Elsewhere, visible: Path) -> None:
    told = elsewhere.do("open_as_nobody", visible / "state.db")
    assert told.startswith("UsageError")
    assert "--store or $HOLDFAST_STORE" in told
    assert list(visible.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="makes files of another user")
def test_the_store_of_another_user_is_refused_and_left_as_it_was(elsewhere: Elsewhere, visible: Path) -> None:
    for path in (visible / "state.db", visible / "private" / "state.db"):
        SqliteStore(path).close()
        before = path.read_bytes()
        assert elsewhere.do("open_as_nobody", path).startswith("UsageError")
        assert path.read_bytes() == before


def test_a_forked_child_is_refused_and_its_parent_goes_on(elsewhere: Elsewhere, tmp_path: Path) -> None:
    told = elsewhere.do("use_after_fork", tmp_path / "state.db")
    used, closed, used_again = told["child"]
    assert used.startswith("UsageError")
    assert "spawn" in used
    assert (closed, used_again) == ("done", used)
    assert told["parent"] == "done"


def test_a_forked_child_is_refused_even_where_its_parent_was_reading(elsewhere: Elsewhere, tmp_path: Path) -> None:
    told = elsewhere.do("use_after_fork_from_a_busy_process", tmp_path / "state.db")
    used, closed = told["child"]
    assert used.startswith("UsageError")
    assert (closed, told["parent"]) == ("done", "done")


@pytest.mark.promise("B7", "C9", "A8")
def test_a_disk_without_room_loses_nothing_and_work_goes_on_when_there_is_room(
    elsewhere: Elsewhere, tmp_path: Path
) -> None:
    told = elsewhere.do("fill_the_disk", tmp_path / "state.db")
    assert told["failed"].startswith(("CommitUnknown", "StoreUnavailable"))
    assert "check the disk" in told["failed"]
    assert told["then"].startswith("StoreError")
    assert (told["kept"], told["added"]) == (100, 2900)


@pytest.mark.promise("C1", "P7")
def test_processes_that_open_a_fresh_file_at_once_share_it(elsewhere: Elsewhere, tmp_path: Path) -> None:
    assert elsewhere.do("race", tmp_path) == [0] * RACERS
    for turn in range(ROUNDS):
        store = SqliteStore(tmp_path / f"{turn}.db")
        (batch,) = store.batches()
        assert {row.key for row in store.items(batch.id)} == {*map(str, range(RACERS)), "shared"}
        assert batch.admitted == RACERS + 1
        store.close()


@pytest.mark.promise("C3", "C4")
def test_a_process_that_ended_is_known_to_be_dead(elsewhere: Elsewhere, tmp_path: Path) -> None:
    owner = elsewhere.do("name_itself", tmp_path)
    assert owners.is_dead(owner)
    assert not owners.is_dead(owners.new_owner())
