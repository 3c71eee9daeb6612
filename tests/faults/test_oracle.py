"""The oracle fails on every broken version, and passes the real one under the same faults."""

import signal
from collections.abc import Callable

import pytest

from tests.faults import sabotage
from tests.faults.scene import Scene


def crash_between_commits(scene: Scene) -> None:
    scene.crash("commit.after:4:kill")
    scene.finish()


def crash_in_the_last_stage(scene: Scene) -> None:
    for _ in range(3):
        scene.crash("sink.temp:3:kill")
    scene.finish()


def crash_again_and_again(scene: Scene) -> None:
    for _ in range(25):
        if not scene.crash("commit.after:2:kill"):
            break
    scene.finish()


def lose_replies(scene: Scene) -> None:
    scene.finish("--lose-replies", "2", "--lease", "0.3s")


def wake_a_zombie(scene: Scene) -> None:
    zombie = scene.stop("commit.before:3", "--lease", "0.3s")
    assert zombie is not None
    scene.finish("--lease", "0.3s")
    zombie.signal(signal.SIGCONT)
    assert zombie.wait() == 0, zombie.err


def two_at_once(scene: Scene) -> None:
    both = [scene.start("--pace", "0.02", sabotage=""), scene.start("--pace", "0.02")]
    assert [process.wait() for process in both] == [0, 0], both[0].err + both[1].err
    scene.finish()


def nothing_happens(scene: Scene) -> None:
    scene.finish()


SCENES: dict[str, Callable[[Scene], None]] = {
    "unfenced_commit": wake_a_zombie,
    "acknowledge_before_commit": crash_in_the_last_stage,
    "fence_not_raised": crash_between_commits,
    "no_read_back": lose_replies,
    "commit_not_idempotent": lose_replies,
    "totals_in_a_second_write": crash_again_and_again,
    "steal_from_the_living": two_at_once,
    "items_by_position": crash_between_commits,
    "attempts_forgotten": crash_again_and_again,
    "journal_falls_behind": nothing_happens,
}


@pytest.mark.parametrize("way", SCENES)
def test_the_oracle_notices_a_version_with(way: str, scenes: Callable[..., Scene]) -> None:
    scene = scenes(sabotage=way)
    try:
        SCENES[way](scene)
    except AssertionError:
        return  # it did not even come to a good end
    assert scene.complaints()


@pytest.mark.parametrize(
    "play", sorted(set(SCENES.values()), key=lambda play: play.__name__), ids=lambda play: play.__name__
)
def test_the_oracle_is_content_when_nothing_is_broken_and(play: Callable[[Scene], None], scene: Scene) -> None:
    play(scene)
    scene.check()


def test_every_broken_version_has_a_scene() -> None:
    assert set(SCENES) == set(sabotage.WAYS)
