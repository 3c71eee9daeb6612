"""What a report says of a batch that has ended, or shall not continue now: the word, why, and what to do next."""

from holdfast.core.ending import FINDINGS, OVER_TOLERANCE, End, word_of
from holdfast.core.model import Course
from holdfast.runtime.commands import command, unpause
from holdfast.runtime.reports.status import Status
from holdfast.runtime.words import many

FINAL = frozenset({End.STOPPED, End.CANCELLED, OVER_TOLERANCE})
"""States in which running again changes nothing by itself."""


def word(now: Status, reason: str, *, read: bool, findings: bool) -> str:
    """The word for the batch, by the one rule for it; nothing while it may continue as it is. `read`: this run came to
    the end of its source, where it had one; `findings`: something does not agree, or could not be verified."""
    end, is_over = now.end, now.is_complete and read
    if end not in (End.CANCELLED, End.STOPPED) and not is_over:
        end = End.STOPPED if reason == "until" else None
    paused = now.course is Course.PAUSED or reason == "paused"
    return str(word_of(end, empty=now.is_empty, findings=findings, paused=paused, halted=reason))


def sentence(word: str, now: Status, reason: str, left: str, unexplained: str) -> str:
    """What to know about a batch of that word, and what to do next. `unexplained`: what does not agree."""
    see = f"{unexplained}: see `{command('reconcile', now.batch)}`."
    if word in (End.CANCELLED, End.STOPPED):
        told = _cancelled(now) if word == End.CANCELLED else _stopped(now)
        return f"{told} Besides, {see}" if unexplained else told
    if word == FINDINGS:
        return f"Nothing is left to do, but {see}"
    if word == OVER_TOLERANCE:
        return _over_tolerance(now, left)
    if now.course is Course.PAUSED or reason == "paused":
        return f"A person paused it, {left}: `{unpause(now.batch)}`, then run again."
    if reason == "breaker":
        return f"A service did not answer for too long, {left}: see the notes, then run again to continue."
    return f"The budget is used up, {left}: raise it and run again."


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
    if now.end in (End.COMPLETE, End.WITH_DEAD):
        return (
            f"Its end came, and its source was not read to its end: {many(counts.expected, 'item')} that came "
            f"before {'is' if counts.expected == 1 else 'are'} settled, anything new in it was not taken. Give it a "
            "later `until`, or run the new ones in another batch."
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
