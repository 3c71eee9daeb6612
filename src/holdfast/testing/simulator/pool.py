"""The handlers of a simulated run, which are at work beside it: items of a stage, and ranges of rows."""

from typing import TYPE_CHECKING

from holdfast.core import canonical
from holdfast.core.model import Item
from holdfast.core.outcome import Done, Failed, Lost, Outcome
from holdfast.runtime.engine import exchange as ex
from holdfast.runtime.engine.hold import Saving
from holdfast.testing.simulator.handlers import RangeWalk, handle, length_of, output_of, seconds_of
from holdfast.testing.simulator.world import Actor, Effect

if TYPE_CHECKING:
    from holdfast.testing.simulator.worker import SimulatedWorker


def effect_of(item: Item) -> Effect:
    """Return the item at its stage in its epoch."""
    return int(item.n), item.place.stage, item.place.epoch


class HandlerPool:
    """The handlers of one run."""

    def __init__(self, run: "SimulatedWorker") -> None:
        self.run, self.world = run, run.world

    def begin(self, effect: ex.Begin) -> None:
        work: ex.Portion = effect.work
        for oracle in self.run.oracles:
            oracle.begins(work)
        actor = self._begin_walk(work) if self.world.plan.every else self._handle(work)
        self.world.begin(self.run.live(actor))

    # -- items --------------------------------------------------------------------------------------------------

    def _handle(self, work: ex.Portion) -> Actor:
        outcomes: list[Outcome] = []
        for item in work.items:
            if self._is_vain(work):
                break
            found = self.look(item)
            if found is None:
                self._set_out(work, item)
                seconds = seconds_of(self.world)
                yield seconds
                found = handle(self.run, item, seconds)
            outcomes.append(found)
        self.run.tell(ex.Answer(work, outcomes, work.items[len(outcomes) :]))

    def _is_vain(self, work: ex.Portion) -> bool:
        """Whether nothing more of it is begun."""
        return work.hold.lost or self.run.desk.orders.stopping

    def _set_out(self, work: ex.Portion, item: Item) -> None:
        self.run.effects[work.hold].append(self.world.about_to_run(item, self.run.now()))

    def look(self, item: Item) -> Outcome | None:
        """Look before anything is run whether its input is still there, and whether its output is there already."""
        world, (n, place) = self.world, (int(item.n), item.place)
        broken = world.outputs.broken_below(n, place.stage) if world.outputs.broken else None
        if broken is not None or (place.stage and world.goes_wrong(world.plan.lost)):
            return Lost(item, place.stage - 1, "its input is gone")
        effect = (n, place.stage, place.epoch)
        if not world.plan.adopts or not world.outputs.has(effect):
            return None
        world.counts["adopted"] += 1
        output = output_of(item)
        spend = world.outputs.made[effect]
        return Done(item, output, canonical.digest(item.salt, output), 0.0, 0.0, spend, adopted=True)

    # -- ranges -------------------------------------------------------------------------------------------------

    def _begin_walk(self, work: ex.Portion) -> Actor:
        world, (item,) = self.world, work.items
        if self._is_vain(work):
            self.run.tell(ex.Answer(work, [], work.items))
            return
        n = int(item.n)
        walk = RangeWalk(item, work.hold.checkpoints.get(n), length_of(world, n), world.plan.every)
        self._set_out(work, item)
        world.ranges.begins(walk)
        yield from self._walk(work, walk)

    def _walk(self, work: ex.Portion, walk: RangeWalk) -> Actor:
        """Walk a range up to its next checkpoint, or to its end."""
        world = self.world
        world.ranges.goes_on(walk, work.fence)
        seconds = seconds_of(world)
        yield seconds
        world.ranges.handled(walk, walk.go_on())
        if not walk.at_end and not world.goes_wrong(world.plan.transient):
            self.run.tell(ex.CheckpointReached(work, Saving(walk.reached(), (work, walk))))
            return
        if walk.at_end:
            outcome = handle(self.run, walk.item, seconds, walk.result())
        else:
            outcome = Failed(walk.item, True, "http_503", "no answer", world.chance(), 0.1, seconds)
        if isinstance(outcome, Done):
            work.reached = walk.reached()
        self.run.tell(ex.Answer(work, [outcome]))

    def reply(self, effect: ex.Reply) -> None:
        """Let walks go on whose checkpoint is durable; where the run stops, they are left there."""
        for saving in effect.savings:
            work, walk = saving.waiter
            if not effect.landed:
                self.run.tell(ex.Answer(work, [], [walk.item]))
                continue
            walk.is_saved(saving.reached)
            if self.run.desk.orders.stopping:
                self._park(work, walk)
            else:
                self.world.begin(self.run.live(self._walk(work, walk)))

    def _park(self, work: ex.Portion, walk: RangeWalk) -> None:
        self._excuse(work, walk.item)
        self.run.tell(ex.Answer(work, [], [walk.item]))

    def _excuse(self, work: ex.Portion, item: Item) -> None:
        """Expect no outcome of an attempt."""
        effect = effect_of(item)
        self.run.effects[work.hold].remove(effect)
        self.world.excused[effect] += 1
