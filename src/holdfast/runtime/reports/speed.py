"""How fast a batch is worked on, from its last commits: only time in which somebody worked on it counts.

A run is at work from the beginning of the work that it commits first until its last commit. Between two runs nobody is.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from holdfast.core import journal
from holdfast.core.columns import FLOAT32, unpack
from holdfast.core.limits import RATE_PAUSE

RATE_ENTRIES = 200


class Committed(NamedTuple):
    """A commit: when, by whom, and what it says."""

    at: float
    owner: str
    body: journal.Checkpointed


def rate(commits: Iterable[Committed]) -> float | None:
    """Items settled per second of work over the last commits; None before there are two."""
    seen = sorted(commits, key=lambda each: each.at)[-RATE_ENTRIES:]
    seconds = worked(seen)
    return sum(settled_in(each.body) for each in seen[1:]) / seconds if seconds > 0 else None


def worked(commits: list[Committed]) -> float:
    """Return the seconds between the first and the last of some commits in which somebody was at work."""
    seconds, until = 0.0, commits[0].at if commits else 0.0
    for since, at in sorted(_spans(commits)):
        seconds += max(0.0, at - max(since, until))
        until = max(until, at)
    return seconds


def _spans(commits: list[Committed]) -> Iterator[tuple[float, float]]:
    last: dict[str, float] = {}
    for each in commits:
        since = last.get(each.owner)
        if since is None or each.at - since > RATE_PAUSE:  # another run; or its machine slept
            since = each.at - _longest(each.body)
        last[each.owner] = each.at
        yield since, each.at


def _longest(body: journal.Checkpointed) -> float:
    """Return how long the oldest work of a commit took, from the moment it was ready."""
    took = [attempt.queued + attempt.seconds for attempt in body.attempts]
    for group in body.advanced:
        took += map(sum, zip(unpack(FLOAT32, group.queued), unpack(FLOAT32, group.seconds), strict=True))
    return max(took, default=0.0)


def settled_in(body: journal.Checkpointed) -> int:
    """How many items a commit brought to their end."""
    finished = sum(len(group.items) for group in body.advanced if group.finished)
    return finished + sum(1 for attempt in body.attempts if attempt.outcome in ("skip", "bury"))
