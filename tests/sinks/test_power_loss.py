"""After a power loss every recorded output is there, and what is not recorded is whole or not adopted."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.sinks import Evidence, Files, Provenance
from tests.simulation.conftest import place as memory
from tests.sinks.making import output, place
from tests.sinks.power import Op, Recorder, crash_states, restore

__all__ = ["memory"]

GROUPS = ((1, 2, 3), (4, 5), (2, 6, 7))
"""What is staged, recorded and published together; the second output of item 2 takes the place of its first."""
ENOUGH = 10
"""States that lost something are enough to say so."""


@pytest.fixture
def here(memory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Not on a disk: many states are looked at, and every look syncs."""
    monkeypatch.chdir(memory)
    return memory


class NoFolderSync(Files):
    """Leaves the folder of staged outputs unsynced."""

    def sync_folders(self, evidence: Any) -> None:
        pass


class NoSyncAbove(Files):
    """Leaves the folders unsynced in which its own new folders stand."""

    def _make_folder(self) -> None:
        super()._make_folder()
        self._unsynced.clear()


class NoFileSync(Files):
    """Syncs folders, and not what the files in them hold."""

    def stage(self, *args: Any) -> Evidence:
        self.sync = False
        try:
            return super().stage(*args)
        finally:
            self.sync = True


class NoSync(Files):
    """Syncs neither files nor folders."""

    def __init__(self, template: str) -> None:
        super().__init__(template, sync=False)


class Hasty(Files):
    """Leaves the user's folder unsynced."""

    def publish(self, evidence: Any, **_: Any) -> None:
        super().publish(evidence, sync=False)


@pytest.mark.promise("A8", "P6")
@pytest.mark.parametrize("template", ["out/{key}.json", "{key}.json", "out/{batch}/{key}/page.json"])
def test_after_power_loss_every_recorded_output_is_there(
    template: str, here: Path, monkeypatch: pytest.MonkeyPatch, tally: Callable[..., None]
) -> None:
    lost, gone, states = survey(Files, template, here, monkeypatch)
    assert (lost, gone) == (0, 0)
    assert states > 100
    tally(states=states)


@pytest.mark.promise("A8", "P6")
@pytest.mark.catches("no directory sync")
@pytest.mark.parametrize("careless", [NoFolderSync, NoSyncAbove, NoFileSync, NoSync])
def test_without_one_of_its_syncs_outputs_are_lost(
    careless: type[Files], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, _, _ = survey(careless, "out/{key}.json", here, monkeypatch)
    assert lost > 0


def test_without_the_last_sync_nothing_is_lost_but_names_come_late(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost, gone, _ = survey(Hasty, "out/{key}.json", here, monkeypatch)
    assert lost == 0
    assert gone > 0


def survey(kind: type[Files], template: str, here: Path, patch: pytest.MonkeyPatch) -> tuple[int, int, int]:
    """(states that lost a recorded output, states that lost a published name, all states)."""
    (here / "run").mkdir()
    patch.chdir(here / "run")
    with patch.context() as watching:
        recorder = Recorder(watching, here / "run")
        sink = kind(template)
        recorded: list[dict[int, Evidence]] = [{}]
        for epoch, keys in enumerate(GROUPS):
            made = [sink.stage(origin(key, epoch), output(key)) for key in keys]
            sink.sync_folders(made)
            recorded.append(recorded[-1] | dict(zip(keys, made, strict=True)))
            recorder.ops.append(Op("committed"))
            sink.publish(made)
            recorder.ops.append(Op("published"))
    lost = gone = 0
    seen = set[Any]()
    home = here / "crash"
    for ops, files in crash_states(recorder.ops):
        kinds = [op.kind for op in ops]
        committed, published = recorded[kinds.count("committed")], recorded[kinds.count("published")]
        state = (len(committed), len(published), frozenset(files.items()))
        if state in seen:
            continue
        seen.add(state)
        patch.chdir(here)
        shutil.rmtree(home, ignore_errors=True)
        restore(home, files)
        patch.chdir(home)
        gone += not all(Path(each.final).is_file() for each in published.values())
        lost += not survives(Files(template), committed)
        if lost == ENOUGH:
            break
    return lost, gone, len(seen)


def origin(key: int, epoch: int) -> Provenance:
    return place(key, n=key, epoch=epoch)


def survives(sink: Files, recorded: dict[int, Evidence]) -> bool:
    """Whether every recorded output is there, and whatever else could be adopted is whole."""
    found = [(key, sink.find(origin(key, epoch))) for epoch, keys in enumerate(GROUPS) for key in keys]
    return all(each is None or sink.read(each) == output(key) for key, each in found) and all(
        sink.check(each, full=True) is None for each in recorded.values()
    )
