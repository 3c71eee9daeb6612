"""Options for retries, budgets and breakers."""

from dataclasses import dataclass
from decimal import Decimal

from holdfast.core import canonical, retry
from holdfast.core.errors import UsageError
from holdfast.core.limits import BREAKER_SECONDS
from holdfast.core.retry import Policy
from holdfast.runtime.text import Duration, seconds

Usd = Decimal | float | int | str


@dataclass(frozen=True, slots=True)
class Retry:
    """How often, how long and for how much an item is tried at a stage: 3 attempts within 15 minutes by default."""

    attempts: int = 3
    within: Duration = "15m"
    wait: tuple[Duration, Duration] = ("2s", "30s")
    usd: Usd | None = None
    defer_within: Duration = "24h"
    """How long an item may be deferred in all."""

    def __post_init__(self) -> None:
        self.policy()

    def policy(self) -> Policy:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or not 1 <= self.attempts <= 1000:
            raise UsageError(f"Retry(attempts={self.attempts!r}): pass a whole number from 1 to 1000")
        if not isinstance(self.wait, tuple | list) or len(self.wait) != 2:
            raise UsageError(
                f"Retry(wait={self.wait!r}): pass the shortest and the longest wait, such as ('2s', '30s')"
            )
        low, high = (seconds(part, "Retry(wait=…)") for part in self.wait)
        if low > high:
            raise UsageError(f"Retry(wait={self.wait!r}): the first wait must not be longer than the second")
        return Policy(
            attempts=self.attempts,
            within=seconds(self.within, "Retry(within=…)"),
            wait_min=low,
            wait_max=high,
            money=None if self.usd is None else canonical.to_units(self.usd),
            defer_within=seconds(self.defer_within, "Retry(defer_within=…)"),
        )


@dataclass(frozen=True, slots=True)
class Budget:
    """What a batch may cost in all its runs; pass it at every run, it is not remembered. `item` is the most one item
    can cost, where you know it."""

    usd: Usd
    item: Usd | None = None

    def __post_init__(self) -> None:
        if canonical.to_units(self.usd) == 0:
            raise UsageError("Budget(usd=0) would let nothing run: pass an amount, or leave the budget out")
        if self.item is not None and not 0 < canonical.to_units(self.item) <= canonical.to_units(self.usd):
            raise UsageError(f"Budget(usd={self.usd}, item={self.item}): item must be more than 0, and at most usd")


@dataclass(frozen=True, slots=True)
class Breaker:
    """When a stage pauses: after so many transient failures of different items in a row, for so long; each further
    pause is twice as long, up to ten minutes."""

    failures: int = retry.Rule().failures
    pause: Duration = "30s"

    def __post_init__(self) -> None:
        self.rule()

    def rule(self) -> retry.Rule:
        if isinstance(self.failures, bool) or not isinstance(self.failures, int) or not 1 <= self.failures <= 100_000:
            raise UsageError(f"Breaker(failures={self.failures!r}): a whole number from 1 to 100,000")
        pause = seconds(self.pause, "Breaker(pause=…)")
        if not 0 < pause <= BREAKER_SECONDS:
            raise UsageError(f"Breaker(pause={self.pause!r}): longer than 0 s, and no longer than an hour")
        return retry.Rule(failures=self.failures, pause=pause)
