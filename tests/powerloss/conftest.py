"""Fixtures of the layer that cuts the power: a folder in memory, and a story that was told on a recorded disk."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.stores import filesystem
from tests.powerloss.judge import Judge
from tests.powerloss.story import Story, tell
from tests.simulation.conftest import place

__all__ = ["place"]


@pytest.fixture(autouse=True)
def one_file_system(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """What kind of disk the folder is on is looked up once, not for each state."""
    kind = filesystem.kind_of(place)
    monkeypatch.setattr(filesystem, "kind_of", lambda _path: kind)


@pytest.fixture
def story(place: Path) -> Iterator[Story]:
    with pytest.MonkeyPatch.context() as patch:
        yield tell(place / "recorded", patch)


@pytest.fixture
def judge(place: Path, story: Story) -> Judge:
    return Judge(place / "judged", story)
