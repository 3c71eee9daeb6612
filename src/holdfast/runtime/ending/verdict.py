"""What a report says of a batch that shall not continue, or not now: the state, why, and what to do next."""

from holdfast.core.ending import OVER_TOLERANCE, PAUSED, End
from holdfast.runtime.commands import command, unpause
from holdfast.runtime.reports.status import Status
from holdfast.runtime.words import many

FINAL = frozenset({End.STOPPED, End.CANCELLED, OVER_TOLERANCE})
"""States in which running again changes nothing by itself."""


def of(now: Status, reason: str, *, read: bool) -> tuple[str, str] | None:
    """The state and its sentence; None where the batch is complete, or nothing of this concerns it."""
    if now.end is End.CANCELLED:
        return End.CANCELLED, _cancelled(now)
    if now.end is End.STOPPED or (reason == "until" and not (now.is_complete and read)):
        return End.STOPPED, _stopped(now)
    if now.is_complete and read:
        return None
    left = f"{many(now.counts.pending, 'item')} left to do"
    if reason == "tolerance":
        return OVER_TOLERANCE, _over_tolerance(now, left)
    if reason == "breaker":
        return PAUSED, f"A service did not answer for too long, {left}: see the notes, then run again to continue."
    if reason == "paused":
        return PAUSED, f"A person paused it, {left}: `{unpause(now.batch)}`, then run again."
    return None


def _cancelled(now: Status) -> str:
    counts = now.counts
    if counts.running:
        return f"{many(counts.running, 'item')} still in flight: their owners finish them or leave them."
    if counts.pending:
        return f"{many(counts.pending, 'item')} left by an owner that is gone: run it or cancel it again."
    return (
        f"{_of(counts.cancelled, counts.expected)} cancelled, the others stay as they are; choose another batch name."
    )


def _stopped(now: Status) -> str:
    counts = now.counts
    if now.is_complete and now.expected is not None and now.expected > counts.expected:
        return (
            f"{now.expected - counts.expected:,} of {many(now.expected, 'expected item')} never came: see "
            f"`{command('reconcile', now.batch)}`; if the number was wrong, "
            f"`{command('expect', now.batch, 'N', '--reason …')}`."
        )
    unread = "" if now.ingested_at is not None else " before all of its items were there"
    flight = f", {counts.pending:,} still in flight" if counts.pending else ""
    return (
        f"Its end came{unread}: {counts.done:,} of {many(counts.expected, 'item')} done, {counts.cancelled:,} "
        f"cancelled{flight}. What was cancelled stays so, unless it is reset and the batch gets a later end."
    )


def _over_tolerance(now: Status, left: str) -> str:
    codes = ", ".join(f"{code} ({count:,})" for code, count in list(now.dead_codes.items())[:5])
    return (
        f"{_of(now.counts.dead, now.counts.expected)} dead, more than is tolerated: {codes}; {left}. Redrive, resolve "
        f"or discard them (`{command('dead list', now.batch)}`), or raise the tolerance; then run again."
    )


def _of(some: int, of_all: int) -> str:
    return f"{some:,} of {many(of_all, 'item')} {'is' if some == 1 else 'are'}"
