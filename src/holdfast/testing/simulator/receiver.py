"""Somebody who hears of events: at least once, in order, without a gap, though replies get lost."""

from holdfast.testing.replay import Violation
from holdfast.testing.simulator.world import Actor, World

NAME = "receiver"


def receiver(world: World) -> Actor:
    """Reads on from where the store says it is, hears, and then says so. A crash between loses that it heard."""
    while world.faulty:
        yield world.plan.hears * (0.5 + world.chance())
        hear(world, 1 + int(world.chance() * 3))
        if world.chance() < 0.1:
            world.store.delivered(NAME, world.store.delivered(NAME) - 1)  # what it said long ago comes late


def hear(world: World, limit: int) -> bool:
    """One page of what it has not heard yet; says whether there was anything."""
    at = world.store.delivered(NAME)
    if at < world.acknowledged:
        raise Violation(f"a receiver that had all events up to {world.acknowledged} is back at {at}")
    page = world.store.events(at, limit=limit)
    world.heard += [event.id for event in page]
    if page and not world.goes_wrong(world.plan.deaf):
        world.acknowledged = page[-1].id
        at = world.store.delivered(NAME, world.acknowledged)
        if at < world.acknowledged:
            raise Violation(f"a receiver has every event up to {world.acknowledged}, the store says {at}")
    return bool(page)


def hear_the_rest(world: World) -> None:
    """When everybody is gone: whatever is left."""
    while hear(world, 10):
        pass
