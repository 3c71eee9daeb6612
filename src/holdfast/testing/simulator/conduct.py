"""Invariants of one run while it works: which portions it starts, and what it does with their results."""

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from holdfast.core.outcome import Deferred, Done, Failed, Lost, Outcome
from holdfast.runtime.engine import exchange as ex
from holdfast.runtime.engine.dispatch import ENOUGH, INLINE_SECONDS
from holdfast.runtime.engine.hold import Hold
from holdfast.testing.replay import Violation

if TYPE_CHECKING:
    from holdfast.testing.simulator.worker import SimulatedWorker

A_MOMENT = 1e-6
LATE = 2.0
"""Seconds that it may take to write finished work and to release everything."""
ALONE = 2
"""Deaths after which an item is tried with nothing in parallel."""


class RunOracle:
    """An observer of a run: the portions it starts, the events it gets, the commits it writes."""

    def __init__(self, run: "SimulatedWorker") -> None:
        self.run, self.plan = run, run.world.plan

    def begins(self, work: ex.Portion) -> None:
        """Check a portion that is started."""

    def hears(self, events: list[ex.Event]) -> None:
        """Check the events that the run gets."""

    def writes(self, written: ex.Written) -> None:
        """Check what is about to be written for one hold."""


class TimeOracle(RunOracle):
    """A run starts nothing that its deadline would cut off, as far as it can know, and ends in time."""

    def __init__(self, run: "SimulatedWorker") -> None:
        super().__init__(run)
        self._measured: Counter[int] = Counter()
        """How often the duration of a stage was observed."""
        self._last: dict[int, float] = {}
        """The duration of the last attempt."""

    def _left(self) -> float:
        return self.run.desk.orders.deadline.at - self.run.world.clock.now

    def begins(self, work: ex.Portion) -> None:
        if self.run.desk.orders.stopping:
            return  # the deadline came during the claim: it is returned unchanged
        left, is_known = self._left(), self._measured[work.stage] >= ENOUGH or self._last.get(work.stage)
        if left <= 0:
            raise Violation(f"items {[item.n for item in work.items]} are started {-left:.1f} s after the deadline")
        if is_known and self.plan.paces and not self.plan.every and left < self.plan.paces[work.stage] - A_MOMENT:
            raise Violation(f"stage {work.stage} starts an item {left:.1f} s before the deadline, but needs longer")

    def hears(self, events: list[ex.Event]) -> None:
        for answer in [event for event in events if isinstance(event, ex.Answer)]:
            for outcome in answer.outcomes:
                if not isinstance(outcome, Lost):
                    self._last[answer.work.stage] = outcome.seconds
                    self._measured[answer.work.stage] += outcome.seconds > 0

    def ends(self) -> None:
        """Check that the run does not end late, unless something delayed it."""
        world, was_kept = self.run.world, self.run.is_shaken or self.plan.slow_reply or self.plan.lingers
        if -self._left() > LATE and not was_kept and world.loses_commits:
            raise Violation(f"{self.run.name} ends {-self._left():.1f} s after its deadline")


class SliceOracle(RunOracle):
    """Handlers on the thread of a run do not block it; a stage that did is not run there again. Everything that runs in
    parallel has a slot, and gives it back."""

    def __init__(self, run: "SimulatedWorker") -> None:
        super().__init__(run)
        self._size = run.desk.slots.free
        self._slow: set[int] = set()
        """Stages of which an item blocked the thread of the run."""
        self._seconds = 0.0
        """The time that handlers took there since the last event."""

    def begins(self, work: ex.Portion) -> None:
        if not work.inline:
            if len(self.run.pool.flying) >= self._size:
                raise Violation(f"more than {self._size} portions run in parallel to a run")
        elif work.stage in self._slow or work.hold.exclusive:
            raise Violation(f"items of stage {work.stage} run on the thread of the run, but may be slow or kill it")
        elif self._seconds > INLINE_SECONDS:
            raise Violation(f"handlers keep the thread of the run for {self._seconds:.3f} s without a commit")

    def keeps(self, work: ex.Portion, seconds: float, *, slow: bool) -> None:
        """Check handlers that have occupied the thread of the run."""
        self._seconds += seconds
        self._slow.update([work.stage] if slow else [])

    def hears(self, events: list[ex.Event]) -> None:
        self._seconds = 0.0
        came_back = [event.work for event in events if isinstance(event, ex.Answer | ex.Broken)]
        held = sum(work.slots for work in {*self.run.pool.flying, *came_back})
        if held != self._size - self.run.desk.slots.free:
            raise Violation(f"{self._size - self.run.desk.slots.free} slots are held, but {held} are in use")


class _StagePause:
    """The observations about the service of one stage."""

    def __init__(self) -> None:
        self.until = 0.0
        """When the pause ends; 0 if there is none."""
        self.answered = False
        """True if there was an answer since it began."""
        self.waited = 0.0
        """The total of all its pauses, each at its shortest."""
        self.row: set[int] = set()
        """Items that failed since the last answer."""
        self.asked = 0.0
        """The time until which the service asked not to be called."""
        self.flying: dict[ex.Portion, int] = {}


