"""Hundreds of kills at random moments, three processes on one file: then everything adds up."""

import secrets
import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.faults.scene import Scene
from tests.fleet.rampage import Rampage

Make = Callable[..., Scene]


def rampage(make: Make, seed: int, *, kills: int, seconds: float, stops: bool) -> Counter[str]:
    """Batch after batch until there were so many kills, or the time is over."""
    total: Counter[str] = Counter()
    limit = time.monotonic() + seconds
    while total["kills"] < kills and time.monotonic() < limit:
        scene = make(items=80)
        fire = Rampage(scene, seed + total["batches"], stops=stops)
        left = kills - total["kills"]
        fire.go_on_until(lambda counts, left=left: counts["kills"] >= left or time.monotonic() > limit)
        complaints = fire.finish()
        assert not complaints, f"seed {seed + total['batches']}, in {scene.folder}: {complaints[:10]}"
        total += fire.counts
        total["batches"] += 1
    return total


@pytest.mark.promise("A1", "A7", "B7", "C3", "C10", "C11", "P1", "P3", "P7", "P10", "E12")
def test_a_fleet_that_is_killed_at_random_loses_and_doubles_nothing(scenes: Make, tally: Callable[..., None]) -> None:
    total = rampage(scenes, secrets.randbelow(1 << 32), kills=40, seconds=20, stops=False)
    assert total["kills"] > 0
    tally(kills=total["kills"])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.promise("A1", "A7", "B7", "C3", "C10", "C11", "P1", "P3", "P7", "P10", "E12")
def test_a_fleet_that_is_killed_hundreds_of_times_loses_and_doubles_nothing(
    scenes: Make, tally: Callable[..., None]
) -> None:
    total = rampage(scenes, secrets.randbelow(1 << 32), kills=1000, seconds=60, stops=False)
    assert total["kills"] >= 60
    tally(kills=total["kills"], processes=total["processes"], batches=total["batches"])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.promise("A7", "B7", "C3", "C8", "C13", "P3", "P7", "P8")
def test_a_fleet_that_is_killed_and_stopped_and_woken_loses_and_doubles_nothing(
    scenes: Make, tally: Callable[..., None]
) -> None:
    total = rampage(scenes, secrets.randbelow(1 << 32), kills=500, seconds=60, stops=True)
    assert total["kills"] >= 30
    assert total["woken"] > 0
    tally(kills=total["kills"], stops=total["stops"], processes=total["processes"], batches=total["batches"])
