"""The handlers of a simulated run, which work in parallel to it: items of a stage, and partitions."""

from collections.abc import Generator
from typing import TYPE_CHECKING

from holdfast.core.limits import SLOW_SECONDS, WATCH_SECONDS
from holdfast.core.model import Item
from holdfast.core.outcome import Done, Failed, Outcome
from holdfast.core.verify import may_have_been_tried
from holdfast.runtime.engine import exchange as ex
from holdfast.runtime.engine.assignment import Assignment
from holdfast.runtime.engine.hold import Saving
from holdfast.runtime.engine.stages import INLINE_PATIENCE
from holdfast.testing.replay import Violation
from holdfast.testing.simulator.handlers import RangeWalk, cut_off, effect_of, handle, length_of, look_first, seconds_of
from holdfast.testing.simulator.world import Behavior

if TYPE_CHECKING:
    from holdfast.testing.simulator.worker import SimulatedWorker


class SimulatedChild:
    """A process that runs handlers."""

    is_littered = False
    """True if it will die under its next item because of what an earlier one left behind."""


class HandlerPool:
    """The handlers of one run."""

    def __init__(self, run: "SimulatedWorker") -> None:
        self.run, self.world = run, run.world
        self.flying: dict[Assignment, Item | None] = {}
        """The work in flight, each with its current item."""
        self._children: list[SimulatedChild] = []
        """Idle processes."""

    def begin(self, effect: ex.Begin) -> None:
        """Start the handlers of a portion, in parallel to the run."""
        work: Assignment = effect.work
        self.flying[work] = None
        actor = self._begin_walk(work) if self.world.plan.every else self._handle(work)
        self.world.begin(self.run.live(actor))

    # -- items --------------------------------------------------------------------------------------------------

    def _handle(self, work: Assignment) -> Behavior:
        child = self._child(work) if self.world.plan.processes else None
        for item in work.items:
            if self._is_vain(work):
                break
            found = self.look(item)
            self._check_found(work, item, found)
            if found is None:
                self._set_out(work, item)
                seconds = seconds_of(self.world, work.stage)
                yield seconds
                if work.abandoned:
                    return
                if child is not None and self._dies(child, item, work.fence):
                    self._break(work, item)
                    return
                found = self._end(work, item, seconds)
            work.outcomes.append(found)
            self.flying[work] = None
        if child is not None:
            self._children.append(child)
        self._answer(work, work.answer())

    def cut_off(self, _: ex.CutOff) -> list[ex.Event]:
        """Cut off the work in progress: its outcomes count, and so does the cost of the current item. Nothing is known
        of processes, and of partitions only their checkpoints."""
        if self.world.plan.processes:
            return []
        return [self._cut_off(work, item) for work, item in list(self.flying.items())]

    def _cut_off(self, work: Assignment, item: Item | None) -> ex.Answer:
        work.abandoned = True
        del self.flying[work]
        (first, last), outcomes = work.owed, list(work.outcomes)
        if item is not None and self.world.plan.every:
            self.excuse(work, item)
        elif item is not None:
            outcomes.append(cut_off(self.world, item))
        self.world.counts["portions cut off"] += 1
        return ex.Answer(work, outcomes[first:], work.items[len(outcomes) : last])

    # -- on the thread of the run -------------------------------------------------------------------------------

    def run_here(self, work: Assignment) -> Generator[float, None, bool]:
        """Run items one after the other; return whether one was so slow that another thread had to take over. If they
        turn out to be slow, the rest is left."""
        took = 0.0
        self.world.counts["slices"] += 1
        for item in work.items:
            if self._is_vain(work) or took > INLINE_PATIENCE:
                break
            found = self.look(item)
            self._check_found(work, item, found)
            if found is None:
                self._set_out(work, item)
                seconds = seconds_of(self.world, work.stage)
                took += seconds
                if took > SLOW_SECONDS:
                    yield from self._hand_on(work, item, seconds, took)
                    return True
                found = self._end(work, item, seconds)
            work.outcomes.append(found)
        yield took
        self.flying.pop(work, None)
        self.run.slices.keeps(work, took, slow=False)
        self._answer(work, work.answer())
        return False

    def _hand_on(self, work: Assignment, item: Item, seconds: float, took: float) -> Behavior:
        """Let a slow item finish in parallel to the run, which continues on another thread."""
        watched = min(took, SLOW_SECONDS + WATCH_SECONDS * self.world.chance())
        yield watched
        self.world.counts["slices handed on"] += 1
        self.run.slices.keeps(work, watched, slow=True)
        answer = work.split()
        assert answer is not None
        self.run.desk.queues[work.stage].surprise(work)
        self.flying[work] = item
        self.run.tell(answer)
        self.world.begin(self.run.live(self._end_beside(work, item, seconds, took - watched)))

    def _end_beside(self, work: Assignment, item: Item, seconds: float, left: float) -> Behavior:
        yield left
        if not work.abandoned:
            work.outcomes.append(self._end(work, item, seconds))
            self._answer(work, work.answer())

    # -- beside it ----------------------------------------------------------------------------------------------

    def _answer(self, work: Assignment, answer: ex.Answer | None) -> None:
        self.flying.pop(work, None)
        if answer is not None:
            self.run.tell(answer)

    def _end(self, work: Assignment, item: Item, seconds: float) -> Outcome:
        outcome = handle(self.run, item, seconds)
        self.world.note_maker(item, work.fence)
        return outcome

    def _check_found(self, work: Assignment, item: Item, found: Outcome | None) -> None:
        """Check that a run looks for an existing output only if there may have been an earlier attempt, and then finds
        it; except for a run that was overtaken, or whose previous owner makes the output only now."""
        if not isinstance(found, Done) or may_have_been_tried(item.place, resumed=work.resumed):
            return
        if self.world.chunk_of(item.n).fence == work.fence and effect_of(item) not in self.world.late_makers:
            raise Violation(f"item {item.n} was made before, but its run would not look for the output")

    # -- processes ----------------------------------------------------------------------------------------------

    def _child(self, work: Assignment) -> SimulatedChild:
        return self._children.pop() if self._children and not work.fresh else SimulatedChild()

    def _dies(self, child: SimulatedChild, item: Item, fence: int) -> bool:
        """Return whether a process dies under an item: because of the item, of an earlier one, or of parallel ones."""
        world, plan = self.world, self.world.plan
        if plan.fatal == (item.key, item.place.stage):
            return True
        if child.is_littered or (len(self.flying) > 1 and world.goes_wrong(plan.crowding)):
            if plan.adopts and world.chance() < 0.5:
                world.outputs.make(effect_of(item), None)
                world.note_maker(item, fence)
            return True
        child.is_littered = world.goes_wrong(plan.litter)
        return False

    def _break(self, work: Assignment, item: Item) -> None:
        self.world.counts["processes died"] += 1
        self.world.say(self.run.name, f"loses a process under item {item.n}")
        self.flying.pop(work, None)
        self.run.tell(ex.Broken(work, "SIGKILL", item))

    # -- items --------------------------------------------------------------------------------------------------

    def _is_vain(self, work: Assignment) -> bool:
        """Return whether no more of it is started."""
        orders, queue = self.run.desk.orders, self.run.desk.queues[work.stage]
        if work.hold.lost or orders.stopping or work.abandoned:
            return True
        return not work.outcomes and queue.is_too_late(orders.deadline.left(self.world.clock.now))

    def _set_out(self, work: Assignment, item: Item) -> None:
        self.flying[work] = item
        self.run.effects[work.hold].append(self.world.about_to_run(item, self.run.now()))

    def look(self, item: Item) -> Outcome | None:
        """Check, before anything is run, whether the input still exists and whether the output already exists."""
        return look_first(self.world, item)

    # -- partitions ---------------------------------------------------------------------------------------------

    def _begin_walk(self, work: Assignment) -> Behavior:
        world, (item,) = self.world, work.items
        if self._is_vain(work):
            self._answer(work, ex.Answer(work, [], work.items))
            return
        n = int(item.n)
        walk = RangeWalk(item, work.hold.checkpoints.get(n), length_of(world, n), world.plan.every)
        self._set_out(work, item)
        world.ranges.begins(walk)
        yield from self._walk(work, walk)

    def _walk(self, work: Assignment, walk: RangeWalk) -> Behavior:
        """Walk a partition up to its next checkpoint, or to its end."""
        world = self.world
        world.ranges.goes_on(walk, work.fence)
        seconds = seconds_of(world, work.stage)
        yield seconds
        if work.abandoned:
            return
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
        self._answer(work, ex.Answer(work, [outcome]))

    def reply(self, effect: ex.Reply) -> None:
        """Let walks continue whose checkpoint is durable; if the run stops, they are left there."""
        for saving in effect.savings:
            work, walk = saving.waiter
            if work.abandoned:
                continue
            if not effect.landed:
                self._answer(work, ex.Answer(work, [], [walk.item]))
                continue
            walk.is_saved(saving.reached)
            if self.run.desk.orders.stopping:
                self._park(work, walk)
            else:
                self.world.begin(self.run.live(self._walk(work, walk)))

    def _park(self, work: Assignment, walk: RangeWalk) -> None:
        self.excuse(work, walk.item)
        self._answer(work, ex.Answer(work, [], [walk.item]))

    def excuse(self, work: ex.Portion, item: Item) -> None:
        """Expect no outcome of an attempt, unless none is expected any more."""
        effect, effects = effect_of(item), self.run.effects[work.hold]
        if effect in effects:
            effects.remove(effect)
            self.world.excused[effect] += 1
