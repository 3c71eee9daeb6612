"""Everybody else: who admits the items, and who acts on them while workers work."""

from holdfast.core import acts, course, ingest
from holdfast.core.acts import Strategy, change_of
from holdfast.core.model import Change, Course, Place, State, StoredItem
from holdfast.core.states import Transition, move
from holdfast.testing.replay import Violation
from holdfast.testing.simulator import ranges
from holdfast.testing.simulator.world import Actor, World

KINDS = {
    Transition.REDRIVE: "redriven",
    Transition.RESOLVE: "resolved",
    Transition.DISCARD: "discarded",
    Transition.CANCEL: "cancelled",
    Transition.RESET: "reset",
}


def ingester(world: World, name: str) -> Actor:
    """Reads the source group by group. After a crash it begins at the first row again: keys are known by then."""
    plan = world.plan
    while True:
        for group in plan.groups:
            yield world.chance() * 4
            if world.goes_wrong(plan.crash * 2):
                world.say(name, "crashes")
                yield 5 + world.chance() * 10
                break
            items = [ingest.admit(key, payload, world.new_id()) for key, payload in group]
            if not world.admit(name, items):
                world.ingesting -= 1
                return
        else:
            world.admit(name, [], ended=True)
            world.ingesting -= 1
            world.say(name, "came to the end of the source")
            return


def operator(world: World) -> Actor:
    """Looks at an item, thinks, and acts on what was seen: by then it may have moved on."""
    while world.plan.acts:
        yield world.plan.acts * (0.5 + world.chance())
        if not world.faulty:
            return
        rows = world.store.items(world.batch.id)
        picked = [row for row in rows if world.chance() < 0.3]
        changes = [change for row in picked if (change := _change(world, row)) is not None]
        yield world.chance() * 20
        if not changes or not world.faulty:
            continue
        kind = changes[0][0]
        chosen = tuple(change for other, change in changes if other == kind)
        world.act("operator", kind, chosen, seize=world.chance() < 0.5)


def caretaker(world: World) -> Actor:
    """Takes items for stuck and sends them on their way again, whoever has them; sometimes twice, unknowingly: the same
    act is sent again, or somebody else decided the same. Where the batch was cancelled, they are marked as failed."""
    while world.plan.stuck:
        yield world.plan.stuck * (0.5 + world.chance())
        if not world.faulty:
            return
        pending = world.store.items(world.batch.id, state=State.PENDING)
        for item in [item for item in pending if world.chance() < 0.4]:
            yield world.chance() * 3
            act_id, (strategy, after) = world.new_id(), _decide(world, item)
            for turn in range(1 + (world.chance() < 0.3)):
                if world.faulty:
                    sent = act_id if turn == 0 or item.n % 2 else world.new_id()
                    _resolve(world, item, strategy, after, sent, is_first=turn == 0)
                yield world.chance() * 5


def _decide(world: World, item: StoredItem) -> tuple[Strategy, Place]:
    for strategy in (Strategy.REQUEUE, Strategy.FAIL):
        after = acts.resolve_orphan(item.place, strategy, stages=world.stages, reason="stuck", course=world.course)
        if isinstance(after, str):
            continue
        if after.state is State.PENDING and world.course is Course.CANCELLED:
            raise Violation(f"item {item.n} of a cancelled batch is sent on its way: nothing will take it")
        return strategy, after
    raise Violation(f"item {item.n} is stuck, and nothing can be done about it")


def _resolve(
    world: World, item: StoredItem, strategy: Strategy, after: Place, act_id: bytes, *, is_first: bool
) -> None:
    """Whoever was at work on it cannot commit any more, however slow or alive."""
    told = course.orphan_resolved(item.n, item.key, after, strategy=strategy.value, actor="caretaker", reason="because")
    began, now, held = world.clock(), world.row_of(item.n), world.chunk_of(item.n)
    kind = "buried" if after.state is State.DEAD else "requeued"
    buried = (course.item_dead(item.n, item.key, after),) if after.state is State.DEAD else ()
    changed = world.act("caretaker", kind, [change_of(item.n, item.place, after)], seize=True, act_id=act_id,
                        events=(*buried, told))  # fmt: skip
    later = world.row_of(item.n)
    if is_first and now.place == item.place == later.place and not changed and world.sealed is None:
        raise Violation(f"item {item.n} was to be {kind} and stands where it stood")
    is_slow = world.clock() > began  # on a bucket an act takes its time: others may have moved the item, and back
    if changed and not is_slow and _at(now.place) != _at(item.place):
        raise Violation(f"item {item.n} was {kind} by somebody who saw it before it moved on")
    (free,) = [chunk for chunk in world.store.chunks(world.batch.id) if chunk.id == held.id]
    # While an act is on its way, the owner may give the chunk back, or claim it again after it was fenced out.
    fenced = free.fence > held.fence and (is_slow or free.owner != held.owner)
    if changed and held.owner is not None and not fenced and not (is_slow and free.owner is None):
        raise Violation(f"item {item.n} was {kind}, and its owner was not fenced out")
    world.counts["requeues"] += len(changed)


def _at(place: Place) -> tuple[int, int, int, int]:
    return place.epoch, place.stage, place.attempt, place.requeues


def _change(world: World, row: StoredItem) -> tuple[str, Change] | None:
    luck, place, stages = world.chance(), row.place, world.stages
    after: Place | None = None
    if luck < 0.4 and world.plan.every:
        return KINDS[Transition.RESET], ranges.reset(world, row)
    if luck < 0.4:
        kind = Transition.RESET
        target = min(place.stage, stages - 1, int(world.chance() * stages))
        after = move(place, kind, stage=target, stages=stages, reason="because")
    elif place.state is State.DEAD and luck < 0.7:
        kind = Transition.REDRIVE
        after = move(place, kind, stages=stages)
    elif place.state is State.DEAD:
        kind = Transition.DISCARD if luck < 0.9 else Transition.RESOLVE
        after = move(place, kind, to=State.CANCELLED if luck < 0.9 else State.SKIPPED, stages=stages)
    elif place.state is State.PENDING and luck < 0.7:
        kind = Transition.CANCEL
        after = move(place, kind, stages=stages)
    if after is None:
        return None
    return KINDS[kind], change_of(row.n, row.place, after)
