"""How many of the items that were settled last are dead: read from the newest entries of the journal.

Every worker reads the same journal, so all of them come to the same answer. A dead letter that a person has dealt with
since (redriven, resolved, discarded) does not count any more: what was put right must not stop the batch again.
"""

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.core import journal
from holdfast.core.course import share_of


class Fate(NamedTuple):
    """An item that a worker settled."""

    at: float
    n: int
    dead: bool


class Tally(NamedTuple):
    """What became of the items in a window."""

    dead: int
    seen: int


def fates(entries: Iterable[tuple[float, journal.Body]]) -> list[Fate]:
    """What became of items, from entries with their times, newest first; of each item the last."""
    found: list[Fate] = []
    known: set[int] = set()
    for at, body in entries:
        if isinstance(body, journal.Acted):
            known.update(moved.n for moved in body.items)
        elif isinstance(body, journal.Checkpointed):
            settled = sorted(_settled(at, body), key=lambda fate: -fate.n)
            found += [fate for fate in settled if fate.n not in known]
            known.update(fate.n for fate in settled)
    return found


def tally(found: Iterable[Fate], window: int) -> Tally:
    """Of the newest items, as many as the window has, how many are dead."""
    newest = sorted(found, reverse=True)[:window]
    return Tally(dead=sum(fate.dead for fate in newest), seen=len(newest))


def is_exceeded(found: Tally, share: float, window: int) -> bool:
    """Whether more than the share of a full window is dead. Before it is full, one dead letter would be a large
    share."""
    return found.seen >= window and found.dead > share_of(share, window)


def _settled(at: float, body: journal.Checkpointed) -> Iterable[Fate]:
    for group in body.advanced:
        if group.finished:
            yield from (Fate(at, n, False) for n in group.items)
    for attempt in body.attempts:
        if attempt.outcome in ("skip", "bury"):
            yield Fate(at, attempt.n, attempt.outcome == "bury")
