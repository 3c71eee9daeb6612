"""What reading a source costs beside its items, and what a source has given that keeps its reader waiting."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from tests.runtime.support import run


class Shy(list[Any]):
    """A list that must not be written out: a million items would be."""

    def __repr__(self) -> str:
        raise AssertionError("the whole source was written out")


def test_a_list_is_never_written_out_as_text(tmp_path: Path) -> None:
    pipeline = hf.Pipeline("shy", store=str(tmp_path / "state.db"))

    @pipeline.stage
    def double(number: int) -> int:
        return number * 2

    assert run(pipeline, Shy(range(20))).is_complete


PATIENCE = 60.0


@pytest.fixture
def heard() -> dict[Any, threading.Event]:
    """Which items were handled."""
    return {}


@pytest.fixture
def letters(tmp_path: Path, heard: dict[Any, threading.Event]) -> hf.Pipeline:
    pipeline = hf.Pipeline("letters", store=str(tmp_path / "state.db"), key="id")

    @pipeline.stage
    def bind(row: dict[str, int]) -> int:
        if row["id"] in heard:
            heard[row["id"]].set()
        return row["v"]

    return pipeline


def letter(number: int, version: int = 0) -> dict[str, int]:
    return {"id": number, "v": version}


@pytest.mark.parametrize("quick", [0, 1, 5, 600])
def test_what_a_source_gave_is_handled_before_it_gives_more_also_where_it_was_quick_before(
    letters: hf.Pipeline, heard: dict[Any, threading.Event], quick: int
) -> None:
    heard[quick] = threading.Event()

    def source() -> Iterator[dict[str, int]]:
        yield from map(letter, range(quick + 1))
        assert heard[quick].wait(PATIENCE), "it waits for items that come behind it"
        yield letter(quick + 1)

    report = run(letters, source())
    assert (report.state, report.counts.done, report.this_run.admitted) == ("complete", quick + 2, quick + 2)


@pytest.mark.parametrize("changed", ["refuse", "rerun"])
def test_a_payload_that_changed_among_what_was_admitted_early_is_seen_to(
    letters: hf.Pipeline, heard: dict[Any, threading.Event], changed: Any
) -> None:
    heard[3] = threading.Event()

    def source() -> Iterator[dict[str, int]]:
        yield from map(letter, range(3))
        yield letter(1, version=7)
        yield letter(3)
        assert heard[3].wait(PATIENCE)
        yield letter(4)

    if changed == "refuse":
        with pytest.raises(hf.PayloadChanged, match="item 1 "):
            run(letters, source())
    else:
        assert run(letters, source(), changed="rerun").counts.done == 5
        assert [result.output for result in letters.results()] == [0, 7, 0, 0, 0]


def test_an_error_behind_what_was_admitted_early_tells_how_much_is_stored(
    letters: hf.Pipeline, heard: dict[Any, threading.Event]
) -> None:
    heard[2] = threading.Event()

    def source() -> Iterator[dict[str, int]]:
        yield from map(letter, range(3))
        assert heard[2].wait(PATIENCE)
        raise OSError("the line is dead")

    with pytest.raises(OSError, match="the line is dead") as raised:
        run(letters, source())
    assert "raised this after 3 items" in raised.value.__notes__[0]
    assert letters.report().counts.done == 3
