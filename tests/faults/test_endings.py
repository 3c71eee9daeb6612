"""A batch that is paused, cancelled, sealed and reopened, and heard of, by a process that is killed anywhere in it."""

from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from tests.faults import sabotage
from tests.faults.scene import Scene
from tests.faults.test_kill_points import ENDING

Make = Callable[..., Scene]
END = "end"


@pytest.fixture
def points(scenes: Make) -> Counter[str]:
    """How often each point is reached by an end that nothing disturbs."""
    return scenes().count_points(what=END)


def kill_and_end(make: Make, point: str, hits: Iterable[int]) -> int:
    """For every hit: killed there, ended by another process, checked. Returns how many were killed."""
    kills = 0
    for hit in hits:
        scene = make()
        assert scene.crash(f"{point}:{hit}:kill", what=END), f"{point}:{hit} was not reached"
        assert not (complaints := scene.end()), f"killed at {point}:{hit}: {complaints}"
        kills += 1
    return kills


@pytest.mark.quick
@pytest.mark.parametrize("point", ENDING)
def test_killed_at_a_point_the_batch_comes_to_the_same_end(point: str, scenes: Make) -> None:
    assert kill_and_end(scenes, point, [1])


@pytest.mark.slow
@pytest.mark.promise("A7", "A14", "A15", "B7", "C1", "E12", "P6")
def test_killed_at_every_hit_of_every_point_the_batch_comes_to_the_same_end(
    points: Counter[str], scenes: Make, tally: Callable[..., None]
) -> None:
    assert points.keys() >= set(ENDING)
    tally(kills=sum(kill_and_end(scenes, point, range(1, hits + 1)) for point, hits in points.items()))


@pytest.mark.promise("A7", "B7", "C9", "C12")
@pytest.mark.parametrize("point", [*ENDING, "note.written", "note.after", "act.written", "act.after"])
def test_an_error_ends_the_process_with_its_reason_and_the_next_goes_on(
    point: str, scene: Scene, tally: Callable[..., None]
) -> None:
    process = scene.start(fault=f"{point}:1:raise", what=END)
    assert process.wait() != 0
    assert f"injected at {point}" in process.err
    scene.crashed.add(process.pid)
    assert not (complaints := scene.end()), complaints
    tally(errors=1)


@pytest.mark.promise("A7", "A14", "B7", "E12")
def test_killed_again_and_again_beside_another_batch_both_come_to_their_end(
    scene: Scene, tally: Callable[..., None]
) -> None:
    for point in ENDING:
        scene.crash("commit.after:2:kill")
        scene.crash(f"{point}:1:kill", what=END)
    scene.finish()
    assert not (complaints := scene.end()), complaints
    scene.check()
    tally(kills=len(scene.crashed))


# -- the oracle can fail ------------------------------------------------------------------------------------------

CAUGHT_AT = {
    "events_in_a_second_write": "commit.after:1",
    "seal_in_a_second_write": "seal.after:1",
    "course_in_a_second_write": "steer.after:1",
    "acknowledged_before_it_is_heard": "delivered.after:3",
    "delivered_is_not_written": "steer.after:1",
}


@pytest.mark.parametrize("way", CAUGHT_AT)
def test_the_oracle_notices_a_version_with(way: str, scenes: Make) -> None:
    scene = scenes(sabotage=way)
    scene.crash(f"{CAUGHT_AT[way]}:kill", what=END)
    try:
        complaints = scene.end()
    except AssertionError:
        return  # it did not even come to a good end
    assert complaints


def test_every_broken_version_has_a_place_to_be_caught_at() -> None:
    assert set(CAUGHT_AT) == set(sabotage.ENDINGS)
