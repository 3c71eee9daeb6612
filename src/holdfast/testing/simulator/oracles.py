"""What must be true when a world has come to its end."""

from collections import Counter

from holdfast.core import canonical, course
from holdfast.core.model import Course, State
from holdfast.testing.replay import EVERYTHING, Story, Violation, compare, replay
from holdfast.testing.simulator.world import World


def check(world: World) -> Story:
    """Everything at once; the journal first, because the rest rests on it."""
    story = replay(world.store, world.batch.id, world.plan.policies)
    compare(world.store, world.batch.id, story)
    check_admitted(world, story)
    check_effects(world, story)
    check_adopted(world, story)
    check_money(story)
    if world.store.capabilities.events:
        check_events(world, story)
    check_requeues(story)
    check_ended(world, story)
    if world.plan.every:
        world.ranges.check(story)
    world.heads = [chunk.head for chunk in world.store.chunks(world.batch.id)]
    world.counts["items"] += len(story.items)
    world.counts["runs"] += world.runs.total()
    world.counts["condemned"] += world.condemned.total()
    return story


def check_admitted(world: World, story: Story) -> None:
    """Every key of the source is there, once, with the payload it first came with."""
    rows = [row for group in world.plan.groups for row in group]
    wanted = {key if key is not None else payload for key, payload in rows}
    held = [row.key for row in world.store.items(world.batch.id)]
    keys = {canonical.key_text(key) for key in held}
    if world.course is Course.CANCELLED and len(keys) == len(held) <= len(wanted):
        return  # it takes no more from then on
    if len(held) != len(wanted) or len(keys) != len(held) or len(story.items) != len(held):
        raise Violation(f"the source has {len(wanted)} different keys, {len(held)} items were admitted: {held}")
    missing = {key for key in wanted if isinstance(key, str)} - keys
    if missing:
        raise Violation(f"keys of the source were not admitted: {sorted(missing)}")


def check_effects(world: World, story: Story) -> None:
    """At least one run for each attempt that is told, at most one more for each that was interrupted."""
    for effect, told in story.attempts.items():
        ran = world.runs[effect] + world.condemned[effect]
        if told > ran:
            raise Violation(f"{told} attempts at (item, stage, epoch) {effect} are told, {ran} were made")
    for effect, ran in world.runs.items():
        told = story.attempts.get(effect, 0)
        cut_off = world.excused[effect]
        if ran - told > cut_off:
            raise Violation(f"(item, stage, epoch) {effect} ran {ran} times, {told} are told, {cut_off} were cut off")


def check_adopted(world: World, story: Story) -> None:
    """What was adopted was made, in the same epoch, and what it cost is told."""
    paid = {spend.metrics["run"] for spend in story.spends}
    for effect in story.adopted:
        if not world.runs[effect]:
            raise Violation(f"(item, stage, epoch) {effect} was adopted, and nobody made it")
        spend = world.outside.made[effect]
        if spend is not None and spend.metrics["run"] not in paid:
            raise Violation(f"(item, stage, epoch) {effect} was adopted, and what it cost is not told")


def check_events(world: World, story: Story) -> None:
    """Events are those of what is in the journal, and no others; the receiver heard them all, in their order."""
    stored = world.store.events(limit=EVERYTHING)
    resolved = [n for kind, _, n in story.acted if kind in ("requeued", "buried")]
    wanted: Counter[tuple[str, int | None]] = Counter((course.ITEM_DEAD, n) for n in story.buried)
    wanted.update((course.ORPHAN_RESOLVED, n) for n in resolved)
    wanted[course.BATCH_OPENED, None] = 1
    wanted[course.BATCH_FINISHED, None] = story.seals
    told: Counter[tuple[str, int | None]] = Counter((event.kind, event.n) for event in stored)
    if +wanted != told:
        raise Violation(f"events without a fact: {+(told - wanted)}; facts without an event: {+(wanted - told)}")
    if list(dict.fromkeys(world.heard)) != [event.id for event in stored]:
        raise Violation(f"events {[event.id for event in stored]} were to be heard, in this order: {world.heard}")
    if len(world.heard) > len(stored) and not world.plan.deaf:
        raise Violation(f"events were heard more than once, though nothing was lost: {world.heard}")


def check_requeues(story: Story) -> None:
    """Whoever asks twice for the same thing gets it once."""
    twice = [each for each, times in Counter(story.acted).items() if times > 1]
    if twice:
        raise Violation(f"acts that were sent twice have changed an item twice: {twice}")


def check_money(story: Story) -> None:
    """No run is paid for twice."""
    seen: set[bytes] = set()
    for spend in story.spends:
        run = spend.metrics["run"]
        if run in seen:
            raise Violation(f"an attempt at item {spend.n} is counted twice among what was spent")
        seen.add(run)


def check_ended(world: World, story: Story) -> None:
    """When nothing goes wrong any more, everything comes to its end; a killer is buried, not run for ever."""
    waiting = [n for n, told in story.items.items() if told.state is State.PENDING]
    broken = [output for output in world.store.outputs(world.batch.id) if world.outside.is_broken(output)]
    resting = [o.n for o in broken if story.items[o.n].state is State.DONE and world.course is not Course.CANCELLED]
    if resting:
        raise Violation(f"items {resting} are done, and rest on outputs that do not hold")
    if waiting:
        raise Violation(f"items {waiting} never came to an end")
    held = [chunk.id for chunk in world.store.chunks(world.batch.id) if chunk.owner is not None]
    excuses = ("crashes", "leases lost", "commits late or lost", "seals")
    if held and not any(world.counts[excuse] for excuse in excuses):
        raise Violation(f"chunks {held} were never released")
