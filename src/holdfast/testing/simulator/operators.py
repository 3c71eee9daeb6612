"""All actors except workers: they admit items, act on them, steer the batch, check its outputs, receive events."""

from holdfast.core import acts, course, ingest, verify
from holdfast.core.acts import Strategy, change_of
from holdfast.core.course import batch_finished, to_steer
from holdfast.core.errors import Refused, UsageError
from holdfast.core.model import BatchMode, Change, ItemState, State, StoredItem
from holdfast.core.states import Transition, move
from holdfast.stores.base import find_batch, outbox_of
from holdfast.testing.replay import Violation
from holdfast.testing.simulator.handlers import checkpoint_at, length_of
from holdfast.testing.simulator.world import Behavior, World

KINDS = {
    Transition.REDRIVE: "redriven",
    Transition.RESOLVE: "resolved",
    Transition.DISCARD: "discarded",
    Transition.CANCEL: "cancelled",
    Transition.RESET: "reset",
}


def ingester(world: World, name: str) -> Behavior:
    """Read the source group by group. After a crash, begin at the first row again: its keys are known by then."""
    plan = world.plan
    while True:
        for group in plan.groups:
            yield world.chance() * 4
            if world.goes_wrong(plan.crash * 2):
                world.say(name, "crashes")
                yield 5 + world.chance() * 10
                break
            items = [ingest.admit(key, payload) for key, payload in group]
            if not world.admit(name, items):
                world.ingesting -= 1
                return
        else:
            world.admit(name, [], ended=True)
            world.ingesting -= 1
            world.say(name, "came to the end of the source")
            return


def operator(world: World) -> Behavior:
    """Look at an item, wait, and act on what was seen: by then it may have moved."""
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


def caretaker(world: World) -> Behavior:
    """Take items for stuck and requeue them, even from an owner; sometimes twice: the same act is sent again, or
    another operator decides the same. In a cancelled batch, mark them as failed."""
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


def _decide(world: World, item: StoredItem) -> tuple[Strategy, ItemState]:
    for strategy in (Strategy.REQUEUE, Strategy.FAIL):
        after = acts.resolve_orphan(item.place, strategy, stages=world.stages, reason="stuck", course=world.course)
        if isinstance(after, str):
            continue
        if after.state is State.PENDING and world.course is BatchMode.CANCELLED:
            raise Violation(f"item {item.n} of a cancelled batch is requeued: no worker will claim it")
        return strategy, after
    raise Violation(f"item {item.n} is stuck, but no strategy applies")


def _resolve(
    world: World, item: StoredItem, strategy: Strategy, after: ItemState, act_id: bytes, *, is_first: bool
) -> None:
    """Resolve an orphan: its owner, if any, cannot commit any more, however slow or alive."""
    told = course.orphan_resolved(item.n, item.key, after, strategy=strategy.value, actor="caretaker", reason="because")
    began, now, held = world.clock(), world.row_of(item.n), world.chunk_of(item.n)
    kind = "buried" if after.state is State.DEAD else "requeued"
    buried = (course.item_dead(item.n, item.key, after),) if after.state is State.DEAD else ()
    changed = world.act("caretaker", kind, [change_of(item.n, item.place, after)], seize=True, act_id=act_id,
                        events=(*buried, told))  # fmt: skip
    later = world.row_of(item.n)
    if is_first and now.place == item.place == later.place and not changed and world.sealed is None:
        raise Violation(f"item {item.n} should have been {kind}, but has not moved")
    is_slow = world.clock() > began  # on a bucket an act takes time: the item may have moved and come back
    if changed and not is_slow and _at(now.place) != _at(item.place):
        raise Violation(f"item {item.n} was {kind} by an operator who saw it before it moved")
    (free,) = [chunk for chunk in world.store.chunks(world.batch.id) if chunk.id == held.id]
    # While an act is in transit, the owner may release the chunk, or claim it again after it was fenced out.
    fenced = free.fence > held.fence and (is_slow or free.owner != held.owner)
    if changed and held.owner is not None and not fenced and not (is_slow and free.owner is None):
        raise Violation(f"item {item.n} was {kind}, but its owner was not fenced out")
    world.counts["requeues"] += len(changed)


def _at(place: ItemState) -> tuple[int, int, int, int]:
    return place.epoch, place.stage, place.attempt, place.requeues


def _change(world: World, row: StoredItem) -> tuple[str, Change] | None:
    luck, place, stages = world.chance(), row.place, world.stages
    after: ItemState | None = None
    if luck < 0.4 and world.plan.every:
        return KINDS[Transition.RESET], _reset_range(world, row)
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


TIRELESS = 200
"""More rounds than any cancellation needs."""


def pauser(world: World) -> Behavior:
    """Pause the batch now and then, and always let it continue."""
    while world.plan.halts and world.faulty:
        yield world.plan.halts * (0.5 + world.chance())
        if not world.faulty or not world.steer(BatchMode.PAUSED):
            continue
        yield world.chance() * 40
        yield from resume(world)


def resume(world: World) -> Behavior:
    """Let the batch continue; that is impossible while it is sealed."""
    while world.course is BatchMode.PAUSED and not world.steer(BatchMode.OPEN) and world.faulty:
        yield 10.0


def canceller(world: World) -> Behavior:
    """Cancel the batch, then its pending items that have no owner, until none are left."""
    if not world.plan.cancel:
        return
    yield world.plan.cancel
    if not world.steer(BatchMode.CANCELLED):
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
    raise Violation("a cancelled batch does not end")


