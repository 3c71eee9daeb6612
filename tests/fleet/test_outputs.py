"""Files that one process records and another looks at: found under either name, and never left without their own."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.runtime.sinks import Evidence, Files, Provenance, disk
from tests.faults.scene import Scene

Make = Callable[..., Scene]
TEMPLATE = "out/{key}.json"


@pytest.mark.promise("A7", "A8", "P5", "P6")
@pytest.mark.parametrize("hit", [12, 16, 20, 24])
def test_what_a_dead_process_could_not_publish_is_published_by_the_one_that_finishes(hit: int, scenes: Make) -> None:
    """The survivor has looked at the outputs before the other one died between its commit and its renames."""
    scene = scenes(items=20)
    survivor = scene.stop("add_items.after:1")
    assert survivor is not None
    scene.crash(f"commit.after:{hit}:kill")
    survivor.signal(signal.SIGCONT)
    assert survivor.wait() == 0, survivor.err
    scene.last = survivor
    scene.check()


@pytest.fixture
def staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Evidence:
    monkeypatch.chdir(tmp_path)
    sink = Files(TEMPLATE)
    place = Provenance(batch="b", stage="s", n=1, epoch=0, fence=1, input_digest=b"", key="a")
    found = sink.stage(place, b'"text"')
    sink.sync_folders([found])
    return found


@pytest.mark.promise("P4", "P5")
def test_an_output_that_is_published_between_two_looks_is_not_taken_for_missing(
    staged: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = disk.difference
    seen: list[str | None] = []

    def look_and_be_overtaken(path: Path, evidence: Evidence, *, full: bool) -> str | None:
        seen.append(look(path, evidence, full=full))
        Files(TEMPLATE).publish([staged])
        return seen[-1]

    monkeypatch.setattr(disk, "difference", look_and_be_overtaken)
    assert Files(TEMPLATE).check(staged, full=False) is None
    assert seen[:2] == ["it is missing", "it is missing"]


@pytest.mark.promise("P4", "P5")
def test_an_output_that_is_published_while_it_is_read_is_found(
    staged: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Path.read_bytes

    def read_and_be_overtaken(path: Path) -> bytes:
        try:
            return read(path)
        finally:
            Files(TEMPLATE).publish([staged])

    monkeypatch.setattr(Path, "read_bytes", read_and_be_overtaken)
    assert Files(TEMPLATE).read(staged) == b'"text"'
