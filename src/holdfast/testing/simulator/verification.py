"""Looks at what was recorded, and sends back what does not hold: the first stage that is broken, in a new epoch."""

from holdfast.core import course, verify
from holdfast.core.acts import change_of
from holdfast.core.model import Course, State, StoredItem
from holdfast.testing.simulator.world import Actor, World

TIRELESS = 400


def checker(world: World) -> Actor:
    """Things break; the checker looks at all of it, thinks, and acts on what it saw."""
    if not world.plan.checks:
        return
    for _ in range(TIRELESS):
        yield world.plan.checks * (0.5 + world.chance())
        if world.sealed is not None:
            if not world.faulty:
                return
            continue
        if world.faulty:
            break_something(world)
        found = world.outside.all_that_do_not_hold()
        if not (found or world.faulty or world.ingesting or world.is_pending()):
            return
        yield world.chance() * 5
        if world.course is Course.CANCELLED:
            return
        for item, stage in found:
            rewind(world, item, stage)


def break_something(world: World) -> None:
    for output in world.store.outputs(world.batch.id):
        if world.chance() < 0.35:
            world.outside.broken.add((int(output.n), output.stage, output.epoch))
            world.counts["outputs broken"] += 1
            world.say("world", f"output of item {output.n} at stage {output.stage}, epoch {output.epoch}, is gone")


def rewind(world: World, item: StoredItem, stage: int) -> None:
    """Without taking it from anybody: an owner looks before it runs."""
    after = verify.rewound(item.place, stage, world.stages, reason="gone")
    told = (course.item_dead(item.n, item.key, after),) if after.state is State.DEAD else ()
    changed = world.act("checker", "rewound", [change_of(item.n, item.place, after)], events=told)
    world.counts["rewinds"] += len(changed)
