"""Waits: when one is over, whatever happened to the clock meanwhile."""

from holdfast.core.model import Chunk, Place


def is_over(due: float, planned: float, now: float) -> bool:
    """Return whether a wait until `due` is over. One that is further away than twice what was planned is: the clock
    was set back. A `planned` of 0 is not known."""
    return due <= now or 0.0 < 2.0 * planned < due - now


def until(due: float, planned: float, now: float) -> float:
    """Return when a wait ends or has ended: `due`, or 0 where the clock was set back, which ends it."""
    return 0.0 if due > now and is_over(due, planned, now) else due


def until_of_chunk(chunk: Chunk, now: float) -> float:
    """Return when the wait of a chunk that was given back ends or has ended."""
    return until(chunk.due, chunk.due - chunk.touched_at, now)


def until_of_item(place: Place, now: float) -> float:
    """Return when the wait of an item ends or has ended."""
    return until(place.due, place.wait, now)
