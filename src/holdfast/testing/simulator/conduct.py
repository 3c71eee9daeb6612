"""What must be true of the conduct of one run, while it works: which portions it begins, and what it makes of them."""

from typing import TYPE_CHECKING

from holdfast.core.outcome import Deferred, Done, Failed, Lost, Outcome
from holdfast.runtime.engine import exchange as ex
from holdfast.testing.replay import Violation

if TYPE_CHECKING:
    from holdfast.testing.simulator.worker import SimulatedWorker

A_MOMENT = 1e-6


class RunOracle:
    """Looks on while a run begins portions, hears of them and writes."""

    def __init__(self, run: "SimulatedWorker") -> None:
        self.run, self.plan = run, run.world.plan

    def begins(self, work: ex.Portion) -> None:
        """Look at a portion that is begun."""

    def hears(self, events: list[ex.Event]) -> None:
        """Look at what the run hears."""

    def writes(self, written: ex.Written) -> None:
        """Look at what is about to be written of one hold."""


class _StagePause:
    """What is known of the other side of one stage."""

    def __init__(self) -> None:
        self.until = 0.0
        """When the pause ends; 0 while there is none."""
        self.answered = False
        """Something was answered since it began."""
        self.waited = 0.0
        """All its pauses together, each at its shortest."""
        self.row: set[int] = set()
        """Items that failed since the last answer."""
        self.asked = 0.0
        """Until when it asked to be left alone."""
        self.flying: dict[ex.Portion, int] = {}


class PauseOracle(RunOracle):
    """A stage whose items fail one after the other pauses: it begins nothing, then one item to try; and what fails
    meanwhile costs no attempt."""

    def __init__(self, run: "SimulatedWorker") -> None:
        super().__init__(run)
        self._stages = [_StagePause() for _ in self.plan.policies]
        self._spared: list[Outcome] = []
        """Failures that may not count."""

    def tells(self, effect: ex.TellPause) -> None:
        """Look at a pause that begins."""
        if effect.until is None or self.plan.rule is None:
            return
        stage, seconds = self._stages[effect.stage], effect.until - self.run.now()
        if seconds < self.plan.rule.pause - A_MOMENT:
            raise Violation(f"stage {effect.stage} pauses for {seconds:.1f} s, its rule says {self.plan.rule.pause}")
        stage.until, stage.answered, stage.waited = effect.until, False, stage.waited + self.plan.rule.pause
        stage.row.clear()

    def begins(self, work: ex.Portion) -> None:
        stage, now = self._stages[work.stage], self.run.now()
        if stage.answered and now >= stage.until:
            stage.until, stage.answered = 0.0, False
        if now < stage.asked - A_MOMENT:
            raise Violation(f"stage {work.stage} begins an item {stage.asked - now:.1f} s before it may ask again")
        if stage.until:
            self._probes(work, stage, now)
        elif self.plan.rule is not None and len(stage.row) >= self.plan.rule.failures:
            raise Violation(f"stage {work.stage} begins an item after items {sorted(stage.row)} failed in a row")
        stage.flying[work] = len(work.items)

    def _probes(self, work: ex.Portion, stage: _StagePause, now: float) -> None:
        if now < stage.until - A_MOMENT:
            raise Violation(f"stage {work.stage} begins an item {stage.until - now:.1f} s before its pause ends")
        if stage.flying or len(work.items) > 1:
            raise Violation(f"stage {work.stage} begins more than one item to try whether its pause is over")
        if self.plan.rule is not None and stage.waited > self.plan.rule.in_all:
            raise Violation(
                f"stage {work.stage} has paused for {stage.waited:.1f} s in all or longer, and begins an item"
            )

    def hears(self, events: list[ex.Event]) -> None:
        for event in events:
            if isinstance(event, ex.Answer):
                stage = self._stages[event.work.stage]
                self._came_back(stage, event.work, len(event.outcomes) + len(event.unrun))
                for outcome in event.outcomes:
                    self._hear(stage, outcome)
            elif isinstance(event, ex.Broken):
                self._came_back(self._stages[event.work.stage], event.work, len(event.work.items))

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
                raise Violation(f"item {outcome.item.n} failed while its stage paused, and that counts as an attempt")
