"""What a journal tells of a batch: its items, its chunks, the whole story; and what it means that it cannot be true."""

import msgspec

from holdfast.core import journal
from holdfast.core.model import State


class Violation(AssertionError):
    """A promise was broken."""


class Told(msgspec.Struct):
    """One item as the journal tells it."""

    stage: int = 0
    state: State = State.PENDING
    epoch: int = 0
    attempt: int = 0
    due: float = 0.0
    used: float = 0.0
    spent: int = 0
    requeues: int = 0
    rewinds: int | None = 0
    """None after an act of which nobody can tell whether it was a rewind."""
    position: journal.Position | None = None
    """How far it has been read, where it is a range of a source."""


class Link(msgspec.Struct):
    """One chunk as the journal tells it."""

    id: int
    lo: int
    hi: int
    start: bytes
    """What its first entry links to."""
    fence: int = 0
    owner: str | None = None
    blame: int = 0
    progressed: bool = True
    attempts: int = 0
    spent: int = 0
    tokens: int = 0
    seconds: float = 0.0


class Story(msgspec.Struct):
    """What the journal of one batch says."""

    items: dict[int, Told]
    links: dict[int, Link]
    advanced: dict[tuple[int, int, int], int]
    """(item, stage, epoch) -> how often its success was told."""
    attempts: dict[tuple[int, int, int], int]
    """(item, stage, epoch) -> attempts that were told, the successful one included."""
    spends: list[journal.Spend]
    given: set[tuple[int, int]]
    """(item, epoch) of outputs that a person gave."""
    waits: list[tuple[int, journal.Attempted, float]]
    """(chunk, attempt, when) of everything that waits."""
    adopted: set[tuple[int, int, int]]
    """(item, stage, epoch) of what was found, not made."""
    buried: list[int]
    """Items, as often as they were buried."""
    acted: list[tuple[str, bytes, int]]
    """(kind, act, item) of everything that was done to items outside of a lease."""
    positions: list[tuple[int, int, int]]
    """(item, epoch, rows) of every checkpoint that an owner wrote, chunk by chunk."""
    seals: int = 0
