"""The life of a batch: its end, why a run halted, its seal, and work that came after the seal."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.core import canonical, course, journal
from holdfast.core.course import HALTS, to_note
from holdfast.core.errors import Conflict, Refused
from holdfast.core.limits import ACT_ITEMS, END_LOOKS
from holdfast.core.model import Batch, BatchMode, Chunk, Commit, DeadLimit, Kind
from holdfast.core.verify import RECONCILED, Reconciliation, to_publish, told_before
from holdfast.runtime import lookup
from holdfast.runtime.journal import JournalEntry, backward, forward
from holdfast.runtime.text import command, many, reopen, when
from holdfast.stores import owners
from holdfast.stores.base import Store, each_checkpoint, find_batch, is_settled

HALTED = "halted"
STAGE_COMPLETED = "stage_completed"
TOLERANCE = "tolerance"


def is_empty(store: Store, batch: Batch, chunks: Sequence[Chunk]) -> bool:
    """Return whether the source of a batch was read to its end and gave no item (of a scan, no row), and that was not
    declared fine: by `allow_empty`, which records an end, or by `expect` or `close`."""
    if batch.ingested_at is None or batch.expected is not None or batch.closed_at is not None:
        return False
    if batch.course is BatchMode.CANCELLED or batch.sealed_at is not None or _has_any(store, batch, chunks):
        return False
    return next(forward(store, batch, RECONCILED), None) is None


def _has_any(store: Store, batch: Batch, chunks: Sequence[Chunk]) -> bool:
    """Return whether there is an item of a pipeline, a buried row, or a partition that is open or has rows."""
    if any(chunk.kind is not Kind.PARTITIONS or chunk.counts.done < chunk.size for chunk in chunks):
        return True
    return bool(chunks) and any(at.rows for at in each_checkpoint(store, batch.id))


def halted_by(store: Store, batch: Batch, chunks: Sequence[Chunk]) -> str:
    """Return why the last run ended, if it recorded that and there was no progress since. Empty otherwise, and also if
    nothing is left to do, or no more items are dead than are tolerated."""
    halt = _last_halt(store, batch, chunks)
    return "" if halt is None or not _holds(halt, batch, chunks) else halt.reason


def _last_halt(store: Store, batch: Batch, chunks: Sequence[Chunk]) -> journal.Acted | None:
    if not _goes_on(store, batch):
        return None
    touched = max((chunk.touched_at for chunk in chunks), default=0.0)
    for entry in backward(store, batch):
        if entry.kind in ("ingested", "steered") or entry.at < touched:
            return None
        if entry.kind == HALTED:
            return entry.told(journal.Acted)
    return None


def _holds(halt: journal.Acted, batch: Batch, chunks: Sequence[Chunk]) -> bool:
    """Return whether the reason still applies: dead letters may have been settled since."""
    if halt.reason != TOLERANCE:
        return True
    dead = sum(chunk.counts.dead for chunk in chunks)
    if not halt.note:
        return dead > 0
    count, share, *_ = canonical.decode(halt.note)
    return course.is_exceeded(DeadLimit(count=count, share=share), dead, batch)


def _goes_on(store: Store, batch: Batch) -> bool:
    """Return whether something is left to do, or may still come."""
    return batch.sealed_at is None and (batch.ingested_at is None or not is_settled(store, batch.id))


def note_halt(store: Store, batch: Batch, reason: str, *, actor: str, tolerance: DeadLimit | None = None) -> None:
    """Record how a run ended, if a status should show it or would otherwise show an earlier reason. The same reason is
    not recorded twice in a row, and nothing is recorded once nothing is left to do: the journal of a batch that has
    ended stays as it is."""
    now = lookup.batch_named(store, batch.name)
    if not reason or not _goes_on(store, now):
        return
    before, note = _last_halt(store, now, store.chunks(batch.id)), b""
    if reason == TOLERANCE and tolerance is not None:
        note = canonical.encode([tolerance.count, tolerance.share])
    halt = journal.Acted(reason=reason, note=note)
    if before != halt and (before is not None or reason in HALTS):
        store.amend(batch.id, to_note(HALTED, halt), actor=actor)


log = logging.getLogger("holdfast.sealing")

Compared = TypeVar("Compared", Reconciliation, Reconciliation | None)
LATE = "late"


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """A commit that came after the seal and was refused."""

    at: float
    owner: str
    items: tuple[int, ...]
    entry: str

    def __str__(self) -> str:
        return f"{owners.short(self.owner)} tried to commit {many(len(self.items), 'item')} at {when(self.at)}: refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """The seal of a batch: who set it, when and why, and commits that came after it."""

    at: float
    by: str
    reason: str = ""
    late: tuple[Late, ...] = ()

    @property
    def by_whom(self) -> str:
        """The sealer in short: host and process, or the person's name."""
        return owners.short(self.by)


def conclude_end(
    store: Store, batch: Batch, look: Callable[[], Compared], *, actor: str, looks: int = END_LOOKS
) -> Compared:
    """Check a batch and publish its end, if it has come, as one act: if the batch changed between the check and the
    write, check again. If other processes keep changing it, the end is left to them, because each checks afterwards."""
    found = look()
    for left in reversed(range(looks)):
        try:
            if found is not None:
                publish_end(store, batch, found, actor=actor)
        except Conflict:
            found = look() if left else found
        else:
            break
    return found


