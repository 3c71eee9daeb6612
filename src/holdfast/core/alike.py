"""Items that die alike before any has succeeded: most likely one mistake in the code, and no item is to blame."""

from typing import NamedTuple

from holdfast.core.canonical import key_text
from holdfast.core.limits import ALIKE_ITEMS
from holdfast.core.outcome import Done, Failed, Outcome, Skipped


class Kind(NamedTuple):
    """A way to die: the code, and for an error of Python its place in the code."""

    stage: int
    code: str
    place: str


def enough(workers: int) -> int:
    """Return how many items have to die alike: all that run at the same time may have met the same bad moment."""
    return max(ALIKE_ITEMS, workers)


def is_success(outcome: Outcome) -> bool:
    """Whether an outcome shows that the code of its stage works."""
    return isinstance(outcome, Skipped) or (isinstance(outcome, Done) and not outcome.adopted)


def is_death(outcome: Outcome) -> bool:
    """Whether an item would be buried at once. A storm of failures that may pass is for the breaker of its stage."""
    return isinstance(outcome, Failed) and not outcome.transient


def kind_of(failed: Failed) -> Kind:
    """Return the way in which an item died."""
    return Kind(failed.item.place.stage, failed.code, place_in(failed.trace))


def place_in(trace: str) -> str:
    """Return the innermost place in the user's code, where there is one: files of libraries come with their folder."""
    places = trace.split("; ")
    return next((place for place in reversed(places) if "/" not in place), places[-1])


def in_words(failed: Failed, count: int, *, batch: str, stage: str) -> str:
    """Return why the run stops, with one example, and what to do."""
    place = kind_of(failed).place
    where = f" ({place})" if place else ""
    return (
        f"the first {count:,} items of batch {batch!r} died alike at stage {stage!r}, and none has succeeded: "
        f"{failed.code}: {failed.message}{where}; for example item {key_text(failed.item.key)}. "
        "Nothing was buried: correct the code or the input, then run again. If all of these are to be dead letters, "
        'pass tolerate="100%"'
    )
