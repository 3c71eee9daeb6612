"""An error of the disk at every named point: the process says what happened and ends, and the next one goes on.

Inside a handler, too: a disk that fails is no fault of the item at hand.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from holdfast.core.model import State
from tests.faults.scene import ITEMS, Scene, few
from tests.faults.test_kill_points import HEARTBEAT, OPERATOR, PLAIN, SLOW_RUN

Make = Callable[..., Scene]

HANDLER = ("stage.before", "stage.after")
PUBLISHED = "sink.published"
"""The output is durable and has its name: an error after that is logged, and the run goes on."""
DISK = [point for point in PLAIN if point not in (*HANDLER, PUBLISHED)]


def fail_and_resume(make: Make, point: str, hit: int, *argv: str) -> bool:
    scene = make(items=ITEMS)
    process = scene.start(*argv, fault=f"{point}:{hit}:raise")
    status = process.wait()
    if status == 0:
        return False
    scene.crashed.add(process.pid)
    assert f"injected at {point}" in process.err, process.err
    scene.finish()
    scene.check(spared=1)
    return True


def fail_at_each(make: Make, point: str, hits: Iterable[int]) -> int:
    met = [fail_and_resume(make, point, hit) for hit in hits]
    assert met[0], f"{point} was not reached"
    return sum(met)


@pytest.mark.quick
@pytest.mark.parametrize("point", DISK)
def test_an_error_at_a_point_ends_the_run_with_its_reason_and_nothing_is_lost(
    point: str, scenes: Make, hits: Counter[str]
) -> None:
    assert fail_at_each(scenes, point, few(hits[point])[:2])


@pytest.mark.slow
@pytest.mark.promise("A7", "B7", "C9", "C11", "C12")
@pytest.mark.parametrize("point", DISK)
def test_an_error_at_every_hit_of_a_point_ends_the_run_and_nothing_is_lost(
    point: str, scenes: Make, hits: Counter[str], tally: Callable[..., None]
) -> None:
    tally(errors=fail_at_each(scenes, point, range(1, hits[point] + 1)))


@pytest.mark.promise("A7", "C6")
@pytest.mark.parametrize("point", HEARTBEAT)
def test_an_error_of_the_heartbeat_ends_the_run_with_its_reason(point: str, scenes: Make) -> None:
    assert fail_and_resume(scenes, point, 1, *SLOW_RUN)


@pytest.mark.promise("A7", "B7")
@pytest.mark.parametrize("point", OPERATOR)
def test_an_error_under_an_operator_is_told_and_can_be_tried_again(point: str, scenes: Make) -> None:
    scene = scenes(items=ITEMS)
    scene.finish()
    process = scene.start("--code", "busy", what="redrive", fault=f"{point}:1:raise")
    assert process.wait() != 0
    assert f"injected at {point}" in process.err
    scene.finish()
    scene.check()


@pytest.mark.promise("A7", "E2")
@pytest.mark.parametrize("point", HANDLER)
def test_a_disk_that_fails_inside_a_handler_ends_the_run_and_buries_nothing(point: str, scene: Scene) -> None:
    process = scene.start(fault=f"{point}:3:raise")
    assert process.wait() == 1
    met = re.search(r"item (\d+) met OSError: .*injected at", process.err)
    assert met is not None, process.err
    assert not [
        item for item in scene.ledger()[0] if item.place.state is State.DEAD and "injected" in item.place.reason
    ]
    scene.crashed.add(process.pid)
    scene.finish()
    scene.check(failed=[int(met[1])], spared=1)


@pytest.mark.promise("A7", "P6")
def test_an_error_after_an_output_was_published_does_no_harm(scene: Scene) -> None:
    process = scene.start(fault=f"{PUBLISHED}:2:raise")
    assert process.wait() == 0, process.err
    scene.last = process
    scene.check()


@pytest.mark.promise("C12", "P8", "E8")
@pytest.mark.parametrize("first", [1, 2, 3])
def test_a_commit_whose_reply_was_lost_is_looked_up_and_counts_once(first: int, scene: Scene) -> None:
    scene.finish("--lose-replies", str(first))
    scene.check()


@pytest.mark.promise("C9", "C11", "C12")
@pytest.mark.parametrize("first", [1, 2])
def test_a_commit_that_was_lost_with_its_reply_is_done_again(first: int, scene: Scene) -> None:
    process = scene.start("--lose-requests", str(first), "--lease", "0.3s")
    assert process.wait() == 0, process.err
    scene.last = process
    scene.check()
