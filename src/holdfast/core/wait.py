"""Waits: when one is over, whatever happened to the clock meanwhile."""


def is_over(due: float, planned: float, now: float) -> bool:
    """Return whether a wait until `due` is over. One that is further away than twice what was planned is: the clock
    was set back. A `planned` of 0 is not known."""
    return due <= now or 0.0 < 2.0 * planned < due - now