class PauseOracle(RunOracle):
    """A stage whose items fail one after the other pauses: it starts nothing, then one item as a trial; failures in the
    meantime cost no attempt."""

    def __init__(self, run: "SimulatedWorker") -> None:
        super().__init__(run)
        self._stages = [_StagePause() for _ in self.plan.policies]
        self._spared: list[Outcome] = []
        """Failures that must not count."""

    def tells(self, effect: ex.TellPause) -> None:
        """Check a pause that begins."""
        if effect.until is None or self.plan.rule is None:
            return
        stage, seconds = self._stages[effect.stage], effect.until - self.run.now()
        if seconds < self.plan.rule.pause - A_MOMENT:
            raise Violation(
                f"stage {effect.stage} pauses for {seconds:.1f} s, but its rule says {self.plan.rule.pause}"
            )
        stage.until, stage.answered, stage.waited = effect.until, False, stage.waited + self.plan.rule.pause
        stage.row.clear()

    def begins(self, work: ex.Portion) -> None:
        stage, now = self._stages[work.stage], self.run.now()
        if stage.answered and now >= stage.until:
            stage.until, stage.answered = 0.0, False
        if now < stage.asked - A_MOMENT:
            raise Violation(f"stage {work.stage} starts an item {stage.asked - now:.1f} s before it may call again")
        if stage.until:
            self._probes(work, stage, now)
        elif self.plan.rule is not None and len(stage.row) >= self.plan.rule.failures:
            raise Violation(f"stage {work.stage} starts an item after items {sorted(stage.row)} failed in a row")
        stage.flying[work] = len(work.items)

    def _probes(self, work: ex.Portion, stage: _StagePause, now: float) -> None:
        if now < stage.until - A_MOMENT:
            raise Violation(f"stage {work.stage} starts an item {stage.until - now:.1f} s before its pause ends")
        if stage.flying or len(work.items) > 1:
            raise Violation(f"stage {work.stage} starts more than one item as a trial after its pause")
        if self.plan.rule is not None and stage.waited > self.plan.rule.in_all:
            raise Violation(
                f"stage {work.stage} has paused for {stage.waited:.1f} s in total or longer, but starts an item"
            )

    def hears(self, events: list[ex.Event]) -> None:
        for event in events:
            if not isinstance(event, ex.Answer | ex.Broken):
                continue
            stage = self._stages[event.work.stage]
            outcomes, unrun = event[1:3] if isinstance(event, ex.Answer) else (event.work.outcomes, event.work.items)
            self._came_back(stage, event.work, len(outcomes) + len(unrun))
            for outcome in outcomes:
                self._hear(stage, outcome)

    def _came_back(self, stage: _StagePause, work: ex.Portion, count: int) -> None:
        left = stage.flying.pop(work, count) - count
        if left > 0:
            stage.flying[work] = left

    def _hear(self, stage: _StagePause, outcome: Outcome) -> None:
        now = self.run.now()
        if isinstance(outcome, Deferred) and outcome.told:
            stage.asked = max(stage.asked, now + outcome.wait)
        if isinstance(outcome, Lost | Deferred) or (isinstance(outcome, Done) and outcome.adopted):
            return
        if not isinstance(outcome, Failed) or not outcome.transient:
            stage.answered = True
            stage.until = stage.until if now < stage.until else 0.0
            stage.row.clear()
        elif not stage.until:
            stage.row.add(int(outcome.item.n))
        elif not stage.answered:
            self._spared.append(outcome)

    def writes(self, written: ex.Written) -> None:
        for outcome in written.hold.in_write if self._spared else ():
            if any(outcome is spared for spared in self._spared):
                raise Violation(f"item {outcome.item.n} failed while its stage paused, but that counts as an attempt")


class ProcessOracle(RunOracle):
    """An item under which a process died is tried again in a new one, then with nothing in parallel; only if that
    process dies as well is the item blamed."""

    def __init__(self, run: "SimulatedWorker") -> None:
        super().__init__(run)
        self._deaths: defaultdict[Hold, Counter[int]] = defaultdict(Counter)
        """How many processes died under the items of a hold that have not come back since."""
        self._guilty: list[int] = []

    def begins(self, work: ex.Portion) -> None:
        flying, deaths = self.run.pool.flying, self._deaths[work.hold]
        if deaths and len(work.items) > 1:
            raise Violation(f"items {[item.n for item in work.items]} run together after processes died: {deaths}")
        died = deaths[work.items[0].n]
        if died and not work.fresh:
            raise Violation(f"item {work.items[0].n} is not tried again in a new process")
        if died > 1 and not work.lone:
            raise Violation(f"item {work.items[0].n} is not tried alone, although {died} processes died under it")
        if flying and (work.lone or any(other.lone and not other.hold.lost for other in flying)):
            raise Violation(
                f"item {work.items[0].n} is started in parallel to another, but one of the two must run alone"
            )

    def hears(self, events: list[ex.Event]) -> None:
        for event in events:
            if isinstance(event, ex.Answer):
                for outcome in event.outcomes:
                    self._deaths[event.work.hold].pop(outcome.item.n, None)
            elif isinstance(event, ex.Broken):
                self._hear_of_death(event.work)

    def _hear_of_death(self, work: ex.Portion) -> None:
        item, deaths = work.items[len(work.outcomes)], self._deaths[work.hold]
        for outcome in work.outcomes:
            deaths.pop(outcome.item.n, None)
        if work.lone and not self.run.desk.orders.stopping:
            self._guilty.append(int(item.n))
            if deaths.pop(item.n, 0) < ALONE:
                raise Violation(f"item {item.n} was tried alone too early")
        else:
            deaths[item.n] += 1
            self.run.pool.excuse(work, item)

    def writes(self, written: ex.Written) -> None:
        for outcome in written.hold.in_write:
            if isinstance(outcome, Failed) and outcome.code == "process_died":
                self._check_blame(outcome)

    def _check_blame(self, failed: Failed) -> None:
        item = failed.item
        if self.plan.fatal != (item.key, item.place.stage):
            raise Violation(f"item {item.n} is blamed for the end of a process, but never killed one")
        if item.n not in self._guilty:
            raise Violation(f"item {item.n} is blamed for the end of a process in which it did not run alone")
        self._guilty.remove(int(item.n))
        self.run.world.counts["killers of processes found"] += 1