def sealer(world: World) -> Behavior:
    """Try to seal the batch again and again; sometimes lift the seal. At the end it is sealed."""
    plan = world.plan
    while plan.seals and world.faulty:
        yield plan.seals * (0.5 + world.chance())
        if world.sealed is None:
            try_to_seal(world)
        elif world.chance() < 0.5 and world.faulty:
            world.unseal()


def try_to_seal(world: World) -> None:
    """Seal the batch, but not while an item depends on an output that does not hold: that is checked first."""
    if world.outputs.all_that_do_not_hold():
        return
    pending = len(world.store.items(world.batch.id, state=State.PENDING))
    fresh = find_batch(world.store, world.batch.name)
    is_read = world.ended or (world.ending and fresh is not None and fresh.ingested_at is not None)
    takes_no_more = is_read or (fresh is not None and fresh.course is BatchMode.CANCELLED)
    obstacle = bool(pending or not takes_no_more)
    try:
        world.store.seal(world.batch.id, actor="sealer", reconciliation=b"{}", events=[batch_finished("complete", {})])
    except Refused:
        if not obstacle:
            raise Violation("a finished batch cannot be sealed") from None
        return
    if obstacle:
        raise Violation(f"a batch is sealed, but {pending} of its items are pending; it takes no more: {takes_no_more}")
    world.seal()


def last_words(world: World) -> None:
    """Check, when all actors are gone, that the batch is sealed and refuses late work."""
    if world.plan.seals and world.sealed is None:
        try_to_seal(world)
    if world.sealed is None:
        return
    rows = world.store.items(world.batch.id)
    if rows:
        after = move(rows[0].place, Transition.RESET, stage=0, stages=world.stages)
        world.act("late", "reset", [change_of(rows[0].n, rows[0].place, after)], seize=True)
    world.admit("late", [ingest.admit("late", b"late")])
    for ordered in (BatchMode.PAUSED, BatchMode.CANCELLED):
        try:
            world.store.amend(world.batch.id, to_steer(ordered, reason="because"), actor="late")
        except (Refused, UsageError):
            continue
        raise Violation(f"a sealed batch was {ordered}")
    world.check_seal()


LOOKS = 400
"""More rounds than any check needs."""


def checker(world: World) -> Behavior:
    """Break outputs; check all of them, wait, and act on what was seen."""
    if not world.plan.checks:
        return
    for _ in range(LOOKS):
        yield world.plan.checks * (0.5 + world.chance())
        if world.sealed is not None:
            if not world.faulty:
                return
            continue
        if world.faulty:
            break_something(world)
        found = world.outputs.all_that_do_not_hold()
        if not (found or world.faulty or world.ingesting or world.is_pending()):
            return
        yield world.chance() * 5
        if world.course is BatchMode.CANCELLED:
            return
        for item, stage in found:
            rewind(world, item, stage)


def break_something(world: World) -> None:
    for output in world.store.outputs(world.batch.id):
        if world.chance() < 0.35:
            world.outputs.broken.add((int(output.n), output.stage, output.epoch))
            world.counts["outputs broken"] += 1
            world.say("world", f"output of item {output.n} at stage {output.stage}, epoch {output.epoch}, is gone")


def rewind(world: World, item: StoredItem, stage: int) -> None:
    """Rewind an item without seizing it: an owner checks before it runs."""
    after = verify.rewound(item.place, stage, world.stages, reason="gone")
    told = (course.item_dead(item.n, item.key, after),) if after.state is State.DEAD else ()
    changed = world.act("checker", "rewound", [change_of(item.n, item.place, after)], events=told)
    world.counts["rewinds"] += len(changed)


NAME = "receiver"


def receiver(world: World) -> Behavior:
    """Read from the position in the store, receive, and then acknowledge. A crash in between loses the
    acknowledgement."""
    outbox = outbox_of(world.store)
    while world.faulty:
        yield world.plan.hears * (0.5 + world.chance())
        hear(world, 1 + int(world.chance() * 3))
        if world.chance() < 0.1:
            outbox.delivered(NAME, outbox.delivered(NAME) - 1)  # an old acknowledgement comes late


def hear(world: World, limit: int) -> bool:
    """Receive one page of new events; return whether there were any."""
    outbox = outbox_of(world.store)
    at = outbox.delivered(NAME)
    if at < world.acknowledged:
        raise Violation(f"a receiver that had all events up to {world.acknowledged} went back to {at}")
    page = outbox.events(at, limit=limit)
    world.heard += [event.id for event in page]
    if page and not world.goes_wrong(world.plan.deaf):
        world.acknowledged = page[-1].id
        at = outbox.delivered(NAME, world.acknowledged)
        if at < world.acknowledged:
            raise Violation(f"a receiver has every event up to {world.acknowledged}, but the store says {at}")
    return bool(page)


def hear_the_rest(world: World) -> None:
    """Receive the remaining events when all actors are gone."""
    while hear(world, 10):
        pass


def _reset_range(world: World, row: StoredItem) -> Change:
    """Reset a partition as an operator does: to its checkpoint, to its start, or to another cursor."""
    after = move(row.place, Transition.RESET, stage=0, stages=world.stages, reason="because")
    change = Change(n=row.n, state=row.place.state, epoch=row.place.epoch, place=after)
    luck = world.chance()
    if luck < 0.4:
        return change
    at = checkpoint_at(row.n, int(world.chance() * (length_of(world, row.n) + 1)) if luck < 0.7 else 0)
    return Change(n=row.n, state=row.place.state, epoch=row.place.epoch, place=after, checkpoint=at)
