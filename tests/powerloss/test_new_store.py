"""A new store is found again after a power cut, however many folders were made for it."""

from pathlib import Path

import pytest

from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite import file as sqlite_file
from tests.sinks.power import Op, Recorder, crash_states


def states_without_it(place: Path, patch: pytest.MonkeyPatch) -> tuple[int, int]:
    """(states after it was opened in which the file is not there, all states)."""
    path = place / "deep" / "down" / "state.db"
    with patch.context() as watching:
        recorder = Recorder(watching, place)
        store = SqliteStore(path)
        recorder.ops.append(Op("opened"))
        store.close()
    names = [files for ops, files in crash_states(recorder.ops) if Op("opened") in ops]
    return sum("deep/down/state.db" not in files for files in names), len(names)


@pytest.mark.promise("B7", "A8")
def test_a_new_store_and_its_folders_are_found_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost, states = states_without_it(place, monkeypatch)
    assert lost == 0
    assert states > 0


def test_without_a_sync_of_the_folder_above_the_store_would_be_gone(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = sqlite_file._make_folder
    monkeypatch.setattr(sqlite_file, "_make_folder", lambda folder: make(folder) and set())
    assert states_without_it(place, monkeypatch)[0] > 0
