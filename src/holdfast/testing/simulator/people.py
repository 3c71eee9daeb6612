"""Everybody else: who admits the items, and who acts on them while workers work."""

from holdfast.core import events, ingest
from holdfast.core.model import Change, Place, State, StoredItem
from holdfast.core.states import Transition, go_back, move
from holdfast.testing.replay import Violation
from holdfast.testing.simulator import decisions, ranges
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
    """Takes items for stuck and sends them on their way again, whoever has them; sometimes twice, unknowingly."""
    while world.plan.stuck:
        yield world.plan.stuck * (0.5 + world.chance())
        if not world.faulty:
            return
        pending = world.store.items(world.batch.id, state=State.PENDING)
        for item in [item for item in pending if world.chance() < 0.4]:
            yield world.chance() * 3
            act_id, after = world.new_id(), decisions.requeued(item.place, world.stages)
            for _ in range(1 + (world.chance() < 0.3)):
                if world.faulty:
                    _requeue(world, item, after, act_id)
                yield world.chance() * 5


def _requeue(world: World, item: StoredItem, after: Place, act_id: bytes) -> None:
    """Whoever was at work on it cannot commit any more, however slow or alive."""
    told = events.orphan_resolved(item.n, item.key, after, strategy="requeue", actor="caretaker", reason="because")
    now = world.row_of(item.n)
    held = world.chunk_of(item.n)
    kind = "buried" if after.state is State.DEAD else "requeued"
    changed = world.act("caretaker", kind, [decisions.change_of(item, after)], seize=True, act_id=act_id,
                        events=(*decisions.burial(item, after), told))  # fmt: skip
    later = world.row_of(item.n)
    if now.place == item.place == later.place and not changed and world.sealed is None:
        raise Violation(f"item {item.n} was to be {kind} and stands where it stood")
    (free,) = [chunk for chunk in world.store.chunks(world.batch.id) if chunk.id == held.id]
    if changed and held.owner is not None and (free.owner == held.owner or free.fence <= held.fence):
        raise Violation(f"item {item.n} was {kind}, and its owner was not fenced out")
    world.counts["requeues"] += len(changed)


def _change(world: World, row: StoredItem) -> tuple[str, Change] | None:
    luck, place, stages = world.chance(), row.place, world.stages
    after: Place | None = None
    if luck < 0.4 and world.plan.every:
        return KINDS[Transition.RESET], ranges.reset(world, row)
    if luck < 0.4:
        kind = Transition.RESET
        after = go_back(
            place, kind, min(place.stage, stages - 1, int(world.chance() * stages)), stages, reason="because"
        )
    elif place.state is State.DEAD and luck < 0.7:
        kind = Transition.REDRIVE
        after = move(place, kind, stages=stages, attempt=0, due=0.0, since=0.0, spent=0, requeues=0, code="", reason="")
    elif place.state is State.DEAD:
        kind = Transition.DISCARD if luck < 0.9 else Transition.RESOLVE
        after = move(place, kind, to=State.CANCELLED if luck < 0.9 else State.SKIPPED, stages=stages)
    elif place.state is State.PENDING and luck < 0.7:
        kind = Transition.CANCEL
        after = move(place, kind, stages=stages)
    if after is None:
        return None
    return KINDS[kind], decisions.change_of(row, after)
