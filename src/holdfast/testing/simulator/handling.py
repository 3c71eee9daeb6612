"""What a handler makes of an item: an output, or one of the ways in which it fails."""

from typing import Any

from holdfast.core import canonical
from holdfast.core.journal import Spend
from holdfast.core.model import Item
from holdfast.core.outcome import Deferred, Done, Failed, Outcome, Skipped
from holdfast.testing.simulator.plan import LEASE
from holdfast.testing.simulator.world import World, output_of


def seconds_of(world: World) -> float:
    """How long it takes; now and then longer than a lease."""
    chance = world.chance()
    return LEASE * (1 + 2 * chance) if world.goes_wrong(world.plan.slow) else 0.1 + 3 * chance * chance


def handle(process: Any, item: Item, seconds: float, result: bytes | None = None) -> Outcome:
    """How the handler of a process ends. `result` is what came of a range; of other items it follows from the input."""
    world, plan = process.world, process.world.plan
    if plan.killer is not None and plan.killer == (item.key, item.place.stage):
        process.die(f"is killed by item {item.n}")
    spend = (
        Spend(item.n, usd=1 + int(world.chance() * plan.spend), metrics={"run": world.new_id()}) if plan.spend else None
    )
    luck = world.chance()
    if luck < plan.transient:
        after = 40.0 if luck < plan.transient / 10 else None
        return Failed(item, True, "http_503", "no answer", world.chance(), 0.1, seconds, after, spend=spend)
    luck -= plan.transient
    if luck < plan.permanent:
        return Failed(item, False, "http_404", "not there", world.chance(), 0.1, seconds, spend=spend)
    luck -= plan.permanent
    if luck < plan.skip:
        return Skipped(item, "blank", 0.1, seconds, spend)
    luck -= plan.skip
    if luck < plan.defer:
        return Deferred(item, 5 + 60 * world.chance(), "closed", 0.1, seconds)
    world.outside.make((int(item.n), item.place.stage, item.place.epoch), spend)
    output = output_of(item) if result is None else result
    return Done(item, output, canonical.digest(item.salt, output), 0.1, seconds, spend)
