"""A claimed chunk in the hands of a simulated process: what it has loaded, what waits, what is not committed yet."""

from collections.abc import Sequence

from holdfast.core import lease, retry
from holdfast.core.model import Checkpoint, Claim, Item, ItemNo
from holdfast.core.outcome import Outcome
from holdfast.core.settle import Reached
from holdfast.testing.simulator.outside import Effect
from holdfast.testing.simulator.ranges import Walk


class Hand:
    """A claimed chunk in the hands of a process."""

    __slots__ = (
        "alone",
        "checkpoints",
        "chunk",
        "claim",
        "effects",
        "exclusive",
        "last",
        "loaded_all",
        "loaded_to",
        "lost",
        "on_trial",
        "outcomes",
        "ready",
        "savings",
        "unseen",
        "version",
        "waiting",
        "walks",
    )

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.chunk = claim.lease.chunk
        self.version = claim.version
        self.ready: list[Item] = []
        self.waiting: list[Item] = []
        self.outcomes: list[Outcome] = []
        self.effects: list[Effect] = []
        """Runs that are not yet committed."""
        self.unseen = claim.pending
        """Items still to load. What an operator makes pending meanwhile is for the next grant: nothing is set aside
        for it in this one."""
        self.checkpoints: dict[int, Checkpoint] = {}
        """Of items that are ranges: where the next walk begins."""
        self.walks: dict[int, Walk] = {}
        """Walks that have begun and not ended."""
        self.savings: list[tuple[Walk, Reached]] = []
        """Walks that wait until their checkpoint is durable."""
        self.last: list[Reached] = []
        """The checkpoints at the end of ranges: they are durable with what came of the range."""
        self.loaded_to: ItemNo | None = None
        self.loaded_all = False
        self.lost = False
        self.exclusive = lease.is_suspect(claim.blame)
        self.alone = self.exclusive and claim.pending == 1
        self.on_trial = lease.on_trial(claim.pending, claim.blame)

    def take_in(self, items: Sequence[Item], now: float) -> None:
        for item in items:
            is_over = retry.wait_is_over(item.place.due, item.place.wait, now)
            (self.ready if is_over else self.waiting).append(item)

    def wake(self, now: float) -> None:
        if self.waiting:
            everybody, self.waiting = self.waiting, []
            self.take_in(everybody, now)

    def next_due(self) -> float | None:
        return min((item.place.due for item in self.waiting), default=None)

    @property
    def left(self) -> int:
        """Items of it in memory that are not settled."""
        return len(self.ready) + len(self.waiting) + len(self.savings)

    @property
    def reached(self) -> list[Reached]:
        """The checkpoints of the next commit."""
        return [*(reached for _, reached in self.savings), *self.last]

    def are_durable(self) -> None:
        """A commit landed: the walks whose checkpoint was in it go on, and what was run before is told."""
        for reached in self.reached:
            self.checkpoints[reached.item.n] = reached.checkpoint
        for walk, reached in self.savings:
            walk.is_saved(reached)
            self.ready.insert(0, walk.item)
        self.savings, self.last = [], []
        self.effects = [effect for effect in self.effects if effect[0] in self.walks]
