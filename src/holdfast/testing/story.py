"""The story of a batch according to its journal: items, chunks, attempts, acts."""

import msgspec

from holdfast.core import journal
from holdfast.core.model import Kind, State


class Violation(AssertionError):
    """A promise was broken."""


class Told(msgspec.Struct):
    """One item according to the journal."""

    stage: int = 0
    state: State = State.PENDING
    epoch: int = 0
    attempt: int = 0
    due: float = 0.0
    used: float = 0.0
    spent: int = 0
    requeues: int = 0
    rewinds: int | None = 0
    """None after an act that may or may not have been a rewind."""
    position: journal.Position | None = None
    """How far it has been read, if it is a partition of a source."""
    payload: bytes = b""
    """The commitment to its payload, with the number of the revision."""
    revision: int = 0
    parent: int | None = None


class Link(msgspec.Struct):
    """One chunk according to the journal."""

    id: int
    lo: int
    hi: int
    start: bytes
    """The hash that its first entry links to."""
    fence: int = 0
    grant: bytes = b""
    owner: str | None = None
    blame: int = 0
    progressed: bool = True
    attempts: int = 0
    spent: int = 0
    tokens: int = 0
    seconds: float = 0.0
    kind: Kind | None = None
    window: tuple[int, int, int] = (0, 0, 0)
    """Its leg, and the stages from the first up to the end."""
    origin: int = 0


class Story(msgspec.Struct):
    """The content of the journal of one batch."""

    items: dict[int, Told]
    links: dict[int, Link]
    advanced: dict[tuple[int, int, int], int]
    """(item, stage, epoch) -> how often its success was recorded."""
    attempts: dict[tuple[int, int, int], int]
    """(item, stage, epoch) -> recorded attempts, including the successful one."""
    spends: list[journal.Spend]
    given: set[tuple[int, int]]
    """(item, epoch) of outputs that an operator supplied."""
    made: dict[tuple[int, int], bytes]
    """(item, stage) -> the commitment to its newest output."""
    waits: list[tuple[int, journal.Attempted, float]]
    """(chunk, attempt, time) of every wait."""
    adopted: set[tuple[int, int, int]]
    """(item, stage, epoch) of outputs that were adopted."""
    buried: list[int]
    """Items, as often as they were buried."""
    acted: list[tuple[str, bytes, int]]
    """(kind, act, item) of every change of items outside of a lease."""
    positions: list[tuple[int, int, int]]
    """(item, epoch, rows) of every checkpoint that an owner wrote, chunk by chunk."""
    seals: int = 0
