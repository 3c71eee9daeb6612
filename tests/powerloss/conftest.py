"""Fixtures of the layer that cuts the power: a folder in memory, and a story that was told on a recorded disk."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.damage.conftest import one_file_system
from tests.powerloss.judge import Judge
from tests.powerloss.story import Story, tell
from tests.simulation.conftest import place

__all__ = ["one_file_system", "place"]


@pytest.fixture
def story(place: Path) -> Iterator[Story]:
    with pytest.MonkeyPatch.context() as patch:
        yield tell(place / "recorded", patch)


@pytest.fixture
def judge(place: Path, story: Story) -> Judge:
    return Judge(place / "judged", story)
