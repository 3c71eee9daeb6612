"""What must be true when a world has come to its end."""

from holdfast.core import canonical
from holdfast.core.model import State
from holdfast.testing.replay import Story, Violation, compare, replay
from holdfast.testing.simulator.world import World


def check(world: World) -> Story:
    """Everything at once; the journal first, because the rest rests on it."""
    story = replay(world.store, world.batch.id, world.plan.policies)
    compare(world.store, world.batch.id, story)
    check_admitted(world, story)
    check_effects(world, story)
    check_money(story)
    check_ended(world, story)
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
    if waiting:
        raise Violation(f"items {waiting} never came to an end")
    held = [chunk.id for chunk in world.store.chunks(world.batch.id) if chunk.owner is not None]
    if held and not (world.counts["crashes"] or world.counts["leases lost"] or world.counts["commits late or lost"]):
        raise Violation(f"chunks {held} were never released")