def publish_end(store: Store, batch: Batch, found: Reconciliation, *, actor: str) -> bool:
    """Record the reconciliation of a batch that has ended and, if every item that came is accounted for, publish that
    it is finished: both in one commit, once for each end, and only while the batch is in the state that was reconciled.
    An end is published again if another one was published in between. Return whether anything was written. Raises
    Conflict if the batch has changed."""
    if not found.is_ended:
        return False
    if store.amend(batch.id, to_publish(found), actor=actor).written:
        return True
    last = _last_told(store, batch.name) if found.is_told else None
    if last is None or last[1] == found.facts():
        return False
    return store.amend(batch.id, to_publish(found, after=last[0]), actor=actor).written


def _last_told(store: Store, name: str) -> tuple[int, bytes] | None:
    """Return the number of the entry that last published an end, and its facts."""
    batch = lookup.batch_named(store, name)
    for entry in backward(store, batch, RECONCILED):
        facts = told_before(entry.told(journal.Acted).note)
        if facts is not None:
            return entry.seq, facts
    return None


def seal(
    store: Store, batch: Batch, found: Reconciliation, *, actor: str, reason: str = "", tolerated: int = 0
) -> Batch:
    """Seal a batch that was just reconciled. The store refuses if anything changed since the comparison."""
    if not found.is_explained:
        raise Refused(
            f"batch {batch.name!r} is not sealed: {', '.join(found.unexplained)}; see "
            f"`{command('reconcile', batch.name)}`"
        )
    if found.recorded.dead > tolerated:
        raise Refused(
            f"batch {batch.name!r} is not sealed: it has {many(found.recorded.dead, 'dead letter')} and tolerates "
            f"{tolerated:,}; redrive, resolve or discard them, or pass how many to tolerate (tolerate=…)"
        )
    try:
        publish_end(store, batch, found, actor=actor)
    except Conflict:
        raise Refused(
            f"batch {batch.name!r} was not sealed, because it changed while it was reconciled: try again"
        ) from None
    return store.seal(batch.id, actor=actor, reconciliation=found.facts(), reason=reason)


def check_open(store: Store, batch: Batch) -> None:
    """Refuse to change a sealed batch, with when and by whom it was sealed, and what to do."""
    told = seal_of(store, batch)
    if told is not None:
        raise Refused(
            f"batch {batch.name!r} was sealed at {when(told.at)} by {owners.short(told.by)}: it is finished, and "
            f"nothing was changed; to continue it anyway, run `{reopen(batch.name)}`, or choose another batch name"
        )


def check_goes_on(store: Store, batch: Batch) -> None:
    """Refuse to send items back in a cancelled batch: no run would do them again, so finished work would be lost."""
    check_open(store, batch)
    now = find_batch(store, batch.name)
    if now is not None and now.course is BatchMode.CANCELLED:
        raise Refused(
            f"batch {batch.name!r} was cancelled for good: no run would do the items again, so nothing was changed; "
            "done items stay done, and for the rest choose another batch name"
        )


def end_in_the_way(store: Store, batch: Batch) -> str:
    """Return the warning before items are sent back in a batch whose end has come: only a later end lets them run.
    Empty if its end is still to come, or it has none."""
    if not course.has_ended(batch, store.now()):
        return ""
    end = f"{batch.name} ended at {when(batch.ends_at or 0.0)}"
    return f"{end}: run it with a later --until, or the next run cancels the items that go back"


def seal_of(store: Store, batch: Batch) -> Seal | None:
    """Return the seal of a batch, with late commits; None if the batch is not sealed."""
    if batch.sealed_at is None:
        return None
    by, reason, late = "?", "", list[Late]()
    for entry in forward(store, batch, "sealed", LATE):
        if entry.kind == "sealed":
            by, reason, late = entry.actor, entry.told(journal.Sealed).reason, []
        else:
            late.append(_late(entry))
    return Seal(at=batch.sealed_at, by=by, reason=reason, late=tuple(late))


def late_for(store: Store, batch: Batch, n: int) -> list[Late]:
    """Return late commits for one item, even if the batch is no longer sealed."""
    return [late for late in map(_late, forward(store, batch, LATE)) if n in late.items]


def _late(entry: JournalEntry) -> Late:
    return Late(at=entry.at, owner=entry.actor, items=tuple(entry.note["items"]), entry=entry.name)


def note_late(store: Store, commits: Sequence[Commit], *, owner: str) -> int:
    """Report commits that came after the seal: an entry in the batch's chain, a warning event, a line in the log.
    Return how many items they were about."""
    seen: set[int] = set()
    for commit in commits:
        items = sorted({int(each.n) for some in (commit.outputs, commit.moves) for each in some})
        seen.update(items)
        facts = {"chunk": commit.chunk, "fence": commit.fence, "items": items[:ACT_ITEMS]}
        body = journal.Acted(reason="the batch was sealed", note=canonical.encode(facts))
        text = f"work on {many(len(items), 'item')} came after the batch was sealed, and was refused"
        warning = course.warning("late_commit", text, chunk=commit.chunk, items=len(items))
        store.amend(commit.batch, to_note(LATE, body, once=True, events=[warning]), actor=owner)
        log.warning("chunk %d of batch %d: %s", commit.chunk, commit.batch, text)
    return len(seen)


def completed_stages(store: Store, batch: Batch) -> dict[str, dict[str, Any]]:
    """Return the newest record about each complete stage."""
    found: dict[str, dict[str, Any]] = {}
    for entry in forward(store, batch, STAGE_COMPLETED):
        facts = entry.note
        found[facts.pop("stage")] = facts
    return found
