"""How the batch of a world is steered and comes to its end: paused and resumed, cancelled, sealed, reopened."""

from holdfast.core import ingest
from holdfast.core.acts import change_of
from holdfast.core.course import batch_finished, to_steer
from holdfast.core.errors import Refused, UsageError
from holdfast.core.model import Course, State
from holdfast.core.states import Transition, move
from holdfast.testing.replay import Violation
from holdfast.testing.simulator.world import Actor, World

TIRELESS = 200
"""More rounds than any cancelling needs."""


def pauser(world: World) -> Actor:
    """Pauses the batch now and then, and always lets it go on."""
    while world.plan.halts and world.faulty:
        yield world.plan.halts * (0.5 + world.chance())
        if not world.faulty or not world.steer(Course.PAUSED):
            continue
        yield world.chance() * 40
        yield from resume(world)


def resume(world: World) -> Actor:
    """Lets the batch go on; nobody can while it is sealed."""
    while world.course is Course.PAUSED and not world.steer(Course.OPEN) and world.faulty:
        yield 10.0


def canceller(world: World) -> Actor:
    """Cancels the batch, then what is pending and in nobody's hands, until nothing is left."""
    if not world.plan.cancel:
        return
    yield world.plan.cancel
    if not world.steer(Course.CANCELLED):
        return
    for _ in range(TIRELESS):
        pending = world.store.items(world.batch.id, state=State.PENDING)
        if not pending and not world.faulty and not world.underway:
            return
        now, chunks = world.clock.now, world.store.chunks(world.batch.id)
        left = [chunk for chunk in chunks if chunk.owner is not None and not world.is_live(chunk, now)]
        for seize in (False, True) if left else (False,):
            chosen = [
                change_of(item.n, item.place, move(item.place, Transition.CANCEL, stages=world.stages))
                for item in pending
                if not seize or any(chunk.lo <= item.n < chunk.hi for chunk in left)
            ]
            if chosen:
                world.act("canceller", "cancelled", chosen, seize=seize)
        yield 10.0
    raise Violation("a cancelled batch does not come to its end")


def sealer(world: World) -> Actor:
    """Tries to seal the batch, again and again; sometimes lifts the seal. At the end it is sealed."""
    plan = world.plan
    while plan.seals and world.faulty:
        yield plan.seals * (0.5 + world.chance())
        if world.sealed is None:
            try_to_seal(world)
        elif world.chance() < 0.5 and world.faulty:
            world.unseal()


def try_to_seal(world: World) -> None:
    """Not while anybody rests on what does not hold: that is seen before a batch is finished."""
    if world.outside.all_that_do_not_hold():
        return
    pending = len(world.store.items(world.batch.id, state=State.PENDING))
    fresh = world.store.batch(world.batch.name)
    is_read = world.ended or (world.ending and fresh is not None and fresh.ingested_at is not None)
    takes_no_more = is_read or (fresh is not None and fresh.course is Course.CANCELLED)
    obstacle = bool(pending or not takes_no_more)
    try:
        world.store.seal(world.batch.id, actor="sealer", reconciliation=b"{}", events=[batch_finished("complete", {})])
    except Refused:
        if not obstacle:
            raise Violation("a batch of which nothing is open cannot be sealed") from None
        return
    if obstacle:
        raise Violation(f"a batch is sealed, {pending} of its items are pending, it takes no more: {takes_no_more}")
    world.seal()


def last_words(world: World) -> None:
    """When everybody is gone: the batch is sealed, and whoever comes too late is refused."""
    if world.plan.seals and world.sealed is None:
        try_to_seal(world)
    if world.sealed is None:
        return
    rows = world.store.items(world.batch.id)
    if rows:
        after = move(rows[0].place, Transition.RESET, stage=0, stages=world.stages)
        world.act("late", "reset", [change_of(rows[0].n, rows[0].place, after)], seize=True)
    world.admit("late", [ingest.admit("late", b"late", world.new_id())])
    for course in (Course.PAUSED, Course.CANCELLED):
        try:
            world.store.amend(world.batch.id, to_steer(course, reason="because"), actor="late")
        except (Refused, UsageError):
            continue
        raise Violation(f"a sealed batch was {course}")
    world.check_seal()
