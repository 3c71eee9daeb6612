"""Hundreds of kills at random moments, three processes on one file: then everything adds up."""

import secrets
from collections import Counter
from collections.abc import Callable

import pytest

from holdfast.stores.sqlite import SqliteStore
from tests.faults import app, oracle
from tests.faults.scene import Scene
from tests.fleet.rampage import Rampage

Make = Callable[..., Scene]
ITEMS = 80
AT_ONCE = 60
"""Kills before a batch is let come to its end, and everything is looked at."""


def rampage(make: Make, seed: int, *, kills: int, stops: bool, sabotage: str = "") -> Counter[str]:
    """Batch after batch until there were so many kills."""
    total: Counter[str] = Counter()
    while total["kills"] < kills:
        fire = Rampage(make(items=ITEMS, sabotage=sabotage), seed + total["batches"], stops=stops)
        left = min(AT_ONCE, kills - total["kills"])
        fire.go_on_until(lambda counts, left=left: counts["kills"] >= left)
        complaints = fire.finish()
        assert not complaints, f"seed {seed + total['batches']}, in {fire.scene.folder}: {complaints[:10]}"
        total += fire.counts
        total["batches"] += 1
    return total


@pytest.mark.promise("A1", "A7", "B7", "C3", "C10", "C11", "P1", "P3", "P7", "P10", "E12")
def test_a_fleet_that_is_killed_at_random_loses_and_doubles_nothing(scenes: Make, tally: Callable[..., None]) -> None:
    total = rampage(scenes, secrets.randbelow(1 << 32), kills=40, stops=False)
    tally(kills=total["kills"])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.promise("A1", "A7", "B7", "C3", "C10", "C11", "P1", "P3", "P7", "P10", "E12")
def test_a_fleet_that_is_killed_hundreds_of_times_loses_and_doubles_nothing(
    scenes: Make, tally: Callable[..., None]
) -> None:
    total = rampage(scenes, secrets.randbelow(1 << 32), kills=220, stops=False)
    tally(kills=total["kills"], processes=total["processes"], batches=total["batches"])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.promise("A7", "B7", "C3", "C8", "C13", "P3", "P7", "P8")
def test_a_fleet_that_is_killed_and_stopped_and_woken_loses_and_doubles_nothing(
    scenes: Make, tally: Callable[..., None]
) -> None:
    total = rampage(scenes, secrets.randbelow(1 << 32), kills=110, stops=True)
    assert total["stops"] >= 24
    assert total["woken"] > 0
    tally(kills=total["kills"], stops=total["stops"], processes=total["processes"], batches=total["batches"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", ["unfenced_commit", "fence_not_raised", "acknowledge_before_commit", "totals_in_a_second_write"]
)
def test_a_broken_version_does_not_survive_the_fleet(way: str, scenes: Make) -> None:
    with pytest.raises(AssertionError):
        rampage(scenes, secrets.randbelow(1 << 32), kills=600, stops=True, sabotage=way)


@pytest.mark.promise("A14", "P1", "P3")
def test_at_whatever_moment_everybody_dies_the_counts_add_up(scenes: Make, tally: Callable[..., None]) -> None:
    """Nobody tidies up first: items counted one by one are what the totals say, and all of them are there."""
    seed, moments = secrets.randbelow(1 << 32), 0
    scene = scenes(items=ITEMS)
    for moment in range(15):
        fire = Rampage(scene, seed + moment, stops=False)
        fire.go_on_until(lambda counts: counts["kills"] >= 3)
        if scene.has_batch:
            moments += 1
            found = oracle.check_moment(scene.folder, items=scene.items)
            assert not found, f"seed {seed + moment}: {found[:10]}"
    assert moments
    tally(moments=moments)


@pytest.mark.parametrize("total", ["done", "dead"])
def test_a_total_that_is_off_by_one_is_noticed(total: str, scene: Scene) -> None:
    scene.finish()
    store = SqliteStore(scene.folder / app.STORE)
    with store._file.writing("note") as db:
        db.execute(f"UPDATE chunks SET {total} = {total} - 1 WHERE id = 1")
    store.close()
    assert oracle.check_moment(scene.folder, items=scene.items)
