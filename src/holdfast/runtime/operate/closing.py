"""How a run closes: it reconciles what it can vouch for, publishes the end of the batch, and seals it if asked to."""

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.core import course
from holdfast.core.course import FINDINGS, OVER_TOLERANCE, End, word_of
from holdfast.core.errors import Refused
from holdfast.core.model import Batch, Chunk, Course
from holdfast.core.verify import How, Reconciliation
from holdfast.runtime import lifecycle, lookup
from holdfast.runtime.define.options import KeyFrom, Options, allowed
from holdfast.runtime.define.stage import Stage, sinks_among
from holdfast.runtime.operate.reconcile import SourceKeys, reconcile
from holdfast.runtime.status.status import Status
from holdfast.runtime.text import command, many, unpause
from holdfast.stores.base import Store


class Closing:
    """Remembers how the chains ended when the run began; the rest happens at its end."""

    def __init__(self, store: Store, stages: Sequence[Stage], options: Options, actor: str) -> None:
        self._store, self._stages, self._options, self._actor = store, stages, options, actor
        self.sinks = sinks_among(stages)
        self._heads = b""
        self.warnings: list[str] = []

    def begin(self, chunks: Sequence[Chunk]) -> None:
        """Before what is recorded is checked."""
        self._heads = course.cover(chunks)

    def end(self, batch: Batch, *, read: bool) -> Reconciliation | None:
        """Once nothing is in flight any more: reconcile, publish, seal. None while there is something left to do.
        `read`: this run came to the end of its source."""
        found = lifecycle.conclude_end(
            self._store, batch, lambda: self._compare(batch.name, read=read), actor=self._actor
        )
        if self._options.seal and found is not None:
            self._seal(batch, found, read=read)
        return found

    def _compare(self, name: str, *, read: bool) -> Reconciliation | None:
        batch = lookup.batch_named(self._store, name)
        chunks = self._store.chunks(batch.id)
        is_over = batch.course is Course.CANCELLED or course.has_ended(batch, self._store.now())
        has_ended = is_over or (read and batch.ingested_at is not None)
        if not has_ended or any(chunk.pending for chunk in chunks):
            return None
        return reconcile(self._store, batch, sinks=self.sinks, how=self._depth(course.cover(chunks)),
                         allow_empty=self._options.allow_empty, chunks=chunks)  # fmt: skip

    def _depth(self, heads: bytes) -> How:
        """How closely to look: not at files that the check at the beginning has just looked at, where nothing has
        happened since; and not at all at files that nobody wants to have looked at."""
        if self._options.seal:
            return "quick"
        if not self.sinks or self._options.verify == "none" or heads == self._heads:
            return "sums"
        return "files"

    def _seal(self, batch: Batch, found: Reconciliation, *, read: bool) -> None:
        tolerated = allowed(self._options.tolerate, found.expected.admitted)
        if batch.sealed_at is not None:
            return
        if found.end not in (End.COMPLETE, End.WITH_DEAD) and found.is_explained:
            as_it_is = f"to seal it as it is: `{command('reconcile', batch.name, options='--seal')}`"
            self.warnings.append(f"not sealed: it was {found.end} before it was complete; {as_it_is}")
            return
        if not read:
            self.warnings.append("not sealed: its end came before its source was read to its end")
            return
        if found.exit_code(tolerated):
            dead = f"{found.recorded.dead:,} dead, tolerated are {tolerated:,}"
            self.warnings.append(f"not sealed: {', '.join(found.unexplained) or dead}")
            return
        lifecycle.seal(self._store, batch, found, actor=self._actor, tolerated=tolerated)

    def again(self, batch: Batch, items: Iterable[Any] | None, key: KeyFrom) -> Reconciliation:
        """A sealed batch was asked to run and be sealed once more, as after a crash behind the seal: that is fine if
        it is what it was and the source brings nothing new."""
        keys = SourceKeys(self._store, batch, self._stages[0].input, items, key) if items is not None else None
        found = reconcile(self._store, batch, sinks=self.sinks, source=keys)
        if found.is_explained:
            return found
        try:
            lifecycle.check_open(self._store, batch)
        except Refused as refused:
            raise Refused(f"{refused}; and it is not what it was: {', '.join(found.unexplained)}") from None
        return found


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
