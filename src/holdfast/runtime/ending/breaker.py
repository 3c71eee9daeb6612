"""The circuit breaker of one stage in one run: it hears every outcome, and says what may be started."""

from collections.abc import Sequence

from holdfast.core import retry
from holdfast.core.limits import BREAKER_PAUSE, DEFERRED_SECONDS
from holdfast.core.outcome import Deferred, Done, Failed, Lost, Outcome
from holdfast.core.retry import Circuit, Phase, Rule
from holdfast.runtime.define.calls import Adopter, Verifier
from holdfast.runtime.text import in_words

NOT_A_STORM = frozenset({"process_died"})
"""Transient, but the item's own doing: another service has no part in it."""
CHECKS = frozenset({Verifier.code, Adopter.code})
"""A check gave no answer. Where that may pass, it is as if the handler gave none: whoever is asked is away."""
SAID_NO = frozenset({"unverified"})
"""The handler answered, and so did the verifier: it is tried again, but nobody is away."""


class StageBreaker:
    """Counts failures in a row; pauses the stage when there are too many."""

    def __init__(self, stage: str, rule: Rule | None, longest: float = DEFERRED_SECONDS) -> None:
        self.stage = stage
        self.rule = rule
        self.circuit = Circuit()
        self.not_before = 0.0
        """Until when the other side asked to be left alone; 0 where it did not, or something was answered since."""
        self.asked = ""
        """What is to be told of that: the first time it is long."""
        self._asked_for = 0.0
        """How long it asked to be left alone."""
        self._longest, self._told = longest, False
        self.news: list[str] = []
        """What is to be told: each time it opens."""

    @property
    def until(self) -> float:
        """When the pause ends, or ended, while nothing has been answered; 0 while it is closed."""
        return max(self.circuit.until, self.not_before)

    def ends(self, now: float) -> float:
        """Return when the pause ends or has ended, by a clock that may have been set back."""
        asked = retry.wait_until(self.not_before, self._asked_for, now)
        return max(retry.wait_until(self.circuit.until, self.circuit.pause, now), asked)

    @property
    def is_calm(self) -> bool:
        """Nothing failed since the last answer: successes need not be looked at."""
        return not self.until and not self.circuit.row

    @property
    def is_hopeless(self) -> bool:
        return self.rule is not None and retry.breaker_is_hopeless(self.circuit, self.rule)

    def blocks(self, now: float, in_flight: int) -> bool:
        """Whether nothing may be started: the other side asked for that, it is open, or the one item that is tried has
        not come back."""
        if not self._was_left_alone(now):
            return True
        phase = retry.breaker_phase(self.circuit, now)
        return phase is Phase.OPEN or (phase is Phase.HALF_OPEN and in_flight > 0)

    def judge(self, outcomes: Sequence[Outcome], now: float) -> list[Outcome]:
        """The outcomes as they shall count: while it is not closed, a failure that may pass is only a deferral."""
        self._listen(outcomes, now)
        if self.rule is None:
            return list(outcomes)
        return [self._judge_one(outcome, self.rule, now) for outcome in outcomes]

    def _listen(self, outcomes: Sequence[Outcome], now: float) -> None:
        """The longest that was asked for holds for the stage."""
        if self._was_left_alone(now):
            self.not_before = 0.0
        waits = [each.wait for each in outcomes if isinstance(each, Deferred) and each.told]
        longest = min(max(waits, default=0.0), self._longest)
        if now + longest > self.not_before and longest:
            self.not_before, self._asked_for = now + longest, longest
        if longest >= BREAKER_PAUSE and not self._told:
            self._told = True
            how_long = f"stage {self.stage!r} waits for {in_words(longest)}"
            self.asked = f"{how_long}: the other side asked for it (Retry-After)"

    def _was_left_alone(self, now: float) -> bool:
        return retry.wait_is_over(self.not_before, self._asked_for, now)

    def _judge_one(self, outcome: Outcome, rule: Rule, now: float) -> Outcome:
        if isinstance(outcome, Lost | Deferred) or (isinstance(outcome, Done) and outcome.adopted):
            return outcome
        if isinstance(outcome, Failed) and _says_nothing(outcome):
            return outcome
        if not isinstance(outcome, Failed) or not outcome.transient or outcome.code in SAID_NO:
            self.circuit = retry.breaker_answered(self.circuit, now)
            return outcome
        before = self.circuit
        self.circuit = retry.breaker_failed(before, outcome.item.n, rule, now)
        if self.circuit.until != before.until:
            self.news.append(self._say(outcome, rule))
        return outcome if not before.until else self._defer(outcome, now)

    def _defer(self, failed: Failed, now: float) -> Deferred:
        left = max(0.0, self.circuit.until - now, failed.after if failed.after is not None else 0.0)
        why = f"the breaker of stage {self.stage!r} is open: {failed.code}: {failed.message}"
        return Deferred(failed.item, left, why, failed.queued, failed.seconds, failed.spend, by_breaker=True)

    def _say(self, failed: Failed, rule: Rule) -> str:
        """Codes only: messages of handlers may hold anything."""
        what = "the item that was tried failed again" if self.circuit.pause > rule.pause else (
            f"{rule.failures} items in a row failed")  # fmt: skip
        return f"stage {self.stage!r} pauses for {in_words(self.circuit.pause)}: {what}, the last with {failed.code}"


def _says_nothing(failed: Failed) -> bool:
    """Whether nothing was asked of a service, or the check beside the handler is what is broken."""
    return failed.code in NOT_A_STORM or (failed.code in CHECKS and not failed.transient)
