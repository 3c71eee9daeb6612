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
    """The budget of one item at one stage: by default 3 attempts within 15 minutes."""

    attempts: int = 3
    """How many attempts may fail, 1 to 1000."""
    within: Duration = "15m"
    """How much time failed attempts and the waits between them may take together. Waits that the service asked for, and
    time in which no process ran, do not count."""
    wait: tuple[Duration, Duration] = ("2s", "30s")
    """The shortest and the longest wait. The wait after attempt *n* is drawn between the shortest and
    `min(longest, shortest * 2ⁿ)`."""
    usd: Usd | None = None
    """The most to spend on failed attempts before giving up."""
    defer_within: Duration = "24h"
    """How long an item may be deferred in total, by `hf.Defer` or a `Retry-After`; then it is buried."""

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
    """The most that a batch may cost over all its runs. It is not remembered: pass it to every run."""

    usd: Usd
    """The limit. The batch pauses when it is used up."""
    item: Usd | None = None
    """The most that one item can cost over all its attempts, if you know it: then the limit is exact."""

    def __post_init__(self) -> None:
        if canonical.to_units(self.usd) == 0:
            raise UsageError("Budget(usd=0) would let nothing run: pass an amount, or leave the budget out")
        if self.item is not None and not 0 < canonical.to_units(self.item) <= canonical.to_units(self.usd):
            raise UsageError(f"Budget(usd={self.usd}, item={self.item}): item must be more than 0, and at most usd")


@dataclass(frozen=True, slots=True)
class Breaker:
    """The rule by which a stage pauses when the service it calls seems to be down."""

    failures: int = retry.Rule().failures
    """How many different items in a row must fail with a transient error."""
    pause: Duration = "30s"
    """How long the first pause lasts, at most an hour. Each further one is twice as long, up to ten minutes."""

    def __post_init__(self) -> None:
        self.rule()

    def rule(self) -> retry.Rule:
        if isinstance(self.failures, bool) or not isinstance(self.failures, int) or not 1 <= self.failures <= 100_000:
            raise UsageError(f"Breaker(failures={self.failures!r}): a whole number from 1 to 100,000")
        pause = seconds(self.pause, "Breaker(pause=…)")
        if not 0 < pause <= BREAKER_SECONDS:
            raise UsageError(f"Breaker(pause={self.pause!r}): longer than 0 s, and no longer than an hour")
        return retry.Rule(failures=self.failures, pause=pause)
