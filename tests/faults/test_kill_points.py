"""Killed at every named point and at every hit of it, then resumed: the oracle finds nothing to complain about.

What a point means stands in `holdfast.stores.faults`. Most are reached by a plain run of the app; the heartbeat needs
a run that lasts, an operator's points need an operator, and those of the end a batch that ends (`test_endings.py`). A
point that nothing reaches fails the test.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from holdfast.stores.faults import POINTS
from tests.faults.scene import ELSEWHERE, ITEMS, Scene, few, kill_and_resume

Make = Callable[..., Scene]

SLOW_RUN = ("--lease", "0.15s", "--pace", "0.02")
HEARTBEAT = tuple(point for point in POINTS if point.startswith("renew."))
OPERATOR = tuple(point for point in POINTS if point.startswith("act."))
ENDING = tuple(point for point in POINTS if point.startswith(ELSEWHERE) and not point.startswith("bucket."))
PLAIN = tuple(p for p in POINTS if not p.startswith("bucket.") and p not in HEARTBEAT + OPERATOR + ENDING)


def test_every_point_is_reached(scenes: Make) -> None:
    reached = set(scenes().count_points()) | set(scenes().count_points(*SLOW_RUN))
    scene = scenes()
    scene.finish()
    reached |= set(scene.count_points(what="redrive")) | set(scenes().count_points(what="end"))
    assert reached == {point for point in POINTS if not point.startswith("bucket.")}, (
        "every point is reached by a scene of this file, and every one that is reached is named"
    )


@pytest.mark.quick
@pytest.mark.parametrize("point", PLAIN)
def test_killed_at_a_point_and_resumed(point: str, scenes: Make, hits: Counter[str]) -> None:
    kill_and_resume(partial(scenes, items=ITEMS), point, few(hits[point]))


@pytest.mark.slow
@pytest.mark.promise("A1", "A4", "A7", "A8", "B7", "C1", "C10", "C11", "E6", "E12", "P1", "P3", "P6", "P10")
@pytest.mark.parametrize("point", PLAIN)
def test_killed_at_every_hit_of_a_point_and_resumed(
    point: str, scenes: Make, hits: Counter[str], tally: Callable[..., None]
) -> None:
    tally(kills=kill_and_resume(partial(scenes, items=ITEMS), point, range(1, hits[point] + 1)))


@pytest.mark.promise("A7", "B7", "C1")
@pytest.mark.parametrize("point", HEARTBEAT)
def test_killed_by_the_heartbeat_and_resumed(point: str, scenes: Make, tally: Callable[..., None]) -> None:
    tally(kills=kill_and_resume(partial(scenes, items=ITEMS), point, (1, 2), *SLOW_RUN))


@pytest.mark.promise("A7", "B7", "E12")
@pytest.mark.parametrize("point", OPERATOR)
def test_an_operator_is_killed_and_tries_again(point: str, scenes: Make, tally: Callable[..., None]) -> None:
    scenes(items=ITEMS).kill_operator(point)
    tally(kills=1)


@pytest.mark.promise("A7", "B7", "C10", "P10")
def test_killed_again_and_again_it_still_comes_to_its_end(scene: Scene, tally: Callable[..., None]) -> None:
    points = [point for point in PLAIN if not point.startswith("migrate.")]
    for point in points:
        scene.crash(f"{point}:2:kill")
    scene.finish()
    scene.finish("--verify", "full")
    scene.check()
    tally(kills=len(scene.crashed))
