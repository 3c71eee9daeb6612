"""What a user may say about retries, money and tolerance."""

from dataclasses import dataclass
from decimal import Decimal

from holdfast.core import money
from holdfast.core.errors import UsageError
from holdfast.core.retry import Policy
from holdfast.runtime.durations import Duration, seconds

Usd = Decimal | float | int | str


@dataclass(frozen=True, slots=True)
class Retry:
    """How often, how long and for how much an item is tried at a stage: 3 attempts within 15 minutes by default."""

    attempts: int = 3
    within: Duration = "15m"
    wait: tuple[Duration, Duration] = ("2s", "30s")
    usd: Usd | None = None

    def __post_init__(self) -> None:
        self.policy()

    def policy(self) -> Policy:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or not 1 <= self.attempts <= 1000:
            raise UsageError(f"Retry(attempts={self.attempts!r}): a whole number from 1 to 1000")
        if not isinstance(self.wait, tuple | list) or len(self.wait) != 2:
            raise UsageError(f"Retry(wait={self.wait!r}): the shortest and the longest wait, such as ('2s', '30s')")
        low, high = (seconds(part, "Retry(wait=…)") for part in self.wait)
        if low > high:
            raise UsageError(f"Retry(wait={self.wait!r}): the first is the shortest wait, the second the longest")
        return Policy(
            attempts=self.attempts,
            within=seconds(self.within, "Retry(within=…)"),
            wait_min=low,
            wait_max=high,
            money=None if self.usd is None else money.to_units(self.usd),
        )


@dataclass(frozen=True, slots=True)
class Budget:
    """What a batch may cost in all, over every run of it. `item` is the most one item can cost, where you know it."""

    usd: Usd
    item: Usd | None = None

    def __post_init__(self) -> None:
        if money.to_units(self.usd) == 0:
            raise UsageError("Budget(usd=0) would let nothing run: give an amount, or leave the budget out")
        if self.item is not None and not 0 < money.to_units(self.item) <= money.to_units(self.usd):
            raise UsageError(f"Budget(usd={self.usd}, item={self.item}): an item costs something, and no more than all")
