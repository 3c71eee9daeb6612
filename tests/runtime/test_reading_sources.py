"""What reading a source costs beside its items."""

from pathlib import Path
from typing import Any

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
