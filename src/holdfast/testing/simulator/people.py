"""Everybody else: who admits the items, and operators who act while workers work."""

from holdfast.core import ingest
from holdfast.core.model import Act, Change, Place, State, StoredItem
from holdfast.core.states import Transition, go_back, move
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
            answer = world.store.add_items(world.batch.id, items, actor=name)
            world.say(name, f"admits {answer.added} items, {answer.known} were known")
        else:
            world.store.add_items(world.batch.id, [], ended=True, actor=name)
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
        seize = world.chance() < 0.5
        if seize:
            world.seized.update(
                chunk.id
                for chunk in world.store.chunks(world.batch.id)
                if any(chunk.lo <= c.n < chunk.hi for c in chosen)
            )
        act = Act(
            id=world.new_id(),
            batch=world.batch.id,
            kind=kind,
            actor="operator",
            reason="because",
            at_items=chosen,
            seize=seize,
        )
        changed = world.store.act(act)
        world.counts["acts"] += bool(changed)
        world.say("operator", kind, "items", [c.n for c in chosen], "seizing" if seize else "", "→", changed)


def _change(world: World, row: StoredItem) -> tuple[str, Change] | None:
    luck, place, stages = world.chance(), row.place, world.stages
    after: Place | None = None
    if luck < 0.4:
        kind = Transition.RESET
        after = go_back(
            place, kind, min(place.stage, stages - 1, int(world.chance() * stages)), stages, reason="because"
        )
    elif place.state is State.DEAD and luck < 0.7:
        kind = Transition.REDRIVE
        after = move(place, kind, stages=stages, attempt=0, due=0.0, since=0.0, spent=0, code="", reason="")
    elif place.state is State.DEAD:
        kind = Transition.DISCARD if luck < 0.9 else Transition.RESOLVE
        after = move(place, kind, to=State.CANCELLED if luck < 0.9 else State.SKIPPED, stages=stages)
    elif place.state is State.PENDING and luck < 0.7:
        kind = Transition.CANCEL
        after = move(place, kind, stages=stages)
    if after is None:
        return None
    return KINDS[kind], Change(n=row.n, state=place.state, epoch=place.epoch, place=after)
