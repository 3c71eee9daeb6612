"""How large a small world is: what is in it, and what may happen in it."""

import msgspec

from holdfast.core.errors import UsageError
from holdfast.core.retry import Policy

FATES = ("done", "transient", "permanent", "skip", "lost")
ON_ITEMS = ("reset", "cancel", "redrive", "requeue")
ON_BATCH = ("pause", "stop", "seal", "reopen")
ACTS = (*ON_ITEMS, *(f"{act}!" for act in ON_ITEMS), *ON_BATCH)


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """One small world. Whatever it allows happens at every moment at which it can."""

    items: int = 1
    limit: int = 9
    """How many items a claim asks for: with fewer than there are, chunks are cut."""
    stages: int = 2
    attempts: int = 1
    """After so many transient failures an item is buried."""
    fates: tuple[str, ...] = ("done",)
    """How a handler may end: `done`, `transient`, `permanent`, `skip`, `lost`."""
    acts: tuple[str, ...] = ()
    """What an operator may do to any item: `reset`, `cancel`, `redrive`, `requeue`; with a `!` behind it, seizing the
    chunk. And to the batch: `pause`, `stop` (cancel it), `seal`, `reopen`."""
    act_count: int = 1
    """How often."""
    letters: int = 2
    """How many commits may be on their way at once."""
    lets_go: bool = False
    """Whether a worker may release a chunk before its items are settled."""

    def __post_init__(self) -> None:
        unknown = [word for word in self.fates if word not in FATES] + [word for word in self.acts if word not in ACTS]
        if unknown:
            raise UsageError(f"{', '.join(unknown)}: fates are {', '.join(FATES)}; acts are {', '.join(ACTS)}")

    @property
    def policies(self) -> list[Policy]:
        """No waits: when something happens is decided by the search, not by a clock."""
        return [Policy(attempts=self.attempts, wait_min=0.0, wait_max=0.0)] * self.stages
