"""Random sequences of everything that can happen to a process, and at the end it all adds up."""

import secrets
from collections import Counter
from collections.abc import Callable

import pytest

from tests.faults.chance import Story
from tests.faults.scene import Scene

Make = Callable[..., Scene]


def tell_stories(make: Make, count: int) -> Counter[str]:
    first = secrets.randbelow(1 << 32)
    total: Counter[str] = Counter()
    for seed in range(first, first + count):
        scene = make(items=40)
        story = Story(scene, seed)
        complaints = story.tell()
        assert not complaints, f"seed {seed}, in {scene.folder}: {complaints[:10]}"
        total += story.counts
    return total


@pytest.mark.promise("A1", "A7", "B7", "C8", "C10", "C11", "C12", "C13", "P8", "P10", "E12")
def test_whatever_happens_in_whatever_order_the_batch_comes_to_its_end(
    scenes: Make, tally: Callable[..., None]
) -> None:
    tally(**tell_stories(scenes, 2))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.promise("A1", "A7", "B7", "C8", "C10", "C11", "C12", "C13", "P8", "P10", "E12")
def test_whatever_happens_in_whatever_order_the_batch_comes_to_its_end_forty_times(
    scenes: Make, tally: Callable[..., None]
) -> None:
    tally(**tell_stories(scenes, 40))
