"""`holdfast reset --blame`: shown first, then lifted with a reason, and told by `status` and `why`."""

import pytest

from holdfast.core.journal import LIFTED
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate import resolution
from holdfast.runtime.report.why import tell
from tests.cli.conftest import Command
from tests.operations.world import World

LIFT = ("reset", "moby-dick", "--blame")
AGREED = ("--yes", "--reason", "spot instances", "--actor", "ada")


@pytest.fixture
def blamed(world: World) -> World:
    """Three owners died over `rest`."""
    for turn in range(3):
        world.claim(owner=f"gone/{turn}", seconds=-1.0)
    return world


def test_nothing_is_lifted_where_nobody_died(world: World, holdfast: Command) -> None:
    answer = holdfast(*LIFT, "--dry-run")
    assert (answer.code, "carries blame" in answer.out) == (0, True)


def test_status_tells_and_a_person_lifts_it(blamed: World, holdfast: Command) -> None:
    said = " ".join(holdfast("status", "moby-dick", "--no-statistics").out.split())
    assert "careful 1 item in 1 chunk: the last 3 owners of a chunk died before a commit" in said
    shown = holdfast(*LIFT, "--dry-run")
    assert "1 item of moby-dick in 1 chunk would be claimed as if the last 3 owners had not died" in " ".join(
        shown.out.split()
    )
    assert holdfast(*LIFT, "--dry-run", "--json").document["items"] == 1
    answer = holdfast(*LIFT, *AGREED)
    assert (answer.code, answer.out.rstrip().split("\n")[-1]) == (0, "blame lifted: 1 chunk of moby-dick")
    assert "careful" not in holdfast("status", "moby-dick", "--no-statistics").out
    why = " ".join(holdfast("why", "moby-dick", "rest").out.split())
    assert "the blame of its chunk was lifted by ada: spot instances" in why
    assert holdfast("audit", "verify", "moby-dick").code == 0


def test_only_the_part_that_holds_an_item_is_in_its_story(world: World) -> None:
    world.add(*(f"more {n}" for n in range(12)))
    for _ in range(2):
        for owner in "abcde":
            world.claim(3, owner=owner)
        world.clock.advance(31.0)
    chunks = world.store.chunks(world.id)
    assert sum(chunk.parent is not None for chunk in chunks) == 3, "each cut off the one before"
    resolution.lift_blame(world.store, world.batch, Actor(name="ada", reason="spot instances"))
    for n in range(12):
        told = tell(world.store, world.batch, f"more {n}")
        (held,) = [chunk.id for chunk in chunks if chunk.lo <= told.number < chunk.hi]
        (lifted,) = [event for event in told.events if event.what == LIFTED]
        assert lifted.entry.endswith(f"of chunk {held}")


def test_it_begins_no_item_again(blamed: World, holdfast: Command) -> None:
    answer = holdfast("reset", "moby-dick", "rest", "--blame", *AGREED)
    assert (answer.code, "pass it alone" in answer.err) == (2, True)
